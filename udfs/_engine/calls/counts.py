"""Counts the calls, attempts and rows of an operator."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial

from ..._errors.exceptions import AsyncUDFError
from ..._errors.failure import Failure
from ..._errors.records import error_message
from ..._errors.safe import type_name
from ..._functions.async_function import Results
from ..._functions.side_outputs import SideRecord
from ..._observe.counters import TaskCounters
from .attempt import Attempt
from .outcomes import usual_error
from .row import Row, RowState

LONGEST_CAUSE = 150  # characters


class OperatorCounts:
    # Most of what is counted follows from the length of a list of latencies, see TaskCounters.
    #
    # When rows are called together for the first time, one counts as the call (`Row.counts`), with the time from the
    # first attempt to its results. The time of an attempt has to be counted once: `joint_seconds` makes up for an
    # attempt with several such rows, or with none.

    def __init__(self, counters: TaskCounters, *, redacted: bool) -> None:
        self._counters = counters
        self._redacted = redacted

    def starts_again(self, rows: Sequence[Row]) -> None:
        """Another attempt of these rows has begun; their first attempt was counted with their call."""
        self._counters.totals.attempts += 1
        for row in rows:
            self._counters.totals.retried_rows += row.attempts == 2

    def unpark(self, row: Row) -> None:
        """Another attempt of the row begins, or the row ends: its time since the last attempt was idle."""
        if (trouble := row.trouble).parked is not None:
            if row.started is not None:  # after an outage its time begins anew
                trouble.idle += self._counters.clock() - trouble.parked
            trouble.parked = None

    def ends_for_many(self, attempt: Attempt, now: float) -> None:
        """An attempt ends that is not the attempt of exactly one call; `row.attempt` of its rows is still set."""
        self._counters.totals.joint_seconds += _joint_seconds(attempt, now)

    def leaves(self, attempt: Attempt, row: Row, *, is_last: bool) -> None:
        """A row leaves an attempt, which ends if it is the last one."""
        self._counters.totals.joint_seconds += (is_last - row.counts) * (self._counters.clock() - attempt.began)

    def renewed(self, row: Row) -> None:
        """The time of a row begins anew with its next attempt: count the time of its attempts so far."""
        if row.attempts and row.counts and row.started is not None:
            self._counters.totals.joint_seconds += _seconds_of(row, self._counters.clock())
            row.trouble.idle = 0.0

    def failure(self, failure: Failure) -> None:
        message = partial(error_message, failure.error, redacted=self._redacted)
        self._counters.totals.note_error(type_name(failure.error), message, failure.answer.status)

    def failures(self, failures: Sequence[Failure]) -> None:
        """The rows of an attempt have failed: count one failure, with the most common error."""
        usual = usual_error([one.error for one in failures], len(failures))
        self.failure(next(one for one in failures if one.error is usual))

    def timed_out(self, row: Row, failure: Failure | None, *, is_first: bool) -> None:
        """A row is late, and `is_first` in its attempt; `failure`: of the attempt, if this row ends it."""
        self._counters.totals.timeouts += is_first
        self.unpark(row)
        if failure is not None and row.attempts:  # a row without an attempt follows another call
            self.failure(failure)

    def failed(self, row: Row, result: object, *, is_unpaid: bool) -> None:
        """A row has failed, and `on_error` gave this result; `is_unpaid`: it was not called for want of a budget."""
        totals = self._counters.totals
        totals.failures += 1
        totals.dead_letters += isinstance(result, SideRecord)
        totals.unpaid += is_unpaid
        if row.attempts and row.counts and not is_unpaid:
            self._counters.failed_calls += 1

    def ended(self, rows: Sequence[Row], completed: Sequence[Results], now: float) -> None:
        counters, totals = self._counters, self._counters.totals
        for row, results in zip(rows, completed, strict=True):
            count = len(results)
            if count != 1 or type(results[0]) is SideRecord:
                count = sum(type(result) is not SideRecord for result in results)
            if row.attempts and row.counts:
                self.unpark(row)
                counters.latencies.append(0.0 if row.started is None else now - row.started)
                totals.waited += row.trouble.idle
                counters.more_results += count - 1
            else:
                totals.rows += 1
                totals.results += count

    def answered(self, results: Results) -> None:
        self._counters.totals.rows += 1
        self._counters.totals.results += sum(type(result) is not SideRecord for result in results)

    def count_open(self, rows: Iterable[Row], attempts: Iterable[Attempt]) -> None:
        """Bring up to date how long the open calls have taken; `attempts` are under way."""
        now, seconds = self._counters.clock(), 0.0
        for row in rows:
            if row.attempts and row.counts and row.started is not None:
                seconds += _seconds_of(row, now)
        for attempt in attempts:
            if len(attempt.rows) > 1 or not attempt.rows[0].counts:
                seconds += _joint_seconds(attempt, now)
        self._counters.totals.open_seconds = seconds

    def give_up(self, rows: Sequence[Row]) -> None:
        """The task ends, and these rows get no results."""
        now, count, seconds = self._counters.clock(), 0, 0.0
        for row in rows:
            self.unpark(row)
            row.move(RowState.DONE)  # it is counted, and its deadline must not count it again
            if row.attempts and row.counts:
                count += 1
                seconds += row.elapsed(now)
                self._counters.totals.waited += row.trouble.idle
        self._counters.abandon(count, seconds)

    def ends_task(self, error: BaseException, option: str | None = None) -> None:
        """The task ends with this error, because of `option`; the first error counts."""
        ended_by = self._counters.totals.ended_by
        if not ended_by:
            text = type_name(error)
            if issubclass(type(error), AsyncUDFError):
                message = error_message(error, redacted=self._redacted)
                text = re.split(r"[:;.]\s|\n", message, maxsplit=1)[0][:LONGEST_CAUSE]
            ended_by[option or getattr(error, "option", None) or text] += 1


def _joint_seconds(attempt: Attempt, now: float) -> float:
    """The time of an attempt, less the time that its rows count by themselves; negative if several do."""
    counting = sum(row.counts for row in attempt.rows if row.attempt is attempt)
    return (1 - counting) * (now - attempt.began)


def _seconds_of(row: Row, now: float) -> float:
    """The time of the attempts of a row that counts as a call and is not done."""
    trouble = row.trouble
    return (now if trouble.parked is None else trouble.parked) - row.started - trouble.idle  # type: ignore[operator]
