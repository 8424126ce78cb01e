"""Where the rows of a LookupTable are: a folder of files, a table of the catalog, or what another format keeps."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Mapping
from typing import Protocol

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as spark

from ..._errors.exceptions import FunctionError, OptionError
from ..._text.safe import safe_repr
from .._compat import condition_of
from .keys import WAVE, is_case_sensitive, quoted

__all__ = ("TableStorage", "storage_of")


FILE_FORMATS = ("parquet", "orc", "avro")  # of folders of files, without transactions
NOT_FORMATS = ("binaryfile", "csv", "json", "text", "xml")  # do not keep the types of what is written
# Spark writes to the letter, but reads patterns. Not with `\\` before `*`: then a path cannot have a colon.
TO_THE_LETTER = {"__globPaths__": "false"}
_PART = r"(?:\w+|`(?:[^`]|``)+`)"
_NAME = re.compile(rf"{_PART}(?:\.{_PART})*")


class TableStorage(Protocol):
    """Where rows are added to, and read from."""

    def read(self) -> DataFrame | None:
        """All rows; None if there are none yet.

        Raises:
            FunctionError: there is something else.
        """

    def adopt(self, schema: spark.StructType) -> None:
        """Make known to Spark what `read` has found, rows of this schema, if it has to be."""

    def append(self, rows: DataFrame, wave: str) -> None:
        """Add rows, as the wave of this name."""


def storage_of(session: SparkSession, where: str, format: str) -> TableStorage:  # noqa: A002 - as DataFrameWriter calls it
    """The place that a path, or the name of a table in the catalog, stands for; nothing is asked of Spark yet.

    Raises:
        OptionError: it is neither, or a format that cannot keep results.
    """
    if format.lower() in NOT_FORMATS:
        raise OptionError(
            "format must be one that keeps the types of columns, such as 'parquet', 'orc' or 'delta', not "
            f"{safe_repr(format)}"
        )
    if _NAME.fullmatch(where):
        return _NamedTable(session, where, format)
    if any(mark in where for mark in "/\\:"):
        return _by_path(session, where, format)
    raise OptionError(
        f"table must be a path, such as './results', or the name of a table, with `backticks` around what is more than "
        f"letters, digits and underscores, not {safe_repr(where)}"
    )


def _by_path(session: SparkSession, path: str, format: str) -> TableStorage:  # noqa: A002
    kind = _Folder if format.lower() in FILE_FORMATS else _FormatTable
    return kind(session, path, format)


@dataclasses.dataclass(frozen=True)
class _Folder:
    """Files. Each wave is a folder of its own, `wave=...`, as of a partitioned table."""

    # Two jobs that write into one folder would take each other's temporary files away; and of a job that was killed
    # nothing is seen but whole files, each of which has whole rows. Its `wave=.../_temporary` stays: nobody reads it,
    # and whether the job is dead cannot be seen from here.

    session: SparkSession
    path: str
    format: str

    def read(self) -> DataFrame | None:
        return _loaded(self.session, self.path, self.format, TO_THE_LETTER)

    def adopt(self, schema: spark.StructType) -> None:
        pass

    def append(self, rows: DataFrame, wave: str) -> None:
        rows.write.format(self.format).save(f"{self.path.rstrip('/')}/{WAVE}={wave}")


@dataclasses.dataclass(frozen=True)
class _FormatTable:
    """A table by its path, of a format that knows which rows it has, such as Delta."""

    session: SparkSession
    path: str
    format: str

    def read(self) -> DataFrame | None:
        return _loaded(self.session, self.path, self.format, {})

    def adopt(self, schema: spark.StructType) -> None:
        pass

    def append(self, rows: DataFrame, wave: str) -> None:
        rows.withColumn(WAVE, sf.lit(wave)).write.format(self.format).mode("append").save(self.path)


@dataclasses.dataclass(frozen=True)
class _NamedTable:
    """A table of the catalog, of whatever format it is there; `format` is that of one that is made."""

    # Of files, rows are read from where they are and not through the catalog, which may not know of the last wave of
    # somebody else, and forgets all tables at the end of the session unless Hive or another service keeps it: then the
    # table is made again over its files.

    session: SparkSession
    name: str
    format: str

    def read(self) -> DataFrame | None:
        known = self._described()
        if known is None:
            left = self._left_behind()
            return None if left is None else left.read()
        provider, location = known
        if provider.lower() in FILE_FORMATS:
            return _Folder(self.session, location, provider).read()
        return self.session.read.table(self.name)

    def adopt(self, schema: spark.StructType) -> None:
        if self._described() is None:
            self._create(schema, self._left_behind())

    def append(self, rows: DataFrame, wave: str) -> None:
        schema = rows.withColumn(WAVE, sf.lit(wave)).schema
        known = self._described() or self._create(schema, None)
        provider, location = known
        if provider.lower() in FILE_FORMATS:
            _Folder(self.session, location, provider).append(rows, wave)
            self.session.sql(f"ALTER TABLE {self.name} RECOVER PARTITIONS")
        else:
            rows.withColumn(WAVE, sf.lit(wave)).write.format(provider).mode("append").saveAsTable(self.name)

    def _described(self) -> tuple[str, str] | None:
        """Its format and its location, as far as it has one; None if there is no such table.

        Raises:
            FunctionError: it is no table, or nothing can be of that name.
        """
        try:
            lines = self.session.sql(f"DESCRIBE TABLE EXTENDED {self.name}").collect()
        except Exception as error:
            if _condition(error) == "TABLE_OR_VIEW_NOT_FOUND":
                return None
            raise FunctionError(f"{self.name} cannot be a table: {_message(error)}") from error
        names = [line[0] for line in lines]
        begin = names.index("# Detailed Table Information") if "# Detailed Table Information" in names else len(names)
        about = {line[0]: line[1] for line in lines[begin:]}
        if "Provider" not in about:  # of a temporary view nothing is told at all
            raise FunctionError(f"{self.name} is a view, to which no rows can be added; name a table, or a path")
        return str(about["Provider"]), str(about.get("Location", ""))

    def _left_behind(self) -> _Folder | None:
        """Where the files of the table would be that the catalog has forgotten; None where it does not say.

        Raises:
            FunctionError: there is no such schema.
        """
        parts = [part.strip("`").replace("``", "`") for part in re.findall(_PART, self.name)]
        catalog = parts[0] if len(parts) > 2 else self.session.catalog.currentCatalog()
        if catalog != "spark_catalog" or self.format.lower() not in FILE_FORMATS:
            return None
        schema = parts[-2] if len(parts) > 1 else self.session.catalog.currentDatabase()
        try:
            lines = self.session.sql(f"DESCRIBE DATABASE {quoted(schema)}").collect()
        except Exception as error:
            raise FunctionError(
                f"there is no schema for the table {self.name}: {_message(error)} A path has a slash: './{self.name}'"
            ) from error
        table = parts[-1] if is_case_sensitive(self.session) else parts[-1].lower()
        places = [str(line[1]) for line in lines if line[0] == "Location"]
        return _Folder(self.session, f"{places[0].rstrip('/')}/{table}", self.format) if places else None

    def _create(self, schema: spark.StructType, files: _Folder | None) -> tuple[str, str]:
        """Make the table, or if somebody has made it meanwhile take that one; `files` are those that it is made over.

        Raises:
            FunctionError: it cannot be made.
        """
        columns = ", ".join(f"{quoted(field.name)} {_ddl(field.dataType)}" for field in schema.fields)
        kind = f"CREATE TABLE IF NOT EXISTS {self.name} ({columns}) USING {quoted(self.format)}"
        if self.format.lower() in FILE_FORMATS:
            kind += f" PARTITIONED BY ({WAVE})"
        try:
            self._make(kind, files)
        except Exception as error:
            # Another session, whose tables this one does not see, may have added its first wave right now.
            if _condition(error) == "LOCATION_ALREADY_EXISTS" and files is None and self._described() is None:
                with contextlib.suppress(Exception):
                    self._make(kind, self._left_behind())
            if self._described() is None:
                raise FunctionError(f"the table {self.name} cannot be made: {_message(error)}") from error
        known = self._described()
        assert known is not None
        return known

    def _make(self, kind: str, files: _Folder | None) -> None:
        if files is None:
            self.session.sql(kind)
            return
        location = files.path.replace("\\", "\\\\").replace("'", "\\'")
        self.session.sql(f"{kind} LOCATION '{location}'")
        self.session.sql(f"ALTER TABLE {self.name} RECOVER PARTITIONS")


def _loaded(session: SparkSession, path: str, format: str, options: Mapping[str, str]) -> DataFrame | None:  # noqa: A002
    """What is at a path; None if nothing is."""
    try:
        rows = session.read.format(format).options(**options).load(path)
        rows.schema  # noqa: B018 - Spark Connect has not looked yet
        return rows
    except Exception as error:  # of files that cannot be read it is Java's own
        if _condition(error) in ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"):
            return None
        raise FunctionError(
            f"{path} cannot be read as {format!r}: {_message(error)} Give the format= that the table was made with, "
            "or another path"
        ) from error


def _condition(error: Exception) -> str:
    """The name that Spark has for what was wrong; of an error of Java's from its text."""
    found = condition_of(error) if isinstance(error, PySparkException) else None
    if not found:
        named = re.search(r"\[([A-Z][A-Z0-9_.]+)\]", str(error))
        found = named[1] if named else ""
    return found.split(".")[0]


def _message(error: Exception) -> str:
    """What Spark says in its first sentence or line, without the stack."""
    line = next((line for line in str(error).splitlines() if "[" in line), str(error).partition("\n")[0])
    return line[max(line.find("["), 0) :].partition(" SQLSTATE")[0]


def _ddl(data_type: spark.DataType) -> str:
    """The type as SQL reads it, with names that may be anything."""
    match data_type:
        case spark.ArrayType():
            return f"ARRAY<{_ddl(data_type.elementType)}>"
        case spark.MapType():
            return f"MAP<{_ddl(data_type.keyType)}, {_ddl(data_type.valueType)}>"
        case spark.StructType():
            inner = ", ".join(f"{quoted(field.name)}: {_ddl(field.dataType)}" for field in data_type.fields)
            return f"STRUCT<{inner}>"
    return data_type.simpleString()
