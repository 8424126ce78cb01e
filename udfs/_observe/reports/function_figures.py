"""What the figures of one function in `run.metrics` say about its calls, its tasks, and what a change would save."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..time_account import State

COUNTED = ("succeeded", "stopped", "running")  # the figures of tasks that failed or were lost stand apart
GENERATIONS = 5  # calls in each slot, from which on the first and the last are few
CLEARLY_SHORTER = 0.75  # of half of the calls' time
ONE_ROUND = 1.5  # times the shortest call: what took longer may have waited for another
OVERTAKEN = 1.75  # times half of the calls' time: a mean above it is that of few, and very long, calls
FAR_LONGER = 5  # times the mean
ALIKE = 1.25  # times the shorter of two lengths: about as long


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
        self.top = self.ranking[0]
        self.tasks = _counted(function.get("tasks") or {})
        self.rows_per_task = self.count("rows") / max(1, self.tasks)
        self.calls_ended = int(self.latency("count"))
        in_flight = function.get("in_flight") or {}
        self.in_flight: float = in_flight.get("mean") or 0.0  # calls in a task, in the mean over its time
        self.peak: int = in_flight.get("peak") or 0
        self.queued_peak: int = (function.get("queued") or {}).get("peak") or 0
        # The longest of the counted tasks.
        self.per_task = [task for task in function.get("per_task") or () if task.get("status") in COUNTED]
        # From the first task's begin to the last one's end.
        self.wall = max(0.0, (function.get("ended") or 0.0) - (function.get("began") or 0.0))
        # Of the time; with several threads it may exceed 1.
        self.processor = self.count("processor_seconds") / self.seconds if self.seconds else 0.0
        self.capacity = _whole(self.options.get("capacity"))
        self.batch_rows = _whole(self.options.get("batch_size")) or 1  # of a call
        self.queue_rows = _whole(self.options.get("queue_size"))  # None if memory alone is the bound
        # The option that ends what takes too long, and after how many seconds.
        given = ((name, self.options.get(name)) for name in ("attempt_timeout", "timeout"))
        self.time_limit = next(((name, float(seconds)) for name, seconds in given if seconds), None)
        # Of all calls that have ended, with the back-off between their attempts.
        self._call_seconds = self.latency("mean") * self.calls_ended

    def count(self, name: str) -> float:
        return self.plain.get(name) or 0

    def latency(self, name: str) -> float:
        """Seconds of a call."""
        return (self.plain.get("latency") or {}).get(name) or 0.0

    def share(self, state: State) -> float:
        """The part of the time that went to this state."""
        return self.time[state] / self.seconds if self.seconds else 0.0

    def part(self, name: str, of: str) -> float:
        """One count as a part of another."""
        return min(1.0, self.count(name) / max(1, self.count(of)))

    @property
    def came_from_store(self) -> bool:
        """Whether no row of the tasks that have ended needed a call."""
        is_over = not (self.plain.get("tasks") or {}).get("running")
        return is_over and 0 < self.count("rows") <= self.count("store_hits") and not self.count("calls")

    @property
    def ran_together(self) -> bool:
        """Whether about all tasks ran at the same time, so that fewer tasks would not be done earlier."""
        return self.tasks <= 1 or (self.wall > 0 and self.seconds / self.wall >= 0.7 * self.tasks)

    @property
    def at_a_time(self) -> int:
        """Tasks that ran at the same time, in the mean."""
        return max(1, min(self.tasks, round(self.seconds / self.wall))) if self.wall else 1

    @property
    def limit(self) -> str:
        """The limit that calls waited for longest; empty where they waited for none."""
        longest = max(self.limits, key=lambda limit: self.limits[limit], default="")
        return longest if self.limits.get(longest) else ""

    # Calls that have not come back are in no latency; the timelines of running tasks show them.

    @property
    def flying(self) -> float:
        """Calls in flight when the running tasks were last looked at."""
        return sum((float(task["timeline"][-1][2]) for task in self.per_task if _is_timed(task)), 0.0)

    @property
    def silence(self) -> float:
        """Seconds since a call came back, in the running task that has waited longest for its calls."""
        return max(map(_silence, self.per_task), default=0.0)

    @property
    def silent(self) -> float:
        """The part of the time for which running tasks have waited for calls of which none came back."""
        return sum(map(_silence, self.per_task)) / self.seconds if self.seconds else 0.0

    # How many calls there could be.

    @property
    def slots(self) -> int | None:
        """Calls that a task can have in progress: the queue has a place for each of their rows."""
        if self.capacity is None or self.queue_rows is None:
            return self.capacity
        return min(self.capacity, max(1, self.queue_rows // self.batch_rows))

    @property
    def in_flight_when_busy(self) -> float:
        """Calls in flight, at most, while the account says that all slots were busy."""
        # Calls that were abandoned, or still run, are in no latency: only their peak is known.
        is_complete = not (self.plain.get("tasks") or {}).get("running") and not self.count("abandoned")
        mean = self.in_flight / max(self.share(State.CALLS_BUSY), 1e-9)
        return min(mean, self.peak) if is_complete else self.peak

    @property
    def was_full(self) -> bool:
        """Whether all slots were in use at some time, or as many as a task has calls: the service has taken so many."""
        needed = min(self.slots or 0, self.count("calls") / max(1, self.tasks))
        return self.peak >= 0.9 * needed

    # Whether calls were shorter while few were in flight, as they are when the service has others to answer first.
    #
    # The first calls to end are short ones, and the last long ones, also where the service takes any number. So the
    # evidence is that nearly all short calls came first, or that the last ones were short.

    @property
    def is_saturated(self) -> bool:
        """Whether calls waited for each other: in the service, or in a client that has room for few."""
        is_quick_at_last = 0 < self._quantile("last", 0.5) <= 0.85 * self.latency("p50")
        return self._has_generations and (self.at_once > 0 or is_quick_at_last)

    @property
    def were_overtaken(self) -> int:
        """Calls that a task had in progress beside those that waited, if some calls waited while others passed; else 0.

        A pool of connections may give each free one to the newest call. The calls that do not get one wait until there
        are no newer ones, and most others never wait. Rows that are slow by themselves look alike, but for the end:
        they keep the task waiting when all other calls are done.
        """
        half, mean = self.latency("p50"), self.latency("mean")
        is_running = bool((self.plain.get("tasks") or {}).get("running"))
        if is_running or not half or mean < OVERTAKEN * half or self.latency("max") < FAR_LONGER * mean:
            return 0
        if self.time[State.WINDING_DOWN] > 2 * mean * self.tasks:
            return 0
        return _calls(self.in_flight * half / mean) if self._has_generations else 0

    @property
    def is_steady(self) -> bool:
        """Whether nearly all calls took as long, the first and the last too, and those that have not ended."""
        half = self.latency("p50")
        if self.in_flight * self.seconds + self.count("waited") > ALIKE * self._call_seconds:
            return False
        is_even = half <= ALIKE * self.latency("min") and max(self.latency("p95"), self.latency("mean")) <= ALIKE * half
        least = 0.9 * half
        return is_even and self._has_generations and all(self._quantile(n, 0.5) >= least for n in ("first", "last"))

    @property
    def _has_generations(self) -> bool:
        return self.calls_ended >= GENERATIONS * max(1, self.peak * self.tasks)

    @property
    def at_once(self) -> int:
        """Calls of a task that a saturated service takes at a time, at most; 0 if the first calls do not show it."""
        slots = self.slots or self.peak
        return _calls(slots * self.alone / self.latency("p50")) if self._starts_quick else 0

    @property
    def _starts_quick(self) -> bool:
        quick = self._below("histogram", CLEARLY_SHORTER)
        return quick >= 2 and self._below("first", CLEARLY_SHORTER) >= max(0.7 * quick, 0.1 * self._number("first"))

    @property
    def best_at_once(self) -> int:
        """Calls that a task had in flight at first, if the service answered twice as many with them as later; else 0.

        All of them were as quick as one alone: the service took them at once, and later answered fewer because there
        were more.
        """
        quick = sum(number for seconds, number in self._histogram("first") if seconds <= ALIKE * self.alone)
        best = round(quick / max(1, self.tasks))
        return best if self.at_once and 2 * self.at_once <= best < (self.slots or self.peak) else 0

    @property
    def alone(self) -> float:
        """Seconds of a call that waited for no other, as far as the first ones show it, or the last."""
        if not self._starts_quick:
            return self._quantile("last", 0.1)
        # In a task that starts with all its slots only so many calls do not wait as the service takes at once.
        shortest = self._quantile("first", 2 / self._number("first"))
        return max(seconds for seconds, _ in self._histogram("first") if seconds < max(ONE_ROUND * shortest, 1e-9))

    def _histogram(self, name: str) -> Sequence[Sequence[float]]:
        return (self.plain.get("latency") or {}).get(name) or ()

    def _number(self, name: str) -> float:
        return sum(number for _, number in self._histogram(name))

    def _below(self, name: str, part: float) -> float:
        """Calls that took less than this part of what half of all took."""
        return sum(number for seconds, number in self._histogram(name) if seconds < part * self.latency("p50"))

    def _quantile(self, name: str, share: float, below: float = math.inf) -> float:
        """What this share of the calls took at most; 0 without any. Only calls below a limit count."""
        buckets = [(seconds, number) for seconds, number in self._histogram(name) if seconds < below]
        missing = share * sum(number for _, number in buckets)
        for seconds, number in buckets:
            missing -= number
            if missing <= 0:
                return seconds
        return 0.0

    # What calls cost beyond their answers.

    @property
    def waited(self) -> float:
        """The part of the calls' time that they were in back-off, and had no slot."""
        return min(1.0, self.count("waited") / self._call_seconds) if self._call_seconds else 0.0

    @property
    def timed_out(self) -> float:
        """The part of the calls' time that went to attempts which ran into that limit."""
        if self.time_limit is None or not self._call_seconds or self.latency("max") < 0.9 * self.time_limit[1]:
            return 0.0
        return min(1.0, self.count("timeouts") * self.time_limit[1] / self._call_seconds)

    @property
    def shorter_limit(self) -> float:
        """Twice what 99% of the calls took that came back in time; 0 if that is not much shorter than the limit."""
        limit = 0.0 if self.time_limit is None else self.time_limit[1]
        shorter = rounded_up(2 * self._quantile("histogram", 0.99, below=0.9 * limit))
        return shorter if shorter < limit / 2 else 0.0

    # What can be saved. All numbers are parts of the time, and none saves more than would leave all slots busy all the
    # time: a second in a slot stays a second in a slot, or becomes the given part of one.

    def _spare(self, remaining: float = 1.0) -> float:
        return max(0.0, 1 - self.in_flight * remaining / self.slots) if self.slots else 1.0

    def at_most(self, state: State) -> float:
        """Saved if no time went to this state; no task ends before its longest call."""
        saved = self.if_calls_waited_less(state)
        if not self.per_task or self.count("per_task_left_out"):
            return saved
        spared = sum(
            min(_time(task, state), max(0.0, seconds_of(task) - _longest_call(task))) for task in self.per_task
        )
        return min(saved, spared / self.seconds)

    def if_calls_waited_less(self, state: State) -> float:
        """Saved if no time went to this state, as calls were shorter by their back-off."""
        return min(self.share(state), self._spare())

    def if_no_call_took_longer(self, limit: float) -> float:
        """Saved if each call ended after this many seconds at the latest.

        Full slots are busy for less; queues that are full, and tasks that end, wait for a longest call that is shorter.
        """
        total = sum(seconds * number for seconds, number in self._histogram("histogram"))
        if not total:
            return 0.0
        left = sum(min(seconds, limit) * number for seconds, number in self._histogram("histogram")) / total
        return min(self.share(State.CALLS_BUSY) * (1 - left) + self.waiting_beyond(limit), self._spare(left))

    def if_no_attempt_failed(self) -> float:
        """Saved if each call had one attempt and no back-off.

        Attempts that fail are taken to be as long as others, unless a call was as short as no call with a back-off is:
        then that is the time of an attempt that does not fail.
        """
        left, retries = 1 - self.part("retries", of="attempts"), self.count("retries")
        in_slots, shortest = self._call_seconds * (1 - self.waited), self.latency("min")
        if in_slots and retries and 0.99 * shortest <= self.count("waited") / retries:
            left = min(1.0, max(left, self.calls_ended * shortest / in_slots))
        busy = self.share(State.CALLS_BUSY) * (1 - left)
        return min(busy + self._waiting_for_calls * self.waited, self._spare(left))

    def waiting_beyond(self, limit: float) -> float:
        """Waited at the head of the line and at the end of tasks for what the longest call took beyond a limit."""
        if not self.per_task or self.count("per_task_left_out"):
            longest = self.latency("max")
            return self._waiting_for_calls * max(0.0, 1 - limit / longest) if longest else 0.0
        waited = 0.0
        for task in self.per_task:
            if longest := _longest_call(task):
                ending = min(_time(task, State.WINDING_DOWN), _last_calls(task))
                waited += (_time(task, State.HEAD_OF_LINE) + ending) * max(0.0, 1 - limit / longest)
        return min(1.0, waited / self.seconds)

    @property
    def _waiting_for_calls(self) -> float:
        return max(0.0, self.share(State.HEAD_OF_LINE) + self.share(State.WINDING_DOWN) - self.opening)

    @property
    def opening(self) -> float:
        """The least that went to opening and closing resources, in tasks that have ended.

        All rows of a task that winds down have been called, or follow a call: beyond that it waits for resources.
        """
        ended = [task for task in self.per_task if task.get("status") != "running"]
        spared = sum(max(0.0, _time(task, State.WINDING_DOWN) - _last_calls(task)) for task in ended)
        return min(self.share(State.WINDING_DOWN), spared / self.seconds) if self.seconds else 0.0


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


def rounded_up(value: float) -> float:
    """To two digits: what a user would write down."""
    if value <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / unit - 1e-9) * unit:.3g}")


def _calls(estimate: float) -> int:
    """At least one, to two digits."""
    return max(1, round(float(f"{estimate:.2g}")))


def seconds_of(task: Mapping[str, Any]) -> float:
    return task.get("seconds") or 0.0


def _longest_call(task: Mapping[str, Any]) -> float:
    return (task.get("latency") or {}).get("max") or 0.0


def _last_calls(task: Mapping[str, Any]) -> float:
    """The most that a task waits for its last calls: rows that follow the call of an equal row may be called after it.

    Beyond that it opens and closes resources.
    """
    return _longest_call(task) + float(task.get("following_seconds") or 0.0)


def _counted(tasks: Mapping[str, int]) -> int:
    return sum(tasks.get(status) or 0 for status in COUNTED)


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
