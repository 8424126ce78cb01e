"""The circuit breaker: when a service counts as dead, so that one call at a time probes it and the others wait."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from .._errors.exceptions import OptionError
from .._errors.traces import leaves
from .._text.safe import safe_repr, type_name
from .call_outcome import CallOutcome, is_unlikely, outcome_of
from .checks import discard, is_plain, positive_int, seconds, share

__all__ = ("BY_CHANCE", "KNOWN", "RARE", "Breaker", "CircuitBreaker")

BY_CHANCE = 2 / 3  # of `failure_rate`: a share of failures that a live service may have by chance
# Whether a service is dead is asked at each opening and each probe, thousands of times in a long job.
RARE = math.log(1e6)  # a service is dead if chance gives its failures once in a million times
KNOWN = 10  # windows that are remembered for that

FailureOn = type[BaseException] | tuple[type[BaseException], ...] | Callable[[BaseException], bool]


@dataclasses.dataclass(frozen=True)
class CircuitBreaker:
    """After too many failures the rows wait and use up no attempt, while one call at a time probes the service.

    Failures are timeouts, failed connections, and the HTTP statuses 408 and 500 or more. Refusals (a 429, or a 503 that
    says when to call again), other statuses, and errors of the row or the function are none: "the service is dead" is
    not "the row is bad".

    A service that fails a share of its calls at random is not dead: while chance explains the failures by two thirds of
    `failure_rate`, it is probed at once.

    Args:
        failure_rate: share of the last calls whose failure opens the breaker.
        window: how many last calls count; fewer never open it.
        open_for: seconds until a call probes a service that is dead, and again after each probe that fails.
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
        positive_int(self.window, "window")
        open_for, max_open = self.times
        if max_open < open_for:
            raise OptionError(f"max_open must be at least open_for ({open_for:g} s), not {max_open:g} s")
        object.__setattr__(self, "open_for", open_for)
        object.__setattr__(self, "max_open", max_open)
        _check_failure_on(self.failure_on)

    @property
    def times(self) -> tuple[float, float]:
        """`open_for` and `max_open` in seconds."""
        return seconds(self.open_for, "open_for"), seconds(self.max_open, "max_open")

    def outcome_of(self, error: BaseException | None) -> CallOutcome:
        """The outcome of an attempt; only `DOWN` counts as a failure, only `ANSWERED` as a success.

        Raises:
            TypeError: `failure_on` is a function that has to be awaited.
            BaseException: what `failure_on` raises.
        """
        if error is not None and self.failure_on is not None and self._is_failure(error):
            return CallOutcome.DOWN
        outcome = outcome_of(error)
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

    def has_tripped(self, failures: int, calls: int) -> bool:
        """Whether so many failures among the last calls open the breaker."""
        return calls >= self.window and failures >= self.failure_rate * calls

    def is_dead(self, ended: Sequence[bool]) -> bool:
        """Whether more of the last calls have failed than chance explains; the newest last, True for a failure."""
        newest, half = list(reversed(ended)), max(1, self.window // 2)
        for calls in range(half, len(newest) + 1, half):
            failures = sum(newest[:calls])
            all_failed = failures == calls >= self.window
            if all_failed or is_unlikely(failures, calls, BY_CHANCE * self.failure_rate, RARE):
                return True
        return False


def _check_failure_on(value: Any) -> None:
    kinds = value if isinstance(value, tuple) else (value,)
    if value is None or (kinds and all(isinstance(one, type) and issubclass(one, BaseException) for one in kinds)):
        return
    if not is_plain(value) or isinstance(value, type):
        raise OptionError(
            f"failure_on must be exception types or a plain function of the exception, not {safe_repr(value)}"
        )


class Breaker:
    """The circuit breaker of one task.

    Each call runs under a ticket. Its end counts only while that ticket is the newest: a call that began before the
    breaker opened, and ends while it is open, says nothing new.
    """

    # closed: open_since is None; every call gets the same ticket
    # open: calls wait; at _probe_at one of them, the probe, gets a ticket of its own; no other begins until it ends
    # _ticket grows whenever the breaker opens or closes, and for each probe
    # _ended: whether each of the last `window` calls failed; _known: the same of more calls, also before an outage

    def __init__(self, options: CircuitBreaker) -> None:
        self._options = options
        self._open_for, self._max_open = options.times
        self._ended: deque[bool] = deque(maxlen=options.window)
        self._known: deque[bool] = deque(maxlen=KNOWN * options.window)
        self._ticket = 0
        self._is_probing = False
        self._probe_at = 0.0
        self.open_since: float | None = None

    def admit(self, now: float) -> int | None:
        """The ticket of a call that may begin; None if it has to wait."""
        if self.open_since is not None:
            if self._is_probing or now < self._probe_at:
                return None
            self._is_probing = True
            self._ticket += 1
        return self._ticket

    def wait(self, now: float) -> float | None:
        """Seconds until a call may begin, 0.0 if one may now; None until the probe under way has ended."""
        if self.open_since is None:
            return 0.0
        return None if self._is_probing else max(0.0, self._probe_at - now)

    def ended(self, ticket: int, outcome: CallOutcome, now: float) -> None:
        """A call that was admitted is over; one that was cancelled too, as `NOTHING`."""
        if ticket != self._ticket:
            return
        if self._is_probing:
            self._is_probing = False
            if outcome in (CallOutcome.ANSWERED, CallOutcome.THROTTLED):
                self._known.append(False)
                self._close()
            elif outcome is CallOutcome.DOWN:
                self._known.append(True)
                self._try_later(now)
        elif outcome in (CallOutcome.ANSWERED, CallOutcome.DOWN):
            self._ended.append(outcome is CallOutcome.DOWN)
            self._known.append(outcome is CallOutcome.DOWN)
            if self.open_since is None and self._options.has_tripped(sum(self._ended), len(self._ended)):
                self._open(now)

    def is_in_doubt(self) -> bool:
        """Whether more calls fail than chance explains, but too few to open the breaker."""
        return sum(self._ended) > BY_CHANCE * self._options.failure_rate * self._options.window

    def has_given_up(self, now: float) -> bool:
        """Whether it has been open for `max_open` seconds, so that the task must fail."""
        return self.open_since is not None and now - self.open_since >= self._max_open

    def _open(self, now: float) -> None:
        self.open_since = now
        self._ticket += 1
        self._try_later(now)

    def _try_later(self, now: float) -> None:
        self._probe_at = now
        if self._options.is_dead(self._known):
            self._ended.clear()
            self._probe_at += self._open_for

    def _close(self) -> None:
        self.open_since = None
        self._ticket += 1
