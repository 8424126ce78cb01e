"""Annotations with vectors in them: each is a vector, or refused; none is taken for a scalar without a word."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any, List, NewType, Optional, Tuple  # noqa: UP035 - the old spellings are still met

import pandas as pd
import pyarrow as pa
import pytest
from typing_extensions import TypeAliasType

from asyncudf import FunctionError, async_pandas_udf
from asyncudf._arrow.vectors import SinkCodec
from asyncudf._functions.annotations import Answers, Vector
from asyncudf.testing import run_rows


async def stubs(x: pd.Series[int]) -> pd.Series[int]:
    return x + 1


async def optional_stubs(x: Optional[pd.Series[int]], y: pd.Series[str] | None) -> pd.Series:  # noqa: UP045
    return x + y.str.len()  # type: ignore[operator, union-attr]


async def arrow_stubs(x: pa.Array[pa.Int64Scalar]) -> pa.Array:
    return x


def test_series_and_arrays_as_type_checkers_know_them_are_vectors() -> None:
    specs = [async_pandas_udf(f, "int", batch_size=5).spec for f in (stubs, optional_stubs, arrow_stubs)]
    assert [s.vectors for s in specs] == [(Vector.SERIES,), (Vector.SERIES, Vector.SERIES), (Vector.ARRAY,)]
    assert run_rows(stubs, [1, 2], returnType="int") == [2, 3]


Cities = TypeAliasType("Cities", pd.Series)  # `type Cities = pd.Series` since Python 3.12
MaybeCities = TypeAliasType("MaybeCities", Optional[Cities])  # noqa: UP045
Codes = NewType("Codes", pa.StringArray)


async def aliases(x: Cities, y: MaybeCities, z: Codes) -> pd.Series: ...  # type: ignore[empty-body]
async def alias_and_scalar(x: Cities, y: int) -> pd.Series: ...  # type: ignore[empty-body]
async def pair_of_aliases(x: Iterator[Cities]) -> Any: ...


def test_an_alias_is_what_it_stands_for() -> None:
    """It was taken for a scalar: the function got one value per row."""
    assert async_pandas_udf(aliases, "int").spec.vectors == (Vector.SERIES, Vector.SERIES, Vector.ARRAY)
    with pytest.raises(FunctionError, match="alias_and_scalar mixes vectors and scalars"):
        async_pandas_udf(alias_and_scalar, "int")


WITH_PANDAS_ON_SPARK = """
from __future__ import annotations
import pyspark.pandas  # makes pd.Series[int] a type of its own
import pandas as pd
from asyncudf.testing import run_rows

async def doubled(x: pd.Series[int]) -> pd.Series[int]:
    return x * 2

print(run_rows(doubled, [1, 2], returnType="int", batch_size=2))
"""


def test_a_series_beside_pandas_on_spark_is_a_vector() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", WITH_PANDAS_ON_SPARK], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("[2, 4]\n", 0), done.stderr


async def iterator(x: Iterator[pd.Series]) -> Any: ...
async def iterator_of_stubs(x: Iterator[pd.Series[int]]) -> Any: ...
async def old_list(x: List[pd.Series]) -> Any: ...  # noqa: UP006
async def pair(x: Iterator[Tuple[pd.Series, pd.Series]]) -> Any: ...  # noqa: UP006
async def either(x: pd.Series | pd.DataFrame) -> Any: ...
async def index(x: pd.Index) -> Any: ...
async def table(x: pa.Table) -> Any: ...
async def many(*x: list[pa.Array]) -> Any: ...


@pytest.mark.parametrize(
    "function", [iterator, iterator_of_stubs, old_list, pair, pair_of_aliases, either, index, table, many]
)
def test_what_is_made_of_vectors_is_refused(function: Any) -> None:
    message = rf"{function.__name__} takes x as .*, which no batch of rows is; annotate it with pd\.Series, pd\.Data"
    with pytest.raises(FunctionError, match=message):
        async_pandas_udf(function, "int")


async def rest(*columns: pd.Series) -> pd.Series:
    return sum(columns)  # type: ignore[return-value]


async def first_and_rest(x: pd.Series, *columns: pa.Array) -> pd.Series:
    return x + sum(len(column) for column in columns)


def test_vectors_for_any_number_of_columns() -> None:
    assert async_pandas_udf(rest, "int").spec.vectors == (Vector.SERIES,)
    assert run_rows(rest, [(1, 2), (3, 4)], returnType="int", batch_size=2) == [3, 7]
    assert run_rows(rest, [(1,), (3,)], returnType="int", batch_size=2) == [1, 3]
    assert async_pandas_udf(first_and_rest, "int").spec.vectors == (Vector.SERIES, Vector.ARRAY)
    assert run_rows(first_and_rest, [(1,), (3,)], returnType="int", batch_size=2) == [1, 3]
    assert run_rows(first_and_rest, [(1, 5, 6), (3, 7, 8)], returnType="int", batch_size=2) == [5, 7]


async def unsaid_rest(x: pd.Series, *columns: Any) -> pd.Series: ...  # type: ignore[empty-body]
async def scalar_rest(x: pd.Series, *columns: int) -> pd.Series: ...  # type: ignore[empty-body]
async def frames(*columns: pd.DataFrame) -> pd.Series: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (unsaid_rest, "unsaid_rest mixes vectors and scalars"),
        (scalar_rest, "scalar_rest mixes vectors and scalars"),
        (frames, r"frames takes \*columns as a pd.DataFrame each; take all columns in one, without the \*"),
    ],
)
def test_other_vectors_for_any_number_of_columns_are_refused(function: Any, message: str) -> None:
    with pytest.raises(FunctionError, match=message):
        async_pandas_udf(function, "int")


def test_scalars_of_these_packages_are_no_vectors() -> None:
    async def call(x: pd.Timestamp, *rest: pd.Timestamp) -> list[pd.Timestamp]: ...  # type: ignore[empty-body]

    assert async_pandas_udf(call, "int").spec.vectors == ()


ErrorsOrNone = TypeAliasType("ErrorsOrNone", list[Exception | None])


async def errors(x: pd.Series) -> list[Exception | None]: ...  # type: ignore[empty-body]
async def errors_of_aliases(x: pd.Series) -> ErrorsOrNone: ...  # type: ignore[empty-body]
async def old_errors(x: pd.Series) -> List[Optional[ValueError]]: ...  # type: ignore[empty-body]  # noqa: UP006, UP045
async def some_errors(x: pd.Series) -> list[ValueError]: ...  # type: ignore[empty-body]
async def errors_or_nothing(x: pd.Series) -> list[Exception | None] | None: ...
async def values_or_errors(x: pd.Series) -> Sequence[int | Exception | None]: ...  # type: ignore[empty-body]
async def values(x: pd.Series) -> list[int]: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("function", "answers"),
    [
        (errors, Answers.ERRORS),
        (old_errors, Answers.ERRORS),
        (errors_of_aliases, Answers.ERRORS),
        (some_errors, Answers.UNSAID),
        (errors_or_nothing, Answers.UNSAID),
        (values_or_errors, Answers.FOR_EACH_ROW),
        (values, Answers.UNSAID),
        (stubs, Answers.UNSAID),
    ],
)
def test_a_list_with_exceptions_is_an_answer_for_each_row(function: Any, answers: Answers) -> None:
    """Not the list of those that there were, which may be empty, and not where all may be said by None."""
    assert async_pandas_udf(function, "int", batch_size=5).spec.answers is answers


def test_what_pandas_has_in_the_place_of_none_is_no_error() -> None:
    """`statuses.map({404: error}).tolist()` has NaN for all others: they are written."""
    error = ValueError("404")
    answers = pd.Series([200, 404, 201]).map({404: error}).tolist()
    codec = SinkCodec(Answers.ERRORS, "bulk", (Vector.SERIES,), ["status"], [pa.int64()], None)
    found = codec.decode(answers, [(200,), (404,), (201,)])
    assert [isinstance(one, Exception) for one in found] == [False, True, False]
