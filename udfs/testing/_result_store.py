"""check_result_store: the contract of result stores, as a suite for the library's stores and a user's own.

MemoryStore is one in the memory of a process, whose time passes by `advance` alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import math
import pickle
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from asyncudf.queues._public import public

from .._errors.exceptions import OptionError
from .._errors.records import error_text
from .._stores.base import Key, ResultStore
from .._stores.keys import KEY_BYTES
from ._loops import run_apart

_stays_here: ContextVar[bool] = ContextVar("asyncudf_stays_here", default=False)


@contextlib.contextmanager
def staying_here() -> Iterator[None]:
    """A block whose plans stay in this process, so that their objects need not pickle."""
    token = _stays_here.set(True)
    try:
        yield
    finally:
        _stays_here.reset(token)


@public("asyncudf.testing")
class MemoryStore(ResultStore):
    """A store for tests without Spark: its copies, one for each task, share what is in it.

    Results age by `advance` alone.

    >>> import asyncio
    >>> store = MemoryStore(ttl=60)
    >>> asyncio.run(store.put_many({b"key": b"value"}, store.ttl))
    >>> store.advance(60)
    >>> asyncio.run(store.get_many([b"key"]))
    [None]
    """

    is_built_in: bool = True

    # _entries: of each key its value, and when it ends by the shared clock
    # _shared: the clock, hits and misses; copies have the same objects

    def __init__(self, ttl: float | None = None, error_ttl: float | None = None, key: Key | None = None) -> None:
        self.ttl: float | None = ttl
        self.error_ttl: float | None = error_ttl
        self.key: Key | None = key
        self._entries: dict[bytes, tuple[bytes, float]] = {}
        self._shared: dict[str, float] = {"now": 0.0, "hits": 0, "misses": 0}

    def __reduce__(self) -> tuple[Any, ...]:
        if _stays_here.get():
            return MemoryStore, ()
        raise OptionError("a MemoryStore does not travel to Spark's workers; use ResultStore.executor()")

    def __copy__(self) -> MemoryStore:
        twin = object.__new__(type(self))  # a subclass too, with what it has added
        twin.__dict__.update(self.__dict__)
        return twin

    def advance(self, seconds: float) -> None:
        """Let time pass for what is in the store."""
        self._shared["now"] += seconds

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        now = self._shared["now"]
        found = [value if end > now else None for value, end in (self._entries.get(key, _NOTHING) for key in keys)]
        misses = found.count(None)
        self._shared["hits"] += len(found) - misses
        self._shared["misses"] += misses
        return found

    async def put_many(self, items: Mapping[bytes, bytes], ttl: float | None) -> None:
        end = math.inf if ttl is None else self._shared["now"] + ttl
        self._entries.update({key: (value, end) for key, value in items.items()})

    async def info(self) -> dict[str, int]:
        there = [value for value, end in self._entries.values() if end > self._shared["now"]]
        counts = {name: int(self._shared[name]) for name in ("hits", "misses")}
        return {"entries": len(there), "bytes": sum(map(len, there)), **counts}

    async def delete(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._entries.pop(key, None)

    async def clear(self) -> None:
        self._entries.clear()


_NOTHING: tuple[Any, float] = (None, -math.inf)


SHORT_TTL = 0.2  # seconds: the ttl of values that end during a test
DONE_WITHIN = 10.0  # seconds for each operation of a store

Factory = Callable[[], ResultStore]
Wait = Callable[[float], Awaitable[Any]]
Promise = Callable[[ResultStore, Factory, Wait], Coroutine[Any, Any, None]]


@public("asyncudf.testing")
def check_result_store(factory: Factory, *, travels: bool = True, wait: Wait | None = None) -> None:
    """Check that a store keeps the promises of `ResultStore`; also in a notebook.

    Args:
        factory: makes a store. All its stores lead to the same place, which only this test uses.
        travels: whether stores can be pickled, as Spark needs it.
        wait: lets seconds pass; `asyncio.sleep` unless your store has a clock of its own.

    Raises:
        AssertionError: the store breaks a promise, or raises; the message says which promise.

    >>> import copy
    >>> from asyncudf.testing import MemoryStore
    >>> store = MemoryStore()
    >>> async def wait(seconds: float) -> None:
    ...     store.advance(seconds)
    >>> check_result_store(lambda: copy.copy(store), travels=False, wait=wait)
    """
    for promise in (*_PROMISES, *([_travels] if travels else [])):
        run_apart(asyncio.new_event_loop(), _check(promise, factory, wait or asyncio.sleep), 1)


async def _check(promise: Promise, factory: Factory, wait: Wait) -> None:
    store = factory()
    assert isinstance(store, ResultStore), f"the factory made a {type(store).__name__}, which is no ResultStore"
    async with _naming("A store can be opened."):
        await asyncio.wait_for(store.open(), DONE_WITHIN)
    try:
        async with _naming(promise.__doc__ or ""):
            await promise(store, factory, wait)
    finally:
        async with _naming("A store can be closed, by another asyncio task than has opened it."):
            await asyncio.create_task(asyncio.wait_for(store.close(), DONE_WITHIN))


@contextlib.asynccontextmanager
async def _naming(promise: str) -> AsyncIterator[None]:
    """A block in which any error breaks the promise, and names it."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{promise.strip()} {error}") from error
    except TimeoutError as error:
        raise AssertionError(f"{promise.strip()} {error_text(error)}: not done within {DONE_WITHIN:g} s") from error
    except Exception as error:
        raise AssertionError(f"{promise.strip()} {error_text(error)}") from error


def _key(number: int) -> bytes:
    """Keys of all shapes: of zeros, of the characters of patterns and texts, of any byte."""
    odd = (b"\0" * KEY_BYTES, b"\xff" * KEY_BYTES, b"*?[a-z]\\:%{}\n\r\0 ", bytes(range(240, 256)))
    return odd[number] if number < len(odd) else number.to_bytes(KEY_BYTES, "big")


async def _get(store: ResultStore, *keys: bytes) -> list[bytes | None]:
    """The values of the keys, checked for their form."""
    asked = list(keys)
    values = await asyncio.wait_for(store.get_many(asked), DONE_WITHIN)
    assert asked == list(keys), "get_many has edited the list of keys"
    assert isinstance(values, list), f"get_many gave a {type(values).__name__}, not a list"
    assert len(values) == len(keys), f"get_many gave {len(values)} values for {len(keys)} keys"
    for value in values:
        assert value is None or type(value) is bytes, f"get_many gave a {type(value).__name__}, not bytes or None"
    return values


async def _put(store: ResultStore, items: dict[bytes, bytes], ttl: float | None = None) -> None:
    given = dict(items)
    await asyncio.wait_for(store.put_many(given, ttl), DONE_WITHIN)
    assert given == items, "put_many has edited the dict of items"


async def _unknown(store: ResultStore, *_: Any) -> None:
    """A key that was never put has no value; without keys there are no values."""
    assert await _get(store, *(bytes([9]) * KEY_BYTES for _ in range(3))) == [None] * 3
    assert await _get(store) == []
    await _put(store, {})


async def _exact(store: ResultStore, *_: Any) -> None:
    """Each key has exactly the bytes that were put under it, any bytes, in the order of the keys."""
    values = [b"", b"\0", bytes(range(256)), "Zürich".encode(), b"\r\n$-1\r\n", b"x" * 3_000_000, b"None"]
    items = {_key(number): value for number, value in enumerate(values)}
    await _put(store, items)
    found = await _get(store, *items)
    for number, (value, other) in enumerate(zip(values, found, strict=True)):
        assert value == other, f"value {number} of {len(value)} bytes came back changed"
    first, missing, third = _key(0), bytes([8]) * KEY_BYTES, _key(2)
    some = await _get(store, third, missing, first, third)
    assert some == [items[third], None, items[first], items[third]], "keys that miss, or come twice, mix up the others"


async def _whole(store: ResultStore, *_: Any) -> None:
    """Each byte of a key counts."""
    items = {bytes(at == one for at in range(KEY_BYTES)): b"%d" % one for one in range(KEY_BYTES)}
    await _put(store, items)
    assert await _get(store, *items) == [*items.values()], "keys that differ in a byte have the same value"


async def _latest(store: ResultStore, *_: Any) -> None:
    """The value of a key is the one that was put last."""
    await _put(store, {_key(20): b"old", _key(21): b"other"})
    await _put(store, {_key(20): b"new"})
    assert await _get(store, _key(20), _key(21)) == [b"new", b"other"]


async def _shared(store: ResultStore, factory: Factory, *_: Any) -> None:
    """Other tasks find at once what one has put, and so do tasks that open the store later."""
    other = factory()
    await other.open()
    try:
        await _put(store, {_key(30): b"mine"})
        assert await _get(other, _key(30)) == [b"mine"], "another open store does not see it"
        await _put(other, {_key(31): b"theirs"})
        assert await _get(store, _key(31)) == [b"theirs"], "another open store does not see it"
    finally:
        await other.close()
    assert await _get(store, _key(30)) == [b"mine"], "it is gone after another store was closed"
    async with factory() as later:
        assert await _get(later, _key(31)) == [b"theirs"], "it is gone after all stores that have put it were closed"


async def _copied(store: ResultStore, *_: Any) -> None:
    """A copy of a store is opened and closed without the other, and a closed one can be opened again."""
    twin = copy.copy(store)
    for value in (b"first", b"second"):
        await twin.open()
        await _put(twin, {_key(40): value})
        await twin.close()
        assert await _get(store, _key(40)) == [value], "the original store does not see what the copy has put"


async def _travels(store: ResultStore, *_: Any) -> None:
    """A store travels to an executor, also while it is open, and leads to the same place there."""
    await _put(store, {_key(50): b"here"})
    async with pickle.loads(pickle.dumps(store)) as there:
        assert await _get(there, _key(50)) == [b"here"]
    assert await _get(store, _key(50)) == [b"here"], "it is gone after the pickled store was closed"


async def _ends(store: ResultStore, _: Factory, wait: Wait) -> None:
    """A value ends with the ttl of the last put; without a ttl it stays."""
    await _put(store, {_key(63): b"was for ever"})
    await _put(store, {_key(60): b"short", _key(61): b"longer", _key(63): b"short"}, SHORT_TTL)
    await _put(store, {_key(62): b"long"}, 100 * 24 * 3600.0)
    await _put(store, {_key(64): b"longer than most clocks count"}, 1e12)
    await _put(store, {_key(61): b"for ever"})
    await _gone(store, wait, _key(60), _key(63))
    left = await _get(store, _key(61), _key(62), _key(64))
    assert left == [b"for ever", b"long", b"longer than most clocks count"], "others ended with it"


async def _gone(store: ResultStore, wait: Wait, *keys: bytes) -> None:
    """Wait for the end of values that were put for `SHORT_TTL`."""
    end = time.monotonic() + DONE_WITHIN
    await wait(SHORT_TTL)
    while await _get(store, *keys) != [None] * len(keys):
        assert time.monotonic() < end, f"a value with ttl={SHORT_TTL} is still there after {DONE_WITHIN:g} s"
        await wait(SHORT_TTL / 4)


async def _many(store: ResultStore, *_: Any) -> None:
    """Thousands of values can be put and read at once."""
    items = {_key(number): b"%d" % number for number in range(1000, 11_000)}
    await _put(store, items)
    assert await _get(store, *items) == [*items.values()]


async def _concurrent(store: ResultStore, *_: Any) -> None:
    """Reads and writes may run at the same time."""

    async def work(worker: int) -> None:
        for turn in range(10):
            keys = [_key(30_000 + 100 * worker + number) for number in range(20)]
            await _put(store, dict.fromkeys(keys, b"%d" % turn))
            assert await _get(store, *keys) == [b"%d" % turn] * 20

    await asyncio.gather(*map(work, range(10)))


async def _cancelled(store: ResultStore, *_: Any) -> None:
    """After a read or a write was cancelled in its midst, each key still gives its own value."""
    items = {_key(number): b"%d" % number for number in range(20_000, 20_300)}
    await _put(store, items)
    keys = list(items)
    for turn in (*range(8), 12, 20, 40):
        calls: list[Any] = [store.get_many(keys), store.put_many(items, None)]
        tasks = [asyncio.ensure_future(call) for call in calls]
        for _turn in range(turn):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), DONE_WITHIN)
        assert await _get(store, *keys) == [*items.values()], f"cancelled after {turn} steps"


async def _deletes(store: ResultStore, *_: Any) -> None:
    """A store that can delete deletes the given keys, and no others."""
    if type(store).delete is not ResultStore.delete:
        await _put(store, {_key(70): b"a", _key(71): b"b"})
        await store.delete([_key(70), bytes([7]) * KEY_BYTES])
        assert await _get(store, _key(70), _key(71)) == [None, b"b"]
        await _put(store, {_key(70): b"c"})
        assert await _get(store, _key(70)) == [b"c"], "a deleted key cannot be put again"


async def _clears(store: ResultStore, factory: Factory, *_: Any) -> None:
    """A store that can clear deletes all results, for every task, and goes on."""
    if type(store).clear is not ResultStore.clear:
        await _put(store, {_key(80): b"a"})
        async with factory() as other:
            await other.clear()
        assert await _get(store, _key(80)) == [None]
        await _put(store, {_key(80): b"b"})
        assert await _get(store, _key(80)) == [b"b"], "a cleared key cannot be put again"


async def _counts(store: ResultStore, _: Factory, wait: Wait) -> None:
    """A store with info() counts its entries and bytes, its hits and its misses."""
    if type(store).info is ResultStore.info:
        return
    before = await store.info()
    assert {"entries", "bytes", "hits", "misses"} <= set(before), f"info() has {', '.join(before)} alone"
    await _put(store, {_key(90): b"some value", _key(91): b"other"})
    await _put(store, {_key(92): b"ends"}, SHORT_TTL)
    await _put(store, {_key(90): b"put again"})
    await _gone(store, wait, _key(92))
    found = await store.info()
    await _get(store, _key(90), _key(91), bytes([6]) * KEY_BYTES)
    after = await store.info()
    entries = after["entries"] - before["entries"]
    hits, misses = (after[name] - found[name] for name in ("hits", "misses"))
    assert entries == 2, f"info() counts {entries} entries more after 2 were put, and one that has ended"
    assert after["bytes"] >= len(b"put again" + b"other"), "info() counts too few bytes"
    assert (hits, misses) == (2, 1), f"info() counts {hits} hits and {misses} misses after 2 and 1"


_PROMISES: tuple[Promise, ...] = (
    _unknown, _exact, _whole, _latest, _shared, _copied, _ends, _many, _concurrent, _cancelled,
    _deletes, _clears, _counts,
)  # fmt: skip
