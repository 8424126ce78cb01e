"""Rows of one call as pandas and Arrow vectors for a vectorized function, and the values of its result."""

from __future__ import annotations

import datetime
import importlib
import math
import numbers
import sys
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import Any

import pyarrow as pa

from .._errors.exceptions import ResultError
from .._errors.safe import safe_repr, type_name
from .._errors.type_mismatch import TypeMismatchError, check_awaited
from .._functions.annotations import Answers, Vector
from .objects import fields_of, has_objects, seen_type, stored_type
from .rows import normalized, read_back
from .validation import validator


class VectorCodec:
    """Turns the rows of one call into the vectors that a function takes, and its result into values.

    The dtype of a Series follows from the type of its column, NULL or not: see `_series`. Types are None where they are
    not declared (in the test kit): then the values of each call say the type.

    `vectors`: one for each column, the last one also for all columns behind it.
    """

    def __init__(
        self,
        function: str,
        vectors: Sequence[Vector],
        names: Sequence[str],
        arrow_types: Sequence[pa.DataType | None],
        declared: pa.DataType | None,
    ) -> None:
        self._function = function
        self._vectors = vectors
        is_declared = None not in arrow_types
        self._arrow_types = [normalized(seen_type(arrow_type)) for arrow_type in arrow_types] if is_declared else None
        self._names = names
        self._declared = declared

    def encode(self, rows: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
        columns = list(zip(*rows, strict=True))
        arrow_types: Sequence[Any] = self._arrow_types or [None] * len(columns)
        if self._vectors == (Vector.FRAME,) and len(columns) > 1:
            return [_frame(dict(zip(self._names, zip(columns, arrow_types, strict=True), strict=True)))]
        vectors, names = chain(self._vectors, repeat(self._vectors[-1])), chain(self._names, repeat(""))
        return [_vector(*item) for item in zip(vectors, columns, arrow_types, names, strict=False)]

    def decode(self, result: Any, rows: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
        """The values of a vector of results, in the order of the rows that it was made of.

        An exception stands for a row without a value: it was returned in a list or a Series of objects, or the value
        does not fit the declared type (a TypeMismatchError).

        Raises:
            ResultError: the result is no vector, or not one of these rows.
        """
        pd: Any = sys.modules.get("pandas")  # a function that returns its vectors has imported it
        np: Any = sys.modules.get("numpy")
        if np is not None and isinstance(result, np.ndarray) and result.ndim:
            pd = importlib.import_module("pandas")
            result = pd.Series(result if result.ndim == 1 else list(result))
        elif pd is not None and isinstance(result, (pd.Index, pd.api.extensions.ExtensionArray)):
            # Of pandas 3, the `.values` of texts are such an array. Several levels are several values for each row.
            result = result if isinstance(result, pd.MultiIndex) else pd.Series(result)
        is_array, is_list = isinstance(result, (pa.Array, pa.ChunkedArray)), isinstance(result, list)
        if not (is_array or is_list) and (pd is None or not isinstance(result, (pd.Series, pd.DataFrame))):
            check_awaited(self._function, result)
            raise ResultError(
                f"{self._function} is vectorized and returned {type(result).__name__}; "
                "return a pd.Series, a pd.DataFrame, a pa.Array or a list with one value for each row"
            )
        if len(result) != len(rows):
            raise ResultError(
                f"{self._function} returned {len(result)} results for {len(rows)} rows; give one for each row"
            )
        if is_list:
            return result  # type: ignore[no-any-return]
        if is_array:
            return _as_declared(read_back(result), self._declared, result.type)
        result = self._in_order(result, rows)
        if pd is not None and isinstance(result, pd.DataFrame):
            return self._frame_values(result)
        return _series_values(result, self._declared)

    def _in_order(self, result: Any, rows: Sequence[tuple[Any, ...]]) -> Any:
        """A Series or DataFrame in the order of the rows.

        The index must be the index of the arguments, which is the row numbers, in any order; or the values of an
        argument in the order of the rows, as after `reindex`.
        """
        index, numbers_in_order = result.index, list(range(len(rows)))
        labels = index.tolist()
        has_numbers = index.dtype.kind in "iu" and set(labels) == set(numbers_in_order)
        if has_numbers and labels == numbers_in_order:
            return result
        has_numbers = has_numbers and index.name is None  # an index with a name is another table's
        has_values = self._is_of_arguments(index, rows)
        if has_numbers and not has_values:
            return result.sort_index()
        if has_values and not has_numbers:
            return result
        what = f"{self._function} returned a {type(result).__name__} with"
        why = (
            "which may be the values of an argument as well as the numbers of rows: return it with "
            ".reset_index(drop=True) if it is in the order of the rows, else with .sort_index()"
            if has_values
            else "which does not say which value belongs to which row: the index of the arguments is 0, 1, 2, ... in "
            "each call. If the values are in the order of the rows, return them with .reset_index(drop=True)"
        )
        error = ResultError(f"{what} the index {safe_repr(labels)}, {why}")
        error.without_value = f"{what} an index, {why}"
        raise error

    def _is_of_arguments(self, index: Any, rows: Sequence[tuple[Any, ...]]) -> bool:
        """Whether an index has the values of an argument, or with several levels of all arguments, row by row."""
        import pandas as pd

        columns: list[Any] = []
        for vector in self.encode(rows):  # again, as the function may have edited what it got
            if isinstance(vector, pa.Array):
                columns.append(vector.to_pylist())
            else:
                columns += map(_with_none, [vector] if isinstance(vector, pd.Series) else map(vector.get, vector))
        levels = [_with_none(index.get_level_values(level)) for level in range(index.nlevels)]
        return levels == columns if len(levels) > 1 else levels[0] in columns

    def _frame_values(self, frame: Any) -> Sequence[Any]:
        is_struct = self._declared is not None and pa.types.is_struct(self._declared)
        types = {field.name: field.type for field in fields_of(self._declared)} if is_struct else {}
        has_names = frame.columns.empty or any(isinstance(name, str) for name in frame.columns)
        if types and not has_names:  # pandas_udf takes such a frame by position, too
            if len(types) != frame.shape[1]:
                raise ResultError(
                    f"{self._function} returned a DataFrame whose columns have no names and are taken by position, "
                    f"{frame.shape[1]} of them for the {len(types)} fields {', '.join(types)}; give one for each, or "
                    "names: .set_axis([...], axis=1)"
                )
            frame = frame.set_axis(list(types), axis=1)
        if not frame.columns.is_unique:
            twice = frame.columns[frame.columns.duplicated()][0]
            raise ResultError(
                f"{self._function} returned a DataFrame with several columns {safe_repr(twice)}; give each its own name"
            )
        columns = [_series_values(series, types.get(name)) for name, series in frame.items()]
        rows = zip(*columns, strict=True) if columns else [()] * len(frame)
        return [dict(zip(frame.columns, row, strict=True)) for row in rows]


class SinkCodec(VectorCodec):
    """Takes what a vectorized function of a sink returns; an exception in a list or vector is the error of its row.

    `answers`: what the function says that it returns; by that a list without exceptions is an answer for each row.
    """

    def __init__(self, answers: Answers, *others: Any) -> None:
        super().__init__(*others)
        self._answers = answers

    def decode(self, result: Any, rows: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
        """An item for each row; ResultError for answers that could be of any row, or calls not awaited."""
        answers: Any = result.tolist() if hasattr(type(result), "tolist") else result  # of pandas, numpy or Arrow
        if type(answers) not in (list, tuple):
            check_awaited(self._function, result)
            if self._answers is not Answers.UNSAID:
                raise ResultError(
                    f"{self._function} returned a value of type {type_name(result)}, and says that it returns a list "
                    "with an answer for each row"
                )
            return [result] * len(rows)
        has_errors = any(map(_is_exception, answers))
        if len(answers) == len(rows):
            pd: Any = sys.modules.get("pandas")
            if has_errors and pd is not None and isinstance(result, pd.Series):
                answers = self._in_order(result, rows).tolist()
            return [*map(self._error, answers)] if self._answers is Answers.ERRORS else answers
        if has_errors or self._answers is not Answers.UNSAID:
            among = ", with exceptions among them" if has_errors else ""
            raise ResultError(
                f"{self._function} returned {len(answers)} answers for {len(rows)} rows{among}; give one answer for "
                "each row"
            )
        check_awaited(self._function, answers)
        return [None] * len(rows)

    def _error(self, answer: Any) -> Any:
        """What is None or an exception, as the function has said; pandas has NaN in the place of None."""
        if answer is None or _is_exception(answer) or (type(answer) is float and math.isnan(answer)):
            return answer
        check_awaited(self._function, answer)
        return ResultError(
            f"{self._function} answered a value of type {type_name(answer)} for a row, and says that it answers None "
            "or an exception"
        )


def _is_exception(answer: Any) -> bool:
    return issubclass(answer if isinstance(answer, type) else type(answer), BaseException)


def _vector(vector: Vector, values: Sequence[Any], arrow_type: pa.DataType | None, name: str) -> Any:
    """The vector of one column; of structs a frame has a column for each field, as in pandas_udf."""
    if vector is Vector.ARRAY:
        if has_objects(arrow_type):
            values = list(map(validator("the row", arrow_type), values))
        return pa.array(values, type=stored_type(arrow_type))
    if vector is Vector.SERIES:
        return _series(values, arrow_type)
    fields = _struct_fields(values, arrow_type)
    if fields is None:  # one column, and a frame of it
        return _frame({name: (values, arrow_type)})
    return _frame(
        {field: ([None if v is None else v.get(field) for v in values], inner) for field, inner in fields.items()}
    )


def _struct_fields(values: Sequence[Any], arrow_type: pa.DataType | None) -> dict[str, pa.DataType | None] | None:
    """The fields of structs and their types; None if the values are no structs."""
    if arrow_type is not None:
        return {field.name: field.type for field in fields_of(arrow_type)} if pa.types.is_struct(arrow_type) else None
    structs = [value for value in values if isinstance(value, dict)]
    return {field: None for struct in structs for field in struct} if structs else None


def _frame(columns: dict[str, tuple[Sequence[Any], Any]]) -> Any:
    import pandas as pd

    return pd.DataFrame({name: _series(values, arrow_type) for name, (values, arrow_type) in columns.items()})


def _series(values: Sequence[Any], arrow_type: pa.DataType | None) -> Any:
    """A Series of the dtype of its type. NULL changes it for whole numbers and flags alone, to the nullable one.

    As floats whole numbers beyond 2**53 would be others. The nullable dtype where nothing is NULL would surprise: to
    iterate over it gives numbers of numpy, which no JSON and no database takes.
    """
    import pandas as pd

    known = _type_of(values) if arrow_type is None else arrow_type
    if pa.types.is_string(known) or pa.types.is_large_string(known):
        return pd.Series(list(values), dtype=pd.Series([""]).dtype)  # that of text in this version of pandas
    is_flag, is_whole = pa.types.is_boolean(known), pa.types.is_signed_integer(known)
    if not (is_flag or is_whole or any(is_so(known) for is_so in _WITH_A_MISSING_VALUE)):
        return pd.Series(list(values), dtype=object)
    array = pa.array(values, type=known)
    if not array.null_count or not (is_flag or is_whole):
        return array.to_pandas().copy()  # for functions that write to it: without a NULL it is Arrow's own memory
    dtype = pd.api.types.pandas_dtype("boolean" if is_flag else f"Int{known.bit_width}")
    return array.to_pandas(types_mapper=lambda _: dtype)


_WITH_A_MISSING_VALUE = (pa.types.is_floating, pa.types.is_timestamp, pa.types.is_duration)  # NaN or NaT


def _type_of(values: Sequence[Any]) -> pa.DataType:
    """The type of values without a declared type; the type of NULL if Arrow has none for them."""
    try:
        return normalized(pa.array(values).type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return pa.null()


def _series_values(series: Any, declared: pa.DataType | None) -> list[Any]:
    # Of nested values pandas makes others: of a map a list of pairs, of a NULL in an array of structs its own NA.
    inner = getattr(series.dtype, "pyarrow_dtype", None)
    if inner is not None and pa.types.is_nested(inner):
        return _as_declared(read_back(pa.array(series)), declared, inner)
    return _as_declared(_with_none(series), declared, series.dtype)


def _with_none(series: Any) -> list[Any]:
    """The values of a Series or of an index: pandas' NaN, NaT and NA stand for "no value" there, as in pandas_udf."""
    values: list[Any] = series.tolist()
    missing = series.isna()
    if missing.any():
        values = [None if gone else value for value, gone in zip(values, missing, strict=True)]
    if series.dtype.kind == "f" and hasattr(series.dtype, "na_value"):  # for which 0/0 is NaN, and not missing
        values = [None if value != value else value for value in values]
    return values


# A Series has one type, and pandas chooses it: whole numbers beside a missing one become floats, days become moments.


def _as_declared(values: list[Any], declared: pa.DataType | None, dtype: Any) -> list[Any]:
    """The values of a vector, those that pandas has made of another type as they were before: 10 for 10.0."""
    for matches, is_other, taken in () if declared is None else _MADE_OTHERWISE:
        if matches(declared):
            # Most often there is no such value: to look at each type once costs little.
            others = {kind for kind in set(map(type, values)) if is_other(kind)}
            return [taken(v, declared, dtype) if type(v) in others else v for v in values] if others else values
    return values


def _is_float(kind: type) -> bool:
    return issubclass(kind, numbers.Real) and not issubclass(kind, numbers.Rational)


def _is_datetime(kind: type) -> bool:
    return issubclass(kind, datetime.datetime)


def _whole(value: Any, declared: Any, dtype: Any) -> Any:
    is_decimal = pa.types.is_decimal(declared)
    if not float(value).is_integer():
        fix = "return decimal.Decimal values" if is_decimal else "round it, and return .astype('Int64')"
        return _misfit(value, declared, dtype, fix)
    bits = dtype.bit_width if isinstance(dtype, pa.DataType) else 8 * getattr(dtype, "itemsize", 8)
    exact = 2 ** {16: 11, 32: 24}.get(bits, 53)
    if abs(value) <= exact:
        return int(value)
    fix = "return decimal.Decimal values" if is_decimal else "make it .astype('Int64') before a value is missing"
    return _misfit(value, declared, dtype, f"its whole numbers are exact up to {exact} only: {fix}")


def _flag(value: Any, declared: Any, dtype: Any) -> Any:
    return _misfit(value, declared, dtype, "return .astype('boolean')")


def _day(value: Any, declared: Any, dtype: Any) -> Any:
    is_midnight = value.time() == datetime.time.min and not getattr(value, "nanosecond", 0)
    return value.date() if is_midnight and value.tzinfo is None else _misfit(value, declared, dtype, "return .dt.date")


def _moment(value: Any, declared: Any, dtype: Any) -> Any:
    if (value.tzinfo is None) == (declared.tz is None):
        return value
    return _misfit(value, declared, dtype, f"return .dt.tz_localize({declared.tz!r})")


# Arrow type, the classes of values that pandas may have made in place of its own, and what is taken for such a value.
_MADE_OTHERWISE: Sequence[
    tuple[Callable[[pa.DataType], bool], Callable[[type], bool], Callable[[Any, Any, Any], Any]]
] = (
    (pa.types.is_integer, _is_float, _whole),
    (pa.types.is_decimal, _is_float, _whole),
    (pa.types.is_boolean, _is_float, _flag),
    (pa.types.is_date, _is_datetime, _day),
    (pa.types.is_timestamp, _is_datetime, _moment),
)


def _misfit(value: Any, declared: Any, dtype: Any, fix: str) -> TypeMismatchError:
    if isinstance(dtype, pa.DataType):
        return TypeMismatchError("", value, f"declared {declared}, in an array of {dtype}; give an array of {declared}")
    return TypeMismatchError("", value, f"declared {declared}, in a Series of {dtype}; {fix}")
