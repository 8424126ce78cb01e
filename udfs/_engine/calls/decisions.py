"""What becomes of rows whose attempt has ended: decided from plain values, and from nothing else."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._errors.answers import Refusal
from ..._errors.exceptions import ResultError
from ..._errors.failure import Failure
from ..._errors.task_faults import LASTING
from ..._functions.attempts import EndedAttempt
from ..._functions.options import Options

if TYPE_CHECKING:
    from ..._functions.retry import RetryStrategy

MOST_REFUSED = 3600.0  # seconds for which refusals keep a row that has no deadline


class Way(NamedTuple):
    """What rows have gone through until the end of an attempt."""

    attempts: int  # that retries count, with this one
    started: float
    waited: float  # seconds of back-off
    deadline: float | None
    refused: float | None  # when the first refusal came


class RetryAt(NamedTuple):
    """Another attempt follows."""

    delay: float  # seconds
    is_refusal: bool = False  # it uses no attempt


class Ending(enum.Enum):
    """Why no other attempt of the same rows follows."""

    DONE = "the outcome stands"
    UNKEPT = "the result stands, though it is not good enough, and is for this row alone"
    SPLIT = "the halves are called, to find the rows that made the call fail"
    HOLD = "it waits until it is known whether the service is dead"


Decision = RetryAt | Ending


class Decisions:
    """Decides by the options of a function.

    A refused call is made again after the wait, if the wait ends in time. For any other failure the first of these
    counts: the retry strategy asks for an attempt that begins in time; `split_failed` halves a call of several rows;
    a row whose service may be dead is held; the failure stands.
    """

    def __init__(self, options: Options) -> None:
        self._retry = options.retry
        self._splits = options.split_failed
        self._longest_wait = options.longest_wait
        self.looks_at_results = options.retry is not None and options.retry.checks_results

    def of_failure(
        self, failure: Failure, way: Way, now: float, draw: float, *, seen: Any, may_split: bool, is_down: bool
    ) -> Decision:
        """What follows a failure; raises what a predicate of the retry strategy raises.

        Args:
            draw: a random number from 0 to 1.
            seen: what the attempt has returned, as predicates of results see it; None if it has failed as a whole.
            is_down: whether the failure looks as if the service were dead.
            may_split: whether the call had several rows, and the service lives.
        """
        refusal = None if failure.answer.refusal is None else failure.refusal(self._longest_wait)
        decision: Decision | None = None
        if refusal is not None:
            decision = _after_refusal(refusal, way, now)
        elif self._retry is not None and not failure.is_fatal and failure.fault not in LASTING:
            decision = _after_error(self._retry, failure, way, now, draw, seen)
        if decision is not None:
            return decision
        # Halves of a call would not be accepted either, while the service wants fewer calls.
        may_split = may_split and self._splits and (refusal is None or not refusal.may_retry)
        if may_split and not (failure.is_no_rows_fault or issubclass(type(failure.error), ResultError)):
            return Ending.SPLIT
        return Ending.HOLD if is_down and not failure.is_no_rows_fault else Ending.DONE

    def of_result(self, seen: Any, way: Way, now: float, draw: float, *, is_kept: bool) -> Decision:
        """What follows a result; raises what a predicate raises. `is_kept`: other rows may get the result."""
        if not self.looks_at_results:
            return Ending.DONE
        assert self._retry is not None
        attempt = EndedAttempt(way.attempts, now - way.started, way.waited, None, seen)
        delay = self._retry.next_delay(attempt, draw)
        if delay is not None and _is_in_time(way, now + delay):
            return RetryAt(delay)
        return Ending.UNKEPT if is_kept and self._retry.asks_again(attempt) else Ending.DONE


def _after_error(
    retry: RetryStrategy, failure: Failure, way: Way, now: float, draw: float, seen: Any
) -> RetryAt | None:
    """What the retry strategy says; None if no attempt follows."""
    attempt = EndedAttempt(way.attempts, now - way.started, way.waited, failure.error, seen, failure.answer.wait)
    delay = retry.next_delay(attempt, draw)
    return RetryAt(delay) if delay is not None and _is_in_time(way, now + delay) else None


def _after_refusal(refusal: Refusal, way: Way, now: float) -> RetryAt | None:
    """The wait that a service has asked for; None if it would end too late, or the service refuses for good."""
    refused = now if way.refused is None else way.refused
    end = refused + MOST_REFUSED if way.deadline is None else way.deadline
    if not refusal.may_retry or now + refusal.seconds >= end:
        return None
    return RetryAt(refusal.seconds, is_refusal=True)


def _is_in_time(way: Way, when: float) -> bool:
    """Whether an attempt at `when` would begin before the deadline; a later attempt is not waited for."""
    return way.deadline is None or when < way.deadline
