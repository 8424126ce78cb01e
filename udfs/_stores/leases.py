"""Leases of keys among the tasks of one host: the task that has a key's lease calls, the others wait for its result."""

from __future__ import annotations

import errno
import os
import struct
import sys
import weakref
from typing import Protocol

from .lmdb_files import regular_file

if sys.platform != "win32":
    import fcntl

LEASE_FILES = 16  # for ten thousand leases at once


class Leases(Protocol):
    """The leases of one store object, of which tasks have one each."""

    def take(self, key: bytes) -> bool:
        """Lease a key, unless another object has it leased; also True if this object has it leased already."""
        ...

    def give_back(self, key: bytes) -> None:
        """End the lease of a key, if there is one."""

    def close(self) -> None:
        """End all leases of this object."""


class FileLeases:
    """Leases as locks on single bytes of a few empty files.

    The operating system ends the locks of a process that dies, however it dies. So a lease needs no clock, and lasts as
    long as its call.
    """

    # "Open file description" locks: they belong to this object, and not to the process as other locks of fcntl do. Two
    # operators of one task exclude each other too, and neither loses its locks when the other closes the files.
    #
    # To take a lock the system searches all locks of the file: so there is more than one file.

    def __init__(self, path: str) -> None:
        self._files: list[int] = []
        _open.add(self)
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


_open: weakref.WeakSet[FileLeases] = weakref.WeakSet()


def _close_after_fork() -> None:
    """A process that a task has forked may outlive it, and must not keep its leases."""
    for leases in _open:
        leases.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_after_fork)
