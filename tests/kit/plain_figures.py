"""Figures of functions that never ran, as `run.metrics` would have them."""

from __future__ import annotations

from typing import Any

from tests.kit.engines import Engine
from tests.kit.runs import figures_of

__all__ = ("STATES", "figures", "latencies", "task")


def _of_a_run_without_rows() -> dict[str, Any]:
    async def weather(city: str) -> str:
        return city

    engine = Engine(weather)
    engine.end()
    engine.run()
    (found,) = figures_of([engine.counted], {})
    return found


EMPTY = _of_a_run_without_rows()
STATES = tuple(EMPTY["time"])  # that time goes to
NOTHING = {"count": 0, "mean": None, "min": None, "p50": None, "p90": None, "p95": None, "p99": None, "max": None}


def latencies(count: int, usual: float, longest: float | None = None, slow: int = 1) -> dict[str, Any]:
    """Of calls that all took the usual time, but for some slow ones.

    Args:
        slow: how many took the longest time, if one is given.
    """
    if not count:
        return {**NOTHING, "histogram": []}
    slow = 0 if longest is None else slow
    highest = usual if longest is None else longest
    told = {
        name: usual if part * (count - 1) < count - slow else highest
        for name, part in {"min": 0, "p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "max": 1}.items()
    }
    histogram = [[usual, count - slow], *([[highest, slow]] if slow else [])]
    return {"count": count, "mean": ((count - slow) * usual + slow * highest) / count, **told, "histogram": histogram}


def task(
    seconds: float = 10.0, *, longest: float = 0.1, rows: int = 100, status: str = "succeeded", **time: float
) -> dict[str, Any]:
    """One of `per_task`."""
    return {
        "stage": 1, "partition": 0, "attempt": 0, "host": "here", "status": status, "began": 0.0, "seconds": seconds,
        "rows": rows, "latency": {"max": longest}, "time": time,
    }  # fmt: skip


def figures(
    *, latency: dict[str, Any] | None = None, options: dict[str, Any] | None = None, **given: Any
) -> dict[str, Any]:
    """A function with a capacity of 20, in one task of 10 s with 1,000 calls of 50 ms, unless something else is given.

    Args:
        given: the seconds in a state, by its key, or any other figure by its name.
    """
    time = {state: given.pop(state, 0.0) for state in STATES}
    if not any(time.values()) and given.get("seconds") != 0:
        time["input"] = 10.0
    seconds = sum(time.values())
    latency = latencies(1000, 0.05) if latency is None else latency
    calls = given.pop("calls", latency["count"])
    retries = given.pop("retries", 0)
    busy = (latency["mean"] or 0.0) * latency["count"]
    none = {name: value for name, value in EMPTY.items() if isinstance(value, int)}
    counts = {**none, "rows": calls, "results": calls, "calls": calls, "attempts": calls + retries}
    return {
        "function": "weather",
        "name": "weather",
        "entry_point": "column",
        "options": {"capacity": 20, "queue_size": None, "output_mode": "ordered", "timeout": 180.0, **(options or {})},
        "tasks": {"succeeded": 1, "stopped": 0, "running": 0, "failed": 0, "lost": 0},
        "began": 0.0,
        "ended": seconds,
        "seconds": seconds,
        **counts,
        "retries": retries,
        "errors": {},
        "examples": {},
        "in_flight": {"mean": busy / seconds if seconds else 0.0, "peak": 20},
        "queued": {"mean": 10.0, "peak": 20},
        "bytes_peak": 0,
        "latency": latency,
        "time": time,
        "failed_attempts": {},
        "per_task": [],
        "per_task_left_out": 0,
        **given,
    }
