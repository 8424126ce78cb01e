"""What a limit is to an attempt: a gate, which every attempt asks before it begins."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from .._errors.call_outcome import CallOutcome
from .._errors.failure import Failure
from .._observe.counters import TaskCounters
from .._observe.time_account import State
from .._observe.waits import Waiting

Key = str  # of a row: a hash of the values, equal in all tasks
LimitKey = tuple[int, Key | None]  # the place of a limit or budget in `Attempt.keys`, and the key there


class Aside(NamedTuple):
    """The answer of a gate that holds back the attempts of one key alone: others may pass them.

    Args:
        seconds: after which the first of them asks again at the latest. It asks before, when an attempt of the key is
            over or the gate wakes it; None: only then.
    """

    key: LimitKey
    seconds: float | None


class AskingAttempt(Protocol):
    """What a gate sees of an attempt; see the engine's `Attempt`."""

    began: float
    costs: Sequence[float] | None
    counts_for_breaker: bool
    has_asked: bool
    keys: Sequence[Key | None]
    ticket: int

    @property
    def rows(self) -> Sequence[Any]: ...
    @property
    def is_excused(self) -> bool: ...


class Slots(Protocol):
    """The slots in which attempts run; see the engine's `SlotPool`."""

    @property
    def capacity(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def oldest(self) -> float: ...
    def resize(self, capacity: int, /) -> None: ...


class HostTask(Protocol):
    """The task whose calls are limited."""

    name: str  # of its function
    counters: TaskCounters  # of its calls; their clock is the task's

    def fail(self, error: BaseException, /) -> None:
        """The task must end with this error."""


class Gate:
    """One limit; every method is called on the event loop."""

    state = State.LIMIT  # where the time goes while a call waits for this gate
    waiting = Waiting.PERMIT  # what a call that it turns away waits for
    follows_calls = True  # whether its answer may change when a call ends
    limits: Sequence[str] = ()  # what it bounds calls by, as people are shown it; empty where they have said no limit
    takes_permits = False  # whether `wait` takes permits of a rate of all keys: it is the last that is asked
    place = -1  # among the costs of an attempt, of the limit or budget of which it may hold back a key alone
    limit = ""  # that of them which the last call that it turned away waits for

    def wait(self, attempt: AskingAttempt, now: float) -> float | Aside | None:
        """0.0 if an attempt may begin now; else the seconds after which to ask again, None if the task is woken then.

        While one may not no other attempt asks, but for an answer that holds back the key of this one alone. A gate may
        keep a place for the attempt that it lets begin, and takes it back in `withdrawn`.

        Raises:
            FatalError: no call may begin any more.
            BudgetSpentError: this one may not.
        """
        return 0.0

    def awaits_calls(self, key: Key | None) -> bool:
        """Whether a key that it holds back waits for calls of this task, which say themselves how long they take."""
        return False

    @property
    def closed_since(self) -> float | None:
        """Since when it lets no call begin, probes aside; None if it does not know."""
        return None

    @property
    def longest(self) -> float:
        """Seconds after which it ends the task if it lets no call begin; inf if it never does."""
        return math.inf

    def began(self, attempt: AskingAttempt, now: float) -> None:
        """The attempt begins."""

    def withdrawn(self, attempt: AskingAttempt) -> None:
        """An attempt that may have been let begin does not; called for each that has asked and ends so."""

    def ended(self, attempt: AskingAttempt, outcome: CallOutcome, failure: Failure | None, now: float) -> None:
        """The attempt is over; called once for each that began."""
