"""Failed calls whose rows may not be to blame: until the circuit breaker knows, they wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from .._errors.records import is_fatal
from .._functions.async_function import Results
from .admission import Admission
from .call import Call

__all__ = ("Suspects",)


Outcomes = Sequence[Results | BaseException]


class Suspects:
    """Calls whose last attempt has failed as those of a dead service do.

    Args:
        window: how many more attempts must have ended before a call is to blame.
        blame: called with a call that has failed, and its outcomes.
        clear: called with a call that is to be tried again.
    """

    # The breaker opens because of some of the last `window` attempts. While it has not, the newest failures may be
    # among those for which it will; when as many more have ended, they are not.
    #
    # _held: the calls in the order in which they failed, with their outcomes, how many attempts had ended by then, and
    # how often it had been heard what others know: it was told to them only if that happens twice

    def __init__(
        self,
        window: int,
        admission: Admission,
        blame: Callable[[Call, Outcomes], None],
        clear: Callable[[Call], None],
    ) -> None:
        self._window = window
        self._admission = admission
        self._blame = blame
        self._clear = clear
        self._held: deque[tuple[Call, Outcomes, int, int]] = deque()
        self._blamed: Call | None = None

    def __iter__(self) -> Iterator[Call]:
        return (call for call, *_ in self._held)

    def hold(self, call: Call, outcomes: Outcomes, cause: BaseException | None = None) -> bool:
        """Keep a call that has failed, if it may not be to blame; `cause`: why, if its outcomes do not say."""
        errors = [outcome for outcome in (*outcomes, cause) if isinstance(outcome, BaseException)]
        if call is self._blamed or any(map(is_fatal, errors)) or not any(map(self._admission.is_down, errors)):
            return False
        self._held.append((call, outcomes, self._admission.attempts, self._admission.heard()))
        return True

    def look(self) -> None:
        """An attempt has ended, or the breaker has opened: some are known to be to blame, or not to be."""
        if self._admission.is_broken:
            held, self._held = self._held, deque()
            for call, *_ in held:
                self._clear(call)
        while (
            self._is_told()
            and self._held[0][2] + self._window <= self._admission.attempts
            and not self._admission.is_in_doubt()
        ):
            self._blame_first()

    def blame_all(self) -> None:
        """Nothing more is under way that could tell."""
        while self._is_told():
            self._blame_first()

    def _is_told(self) -> bool:
        """Whether the oldest is not one that others do not know of yet."""
        return bool(self._held) and self._held[0][3] + 2 <= self._admission.heard()

    def blame(self, call: Call, outcomes: Outcomes) -> None:
        """The call has failed for good, whatever others tell of the service."""
        self._blamed = call
        self._blame(call, outcomes)
        self._blamed = None

    def _blame_first(self) -> None:
        call, outcomes, *_ = self._held.popleft()
        self.blame(call, outcomes)
