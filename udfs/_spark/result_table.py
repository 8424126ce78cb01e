"""Results as rows of a table, to which waves are only added: by a path, or by a name of the catalog.

Spark's own reader and writer do everything, so a path may be wherever Spark can write, also over Spark Connect.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql import Observation

from .._errors.exceptions import AsyncUDFError, OptionError
from ._compat import condition_of, engine_of
from .keeping import keep

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

WAVE = "wave"  # tells the waves apart
FILE_FORMATS = ("parquet", "orc", "avro")  # folders of files, without transactions
NOTHING_THERE = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_TABLE_NOT_FOUND")
# Iceberg shuffles what it writes to a table with a sort order by ranges: Spark reads the rows twice for that, and calls
# twice. Other tables do not know the option.
READ_ONCE = {"distribution-mode": "none"}
IN_PATTERNS = re.compile(r"([*?\[\]{}\\])")
LONGEST = 600.0  # seconds until Spark tells what it has observed of a query that has ended


@dataclasses.dataclass(frozen=True)
class ResultTable:
    """A wave that was added is there with whole rows, or not at all; no row is changed.

    A key may have several rows; its reader chooses by their columns, such as a time or an attempt.

    Attributes:
        where: a path, which has a slash, a backslash or a colon and is read literally; or the name of a table.
        writing: options of the writer.
    """

    session: SparkSession
    where: str
    format: str = "parquet"
    writing: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def is_path(self) -> bool:
        return any(mark in self.where for mark in "/\\:")

    @property
    def is_files(self) -> bool:
        return self.is_path and self.format.lower() in FILE_FORMATS

    def rows(self, schema: StructType | None = None) -> DataFrame | None:
        """All rows, with the schema that they are known to have; None if nothing is at the path.

        Raises:
            PySparkException: Spark cannot read the table; there is none of this name.
        """
        if not self.is_path:
            if engine_of(self.session).caches_tables:
                self.session.catalog.refreshTable(self.where)  # another job may have added files
            return self.session.read.table(self.where)
        try:
            found = self._load(self.where, schema)
            # Spark Connect reads the schema only now. Of nothing Spark raises an error, and Sail gives no columns.
            return found if found.columns else None
        except PySparkException as error:
            if not is_missing(error):
                raise
            return None

    def wave(self, wave: str, schema: StructType) -> DataFrame:
        """The rows of one wave of files."""
        return self._load(self._folder(wave), schema)

    def add(self, rows: DataFrame, wave: str, *, again: bool = False) -> None:
        """Add a wave, all of it or nothing; `again`: replace what a killed process has left of this wave."""
        if self.is_files:
            # Two jobs that write into one folder would delete each other's temporary files, so each wave has its own.
            # A job that was killed leaves whole files with whole rows, and a `_temporary` that nobody reads.
            writer = rows.drop(WAVE).write.format(self.format).options(**self.writing)
            writer.mode("overwrite" if again else "error").save(self._folder(wave))
        elif self.is_path:
            rows.write.format(self.format).mode("append").save(self.where)
        else:  # which takes them by position
            columns = self.session.read.table(self.where).columns
            rows.select(*columns).write.options(**READ_ONCE).insertInto(self.where)

    def _folder(self, wave: str) -> str:
        return f"{self.where.rstrip('/')}/{WAVE}={wave}"

    def _load(self, place: str, schema: StructType | None) -> DataFrame:
        if self.is_files:
            return read_files(self.session, place, self.format, schema)
        reader = self.session.read.format(self.format)
        return (reader if schema is None else reader.schema(schema)).load(place)


def read_files(session: SparkSession, place: str, kind: str, schema: StructType | None = None) -> DataFrame:
    """What is in a file or folder, whose path is no pattern: Spark writes to a path literally, but reads patterns.

    Raises:
        OptionError: over Spark Connect, for a path that Hadoop cannot read if a character is escaped.
    """
    reader = session.read.format(kind)
    if schema is not None:
        reader = reader.schema(schema)
    if engine_of(session).keeps_options:
        return reader.option("__globPaths__", "false").load(place)  # which counts by this very name
    escaped = IN_PATTERNS.sub(r"\\\1", place)
    if escaped != place and ":" in re.sub(r"^\w+:/", "", place):
        raise OptionError(
            f"{place} cannot be read over Spark Connect, which takes it for a pattern: take a path without a colon, or "
            "without any of * ? [ ] { } and the backslash"
        )
    return reader.load(escaped)


def wave_name() -> str:
    """A name for a wave: later ones come later, and no two are the same."""
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{uuid.uuid4().hex}"


def is_missing(error: Exception) -> bool:
    """Whether Spark says that nothing is at a path; an error of Java says it in its text."""
    found = condition_of(error) if isinstance(error, PySparkException) else None
    named = found or next(iter(re.findall(r"\[([A-Z][A-Z0-9_.]+)\]", str(error))), "")
    return named.partition(".")[0] in NOTHING_THERE


@contextlib.contextmanager
def counted(rows: DataFrame, *figures: Column) -> Iterator[tuple[DataFrame, Callable[[], dict[str, Any]]]]:
    """The rows, and a function that returns these aggregates once the rows are written. They are evaluated once."""
    if engine_of(rows.sparkSession).observes:
        seen = Observation()
        yield rows.observe(seen, *figures), lambda: observed(seen)
        return
    with keep(rows) as kept:
        yield kept, lambda: kept.agg(*figures).collect()[0].asDict()


def observed(seen: Observation) -> dict[str, Any]:
    """What was counted beside a query that has ended, with an end: Spark tells it by its listeners, and may drop it.

    Raises:
        AsyncUDFError: Spark does not tell it.
    """
    told = Future[dict[str, Any]]()

    def wait() -> None:
        try:
            told.set_result(seen.get)
        except BaseException as error:
            told.set_exception(error)

    threading.Thread(target=wait, daemon=True).start()
    try:
        return told.result(LONGEST)
    except TimeoutError:
        if told.done():  # it is an error of Spark
            raise
        raise AsyncUDFError(
            "what was written is there, but Spark has not told how many rows it was: its listeners are overloaded "
            "(its log says 'Dropping event from queue'); raise spark.scheduler.listenerbus.eventqueue.capacity, and "
            "run it again"
        ) from None
