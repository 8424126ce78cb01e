"""Results in Arrow: exact arrays of them, and their types with errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from .._errors.exceptions import ResultError
from .._errors.records import ERROR_FIELDS
from .objects import stored_type


class ResultArrays:
    """Builds Arrow arrays of results.

    Args:
        function: its name, for the message of a result that Arrow refuses.
        arrow_type: the result's type.
    """

    def __init__(self, function: str, arrow_type: pa.DataType) -> None:
        self._function = function
        self._arrow_type = stored_type(arrow_type)

    def array(self, values: Sequence[Any]) -> pa.Array:
        """The results as one array."""
        # Each result was checked before: what Arrow still refuses is mostly their total size.
        try:
            array = pa.array(values, type=self._arrow_type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise ResultError(
                f"{self._function} returned values that do not fit {self._arrow_type}: {error}"
            ) from error
        if isinstance(array, pa.ChunkedArray):  # of more than 2 GiB of text or bytes
            raise ResultError(
                f"{self._function} returned more than 2 GiB in {len(values)} results; "
                "Arrow cannot hold them in one batch: set spark.sql.execution.arrow.maxRecordsPerBatch lower "
                "(for a column over a cached table spark.sql.inMemoryColumnarStorage.batchSize, before it is cached)"
            )
        return array


def capture_type(value: pa.DataType) -> pa.DataType:
    """The type of a result under `on_error="capture"`."""
    return pa.struct([("value", value), ("error", error_type(ERROR_FIELDS))])


def error_type(fields: Mapping[str, str]) -> pa.DataType:
    """The type of an error record."""
    # `_spark` makes Spark's types of the same fields: this package knows Arrow only.
    types = {"string": pa.string(), "integer": pa.int32(), "double": pa.float64()}
    return pa.struct([(name, types[ddl]) for name, ddl in fields.items()])
