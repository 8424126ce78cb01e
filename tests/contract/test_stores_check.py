"""`check_result_store` finds each mistake that a store may have, and says which promise it breaks."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from asyncudf import ResultStore
from asyncudf.testing import check_result_store

ENTRIES: dict[bytes, tuple[bytes, float]] = {}


class Good(ResultStore):
    """A store of this process, from which each of the others differs by one mistake."""

    async def get_many(self, keys: list[bytes]) -> list[Any]:
        found = [ENTRIES.get(key) for key in keys]
        return [entry[0] if entry and entry[1] > time.time() else None for entry in found]

    async def put_many(self, items: dict[bytes, bytes], ttl: float | None) -> None:
        end = float("inf") if ttl is None else time.time() + ttl
        ENTRIES.update({key: (value, end) for key, value in items.items()})


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


def test_the_good_one_passes() -> None:
    """The store that the bad ones are made of has no mistake."""
    ENTRIES.clear()
    check_result_store(Good)
