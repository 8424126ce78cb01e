"""Keeping the rows of a DataFrame, so that what reads them again calls no service again.

Where `persist()` keeps them, Spark does. Elsewhere they are written to a folder at once, and read from there.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import types as spark

from .._engine.loop.bridge import SignsOfLife
from .._errors.exceptions import AsyncUDFError, FunctionError, OptionError
from ._compat import change_setting, engine_of, refuses_to_keep
from .monitoring.task_report import WORKER_LOGS
from .pickling import Travelling
from .running_task import RunningTask, unmarked
from .schemas import as_nullable, mapped
from .worker import ErrorReporting

FOLDER = "ASYNCUDF_FOLDER"
OTHER_PLACE = f"set {FOLDER} in the driver's environment to a folder that the driver and the functions both reach"
# What Spark turns off where it plans what it caches: in a clone of the session, unless all of it is off.
OFF_IN_CACHED_PLANS = (
    "spark.sql.sources.bucketing.autoBucketedScan.enabled",
    "spark.sql.adaptive.applyFinalStageShuffleOptimizations",
)
# Each row has the columns of all results, and values in those of one.
COMPRESSED = pa.ipc.IpcWriteOptions(compression="lz4" if pa.Codec.is_available("lz4") else None)
Task = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
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


def keep(df: DataFrame, task: Task | None = None, schema: spark.StructType | None = None) -> Kept:
    """Keep the rows of a batch DataFrame; with a task, the rows that the task makes of them in `mapInArrow`.

    Spark evaluates them with the first action, partition by partition, and evaluates again what is lost with an
    executor. Where `persist()` does nothing or is refused, they are evaluated here, to the end: then they are in files
    of a folder until `close`, or the end of the process. A sort before it is lost where `lost_sort` says so.

    Raises:
        OptionError: `ASYNCUDF_FOLDER` names no folder in which the driver can make one.
        FunctionError: the functions do not reach the folder; nothing was evaluated then.
        PySparkException: what the evaluation raises, where it happens here.
    """
    session = df.sparkSession
    if engine_of(session).keeps_frames:
        frame = df if task is None or schema is None else mapped(df, task, schema)
        try:
            return Kept(_persist(frame), frame.unpersist)
        except PySparkException:
            if not refuses_to_keep(session):  # it is the DataFrame that is wrong
                raise
    folder = _Folder.made(engine_of(session).name)
    try:
        declared: Any = schema or as_nullable(df.schema)  # a void that is not NULL has no type in Arrow
        return Kept(folder.holding(df, task, declared), folder.close)
    except BaseException:
        folder.close()
        raise


def _persist(frame: DataFrame) -> DataFrame:
    """`frame.persist()`, but so that a monitor over Spark Connect gets the figures of its tasks.

    The figures are in the logs of the session that has planned the tasks; the logs of a clone cannot be read.
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
            path = tempfile.mkdtemp(prefix="asyncudf-kept-", dir=root and os.path.abspath(os.path.expanduser(root)))
        except OSError as error:
            where = f"{FOLDER} is {root!r}" if root else f"{engine} does not keep results"
            raise OptionError(f"{where}, and no folder can be made there ({error}); {OTHER_PLACE}") from error
        folder = cls(Path(path), engine)
        atexit.register(folder.close)
        return folder

    def holding(self, df: DataFrame, task: Task | None, schema: spark.StructType) -> DataFrame:
        """The rows of `keep`, read from here."""
        session = df.sparkSession
        if not session.range(0, 1, 1, 1).mapInArrow(_Reaching(self.path), "reached boolean").collect()[0].reached:
            raise FunctionError(
                f"{self.engine} does not keep results here (persist() does nothing or is refused), and its functions "
                f"cannot write to {self.path}, which the driver has made for them. Either {OTHER_PLACE}; or read one "
                "result of a stream alone, which keeps nothing: AsyncStream.collect(name=stream), with a store "
                "(ResultStore) if you read another one later"
            )
        written = mapped(df, _Writing(self.path, task), WRITTEN).where("file IS NOT NULL").collect()
        files = tuple(row.file for row in sorted(written, key=lambda row: row.partition))
        numbers = session.range(0, len(files), 1, max(1, len(files)))
        return mapped(numbers, _Reading(self.path, files), schema)

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
    """Writes each partition to a file, and gives its name. What a task that has failed has written is removed."""

    # The chain is part of this task, not a stage before it: Sail passes only the text of an error from one to the next.

    folder: Path
    task: Task | None
    error_reporting: ErrorReporting = dataclasses.field(default_factory=ErrorReporting)

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        path, stream, signs = self.folder / uuid.uuid4().hex, None, SignsOfLife()
        with self.error_reporting, contextlib.ExitStack() as failed:
            failed.callback(path.unlink, missing_ok=True)
            running: RunningTask | None = None

            def given() -> Iterator[pa.RecordBatch]:
                nonlocal running
                for batch in batches:
                    if running is None and batch.num_rows:
                        running = RunningTask.of_rows(batch)
                    yield batch

            for batch in map(unmarked, given()) if self.task is None else self.task(given()):
                if signs.are_due():
                    yield _files([None])
                if not batch.num_rows:  # a sign of life
                    yield _files([])
                    continue
                with self._telling():
                    if stream is None:
                        file = failed.enter_context(pa.OSFile(str(path), "wb"))
                        stream = pa.ipc.new_stream(file, batch.schema, options=COMPRESSED)
                    stream.write_batch(batch)
            if stream is not None:
                with self._telling():
                    stream.close()
                    file.close()  # pyright: ignore[reportPossiblyUnboundVariable]
                failed.pop_all()
                yield _files([path.name], 0 if running is None else running.partition)

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise AsyncUDFError(
                f"results cannot be kept in {self.folder} ({error}): it is full, or gone, or not on each machine; "
                f"{OTHER_PLACE}, with space for all results"
            ) from error


def _files(names: Sequence[str | None], partition: int = 0) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [pa.array([partition] * len(names), pa.int32()), pa.array(names, pa.string())], WRITTEN.names
    )


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
