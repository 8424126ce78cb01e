"""What one function did, in one task or in many: the tasks' figures add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from .latency_sketch import LatencySketch
from .time_account import State

ERROR_TYPES = 50  # that are counted apart; a program may make a class for each error
OTHERS = "others"
EXAMPLE = 500  # characters of a message


class FunctionMetrics:
    """What a function did.

    Attributes:
        tasks: how many these figures are of.
        seconds: of all tasks together, from when the function was opened until it was closed.
        rows, results: that are done, and what they gave.
        calls: begun, each for one row, or for a micro-batch; each has one attempt at least.
        attempts: of calls, retries included.
        abandoned: calls that had not ended when the task did: it failed, was cancelled, or enough rows had been read.
        abandoned_seconds: how long these had taken by then, all together.
        open_seconds: how long those have taken that are not done yet, of tasks that run.
        timeouts: attempts, and calls with all their attempts, that did not end in time.
        throttled: attempts that the service refused with a time to wait, and that used up no retry.
        failures: rows that ended with an error under `on_error`.
        dead_letters: of these, the rows that went to the side output.
        store_hits, store_misses, shared_flights: rows found in a store, rows not found there, and rows answered by the
            call of another row.
        in_flight_peak, queued_peak, bytes_peak: calls, rows in the queue, and bytes that they take, in the task that
            had most.
        queued_seconds: how long the rows were in the queue, all together.
        waited: seconds that calls spent in the back-off before another attempt; part of their latency.
        refused_seconds: for which calls were held back because the service had refused others.
        limit_seconds: for which calls waited for each limit, by what people are shown of it.
        following_seconds: for which slots were free while rows waited for the calls of equal rows.
        unkept_failures: rows whose call ended with an error that the store would have kept with an `error_ttl`.
        repeated_seconds: that such calls took which were made again at once, for an equal row that waited.
        joint_seconds: of attempts that called rows of several earlier calls again, together.
        processor_seconds: of processor time of the task's process.
        ended_by: how many tasks ended with an error, by the option that says so, or by the error's text without one.
        errors: how many attempts ended with an error, by its type.
        examples: a message for each of these types.
        last_error: the type and the HTTP status, if it has one, of the last of these errors; of several tasks that of
            the one that was added last.
        latency: of calls, from the first attempt to the result.
        first, last: of those that ended first and last in a task, as many as were in flight at most.
        time: seconds in each state, which add up to `seconds`.
    """

    # All counts are sums but for the peaks. What is a mean is kept as a sum, and divided when it is asked for.

    SUMS = (
        "tasks", "seconds", "rows", "results", "calls", "attempts", "abandoned", "abandoned_seconds", "open_seconds",
        "timeouts", "throttled", "failures", "dead_letters", "store_hits", "store_misses", "shared_flights",
        "unkept_failures", "queued_seconds", "waited", "refused_seconds", "processor_seconds", "following_seconds",
        "repeated_seconds", "joint_seconds",
    )  # fmt: skip
    PEAKS = ("in_flight_peak", "queued_peak", "bytes_peak")
    SKETCHES = ("latency", "first", "last")

    tasks: int
    seconds: float
    rows: int
    results: int
    calls: int
    attempts: int
    abandoned: int
    abandoned_seconds: float
    open_seconds: float
    timeouts: int
    throttled: int
    failures: int
    dead_letters: int
    store_hits: int
    store_misses: int
    shared_flights: int
    unkept_failures: int
    queued_seconds: float
    waited: float
    refused_seconds: float
    following_seconds: float
    repeated_seconds: float
    joint_seconds: float
    processor_seconds: float
    in_flight_peak: int
    queued_peak: int
    bytes_peak: int

    def __init__(self, **counts: float) -> None:
        vars(self).update(dict.fromkeys((*self.SUMS, *self.PEAKS), 0), **counts)
        self.errors: Counter[str] = Counter()
        self.ended_by: Counter[str] = Counter()
        self.limit_seconds: dict[str, float] = {}
        self.examples: dict[str, str] = {}
        self.last_error: tuple[str, int | None] | None = None
        self.latency, self.first, self.last = (LatencySketch() for _ in range(3))
        self.time = dict.fromkeys(State, 0.0)

    @property
    def retries(self) -> int:
        """Attempts after the first of their call."""
        return self.attempts - self.calls

    @property
    def in_flight(self) -> float:
        """Calls in progress, in the mean over the time of all tasks: by Little's law, their time in it."""
        in_calls = self.latency.seconds + self.abandoned_seconds + self.open_seconds + self.joint_seconds - self.waited
        return in_calls / self.seconds if self.seconds else 0.0

    @property
    def queued(self) -> float:
        """Rows in the queue, in the mean over the time of all tasks."""
        return self.queued_seconds / self.seconds if self.seconds else 0.0

    def note_error(self, kind: str, message: Callable[[], str], status: int | None = None) -> None:
        """Count an attempt that ended with an error; of the first of its kind the message is kept."""
        self.last_error = kind, status
        kind = _kind(kind, self.errors)
        self.errors[kind] += 1
        if kind not in self.examples:
            self.examples[kind] = message()[:EXAMPLE]

    def merge(self, other: FunctionMetrics) -> None:
        """Add what the function did in other tasks."""
        for name in self.SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for name in self.PEAKS:
            setattr(self, name, max(getattr(self, name), getattr(other, name)))
        for limit, seconds in other.limit_seconds.items():
            self.limit_seconds[limit] = self.limit_seconds.get(limit, 0.0) + seconds
        for cause, count in other.ended_by.items():
            self.ended_by[_kind(cause, self.ended_by)] += count
        for kind, count in other.errors.items():
            kind = _kind(kind, self.errors)
            self.errors[kind] += count
            self.examples.setdefault(kind, other.examples.get(kind, ""))
        self.last_error = other.last_error or self.last_error
        for name in self.SKETCHES:
            getattr(self, name).merge(getattr(other, name))
        for state, seconds in other.time.items():
            self.time[state] += seconds

    def to_plain(self) -> dict[str, Any]:
        """As plain values, for JSON; `from_plain` makes the same of them."""
        return {
            **{name: getattr(self, name) for name in (*self.SUMS, *self.PEAKS)},
            "limit_seconds": dict(self.limit_seconds),
            "ended_by": dict(self.ended_by),
            "errors": dict(self.errors),
            "examples": self.examples,
            "last_error": self.last_error,
            **{name: getattr(self, name).to_plain() for name in self.SKETCHES},
            "time": {state.name.lower(): seconds for state, seconds in self.time.items()},
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> FunctionMetrics:
        metrics = cls(**{name: plain[name] for name in (*cls.SUMS, *cls.PEAKS)})
        metrics.limit_seconds.update(plain["limit_seconds"])
        metrics.ended_by.update(plain["ended_by"])
        metrics.errors.update(plain["errors"])
        metrics.examples.update(plain["examples"])
        if (last := plain["last_error"]) is not None:
            metrics.last_error = last[0], last[1]
        for name in cls.SKETCHES:
            setattr(metrics, name, LatencySketch.from_plain(plain[name]))
        metrics.time.update({State[name.upper()]: seconds for name, seconds in plain["time"].items()})
        return metrics


def _kind(kind: str, counted: Mapping[str, int]) -> str:
    """What a kind is counted as."""
    return kind if kind in counted or len(counted) < ERROR_TYPES else OTHERS
