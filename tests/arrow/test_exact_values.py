"""What Spark would store as something else without a word is refused, or kept exactly: moments, keys, columns."""

from __future__ import annotations

import datetime
import math
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from multidict import CIMultiDict, MultiDict
from pyspark.sql import Row

from asyncudf import ResultError
from asyncudf._arrow.rows import read_back, rows_of, values_of
from asyncudf._arrow.validation import validator
from asyncudf.testing import run_rows

UTC = datetime.UTC
TIMESTAMP, TIMESTAMP_NTZ, DURATION = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.duration("us")
DOUBLES, FLOATS = pa.map_(pa.float64(), pa.int32()), pa.map_(pa.float32(), pa.int32())
POINT = pa.struct([("x", pa.int32()), ("y", pa.string())])


@pytest.mark.parametrize(
    ("arrow_type", "value"),
    [
        (TIMESTAMP, pd.Timestamp("2026-01-02T00:00:00.000000001Z")),
        (TIMESTAMP_NTZ, pd.Timestamp("2026-01-02T00:00:00.000000001")),
        (DURATION, pd.Timedelta(1, "ns")),
    ],
)
def test_nanoseconds_are_refused(arrow_type: pa.DataType, value: Any) -> None:
    with pytest.raises(ResultError, match=r"it has nanoseconds, and Spark keeps microseconds; round it"):
        validator("f", arrow_type)(value)
    whole = value.round("us")
    assert pa.array([validator("f", arrow_type)(whole)], arrow_type)[0].as_py() == whole


@pytest.mark.parametrize(
    ("values", "returns"),
    [(["2026-01-02T00:00:00.000000001"], "timestamp_ntz"), (["2026-01-02T00:00:00.000000001Z"], "timestamp")],
)
@pytest.mark.parametrize("make", [pd.Series, pa.array], ids=["series", "array"])
def test_nanoseconds_in_a_vector_are_refused(values: list[str], returns: str, make: Any) -> None:
    async def call(x: pd.Series) -> pd.Series:
        return make(pd.to_datetime(values))  # type: ignore[no-any-return]

    with pytest.raises(ResultError, match="it has nanoseconds, and Spark keeps microseconds"):
        run_rows(call, [1], returnType=returns)


@pytest.mark.parametrize("dtype", ["datetime64[ns]", "timedelta64[ns]"])
def test_an_array_of_nanoseconds_is_no_array_of_numbers(dtype: str) -> None:
    with pytest.raises(ResultError, match=r"\((datetime|timedelta)64\) in field '\[\]': declared int64"):
        validator("f", pa.list_(pa.int64()))(np.array([5], dtype=dtype))
    with pytest.raises(ResultError, match=r"\((datetime|timedelta)64\) in field '\[\]\[\]': declared int64"):
        validator("f", pa.list_(pa.list_(pa.int64())))(np.array([[5]], dtype=dtype))


def test_the_microseconds_of_an_offset_count() -> None:
    zone = datetime.timezone(datetime.timedelta(seconds=1, microseconds=5))
    value = datetime.datetime(2026, 1, 2, tzinfo=zone)
    assert pa.array([validator("f", TIMESTAMP)(value)], TIMESTAMP)[0].as_py() == value


def test_a_moment_whose_offset_leads_out_of_time_is_refused() -> None:
    zone = datetime.timezone(datetime.timedelta(microseconds=5))
    with pytest.raises(ResultError, match="in UTC it is not in the years"):
        validator("f", TIMESTAMP)(datetime.datetime.min.replace(tzinfo=zone))


@pytest.mark.parametrize(
    ("arrow_type", "value"),
    [
        (pa.map_(pa.string(), pa.string()), MultiDict([("a", "1"), ("a", "2")])),
        (pa.map_(pa.string(), pa.string()), CIMultiDict([("a", "1"), ("a", "1")])),
        (FLOATS, {0.1: 1, float(np.float32(0.1)): 2}),
        (DOUBLES, {float("nan"): 1, -math.nan: 2}),
        (pa.struct([("a", pa.string())]), MultiDict([("a", "1"), ("a", "2")])),
        (pa.struct([("a", pa.int64())]), Row("a", "a")(1, 2)),
    ],
)
def test_a_mapping_that_would_lose_a_key_is_refused(arrow_type: pa.DataType, value: Any) -> None:
    with pytest.raises(ResultError, match="it has a key more than once"):
        validator("f", arrow_type)(value)


def test_other_mappings_and_keys_are_kept() -> None:
    assert validator("f", pa.map_(pa.string(), pa.string()))(MultiDict([("a", "1"), ("b", "1")])) == {
        "a": "1",
        "b": "1",
    }
    assert validator("f", DOUBLES)({0.1: 1, float(np.float32(0.1)): 2}) == {0.1: 1, 0.10000000149011612: 2}
    assert validator("f", FLOATS)({0.5: 1, math.inf: 2}) == {0.5: 1, math.inf: 2}


def test_a_frame_with_two_columns_of_a_name_is_refused() -> None:
    async def call(x: pd.Series) -> pd.DataFrame:
        return pd.DataFrame([[1, 2]] * len(x), columns=["a", "a"])

    with pytest.raises(ResultError, match="call returned a DataFrame with several columns 'a'; give each"):
        run_rows(call, [1, 2], returnType="a int")


def test_a_map_whose_keys_are_structs_or_arrays_comes_back_as_it_went() -> None:
    arrow_type = pa.struct([("m", pa.list_(pa.map_(POINT, pa.map_(pa.list_(pa.int32()), pa.int32()))))])
    value = {"m": [{(1, "a"): {(1, 2): 3, (): 4}, (1, None): None}, None]}
    array = pa.array([validator("f", arrow_type)(value), None], arrow_type)
    assert values_of(array) == [value, None]
    assert [validator("f", arrow_type)(seen) for seen in values_of(array)] == [validator("f", arrow_type)(value), None]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([[("SECRET", 1), ("SECRET", 2)]], pa.map_(pa.string(), pa.int32())),
        pa.array([[({"x": 1, "y": "SECRET"}, 1)] * 2], pa.map_(POINT, pa.int32())),
    ],
    ids=["texts", "structs"],
)
def test_a_map_that_repeats_a_key_is_told_without_it(column: pa.Array) -> None:
    rows, errors = rows_of("f", [pa.array([1]), column], ["x", "m"])
    assert [repr(row) for row in rows] == ["{'x': 1, 'm': <a map with a key more than once>}"]
    assert "has a map with a key more than once: map_entries(m) gives" in str(errors[0])
    (result,) = read_back(column)
    for told in (*errors.values(), result):
        assert "SECRET" not in f"{told} {told.__cause__}"


def test_the_input_without_a_python_form_is_named() -> None:
    moment = pa.array([2**62]).cast(pa.timestamp("us"))
    for names, name in ((["x", "m"], "m"), (None, "2")):
        _, errors = rows_of("f", [pa.array([1]), moment], names)
        said = f"the input of f (column {name}, timestamp[us]) has a moment that is not in the years 1 to 9999: "
        assert str(errors[0]).startswith(said)


def test_an_array_of_results_that_cannot_be_read_is_an_error_of_its_rows() -> None:
    async def call(x: pa.Array) -> pa.Array:
        return pa.array([[("a", 1), ("a", 2)]] * len(x), pa.map_(pa.string(), pa.int32()))

    (result,) = run_rows(call, [1], returnType="map<string, int>", on_error="capture")
    assert result["error"]["type"] == "ResultError"
    assert result["error"]["message"].startswith("call returned <a map with a key more than once>")
