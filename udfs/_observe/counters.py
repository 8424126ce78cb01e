"""The counters of one operator in one task, and the curve of what it did over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import NamedTuple

from .function_metrics import FunctionMetrics
from .latency_sketch import LatencySketch
from .time_account import SparkThread, TimeAccount

MOST_POINTS = 120  # at most; then each two become one


class TaskCounters:
    """The figures of one function in one task; every method is called on the event loop.

    Args:
        clock: seconds; of better resolution than the loop's own, where that has only milliseconds.
        waited: seconds for which the task has waited for its first rows.
        processor: seconds of processor time that the process has used.
        starved: seconds for which the loop's thread could have worked, and the machine had no processor for it.
    """

    # A call that ends adds its latency to a list. Until the list is folded its length counts calls, attempts, rows and
    # results; a call with more or fewer of these (a retry, a call of several rows, no result) counts the difference.
    #
    # latencies: of calls that have ended and are not yet in `totals`

    def __init__(
        self,
        clock: Callable[[], float],
        spark_thread: SparkThread | None = None,
        *,
        waited: float = 0.0,
        processor: Callable[[], float] = lambda: 0.0,
        starved: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.clock = clock
        self.account = TimeAccount(clock, spark_thread, waited)
        self._processor, self._worked = processor, processor()
        self._starved, self._starved_before = starved, starved()
        self._tail: list[float] = []  # the last latencies, as many as there were calls in flight
        self.latencies: list[float] = []
        self.more_rows = 0  # of calls that have ended, beyond one for each
        self.more_results = 0  # of rows that are done, beyond one for each
        self.failed_calls = 0  # calls with a row that has failed
        self.totals = FunctionMetrics(tasks=1)
        self._looked = clock()
        self._began = self._looked - waited
        self._timeline: list[Point] = []
        self._rows_before = 0

    @property
    def rows_done(self) -> int:
        return self.totals.rows + len(self.latencies) + self.more_rows

    @property
    def calls_ended(self) -> int:
        return self.totals.calls + len(self.latencies)

    @property
    def calls_answered(self) -> int:
        return self.calls_ended - self.failed_calls

    def so_far(self) -> dict[str, int]:
        """The counts of this moment, by their names; any thread may ask."""
        ended, totals = len(self.latencies), self.totals
        counts = {name: getattr(totals, name) for name in ("failures", "timeouts", "throttled")}
        return {"rows": self.rows_done, "calls": self.calls_ended, "attempts": totals.attempts + ended, **counts}

    def abandon(self, count: int, seconds: float) -> None:
        """Count calls that have begun and whose results are not needed any more; `seconds` is their time together."""
        self.totals.abandoned += count
        self.totals.abandoned_seconds += seconds
        self.totals.calls += count
        self.totals.attempts += count

    def fold(self) -> None:
        totals, count = self.totals, len(self.latencies)
        totals.calls += count
        totals.attempts += count
        totals.rows += count + self.more_rows
        totals.results += count + self.more_rows + self.more_results
        totals.latency.add(self.latencies)
        if few := count and totals.in_flight_peak:
            # While a task starts and ends it has fewer calls in flight than in between: was the service quicker then?
            totals.first.add(self.latencies[: max(0, few - totals.first.count)])
            self._tail = [*self._tail, *self.latencies[-few:]][-few:]
            totals.last = LatencySketch()
            totals.last.add(self._tail)
        self.latencies.clear()
        self.more_rows = self.more_results = 0

    def look(self, in_flight: int, queued: int, *, was_blocked: bool = False, follows: bool = False) -> None:
        """Bring all up to date: of calls in flight and rows in the queue now.

        The loop `was_blocked` since the last look; where it `follows`, slots are free while rows wait for the calls of
        equal rows.
        """
        now, totals = self.clock(), self.totals
        totals.in_flight_peak = max(totals.in_flight_peak, in_flight)
        self.fold()
        totals.processor_seconds = self._processor() - self._worked
        totals.starved_seconds = self._starved() - self._starved_before
        totals.time = self.account.look(was_blocked=was_blocked)
        totals.seconds = sum(totals.time.values())
        totals.queued_seconds += queued * (now - self._looked)
        if follows:
            totals.following_seconds += now - self._looked
        totals.queued_peak = max(totals.queued_peak, queued)
        if now > self._looked:
            self._timeline.append(Point(now - self._began, totals.rows - self._rows_before, in_flight, queued))
            self._timeline = joined(self._timeline) if len(self._timeline) > MOST_POINTS else self._timeline
            self._looked, self._rows_before = now, totals.rows

    @property
    def timeline(self) -> list[list[float]]:
        """The curve until the last look, as plain values."""
        return [[round(value, 4) for value in point] for point in self._timeline]


class Point(NamedTuple):
    """A stretch of time."""

    end: float  # seconds since the start of the task
    rows: int  # done in it
    in_flight: float  # calls, when it was looked at; of stretches that were joined the mean
    queued: float  # rows in the queue, in the same way


def joined(points: Sequence[Point]) -> list[Point]:
    """Each two points, from the start on, as one."""
    found, start = list[Point](), 0.0
    for first, second in zip_longest(points[::2], points[1::2]):
        if second is None:
            return [*found, first]
        share = (first.end - start) / (second.end - start) if second.end > start else 0.5
        means = (a * share + b * (1 - share) for a, b in zip(first[2:], second[2:], strict=True))
        found.append(Point(second.end, first.rows + second.rows, *means))
        start = second.end
    return found
