"""What can be told from the plain figures of a function, and what cannot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from .._metrics.time_account import State

__all__ = ("Reading", "rounded_up")


GENERATIONS = 5  # calls in each slot, from which on the first and the last are few
QUICK = 0.75  # of half of the calls' time: clearly shorter
STEADY = 0.9  # of it: about as long


class Reading:
    """Answers what a verdict asks of the figures of one function of `run.metrics`; what is missing counts as none."""

    def __init__(self, function: Mapping[str, Any]) -> None:
        self.plain = function
        self.options: Mapping[str, Any] = function.get("options") or {}
        self.errors: Mapping[str, int] = function.get("errors") or {}
        account = function.get("time") or {}
        self.time = {state: max(0.0, account.get(state.name.lower()) or 0.0) for state in State}
        self.seconds = sum(self.time.values())  # of all counted tasks together
        self.tasks = sum((function.get("tasks") or {}).get(status) or 0 for status in COUNTED)
        self.calls_ended = int(self.latency("count"))

    def count(self, name: str) -> int:
        return self.plain.get(name) or 0

    def latency(self, name: str) -> float:
        """Seconds of a call; 0 without calls."""
        return (self.plain.get("latency") or {}).get(name) or 0.0

    def latency_below(self, limit: float) -> float:
        """What 99% of the calls took at most that took less than the limit; 0 if none did."""
        buckets = [(seconds, number) for seconds, number in self._histogram("histogram") if seconds < limit]
        missing = 0.99 * sum(number for _, number in buckets)
        for seconds, number in buckets:
            missing -= number
            if missing <= 0:
                return float(seconds)
        return 0.0

    # Whether calls were shorter while few were in flight, as they are when the service has others to answer first.
    #
    # The first to end are short ones, and the last long ones, also where the service takes any number: so what tells is
    # that nearly all short calls came first, or that the last ones were short.

    @property
    def is_saturated(self) -> bool:
        """Whether calls waited for each other: in the service, or in a client that has room for few."""
        is_quick_at_last = 0 < self._quantile("last", 0.5) <= 0.85 * self.latency("p50")
        return self._has_generations and (self.at_once > 0 or is_quick_at_last)

    @property
    def is_steady(self) -> bool:
        """Whether calls took as long at all times."""
        least = STEADY * self.latency("p50")
        return self._has_generations and all(self._quantile(name, 0.5) >= least > 0 for name in ("first", "last"))

    @property
    def _has_generations(self) -> bool:
        return self.calls_ended >= GENERATIONS * max(1, self.peak * self.tasks)

    @property
    def at_once(self) -> int:
        """How many calls a saturated service takes at a time; 0 if the first calls do not tell."""
        quick, slots = self._shorter("histogram"), self.slots or self.peak
        if quick < 2 or self._shorter("first") < max(0.7 * quick, 0.1 * self._number("first")):
            return 0
        return max(1, round(slots * self._quantile("first", 0.1) / self.latency("p50")))

    @property
    def alone(self) -> float:
        """Seconds of the calls that waited least for others."""
        return self._quantile("first" if self.at_once else "last", 0.1)

    def _histogram(self, name: str) -> Sequence[Sequence[float]]:
        return (self.plain.get("latency") or {}).get(name) or ()

    def _number(self, name: str) -> float:
        return sum(number for _, number in self._histogram(name))

    def _shorter(self, name: str) -> float:
        return sum(number for seconds, number in self._histogram(name) if seconds < QUICK * self.latency("p50"))

    def _quantile(self, name: str, share: float) -> float:
        """What this share of them took at most; 0 without any."""
        missing = share * self._number(name)
        for seconds, number in self._histogram(name):
            missing -= number
            if missing <= 0:
                return seconds
        return 0.0

    # Where the time went.

    @property
    def processor(self) -> float:
        """Which part of the time the tasks' processes computed; of several threads together it may be more than 1."""
        return self.count("processor_seconds") / self.seconds if self.seconds else 0.0

    @property
    def in_flight_when_busy(self) -> float:
        """How many calls at most were in flight while all slots seemed to be."""
        # Calls that were given up, or still go on, are in no latency: of these only the peak is known.
        is_complete = not (self.plain.get("tasks") or {}).get("running") and not self.count("abandoned")
        mean = self.in_flight / max(self.share(State.CALLS_BUSY), 1e-9)
        return min(mean, self.peak) if is_complete else self.peak

    def share(self, state: State) -> float:
        """Which part of the tasks' time went to it."""
        return self.time[state] / self.seconds if self.seconds else 0.0

    @property
    def ranking(self) -> list[State]:
        """The states, from what cost most to what cost least."""
        return sorted(State, key=lambda state: -self.time[state])

    # How many calls there could be, and how many there were.

    @property
    def batch_rows(self) -> int:
        """Rows of a call."""
        return _whole(self.options.get("batch_size")) or 1

    @property
    def capacity(self) -> int | None:
        return _whole(self.options.get("capacity"))

    @property
    def finds_capacity(self) -> bool:
        """Whether it was not given, but found out how many calls a task may have in flight."""
        return self.options.get("capacity") == "given"

    @property
    def queue_rows(self) -> int | None:
        """How many rows the queue holds."""
        return _whole(self.options.get("queue_size")) or self.usual_queue_rows

    @property
    def usual_queue_rows(self) -> int | None:
        """How many it would hold if nobody had said so, see `Options.queue_rows`."""
        return None if self.capacity is None else self.capacity * max(100, self.batch_rows)

    @property
    def slots(self) -> int | None:
        """How many calls a task can have in progress: the queue has a place for each of their rows."""
        if self.capacity is None:
            return None
        return min(self.capacity, max(1, (self.queue_rows or 0) // self.batch_rows))

    @property
    def in_flight(self) -> float:
        """Calls in progress in a task, in the mean over its time."""
        return (self.plain.get("in_flight") or {}).get("mean") or 0.0

    @property
    def flying(self) -> float:
        """Calls in progress when the running tasks were last looked at."""
        return sum((float(task["timeline"][-1][2]) for task in self.per_task if _is_timed(task)), 0.0)

    @property
    def silence(self) -> float:
        """Seconds since a call came back, in the running task that has waited longest for its calls."""
        return max((_silence(task) for task in self.per_task), default=0.0)

    @property
    def silent(self) -> float:
        """Which part of the time the running tasks have waited so."""
        return sum(map(_silence, self.per_task)) / self.seconds if self.seconds else 0.0

    @property
    def peak(self) -> int:
        return (self.plain.get("in_flight") or {}).get("peak") or 0

    @property
    def queued_peak(self) -> int:
        return (self.plain.get("queued") or {}).get("peak") or 0

    @property
    def lookups(self) -> int:
        """Rows that a store was asked for."""
        return self.count("store_hits") + self.count("store_misses")

    @property
    def rows_per_task(self) -> float:
        return self.count("rows") / max(1, self.tasks)

    # What calls cost beyond their answers.

    @property
    def call_seconds(self) -> float:
        """Of all calls that have ended, back-offs included."""
        return self.latency("mean") * self.calls_ended

    @property
    def waited(self) -> float:
        """The part of the calls' time that they were in back-off, and had no slot."""
        waited = self.plain.get("waited") or 0.0
        return min(1.0, waited / self.call_seconds) if self.call_seconds else 0.0

    @property
    def in_slot(self) -> float:
        """Seconds for which a call had its slot, in the mean."""
        return self.latency("mean") * (1 - self.waited)

    @property
    def retried(self) -> float:
        """The part of the attempts that were not the first."""
        return min(1.0, self.count("retries") / max(1, self.count("attempts")))

    @property
    def time_limit(self) -> tuple[str, float] | None:
        """The option that ends what takes too long, and after how many seconds."""
        for name in ("attempt_timeout", "timeout"):
            if seconds := self.options.get(name):
                return name, float(seconds)
        return None

    @property
    def limit_text(self) -> str:
        """That option as one writes it."""
        return "" if self.time_limit is None else f"{self.time_limit[0]}={self.time_limit[1]:g}"

    @property
    def timed_out(self) -> float:
        """The part of the calls' time that was spent on what ran into that limit."""
        if self.time_limit is None or not self.call_seconds or self.latency("max") < 0.9 * self.time_limit[1]:
            return 0.0
        return min(1.0, self.count("timeouts") * self.time_limit[1] / self.call_seconds)

    # What can be gained.

    def at_most(self, state: State) -> float:
        """Which part of the time could be saved if none went to this state.

        Not more than the state's, and not more than calls leave that are always as many as slots.
        """
        spare = 1 - self.in_flight / self.slots if self.slots else 1.0
        return max(0.0, min(self.share(state), spare))

    def beyond_longest_call(self, state: State) -> float:
        """The same, and no task ends before its longest call."""
        if not self.per_task or self.count("per_task_left_out"):
            return self.at_most(state)
        spared = sum(min(_time(task, state), max(0.0, _seconds(task) - _longest(task))) for task in self.per_task)
        return min(self.at_most(state), spared / self.seconds)

    @property
    def opening(self) -> float:
        """The part of the time that at least went to opening and closing, in tasks that have ended.

        While a task winds down all its rows have been called: that takes no longer than its longest call.
        """
        ended = [task for task in self.per_task if task.get("status") != "running"]
        spared = sum(max(0.0, _time(task, State.WINDING_DOWN) - _longest(task)) for task in ended)
        return min(self.share(State.WINDING_DOWN), spared / self.seconds) if self.seconds else 0.0

    @cached_property
    def per_task(self) -> Sequence[Mapping[str, Any]]:
        """The longest of those that count."""
        return [task for task in self.plain.get("per_task") or () if task.get("status") in COUNTED]

    @property
    def wall(self) -> float:
        """Seconds from the first task's begin to the last one's end."""
        return max(0.0, (self.plain.get("ended") or 0.0) - (self.plain.get("began") or 0.0))

    @property
    def ran_together(self) -> bool:
        """Whether about all tasks ran at the same time, so that fewer of them would not be done earlier."""
        return self.tasks <= 1 or (self.wall > 0 and self.seconds / self.wall >= 0.7 * self.tasks)


COUNTED = ("succeeded", "stopped", "running")


def rounded_up(value: float) -> float:
    """To two digits: what one would write down."""
    if value <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.3g}")


def _whole(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None


def _is_timed(task: Mapping[str, Any]) -> bool:
    return task.get("status") == "running" and bool(task.get("timeline"))


def _silence(task: Mapping[str, Any]) -> float:
    """Seconds since a row was done, if calls are in flight."""
    if not _is_timed(task) or not task["timeline"][-1][2]:
        return 0.0
    points = task["timeline"]
    done = [end for end, rows, *_ in points if rows]
    return float(points[-1][0] - (done[-1] if done else 0.0))


def _time(task: Mapping[str, Any], state: State) -> float:
    return (task.get("time") or {}).get(state.name.lower()) or 0.0


def _seconds(task: Mapping[str, Any]) -> float:
    return task.get("seconds") or 0.0


def _longest(task: Mapping[str, Any]) -> float:
    return (task.get("latency") or {}).get("max") or 0.0
