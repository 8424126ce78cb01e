"""What a test reads of a DataFrame."""

from pyspark.sql import types
from pyspark.sql.types import DataType


def tuples(frame):
    return [tuple(row) for row in frame.collect()]


def from_ddl(ddl: str) -> DataType:
    """The type that a text declares, as every version of Spark reads it."""
    return DataType.fromDDL(ddl) if hasattr(DataType, "fromDDL") else types._parse_datatype_string(ddl)
