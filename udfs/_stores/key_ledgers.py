"""What runs have spent of a budget in each window for each key, kept beside the results of a function."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .base import ResultStore
from .ledgers import kept_beside, locked

if TYPE_CHECKING:
    import sqlite3

MOMENT = 1e-3  # seconds
KEEP_OVER = 86_400_000  # milliseconds that Redis keeps a window after its end

# Tasks add what they have got and given back, in any order. A message that is sent again, as its answer was lost, has
# the number of the one before.
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
    """A span of time: its first second since 1970, the one after its last, and what people are shown."""

    start: float
    end: float
    name: str

    @property
    def key(self) -> str:
        """Where its amounts are kept; empty for the whole time."""
        return self.name and f"{self.start:.17g}"

    def left(self, time: float) -> float | None:
        """Seconds after which to ask for the next one, more than 0; None if it does not end."""
        return None if math.isinf(self.end) else max(MOMENT, self.end - time)


@contextlib.asynccontextmanager
async def key_ledger_of(store: ResultStore | None, budget: str) -> AsyncIterator[KeyLedger | None]:
    """The ledger of a budget, as in `kept_beside`."""
    kept: contextlib.AbstractAsyncContextManager[KeyLedger | None]
    kept = kept_beside(store, budget, RedisKeyLedger, FolderKeyLedger)
    async with kept as ledger:
        try:
            yield ledger
        finally:
            if isinstance(ledger, FolderKeyLedger):
                ledger.close()


class RedisKeyLedger:
    """A hash for each window, of each key the amount; it ends a day after its window."""

    def __init__(self, client: Any, name: str) -> None:
        self._client, self._name = client, name

    async def newest(self) -> float:
        """When the newest window began; 0 if there is none."""
        return float(await self._client.get(f"{self._name}:newest") or 0.0)

    async def spent(self, window: Window, keys: Sequence[str]) -> dict[str, float]:
        """What all runs have spent of these keys."""
        found = await self._client.hmget(self._hash(window), keys)
        return {key: float(amount or 0.0) for key, amount in zip(keys, found, strict=True)}

    async def add(self, window: Window, task: str, number: int, amounts: Mapping[str, float]) -> None:
        """Add these amounts, once for each number of the task."""
        names = [self._hash(window), f"{self._name}:newest", f"{self._name}:task:{task}"]
        is_whole = not window.key
        end = "" if is_whole else int(1000 * window.end) + KEEP_OVER
        pairs = [part for key, amount in amounts.items() for part in (key, f"{amount:.17g}")]
        await self._client.eval(ADD, 3, *names, number, "" if is_whole else f"{window.start:.17g}", end, *pairs)

    def _hash(self, window: Window) -> str:
        return f"{self._name}:{window.key}"


class FolderKeyLedger:
    """A small database in a folder, which all tasks of the host write; a new window ends those before it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._database: sqlite3.Connection | None = None

    async def newest(self) -> float:
        with self._opened() as database:
            (found,) = database.execute("SELECT max(start) FROM spent").fetchone()
        return float(found or 0.0)

    async def spent(self, window: Window, keys: Sequence[str]) -> dict[str, float]:
        with self._opened() as database:
            found = {
                key: database.execute("SELECT amount FROM spent WHERE start = ? AND key = ?", (_start(window), key))
                for key in keys
            }
            return {key: float((rows.fetchone() or (0.0,))[0]) for key, rows in found.items()}

    async def add(self, window: Window, task: str, number: int, amounts: Mapping[str, float]) -> None:
        start = _start(window)
        with self._opened() as database:
            database.execute("DELETE FROM spent WHERE start < ?", (start,))
            database.executemany(
                "INSERT INTO spent VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET amount = amount + excluded.amount",
                [(start, key, amount) for key, amount in amounts.items() if amount],
            )

    def close(self) -> None:
        if self._database is not None:
            self._database.close()

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """A block that has the database, and whose changes count together."""
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


KeyLedger = RedisKeyLedger | FolderKeyLedger
