"""Storage of a LookupTable: a folder of files, a table of the catalog, or a table of another format."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import re
from collections.abc import Mapping

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as spark

from ..._errors.exceptions import FunctionError, OptionError
from ..._text.safe import safe_repr
from .._compat import condition_of
from .keys import WAVE, is_case_sensitive, quoted

FILE_FORMATS = ("parquet", "orc", "avro")  # folders of files, without transactions
NOT_FORMATS = ("binaryfile", "csv", "json", "text", "xml")  # do not keep the types of columns
# Spark writes to a path literally, but reads it as a pattern. Escaping `*` would forbid colons in the path.
LITERAL_PATH = {"__globPaths__": "false"}
_PART = r"(?:\w+|`(?:[^`]|``)+`)"
_NAME = re.compile(rf"{_PART}(?:\.{_PART})*")


@dataclasses.dataclass(frozen=True)
class TableStorage(abc.ABC):
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
        """All rows; None if there is no table yet.

        Raises:
            FunctionError: there is something else in its place.
        """

    def adopt(self, schema: spark.StructType) -> None:
        """Add the rows of this schema that `read` has found to the catalog, if it has forgotten them."""

    @abc.abstractmethod
    def append(self, rows: DataFrame, batch: str) -> None:
        """Add rows, as the batch of this name."""


def storage_of(session: SparkSession, where: str, format: str) -> TableStorage:  # noqa: A002 - as DataFrameWriter calls it
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
        return _NamedTable(session, where, format)
    if any(mark in where for mark in "/\\:"):
        kind = _Folder if format.lower() in FILE_FORMATS else _FormatTable
        return kind(session, where, format)
    raise OptionError(
        f"table must be a path, such as './results', or the name of a table, with `backticks` around what is more than "
        f"letters, digits and underscores, not {safe_repr(where)}"
    )


class _Folder(TableStorage):
    """A folder of files, partitioned: each batch has a folder of its own, `wave=...`."""

    # Two jobs that write into one folder would delete each other's temporary files. A job that was killed leaves whole
    # files, with whole rows, and its `wave=.../_temporary`. That is never read, and we cannot see whether the job runs.

    def read(self) -> DataFrame | None:
        return _loaded(self, LITERAL_PATH)

    def append(self, rows: DataFrame, batch: str) -> None:
        rows.write.format(self.format).save(f"{self.where.rstrip('/')}/{WAVE}={batch}")


class _FormatTable(TableStorage):
    """A table at a path, of a format with transactions, such as Delta."""

    def read(self) -> DataFrame | None:
        return _loaded(self, {})

    def append(self, rows: DataFrame, batch: str) -> None:
        rows.withColumn(WAVE, sf.lit(batch)).write.format(self.format).mode("append").save(self.where)


class _NamedTable(TableStorage):
    """A table of the catalog, which has its own format; a table that is created gets `format`."""

    # Files are read at their location and not through the catalog: that may not know the last batch of another job. It
    # also forgets all tables at the end of the session, unless Hive or another service stores it. Then the table is
    # created again over its files.

    def read(self) -> DataFrame | None:
        known = self._described()
        if known is None:
            files = self._forgotten_files()
            return None if files is None else files.read()
        provider, location = known
        if provider.lower() in FILE_FORMATS:
            return _Folder(self.session, location, provider).read()
        return self.session.read.table(self.where)

    def adopt(self, schema: spark.StructType) -> None:
        if self._described() is None:
            self._create(schema, self._forgotten_files())

    def append(self, rows: DataFrame, batch: str) -> None:
        schema = rows.withColumn(WAVE, sf.lit(batch)).schema
        known = self._described() or self._create(schema, None)
        provider, location = known
        if provider.lower() in FILE_FORMATS:
            _Folder(self.session, location, provider).append(rows, batch)
            self.session.sql(f"ALTER TABLE {self.where} RECOVER PARTITIONS")
        else:
            rows.withColumn(WAVE, sf.lit(batch)).write.format(provider).mode("append").saveAsTable(self.where)

    def _described(self) -> tuple[str, str] | None:
        """The format and the location ("" without one); None if there is no such table.

        Raises:
            FunctionError: it is a view, or no table can have this name.
        """
        try:
            lines = self.session.sql(f"DESCRIBE TABLE EXTENDED {self.where}").collect()
        except Exception as error:
            if _condition(error) == "TABLE_OR_VIEW_NOT_FOUND":
                return None
            raise FunctionError(f"{self.where} cannot be a table: {_message(error)}") from error
        names = [line[0] for line in lines]
        begin = names.index("# Detailed Table Information") if "# Detailed Table Information" in names else len(names)
        about = {line[0]: line[1] for line in lines[begin:]}
        if "Provider" not in about:  # a temporary view has no details at all
            raise FunctionError(f"{self.where} is a view, to which no rows can be added; name a table, or a path")
        return str(about["Provider"]), str(about.get("Location", ""))

    def _forgotten_files(self) -> _Folder | None:
        """The folder where a table's files are if the catalog has forgotten it; None if the catalog does not say.

        Raises:
            FunctionError: there is no such schema.
        """
        parts = [part.strip("`").replace("``", "`") for part in re.findall(_PART, self.where)]
        catalog = parts[0] if len(parts) > 2 else self.session.catalog.currentCatalog()
        if catalog != "spark_catalog" or self.format.lower() not in FILE_FORMATS:
            return None
        schema = parts[-2] if len(parts) > 1 else self.session.catalog.currentDatabase()
        try:
            lines = self.session.sql(f"DESCRIBE DATABASE {quoted(schema)}").collect()
        except Exception as error:
            raise FunctionError(
                f"there is no schema for the table {self.where}: {_message(error)} A path has a slash: './{self.where}'"
            ) from error
        table = parts[-1] if is_case_sensitive(self.session) else parts[-1].lower()
        places = [str(line[1]) for line in lines if line[0] == "Location"]
        return _Folder(self.session, f"{places[0].rstrip('/')}/{table}", self.format) if places else None

    def _create(self, schema: spark.StructType, files: _Folder | None) -> tuple[str, str]:
        """Create the table, over these files if any; if another job has created it meanwhile, take that one.

        Raises:
            FunctionError: it cannot be created.
        """
        columns = ", ".join(f"{quoted(field.name)} {_ddl(field.dataType)}" for field in schema.fields)
        kind = f"CREATE TABLE IF NOT EXISTS {self.where} ({columns}) USING {quoted(self.format)}"
        if self.format.lower() in FILE_FORMATS:
            kind += f" PARTITIONED BY ({WAVE})"
        try:
            self._make(kind, files)
        except Exception as error:
            # Another session, whose tables this one does not see, may just have added its first batch.
            if _condition(error) == "LOCATION_ALREADY_EXISTS" and files is None and self._described() is None:
                with contextlib.suppress(Exception):
                    self._make(kind, self._forgotten_files())
            if self._described() is None:
                raise FunctionError(f"the table {self.where} cannot be made: {_message(error)}") from error
        known = self._described()
        assert known is not None
        return known

    def _make(self, kind: str, files: _Folder | None) -> None:
        if files is None:
            self.session.sql(kind)
            return
        location = files.where.replace("\\", "\\\\").replace("'", "\\'")
        self.session.sql(f"{kind} LOCATION '{location}'")
        self.session.sql(f"ALTER TABLE {self.where} RECOVER PARTITIONS")


def _loaded(storage: TableStorage, options: Mapping[str, str]) -> DataFrame | None:
    """The rows at a path; None if there is nothing."""
    try:
        rows = storage.session.read.format(storage.format).options(**options).load(storage.where)
        rows.schema  # noqa: B018 - Spark Connect reads the schema only now
        return rows
    except Exception as error:  # for files that cannot be read it is an error of Java
        if _condition(error) in ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"):
            return None
        raise FunctionError(
            f"{storage.where} cannot be read as {storage.format!r}: {_message(error)} Give the format= that the table "
            "was made with, or another path"
        ) from error


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


def _ddl(data_type: spark.DataType) -> str:
    """The type in SQL, with field names in backticks."""
    match data_type:
        case spark.ArrayType():
            return f"ARRAY<{_ddl(data_type.elementType)}>"
        case spark.MapType():
            return f"MAP<{_ddl(data_type.keyType)}, {_ddl(data_type.valueType)}>"
        case spark.StructType():
            inner = ", ".join(f"{quoted(field.name)}: {_ddl(field.dataType)}" for field in data_type.fields)
            return f"STRUCT<{inner}>"
    return data_type.simpleString()
