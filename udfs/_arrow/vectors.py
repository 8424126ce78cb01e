"""Rows of a micro-batch as pandas and Arrow vectors for a vectorized function, and the values of its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from .._errors.exceptions import ResultError
from .._errors.type_mismatch import check_awaited
from .._functions.annotations import Vector
from .._text.safe import safe_repr
from .rows import fields_of, normalized, read_back

__all__ = ("VectorCodec",)


class VectorCodec:
    """Turns the rows of a micro-batch into the vectors that a function takes, and its result into values.

    NULL is None in every vector: a column with a NULL has dtype object, so that whole numbers stay whole.

    Args:
        function: its name, for messages.
        vectors: what each parameter takes.
        names: of the columns, or of the parameters if columns have none.
        arrow_types: the Arrow types of the columns; None if they are not declared (in the test kit).
    """

    def __init__(
        self,
        function: str,
        vectors: Sequence[Vector],
        names: Sequence[str],
        arrow_types: Sequence[pa.DataType | None],
    ) -> None:
        self._function = function
        self._vectors = vectors
        is_declared = None not in arrow_types
        self._arrow_types = [normalized(arrow_type) for arrow_type in arrow_types] if is_declared else None
        self._names = names

    def encode(self, rows: Sequence[tuple[Any, ...]]) -> Sequence[Any]:
        """The vectors of the rows."""
        columns = list(zip(*rows, strict=True))
        arrow_types: Sequence[Any] = self._arrow_types or [None] * len(columns)
        if self._vectors == (Vector.FRAME,) and len(columns) > 1:
            return [_frame(dict(zip(self._names, zip(columns, arrow_types, strict=True), strict=True)))]
        return [_vector(*item) for item in zip(self._vectors, columns, arrow_types, self._names, strict=False)]

    def decode(self, result: Any) -> Sequence[Any]:
        """The values of a vector of results."""
        import pandas as pd

        if isinstance(result, pd.Series):
            return _series_values(result)
        if isinstance(result, pd.DataFrame):
            return self._frame_values(result)
        if isinstance(result, (pa.Array, pa.ChunkedArray)):
            return read_back(self._function, result)
        check_awaited(self._function, result)
        raise ResultError(
            f"{self._function} is vectorized and returned {type(result).__name__}; "
            "return a pd.Series, a pd.DataFrame or a pa.Array with one value for each row"
        )

    def _frame_values(self, frame: Any) -> Sequence[Any]:
        if not frame.columns.is_unique:
            twice = frame.columns[frame.columns.duplicated()][0]
            raise ResultError(
                f"{self._function} returned a DataFrame with several columns {safe_repr(twice)}; give each its own name"
            )
        columns = [_series_values(frame[name]) for name in frame.columns]
        return [dict(zip(frame.columns, row, strict=True)) for row in zip(*columns, strict=True)]


def _vector(vector: Vector, values: Sequence[Any], arrow_type: pa.DataType | None, name: str) -> Any:
    """The vector of one column; of structs a frame has a column for each field, as in pandas_udf."""
    if vector is Vector.ARRAY:
        return pa.array(values, type=arrow_type)
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
    import pandas as pd

    # pandas would make a float column of whole numbers with a null, which loses those beyond 2**53.
    if any(value is None for value in values):
        return pd.Series(list(values), dtype=object)
    if arrow_type is None:
        return pd.Series(list(values))
    if pa.types.is_primitive(arrow_type) and not pa.types.is_date(arrow_type) and not pa.types.is_time(arrow_type):
        return pa.array(values, type=arrow_type).to_pandas()
    return pd.Series(list(values), dtype=object)


def _series_values(series: Any) -> list[Any]:
    missing = series.isna()
    values = series.tolist()
    if missing.any():  # pandas' NaN, NaT and NA in a Series stand for "no value", as in pandas_udf
        return [None if gone else value for value, gone in zip(values, missing, strict=True)]
    return values  # type: ignore[no-any-return]
