"""Counts what one operator does, while it does it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from .function_metrics import FunctionMetrics
from .latency_sketch import LatencySketch
from .spark_thread import SparkThread
from .time_account import TimeAccount
from .timeline import Point, Timeline

__all__ = ("TaskCounters",)


QUICK = 2e-5  # seconds; calls that return sooner, in the mean, are not told apart


class TaskCounters:
    """The figures of one function in one task; every method is called on the event loop.

    Args:
        clock: seconds; of better resolution than the loop's own, where that has only milliseconds.
        spark_thread: tells when Spark's thread was away.
        waited: seconds for which the task has waited for its first rows.
        processor: seconds of processor time that the process has used.
    """

    # A row that waits for its call is counted by its latency in a list: how long the list is tells calls, attempts,
    # rows and results, and what is different (a retry, a micro-batch, no result) is counted as a difference. Rows
    # whose calls return at once are counted by bursts.
    #
    # latencies: of calls that have ended and are not yet in `totals`

    def __init__(
        self,
        clock: Callable[[], float],
        spark_thread: SparkThread | None = None,
        *,
        waited: float = 0.0,
        processor: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.clock = clock
        self.account = TimeAccount(clock, spark_thread, waited)
        self._processor, self._worked = processor, processor()
        self._tail: list[float] = []  # the last latencies, as many as there were calls in flight
        self.latencies: list[float] = []
        self.more_rows = 0  # of calls that have ended, beyond one for each
        self.more_results = 0  # of rows that are done, beyond one for each
        self.totals = FunctionMetrics(tasks=1)
        self._looked = clock()
        self._began = self._looked - waited
        self._timeline = Timeline()
        self._rows_before = 0

    @property
    def rows_done(self) -> int:
        """Rows that are done."""
        return self.totals.rows + len(self.latencies) + self.more_rows

    @property
    def calls_answered(self) -> int:
        """Calls that have ended without an error."""
        return self.totals.calls + len(self.latencies) - self.totals.failures

    def done_at_once(self, since: float, times: list[float]) -> None:
        """These rows were done one after another, each with one result, at these times; the first began at `since`."""
        count, latency = len(times), self.totals.latency
        self.totals.rows += count
        self.totals.calls += count
        self.totals.attempts += count
        self.totals.results += count
        if times[-1] - since < count * QUICK:
            latency.add_equal(count, times[-1] - since)
        else:
            latency.add([end - start for start, end in pairwise([since, *times])])

    def abandon(self, count: int, seconds: float) -> None:
        """So many calls have begun, so long ago all together, and nobody waits for them any more."""
        self.totals.abandoned += count
        self.totals.abandoned_seconds += seconds
        self.totals.calls += count
        self.totals.attempts += count

    def fold(self) -> None:
        """Count the calls that have ended."""
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
            totals.last = LatencySketch.of(self._tail)
        self.latencies.clear()
        self.more_rows = self.more_results = 0

    def look(self, in_flight: int, queued: int, *, was_blocked: bool = False) -> None:
        """Bring all up to date.

        Args:
            in_flight, queued: calls, and rows in the queue, now.
            was_blocked: whether the loop was, since the last look.
        """
        now, totals = self.clock(), self.totals
        totals.in_flight_peak = max(totals.in_flight_peak, in_flight)
        self.fold()
        totals.processor_seconds = self._processor() - self._worked
        totals.time = self.account.look(was_blocked=was_blocked)
        totals.seconds = sum(totals.time.values())
        totals.queued_seconds += queued * (now - self._looked)
        totals.queued_peak = max(totals.queued_peak, queued)
        if now > self._looked:
            self._timeline.add(Point(now - self._began, totals.rows - self._rows_before, in_flight, queued))
            self._looked, self._rows_before = now, totals.rows

    @property
    def timeline(self) -> list[list[float]]:
        """What was done when, as of the last look."""
        return self._timeline.to_plain()
