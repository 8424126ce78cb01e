"""The figures of one function in `run.metrics`, as the reports and the verdict read them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .._metrics.time_account import State

COUNTED = ("succeeded", "stopped", "running")  # the figures of tasks that failed or were lost stand apart


def spent_of(function: Mapping[str, Any]) -> dict[str, float]:
    """What the calls of a function have cost, by unit; those of tasks that failed are paid for, too."""
    return _with_failed(function, "spent")


def unsettled_of(function: Mapping[str, Any]) -> dict[str, float]:
    """How many attempts count with what they had reserved, by the error that `settle` raised; also of failed tasks."""
    return _with_failed(function, "unsettled")


def _with_failed(function: Mapping[str, Any], name: str) -> dict[str, float]:
    """A figure with keys, of all tasks: those that failed count too."""
    total = dict(function.get(name) or {})
    for key, amount in ((function.get("failed_attempts") or {}).get(name) or {}).items():
        total[key] = total.get(key, 0) + amount
    return total


class FunctionFigures:
    """Reads the figures of one function of `run.metrics`; a figure that is missing counts as 0.

    "Share" and "part" are numbers from 0 to 1; the time is that of all counted tasks together, in seconds.
    """

    def __init__(self, function: Mapping[str, Any]) -> None:
        self.plain = function
        self.options: Mapping[str, Any] = function.get("options") or {}
        self.errors: Mapping[str, int] = function.get("errors") or {}
        self.limits: Mapping[str, float] = function.get("limit_seconds") or {}  # seconds of waiting for each
        self.in_vain: Mapping[str, Any] = function.get("failed_attempts") or {}
        account = function.get("time") or {}
        self.time = {state: max(0.0, account.get(state.name.lower()) or 0.0) for state in State}
        self.seconds = sum(self.time.values())
        self.ranking = sorted(State, key=lambda state: -self.time[state])  # the state that cost most comes first
        self.top, self.second = self.ranking[:2]
        self.tasks = _counted(function.get("tasks") or {})
        self.calls_ended = int(self.latency("count"))
        in_flight = function.get("in_flight") or {}
        self.in_flight: float = in_flight.get("mean") or 0.0  # calls in a task, in the mean over its time
        self.peak: int = in_flight.get("peak") or 0
        self.queued_peak: int = (function.get("queued") or {}).get("peak") or 0
        # The longest of the counted tasks.
        self.per_task = [task for task in function.get("per_task") or () if task.get("status") in COUNTED]
        # From the first task's begin to the last one's end.
        self.wall = max(0.0, (function.get("ended") or 0.0) - (function.get("began") or 0.0))
        self.capacity = _whole(self.options.get("capacity"))
        self.queue_rows = _whole(self.options.get("queue_size"))  # None if memory alone is the bound
        self.batch_rows = _whole(self.options.get("batch_size")) or 1  # of a call
        # Whether calls are in no latency, as they have not ended.
        self.is_open = bool((function.get("tasks") or {}).get("running") or self.count("abandoned"))
        # Of the time; with several threads it may exceed 1.
        self.processor = self.count("processor_seconds") / self.seconds if self.seconds else 0.0
        # The option that ends what takes too long, and after how many seconds.
        given = ((name, self.options.get(name)) for name in ("attempt_timeout", "timeout"))
        self.time_limit = next(((name, float(seconds)) for name, seconds in given if seconds), ("timeout", math.inf))
        # The part of the time of all calls that have ended for which they were in back-off, and had no slot.
        total = self.latency("mean") * self.calls_ended
        self.waited = min(1.0, self.count("waited") / total) if total else 0.0

    def count(self, name: str) -> float:
        return self.plain.get(name) or 0

    def latency(self, name: str) -> float:
        """Seconds of a call."""
        return (self.plain.get("latency") or {}).get(name) or 0.0

    def calls(self, name: str, below: float = math.inf) -> float:
        """How many calls of a histogram were shorter than this."""
        histogram: Sequence[Sequence[float]] = (self.plain.get("latency") or {}).get(name) or ()
        return sum(number for seconds, number in histogram if seconds < below)

    def quantile(self, name: str, share: float, below: float = math.inf) -> float:
        """What this share of these calls took at most; 0 without any."""
        missing, last = share * self.calls(name, below), 0.0
        for seconds, number in (self.plain.get("latency") or {}).get(name) or ():
            if missing <= 0:
                break
            missing, last = missing - number, seconds
        return last

    def share(self, state: State) -> float:
        """The part of the time that went to this state."""
        return self.time[state] / self.seconds if self.seconds else 0.0

    def part(self, name: str, of: str) -> float:
        """One count as a part of another."""
        return min(1.0, self.count(name) / max(1, self.count(of)))

    @property
    def ran_together(self) -> bool:
        """Whether about all tasks ran at the same time, so that fewer tasks would not be done earlier."""
        return self.tasks <= 1 or (self.wall > 0 and self.seconds / self.wall >= 0.7 * self.tasks)

    @property
    def flying(self) -> float:
        """Calls in flight when the running tasks were last looked at."""
        return sum((float(task["timeline"][-1][2]) for task in self.per_task if _is_timed(task)), 0.0)


class Throughput(NamedTuple):
    """The rows per second that a function did, beside those that it could have done.

    Attributes:
        achieved: rows in a second, from the first task's start to the last one's end; None if no time passed.
        parallel: tasks that ran at a time, in the mean.
        slots: that a task could use: `capacity`, or the calls that it had to make; None where neither is known.
        in_slot: seconds for which a call had its slot, in the mean; without the back-off between attempts.
        possible: rows in a second, if these slots of all tasks had a call all the time, and calls took no longer.
            None where the figures do not show it.
    """

    achieved: float | None = None
    parallel: float | None = None
    slots: float | None = None
    in_slot: float | None = None
    possible: float | None = None


def throughput_of(function: Mapping[str, Any]) -> Throughput:
    """The throughput of one function of `run.metrics`.

    By Little's law slots x tasks / (seconds in a slot) calls end in a second. Each call keeps its number of rows, as in
    micro-batches.

    A task of 100 rows has no use for more than 100 slots, whatever the capacity is.

    If never two calls were in flight, the figures do not show what more at once would do: calls that never wait run one
    after another, whatever the capacity is.
    """
    wall = function["ended"] - function["began"]
    if not 0 < wall < math.inf:
        return Throughput()
    achieved, parallel = function["rows"] / wall, function["seconds"] / wall
    calls, in_flight = function["latency"]["count"], function["in_flight"]
    in_slot = in_flight["mean"] * function["seconds"] / calls if calls else None
    capacity = function["options"].get("capacity")
    slots = possible = None
    if in_slot and isinstance(capacity, (int, float)) and (in_flight["peak"] > 1 or capacity == 1):
        # The peak: tasks are not alike, and slots that were in use at the same time could be used.
        slots = min(capacity, max(in_flight["peak"], calls / max(1, _counted(function["tasks"]))))
        possible = slots * parallel / in_slot * function["rows"] / calls
    return Throughput(achieved, parallel, slots, in_slot, possible)


def _counted(tasks: Mapping[str, int]) -> int:
    return sum(tasks.get(status) or 0 for status in COUNTED)


def _whole(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


def _is_timed(task: Mapping[str, Any]) -> bool:
    return task.get("status") == "running" and bool(task.get("timeline"))
