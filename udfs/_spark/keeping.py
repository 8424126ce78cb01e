"""Keeping the rows of a DataFrame, so that what reads them again calls no service again.

Where `persist()` keeps them, Spark does. Elsewhere they are written to a folder at once, and read from there.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import itertools
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import types as spark

from .._chain.results import are_ambiguous
from .._errors.exceptions import AsyncUDFError, FunctionError, OptionError
from ._compat import change_setting, engine_of, has_refused_to_keep
from .monitoring.task_report import WORKER_LOGS
from .pickling import Travelling
from .schemas import findable, findable_schema
from .worker import ErrorReporting

FOLDER = "ASYNCUDF_FOLDER"
OTHER_PLACE = f"set {FOLDER} in the driver's environment to a folder that the driver and the functions both reach"
# What Spark turns off where it plans what it caches: in a clone of the session, unless all of it is off.
OFF_IN_CACHED_PLANS = (
    "spark.sql.sources.bucketing.autoBucketedScan.enabled",
    "spark.sql.adaptive.applyFinalStageShuffleOptimizations",
)
WRITTEN = spark.StructType().add("partition", "integer").add("file", "string")

logger = logging.getLogger("asyncudf")


@dataclasses.dataclass(frozen=True)
class Kept:
    """`frame` has the rows, in the same partitions and order, until `close`: also the end of a `with`, which gives it.

    After that a `frame` that Spark has persisted evaluates anew; one that reads a folder raises FunctionError.
    """

    frame: DataFrame
    close: Callable[[], Any]

    def __enter__(self) -> DataFrame:
        return self.frame

    def __exit__(self, *exception: object) -> None:
        self.close()


def keep(frame: DataFrame) -> Kept:
    """Keep the rows of a DataFrame that is no stream, as its engine can.

    Spark evaluates it with the first action, partition by partition, and evaluates again what is lost with an
    executor. Where `persist()` does nothing or is refused, it is evaluated here, to the end: rows are in files of a
    folder until `close`, or the end of the process.

    Raises:
        OptionError: `ASYNCUDF_FOLDER` names no folder in which the driver can make one.
        FunctionError: the functions do not reach the folder; nothing was evaluated then.
        PySparkException: what the evaluation raises, where it happens here.
    """
    session = frame.sparkSession
    if engine_of(session).keeps_frames:
        try:
            return Kept(_persist(frame), frame.unpersist)
        except PySparkException:
            frame.schema  # noqa: B018 - raises if it is the DataFrame that is wrong
            has_refused_to_keep(session)
    folder = _Folder.made(engine_of(session).name)
    try:
        return Kept(folder.holding(frame), folder.close)
    except BaseException:
        folder.close()
        raise


def _persist(frame: DataFrame) -> DataFrame:
    """`frame.persist()`, but so that a monitor over Spark Connect gets the figures of its tasks.

    These are in the logs of the session that has planned the tasks, and those of a clone cannot be read.
    """
    conf = frame.sparkSession.conf
    with contextlib.ExitStack() as undo:
        if not hasattr(frame.sparkSession, "_jsparkSession"):
            with contextlib.suppress(PySparkException):  # a session that lets nobody read or set anything
                if conf.get(WORKER_LOGS, None) == "true":
                    for name in OFF_IN_CACHED_PLANS:
                        before = conf.get(name, None)
                        conf.set(name, "false")
                        undo.callback(change_setting, frame.sparkSession, name, before)
        return frame.persist()


@dataclasses.dataclass(frozen=True)
class _Folder:
    """A new folder that only this user can read, with a file for each partition. Removed when the process ends."""

    # Files of Arrow, and not of the engine's own writer: Parquet does not have all types, and Sail's deals the rows
    # out over its files in turn.

    path: Path
    engine: str

    @classmethod
    def made(cls, engine: str) -> Self:
        root = os.environ.get(FOLDER) or None
        if root is not None and ":/" in root:
            raise OptionError(f"{FOLDER} is {root!r}, a URL; it takes the path of a folder, such as /Volumes/...")
        try:
            path = tempfile.mkdtemp(prefix="asyncudf-kept-", dir=root and os.path.abspath(root))
        except OSError as error:
            where = f"{FOLDER} is {root!r}" if root else f"{engine} does not keep results"
            raise OptionError(f"{where}, and no folder can be made there ({error}); {OTHER_PLACE}") from error
        folder = cls(Path(path), engine)
        atexit.register(folder.close)
        return folder

    def holding(self, frame: DataFrame) -> DataFrame:
        """The rows of the DataFrame, read from here."""
        session, schema = frame.sparkSession, frame.schema
        if not session.range(0, 1, 1, 1).mapInArrow(_Reaching(self.path), "reached boolean").collect()[0].reached:
            raise FunctionError(
                f"{self.engine} does not keep results here (persist() does nothing or is refused), and its functions "
                f"cannot write to {self.path}, which the driver has made for them. Either {OTHER_PLACE}; or read one "
                "result alone, which keeps nothing; or give the functions a store, and read each result by itself"
            )
        written = sorted(
            findable(frame).mapInArrow(_Writing(self.path), WRITTEN).collect(), key=lambda row: row.partition
        )
        files = tuple(row.file for row in written)
        ids = session.range(0, len(files), 1, max(1, len(files)))
        read = ids.mapInArrow(_Reading(self.path, files), findable_schema(schema))
        return read.toDF(*schema.names) if are_ambiguous(schema.names) else read

    def close(self) -> None:
        atexit.unregister(self.close)
        path = self.path
        with contextlib.suppress(OSError):  # tasks that still run make no file in it while it is removed
            path = path.rename(path.with_name(f"{path.name}.closed"))
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            logger.warning("the folder %s with kept results could not be removed (%s); remove it", path, error)


@dataclasses.dataclass(frozen=True)
class _Reaching(Travelling):
    """Whether functions can write to the folder: it has a name that no other one has."""

    folder: Path

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            reached = os.access(self.folder, os.W_OK | os.X_OK)
            yield pa.RecordBatch.from_arrays([pa.array([reached] * batch.num_rows)], ["reached"])


@dataclasses.dataclass(frozen=True)
class _Writing(Travelling):
    """Writes each partition to a file, and gives its name. Files of tasks that have failed are named to nobody."""

    folder: Path
    error_reporting: ErrorReporting = dataclasses.field(default_factory=ErrorReporting)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        filled = (batch for batch in batches if batch.num_rows)
        if (first := next(filled, None)) is None:
            return
        file = self.folder / uuid.uuid4().hex
        with self.error_reporting:
            try:
                with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, first.schema) as stream:
                    for batch in itertools.chain([first], filled):
                        stream.write_batch(batch)
            except BaseException as error:
                file.unlink(missing_ok=True)
                if not isinstance(error, OSError):
                    raise
                raise AsyncUDFError(
                    f"results cannot be kept in {self.folder} ({error}): it is full, or gone, or not on each "
                    f"machine; {OTHER_PLACE}, with space for all results"
                ) from error
        task = TaskContext.get()
        partition = 0 if task is None else task.partitionId()
        yield pa.RecordBatch.from_arrays([pa.array([partition], pa.int32()), pa.array([file.name])], WRITTEN.names)


@dataclasses.dataclass(frozen=True)
class _Reading(Travelling):
    """Reads the files by their numbers, one for each partition."""

    folder: Path
    files: tuple[str, ...]
    error_reporting: ErrorReporting = dataclasses.field(default_factory=ErrorReporting)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with self.error_reporting:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    with self._opened(self.files[number]) as source, pa.ipc.open_stream(source) as stream:
                        yield from stream

    def _opened(self, name: str) -> pa.OSFile:
        try:
            return pa.OSFile(str(self.folder / name), "rb")
        except OSError as error:
            raise FunctionError(
                f"the results kept in {self.folder} are gone ({error}): they stay until close(), the end of the with "
                "block, or that of the program that has made them. Read them before, or write them to a table"
            ) from error
