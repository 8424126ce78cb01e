"""Results in files of one host (LMDB), which all its processes read and write at once."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence

from .._errors.exceptions import AsyncUDFError
from .generations import Generations
from .leases import FileLeases, leases_in
from .lmdb_files import HEADER, LmdbFile, own_folder

__all__ = ("LARGEST", "SMALLEST", "LocalFolder")


SMALLEST = 16 * 2**20
LARGEST = 16 * 2**40  # half the addresses that a process has
READ_AT_ONCE = 256  # keys: between two such steps others have their turn on the loop
WRITTEN_AT_ONCE = 100  # results in a transaction, and of `max_bytes` the share below: each changes a page or two
WRITTEN_SHARE = 32
COUNTED_AT_ONCE = 2000
PAUSE = 0.001  # seconds between two looks whether another process still writes

NEVER = b"\xff" * 8
GONE = bytes(8)
COUNTS = b"counts"
NO_RESULTS = (HEADER[0], COUNTS)


@dataclasses.dataclass(frozen=True)
class LocalFolder:
    """A folder of this host; None for an executor's store that has not been told yet where it lives."""

    path: str | None
    max_bytes: int

    def __str__(self) -> str:
        return "of this executor" if self.path is None else f"in {self.path}"

    def connect(self) -> LocalResults:
        return LocalResults(self._folder, self.max_bytes)

    def leases(self) -> FileLeases | None:
        return leases_in(self._folder)

    @property
    def _folder(self) -> str:
        return own_folder() if self.path is None else self.path


class LocalResults:
    """The results in a folder that is open.

    Args:
        clock: seconds since the epoch, for all processes alike.
    """

    # An entry: when it ends (milliseconds since the epoch, 8 bytes), the value. A key in the younger file counts, and
    # not the one in the older: that may be one that was replaced or, with an end of 0, deleted.
    # `COUNTS` has hits and misses so far, in the youngest file that has it.
    #
    # Reading locks nothing. Of writers there is one at a time, in all processes: who is not it looks again after a
    # pause, and so can be cancelled; waiting inside LMDB would block the loop. What the one does, it does without
    # giving way.

    def __init__(self, folder: str, max_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self._files = Generations(folder, max_bytes)
        self._part = max_bytes // WRITTEN_SHARE
        self._clock = clock
        self._found = {"hits": 0, "misses": 0}  # not yet added to the counts

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values: list[bytes | None] = []
        for start in range(0, len(keys), READ_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            values += self._read(keys[start : start + READ_AT_ONCE])
        misses = values.count(None)
        self._found["hits"] += len(values) - misses
        self._found["misses"] += misses
        return values

    def _read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        now = self._ends(0.0)
        files = self._files.current()
        entries: list[bytes | None] = _entries(files[0], keys) if files else [None] * len(keys)
        for older in files[1:]:
            missing = [at for at, entry in enumerate(entries) if entry is None]
            for at, entry in zip(missing, _entries(older, [keys[at] for at in missing]), strict=True):
                entries[at] = entry
        return [None if entry is None or entry[:8] <= now else entry[8:] for entry in entries]

    async def put_many(self, items: Mapping[bytes, bytes], ttl: float | None) -> None:
        await self._put_all(items, NEVER if ttl is None else self._ends(ttl))

    async def _put_all(self, items: Mapping[bytes, bytes], ends: bytes) -> None:
        for part in self._parts(items, ends):
            async with self._writing():
                self._put(part)

    def _parts(self, items: Mapping[bytes, bytes], ends: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
        """The entries that are written in a transaction each; without what would push out too much else."""
        part: list[tuple[bytes, bytes]] = []
        size = 0
        for key, value in items.items():
            if (length := len(value)) > self._part:
                continue
            if part and (len(part) == WRITTEN_AT_ONCE or size + length > self._part):
                yield part
                part, size = [], 0
            part.append((key, ends + value))
            size += length
        if part:
            yield part

    def _put(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        files = self._files.current()
        if files and not self._files.is_over(files[0]) and self._written(files, entries):
            return
        files = self._files.begin()
        if not self._written(files, entries):
            raise AsyncUDFError(f"the store in {self._files.folder} is full, also when it begins anew")

    def _written(self, files: Sequence[LmdbFile], entries: Sequence[tuple[bytes, bytes]]) -> bool:
        """Write to the youngest file, unless it is full."""
        counts = self._counted(files)
        with files[0].unless_full() as is_full, files[0].begin(write=True) as transaction:
            transaction.put(*HEADER, overwrite=False)
            transaction.put(COUNTS, struct.pack(">2Q", *counts.values()))
            transaction.cursor().putmulti(entries)
        if is_full():
            return False
        self._found = dict.fromkeys(self._found, 0)
        return True

    def _counted(self, files: Sequence[LmdbFile]) -> dict[str, int]:
        """Hits and misses, also those that are not written yet."""
        for file in files:
            with file.begin() as transaction:
                found = transaction.get(COUNTS)
            if found is not None:
                before = zip(self._found.items(), struct.unpack(">2Q", found), strict=True)
                return {name: new + old for (name, new), old in before}
        return dict(self._found)

    async def close(self) -> None:
        try:
            if any(self._found.values()) and self._files.lock():
                try:
                    if files := self._files.current():
                        self._written(files, [])
                finally:
                    self._files.unlock()
        except Exception:  # these are figures for people: a disk that is full must not fail a task for them
            pass
        finally:
            self._files.close()

    async def info(self) -> dict[str, int]:
        mine = Generations(self._files.folder, self._files.max_bytes)  # files that others delete while this waits
        try:
            files = mine.current()
            entries = 0
            for number, file in enumerate(files):
                start: bytes | None = b"\0"
                while start is not None:
                    count, start = self._count(file, files[:number], start)
                    entries += count
                    await asyncio.sleep(0)
            return {"entries": entries, "bytes": sum(file.used_bytes() for file in files), **self._counted(files)}
        finally:
            mine.close()

    def _count(self, file: LmdbFile, younger: Sequence[LmdbFile], start: bytes) -> tuple[int, bytes | None]:
        """How many of the next entries count, and where to go on; None at the end."""
        now = self._ends(0.0)
        found: list[bytes] = []
        last: bytes | None = None
        with file.begin(buffers=True) as transaction:
            cursor = transaction.cursor()
            left = COUNTED_AT_ONCE if cursor.set_range(start) else 0
            for key, entry in cursor.iternext() if left else ():
                last = bytes(key)
                if bytes(entry[:8]) > now and last not in NO_RESULTS:
                    found.append(last)
                left -= 1
                if not left:
                    break
            else:
                last = None
        for one in younger:
            with one.begin() as transaction:
                found = [key for key in found if transaction.get(key) is None]
        return len(found), None if last is None else last + b"\0"

    async def delete(self, keys: Sequence[bytes]) -> None:
        # Not taken out: that needs room in the file that has them, and this one gets everywhere.
        await self._put_all(dict.fromkeys(keys, b""), GONE)

    async def clear(self) -> None:
        async with self._writing():
            self._files.clear()
        self._found = dict.fromkeys(self._found, 0)

    @contextlib.asynccontextmanager
    async def _writing(self) -> AsyncIterator[None]:
        """Be the one that writes."""
        while not self._files.lock():
            await asyncio.sleep(PAUSE)
        try:
            yield
        finally:
            self._files.unlock()

    def _ends(self, seconds: float) -> bytes:
        """The moment in so many seconds; of two, the later one sorts behind."""
        return int(min((self._clock() + seconds) * 1000, 2.0**63)).to_bytes(8, "big")


def _entries(file: LmdbFile, keys: Sequence[bytes]) -> list[bytes | None]:
    with file.begin() as transaction:
        return [*map(transaction.get, keys)]
