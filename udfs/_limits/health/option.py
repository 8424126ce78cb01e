"""The options `breaker` and `max_failures`."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from itertools import islice
from typing import Any

from asyncudf.queues._public import public

from ..._errors.call_outcome import CallOutcome
from ..._errors.checks import LARGEST, discard, is_plain, period, positive_int, share
from ..._errors.exceptions import OptionError
from ..._errors.failure import Failure
from ..._errors.figures import commonest
from ..._errors.safe import safe_repr, type_name
from ..._errors.traces import leaves
from .chance import is_unlikely

# Chance explains a tenth of failures, or twice the share that failed before, and at most two thirds of `failure_rate`.
# A service is dead if chance gives its failures once in a million times: a job makes many calls.
LEAST_SHARE, MORE, BY_CHANCE = 0.1, 2.0, 2 / 3
RARE_BY_CHANCE = math.log(1e6)
CALLS_BEFORE = 100  # calls from which on it counts how many of them have failed
WINDOWS_KEPT = 20  # windows that are remembered for that; enough to tell `failure_rate` from `BY_CHANCE` of it
MOST_WINDOW = 100_000  # calls: the coordinator keeps WINDOWS_KEPT times as many outcomes
DOUBTED = 5  # windows of which each may show that more calls fail than chance explains

FailureOn = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]


@public("asyncudf")
@dataclasses.dataclass(frozen=True)
class CircuitBreaker:
    """After too many failures the rows wait and use up no attempt, while one call at a time probes the service.

    Failures are timeouts, failed connections, and the HTTP statuses 408 and 500 or more. Refusals (a 429, or a 503 that
    says when to call again), other statuses, and errors of the row or the function are none: "the service is dead" is
    not "the row is bad".

    A service that fails a share of its calls at random is not dead: the breaker stays closed as long as chance explains
    the failures, by the share that failed before or, if little is known, by two thirds of `failure_rate`. With the
    defaults it opens after 10 failures in a row of a service that worked before, after 13 of one that is not known, and
    after half of 240 calls have failed of one of which a third failed before.

    Args:
        failure_rate: share of the last calls whose failure opens the breaker, if it is not chance.
        window: how many last calls count; fewer never open it, and as many failures in a row always do, which chance
            gives a window of less than 10 too, if the service fails often.
        open_for: seconds until a call probes a service that is dead, and again after each probe that fails. It is dead
            when 18 of 20 calls have failed, or more of many; before, the next call probes it at once.
        max_open: seconds after which the task fails, with one error for all its rows, if no call has succeeded.
        failure_on: exception types, or a plain function of the exception, that say what a failure is in place of the
            rule above; in a group one of these types is enough. Answers and other statuses show that the service lives,
            as they do without it.

    Raises:
        OptionError: a value that cannot work.
    """

    failure_rate: float = 0.5
    window: int = 20
    open_for: float | timedelta = 10.0
    max_open: float | timedelta = 300.0
    failure_on: FailureOn | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        share(self.failure_rate, "failure_rate")
        positive_int(self.window, "window", most=MOST_WINDOW)
        open_for, max_open = self.times
        if max_open < open_for:
            raise OptionError(f"max_open must be at least open_for ({open_for:g} s), not {max_open:g} s")
        object.__setattr__(self, "open_for", open_for)
        object.__setattr__(self, "max_open", max_open)
        _check_failure_on(self.failure_on)

    @property
    def times(self) -> tuple[float, float]:
        """`open_for` and `max_open` in seconds."""
        return period(self.open_for, "open_for"), period(self.max_open, "max_open")

    def outcome_of(self, failure: Failure | None) -> CallOutcome:
        """The outcome of an attempt; only `DOWN` counts as a failure, only `ANSWERED` as a success.

        Raises:
            TypeError: `failure_on` is a function that has to be awaited.
            BaseException: what `failure_on` raises.
        """
        if failure is None:
            return CallOutcome.ANSWERED
        if self.failure_on is not None and self._is_failure(failure.error):
            return CallOutcome.DOWN
        outcome = failure.outcome
        # A failure that `failure_on` does not name opens nothing; an answer still shows that the service lives.
        return CallOutcome.NOTHING if outcome is CallOutcome.DOWN and self.failure_on is not None else outcome

    def _is_failure(self, error: BaseException) -> bool:
        if isinstance(self.failure_on, (type, tuple)):
            return any(issubclass(type(one), self.failure_on) for one in (error, *leaves(error)))
        assert self.failure_on is not None
        answer: Any = self.failure_on(error)
        if inspect.isawaitable(answer) or inspect.isasyncgen(answer):  # it would always be true
            discard(answer)
            raise TypeError(f"it answers with a {type_name(answer)}, which has to be awaited; give a plain function")
        return bool(answer)

    def opens(self, failed: Collection[bool]) -> bool:
        """Whether the breaker opens because of the last calls; for each whether it has failed, the newest first."""
        if len(failed) < self.window or sum(islice(failed, self.window)) < self.failure_rate * self.window:
            return False
        return self._exceeds_chance(failed, before=True)

    def is_dead(self, failed: Collection[bool]) -> bool:
        """Whether more of the last calls have failed than a live service would ever fail; the newest first."""
        return self._exceeds_chance(failed, before=False)

    def _exceeds_chance(self, failed: Collection[bool], *, before: bool) -> bool:
        # Checked for the last half window, the last two, and so on; with `before`, also for each
        # number of last calls that all failed.
        half, failures, total, in_a_row = max(1, self.window // 2), 0, sum(failed), True
        for calls, has_failed in enumerate(failed, 1):
            failures += has_failed
            in_a_row = in_a_row and has_failed
            if in_a_row and calls >= self.window:
                return True
            if calls % half == 0 or (before and in_a_row):
                known, share = len(failed) - calls, self.by_chance
                if before and known >= CALLS_BEFORE:
                    share = min(share, max(LEAST_SHARE, MORE * (total - failures) / known))
                if is_unlikely(failures, calls, share, RARE_BY_CHANCE):
                    return True
        return False

    def doubts(self, failed: Collection[bool]) -> bool:
        """Whether more of the last calls have failed than chance explains, though too few to open the breaker."""
        failures = calls = 0
        for calls, has_failed in enumerate(islice(failed, DOUBTED * self.window), 1):
            failures += has_failed
            if calls % self.window == 0 and failures > self.by_chance * calls:
                return True
        return failures > self.by_chance * max(calls, self.window)

    @property
    def by_chance(self) -> float:
        """The share of failures that a live service may have by chance, at most."""
        return BY_CHANCE * self.failure_rate


def _check_failure_on(value: Any) -> None:
    kinds = value if isinstance(value, tuple) else (value,)
    if value is None or (kinds and all(isinstance(one, type) and issubclass(one, BaseException) for one in kinds)):
        return
    if not is_plain(value) or isinstance(value, type):
        raise OptionError(
            f"failure_on must be exception types or a plain function of the exception, not {safe_repr(value)}"
        )


FIRST_ROWS = 100  # fewer rows say nothing about a share
EXAMPLES = 3
NAMED_TYPES = 5  # error types that the message names


@dataclasses.dataclass(frozen=True)
class ErrorBudget:
    """What `max_failures=` means: a whole number is a count, a number below 1 a share of the rows, after 100 rows."""

    most: float

    @classmethod
    def of(cls, value: Any, name: str = "max_failures") -> ErrorBudget:
        """The budget that an option says; raises OptionError for what is neither a count nor a share."""
        if isinstance(value, ErrorBudget):
            return value
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        if is_count and value > LARGEST:
            raise OptionError(
                f"{name} must be at most {LARGEST:,} rows, not {safe_repr(value)}; leave it out for any number"
            )
        if is_count or (isinstance(value, float) and 0 < value <= 1):
            return cls(value)
        raise OptionError(
            f"{name} must be a whole number of rows, or a share of them, such as 0.02, not {safe_repr(value)}"
        )

    def is_spent(self, failures: Failures) -> bool:
        if isinstance(self.most, int):
            return failures.failed > self.most
        return failures.rows >= FIRST_ROWS and failures.failed > self.most * failures.rows

    def is_unjudged(self, failures: Failures) -> bool:
        """Whether a share was not judged, for too few rows, though more have failed than it allows of enough rows."""
        is_share = isinstance(self.most, float)
        return is_share and failures.rows < FIRST_ROWS and failures.failed > self.most * FIRST_ROWS

    def message(self, function: str, failures: Failures) -> str:
        allowed = f"{self.most} may" if isinstance(self.most, int) else f"{100 * self.most:g}% may"
        told = f"{failures.failed:,} of {failures.rows:,} rows of {function} failed, more than max_failures= allows"
        return "\n".join([f"{told} ({allowed}): {named_types(failures)}", *shown_examples(failures)])


@dataclasses.dataclass
class Failures:
    """How many rows are done, how many of them failed, and with which errors.

    Rows that failed are those that became null, a captured error or a dead letter; examples are redacted already.
    """

    rows: int = 0
    failed: int = 0
    types: Counter[str] = dataclasses.field(default_factory=Counter)
    examples: list[str] = dataclasses.field(default_factory=list)

    def add(self, rows: int, types: Mapping[str, int] | None = None, examples: Iterable[str] = ()) -> None:
        """Count rows that are done; `types` counts the errors of those that failed."""
        self.rows += rows
        if types:
            self.failed += sum(types.values())
            self.types.update(types)
            self.examples += [*examples][: EXAMPLES - len(self.examples)]


def named_types(failures: Failures) -> str:
    return ", ".join(f"{name} ({count:,})" for name, count in commonest(failures.types, NAMED_TYPES))


def shown_examples(failures: Failures) -> list[str]:
    return [f"  for example {example}" for example in dict.fromkeys(failures.examples[:EXAMPLES])]
