"""Rows are looked up in the store ahead of their calls, many at a time.

A row then has its result, or the key of its result.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import itemgetter
from typing import Any, Protocol

from ..._stores.values import Decoded, SingleResults
from ..calls.slots import HostOperator
from ..loop.event_loops import end_tasks
from .coalescing import LandedResults
from .elements import ROWS, AnsweredRows, Inlet, LookedUpRow, Rows, RowsAsColumns
from .stored_results import KEYS_AT_ONCE, StoredResults, failing

Key = bytes | BaseException

_KINDS_OF_ROWS = frozenset(ROWS)
_NOTHING = {type(None)}  # the classes of what was found
_first: Callable[[Any], Any] = itemgetter(0)


class LookedUpInput(Inlet, Protocol):
    """Takes what was looked up."""

    may_have_more: bool  # False when everything was taken out of it

    @property
    def has_batches(self) -> bool:  # whether there is a batch behind that from which elements are taken
        ...

    def request_from(self, request_rows: Callable[[], None], /) -> None: ...


@dataclasses.dataclass(eq=False, repr=False)
class LookupAhead:
    """An inlet that looks up the next rows while the rows before them are taken.

    `landed` notes which rows wait to be taken. The buffer gets the rows that were looked up, and asks for more by
    `go_on`; `request_rows` asks outside.
    """

    # Elements pass through three places: _pending, _in_lookup, and the buffer. At most one part that was looked up is
    # ready behind the part that rows are taken from, as results wait in memory there. The buffer asks for more when it
    # starts on its last part: then the next part is looked up, and only when there is none a batch is asked for.

    operator: HostOperator
    stored: StoredResults
    landed: LandedResults[Any]
    buffer: LookedUpInput
    request_rows: Callable[[], None]
    is_single: bool = dataclasses.field(kw_only=True)
    _pending: deque[Rows] = dataclasses.field(default_factory=deque, init=False)
    _in_lookup: Rows = dataclasses.field(default_factory=list, init=False)
    _is_open = False
    _ended = False  # nothing more is fed; the buffer ends when everything has been looked up
    # One lookup at a time, so that parts stay in order; None before `open` and while there is nothing to do.
    _task: asyncio.Task[None] | None = dataclasses.field(default=None, init=False)
    _context: contextvars.Context = dataclasses.field(default_factory=contextvars.copy_context, init=False)

    @property
    def is_looking_up(self) -> bool:
        """Whether there are rows that cannot be taken yet."""
        return bool(self._pending or self._in_lookup)

    @property
    def is_behind(self) -> bool:
        """Whether there are only such rows."""
        return self.is_looking_up and not self.buffer.may_have_more

    @property
    def waiting(self) -> int:
        return sum(map(len, self._pending)) + len(self._in_lookup)

    def open(self) -> None:
        self._is_open = True
        self._start()

    async def close(self) -> None:
        self._is_open = False
        if self._task is not None:
            await end_tasks([self._task])

    def feed(self, batch: Iterable[Any]) -> None:
        self._pending.append(batch if isinstance(batch, RowsAsColumns) else [*batch])
        self._start()

    def put(self, element: Any) -> None:
        last = self._pending[-1] if self._pending else None
        if isinstance(last, list):
            last.append(element)
        else:
            self._pending.append([element])
        self._start()

    def restore(self, elements: Iterable[Any]) -> None:
        self._pending.appendleft([*elements])
        self._start()

    def end(self) -> None:
        self._ended = True
        self._end_buffer()

    def values(self) -> list[Any]:
        return [*self.buffer.values(), *self._in_lookup, *(element for part in self._pending for element in part)]

    def go_on(self) -> None:
        """Elements are taken from the last part that was looked up."""
        if self._pending:
            self._start()
        elif not self._ended and not self._in_lookup:
            self.request_rows()

    def _start(self) -> None:
        if self._is_open and self._task is None and self._pending and not self.buffer.has_batches:
            self._task = self.operator.loop.create_task(self._look_up(), context=self._context)

    async def _look_up(self) -> None:
        with failing(self.operator):
            await self._look_up_part()
            self._task = None  # the next lookup may begin when the rows are taken
            self.operator.pump()

    async def _look_up_part(self) -> None:
        # What came in the same turn of the loop is looked up together.
        part, most = self._pending[0], self.stored.rows_at_once
        if len(part) <= most:
            self._in_lookup = self._pending.popleft()
        else:
            self._in_lookup = part[:most]
            del part[:most]
        self.landed.looking()
        elements = await self._looked_up(self._in_lookup)
        self.landed.looked([one.key for one in elements if type(one) is LookedUpRow and one.key and one.found is None])
        self._in_lookup = []
        self.buffer.feed(elements)
        self._end_buffer()

    def _end_buffer(self) -> None:
        if self._ended and not self.is_looking_up:
            self.buffer.end()

    async def _looked_up(self, elements: Rows) -> list[Any]:
        """The elements in their order, rows with a result as `AnsweredRows`, other rows as `LookedUpRow`."""
        only_rows = isinstance(elements, RowsAsColumns) or _KINDS_OF_ROWS.issuperset(map(type, elements))
        rows = elements if only_rows else [element for element in elements if type(element) in ROWS]
        keys, are_good = await self._keys(rows)
        found, now = await self._found(keys, are_good=are_good), self.operator.counters.clock()
        if only_rows:  # the usual cases, at less cost
            if self.is_single and isinstance(found, SingleResults):
                return [AnsweredRows(rows, found.results)]
            if {*map(type, found)} == _NOTHING:
                return [*map(LookedUpRow.of, rows, keys, found, repeat(now))]
        answers = zip(keys, found, strict=True)
        arranged: list[Any] = []
        rows, results = [], []
        for element in elements:
            is_row = type(element) in ROWS
            key, answer = next(answers) if is_row else (b"", None)
            if is_row and self.is_single and type(answer) is list:
                rows.append(element)
                results.append(answer[0])
                continue
            if rows:
                arranged.append(AnsweredRows(rows, results))
                rows, results = [], []
            arranged.append(LookedUpRow.of(element, key, answer, now) if is_row else element)
        if rows:
            arranged.append(AnsweredRows(rows, results))
        return arranged

    async def _keys(self, rows: Rows) -> tuple[list[Key], bool]:
        """The key of each row, or the error of a row that no key can be made of; and whether there is no error."""
        keys: list[Key] = []
        are_good = True
        arguments = rows.arguments if isinstance(rows, RowsAsColumns) else [*map(_first, rows)]
        for start in range(0, len(rows), KEYS_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            some = arguments[start : start + KEYS_AT_ONCE]
            try:
                keys += self.stored.keys_of(some)
            except BaseException:  # of a value, or of the user's `key=`: row by row it is found whose it is
                keys += [self._key(one) for one in some]
                are_good = False
        return keys, are_good

    def _key(self, arguments: Any) -> Key:
        try:
            return self.stored.keys.of(arguments)
        except BaseException as error:
            return error

    async def _found(self, keys: Sequence[Any], *, are_good: bool) -> Decoded:
        """What the store has under each key; None for an error in the place of one."""
        good = keys if are_good else [key for key in keys if type(key) is bytes]
        found: Decoded = await self.stored.look_up(good) if good else []
        if are_good:
            return found
        in_order = iter(found)
        return [next(in_order) if type(key) is bytes else None for key in keys]
