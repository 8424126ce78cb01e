"""What a task asks the coordinator again and again."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ..._errors.exceptions import FatalError
from .client import NOW_SCRIPT, Coordinator

LAST_MESSAGE_WITHIN = 1.0  # seconds for the last message of a task


QUESTION_GAP = 0.02  # seconds between two questions: every row may be a reason for one
REPORT_EVERY = 0.5  # seconds between two reports
HURRY_EVERY = 0.1  # the same where a task waits for what another holds
REFRESH = 60.0  # seconds after which a task with nothing to report asks anyway, so that the counts stay

# How far the coordinator is behind the periodic questions of all tasks: each question takes the next place on a time
# line. So there are at most RATE questions in a second, and the tasks need not be counted.
PACE_SCRIPT = (
    NOW_SCRIPT
    + """
local RATE, LONGEST = 2000, 4  -- questions in a second; seconds
local function behind()
  local key = KEYS[#KEYS]
  local line = math.max(now, math.min(now + LONGEST, tonumber(redis.call('GET', key) or '0'))) + 1 / RATE
  redis.call('SET', key, text(line), 'PX', 1000 * LONGEST)
  return text(line - now)
end
"""
)

# Milliseconds that a key of one query outlives its last use. Each micro-batch of a stream has keys of its own, so they
# must go soon, or they fill the server's memory. The tasks of a query refresh its keys: the time must cover stages of
# the query without such tasks, and tasks whose event loop is blocked by a computation.
KEEP_QUERY = 900_000

# Milliseconds that a rate limit, or calls that tasks share, outlive their last use; what is missing costs a wait.
KEEP_LIMIT = 86_400_000


MOST_KEYS = 256  # in one question: a script holds up the server for all others


@dataclasses.dataclass(frozen=True)
class TaskLink:
    """A task's link to the coordinator, over which it shares its limits with other tasks."""

    coordinator: Coordinator
    task: str  # a name that no other task has
    wake: Callable[[], None]  # called when an answer may let calls begin that had to wait
    fail: Callable[[BaseException], None]  # called when the coordinator does not answer; ends the task with the error


class PeriodicTask:
    """Awaits `_exchange` and waits for the seconds that it returns, until it is closed; of one event loop.

    The coordinator bounds the questions that all tasks ask so in a second: each answer says how far it is behind, and
    the task waits at least that long before it asks again.

    Args:
        keys: on the server, for the scripts.
        gap: seconds between the end of one exchange and the next, at least.
        longest: seconds that a task waits at most for a coordinator that is behind.
    """

    # _has_failed: `_exchange` has raised, so there is no coordinator to talk to
    # _is_busy: `_exchange` is under way

    def __init__(self, link: TaskLink, keys: Sequence[str], *, gap: float = QUESTION_GAP, longest: float = 4.0) -> None:
        self._link, self._coordinator = link, link.coordinator
        self._clock = link.coordinator.clock
        self._keys, self._pace = keys, link.coordinator.key("pace", "all")
        self._gap, self._longest = gap, longest
        self._behind = 0.0
        self._has_failed = self._is_busy = self._is_closed = False
        self._reason = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._repeat())

    async def close(self) -> None:
        """End it, and send the last message."""
        self._is_closed = True
        try:
            if self._is_busy:
                await asyncio.wait([self._task], timeout=LAST_MESSAGE_WITHIN)
        finally:
            self._task.cancel()
        await asyncio.wait([self._task])
        if not self._has_failed and (message := self._last_message()) is not None:
            # If it does not arrive, others learn the same when the lease is over.
            with contextlib.suppress(FatalError, TimeoutError):
                async with asyncio.timeout(LAST_MESSAGE_WITHIN):
                    await message

    async def _exchange(self) -> float:
        """Ask; returns the seconds until the next time. It is cancelled if the task ends and it takes too long."""
        raise NotImplementedError

    def _last_message(self) -> Awaitable[object] | None:
        """What the task tells the coordinator when it ends, if anything."""
        return None

    def _poke(self) -> None:
        """Do not wait for the next exchange."""
        self._reason.set()

    async def _ask(self, script: str, *arguments: object) -> list[Any]:
        """Run a script that begins with `PACE_SCRIPT`; returns the rest of its answer."""
        answer: list[Any]
        behind, *answer = await self._coordinator.run(script, [*self._keys, self._pace], *arguments)
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
                self._link.fail(error)
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
