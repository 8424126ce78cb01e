"""A short cut for the plain row: one row a call, one result, started at once and done with its first attempt.

Most rows are plain, so what never changes is looked up once. Each function here replaces several methods of
`RowLifecycle`: `starting` replaces `Row.open`, `begin` and `start`; `returning` replaces `coroutine_ended`, `_end`,
`_decide` and `_complete`. A row that is not plain is handed to `RowLifecycle`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .attempt import Attempt
from .lifecycle import RowLifecycle
from .row import NO_TROUBLE, Row, RowState
from .slots import Slot


def starting(lifecycle: RowLifecycle) -> Callable[[Slot, Row, float], None]:
    """Makes a function that starts the first attempt of a row that has just entered the queue.

    It uses the slot's own attempt, and is for operators where no limit has to be asked and no row shares its call.
    """
    deadlines, asks, calling = lifecycle.deadlines, lifecycle.asks, RowState.CALLING
    attempts = lifecycle.attempt_deadlines if lifecycle.attempt_deadlines.delay is not None else None
    timeout = deadlines.delay

    def starts(slot: Slot, row: Row, now: float) -> None:
        slot.attempt = row.attempt = attempt = slot.own
        attempt.rows[0], attempt.began = row, now  # type: ignore[index]
        row.attempts, row.counts = 1, True  # not four in one line, for which Python would make a tuple
        row.state, row.trouble, row.started = calling, NO_TROUBLE, now
        if timeout is None:
            row.deadline = None
        else:
            row.deadline = deadline = now + timeout
            if deadlines.timer is None:
                deadlines.watch_for(deadline)
        if asks:
            attempt.state = slot.begin_attempt(row.element)
            attempt.state.started, attempt.state.deadline = now, row.deadline
        if attempts is not None:
            attempts.start(now)

    return starts


def returning(lifecycle: RowLifecycle, complete: Callable[[Row, Any], object]) -> Callable[[Slot, Attempt, Any], float]:
    """Makes a function that takes the result that a call's coroutine has returned.

    `complete` gives a row the only result of its first attempt, emits what may leave, and says whether that may have
    taken long.
    """
    # The first attempt of its row has ended in time, and the result is all that there is to it.
    clock, validate, latencies, over = lifecycle.clock, lifecycle.validate, lifecycle.latencies, lifecycle.over
    deadlines, attempts, own_deadlines = lifecycle.deadlines, lifecycle.attempt_deadlines, lifecycle.deadlines.own
    has_conditions = attempts.delay is not None or lifecycle.asks or lifecycle.decisions.looks_at_results

    def is_plain(attempt: Attempt, now: float) -> bool:
        """Whether the result needs no more than a check: in time, no side records, nothing spent."""
        if now > lifecycle.limit_of(attempt) or lifecycle.decisions.looks_at_results:
            return False
        return attempt.state is None or not (attempt.state.side or attempt.state.spent)

    def returned(slot: Slot, attempt: Attempt, result: Any) -> float:
        """Returns when the attempt has ended, or, if rows took long to leave, when they had."""
        row = attempt.rows[0]
        now, deadline = clock(), row.deadline
        if (
            row.trouble is not NO_TROUBLE
            or (deadline is not None and now > deadline)
            or (has_conditions and not is_plain(attempt, now))
        ):
            lifecycle.coroutine_ended(slot, attempt, [(result,)], None)
            return now
        try:
            value = result if validate is None else validate(result)
        except BaseException as error:  # to check it again would run code of the user's again
            if attempt.is_settled:  # it has its price, though it does not fit
                lifecycle.gatekeeper.spending.settle(attempt, (result,), None, is_cut=False)
            lifecycle.coroutine_ended(slot, attempt, None, error)
            return now
        slot.attempt = row.attempt = None
        row.state = over
        if attempt.has_asked:
            gatekeeper = lifecycle.gatekeeper
            if attempt.reserved is not None:
                gatekeeper.spending.settle(attempt, (result,), None, is_cut=False)
            gatekeeper.ended(attempt, None, now)
            if attempt.keys:
                lifecycle.backlog.aside.ended(attempt)
            if gatekeeper.held_failures is not None:
                lifecycle.evaluate_held()
        latencies.append(now - row.started)  # type: ignore[operator]
        if own_deadlines:
            deadlines.stop(row)
        if has_conditions:
            attempts.stop(attempt)
        try:
            if complete(row, value):
                return clock()
        except BaseException as error:  # the output's; raised here, a StopIteration would become a RuntimeError
            lifecycle.operator.fail(error)
        return now

    return returned
