"""The figures of one function in `run.metrics`, as the reports and the verdict read them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..time_account import State

COUNTED = ("succeeded", "stopped", "running")  # the figures of tasks that failed or were lost stand apart


def paid(function: Mapping[str, Any], name: str) -> dict[str, float]:
    """What calls have cost ("spent"), or how many are "unsettled", by key; calls of failed tasks count too."""
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
        self.learned: Mapping[str, Any] = function.get("learned") or {}  # what the service told of some of them
        self.in_vain: Mapping[str, Any] = function.get("failed_attempts") or {}
        account = function.get("time") or {}
        self.time = {state: max(0.0, account.get(state.name.lower()) or 0.0) for state in State}
        self.seconds = sum(self.time.values())
        self.ranking = sorted(State, key=lambda state: -self.time[state])  # the state that cost most comes first
        self.top, self.second = self.ranking[:2]
        tasks = function.get("tasks") or {}
        self.tasks = sum(tasks.get(status) or 0 for status in COUNTED)
        self.calls_ended = int(self.latency("count"))
        in_flight = function.get("in_flight") or {}
        self.in_flight: float = in_flight.get("mean") or 0.0  # calls in a task, in the mean over its time
        self.peak: int = in_flight.get("peak") or 0
        self.queued_peak: int = (function.get("queued") or {}).get("peak") or 0
        running = [task for task in function.get("per_task") or () if task.get("status") == "running"]
        self._timelines = [task["timeline"] for task in running if task.get("timeline")]
        self.flying = sum((float(timeline[-1][2]) for timeline in self._timelines), 0.0)  # calls, now
        # From the first task's begin to the last one's end; the rows in a second of it.
        self.wall = max(0.0, (function.get("ended") or 0.0) - (function.get("began") or 0.0))
        self.rate = self.count("rows") / self.wall if 0 < self.wall < math.inf else None
        # Whether about all tasks ran at the same time, so that fewer tasks would not be done earlier.
        self.ran_together = self.tasks <= 1 or (self.wall > 0 and self.seconds / self.wall >= 0.7 * self.tasks)
        self.capacity = _whole(self.options.get("capacity"))
        self.queue_rows = _whole(self.options.get("queue_size"))  # None if memory alone is the bound
        self.is_plain = self.options.get("kind") == "def"  # its calls hold the interpreter while they compute
        self.group_rows = _whole(self.options.get("batch_size")) or 1  # of a call
        # Whether calls are in no latency, as they have not ended.
        self.is_open = bool(tasks.get("running") or self.count("abandoned"))
        # Of the time; with several threads it may exceed 1.
        self.processor = self.count("processor_seconds") / self.seconds if self.seconds else 0.0
        # The part for which the machine had no processor for an event loop that had work.
        self.starved = self.count("starved_seconds") / self.seconds if self.seconds else 0.0
        # The option that ends what takes too long, and after how many seconds.
        given = ((name, self.options.get(name)) for name in ("attempt_timeout", "timeout"))
        self.time_limit = next(((name, float(seconds)) for name, seconds in given if seconds), ("timeout", math.inf))
        self.calls_time = self.latency("mean") * self.calls_ended
        # The part of it for which calls were in back-off, and had no slot.
        self.waited = min(1.0, self.count("waited") / self.calls_time) if self.calls_time else 0.0

    def count(self, name: str) -> float:
        return self.plain.get(name) or 0

    def latency(self, name: str) -> float:
        return (self.plain.get("latency") or {}).get(name) or 0.0

    def calls(self, name: str, below: float = math.inf) -> float:
        """How many calls of a histogram were shorter than this."""
        histogram: Sequence[Sequence[float]] = (self.plain.get("latency") or {}).get(name) or ()
        return sum(number for seconds, number in histogram if seconds < below)

    def quantile(self, name: str, share: float, below: float = math.inf) -> float:
        """The time that this share of the calls did not exceed, in seconds; 0 without calls."""
        missing, last = share * self.calls(name, below), 0.0
        for seconds, number in (self.plain.get("latency") or {}).get(name) or ():
            if missing <= 0:
                break
            missing, last = missing - number, seconds
        return last

    def share(self, state: State) -> float:
        return self.time[state] / self.seconds if self.seconds else 0.0

    def part(self, name: str, of: str) -> float:
        return min(1.0, self.count(name) / max(1, self.count(of)))

    @property
    def silence(self) -> float:
        """Seconds since a row was done, in the running task with calls in flight that has waited longest."""
        busy = [timeline for timeline in self._timelines if timeline[-1][2]]
        done = (max((end for end, rows, *_ in timeline if rows), default=0.0) for timeline in busy)
        return max((timeline[-1][0] - end for timeline, end in zip(busy, done, strict=True)), default=0.0)


def _whole(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None
