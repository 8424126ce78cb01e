"""The store of one function in one task: lookups and writes with time limits and errors that are bounded."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import enum
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from ..._errors.exceptions import AsyncUDFError
from ..._errors.failure import Failure
from ..._errors.records import error_message
from ..._errors.safe import safe_str, type_name
from ..._functions.options import OnStoreError, Options
from ..._stores.base import Leases, ResultStore
from ..._stores.keys import ResultKeys
from ..._stores.values import Decoded, ResultCodec, SingleResults, StoredFailure
from ..calls.resources import bounded
from ..calls.slots import HostOperator

KEYS_AT_ONCE = 500  # between two such steps the event loop gets its turn
DECODED_AT_ONCE = 2**20  # about so many bytes of results: they are copied to be decoded together
ROWS_AT_ONCE = 10_000  # at most, that are looked up together
BYTES_AT_ONCE = 16 * 2**20  # about so many of results
UNSEEN_ROWS = 1_000  # that are looked up together while no result's size is known
FEW_ROWS = 100  # that are looked up together after a lookup that has failed; twice as many after each that has not
STORE_CLOSE_LIMIT = 10.0  # seconds
STORE_REST = 5.0  # seconds for which a store that has failed is not asked
WRITTEN_AT_ONCE = 100  # results that are enough to begin with
WRITTEN_TOGETHER = 1_000  # at most, and of `BYTES_AT_ONCE`: what came while others were written
WRITE_LINGER = 0.05  # seconds that a result waits for others

_ANSWERS = frozenset((bytes, type(None)))
_FAILED = object()  # in place of an answer
Found = list[Any] | StoredFailure | None

logger = logging.getLogger("asyncudf")


@contextlib.contextmanager
def failing(operator: HostOperator) -> Iterator[None]:
    """A block of a task that no code awaits: an error ends the operator."""
    try:
        yield
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        operator.fail(error)


class _State(enum.Enum):
    CLOSED = 0
    OPENING = 1  # `open` was called; if it was cut short, `close` is still to be called
    OPEN = 2


class StoredResults:
    """One function's results in its store, for one task.

    When the store raises or is late, there is a warning, the first time, or the task ends, as `on_store_error` says.
    Then the store is not asked for a while, and rows are called as if there were none.
    """

    # Lookups and writes come at the same time. The first lookup opens the store; a write comes after a lookup.
    # A store of the user's runs in asyncio tasks of its own: if it cancelled a lookup or a write of ours, the rows that
    # wait for it would wait for ever.

    def __init__(
        self,
        name: str,
        store: ResultStore,
        keys: ResultKeys,
        codec: ResultCodec,
        options: Options,
        clock: Callable[[], float],
        *,
        are_plain: bool = False,
    ) -> None:
        self.keys, self.ttl, self.error_ttl = keys, store.ttl, store.error_ttl
        self._name = name
        self._store = store
        self._codec = codec
        self._are_plain = are_plain  # arguments come from columns that say so by their types, and need no look at each
        self._limit = options.store_timeout
        self._fails_task = options.on_store_error is OnStoreError.FAIL
        self._redacted = options.redacted
        self._clock = clock
        self._state = _State.CLOSED  # while a lookup opens the store, other lookups find nothing
        self.leases: Leases | None = None  # of keys, among the tasks of a host; None as long as the store is not open
        self._rests_until = 0.0  # when the store is asked again after it has failed
        self._warned: set[str] = set()
        # Number and size of results that were read or written, beginning with a guess.
        self._rows, self._bytes = UNSEEN_ROWS, BYTES_AT_ONCE
        self._most = ROWS_AT_ONCE  # that are looked up together; fewer after a lookup that took too long

    @property
    def rows_at_once(self) -> int:
        """How many rows to look up together, so that their results do not fill the memory."""
        return max(1, min(self._most, BYTES_AT_ONCE * self._rows // self._bytes))

    @property
    def close_limit(self) -> float:
        """Seconds within which the last results are written and the store is closed."""
        return 4 * self._limit + 2 * STORE_CLOSE_LIMIT

    def keys_of(self, rows: Sequence[Any]) -> list[bytes]:
        """The key of each row; raises if no key can be made of a row."""
        return self.keys.of_many(rows, are_plain=self._are_plain)

    async def look_up(self, keys: Sequence[bytes]) -> Decoded:
        """The stored results or error of each key; None without one. Raises as `on_store_error` says."""
        if self._state is _State.CLOSED:
            await self._open()
        if self._state is not _State.OPEN:
            return [None] * len(keys)
        values = await self._asked(partial(self._get, keys), self._limit)
        if values is _FAILED:
            self._most = FEW_ROWS  # perhaps it was too much at once
            return [None] * len(keys)
        self._most = min(ROWS_AT_ONCE, 2 * self._most)
        try:
            missing, size = 0, sum(map(len, values))
        except TypeError:  # there is None
            missing, size = values.count(None), sum(map(len, filter(None, values)))
        self._rows, self._bytes = self._rows + len(values) - missing, self._bytes + size
        at_once = max(1, min(KEYS_AT_ONCE, DECODED_AT_ONCE * len(values) // max(1, size)))
        parts: list[Decoded] = []
        before = self._codec.damaged
        for start in range(0, len(keys), at_once):
            if start:
                await asyncio.sleep(0)
            end = start + at_once
            parts.append(self._codec.decode_many(keys[start:end], values[start:end]))
        if damaged := self._codec.damaged - before:
            what = "are damaged or not its own; the function is called in their place"
            self._warn("damaged", f"{damaged} results in the store of {self._name} {what}")
        singles = [part.results for part in parts if isinstance(part, SingleResults)]
        if len(singles) == len(parts):
            return SingleResults([*chain.from_iterable(singles)])
        return [*chain.from_iterable(parts)]

    async def keep(self, items: Mapping[bytes, bytes], ttl: float | None) -> None:
        """Put values into the store, if it works; raises as `on_store_error` says."""
        if self._state is _State.OPEN:
            await self._asked(lambda: self._store.put_many(dict(items), ttl), self._limit)

    def encoded(self, key: bytes, results: Sequence[Any]) -> tuple[bytes, list[Any]] | None:
        """The results of a row as bytes, and as they are read from these bytes; None if they cannot be kept."""
        # The row gets them as they are read: a stored result must not differ from a fresh one, and a timestamp, for
        # example, has many forms but one in a store.
        kept = self._codec.kept(key, results)
        if kept is None:
            what = "cannot be kept, and are called for each time"
            self._warn("unkept", f"results of {self._name} {what}; the first is of {_types_of(results)}")
            return None
        self._rows += 1
        self._bytes += len(kept[0])
        return kept

    def encoded_failure(self, key: bytes, failure: Failure) -> tuple[bytes, StoredFailure]:
        """A failure as bytes, and as it is kept."""
        error, status = failure.error, failure.answer.status
        message, redacted = error_message(error, redacted=self._redacted), error_message(error, redacted=True)
        kept = StoredFailure(type_name(error), message, status, None if redacted == message else redacted)
        return self._codec.encode_failure(key, kept), kept

    def replayed(self, failure: StoredFailure) -> Exception:
        """The error of a row that failed before, of a class of the same name."""
        try:
            kind: type[Exception] = type(failure.type, (Exception,), {"status": failure.status})
        except ValueError:  # no name of a class
            kind = Exception
        return kind(failure.redacted or failure.message if self._redacted else failure.message)

    async def close(self) -> None:
        """Close the store, if it is open."""
        if self._state is not _State.CLOSED:
            self._state = _State.CLOSED
            self.leases = None
            self._rests_until = 0.0
            await self._asked(self._store.close, STORE_CLOSE_LIMIT)

    async def _open(self) -> None:
        if self._clock() < self._rests_until:
            return
        self._state = _State.OPENING
        if await self._asked(self._store.open, self._limit) is not _FAILED:
            self._state = _State.OPEN
            self.leases = self._store.leases if self._store.is_built_in else None
            return
        with contextlib.suppress(AsyncUDFError):  # what it has of a connection must not pile up
            await self._bounded(self._store.close, self._limit)
        self._state = _State.CLOSED

    async def _get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values = await self._store.get_many([*keys])
        if self._store.is_built_in:
            return values
        if not isinstance(values, (list, tuple)) or len(values) != len(keys):
            given = (
                f"{len(values)} values" if isinstance(values, (list, tuple)) else f"an object of {type_name(values)}"
            )
            raise AsyncUDFError(f"get_many must give a list of {len(keys)} values, not {given}")
        if _ANSWERS.issuperset(map(type, values)):
            return [*values]
        for value in values:
            if not (value is None or isinstance(value, (bytes, bytearray, memoryview))):
                hint = "if a client has decoded it, tell it not to (decode_responses=False)"
                raise AsyncUDFError(f"get_many must give bytes or None for each key, not {type_name(value)}; {hint}")
        return [None if value is None else bytes(value) for value in values]

    async def _asked(self, step: Callable[[], Awaitable[Any]], limit: float) -> Any:
        """The answer of the store; `_FAILED` if it has failed, now or a short time ago."""
        if self._clock() < self._rests_until:
            return _FAILED
        try:
            return await self._bounded(step, limit)
        except AsyncUDFError as error:
            if self._fails_task:
                raise AsyncUDFError(
                    f"{safe_str(error)}; with on_store_error='call' the job goes on without it"
                ) from error
            self._rests_until = self._clock() + STORE_REST
            self._warn(
                "failed", f"{safe_str(error)}; calls go on without it, and it is asked again every {STORE_REST:g} s"
            )
            return _FAILED

    async def _bounded(self, step: Callable[[], Awaitable[Any]], limit: float) -> Any:
        failure = f"the store of {self._name} cannot be used"
        return await bounded(step, failure, limit, in_own_task=not self._store.is_built_in)

    def _warn(self, kind: str, message: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            logger.warning("%s", message)


def _types_of(results: Sequence[Any]) -> str:
    return ", ".join(sorted({type_name(result) for result in results})) or "no row"


# A value that is to be written: its key, the value, its ttl, and what is called then.
_Waiting = tuple[bytes, bytes, float | None, Callable[[], None]]


class StoreWriter:
    """Writes results to a store, many at a time; their rows are done when the results are there.

    `is_urgent`: there is nothing to wait for, as no other call is in progress, or none can begin.
    """

    # One write at a time. Results that come meanwhile are the next one, so that a slow store gets large writes, and a
    # quick one small ones.

    def __init__(self, operator: HostOperator, stored: StoredResults, is_urgent: Callable[[], bool]) -> None:
        self._operator = operator
        self._stored = stored
        self._is_urgent = is_urgent
        self._waiting: list[_Waiting] = []
        self._timer: asyncio.TimerHandle | None = None  # runs while results wait and there is no task
        self._task: asyncio.Task[None] | None = None  # writes, alone until `close`
        self._is_closing = False
        self._context = contextvars.copy_context()  # without any row's variables

    @property
    def is_writing(self) -> bool:
        """Whether a result is not in the store yet."""
        return self._task is not None or bool(self._waiting)

    def put(self, key: bytes, value: bytes, ttl: float | None, then: Callable[[], None]) -> None:
        """Write a value soon; `then` is called when it is written, or when the store has failed."""
        self._waiting.append((key, value, ttl, then))
        self._go_on()

    def _go_on(self) -> None:
        if self._task is not None or self._is_closing:
            return
        if len(self._waiting) >= WRITTEN_AT_ONCE or self._is_urgent():
            self._start()
        elif self._timer is None:
            self._timer = self._operator.loop.call_later(WRITE_LINGER, self._start, context=self._context)

    def _start(self) -> None:
        self._stop_timer()
        self._task = self._operator.loop.create_task(self._write(), context=self._context)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _write(self) -> None:
        try:
            with failing(self._operator):
                taken = self._take()
                await self._keep(taken)
                if self._is_closing or self._operator.has_finished:
                    return
                for *_, then in taken:
                    then()
                self._operator.pump()
        finally:
            self._task = None
        if self._waiting:
            self._go_on()

    def _take(self) -> list[_Waiting]:
        taken, size = self._waiting[:WRITTEN_TOGETHER], 0
        for count, (_, value, _, _) in enumerate(taken, 1):
            size += len(value)
            if size >= BYTES_AT_ONCE:
                del taken[count:]
                break
        del self._waiting[: len(taken)]
        return taken

    async def _keep(self, taken: Sequence[_Waiting]) -> None:
        last = {key: (value, ttl) for key, value, ttl, _ in taken}  # of an error and a later result, the result
        for ttl in {ttl for _, ttl in last.values()}:
            await self._stored.keep({key: value for key, (value, its) in last.items() if its == ttl}, ttl)

    def end(self) -> None:
        """Call no more `then`: the operator has ended."""
        self._is_closing = True

    async def close(self) -> None:
        """Write the results that are left: they were paid for, though their rows are given up."""
        self._is_closing = True
        self._stop_timer()
        if self._task is not None:
            await asyncio.wait({self._task})  # has an end: the store has its limit
        left, self._waiting = self._waiting, []
        if left:
            await self._keep(left)
