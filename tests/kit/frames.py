"""What a test reads of a DataFrame."""

from pyspark.sql.types import DataType

from asyncudf._spark import _compat


def tuples(frame):
    return [tuple(row) for row in frame.collect()]


def from_ddl(ddl: str) -> DataType:
    """The type that a text declares, as every version of Spark reads it."""
    return DataType.fromDDL(ddl) if hasattr(DataType, "fromDDL") else _compat.from_ddl(ddl)
