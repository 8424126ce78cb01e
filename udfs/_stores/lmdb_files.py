"""LMDB files that are open in this process: each once, as LMDB asks for."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

from .._errors.exceptions import AsyncUDFError

__all__ = ("HEADER", "LOCK_BYTES", "LmdbFile", "lock_of", "opened", "own_folder", "private_folder", "regular_file")


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
        key = os.getpid(), os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        if key not in _open:
            if any(other == key[1] for _, other in _open):
                raise AsyncUDFError(
                    f"the store in {os.path.dirname(path)} was open when this process was forked, which LMDB forbids; "
                    "close it before, or start the process otherwise ('spawn')"
                )
            _open[key] = LmdbFile(key, size, create=create)
        _open[key].users += 1
        return _open[key]


def private_folder(path: str) -> None:
    """See that a folder is this user's, and that nobody else can put anything into it; make it if it is not there.

    LMDB opens a file by its name, and follows links. So whoever can write to the folder could have another file
    overwritten, or make a task wait for ever at a FIFO.

    Raises:
        AsyncUDFError: it belongs to another user, or others can write to it.
        OSError: it cannot be made, or is no folder.
    """
    os.makedirs(path, mode=0o700, exist_ok=True)
    if not hasattr(os, "geteuid"):  # Windows: who may write is said elsewhere
        return
    for found in (os.lstat(path), os.stat(path)):  # a link counts too: its owner can lead it elsewhere
        if found.st_uid != os.geteuid():
            raise AsyncUDFError(f"the folder {path} belongs to another user (uid {found.st_uid}); use one of your own")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise AsyncUDFError(f"others can write to the folder {path}; chmod go-w it, or use another folder")


def regular_file(path: str, *, create: bool = False) -> int:
    """An open file of this user's; no link, FIFO or anything else.

    Raises:
        AsyncUDFError: it is something else.
        OSError: it cannot be read and written, or is not there.
    """
    flags = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | (os.O_CREAT if create else 0)
    refused = f"{path} is no regular file of this user's, and cannot be part of a store; remove it"
    try:
        opened = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):  # a link, a folder, a socket
            raise AsyncUDFError(refused) from error
        raise
    found = os.fstat(opened)
    if stat.S_ISREG(found.st_mode) and (not hasattr(os, "geteuid") or found.st_uid == os.geteuid()):
        return opened
    os.close(opened)
    raise AsyncUDFError(refused)


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

    # _data, _lock: the same files, open to see how long they are. A lock file is closed after LMDB has closed it: the
    # system would take LMDB's locks back.

    def __init__(self, key: tuple[int, str], size: int, *, create: bool) -> None:
        import lmdb

        self._lmdb: Any = lmdb
        self._key = key
        self.users = 0
        self.path = path = key[1]
        self.size = size
        with contextlib.ExitStack() as undo, self._telling():
            # LMDB would make one that is not there.
            undo.callback(os.close, data := regular_file(path, create=create))
            undo.callback(os.close, lock := regular_file(lock_of(path), create=True))
            _allocate(lock)
            # No fsync: what is written is in the system's hands, and outlives the process, but not a power failure.
            self._env: Any = lmdb.open(path, map_size=size, subdir=False, max_readers=READERS, sync=False, mode=0o600)
            undo.callback(self._env.close)
            self._data, self._lock = data, lock
            self._page, self._lock_bytes = self._env.stat()["psize"], os.fstat(lock).st_size
            self._env.reader_check()  # what a killed process was reading can be written over
            self._check_owner()
            self._close = undo.pop_all().close

    @contextlib.contextmanager
    def begin(self, *, write: bool = False, buffers: bool = False) -> Iterator[Any]:
        """A transaction, that counts unless an exception leaves the block.

        Raises:
            AsyncUDFError: the file cannot be read or written.
        """
        with self._telling():
            self._check_length()
            with self._env.begin(write=write, buffers=buffers) as transaction:
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
        with self.begin() as transaction:
            found = transaction.stat()
        return int(found["psize"] * (found["branch_pages"] + found["leaf_pages"] + found["overflow_pages"]))

    def close(self) -> None:
        """One of those who have opened it needs it no more."""
        with _registry:
            self.users -= 1
            if self.users or _open.get(self._key) is not self:
                return
            del _open[self._key]
            if not self._is_long(self._lock, self._lock_bytes):  # LMDB writes to it once more
                os.ftruncate(self._lock, self._lock_bytes)
            self._close()

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
        # LMDB would read on behind the end of a file that was cut off, and the system end the process for it. So they
        # are looked at before each use, beginning with what LMDB needs to say which its last page is; and that is asked
        # for before the length, as the file grows first.
        is_long = self._is_long(self._lock, self._lock_bytes) and self._is_long(self._data, 2 * self._page)
        if not is_long or not self._is_long(self._data, self._page * (self._env.info()["last_pgno"] + 1)):
            raise AsyncUDFError(f"the store in {self.path} is damaged: it is too short; delete it")

    @staticmethod
    def _is_long(file: int, size: int) -> bool:
        return os.fstat(file).st_size >= size

    def _check_owner(self) -> None:
        with self.begin() as transaction:
            found = transaction.get(HEADER[0])
            is_empty = not transaction.stat()["entries"]
        if found is not None and found != HEADER[1]:
            raise AsyncUDFError(f"the store in {self.path} is of another version of asyncudf; delete it")
        if found is None and not is_empty:
            raise AsyncUDFError(f"{self.path} is somebody else's, and no store of results; use another folder")


def _allocate(lock: int) -> None:
    """Give LMDB's lock file its blocks."""
    # LMDB writes to it as to memory; where the disk has no room for that, the system ends the process.
    if hasattr(os, "posix_fallocate") and os.fstat(lock).st_blocks * 512 < LOCK_BYTES:
        os.posix_fallocate(lock, 0, LOCK_BYTES)
