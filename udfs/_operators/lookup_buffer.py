"""An input whose rows are looked up in a store before they can be taken."""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Iterable

from asyncudf.queues import StreamElement

from .._calls.looked_up import KeyedRecord, plain
from .._calls.lookup import Lookup
from .._loop.shutdown import end_tasks
from .input_buffer import InputBuffer, InputElement

__all__ = ("LookupBuffer",)


class LookupBuffer(InputBuffer):
    """Looks the next rows up while those before them are taken.

    Args:
        request_batch: asks whoever feeds for one batch.
        lookup: what rows are looked up with.
        looking: called before rows are looked up; `looked` after it, with the keys of those that nothing was found for.
        arrived: called when some can be taken.
        fail: told of the error that ends the task.
    """

    # Elements pass through three places: _pending, _in_lookup, and what an InputBuffer has. Only so many are looked up
    # that there is always one part ready behind the one that rows are taken from: results wait in memory there.
    # The InputBuffer asks for more when it starts on its last part: then the next part is looked up, and only when
    # there is none is more asked for from outside.
    #
    # _task: one lookup at a time, so parts stay in order; None before `open` and while nothing is to be done
    # _ended: nothing more is fed; `has_ended` says that only once all has been looked up

    def __init__(
        self,
        request_batch: Callable[[], None],
        lookup: Lookup,
        loop: asyncio.AbstractEventLoop,
        looking: Callable[[], None],
        looked: Callable[[Iterable[bytes]], None],
        arrived: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._pending: deque[deque[InputElement]] = deque()
        self._in_lookup: list[InputElement] = []
        self._ended = False
        super().__init__(self._go_on)
        self._request_more = request_batch
        self._lookup = lookup
        self._loop = loop
        self._looking = looking
        self._looked = looked
        self._arrived = arrived
        self._fail = fail
        self._is_open = False
        self._task: asyncio.Task[None] | None = None
        self._context = contextvars.copy_context()

    @property
    def has_ended(self) -> bool:
        return self._ended and not self.is_looking_up

    @has_ended.setter
    def has_ended(self, ended: bool) -> None:
        self._ended = ended

    @property
    def is_looking_up(self) -> bool:
        """Whether there are rows that cannot be taken yet."""
        return bool(self._pending or self._in_lookup)

    @property
    def waiting(self) -> int:
        return sum(map(len, self._pending)) + len(self._in_lookup)

    def open(self) -> None:
        """Begin to look up."""
        self._is_open = True
        self._start()

    async def close(self) -> None:
        """Look nothing up any more."""
        self._is_open = False
        if self._task is not None:
            await end_tasks([self._task])

    def feed(self, batch: Iterable[InputElement]) -> None:
        self._pending.append(deque(batch))
        self._start()

    def put(self, element: StreamElement) -> None:
        if not self._pending:
            self._pending.append(deque())
        self._pending[-1].append(element)
        self._start()

    def restore(self, elements: Iterable[InputElement]) -> None:
        self._pending.appendleft(deque(elements))
        self._start()

    def values(self) -> list[StreamElement]:
        pending = [element for part in self._pending for element in part]
        return plain([*super().values(), *self._in_lookup, *pending])

    def _go_on(self) -> None:
        """The last part that was looked up is being taken."""
        if self._pending:
            self._start()
        elif not self._ended and not self._in_lookup:
            self._request_more()

    def _start(self) -> None:
        if self._is_open and self._task is None and self._pending and not self._batches:
            self._task = self._loop.create_task(self._look_up(), context=self._context)

    async def _look_up(self) -> None:
        try:
            await self._look_up_part()
            self._task = None  # whoever looks at what has arrived may begin the next
            self._arrived()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # nobody waits for this task
            self._fail(error)

    async def _look_up_part(self) -> None:
        # What came in the same turn of the loop is looked up together.
        part = self._pending[0]
        self._in_lookup = [part.popleft() for _ in range(min(len(part), self._lookup.rows_at_once))]
        if not part:
            self._pending.popleft()
        self._looking()
        elements = await self._lookup.look_up(self._in_lookup)
        self._looked(one.key for one in elements if type(one) is KeyedRecord and one.key and one.found is None)
        self._in_lookup = []
        super().feed(elements)
