"""The calls that a task may make of a budget that all tasks share, and that never comes back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from .client import Coordinator
from .periodic import PeriodicTask
from .scripts import SPEND

__all__ = ("SharedSpending",)


MOST = 64  # calls that are asked for at once
BEAT, SOON = 0.5, 0.1  # seconds between two questions; where somebody waits for what another holds
IDLE = 60.0  # the same, where none are held: lest those that were made are forgotten
LEASE = 60.0  # seconds without a word after which a task is gone, and has perhaps made what it held
GAP = 0.001


class SharedSpending(PeriodicTask):
    """At most `total` calls of all tasks together, and not one less; of one event loop.

    What a task holds and does not use it gives back while others wait for it, and all of it when it ends. One that is
    killed cannot: after a minute what it held counts as used, for nobody knows.

    Args:
        task: a name that no other task has.
        wake: called when `has_call` should be asked again.
        fail: called with the error when the coordinator does not answer.
    """

    # Calls are got in blocks, which grow by doubling as they are used up.
    #
    # _made, _held: calls that were made, and may be made without asking
    # _is_wanted: a call asks for one, so one is not given back
    # _is_awaited: others wait for what this task holds
    # _number: of the last question; 0: there was none

    def __init__(
        self,
        coordinator: Coordinator,
        name: str,
        task: str,
        total: int,
        wake: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        super().__init__(coordinator, [coordinator.key("calls", name), coordinator.key("holders", name)], fail, gap=GAP)
        self._name, self._total = task, total
        self._wake = wake
        self._made = self._held = self._number = 0
        self._block = 1
        self._is_wanted = self._is_awaited = self._is_spent = False

    def has_call(self) -> bool:
        """Whether a call may be made now; if not, and they are not spent, `wake` is called."""
        if not self._is_wanted:
            self._is_wanted = True
            if self._held == 0:
                self._poke()
        return self._held > 0

    def is_spent(self) -> bool:
        """Whether all calls of all tasks are made."""
        return self._is_spent

    def use(self) -> None:
        """A call is made."""
        self._held -= 1
        self._made += 1
        self._is_wanted = False

    def _last_message(self) -> Awaitable[object] | None:
        return self._question(-1) if self._number else None

    async def _exchange(self) -> float:
        if not self._number and not self._is_wanted:
            return IDLE
        if self._is_awaited:
            self._held = min(self._held, int(self._is_wanted))
        want = self._block if self._is_wanted and not self._held else 0
        got, is_spent, is_awaited = await self._question(want)
        self._held += got
        self._is_awaited, self._is_spent = bool(is_awaited), bool(is_spent)
        if got:
            self._block = min(MOST, 2 * self._block)
        if want:
            self._wake()
        if self._is_awaited and self._held:
            self._is_wanted = False  # the call that asked may need none by now, or be held back elsewhere: it says so
            self._wake()
            return SOON
        if self._is_wanted and not self._held:
            return SOON
        return BEAT if self._held else IDLE

    async def _question(self, want: int) -> tuple[int, int, int]:
        self._number += 1
        told = (self._name, self._total, self._number, self._made, self._held, want, LEASE)
        got, is_spent, is_awaited = map(int, await self._ask(SPEND, *told))
        return got, is_spent, is_awaited
