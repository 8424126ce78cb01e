"""Bounds the rows in a queue by the memory that they hold, unless their number is given."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from asyncudf.queues import StreamElementQueue

PLACE_BYTES = 384  # of a row in a queue: its entry, its record, and the tuples of its arguments, origin and results
CALL_BYTES = 900  # of a row whose call waits for its next attempt, or for that of an equal row: the call, its timer
NEWEST_BATCHES = 2  # input batches: one from which rows are taken, one that is read ahead


@dataclasses.dataclass(frozen=True)
class RowSizes:
    """How many bytes a row holds in a queue, without its input batch; None: no more than `place` says."""

    place: int = PLACE_BYTES  # the same for all rows
    row: Callable[[Any], int] | None = None  # of what operators before have made, for a record
    result: Callable[[Any], int] | None = None


class BatchToken:
    """Lives as long as any row of its batch: for rows that do not refer to the batch itself."""

    __slots__ = ("__weakref__", "grow")
    grow: Callable[[int], None]  # called with the bytes that the batch has more than at first


@dataclasses.dataclass(frozen=True)
class InputBatch:
    """The elements of an input batch, and their bytes; the origin of each element refers to the token."""

    elements: Iterable[Any]
    token: Any
    size: int

    def __iter__(self) -> Iterator[Any]:
        return iter(self.elements)


class TaskBatches:
    """The batches that a task holds: input batches that rows keep alive, and output that Spark has not taken."""

    # A row leads to its whole batch, and a batch lives as long as one of its rows, in whatever operator. Behind a
    # filter, and where rows leave as they are done, few rows keep many batches. So not the rows are counted but the
    # batches, until Python frees them: this is exact, and costs nothing for a row. The garbage collector may free one
    # in any thread, so the loop is told.
    #
    # Rows that have left are in the output until Spark's thread comes back for the next batch. It may be away for long,
    # while calls go on for the batches that were fed.

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.bytes = 0  # of all these batches; the two newest of the input are free
        self.emitted = 0  # bytes of the output alone
        self._emitted: deque[int] = deque()  # bytes of the output batches, in the order in which Spark takes them
        self._loop = loop
        self._sizes: dict[weakref.ref[Any], int] = {}  # of the input batches that live, in the order in which they came
        self._total = 0  # the sum of these
        self._changed: list[Callable[[], None]] = []
        self._freed: list[Callable[[], None]] = []
        self._context = contextvars.copy_context()  # without any row's variables

    def watch(self, changed: Callable[[], None], freed: Callable[[], None]) -> None:
        """Have `changed` called whenever `bytes` has changed, and then `freed` if there are fewer."""
        self._changed.append(changed)
        self._freed.append(freed)

    def add(self, batch: InputBatch) -> None:
        token = weakref.ref(batch.token, self._is_freed)
        batch.token.grow = partial(self._grow, token)
        self._grow(token, batch.size)

    def emit(self, size: int) -> None:
        """An output batch of so many bytes is on its way to Spark."""
        self._emitted.append(size)
        self.emitted += size
        self._count()

    def taken(self) -> None:
        """Spark has taken the oldest output batch."""
        self.emitted -= self._emitted.popleft()
        self._shrink()

    def _grow(self, token: weakref.ref[Any], size: int) -> None:
        self._sizes[token] = self._sizes.get(token, 0) + size
        self._total += size
        self._count()

    def _is_freed(self, token: weakref.ref[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._forget, token, context=self._context)

    def _forget(self, token: weakref.ref[Any]) -> None:
        self._total -= self._sizes.pop(token)
        self._shrink()

    def _shrink(self) -> None:
        self._count()
        for freed in self._freed:
            freed()

    def _count(self) -> None:
        self.bytes = self._total - sum(islice(reversed(self._sizes.values()), NEWEST_BATCHES)) + self.emitted
        for changed in self._changed:
            changed()


class QueueMemory:
    """Lets as many rows into a queue as fit into so many bytes; `least` rows may always be inside, however large."""

    # The size of a result is not known before its call ends. So the bound does not hold back results, it lets no new
    # rows in: those of calls in progress come on top. And it never lets in fewer rows than the calls need, or large
    # rows would leave slots without a call, and a batch without its rows. But it lets in none while results of so many
    # bytes wait for Spark: each row that leaves would make a place for the next one.
    #
    # Rows whose call waits may be many times as many as calls in progress, and all get results at about the same time:
    # when a service is back, or the call of all equal rows is over. So each counts with the mean size of a result.
    #
    # bytes: rows in the queue * their place, _held_bytes, and the batches
    # queue.most follows _held_bytes and the batches at once, so that asking for places costs nothing

    def __init__(
        self, queue: StreamElementQueue, limit: int, least: int, sizes: RowSizes, batches: TaskBatches
    ) -> None:
        self._queue = queue
        self._limit = limit
        self._least = min(least, queue.capacity)
        self._place, self._size_of_row, self._size_of_result = sizes.place, sizes.row, sizes.result
        self._batches = batches
        self._held_bytes = 0  # what entries hold beside their places, and calls that wait
        self._of_calls = 0  # the latter alone
        self._results = 0  # bytes of results that were weighed so far
        self._rows = 0  # of how many rows these are
        self.peak = 0
        if sizes.row is not None or sizes.result is not None:
            queue.memory = self
        self.update()

    @property
    def bytes(self) -> int:
        return len(self._queue) * self._place + self._held_bytes + self._batches.bytes

    @property
    def waits_for_spark(self) -> bool:
        """Whether no row is let in because of results that Spark has not taken."""
        return self._batches.emitted >= self._limit

    def look(self) -> None:
        self.peak = max(self.peak, self.bytes)

    def update(self) -> None:
        rows = (self._limit - self._held_bytes - self._batches.bytes) // self._place
        self._queue.most = 0 if self.waits_for_spark else max(self._least, min(rows, self._queue.capacity))

    def hold_row(self, record: Any) -> int:
        return 0 if self._size_of_row is None else self._hold(self._size_of_row(record))

    def note_result(self, result: Any) -> None:
        """Learn from the result of a row that leaves at once."""
        if self._size_of_result is not None:
            self.note_results(self._size_of_result(result), 1)

    def note_results(self, size: int, rows: int) -> None:
        """Learn from the results of so many rows that have left, which have so many bytes in all."""
        self._results += size
        self._rows += rows

    def hold_results(self, results: Sequence[Any]) -> int:
        if self._size_of_result is None:
            return 0
        held = self._hold(sum(map(self._size_of_result, results)))
        self._results += held
        self._rows += 1
        self.look()
        return held

    def hold_calls(self, count: int) -> None:
        """So many calls wait now."""
        held = count * (CALL_BYTES + self._results // max(1, self._rows))
        self._of_calls += self._hold(held - self._of_calls)

    def release(self, held: int) -> None:
        self._hold(-held)

    def _hold(self, more: int) -> int:
        self._held_bytes += more
        self.update()
        return more
