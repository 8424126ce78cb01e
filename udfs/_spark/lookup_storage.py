"""Where a LookupTable is: a path, or the name of a table, by Spark's own reader, writer and catalog."""

from __future__ import annotations

import abc
import dataclasses
import re
import time
import uuid

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as spark

from .._errors.exceptions import FunctionError, OptionError
from .._text.safe import safe_repr
from ._compat import condition_of

WAVE = "wave"  # the column that tells the batches apart
FILE_FORMATS = ("parquet", "orc", "avro")  # folders of files, without transactions
NOT_FORMATS = ("binaryfile", "csv", "json", "text", "xml")  # do not keep the types of columns
NOTHING_THERE = ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_TABLE_NOT_FOUND")
# Spark writes to a path literally, but reads it as a pattern. Escaping `*` would forbid colons in the path.
LITERAL_PATH = {"__globPaths__": "false"}
_PART = r"(?:\w+|`(?:[^`]|``)+`)"
_NAME = re.compile(rf"{_PART}(?:\.{_PART})*")


@dataclasses.dataclass(frozen=True)
class Storage(abc.ABC):
    """Reads the rows of a table, and adds rows.

    Args:
        where: a path, or the name of a table.
        format: the format of a table that is created.
    """

    session: SparkSession
    where: str
    format: str

    @abc.abstractmethod
    def read(self) -> DataFrame | None:
        """All rows; None if nothing is at a path.

        Raises:
            FunctionError: they cannot be read, or there is no table of this name.
        """

    @abc.abstractmethod
    def make(self, schema: spark.StructType) -> None:
        """Create the table, if there must be one before rows are added.

        Raises:
            FunctionError: it cannot be created.
        """

    @abc.abstractmethod
    def append(self, rows: DataFrame) -> None:
        """Add a batch of rows: all of them or none."""


def storage_of(session: SparkSession, where: str, format: str) -> Storage:  # noqa: A002 - as DataFrameWriter calls it
    """The storage at a path, or under the name of a table in the catalog; does not call Spark yet.

    Raises:
        OptionError: `where` is neither, or the format cannot store results.
    """
    if format.lower() in NOT_FORMATS:
        raise OptionError(
            "format must be one that keeps the types of columns, such as 'parquet', 'orc' or 'delta', not "
            f"{safe_repr(format)}"
        )
    if _NAME.fullmatch(where):
        return _Named(session, where, format)
    if any(mark in where for mark in "/\\:"):
        return _AtPath(session, where, format)
    raise OptionError(
        f"table must be a path, such as './results', or the name of a table, with `backticks` around what is more than "
        f"letters, digits and underscores, not {safe_repr(where)}"
    )


def _batch() -> str:
    return f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{uuid.uuid4().hex}"


class _AtPath(Storage):
    # Two jobs that write into one folder would delete each other's temporary files, so each batch of a format without
    # transactions has a folder of its own, `wave=...`. A job that was killed leaves whole files, with whole rows, and
    # its `wave=.../_temporary`. That is never read, and we cannot see whether the job runs.

    @property
    def _is_files(self) -> bool:
        return self.format.lower() in FILE_FORMATS

    def read(self) -> DataFrame | None:
        options = LITERAL_PATH if self._is_files else {}
        try:
            rows = self.session.read.format(self.format).options(**options).load(self.where)
            rows.schema  # noqa: B018 - Spark Connect reads the schema only now
            return rows
        except Exception as error:  # for files that cannot be read it is an error of Java
            if _condition(error) in NOTHING_THERE:
                return None
            raise FunctionError(
                f"{self.where} cannot be read as {self.format!r}: {_message(error)} Give the format= that the table "
                "was made with, or another path"
            ) from error

    def make(self, schema: spark.StructType) -> None:
        pass

    def append(self, rows: DataFrame) -> None:
        if self._is_files:
            rows.write.format(self.format).save(f"{self.where.rstrip('/')}/{WAVE}={_batch()}")
        else:
            rows.withColumn(WAVE, sf.lit(_batch())).write.format(self.format).mode("append").save(self.where)


class _Named(Storage):
    def read(self) -> DataFrame | None:
        try:
            self.session.catalog.refreshTable(self.where)  # another job may have added files
            rows = self.session.read.table(self.where)
            rows.schema  # noqa: B018 - Spark Connect looks for the table only now
            return rows
        except Exception as error:
            if _condition(error) == "TABLE_OR_VIEW_NOT_FOUND":
                raise FunctionError(
                    f"there is no table {self.where} yet; update(df) makes it. Without Hive or another lasting catalog "
                    "Spark forgets a name at the end of the session: give a path then"
                ) from error
            raise FunctionError(f"{self.where} cannot be read: {_message(error)}") from error

    def make(self, schema: spark.StructType) -> None:
        catalog = self.session.catalog
        try:
            if not catalog.tableExists(self.where):
                catalog.createTable(self.where, source=self.format, schema=schema)
        except Exception as error:
            if _condition(error) == "TABLE_OR_VIEW_ALREADY_EXISTS":  # another job was faster
                return
            hint = f"A path has a slash: './{self.where}'"
            if _condition(error) == "LOCATION_ALREADY_EXISTS":
                hint = "If the catalog has forgotten the table, give the path of its files"
            raise FunctionError(f"the table {self.where} cannot be made: {_message(error)} {hint}") from error

    def append(self, rows: DataFrame) -> None:
        names = self.session.read.table(self.where).columns  # `insertInto` goes by position
        rows.withColumn(WAVE, sf.lit(_batch())).select(*names).write.insertInto(self.where)


def _condition(error: Exception) -> str:
    """Spark's name of the error; for an error of Java it is found in the text."""
    found = condition_of(error) if isinstance(error, PySparkException) else None
    if not found:
        named = re.search(r"\[([A-Z][A-Z0-9_.]+)\]", str(error))
        found = named[1] if named else ""
    return found.split(".")[0]


def _message(error: Exception) -> str:
    """The first sentence or line of Spark's message, without the stack."""
    line = next((line for line in str(error).splitlines() if "[" in line), str(error).partition("\n")[0])
    return line[max(line.find("["), 0) :].partition(" SQLSTATE")[0]
