"""What a task knows of the service that its function calls: its refusals, its circuit breaker, the rows that failed."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING, Protocol

from ..._errors.call_outcome import CallOutcome
from ..._errors.exceptions import FatalError
from ..._errors.failure import Failure
from ..._errors.records import error_text
from ..gate import AskingAttempt, Gate, HostTask, Slots
from .failures import FailureBudget, FirstRows, OpenRow
from .option import CircuitBreaker, ErrorBudget
from .throttle import RefusalGate

if TYPE_CHECKING:
    import contextlib

    from ..coordinator.link import TaskLink
    from ..coordinator.names import TaskIdentity
    from .breaker import BreakerGate
    from .job import SharedHealth


class CheckedOptions(Protocol):
    """The options of a function that concern the health of its service."""

    @property
    def breaker(self) -> CircuitBreaker | None: ...
    @property
    def max_failures(self) -> ErrorBudget | None: ...
    @property
    def longest_wait(self) -> float: ...
    @property
    def patience(self) -> float: ...
    @property
    def timeout(self) -> float | None: ...
    @property
    def redacted(self) -> bool: ...
    @property
    def hides_failures(self) -> bool: ...


class CallingTask(HostTask, Protocol):
    """The task that makes the calls."""

    def rows_under_way(self) -> list[OpenRow]:
        """The rows that have been taken and are not done."""
        ...

    def health_changed(self) -> None:
        """Another task may have opened or closed the circuit breaker."""


class Health:
    """What limits calls by how they end; all other limits are asked after its `gates`.

    Attributes:
        gates: of refusals, and of the circuit breaker if there is one.
        breaker: the last one; None: there is none.
        failures: has to be told of rows that have failed for good; None: any number may.
    """

    # _others: attempts that were not refused and ended with an error, or with a result that is not good enough
    # _not_refused_before: answers to calls that did not have to ask, when they were last counted

    def __init__(self, task: CallingTask, slots: Slots, options: CheckedOptions) -> None:
        self._task, self._options, self._counters = task, options, task.counters
        self._refusals = RefusalGate(
            task,
            slots,
            longest_wait=options.longest_wait,
            patience=options.patience,
            timeout=options.timeout,
            redacted=options.redacted,
        )
        self.refusal_of = self._refusals.refusal_of
        self.failures: FailureBudget | FirstRows | None = None
        if options.max_failures is not None:
            self.failures = FailureBudget(task, options.max_failures, redacted=options.redacted)
        elif options.hides_failures:
            self.failures = FirstRows(task, task.rows_under_way, redacted=options.redacted)
        self.gates: list[Gate] = [self._refusals]
        self.breaker: BreakerGate | None = None
        if options.breaker is not None:
            from .breaker import BreakerGate

            self.breaker = BreakerGate(options.breaker, task.name, partial(error_text, redacted=options.redacted))
            self.gates.append(self.breaker)
        self._others = self._not_refused_before = 0

    def share(self, link: TaskLink, identity: TaskIdentity, stack: contextlib.AsyncExitStack) -> None:
        """From now on the tasks of the job share what they know of the service, and their failed rows."""
        from .job import SharedFailures, SharedHealth

        def changed() -> None:
            self._task.health_changed()
            link.wake()

        # The breaker is of one query: the next one tries a service that this one has given up.
        health = SharedHealth(dataclasses.replace(link, wake=changed), identity.query, self._options.breaker)
        stack.push_async_callback(health.close)
        self.share_health(health)
        if isinstance(failures := self.failures, FailureBudget):
            failures.tally = SharedFailures(link, identity.query, identity.part, failures.budget, failures.spent)
            stack.push_async_callback(failures.tally.close)

    def share_health(self, shared: SharedHealth) -> None:
        self._refusals.share(shared)
        if self.breaker is not None:
            self.breaker.share(shared)

    # Calls that do not have to ask.

    @property
    def has_to_be_asked(self) -> bool:
        """Whether each call has to ask, though none was refused."""
        return self.breaker is not None or self._refusals.shared is not None

    def is_free(self, now: float) -> bool:
        """Whether calls need not ask any more; else it is told of their ends as other gates are."""
        if not self._refusals.throttle.is_free(now):
            return False
        self._not_refused_before = self._not_refused
        return True

    def ended_unasked(self, attempt: AskingAttempt, failure: Failure | None, now: float) -> bool:
        """An attempt that did not have to ask is over; returns whether the next attempts need not ask either.

        A successful attempt need not be reported here.
        """
        refusals = self._refusals
        if failure is not None and failure.answer.refusal is not None and self.refusal_of(failure) is not None:
            answers, self._not_refused_before = self._not_refused - self._not_refused_before, self._not_refused
            refusals.throttle.answered(max(0, answers), now, now)
            refusals.ended(attempt, CallOutcome.THROTTLED, failure, now)
            return refusals.throttle.is_free(now)
        self._others += 1
        if refusals.for_good.is_counting and self.outcome_of(failure) is CallOutcome.ANSWERED:
            refusals.accepted(now)
        return True

    def unsatisfied(self, now: float) -> None:
        """An attempt has a result that is not good enough; it was not refused."""
        self._others += 1
        self._refusals.accepted(now)

    @property
    def _not_refused(self) -> int:
        """How many attempts were not refused, as far as they are counted."""
        return self._counters.calls_answered + self._others

    # What is known of the service.

    @property
    def is_broken(self) -> bool:
        return self.breaker is not None and self.breaker.breaker.open_since is not None

    def looks_down(self, failure: Failure) -> bool:
        """Whether there is a circuit breaker, and a failure looks as if the service were dead."""
        return self.breaker is not None and self.outcome_of(failure) is CallOutcome.DOWN

    def paused_seconds(self) -> float:
        """For how long all calls have been paused so far."""
        return self._refusals.throttle.paused_seconds(self._counters.clock())

    def outcome_of(self, failure: Failure | None) -> CallOutcome:
        """The outcome of an attempt; never raises."""
        breaker = self._options.breaker
        if failure is None:
            return CallOutcome.ANSWERED
        if breaker is None or breaker.failure_on is None:
            return failure.outcome
        try:
            return breaker.outcome_of(failure)
        except BaseException as own:  # code of the user's
            fatal = FatalError(
                f"failure_on of the circuit breaker of {self._task.name} must say of any exception whether the "
                f"service has failed, and raised {error_text(own, redacted=self._options.redacted)}"
            )
            fatal.__cause__ = own
            self._task.fail(fatal)
            return CallOutcome.NOTHING
