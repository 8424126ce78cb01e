"""Rows of Arrow as Python objects, and results as exact arrays of Arrow."""

from __future__ import annotations

import gc
import importlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa

from .._errors.exceptions import ResultError, UnreadableError
from .._errors.records import ERROR_FIELDS
from .._errors.safe import type_name
from .._errors.type_mismatch import TypeMismatchError
from .building import array, builder
from .columns import as_key, python_values
from .objects import ObjectType, changed_inside, fields_of, has_objects, stored_type
from .sizes import size_as_objects

# An executor that got this package as a zip was asked by no installer.
if int(pa.__version__.partition(".")[0]) < 15:
    raise ImportError(f"asyncudf needs pyarrow>=15, and {pa.__file__} is {pa.__version__}", name="pyarrow")


def warm_up(written: Iterable[pa.DataType], *, takes_vectors: bool, moves_rows: bool, is_worker: bool) -> None:
    """Do once in a process, before the first call, what all calls in flight would wait for.

    Args:
        written: the types of the results that are written.
        takes_vectors: whether a function takes vectors, most often of pandas.
        moves_rows: whether rows of the input may leave in another order, or not all of them.
        is_worker: whether the process only serves as a worker.
    """
    if takes_vectors or not all(map(builder, written)):
        pa.array([0])  # pyarrow imports pandas
    if moves_rows:
        importlib.import_module("pyarrow.compute")
    if is_worker and not gc.get_freeze_count():
        # Else each full collection, about one in 100,000 rows, looks at all imported objects. A process that is not
        # ours alone has more than these, and what is frozen is never collected. Nothing is garbage: Spark's daemon
        # collects behind each task, and imports leave none.
        gc.freeze()


def values_of(column: pa.Array, declared: Any = None) -> list[Any]:
    """The values of a column: NULL is None, whole numbers stay whole, timestamps with a zone are in UTC.

    `declared` is the declared type, where the column has objects.
    """
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in values_of(chunk, declared)]
    if has_objects(declared):
        return list(map(reader(declared), as_normalized(column).to_pylist()))
    return python_values(column)


def reader(arrow_type: pa.DataType) -> Callable[[Any], Any]:
    """A function from a value of pyarrow, or one for it, to what a function sees: dicts for maps, and objects."""
    if isinstance(arrow_type, ObjectType):
        stored, read = reader(arrow_type.storage_type), arrow_type.form.reader()
        return stored if read is None else lambda v: None if v is None else read(stored(v))
    if pa.types.is_struct(arrow_type):
        fields = [(field.name, reader(field.type)) for field in fields_of(arrow_type)]
        return lambda v: None if v is None else {name: inner(v[name]) for name, inner in fields}
    if pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type):
        item = reader(arrow_type.value_type)
        return lambda v: None if v is None else [item(x) for x in v]
    if pa.types.is_map(arrow_type):
        key, inner = reader(arrow_type.key_type), reader(arrow_type.item_type)
        return lambda v: None if v is None else _dict_of((as_key(key(k)), inner(x)) for k, x in _pairs(v))
    return lambda v: v


def _pairs(value: Any) -> Iterable[tuple[Any, Any]]:
    return value.items() if isinstance(value, dict) else value  # pyarrow reads a map as pairs, a result has a dict


def _dict_of(pairs: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
    pairs = list(pairs)
    if len(found := dict(pairs)) < len(pairs):
        raise KeyError("a key is there twice")
    return found


def normalized(arrow_type: pa.DataType) -> pa.DataType:
    """The type with UTC as the zone of each timestamp, and with nulls allowed everywhere inside."""
    # pyarrow cannot cast a null struct whose fields are declared not null, though it makes such arrays itself.
    # The instant counts, not the zone: Python may not know the session's zone by its name.
    if pa.types.is_timestamp(arrow_type) and arrow_type.tz is not None:
        return pa.timestamp(arrow_type.unit, "UTC")
    return changed_inside(arrow_type, normalized, nullable=True)


def as_normalized(column: pa.Array) -> pa.Array:
    """The column in its normalized type, without a copy where it is whole."""
    arrow_type = normalized(column.type)
    if arrow_type == column.type:
        return column
    if column.offset:  # `view` would skip the first rows of void in a struct once more, and end the process behind them
        column = pa.concat_arrays([column])
    return column.view(arrow_type)  # to cast a map with arrays as keys ends the process before pyarrow 17


class Unreadable:
    """Stands for a value that has no Python form, where a row is shown."""

    __slots__ = ("_shown", "error")

    def __init__(self, shown: str, message: str = "") -> None:
        self._shown = shown
        self.error = UnreadableError(message or shown)

    def __repr__(self) -> str:
        return f"<{self._shown}>"


Errors = dict[int, UnreadableError]  # of the rows that cannot be read, by their numbers


def rows_of(
    function: str,
    columns: Sequence[pa.Array],
    names: Sequence[str] | None,
    declared: Sequence[Any] | None = None,
    labels: Sequence[Any] | None = None,
) -> tuple[Iterator[Any], Errors]:
    """A function's input, row by row, and the errors of rows that have a value that cannot be read.

    A row is a tuple of arguments, or with `names` a dict. `declared`: the types, where columns may have objects;
    `labels`: the columns in messages, their numbers unless given.
    """
    labels = labels or names or range(1, len(columns) + 1)
    values, errors = list[list[Any]](), Errors()
    for column, arrow_type, label in zip(columns, declared or repeat(None), labels, strict=False):
        what = f"the input of {function} (column {label}, {column.type})"
        found, unreadable = _values(column, what, arrow_type)
        values.append(found)
        errors = {**unreadable, **errors}
    rows = zip(*values, strict=True)
    return (rows if names is None else (dict(zip(names, row, strict=True)) for row in rows)), errors


def read_back(column: pa.Array, declared: Any = None) -> list[Any]:
    """`values_of` a column of results; a TypeMismatchError in the place of each that has no Python form."""

    def mismatch(error: Exception) -> TypeMismatchError:
        shown, _ = _no_form(column.type, error)
        return TypeMismatchError("", Unreadable(shown), "Python has no such value, so it cannot be checked")

    return _readable(column, declared, mismatch)


# What pyarrow and the objects of a declared type raise for one value. The text would show it, and it may be secret.
_NO_FORM = (ValueError, KeyError, OverflowError)


def _values(column: pa.Array, what: str, declared: Any = None) -> tuple[list[Any], Errors]:
    """The values of a column of the input, and the errors of those that have no Python form."""
    is_whole = True

    def unreadable(error: Exception) -> Unreadable:
        nonlocal is_whole
        is_whole = False
        shown, way_out = _no_form(column.type, error)
        return Unreadable(shown, f"{what} has {shown}: {way_out}")

    values = _readable(column, declared, unreadable)
    return values, {} if is_whole else {n: one.error for n, one in enumerate(values) if type(one) is Unreadable}


def _readable(column: pa.Array, declared: Any, unreadable: Callable[[Exception], Any]) -> list[Any]:
    """The values of a column; for a value that has no Python form, what `unreadable` makes of the error."""
    try:
        return values_of(column, declared)
    except _NO_FORM as error:
        if len(column) == 1:
            return [unreadable(error)]
    half = len(column) // 2
    return _readable(column.slice(0, half), declared, unreadable) + _readable(column.slice(half), declared, unreadable)


def _no_form(arrow_type: pa.DataType, error: Exception) -> tuple[str, str]:
    """What a value without a Python form is, and what to write in SQL to have one."""
    if isinstance(error, UnicodeDecodeError):
        return "bytes that are not UTF-8", (
            "Spark keeps any bytes in a string: make_valid_utf8(s) replaces them from Spark 4.0 on, "
            "decode(CAST(s AS BINARY), 'ISO-8859-1') reads Latin-1, and CAST(s AS BINARY) gives the function bytes"
        )
    if isinstance(error, KeyError):
        if type(error.args[0]) is int:  # pyarrow's number of the type, all that it says of it
            return "an interval of months", "CAST(i AS STRING) gives the function a text"
        return "a map with a key more than once", "map_entries(m) gives the function an array of its entries"
    if _has_moments(arrow_type):
        return "a moment that is not in the years 1 to 9999", (
            "CAST(t AS STRING) gives the function a text, and WHERE t < '9999-12-31' leaves out what means 'never'"
        )
    return f"a value without a Python form ({type_name(error)})", "CAST(v AS STRING) gives the function a text"


def _has_moments(arrow_type: pa.DataType) -> bool:
    return pa.types.is_temporal(arrow_type) or any(_has_moments(field.type) for field in fields_of(arrow_type))


def records_of(rows: Iterable[Any], origins: Iterable[Any]) -> Iterable[tuple[Any, None, Any]]:
    """The rows as plain tuples with the fields of a record: to make StreamRecords costs a third of a call."""
    return zip(rows, repeat(None), origins)


def watermark_marks(column: pa.Array) -> list[Any]:
    """The values that a watermark strategy reads: timestamps as microseconds since the epoch, flags as they are."""
    if pa.types.is_boolean(column.type) or pa.types.is_integer(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    zone = column.type.tz if pa.types.is_timestamp(column.type) else None
    return column.cast(pa.timestamp("us", zone)).cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]


class SourceRows:
    """A batch of the source. A column becomes Python values when an operator after the first reads it."""

    # A whole column at a time, once: single values cost many times as much, and all rows of the batch are read.

    # declared: as in `rows_of`, of all columns
    # grow: is told the bytes of such a column; it is set where the batch is counted

    __slots__ = ("__weakref__", "_columns", "_declared", "batch", "grow")

    def __init__(self, batch: pa.RecordBatch, declared: Sequence[Any] | None = None) -> None:
        self.batch = batch
        self._declared = declared
        self.grow: Callable[[int], None] = lambda size: None
        self._columns: dict[int, list[Any]] = {}

    def column(self, position: int) -> list[Any]:
        values = self._columns.get(position)
        if values is None:
            column = self.batch.column(position)
            what = f"the input of the chain (column {self.batch.schema.names[position]}, {column.type})"
            declared = None if self._declared is None else self._declared[position]
            values, errors = _values(column, what, declared)
            self._columns[position] = values = _PartlyReadable(values) if errors else values
            self.grow(size_as_objects(column))
        return values


class _PartlyReadable(list[Any]):
    """A column in which to read some values raises their UnreadableError."""

    def __getitem__(self, number: Any) -> Any:
        value = super().__getitem__(number)
        if type(value) is Unreadable:
            raise value.error
        return value


def source_columns(origins: Sequence[tuple[SourceRows, int]]) -> list[pa.Array]:
    """The source columns of results whose origins are (rows, row number): one `take` for each source batch."""
    # Most often all are of one batch, and in the ordered mode in its order: then `_take` makes a slice without a copy.
    # Results of several batches come in runs or, unordered, interleaved.
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
    return batch.take(array(numbers, pa.int64())).columns  # type: ignore[no-any-return]


class ResultArrays:
    """Builds Arrow arrays of results; the name of the function is in the message of a result that Arrow refuses."""

    def __init__(self, function: str, arrow_type: pa.DataType) -> None:
        self._function = function
        self._arrow_type = stored_type(arrow_type)

    def array(self, values: Sequence[Any]) -> pa.Array:
        # Each result was checked before: what Arrow still refuses is mostly their total size.
        try:
            made = array(values, self._arrow_type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise ResultError(
                f"{self._function} returned values that do not fit {self._arrow_type}: {error}"
            ) from error
        if isinstance(made, pa.ChunkedArray):  # of more than 2 GiB of text or bytes
            raise ResultError(
                f"{self._function} returned more than 2 GiB in {len(values)} results; "
                "Arrow cannot hold them in one batch: set spark.sql.execution.arrow.maxRecordsPerBatch lower "
                "(for a column over a cached table spark.sql.inMemoryColumnarStorage.batchSize, before it is cached), "
                "or start a server of Sail with a lower SAIL_EXECUTION__BATCH_SIZE"
            )
        return made


def capture_type(value: pa.DataType) -> pa.DataType:
    """The type of a result under `on_error="capture"`."""
    return pa.struct([("value", value), ("error", error_type(ERROR_FIELDS))])


def error_type(fields: Mapping[str, str]) -> pa.DataType:
    # `_spark` makes Spark's types of the same fields: this package knows Arrow only.
    types = {"string": pa.string(), "integer": pa.int32(), "double": pa.float64()}
    return pa.struct([(name, types[ddl]) for name, ddl in fields.items()])
