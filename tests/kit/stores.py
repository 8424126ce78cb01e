"""Stores and functions for tests of what is paid for once."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from asyncudf import ResultStore


class SlowStore(ResultStore):
    """A store that takes its time, fails when it is told to, and remembers what it was asked."""

    def __init__(self, *, get: float = 0.0, put: float = 0.0) -> None:
        self.get, self.put = get, put
        self.entries: dict[bytes, bytes] = {}
        self.asked: list[tuple[str, int]] = []
        self.broken: set[str] = set()

    def __copy__(self) -> SlowStore:
        return self  # one for all tasks of a test

    async def _ask(self, what: str, size: int, seconds: float) -> None:
        self.asked.append((what, size))
        if what in self.broken:
            raise ConnectionError(f"{what}: the store is gone")
        await asyncio.sleep(seconds)

    async def open(self) -> None:
        await self._ask("open", 0, 0)

    async def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        await self._ask("get", len(keys), self.get)
        return [self.entries.get(key) for key in keys]

    async def put_many(self, items: dict[bytes, bytes], ttl: float | None) -> None:
        await self._ask("put", len(items), self.put)
        self.entries.update(items)

    async def close(self) -> None:
        await self._ask("close", 0, 0)

    def sizes(self, what: str) -> list[int]:
        return [size for asked, size in self.asked if asked == what]


class LeasedStore(SlowStore):
    """A store whose tasks can agree on who calls; each has a copy of it.

    Attributes:
        owners: of each key the task that has leased it.
    """

    is_built_in: bool = True

    def __init__(self, *, get: float = 0.0, put: float = 0.0, error_ttl: float | None = None) -> None:
        super().__init__(get=get, put=put)
        self.error_ttl: float | None = error_ttl
        self.owners: dict[bytes, Any] = {}

    def __copy__(self) -> LeasedStore:
        twin = type(self).__new__(type(self))
        vars(twin).update(vars(self))
        return twin

    async def open(self) -> None:
        await super().open()
        self.leases = DictLeases(self.owners)

    async def close(self) -> None:
        if self.leases is not None:
            self.leases.close()
        await super().close()


class DictLeases:
    """Leases among the tasks of one process."""

    def __init__(self, owners: dict[bytes, Any]) -> None:
        self.owners = owners

    def take(self, key: bytes) -> bool:
        return self.owners.setdefault(key, self) is self

    def give_back(self, key: bytes) -> None:
        if self.owners.get(key) is self:
            del self.owners[key]

    def close(self) -> None:
        for key in [key for key, owner in self.owners.items() if owner is self]:
            del self.owners[key]


class Counting:
    """An `async def` that counts its calls and takes a while."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.calls: Counter[Any] = Counter()
        self.seconds = seconds

        async def weather(city: str) -> str:
            self.calls[city] += 1
            await asyncio.sleep(self.seconds)
            return city.upper()

        self.function = weather


def key(number: int) -> bytes:
    """A key that is far from that of the next number, as the keys of results are."""
    return (number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128).to_bytes(16, "big")


def begin_another_file(store: Any) -> None:
    """As if a store on disk had filled its file: what is put from now on goes to a new one."""
    with store._files.writing():
        store._files.begin()
