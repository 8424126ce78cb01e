"""LMDB files that are open in this process: each once, as LMDB asks for."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

from .._errors.exceptions import AsyncUDFError

__all__ = ("HEADER", "LOCK_BYTES", "LmdbFile", "lock_of", "opened", "own_folder")


READERS = 1000  # at once, in all processes of the host
LOCK_BYTES = 2**16  # LMDB's own lock file, which has room for so many
HEADER = (b"asyncudf", b"results 1")  # in each file that is ours; another value for another layout

# Keyed by process too: what was opened before a fork is the parent's, and the child must leave it alone.
_open: dict[tuple[int, str], LmdbFile] = {}
_own_folders: dict[int, str] = {}
_registry = threading.Lock()  # the chains of a notebook's tests run in threads; it is held for an open or a close


def opened(path: str, size: int, *, create: bool = False) -> LmdbFile:
    """The file, for one who will close it.

    Args:
        size: bytes that it may grow to; the same for all who open it, in whatever process.
        create: whether it is made. Else it must be there.

    Raises:
        AsyncUDFError: it is somebody else's, or damaged, or was open when this process was forked; the disk is full.
        FileNotFoundError: it is not there.
        OSError: it cannot be read and written.
    """
    with _registry:
        key = os.getpid(), os.path.realpath(path)
        if key not in _open:
            if any(other == key[1] for _, other in _open):
                raise AsyncUDFError(
                    f"the store in {os.path.dirname(path)} was open when this process was forked, which LMDB forbids; "
                    "close it before, or start the process otherwise ('spawn')"
                )
            _open[key] = LmdbFile(key, size, create=create)
        _open[key].users += 1
        return _open[key]


def lock_of(path: str) -> str:
    """Where LMDB keeps who reads and writes a file."""
    return f"{path}-lock"


def own_folder() -> str:
    """A temporary folder of this process, for a store that was not told where it lives."""
    with _registry:
        pid = os.getpid()
        if pid not in _own_folders:
            _own_folders[pid] = tempfile.mkdtemp(prefix="asyncudf-")
            atexit.register(_remove_own, pid)
        return _own_folders[pid]


def _remove_own(pid: int) -> None:
    if os.getpid() == pid:  # a forked child has inherited what is to happen at exit
        shutil.rmtree(_own_folders[pid], ignore_errors=True)


class LmdbFile:
    """One file of entries under keys. Its methods wait for nobody, if those who write agree on one of them."""

    def __init__(self, key: tuple[int, str], size: int, *, create: bool) -> None:
        import lmdb

        self._lmdb: Any = lmdb
        self._key = key
        self.users = 0
        self.path = path = key[1]
        self.size = size
        with self._telling():
            # LMDB would make one that is not there.
            os.close(os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600))
            _allocate(lock_of(path))
            # No fsync: what is written is in the system's hands, and outlives the process, but not a power failure.
            self._env: Any = lmdb.open(path, map_size=size, subdir=False, max_readers=READERS, sync=False, mode=0o600)
        try:
            self._check_length()
            self._env.reader_check()  # what a killed process was reading can be written over
            self._check_owner()
        except BaseException:
            self._env.close()
            raise

    @contextlib.contextmanager
    def begin(self, *, write: bool = False, buffers: bool = False) -> Iterator[Any]:
        """A transaction, that counts unless an exception leaves the block.

        Raises:
            AsyncUDFError: the file cannot be read or written.
        """
        with self._telling(), self._env.begin(write=write, buffers=buffers) as transaction:
            yield transaction

    @contextlib.contextmanager
    def unless_full(self) -> Iterator[Callable[[], bool]]:
        """Take the error of a full file away, and tell whether it has come."""
        full: list[bool] = []
        try:
            yield lambda: bool(full)
        except self._lmdb.MapFullError:
            full.append(True)

    def used_bytes(self) -> int:
        """What its entries take of the file."""
        with self._telling():
            stat = self._env.stat()
        return int(stat["psize"] * (stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]))

    def close(self) -> None:
        """One of those who have opened it needs it no more."""
        with _registry:
            self.users -= 1
            if self.users or _open.get(self._key) is not self:
                return
            del _open[self._key]
            self._env.close()

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """A block whose errors say which file it is, and what to do."""
        lmdb = self._lmdb
        damages = lmdb.InvalidError, lmdb.CorruptedError, lmdb.PageNotFoundError, lmdb.VersionMismatchError
        try:
            yield
        except lmdb.MapFullError:
            raise
        except (lmdb.Error, OSError) as error:
            if isinstance(error, damages):
                raise AsyncUDFError(f"the store in {self.path} is damaged ({error}); delete it") from error
            if isinstance(error, lmdb.DiskError) or getattr(error, "errno", 0) == errno.ENOSPC:
                raise AsyncUDFError(f"the store in {self.path} cannot be written: the disk is full") from error
            if isinstance(error, OSError):
                raise
            raise AsyncUDFError(f"the store in {self.path} fails: {error}") from error

    def _check_length(self) -> None:
        # LMDB would read on behind the end of a file that was cut off, and the system end the process for it.
        pages = self._env.info()["last_pgno"] + 1
        if pages * self._env.stat()["psize"] > os.path.getsize(self.path):
            raise AsyncUDFError(f"the store in {self.path} is damaged: it is too short; delete it")

    def _check_owner(self) -> None:
        with self.begin() as transaction:
            found = transaction.get(HEADER[0])
            is_empty = not transaction.stat()["entries"]
        if found is not None and found != HEADER[1]:
            raise AsyncUDFError(f"the store in {self.path} is of another version of asyncudf; delete it")
        if found is None and not is_empty:
            raise AsyncUDFError(f"{self.path} is somebody else's, and no store of results; use another folder")


def _allocate(path: str) -> None:
    """Give LMDB's lock file its blocks."""
    # LMDB writes to it as to memory; where the disk has no room for that, the system ends the process.
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if hasattr(os, "posix_fallocate") and os.fstat(lock).st_blocks * 512 < LOCK_BYTES:
            os.posix_fallocate(lock, 0, LOCK_BYTES)
    finally:
        os.close(lock)
