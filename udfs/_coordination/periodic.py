"""What a task asks the coordinator again and again beside its calls, and at once when there is a reason."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from .client import GOODBYE, Coordinator

__all__ = ("PeriodicTask",)


GAP = 0.02  # seconds between two questions: reasons come for each row


class PeriodicTask:
    """Awaits `_exchange` and waits for the seconds that it returns, until it is closed; of one event loop.

    The coordinator bounds the questions that all tasks ask in a second: it answers how far it is behind, and so long a
    task waits at least before it asks again.

    Args:
        keys: the names of what the coordinator keeps.
        fail: called with an error of `_exchange`, which ends the task.
        gap: seconds between the end of one exchange and the next, at least.
        longest: seconds that a task waits at most for a coordinator that is behind.
    """

    # _has_failed: `_exchange` has raised, so that there is no coordinator to talk to any more
    # _is_busy: `_exchange` is under way

    def __init__(
        self,
        coordinator: Coordinator,
        keys: Sequence[str],
        fail: Callable[[BaseException], None],
        *,
        gap: float = GAP,
        longest: float = 4.0,
    ) -> None:
        self._coordinator, self._clock = coordinator, coordinator.clock
        self._keys = [*keys, coordinator.key("pace", "all")]
        self._fail, self._gap, self._longest = fail, gap, longest
        self._behind = 0.0
        self._has_failed = self._is_busy = self._is_closed = False
        self._reason = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._repeat())

    async def close(self) -> None:
        """End it, and tell the last of what there is to tell."""
        self._is_closed = True
        try:
            if self._is_busy:
                await asyncio.wait([self._task], timeout=GOODBYE)
        finally:
            self._task.cancel()
        await asyncio.wait([self._task])
        if not self._has_failed and (message := self._last_message()) is not None:
            await self._coordinator.send_last(message)

    async def _exchange(self) -> float:
        """Ask; returns the seconds until the next time. It is cancelled if the task ends and it takes too long."""
        raise NotImplementedError

    def _last_message(self) -> Awaitable[object] | None:
        """What a task says when it ends, if anything."""
        return None

    def _poke(self) -> None:
        """Do not wait for the next exchange."""
        self._reason.set()

    async def _ask(self, script: str, *arguments: object) -> list[Any]:
        answer: list[Any]
        behind, *answer = await self._coordinator.run(script, self._keys, *arguments)
        self._behind = min(float(behind), self._longest)
        return answer

    async def _repeat(self) -> None:
        while True:
            self._reason.clear()
            self._is_busy = True
            try:
                pause = await self._exchange()
            except Exception as error:
                self._has_failed = True
                self._fail(error)
                return
            finally:
                self._is_busy = False
            if self._is_closed:
                return
            gap = max(min(self._gap, pause), self._behind)
            await asyncio.sleep(gap)
            try:
                async with asyncio.timeout(max(0.0, pause - gap)):
                    await self._reason.wait()
            except TimeoutError:
                pass
