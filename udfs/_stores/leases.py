"""Leases of keys among the tasks of one host: who has one calls, the others wait for the result."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from typing import Any, Protocol

from .._errors.exceptions import AsyncUDFError

__all__ = ("FileLeases", "Leases", "leases_in")


class Leases(Protocol):
    """What a store offers whose tasks can agree on who calls."""

    def take(self, key: bytes) -> bool:
        """Lease a key, unless somebody else has it; True as well for one that is leased already by this object."""

    def give_back(self, key: bytes) -> None:
        """End the lease of a key; nothing happens if there is none."""

    def close(self) -> None:
        """End all leases of this object."""


class FileLeases:
    """Leases as locks on single bytes of one empty file.

    The operating system ends the locks of a process that dies, however it dies. So a lease needs no clock, and may
    last as long as its call.
    """

    # "Open file description" locks: they belong to this object, and not to the process as other locks of fcntl do. Two
    # operators of one task exclude each other too, and neither loses its locks when the other closes the file.

    def __init__(self, path: str) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            self._file = os.open(path, flags, 0o600)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise AsyncUDFError(f"{path} is a symbolic link, which a store does not follow; delete it") from error
            raise
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            os.close(self._file)
            raise AsyncUDFError(f"{path} is no regular file; delete it")

    def take(self, key: bytes) -> bool:
        try:
            self._lock(key, _fcntl().F_WRLCK)
        except OSError as error:
            return error.errno not in (errno.EAGAIN, errno.EACCES)  # a system without such locks: everybody may call
        return True

    def give_back(self, key: bytes) -> None:
        with contextlib.suppress(OSError):  # there was no lease
            self._lock(key, _fcntl().F_UNLCK)

    def _lock(self, key: bytes, kind: int) -> None:
        fcntl = _fcntl()
        start = int.from_bytes(key[:8], "big") >> 2  # below 2**62, as a file's length must be
        fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, 1, 0))

    def close(self) -> None:
        os.close(self._file)


def leases_in(folder: str) -> FileLeases | None:
    """The leases of a folder; None on a system that has no such locks."""
    return FileLeases(os.path.join(folder, "leases")) if hasattr(_fcntl(), "F_OFD_SETLK") else None


def _fcntl() -> Any:
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    return fcntl
