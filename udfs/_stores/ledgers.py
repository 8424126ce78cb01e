"""Ledgers: what runs have spent of a budget, kept beside the results of a function for later runs.

A ledger has entries of two kinds:

- For an amount of the whole job: the total of each run, as the coordinator has told it. The total counts all tasks of
  the run, also tasks of functions without this store. If a task cannot write the total, the next task that writes
  makes up for it.
- For amounts by window and key: one number for each key, to which tasks add what they get and give back. Totals of
  runs would need a number for each run and key, here and at the coordinator.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .base import ResultStore, location_of

if TYPE_CHECKING:
    import sqlite3

MOMENT = 1e-3  # seconds
KEEP_OVER = 86_400_000  # milliseconds that Redis keeps a window after its end

# A total counts if its number is higher than that of the one before: an older answer of the coordinator must not
# replace a younger one.
WRITE = """
local number = string.match(redis.call('HGET', KEYS[1], ARGV[1]) or '', '^(%d+) ')
if not number or tonumber(number) < tonumber(ARGV[2]) then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. ARGV[3])
end
"""

# Tasks add in any order. A message that is sent again, as its answer was lost, has the number of the one before.
ADD = """
local window, newest, message = KEYS[1], KEYS[2], KEYS[3]
if tonumber(redis.call('GET', message) or '0') >= tonumber(ARGV[1]) then return end
redis.call('SET', message, ARGV[1], 'PX', 600000)
for i = 4, #ARGV, 2 do redis.call('HINCRBYFLOAT', window, ARGV[i], ARGV[i + 1]) end
if ARGV[3] ~= '' then
  redis.call('PEXPIREAT', window, ARGV[3])
  if tonumber(redis.call('GET', newest) or '0') < tonumber(ARGV[2]) then redis.call('SET', newest, ARGV[2]) end
end
"""


class Window(NamedTuple):
    """A span of time, from `start` to before `end` in seconds since 1970; `name` is for people."""

    start: float
    end: float
    name: str

    @property
    def key(self) -> str:
        """Where its amounts are kept; empty for the whole time."""
        return self.name and f"{self.start:.17g}"

    def left(self, time: float) -> float | None:
        """Seconds after which to ask for the next window, more than 0; None if this window does not end."""
        return None if math.isinf(self.end) else max(MOMENT, self.end - time)


def keeps_ledgers(store: ResultStore | None) -> bool:
    """Whether what was spent of a budget with a name is kept beside the results for the next run."""
    return place_of_ledgers(store) is not None


def place_of_ledgers(store: ResultStore | None) -> str | None:
    """Where the store keeps what was spent, as people are shown it; None if it keeps nothing for the next run."""
    location = location_of(store)
    return str(location) if location is not None and location.kind in ("redis", "disk") else None


@contextlib.asynccontextmanager
async def ledger_of(store: ResultStore | None, budget: str) -> AsyncIterator[Ledger | None]:
    """The ledger of a budget while the block runs; None beside a store that does not outlast its application."""
    if not keeps_ledgers(store):
        yield None
        return
    location: Any = location_of(store)
    ledger: Ledger
    if location.kind == "redis":
        ledger = RedisLedger(location.client(), f"{location.prefix}:asyncudf.budget:{budget}")
    else:
        name = hashlib.sha256(budget.encode()).hexdigest()[:32]
        ledger = FolderLedger(Path(location.path) / "budgets" / name)
    try:
        yield ledger
    finally:
        await ledger.close()


class RedisLedger:
    """A Redis hash with the totals of runs, and a hash with the keys of each window, kept a day after the window."""

    def __init__(self, client: Any, name: str) -> None:
        self._client, self._name = client, name

    async def spent_before(self, run: str) -> float:
        """The totals of all other runs."""
        entries = await self._client.hgetall(self._name)
        return sum(float(entry.split()[1]) for name, entry in entries.items() if name.decode() != run)

    async def write(self, run: str, number: int, amount: float) -> None:
        """Write the total that this run has spent, or might spend; a total with a higher number stays."""
        await self._client.eval(WRITE, 1, self._name, run, number, f"{amount:.17g}")

    async def newest(self) -> float:
        """When the newest window began; 0 if there is none."""
        return float(await self._client.get(f"{self._name}:newest") or 0.0)

    async def spent(self, window: Window, keys: Sequence[str]) -> dict[str, float]:
        """What all runs have spent of these keys."""
        found = await self._client.hmget(self._hash(window), keys)
        return {key: float(amount or 0.0) for key, amount in zip(keys, found, strict=True)}

    async def add(self, window: Window, task: str, number: int, amounts: Mapping[str, float]) -> None:
        """Add these amounts of keys, once for each number of the task."""
        names = [self._hash(window), f"{self._name}:newest", f"{self._name}:task:{task}"]
        is_whole = not window.key
        end = "" if is_whole else int(1000 * window.end) + KEEP_OVER
        pairs = [part for key, amount in amounts.items() for part in (key, f"{amount:.17g}")]
        await self._client.eval(ADD, 3, *names, number, "" if is_whole else f"{window.start:.17g}", end, *pairs)

    def _hash(self, window: Window) -> str:
        return f"{self._name}:{window.key}"

    async def close(self) -> None:
        await self._client.aclose()


class FolderLedger:
    """A folder that all tasks of the host write: a small file with the total of each run, and a database of keys.

    A new window deletes the windows before it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._database: sqlite3.Connection | None = None

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

    async def newest(self) -> float:
        with self._keys() as database:
            (found,) = database.execute("SELECT max(start) FROM spent").fetchone()
        return float(found or 0.0)

    async def spent(self, window: Window, keys: Sequence[str]) -> dict[str, float]:
        select = "SELECT amount FROM spent WHERE start = ? AND key = ?"
        with self._keys() as database:
            found = {key: database.execute(select, (_start(window), key)).fetchone() for key in keys}
        return {key: row[0] if row else 0.0 for key, row in found.items()}

    async def add(self, window: Window, task: str, number: int, amounts: Mapping[str, float]) -> None:
        start = _start(window)
        with self._keys() as database:  # no answer can be lost
            database.execute("DELETE FROM spent WHERE start < ?", (start,))
            database.executemany(
                "INSERT INTO spent VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET amount = amount + excluded.amount",
                [(start, key, amount) for key, amount in amounts.items() if amount],
            )

    async def close(self) -> None:
        if self._database is not None:
            self._database.close()

    @contextlib.contextmanager
    def _keys(self) -> Iterator[sqlite3.Connection]:
        """A block with the database: its changes count together."""
        import sqlite3  # not every Python has it

        with locked(self._folder):  # SQLite's own locks are waited for by sleeping
            if self._database is None:
                database = sqlite3.connect(self._folder / "keys.sqlite", isolation_level=None)
                database.execute("PRAGMA synchronous = OFF")  # as in the store: it outlives the process, not the power
                database.execute(
                    "CREATE TABLE IF NOT EXISTS spent (start REAL, key TEXT, amount REAL, PRIMARY KEY (start, key)) "
                    "WITHOUT ROWID"
                )
                self._database = database
            self._database.execute("BEGIN IMMEDIATE")
            with self._database:
                yield self._database


def _start(window: Window) -> float:
    return window.start if window.key else 0.0


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """A block in which no other task of the host uses this folder; the folder is made if it is not there."""
    import fcntl  # there is none on Windows, and no disk store

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # held for some microseconds
        yield
    finally:
        os.close(lock)


Ledger = RedisLedger | FolderLedger
