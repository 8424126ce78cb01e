"""The store of one function in one task: lookups and writes, with time limits, whatever the store does."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from .._calls.resources import opening
from .._errors.exceptions import AsyncUDFError
from .._errors.http import status_of
from .._errors.records import Redact, error_message
from .._metrics.counters import TaskCounters
from .._policies.options import OnStoreError, Options
from .._stores.base import ResultStore
from .._stores.keys import ResultKeys
from .._stores.leases import Leases
from .._stores.values import StoredFailure
from .._text.safe import safe_str, type_name

__all__ = ("KEYS_AT_ONCE", "Found", "StoreOperator", "StoreWriter", "StoredResults", "replayed")


KEYS_AT_ONCE = 500  # between two such steps others have their turn on the loop
ROWS_AT_ONCE = 10_000  # at most, that are looked up together
BYTES_AT_ONCE = 16 * 2**20  # about so many of results
UNSEEN_ROWS = 1_000  # that are looked up together while no result's size is known
FEW_ROWS = 100  # that are looked up together after a lookup that has failed; twice as many after each that has not
STORE_CLOSE_LIMIT = 10.0  # seconds
REST = 5.0  # seconds for which a store that has failed is left alone
WRITTEN_TOGETHER = 100  # results
LINGER = 0.05  # seconds that a result waits for company

_ANSWERS = frozenset((bytes, type(None)))
Found = list[Any] | StoredFailure | None

logger = logging.getLogger("asyncudf")


class StoreOperator(Protocol):
    """The operator whose results are stored.

    Attributes:
        name: of its function.
        counters: of its calls; their clock is the operator's.
    """

    name: str
    loop: asyncio.AbstractEventLoop
    counters: TaskCounters

    @property
    def has_finished(self) -> bool:
        """Whether nobody waits for results any more."""

    def look_at_input(self) -> None:
        """Rows can be taken from the input, or the input has ended."""

    def push(self) -> None:
        """Rows are done."""

    def fail(self, error: BaseException) -> None:
        """The task must end with this error."""


class Codec(Protocol):
    """Makes results to bytes, and back."""

    @property
    def expired(self) -> int: ...  # how many were too old
    def kept(self, key: bytes, results: Sequence[Any], /) -> tuple[bytes, list[Any]] | None: ...
    def encode_failure(self, key: bytes, failure: StoredFailure, /) -> bytes: ...
    def decode_many(self, keys: Sequence[bytes], values: Sequence[bytes | None], /) -> list[Found]: ...


class StoredResults:
    """One function's results in its store, for one task.

    What the store raises, or does not do in time, is a warning, the first time, or ends the task, as `on_store_error`
    says. After it the store is left alone for a while, and everything is done without.

    Args:
        store: this task's own, not open yet.
        clock: seconds.
    """

    # Lookups and writes come at the same time. The first lookup opens the store; a write comes after one.
    # A store of the user's runs in asyncio tasks of its own: were a lookup or a write cancelled by it, the rows that
    # wait for that would wait for ever.
    #
    # _must_close: `open` was called, and `close` not since; _is_open: and it has succeeded
    # _is_opening: a lookup is at it, and others go without meanwhile
    # _rests_until: when the store is asked again after it has failed
    # _rows, _bytes: of results that were read or written, beginning with a guess
    # _most: rows that are looked up together at most; fewer after a lookup that took too long

    def __init__(
        self,
        name: str,
        store: ResultStore,
        keys: ResultKeys,
        codec: Codec,
        options: Options,
        clock: Callable[[], float],
    ) -> None:
        self.keys, self.ttl, self.error_ttl = keys, store.ttl, store.error_ttl
        self._name = name
        self._store = store
        self._codec = codec
        self._limit = options.store_timeout
        self._fails_task = options.on_store_error is OnStoreError.FAIL
        self._redact: Redact | None = options.redact
        self._clock = clock
        self._is_open = self._is_opening = self._must_close = False
        self._rests_until = 0.0
        self._warned: set[str] = set()
        self._rows, self._bytes, self._most = UNSEEN_ROWS, BYTES_AT_ONCE, ROWS_AT_ONCE

    @property
    def rows_at_once(self) -> int:
        """How many rows to look up together, so that their results do not fill the memory."""
        return max(1, min(self._most, BYTES_AT_ONCE * self._rows // self._bytes))

    @property
    def leases(self) -> Leases | None:
        """Of keys, among the tasks of a host; None where the store has none."""
        return self._store.leases if self._is_open and self._store.is_built_in else None

    @property
    def close_limit(self) -> float:
        """Seconds within which the last results are written and the store is closed, whatever it does."""
        return 4 * self._limit + 2 * STORE_CLOSE_LIMIT

    async def look_up(self, keys: Sequence[bytes]) -> list[Found]:
        """What is stored under each key, None where there is nothing that can be used.

        Raises:
            AsyncUDFError: the store has failed, and that shall end the task.
        """
        if self._is_opening or not (self._is_open or await self._open()):
            return [None] * len(keys)
        values = await self._asked(partial(self._get, keys), self._limit)
        if values is None:
            self._most = FEW_ROWS  # perhaps it was too much at once
            return [None] * len(keys)
        self._most = min(ROWS_AT_ONCE, 2 * self._most)
        sizes = [len(value) for value in values if value is not None]
        self._rows, self._bytes = self._rows + len(sizes), self._bytes + sum(sizes)
        found: list[Found] = []
        expired = self._codec.expired
        for start in range(0, len(keys), KEYS_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            end = start + KEYS_AT_ONCE
            found += self._codec.decode_many(keys[start:end], values[start:end])
        if damaged := found.count(None) - values.count(None) - (self._codec.expired - expired):
            told = "are damaged or not its own; the function is called in their place"
            self._warn("damaged", f"{damaged} results in the store of {self._name} {told}")
        return found

    async def keep(self, items: Mapping[bytes, bytes], ttl: float | None) -> None:
        """Put values into the store, if it takes them.

        Raises:
            AsyncUDFError: the store has failed, and that shall end the task.
        """
        if self._is_open:
            await self._asked(lambda: self._store.put_many(dict(items), ttl), self._limit)

    def encoded(self, key: bytes, results: Sequence[Any]) -> tuple[bytes, list[Any]] | None:
        """The results of a row as bytes, and as they come back from these; None if they cannot be kept."""
        # They are passed on as they come back: whether a result was stored must not be seen, and a moment, say, has
        # many forms but one in a store.
        kept = self._codec.kept(key, results)
        if kept is None:
            told = "cannot be kept, and are called for each time"
            self._warn("unkept", f"results of {self._name} {told}; the first is of {_types_of(results)}")
            return None
        self._rows += 1
        self._bytes += len(kept[0])
        return kept

    def failure(self, error: BaseException) -> StoredFailure:
        """What is kept of an error."""
        return StoredFailure(type_name(error), error_message(error, self._redact), status_of(error))

    def encoded_failure(self, key: bytes, failure: StoredFailure) -> bytes:
        """The same as bytes."""
        return self._codec.encode_failure(key, failure)

    async def close(self) -> None:
        """Close the store, if it is open."""
        if self._must_close:
            self._is_open = self._must_close = False
            self._rests_until = 0.0
            await self._asked(self._store.close, STORE_CLOSE_LIMIT)

    async def _open(self) -> bool:
        if self._clock() < self._rests_until:
            return False
        self._is_opening = self._must_close = True
        try:
            self._is_open = await self._asked(self._opened, self._limit) is not None
            if not self._is_open:  # what it has of a connection must not pile up
                self._must_close = False
                with contextlib.suppress(AsyncUDFError):
                    await opening(self._store.close, "", self._limit, in_own_task=not self._store.is_built_in)
        finally:
            self._is_opening = False
        return self._is_open

    async def _opened(self) -> bool:
        await self._store.open()
        return True

    async def _get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values = await self._store.get_many([*keys])
        if not isinstance(values, (list, tuple)) or len(values) != len(keys):
            told = f"{len(values)} values" if isinstance(values, (list, tuple)) else f"an object of {type_name(values)}"
            raise AsyncUDFError(f"get_many must give a list of {len(keys)} values, not {told}")
        if _ANSWERS.issuperset(map(type, values)):
            return [*values]
        for value in values:
            if not (value is None or isinstance(value, (bytes, bytearray, memoryview))):
                told = "if a client has decoded it, tell it not to (decode_responses=False)"
                raise AsyncUDFError(f"get_many must give bytes or None for each key, not {type_name(value)}; {told}")
        return [None if value is None else bytes(value) for value in values]

    async def _asked(self, step: Callable[[], Awaitable[Any]], limit: float) -> Any:
        """What the store answers; None if it has failed, or is left alone."""
        if self._clock() < self._rests_until:
            return None
        try:
            return await opening(
                step, f"the store of {self._name} cannot be used", limit, in_own_task=not self._store.is_built_in
            )
        except AsyncUDFError as error:
            if self._fails_task:
                raise AsyncUDFError(
                    f"{safe_str(error)}; with on_store_error='call' the job goes on without it"
                ) from error
            self._rests_until = self._clock() + REST
            self._warn("failed", f"{safe_str(error)}; calls go on without it, and it is asked again every {REST:g} s")
            return None

    def _warn(self, kind: str, told: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning("%s", told)


def _types_of(results: Sequence[Any]) -> str:
    return ", ".join(sorted({type_name(result) for result in results})) or "no row"


def replayed(failure: StoredFailure) -> Exception:
    """The error of a row that failed before, of a class of the same name."""
    try:
        kind: type[Exception] = type(failure.type, (Exception,), {"status": failure.status})
    except ValueError:  # no name of a class
        kind = Exception
    return kind(failure.message)


class _Waiting(NamedTuple):
    """A result that is to be written."""

    key: bytes
    value: bytes
    ttl: float | None
    then: Callable[[], None]


class StoreWriter:
    """Writes results to a store, many at a time; their rows are done when the results are there.

    Args:
        is_urgent: whether there is nothing to wait for: no other call is in progress, or none can begin.
    """

    # One batch is under way at a time. What comes meanwhile is the next one, so that a store with a long way to it gets
    # large batches, and a quick one small ones.
    #
    # _task: writes; nobody else does before `close`; _timer: runs while results wait and there is no task

    def __init__(self, operator: StoreOperator, stored: StoredResults, is_urgent: Callable[[], bool]) -> None:
        self._operator = operator
        self._stored = stored
        self._is_urgent = is_urgent
        self._waiting: list[_Waiting] = []
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False
        self._context = contextvars.copy_context()  # without any row's variables

    @property
    def is_writing(self) -> bool:
        """Whether something is not in the store yet."""
        return self._task is not None or bool(self._waiting)

    def put(self, key: bytes, value: bytes, ttl: float | None, then: Callable[[], None]) -> None:
        """Write a value, soon; `then` is called when it is there, or when the store does not take it."""
        self._waiting.append(_Waiting(key, value, ttl, then))
        self._go_on()

    def _go_on(self) -> None:
        if self._task is not None or self._is_closing:
            return
        if len(self._waiting) >= WRITTEN_TOGETHER or self._is_urgent():
            self._start()
        elif self._timer is None:
            self._timer = self._operator.loop.call_later(LINGER, self._start, context=self._context)

    def _start(self) -> None:
        self._stop_timer()
        self._task = self._operator.loop.create_task(self._write(), context=self._context)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _write(self) -> None:
        try:
            batch, self._waiting = self._waiting[:WRITTEN_TOGETHER], self._waiting[WRITTEN_TOGETHER:]
            await self._keep(batch)
            if self._is_closing or self._operator.has_finished:
                return
            for one in batch:
                one.then()
            self._operator.push()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._operator.fail(error)
        finally:
            self._task = None
        if self._waiting:
            self._go_on()

    async def _keep(self, batch: Sequence[_Waiting]) -> None:
        last = {one.key: one for one in batch}  # of an error and a result that came after it, the result
        for ttl in {one.ttl for one in last.values()}:
            await self._stored.keep({key: one.value for key, one in last.items() if one.ttl == ttl}, ttl)

    def end(self) -> None:
        """Complete no more rows with what is written."""
        self._is_closing = True

    async def close(self) -> None:
        """Write what is left: it was paid for, though nobody waits for its rows any more."""
        self._is_closing = True
        self._stop_timer()
        if self._task is not None:
            await asyncio.wait({self._task})  # has an end: the store has its limit
        left, self._waiting = self._waiting, []
        if left:
            await self._keep(left)
