"""The contract of a result store, as a suite that runs over any: ours, and a user's own."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import pickle
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

from .._errors.records import error_text
from .._stores.base import ResultStore
from .._stores.keys import KEY_BYTES
from ._run_apart import run_apart

__all__ = ("check_result_store",)


LIFE = 0.2  # seconds, of what is to end while a test waits
PATIENCE = 10.0

Factory = Callable[[], ResultStore]
Wait = Callable[[float], Awaitable[Any]]
Promise = Callable[[ResultStore, Factory, Wait], Coroutine[Any, Any, None]]


def check_result_store(factory: Factory, *, travels: bool = True, wait: Wait | None = None) -> None:
    """Check that a store keeps what `ResultStore` promises; also in a notebook.

    Args:
        factory: makes a store; what it makes leads to the same place each time, and that is for this test alone.
        travels: whether a store pickles, as it must for Spark.
        wait: lets seconds pass; `asyncio.sleep` unless your store has a clock of its own.

    Raises:
        AssertionError: a promise is not kept, or broken off by an error of the store; the message says which.

    >>> import copy
    >>> from asyncudf.testing import MemoryStore
    >>> store = MemoryStore()
    >>> async def wait(seconds: float) -> None:
    ...     store.advance(seconds)
    >>> check_result_store(lambda: copy.copy(store), travels=False, wait=wait)
    """
    for promise in (*_PROMISES, *([_travels] if travels else [])):
        run_apart(asyncio.new_event_loop(), _kept(promise, factory, wait or asyncio.sleep), 1)


async def _kept(promise: Promise, factory: Factory, wait: Wait) -> None:
    store = factory()
    assert isinstance(store, ResultStore), f"the factory made a {type(store).__name__}, which is no ResultStore"
    async with _told("A store can be opened."):
        await asyncio.wait_for(store.open(), PATIENCE)
    try:
        async with _told(promise.__doc__ or ""):
            await promise(store, factory, wait)
    finally:
        async with _told("A store can be closed, by another asyncio task than has opened it."):
            await asyncio.create_task(asyncio.wait_for(store.close(), PATIENCE))


@contextlib.asynccontextmanager
async def _told(promise: str) -> AsyncIterator[None]:
    """A block in which whatever fails breaks the promise."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{promise.strip()} {error}") from error
    except TimeoutError as error:
        raise AssertionError(f"{promise.strip()} {error_text(error)}: not done within {PATIENCE:g} s") from error
    except Exception as error:
        raise AssertionError(f"{promise.strip()} {error_text(error)}") from error


def _key(number: int) -> bytes:
    """Keys of all shapes: of zeros, of what patterns and texts use, of any byte."""
    odd = (b"\0" * KEY_BYTES, b"\xff" * KEY_BYTES, b"*?[a-z]\\:%{}\n\r\0 ", bytes(range(240, 256)))
    return odd[number] if number < len(odd) else number.to_bytes(KEY_BYTES, "big")


async def _get(store: ResultStore, *keys: bytes) -> list[bytes | None]:
    """What the store answers, checked for its form."""
    asked = list(keys)
    values = await asyncio.wait_for(store.get_many(asked), PATIENCE)
    assert asked == list(keys), "get_many has edited the list of keys that it was given"
    assert isinstance(values, list), f"get_many gave a {type(values).__name__}, not a list"
    assert len(values) == len(keys), f"get_many gave {len(values)} values for {len(keys)} keys"
    for value in values:
        assert value is None or type(value) is bytes, f"get_many gave a {type(value).__name__}, not bytes or None"
    return values


async def _put(store: ResultStore, items: dict[bytes, bytes], ttl: float | None = None) -> None:
    given = dict(items)
    await asyncio.wait_for(store.put_many(given, ttl), PATIENCE)
    assert given == items, "put_many has edited the dict of items that it was given"


async def _unknown(store: ResultStore, *_: Any) -> None:
    """A key that was never put has no value, and no keys have none."""
    assert await _get(store, *(bytes([9]) * KEY_BYTES for _ in range(3))) == [None] * 3
    assert await _get(store) == []
    await _put(store, {})


async def _exact(store: ResultStore, *_: Any) -> None:
    """Each key gives the very bytes that were put under it, whatever they are, in the order of the keys."""
    values = [b"", b"\0", bytes(range(256)), "Zürich".encode(), b"\r\n$-1\r\n", b"x" * 3_000_000, b"None"]
    items = {_key(number): value for number, value in enumerate(values)}
    await _put(store, items)
    found = await _get(store, *items)
    for number, (value, other) in enumerate(zip(values, found, strict=True)):
        assert value == other, f"value {number} of {len(value)} bytes came back otherwise"
    first, missing, third = _key(0), bytes([8]) * KEY_BYTES, _key(2)
    some = await _get(store, third, missing, first, third)
    assert some == [items[third], None, items[first], items[third]], "keys that miss, or come twice, mix up the others"


async def _whole(store: ResultStore, *_: Any) -> None:
    """Each byte of a key counts."""
    items = {bytes(at == one for at in range(KEY_BYTES)): b"%d" % one for one in range(KEY_BYTES)}
    await _put(store, items)
    assert await _get(store, *items) == [*items.values()], "keys that differ in a byte have the same value"


async def _latest(store: ResultStore, *_: Any) -> None:
    """What was put last under a key is its value."""
    await _put(store, {_key(20): b"old", _key(21): b"other"})
    await _put(store, {_key(20): b"new"})
    assert await _get(store, _key(20), _key(21)) == [b"new", b"other"]


async def _shared(store: ResultStore, factory: Factory, *_: Any) -> None:
    """What one task has put is found by others at once, and by those that open the store later."""
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
        assert await _get(later, _key(31)) == [b"theirs"], "it is gone after all who have put it were closed"


async def _copied(store: ResultStore, *_: Any) -> None:
    """A copy of a store is opened and closed without the other, and a closed one can be opened again."""
    twin = copy.copy(store)
    for value in (b"first", b"second"):
        await twin.open()
        await _put(twin, {_key(40): value})
        await twin.close()
        assert await _get(store, _key(40)) == [value], "the store it was copied from does not see what it has put"


async def _travels(store: ResultStore, *_: Any) -> None:
    """A store travels to an executor, also while it is open, and leads to the same place there."""
    await _put(store, {_key(50): b"here"})
    async with pickle.loads(pickle.dumps(store)) as there:
        assert await _get(there, _key(50)) == [b"here"]
    assert await _get(store, _key(50)) == [b"here"], "it is gone after the one that has travelled was closed"


async def _ends(store: ResultStore, _: Factory, wait: Wait) -> None:
    """A value ends with its ttl, which the last put counts for; without one it stays."""
    await _put(store, {_key(63): b"was for ever"})
    await _put(store, {_key(60): b"short", _key(61): b"longer", _key(63): b"short"}, LIFE)
    await _put(store, {_key(62): b"long"}, 100 * 24 * 3600.0)
    await _put(store, {_key(64): b"longer than most clocks count"}, 1e12)
    await _put(store, {_key(61): b"for ever"})
    await _gone(store, wait, _key(60), _key(63))
    left = await _get(store, _key(61), _key(62), _key(64))
    assert left == [b"for ever", b"long", b"longer than most clocks count"], "others ended with it"


async def _gone(store: ResultStore, wait: Wait, *keys: bytes) -> None:
    """Wait for the end of what was put for `LIFE`."""
    end = time.monotonic() + PATIENCE
    await wait(LIFE)
    while await _get(store, *keys) != [None] * len(keys):
        assert time.monotonic() < end, f"a value with ttl={LIFE} is still there after {PATIENCE:g} s"
        await wait(LIFE / 4)


async def _many(store: ResultStore, *_: Any) -> None:
    """Thousands of values can be put and asked for at once."""
    items = {_key(number): b"%d" % number for number in range(1000, 11_000)}
    await _put(store, items)
    assert await _get(store, *items) == [*items.values()]


async def _concurrent(store: ResultStore, *_: Any) -> None:
    """Reads and writes may be under way at the same time."""

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
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), PATIENCE)
        assert await _get(store, *keys) == [*items.values()], f"cancelled after {turn} steps"


async def _deletes(store: ResultStore, *_: Any) -> None:
    """A store that can delete forgets the results that it is told to, and no others."""
    if type(store).delete is not ResultStore.delete:
        await _put(store, {_key(70): b"a", _key(71): b"b"})
        await store.delete([_key(70), bytes([7]) * KEY_BYTES])
        assert await _get(store, _key(70), _key(71)) == [None, b"b"]
        await _put(store, {_key(70): b"c"})
        assert await _get(store, _key(70)) == [b"c"], "what was deleted cannot be put again"


async def _clears(store: ResultStore, factory: Factory, *_: Any) -> None:
    """A store that can clear forgets all results, for all, and goes on."""
    if type(store).clear is not ResultStore.clear:
        await _put(store, {_key(80): b"a"})
        async with factory() as other:
            await other.clear()
        assert await _get(store, _key(80)) == [None]
        await _put(store, {_key(80): b"b"})
        assert await _get(store, _key(80)) == [b"b"], "what was cleared cannot be put again"


async def _tells(store: ResultStore, _: Factory, wait: Wait) -> None:
    """A store that can tell what is in it counts what is there, and what was found and not found."""
    if type(store).info is ResultStore.info:
        return
    before = await store.info()
    assert {"entries", "bytes", "hits", "misses"} <= set(before), f"info() tells of {', '.join(before)} alone"
    await _put(store, {_key(90): b"some value", _key(91): b"other"})
    await _put(store, {_key(92): b"ends"}, LIFE)
    await _put(store, {_key(90): b"put again"})
    await _gone(store, wait, _key(92))
    found = await store.info()
    await _get(store, _key(90), _key(91), bytes([6]) * KEY_BYTES)
    after = await store.info()
    entries = after["entries"] - before["entries"]
    hits, misses = (after[name] - found[name] for name in ("hits", "misses"))
    assert entries == 2, f"info() tells of {entries} entries more after 2 were put, and one that has ended"
    assert after["bytes"] >= len(b"put again" + b"other"), "info() tells of too few bytes"
    assert (hits, misses) == (2, 1), f"info() tells of {hits} hits and {misses} misses after 2 and 1"


_PROMISES: tuple[Promise, ...] = (
    _unknown, _exact, _whole, _latest, _shared, _copied, _ends, _many, _concurrent, _cancelled,
    _deletes, _clears, _tells,
)  # fmt: skip
