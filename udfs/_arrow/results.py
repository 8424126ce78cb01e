"""Results in Arrow: exact arrays of them, their types with errors, and their sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import length_hint
from typing import Any

import pyarrow as pa

from .._errors.exceptions import ResultError
from .._errors.records import ERROR_FIELDS
from .._functions.side_outputs import SideRecord
from .rows import fields_of

__all__ = ("ResultArrays", "capture_type", "error_type", "estimated_size", "size_estimate")

NUMBER = 8  # bytes


class ResultArrays:
    """Builds Arrow arrays of results.

    Args:
        function: its name, for the message of a result that Arrow refuses.
        arrow_type: the result's type.
    """

    def __init__(self, function: str, arrow_type: pa.DataType) -> None:
        self._function = function
        self._arrow_type = arrow_type

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


def _may_be_large(arrow_type: pa.DataType) -> bool:
    """Whether values of a type differ in size, as texts and lists do."""
    if pa.types.is_struct(arrow_type):
        return any(_may_be_large(field.type) for field in fields_of(arrow_type))
    return not (pa.types.is_primitive(arrow_type) or pa.types.is_decimal(arrow_type) or pa.types.is_null(arrow_type))


def size_estimate(arrow_type: pa.DataType) -> Callable[[Any], int] | None:
    """A function that estimates the bytes of a value that was checked for this type; None: all are small."""
    if not _may_be_large(arrow_type):
        return None
    # A C function, as it is called for each row; for None it is 0.
    is_flat = pa.types.is_string(arrow_type) or pa.types.is_binary(arrow_type)
    return length_hint if is_flat else estimated_size


def estimated_size(value: Any) -> int:
    """An estimate of a result's bytes: texts and bytes by their length, any other value and key eight."""
    # Not sys.getsizeof, which does not look inside: this is about the size in a queue and in an Arrow batch. A list
    # whose first item is a number counts as a list of numbers: an embedding has thousands.
    cls = type(value)
    if cls is str or cls is bytes:
        return len(value)
    if cls is int or cls is float:
        return NUMBER
    if cls is dict:
        return sum(map(estimated_size, value)) + sum(map(estimated_size, value.values()))
    if cls is list or cls is tuple:
        is_numbers = not value or isinstance(value[0], (int, float))
        return NUMBER * len(value) if is_numbers else sum(map(estimated_size, value))
    if cls is SideRecord:
        return estimated_size(value.value)
    for text in (str, bytes, bytearray):
        if issubclass(cls, text):
            return text.__len__(value)  # the method of a subclass may raise
    return value.nbytes if cls is memoryview else NUMBER
