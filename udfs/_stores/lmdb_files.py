"""The LMDB files of a folder: each is open once in this process, and the oldest goes when the youngest is full."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import re
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from .._errors.exceptions import AsyncUDFError

if sys.platform != "win32":
    import fcntl

NOT_ON_WINDOWS = "a store in files needs Linux or macOS: Windows deletes no file that is open; use ResultStore.redis"

READERS = 1000  # at once, in all processes of the host
LOCK_BYTES = 2**16  # LMDB's own lock file, which has room for so many
HEADER = (b"asyncudf", b"results 1")  # in each file that is ours; another value for another layout
NAME = re.compile(r"results-\d{20}-\d+")  # its number, which grows, and its size in bytes
KEPT_FILES = 2  # files


class RotatingFiles:
    """The two youngest files of a folder. New results go into the youngest, which is read first.

    When it is full, a new file is begun and the oldest is deleted. So a full folder holds the newest half of what it
    may hold, or more. Neither fragmentation nor a long read takes room away from new results.

    Args:
        folder: it is made if it is not there.
        max_bytes: the size of all files together.

    Raises:
        AsyncUDFError: the folder or a file is another user's, is damaged, or was open when this process was forked;
            the disk is full; this is Windows.
        OSError: the folder cannot be made, or a file cannot be read and written.
    """

    # What a folder lists is the truth, for all processes. Only the process that has the writer's lock makes, writes and
    # deletes files. Only the youngest is written to. A size is in a file's name because all must open it with the same.
    #
    # _files: those of the folder when it was last listed, by name, the youngest first

    def __init__(self, folder: str, max_bytes: int) -> None:
        if sys.platform == "win32":
            raise AsyncUDFError(NOT_ON_WINDOWS)
        self.folder = folder
        self.max_bytes = max_bytes
        self._size = max_bytes // KEPT_FILES - LOCK_BYTES
        self._files: dict[str, LmdbFile] = {}
        _make_private(folder)
        try:
            self.current()
        except BaseException:
            self.close()
            raise

    def current(self) -> list[LmdbFile]:
        """The files, the youngest first; none if nothing was put yet."""
        names = self._listed()[:KEPT_FILES]
        if names != list(self._files):
            self._follow(names)
        return list(self._files.values())

    @contextlib.contextmanager
    def writing(self) -> Iterator[bool]:
        """A block that is given True if it has the writer's lock, and False if another task has the lock.

        The system takes the lock back from a process that is killed.
        """
        _make_private(self.folder)  # somebody may have deleted it
        # Opened each time, so that the lock keeps other tasks of this process out too.
        lock = regular_file(os.path.join(self.folder, "writer.lock"), create=True)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            try:
                yield True
            finally:
                fcntl.flock(lock, fcntl.LOCK_UN)  # to close it is not enough: a process just forked has it open too
        finally:
            os.close(lock)

    def put(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Write entries, to a new file if the youngest is full. The caller has the writer's lock."""
        files = self.current()
        if files and not self._is_too_large(files[0]) and files[0].put(entries):
            return
        if not self.begin().put(entries):
            raise AsyncUDFError(f"the store in {self.folder} is full, also when it begins anew")

    def begin(self) -> LmdbFile:
        """Begin a new file, and delete all but the last. The caller has the writer's lock."""
        names = self._listed()
        last = int(names[0].split("-")[1]) if names else 0
        # Not the next number: a file that was deleted, and is open somewhere, must not be taken for the new one.
        name = f"results-{max(last + 1, time.time_ns()):020}-{self._size}"
        path = os.path.join(self.folder, name)
        try:
            file = _opened(path, self._size, create=True)
        except BaseException:
            _remove(path)
            raise
        try:
            self._delete(keep={name, *names[: KEPT_FILES - 1]})
            return self.current()[0]
        finally:
            file.close()

    def clear(self) -> None:
        """Delete all files, which needs no free space on the disk. The caller has the writer's lock."""
        self._delete(keep=set())
        self.current()

    def close(self) -> None:
        self._follow([])

    def _is_too_large(self, file: LmdbFile) -> bool:
        """Whether a store with more `max_bytes` has made the file larger than ours may be."""
        return file.size > self._size and file.used_bytes() > self._size

    def _listed(self) -> list[str]:
        try:
            return sorted(filter(NAME.fullmatch, os.listdir(self.folder)), reverse=True)
        except FileNotFoundError:  # somebody has deleted the folder: so it is empty
            return []

    def _follow(self, names: Sequence[str]) -> None:
        before, self._files = self._files, {}
        try:
            for name in names:
                file = before.pop(name, None)
                if file is None:
                    with contextlib.suppress(FileNotFoundError):  # it was deleted a moment ago
                        file = _opened(os.path.join(self.folder, name), int(name.split("-")[2]))
                if file is not None:
                    self._files[name] = file
        finally:
            for file in before.values():
                file.close()

    def _delete(self, keep: set[str]) -> None:
        for name in os.listdir(self.folder):
            if (result := name.removesuffix("-lock")) not in keep and NAME.fullmatch(result):
                _remove(os.path.join(self.folder, result))


def _remove(path: str) -> None:
    for one in (path, _lock_of(path)):
        with contextlib.suppress(FileNotFoundError):
            os.remove(one)


class LmdbFile:
    """One file of entries under keys. Its methods never wait, as long as there is one writer at a time.

    All processes that open a file give the same size: the bytes that the file may grow to.
    """

    # _data, _lock: the same files, open to see how long they are. The lock file is closed after LMDB has closed it: the
    # system would take LMDB's locks back.
    # users: how many uses of this process are open, see `_opened`

    def __init__(self, path: str, size: int, *, create: bool) -> None:
        import lmdb

        self._lmdb: Any = lmdb
        self._pid = os.getpid()
        self.users = 0
        self.path = path
        self.size = size
        with contextlib.ExitStack() as undo, self._explained():
            # LMDB would make one that is not there.
            undo.callback(os.close, data := regular_file(path, create=create))
            undo.callback(os.close, lock := regular_file(_lock_of(path), create=True))
            _allocate(lock)
            # No fsync: what is written is in the system's hands, and outlives the process, but not a power failure.
            self._env: Any = lmdb.open(path, map_size=size, subdir=False, max_readers=READERS, sync=False, mode=0o600)
            undo.callback(self._env.close)
            self._data, self._lock = data, lock
            self._page, self._lock_bytes = self._env.stat()["psize"], os.fstat(lock).st_size
            self._env.reader_check()  # what a killed process was reading can be written over
            self._check_header()
            self._close = undo.pop_all().close

    @contextlib.contextmanager
    def transaction(self, *, write: bool = False, buffers: bool = False) -> Iterator[Any]:
        """A transaction, which counts unless an exception leaves the block.

        Raises AsyncUDFError if the file cannot be read or written.
        """
        with self._explained():
            self._check_length()
            with self._env.begin(write=write, buffers=buffers) as transaction:
                yield transaction

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        with self.transaction() as transaction:
            return [*map(transaction.get, keys)]

    def put(self, entries: Sequence[tuple[bytes, bytes]]) -> bool:
        """Write entries, all or none; whether there was room for them."""
        try:
            with self.transaction(write=True) as transaction:
                transaction.put(*HEADER, overwrite=False)
                transaction.cursor().putmulti(entries)
        except self._lmdb.MapFullError:
            return False
        return True

    def heads(self, start: bytes, count: int, length: int) -> list[tuple[bytes, bytes]]:
        """The next keys from `start` on, each with the first bytes of its entry."""
        with self.transaction(buffers=True) as transaction:
            cursor = transaction.cursor()
            found = islice(cursor.iternext(), count) if cursor.set_range(start) else ()
            return [(bytes(key), bytes(entry[:length])) for key, entry in found]

    def used_bytes(self) -> int:
        """What its entries take of the file."""
        with self.transaction() as transaction:
            found = transaction.stat()
        return int(found["psize"] * (found["branch_pages"] + found["leaf_pages"] + found["overflow_pages"]))

    def close(self) -> None:
        """End one use of the file, which is closed with its last."""
        with _registry:
            self.users -= 1
            if self.users or os.getpid() != self._pid:
                return
            del _open[self._pid, self.path]
            if not self._is_long(self._lock, self._lock_bytes):  # LMDB writes to it once more
                os.ftruncate(self._lock, self._lock_bytes)
            self._close()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
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
            if isinstance(error, lmdb.MemoryError):
                raise AsyncUDFError(
                    f"the store in {self.path} is too large for the addresses that this process may use (ulimit -v, "
                    "spark.executor.pyspark.memory): another process has begun it; use another folder"
                ) from error
            raise AsyncUDFError(f"the store in {self.path} fails: {error}") from error

    def _check_length(self) -> None:
        # LMDB would read on behind the end of a file that was cut off, and the system end the process for it. Before
        # each use: first the two pages that `info()` reads, then `last_pgno` before the length, because a writer
        # lengthens the file before it publishes a page.
        is_long = self._is_long(self._lock, self._lock_bytes) and self._is_long(self._data, 2 * self._page)
        if not is_long or not self._is_long(self._data, self._page * (self._env.info()["last_pgno"] + 1)):
            raise AsyncUDFError(f"the store in {self.path} is damaged: it is too short; delete it")

    @staticmethod
    def _is_long(file: int, size: int) -> bool:
        return os.fstat(file).st_size >= size

    def _check_header(self) -> None:
        with self.transaction() as transaction:
            found = transaction.get(HEADER[0])
            is_empty = not transaction.stat()["entries"]
        if found is not None and found != HEADER[1]:
            raise AsyncUDFError(f"the store in {self.path} is of another version of asyncudf; delete it")
        if found is None and not is_empty:
            raise AsyncUDFError(f"{self.path} is somebody else's, and no store of results; use another folder")


# Keyed by process too: what was opened before a fork is the parent's, and the child must leave it alone.
_open: dict[tuple[int, str], LmdbFile] = {}
_own_folders: dict[int, str] = {}
_registry = threading.Lock()  # the chains of a notebook's tests run in threads; it is held for an open or a close


def _opened(path: str, size: int, *, create: bool = False) -> LmdbFile:
    """A use of the file; the caller closes it. A process must not open an LMDB file twice, so uses share one object.

    Raises the errors of `RotatingFiles`, and FileNotFoundError if the file is not there and is not to be made.
    """
    folder, name = os.path.split(path)
    path = os.path.join(os.path.realpath(folder), name)
    with _registry:
        key = os.getpid(), path
        if key not in _open:
            if any(other == path for _, other in _open):
                raise AsyncUDFError(
                    f"the store in {folder} was open when this process was forked, which LMDB forbids; "
                    "close it before, or start the process otherwise ('spawn')"
                )
            _open[key] = LmdbFile(path, size, create=create)
        _open[key].users += 1
        return _open[key]


def own_folder() -> str:
    """A temporary folder of this process, for a store without a folder."""
    with _registry:
        pid = os.getpid()
        if pid not in _own_folders:
            _own_folders[pid] = tempfile.mkdtemp(prefix="asyncudf-")
            atexit.register(_remove_own, pid)
        return _own_folders[pid]


def _remove_own(pid: int) -> None:
    if os.getpid() == pid:  # a forked child has inherited what is to happen at exit
        shutil.rmtree(_own_folders[pid], ignore_errors=True)


def _make_private(path: str) -> None:
    """Check that a folder is this user's and that no other user can write to it; make it if it is not there.

    LMDB opens a file by its name, and follows links. So another user who can write to the folder could have another
    file overwritten, or make a task wait for ever at a FIFO.

    Raises:
        AsyncUDFError: it belongs to another user, or others can write to it.
        OSError: it cannot be made, or is no folder.
    """
    os.makedirs(path, mode=0o700, exist_ok=True)
    for found in (os.lstat(path), os.stat(path)):  # a link counts too: its owner can lead it elsewhere
        if found.st_uid != os.geteuid():
            raise AsyncUDFError(f"the folder {path} belongs to another user (uid {found.st_uid}); use one of your own")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise AsyncUDFError(f"others can write to the folder {path}; chmod go-w it, or use another folder")


def regular_file(path: str, *, create: bool = False) -> int:
    """An open file of this user's; AsyncUDFError for a link, a FIFO or anything else."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_CREAT if create else 0)
    refused = f"{path} is no regular file of this user's, and cannot be part of a store; remove it"
    try:
        opened = os.open(path, flags, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):  # a link, a folder, a socket
            raise AsyncUDFError(refused) from error
        raise
    found = os.fstat(opened)
    if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
        return opened
    os.close(opened)
    raise AsyncUDFError(refused)


def _lock_of(path: str) -> str:
    """LMDB's own file beside a file, with its readers and its writer."""
    return f"{path}-lock"


def _allocate(lock: int) -> None:
    # LMDB writes to it as to memory; where the disk has no room for that, the system ends the process.
    if hasattr(os, "posix_fallocate") and os.fstat(lock).st_blocks * 512 < LOCK_BYTES:
        os.posix_fallocate(lock, 0, LOCK_BYTES)
