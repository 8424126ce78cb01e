"""Results in files of one host (LMDB), which all its processes read and write at once; and leases of their keys."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import os
import struct
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from .lmdb_files import HEADER, LmdbFile, RotatingFiles, own_folder, regular_file

if sys.platform != "win32":
    import fcntl
    import resource

SMALLEST = 16 * 2**20
LARGEST = 16 * 2**40  # half the addresses that a process has
READ_AT_ONCE = 2_000  # keys, in 3 ms: between two such steps others have their turn on the loop
WRITTEN_AT_ONCE = 100  # results in a transaction, and of `max_bytes` the share below: each changes a page or two
WRITTEN_SHARE = 32
COUNTED_AT_ONCE = 2000
WRITER_RETRY = 0.001  # seconds until the writer's lock is tried again

NEVER = b"\xff" * 8
_value: Callable[[Any], bytes] = itemgetter(slice(8, None))  # of an entry
GONE = bytes(8)
COUNTS = b"counts"
NO_RESULTS = (HEADER[0], COUNTS)


@dataclasses.dataclass(frozen=True)
class LocalFolder:
    """A folder of this host; None for an executor's store until `in_folder` names one."""

    path: str | None
    max_bytes: int

    @property
    def kind(self) -> str:
        return "executor" if self.path is None else "disk"

    def __str__(self) -> str:
        return "of this executor" if self.path is None else f"in {self.path}"

    def connect(self) -> LocalResults:
        return LocalResults(self._folder, _mappable(self.max_bytes))

    def leases(self) -> FileLeases | None:
        return leases_in(self._folder)

    @property
    def _folder(self) -> str:
        # A folder for each size, as `in_folder` makes: the smaller store would delete files of the larger one.
        return os.path.join(own_folder(), str(self.max_bytes)) if self.path is None else self.path


def _mappable(max_bytes: int) -> int:
    """So many bytes of files as this process can map: `spark.executor.pyspark.memory` bounds its addresses."""
    if sys.platform == "win32":
        return max_bytes
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    # Two thirds of a GiB are taken by a worker with pandas. All workers of an executor have one limit, and so one size.
    return max_bytes if limit == resource.RLIM_INFINITY else max(SMALLEST, min(max_bytes, limit // 8))


class LocalResults:
    """The results in an open folder; `clock` returns seconds since the epoch, which all processes share."""

    # An entry: when it ends (milliseconds since the epoch, 8 bytes), the value. A key in the younger file counts, and
    # not the one in the older: that may be one that was replaced or, with an end of 0, deleted.
    # `COUNTS` has hits and misses so far, in the youngest file that has it.
    #
    # Reading locks nothing. There is one writer at a time, in all processes. Others look again after a pause, and so
    # can be cancelled; waiting inside LMDB would block the loop. What the writer does, it does without an await.

    def __init__(self, folder: str, max_bytes: int, clock: Callable[[], float] = time.time) -> None:
        self._files = RotatingFiles(folder, max_bytes)
        self._part = max_bytes // WRITTEN_SHARE
        self._clock = clock
        self._hits = self._misses = 0  # not written yet

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        values: list[bytes | None] = []
        for start in range(0, len(keys), READ_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            values += self._read(keys[start : start + READ_AT_ONCE])
        return values

    def _read(self, keys: Sequence[bytes]) -> list[bytes | None]:
        soon = self._soon()
        files = self._files.current()
        entries: list[Any] = files[0].get(keys) if files else [None] * len(keys)
        with contextlib.suppress(TypeError):  # there is None, which is not to be compared
            if min(entries, default=soon) >= soon:  # the usual case, at less cost
                self._hits += len(entries)
                return [*map(_value, entries)]
        for older in files[1:]:
            missing = [at for at, entry in enumerate(entries) if entry is None]
            for at, entry in zip(missing, older.get([keys[at] for at in missing]), strict=True):
                entries[at] = entry
        values = [None if entry is None or entry < soon else _value(entry) for entry in entries]
        misses = values.count(None)
        self._hits += len(values) - misses
        self._misses += misses
        return values

    async def put_many(self, items: Mapping[bytes, bytes], ttl: float | None) -> None:
        await self._put_all(items, NEVER if ttl is None else self._ends(ttl))

    async def delete(self, keys: Sequence[bytes]) -> None:
        # Not taken out: that needs room in the file that has them, and this one gets everywhere.
        await self._put_all(dict.fromkeys(keys, b""), GONE)

    async def clear(self) -> None:
        await self._writing(self._files.clear)
        self._hits = self._misses = 0

    async def info(self) -> dict[str, int]:
        mine = RotatingFiles(self._files.folder, self._files.max_bytes)  # files that others delete while this waits
        try:
            files = mine.current()
            entries = 0
            for number, file in enumerate(files):
                start = b"\0"
                while heads := file.heads(start, COUNTED_AT_ONCE, 8):
                    entries += self._live(heads, files[:number])
                    start = heads[-1][0] + b"\0"
                    await asyncio.sleep(0)
            hits, misses = self._statistics(files)
            size = sum(file.used_bytes() for file in files)
            return {"entries": entries, "bytes": size, "hits": hits, "misses": misses}
        finally:
            mine.close()

    async def close(self) -> None:
        try:
            if self._hits or self._misses:
                with self._files.writing() as is_ours:
                    if is_ours and (files := self._files.current()):
                        files[0].put([self._statistics_entry()])
        except Exception:  # these are figures for people: a disk that is full must not fail a task for them
            pass
        finally:
            self._files.close()

    async def _put_all(self, items: Mapping[bytes, bytes], ends: bytes) -> None:
        for part in self._parts(items, ends):
            await self._writing(partial(self._put, part))

    def _parts(self, items: Mapping[bytes, bytes], ends: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
        """The entries of each transaction; without values that would push out too many others."""
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
        self._files.put([self._statistics_entry(), *entries])
        self._hits = self._misses = 0

    def _statistics_entry(self) -> tuple[bytes, bytes]:
        return COUNTS, struct.pack(">2Q", *self._statistics(self._files.current()))

    async def _writing(self, step: Callable[[], None]) -> None:
        """Take a step as the only writer of the folder, once there is no other."""
        while True:
            with self._files.writing() as is_ours:
                if is_ours:
                    step()
                    return
            await asyncio.sleep(WRITER_RETRY)

    def _statistics(self, files: Sequence[LmdbFile]) -> tuple[int, int]:
        """Hits and misses, also those that are not written yet."""
        for file in files:
            (written,) = file.get([COUNTS])
            if written is not None:
                hits, misses = struct.unpack(">2Q", written)
                return hits + self._hits, misses + self._misses
        return self._hits, self._misses

    def _live(self, heads: Sequence[tuple[bytes, bytes]], younger: Sequence[LmdbFile]) -> int:
        """How many of these entries are not too old, and not replaced in a younger file."""
        soon = self._soon()
        live = [key for key, ends in heads if ends >= soon and key not in NO_RESULTS]
        for file in younger:
            live = [key for key, entry in zip(live, file.get(live), strict=True) if entry is None]
        return len(live)

    def _soon(self) -> bytes:
        """The next millisecond, as bytes: an entry whose end sorts before it is too old."""
        return int(self._clock() * 1000 + 1).to_bytes(8, "big")

    def _ends(self, seconds: float) -> bytes:
        """The moment in so many seconds as bytes, which sort by time."""
        return int(min((self._clock() + seconds) * 1000, 2.0**63)).to_bytes(8, "big")


LEASE_FILES = 16  # for ten thousand leases at once


class FileLeases:
    """Leases of keys among the tasks of the host: locks on single bytes of a few empty files.

    The task that has a key's lease calls, the others wait for its result. The operating system ends the locks of a
    process that dies, however it dies. So a lease needs no clock, and lasts as long as its call.
    """

    # "Open file description" locks: they belong to this object, and not to the process as other locks of fcntl do. Two
    # operators of one task exclude each other too, and neither loses its locks when the other closes the files.
    #
    # To take a lock the system searches all locks of the file: so there is more than one file.

    def __init__(self, path: str) -> None:
        self._files: list[int] = []
        _open_leases.add(self)
        try:
            for number in range(LEASE_FILES):
                self._files.append(regular_file(f"{path}-{number}", create=True))
        except BaseException:
            self.close()
            raise

    def take(self, key: bytes) -> bool:
        try:
            self._lock(key, fcntl.F_WRLCK)
        except OSError as error:
            return error.errno not in (errno.EAGAIN, errno.EACCES)  # a system without such locks: each task may call
        return True

    def give_back(self, key: bytes) -> None:
        try:  # and no `suppress`, which would cost as much again for each row
            self._lock(key, fcntl.F_UNLCK)
        except OSError:  # there was no lease
            return

    def _lock(self, key: bytes, kind: int) -> None:
        start = int.from_bytes(key[:8], "big") >> 2  # below 2**62, as a file's length must be
        lock = struct.pack("hhqqi4x", kind, os.SEEK_SET, start, 1, 0)
        fcntl.fcntl(self._files[start % LEASE_FILES], fcntl.F_OFD_SETLK, lock)

    def close(self) -> None:
        while self._files:
            os.close(self._files.pop())


def leases_in(folder: str) -> FileLeases | None:
    """The leases of a folder; None on other systems than Linux, which have no such locks or write them otherwise."""
    return FileLeases(os.path.join(folder, "leases")) if sys.platform == "linux" else None


_open_leases: weakref.WeakSet[FileLeases] = weakref.WeakSet()


def _close_after_fork() -> None:
    """A process that a task has forked may outlive it, and must not keep its leases."""
    for leases in _open_leases:
        leases.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_after_fork)
