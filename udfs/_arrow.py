"""Arrow to rows of Python values and back, exact both ways; the columns that nobody reads stay Arrow."""

from __future__ import annotations

import datetime
import gc
import itertools
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa

from ._errors import AsyncUDFError, ResultError
from ._input import Fed
from ._misfit import check_awaited
from ._signature import Vector

__all__ = (
    "Codec",
    "ResultWriter",
    "SourceRows",
    "may_be_large",
    "records_of",
    "rows_of",
    "source_columns",
    "values_of",
    "warm_up",
    "watermark_marks",
)


def warm_up() -> None:
    """Do before the first call, once in a worker, what all calls in flight would have to wait for."""
    pa.array([0])  # pyarrow imports pandas
    if not gc.get_freeze_count():
        # A full collection, one in 100,000 rows, would look at all that is imported: more than 50 ms each time.
        gc.collect()
        gc.freeze()


def values_of(column: pa.Array) -> list[Any]:
    """The values of a column: NULL is None, whole numbers stay whole, timestamps know their zone (UTC)."""
    kind = _in_utc(column.type)
    if kind != column.type:
        column = column.cast(kind)
    # pyarrow alone needs microseconds for each date, and for each value of any kind if it is asked for dicts.
    if pa.types.is_date32(kind) or (pa.types.is_timestamp(kind) and kind.unit == "us"):
        return _moments(column)
    return column.to_pylist(maps_as_pydicts="strict") if _has_map(kind) else column.to_pylist()  # type: ignore[no-any-return]


def _moments(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    if values.count(None) != column.null_count or any(value.__class__ is int for value in values):
        # A year that Python does not have, or numpy's NaT: pyarrow says so.
        return column.to_pylist()  # type: ignore[no-any-return]
    if getattr(column.type, "tz", None) is None:
        return values
    return [value and value.replace(tzinfo=datetime.UTC) for value in values]


def _has_map(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_has_map(field.type) for field in _fields(kind))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _has_map(kind.value_type)
    return bool(pa.types.is_map(kind))


def _in_utc(kind: pa.DataType) -> pa.DataType:
    # The instant is what counts; a session's zone may be one that Python does not know by that name.
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = kind.value_field.with_type(_in_utc(kind.value_type))
        return pa.list_(item) if pa.types.is_list(kind) else pa.large_list(item)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in _fields(kind)])
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_in_utc(key.type)), item.with_type(_in_utc(item.type)))
    return kind


def _fields(struct: pa.DataType) -> list[pa.Field]:
    return [struct.field(i) for i in range(struct.num_fields)]


def rows_of(function: str, columns: Sequence[pa.Array], names: Sequence[str] | None) -> Iterator[Any]:
    """A function's input, row by row: a tuple of arguments, or with `names` a dict.

    Raises:
        AsyncUDFError: a value has no Python form, such as a map whose keys are arrays.
    """
    try:
        rows = zip(*map(values_of, columns), strict=True)
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        kinds = ", ".join(str(column.type) for column in columns)
        raise AsyncUDFError(f"the input of {function} ({kinds}) has no Python form: {error}") from error
    return rows if names is None else (dict(zip(names, row, strict=True)) for row in rows)


def records_of(rows: Iterable[Any], origins: Iterable[Any]) -> Iterable[Fed]:
    """The rows as records without a timestamp, as far as plain tuples are: making records costs a third of a call."""
    return zip(rows, repeat(None), origins)


def watermark_marks(column: pa.Array) -> list[Any]:
    """What a watermark strategy reads: timestamps as microseconds since the epoch, flags as they are."""
    if pa.types.is_boolean(column.type) or pa.types.is_integer(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    zone = column.type.tz if pa.types.is_timestamp(column.type) else None
    return column.cast(pa.timestamp("us", zone)).cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]


def may_be_large(kind: pa.DataType) -> bool:
    """Whether values of a type differ in size, as texts and lists do."""
    if pa.types.is_struct(kind):
        return any(may_be_large(field.type) for field in _fields(kind))
    return not (pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind))


class ResultWriter:
    """Builds Arrow from results.

    Args:
        function: for the message of a result that Arrow refuses.
        kind: the result's type.
    """

    def __init__(self, function: str, kind: pa.DataType) -> None:
        self._function = function
        self._kind = kind

    def array(self, values: Sequence[Any]) -> pa.Array:
        """The results as one array."""
        try:
            array = pa.array(values, type=self._kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise ResultError(f"{self._function} returned values that do not fit {self._kind}: {error}") from error
        if isinstance(array, pa.ChunkedArray):  # what pyarrow makes of more than 2 GiB of text or bytes
            raise ResultError(
                f"{self._function} returned more than 2 GiB in {len(values)} results; "
                "Arrow cannot hold them in one batch: set spark.sql.execution.arrow.maxRecordsPerBatch lower"
            )
        return array


class SourceRows:
    """A batch of the source; columns become Python values when an operator behind the first asks for them."""

    __slots__ = ("_columns", "batch")

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self._columns: dict[int, list[Any]] = {}

    def column(self, position: int) -> list[Any]:
        values = self._columns.get(position)
        if values is None:
            rows = rows_of("the chain", [self.batch.column(position)], None)
            values = self._columns[position] = [value for (value,) in rows]
        return values


def source_columns(origins: Sequence[tuple[SourceRows, int]]) -> list[pa.Array]:
    """The source columns of results whose origins are (rows, row number): one `take` for each source batch."""
    first = origins[0][0]
    numbers = [number for rows, number in origins if rows is first]
    if len(numbers) == len(origins):
        return _take(first.batch, numbers)
    sources, numbers = [rows for rows, _ in origins], [number for _, number in origins]
    known = {id(rows): rows.batch for rows in sources}
    runs = [(known[number], len(list(run))) for number, run in itertools.groupby(map(id, sources))]
    if len(runs) > 2 * len(known):  # interleaved: put the batches together first
        sizes = (batch.num_rows for batch in known.values())
        starts = dict(zip(known, itertools.accumulate(sizes, initial=0), strict=False))
        together = pa.Table.from_batches(list(known.values())).combine_chunks().to_batches()[0]
        return _take(together, [starts[id(rows)] + number for rows, number in origins])
    pieces, start = [], 0
    for batch, length in runs:
        pieces.append(_take(batch, numbers[start : start + length]))
        start += length
    return [pa.concat_arrays(column) for column in zip(*pieces, strict=True)]


def _take(batch: pa.RecordBatch, numbers: list[int]) -> list[pa.Array]:
    first, count = numbers[0], len(numbers)
    if numbers[-1] - first + 1 == count and numbers == list(range(first, first + count)):
        return batch.slice(first, count).columns  # type: ignore[no-any-return]
    return batch.take(pa.array(numbers, type=pa.int64())).columns  # type: ignore[no-any-return]


class Codec:
    """Rows of a micro-batch to the vectors that a function asks for, and its answer back to values.

    NULL is None in every vector: a column with one comes as objects, so that whole numbers stay whole.

    Args:
        function: its name, for messages.
        vectors: what each parameter takes.
        names: of the columns, or of the parameters where columns have none.
        kinds: the Arrow types of the columns, or None when nobody declared them (the test kit).
    """

    def __init__(
        self,
        function: str,
        vectors: Sequence[Vector],
        names: Sequence[str],
        kinds: Sequence[pa.DataType] | None = None,
    ) -> None:
        self._function = function
        self._vectors = vectors
        self._kinds = [_in_utc(kind) for kind in kinds] if kinds is not None else None
        self._names = names

    def encode(self, rows: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
        """The vectors of the rows."""
        columns = list(zip(*rows, strict=True))
        kinds: Sequence[Any] = self._kinds or [None] * len(columns)
        if self._vectors == (Vector.FRAME,) and len(columns) > 1:
            return [_frame(dict(zip(self._names, zip(columns, kinds, strict=True), strict=True)))]
        return [_vector(*item) for item in zip(self._vectors, columns, kinds, self._names, strict=False)]

    def decode(self, result: Any) -> Sequence[Any]:
        """The values of a vector of results."""
        import pandas as pd

        if isinstance(result, pd.Series):
            return _series_values(result)
        if isinstance(result, pd.DataFrame):
            columns = [_series_values(result[name]) for name in result.columns]
            return [dict(zip(result.columns, row, strict=True)) for row in zip(*columns, strict=True)]
        if isinstance(result, (pa.Array, pa.ChunkedArray)):
            return values_of(result)
        check_awaited(self._function, result)
        raise ResultError(
            f"{self._function} is vectorized and returned {type(result).__name__}; "
            "return a pd.Series, a pd.DataFrame or a pa.Array with one value for each row"
        )


def _vector(vector: Vector, values: Sequence[Any], kind: pa.DataType | None, name: str) -> Any:
    if vector is Vector.ARRAY:
        return pa.array(values, type=kind)
    if vector is Vector.SERIES:
        return _series(values, kind)
    fields = _struct_fields(values, kind)
    if fields is None:  # one column, and a frame of it
        return _frame({name: (values, kind)})
    return _frame(
        {field: ([None if v is None else v.get(field) for v in values], inner) for field, inner in fields.items()}
    )


def _struct_fields(values: Sequence[Any], kind: pa.DataType | None) -> dict[str, pa.DataType | None] | None:
    """The fields of structs and their types; None if the values are no structs."""
    if kind is not None:
        return {field.name: field.type for field in _fields(kind)} if pa.types.is_struct(kind) else None
    structs = [value for value in values if isinstance(value, dict)]
    return {field: None for struct in structs for field in struct} if structs else None


def _frame(columns: dict[str, tuple[Sequence[Any], Any]]) -> Any:
    import pandas as pd

    return pd.DataFrame({name: _series(values, kind) for name, (values, kind) in columns.items()})


def _series(values: Sequence[Any], kind: pa.DataType | None) -> Any:
    import pandas as pd

    if any(value is None for value in values):
        return pd.Series(list(values), dtype=object)
    if kind is None:
        return pd.Series(list(values))
    if pa.types.is_primitive(kind) and not pa.types.is_date(kind) and not pa.types.is_time(kind):
        return pa.array(values, type=kind).to_pandas()
    return pd.Series(list(values), dtype=object)


def _series_values(series: Any) -> list[Any]:
    missing = series.isna()
    values = series.tolist()
    if missing.any():  # pandas' NaN, NaT and NA in a Series stand for "no value", as in pandas_udf
        return [None if gone else value for value, gone in zip(values, missing, strict=True)]
    return values  # type: ignore[no-any-return]
