"""Something that a task does again and again beside its calls, and at once when there is a reason."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from .client import GOODBYE

__all__ = ("Beat",)


GAP = 0.02  # seconds between two beats: reasons come for each row


class Beat:
    """Awaits `once` and waits for the seconds that it returns, until it is closed.

    Args:
        once: is cancelled if the task ends and it takes too long: what it was about to tell must not be lost then.
        fail: called with an error of `once`, which ends the beat.
        gap: seconds between the end of one beat and the next, at least.
    """

    # has_failed: `once` has raised, so that there is nobody to talk to any more
    # _is_busy: `once` is under way

    def __init__(
        self, once: Callable[[], Awaitable[float]], fail: Callable[[BaseException], None], gap: float = GAP
    ) -> None:
        self._once, self._fail, self._gap = once, fail, gap
        self.has_failed = self._is_busy = self._is_closed = False
        self._reason = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def poke(self) -> None:
        """Do not wait for the next beat."""
        self._reason.set()

    async def close(self) -> None:
        """End it; a beat that has begun may come to its end, for which there is a moment."""
        self._is_closed = True
        try:
            if self._is_busy:
                await asyncio.wait([self._task], timeout=GOODBYE)
        finally:
            self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            self._reason.clear()
            self._is_busy = True
            try:
                pause = await self._once()
            except Exception as error:
                self.has_failed = True
                self._fail(error)
                return
            finally:
                self._is_busy = False
            if self._is_closed:
                return
            await asyncio.sleep(min(self._gap, pause))
            try:
                async with asyncio.timeout(max(0.0, pause - self._gap)):
                    await self._reason.wait()
            except TimeoutError:
                pass
