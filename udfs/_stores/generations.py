"""The files of a folder, by age: what is oldest goes as a whole, so that there is always room for what is new."""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import Any

from .lmdb_files import LOCK_BYTES, LmdbFile, lock_of, opened, private_folder, regular_file

__all__ = ("Generations",)


NAME = re.compile(r"results-(\d+)-(\d+)")  # its number, which grows, and its size
OURS = re.compile(rf"{NAME.pattern}(-lock)?")
KEPT = 2


class Generations:
    """The two youngest files of a folder. New results go into the youngest, which is looked into first.

    When it is full a new one is begun, and the oldest is deleted. So a folder that is full holds the newest half of
    what it may, or more; and no room can be lost in pieces, or to somebody who reads for long.

    Args:
        folder: it is made if it is not there.
        max_bytes: of all files together.

    Raises:
        AsyncUDFError, OSError: as `opened` and `private_folder`.
    """

    # What a folder lists is the truth, for all processes. Files are made, written to and deleted by who has the lock.
    # Only the youngest is written to. A size is in a file's name because all must open it with the same.
    #
    # _files: those of the folder when it was last looked at, by name, the youngest first
    # _lock: the open file that the lock is of, while it is ours

    def __init__(self, folder: str, max_bytes: int) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._size = max_bytes // KEPT - LOCK_BYTES
        self._files: dict[str, LmdbFile] = {}
        self._lock: int | None = None
        private_folder(folder)
        try:
            self.current()
        except BaseException:
            self.close()
            raise

    def current(self) -> list[LmdbFile]:
        """The files, the youngest first; none if nothing was put yet."""
        names = self._listed()[:KEPT]
        if names != list(self._files):
            self._follow(names)
        return list(self._files.values())

    def is_over(self, file: LmdbFile) -> bool:
        """Whether somebody with more `max_bytes` has made the file larger than ours may be."""
        return file.size > self._size and file.used_bytes() > self._size

    def begin(self) -> list[LmdbFile]:
        """Begin a new file, and delete all but the one before; for who has the lock."""
        names = self._listed()
        last = int(NAME.fullmatch(names[0])[1]) if names else 0  # type: ignore[index]
        # Not the next number: a file that was deleted, and is open somewhere, must not be taken for the new one.
        path = os.path.join(self.folder, f"results-{max(last + 1, time.time_ns()):020}-{self._size}")
        try:
            file = opened(path, self._size, create=True)
        except BaseException:
            _remove(path)
            raise
        try:
            self._delete(keep={os.path.basename(path), *names[: KEPT - 1]})
            return self.current()
        finally:
            file.close()

    def clear(self) -> None:
        """Delete all files; for who has the lock. It needs no room."""
        self._delete(keep=set())
        self.current()

    def lock(self) -> bool:
        """Become the one that may write, unless another is; the system takes it back from a killed process."""
        fcntl = _fcntl()
        if fcntl is None:
            return True
        private_folder(self.folder)  # somebody may have deleted it
        # Opened each time, so that it keeps other tasks of this process out too.
        lock = regular_file(os.path.join(self.folder, "writer.lock"), create=True)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException as error:
            os.close(lock)
            if isinstance(error, BlockingIOError):
                return False
            raise
        self._lock = lock
        return True

    def unlock(self) -> None:
        """Let others write."""
        lock, self._lock = self._lock, None
        if lock is not None:
            # To close it is not enough: a process that was just forked has it open too.
            _fcntl().flock(lock, _fcntl().LOCK_UN)
            os.close(lock)

    def close(self) -> None:
        """Close the files."""
        self._follow([])

    def _listed(self) -> list[str]:
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:  # somebody has deleted it: so it is empty
            return []
        found = [(int(match[1]), name) for name in names if (match := NAME.fullmatch(name))]
        return [name for _, name in sorted(found, reverse=True)]

    def _follow(self, names: list[str]) -> None:
        before, self._files = self._files, {}
        try:
            for name in names:
                file = before.pop(name, None)
                if file is None:
                    size = int(NAME.fullmatch(name)[2])  # type: ignore[index]
                    with contextlib.suppress(FileNotFoundError):  # it was deleted a moment ago
                        file = opened(os.path.join(self.folder, name), size)
                if file is not None:
                    self._files[name] = file
        finally:
            for file in before.values():
                file.close()

    def _delete(self, keep: set[str]) -> None:
        for name in os.listdir(self.folder):
            if OURS.fullmatch(name) and name.removesuffix("-lock") not in keep:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(os.path.join(self.folder, name))


def _remove(path: str) -> None:
    for one in (path, lock_of(path)):
        with contextlib.suppress(OSError):
            os.remove(one)


def _fcntl() -> Any:
    try:
        import fcntl
    except ImportError:  # Windows: LMDB alone sees to it that there is one writer
        return None
    return fcntl
