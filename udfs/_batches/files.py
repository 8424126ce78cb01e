"""The files of a state, by Hadoop in the JVM of this process: where there is one, small files cost no Spark job.

Each call of the JVM takes a while. So files on a disk of this machine, where the JVM runs too, are read without it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._errors.exceptions import AsyncUDFError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HadoopFiles:
    """The file system that a path is on."""

    # Each name of a package and each call is a question to the JVM: classes are looked up once.

    def __init__(self, jvm: Any, configuration: Any, path: str) -> None:
        self._path = jvm.org.apache.hadoop.fs.Path
        self._read_all = jvm.org.apache.commons.io.IOUtils.toByteArray
        self._files = self._path(path).getFileSystem(configuration)
        self._is_local = str(self._files.getUri().toString()).startswith("file:")

    @classmethod
    def of(cls, session: SparkSession, path: str) -> HadoopFiles | None:
        """The file system of a path; None over Spark Connect, and where the JVM may not be used."""
        try:
            context: Any = session.sparkContext
            return cls(context._jvm, context._jsc.hadoopConfiguration(), path)
        except Exception:
            return None

    def qualified(self, path: str) -> str:
        """The path with its file system; a relative path begins at Hadoop's working directory."""
        return str(self._files.makeQualified(self._path(path)).toString())

    def is_there(self, path: str) -> bool:
        return bool(self._files.exists(self._path(path)))

    def names(self, folder: str) -> list[str]:
        """The names in a folder without hidden files; empty if the folder is not there."""
        if self._is_local:
            with contextlib.suppress(OSError):  # Hadoop says what is wrong
                return [name for name in os.listdir(_on_disk(folder)) if not name.startswith(".")]
        if not self.is_there(folder):
            return []
        names = [str(status.getPath().getName()) for status in self._files.listStatus(self._path(folder))]
        return [name for name in names if not name.startswith(".")]

    def read(self, path: str) -> str | None:
        """The text of a file; None if it is not there."""
        if self._is_local:
            with contextlib.suppress(OSError):
                return Path(_on_disk(path)).read_bytes().decode()
        place = self._path(path)
        if not self._files.exists(place):
            return None
        stream = self._files.open(place)
        try:
            return bytes(self._read_all(stream)).decode()
        finally:
            stream.close()

    def write(self, folder: str, name: str, content: str) -> None:
        """Write a file, all of it or nothing."""
        unfinished = f"{folder}/_{name}"  # Spark does not read names with an underscore
        out = self._files.create(self._path(unfinished))
        try:
            out.write(bytearray(content.encode()))
        finally:
            out.close()
        if not self._files.rename(self._path(unfinished), self._path(f"{folder}/{name}")):
            raise OSError(f"{unfinished} cannot be renamed")

    def delete(self, path: str) -> None:
        self._files.delete(self._path(path), False)


def _on_disk(path: str) -> str:
    return re.sub(r"^file:(//[^/]*)?", "", path)


@contextlib.contextmanager
def naming(path: str, what: str) -> Iterator[None]:
    """A block in which errors of Spark and the storage name the state; the long traces of Java are cut off."""
    try:
        yield
    except AsyncUDFError:
        raise
    except Exception as error:
        reason = str(getattr(error, "java_exception", error)).partition("\n")[0]
        raise AsyncUDFError(f"the state {path} cannot be {what}: {reason}") from error
