"""What runs have spent of a budget, kept beside the results of a function for the runs after them."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from .base import ResultStore, location_of

Kept = TypeVar("Kept")

# An entry counts if its number is higher than that of the entry before: tasks write what the coordinator has answered
# them, and an older answer must not replace a younger one.
WRITE = """
local number = string.match(redis.call('HGET', KEYS[1], ARGV[1]) or '', '^(%d+) ')
if not number or tonumber(number) < tonumber(ARGV[2]) then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. ARGV[3])
end
"""


def keeps_ledgers(store: ResultStore | None) -> bool:
    """Whether what was spent of a budget with a name is kept beside the results for the next run."""
    location = location_of(store)
    return location is not None and location.kind in ("redis", "disk")


@contextlib.asynccontextmanager
async def kept_beside(
    store: ResultStore | None, budget: str, on_redis: Callable[[Any, str], Kept], in_folder: Callable[[Path], Kept]
) -> AsyncIterator[Kept | None]:
    """The ledger of a budget while the block runs; None beside a store that does not outlast its application."""
    location: Any = location_of(store)
    if location is not None and location.kind == "redis":
        client = location.client()
        try:
            yield on_redis(client, f"{location.prefix}:asyncudf.budget:{budget}")
        finally:
            await client.aclose()
    elif location is not None and location.kind == "disk":
        yield in_folder(Path(location.path) / "budgets" / hashlib.sha256(budget.encode()).hexdigest()[:32])
    else:
        yield None


def ledger_of(store: ResultStore | None, budget: str) -> contextlib.AbstractAsyncContextManager[Ledger | None]:
    """The ledger of a budget, as in `kept_beside`."""
    return kept_beside(store, budget, RedisLedger, FolderLedger)


class RedisLedger:
    """A hash: of each run the number of its entry, and the amount."""

    def __init__(self, client: Any, key: str) -> None:
        self._client, self._key = client, key

    async def spent_before(self, run: str) -> float:
        entries = await self._client.hgetall(self._key)
        return sum(float(entry.split()[1]) for name, entry in entries.items() if name.decode() != run)

    async def write(self, run: str, number: int, amount: float) -> None:
        """What this run has spent, or might spend; an entry with a higher number stays."""
        await self._client.eval(WRITE, 1, self._key, run, number, f"{amount:.17g}")


class FolderLedger:
    """A folder with a small file for each run; all tasks of the host write it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def spent_before(self, run: str) -> float:
        with locked(self._folder):
            files = [file for file in self._folder.iterdir() if file.suffix == ".run" and file.stem != run]
            return sum(float(file.read_text().split()[1]) for file in files)

    async def write(self, run: str, number: int, amount: float) -> None:
        file = self._folder / f"{run}.run"
        with locked(self._folder):
            with contextlib.suppress(FileNotFoundError):
                if int(file.read_text().split()[0]) >= number:
                    return
            new = file.with_suffix(".new")
            new.write_text(f"{number} {amount:.17g}")
            new.replace(file)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A block in which no other task of the host is with this folder, which is made if it is not there."""
    import fcntl  # there is none on Windows, and no disk store

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # held for some microseconds
        yield
    finally:
        os.close(lock)


Ledger = RedisLedger | FolderLedger
