"""A result against its declared type: what fits is kept exactly, what does not is an error with field and value."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import decimal
import enum
import math
import sqlite3
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf import OptionError, ResultError
from asyncudf._arrow.validation import validator
from asyncudf._functions.options import ExtraFields
from asyncudf.testing import run_rows

UTC = datetime.UTC
AWARE, NAIVE = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, UTC), datetime.datetime(2026, 1, 2, 3, 4, 5, 6)
TIMESTAMP, TIMESTAMP_NTZ = pa.timestamp("us", "UTC"), pa.timestamp("us")
WEATHER = pa.struct([("temp", pa.float64()), ("sky", pa.string())])


LARGEST_32 = 2.0**128 - 2.0**104


class Pair(NamedTuple):
    temp: float
    sky: str


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Weather:
    temp: float
    sky: str


FITS = [
    (pa.int32(), 5, 5),
    (pa.int32(), np.int64(5), 5),
    (pa.int32(), Level.HIGH, 3),
    (pa.int64(), 2**63 - 1, 2**63 - 1),
    (pa.int64(), -(2**63), -(2**63)),
    (pa.float64(), 1.5, 1.5),
    (pa.float64(), 2, 2.0),
    (pa.float64(), np.float32(1.5), 1.5),
    (pa.float64(), 2**53, float(2**53)),
    (pa.bool_(), True, True),
    (pa.bool_(), np.bool_(True), True),
    (pa.string(), "Ærø", "Ærø"),
    (pa.binary(), b"x", b"x"),
    (pa.binary(), bytearray(b"x"), b"x"),
    (pa.date32(), datetime.date(2026, 1, 2), datetime.date(2026, 1, 2)),
    (TIMESTAMP, AWARE, AWARE),
    (TIMESTAMP, pd.Timestamp(AWARE), AWARE),
    (TIMESTAMP_NTZ, NAIVE, NAIVE),
    (pa.decimal128(5, 2), decimal.Decimal("123.4"), decimal.Decimal("123.40")),
    (pa.decimal128(5, 2), 123, decimal.Decimal("123.00")),
    (pa.duration("us"), datetime.timedelta(seconds=1), datetime.timedelta(seconds=1)),
    (pa.list_(pa.int32()), [1, None, 3], [1, None, 3]),
    (pa.list_(pa.int32()), (1, 2), [1, 2]),
    (pa.list_(pa.int64()), np.array([1, 2]), [1, 2]),
    (pa.list_(pa.float64()), [1.5, 2.5], [1.5, 2.5]),
    (pa.list_(pa.float64()), (1.5, 2, None), [1.5, 2.0, None]),
    (pa.list_(pa.float32()), np.array([1.5, 2.5], np.float32), [1.5, 2.5]),
    (pa.list_(pa.float64()), [], []),
    (pa.float64(), np.float64(1e300), 1e300),
    (pa.float32(), LARGEST_32, LARGEST_32),
    (pa.float32(), -LARGEST_32, -LARGEST_32),
    (pa.float32(), math.nextafter(2.0**128 - 2.0**103, 0), LARGEST_32),
    (pa.float32(), math.inf, math.inf),
    (pa.float32(), -math.inf, -math.inf),
    (pa.float32(), np.float32("inf"), math.inf),
    (pa.list_(pa.float32()), [1.5, math.inf, None], [1.5, math.inf, None]),
    (pa.list_(pa.float64()), [1e300, math.inf], [1e300, math.inf]),
    (pa.map_(pa.string(), pa.int32()), {"a": 1, "b": None}, [("a", 1), ("b", None)]),
    (WEATHER, {"temp": 1.0, "sky": None}, {"temp": 1.0, "sky": None}),
    (WEATHER, {"sky": "x", "temp": 1}, {"temp": 1.0, "sky": "x"}),
    (WEATHER, Weather(1.0, "x"), {"temp": 1.0, "sky": "x"}),
    (WEATHER, Pair(1.0, "x"), {"temp": 1.0, "sky": "x"}),
    (WEATHER, (1.0, "x"), {"temp": 1.0, "sky": "x"}),
    (WEATHER, None, None),
    (TIMESTAMP, pd.NaT, None),
    (pa.int64(), pd.NA, None),
]


@pytest.mark.parametrize(("arrow_type", "value", "exact"), FITS)
def test_what_fits_reaches_arrow_unchanged(arrow_type: pa.DataType, value: Any, exact: Any) -> None:
    validated = validator("f", arrow_type)(value)
    assert pa.array([validated], type=arrow_type).to_pylist() == [exact]


MISMATCHES = [
    (pa.int32(), 1.5, "1.5 (float): declared int32"),
    (pa.int32(), 1.0, "1.0 (float)"),
    (pa.int32(), True, "True (bool)"),
    (pa.int32(), "1", "'1' (str)"),
    (pa.int32(), 2**31, "2147483648 (int): declared int32, which ends at 2147483647"),
    (pa.int64(), 2**63, "which ends at"),
    (pa.float64(), True, "True (bool)"),
    (pa.float64(), "1.5", "'1.5' (str)"),
    (pa.float64(), 2**53 + 1, "exactly up to"),
    (pa.float64(), decimal.Decimal("1.5"), "Decimal"),
    (pa.float32(), 1e300, "1e+300 (float): declared float, which is infinity from 3.40282e+38 on"),
    (pa.float32(), -1e300, "-1e+300 (float): declared float, which is infinity"),
    (pa.float32(), 2.0**128 - 2.0**103, "declared float, which is infinity"),
    (pa.float32(), np.float64(1e300), "(float64): declared float, which is infinity"),
    (pa.float16(), 65520.0, "65520.0 (float): declared halffloat, which is infinity from 65520 on"),
    (pa.float16(), np.float32(1e30), "(float32): declared halffloat, which is infinity"),
    (pa.list_(pa.float32()), [1.5, 1e300], "1e+300 (float) in field '[]'"),
    (pa.list_(pa.float32()), [1.5, -1e300], "-1e+300 (float) in field '[]'"),
    (pa.list_(pa.float32()), [math.nan, 1e300], "1e+300 (float) in field '[]'"),
    (pa.list_(pa.float32()), [1.5, math.nan, 1e300], "1e+300 (float) in field '[]'"),
    (pa.list_(pa.float32()), np.array([1.5, 1e300]), "1e+300 (float) in field '[]'"),
    (pa.map_(pa.string(), pa.float32()), {"a": 1e300}, "1e+300 (float) in field 'value'"),
    (pa.bool_(), 1, "1 (int): declared bool"),
    (pa.string(), b"x", "b'x' (bytes): declared string"),
    (pa.string(), 5, "5 (int): declared string"),
    (pa.string(), "\ud800", "no Unicode text"),
    (pa.binary(), "x", "'x' (str): declared binary"),
    (pa.date32(), NAIVE, "(datetime): declared date32"),
    (pa.date32(), "2026-01-02", "(str)"),
    (TIMESTAMP, NAIVE, "give a time-zone-aware datetime"),
    (TIMESTAMP, datetime.date(2026, 1, 2), "(date)"),
    (TIMESTAMP_NTZ, AWARE, "give a naive datetime"),
    (pa.time64("us"), datetime.time(1, tzinfo=UTC), "declared time64"),
    (pa.duration("us"), datetime.timedelta.max, "declared duration"),
    (pa.duration("us"), datetime.timedelta.min, "declared duration"),
    (pa.decimal128(5, 2), decimal.Decimal("1.234"), "declared decimal128(5, 2)"),
    (pa.decimal128(5, 2), decimal.Decimal(12345), "it has 5 digits before the point, and the type 3"),
    (pa.decimal128(5, 2), 1234, "it has 4 digits before the point, and the type 3"),
    (pa.decimal128(5, 2), decimal.Decimal("1E-9"), "more digits behind the point than the 2 of the type"),
    (pa.decimal128(5, 2), decimal.Decimal("NaN"), "declared decimal128(5, 2)"),
    (pa.decimal128(5, 2), 1.5, "1.5 (float)"),
    (pa.list_(pa.int32()), "abc", "declared array (give a list)"),
    (pa.list_(pa.int32()), {1, 2}, "declared array"),
    (pa.list_(pa.int32()), [1, "x"], "'x' (str) in field '[]'"),
    (pa.list_(pa.float64()), [1.5, True], "True (bool) in field '[]'"),
    (pa.list_(pa.float64()), [1.5, 2**53 + 1], "exactly up to"),
    (pa.list_(pa.field("item", pa.float64(), nullable=False)), [1.5, None], "not null"),
    (pa.map_(pa.string(), pa.int32()), [("a", 1)], "declared map (give a dict)"),
    (pa.map_(pa.string(), pa.int32()), {None: 1}, "not null"),
    (pa.map_(pa.string(), pa.int32()), {"a": 1.5}, "1.5 (float)"),
    (WEATHER, {"temp": 1.0, "sky": 5}, "5 (int) in field 'sky': declared string"),
    (WEATHER, "text", "give a dict, a dataclass or a NamedTuple"),
    (WEATHER, (1.0,), "give a dict"),
    (WEATHER, Weather, "give a dict"),
    (pa.struct([pa.field("a", pa.int32(), nullable=False)]), {"a": None}, "not null"),
    (pa.struct([("in", WEATHER)]), {"in": {"temp": "x", "sky": None}}, "in field 'in.temp'"),
]


@pytest.mark.parametrize(("arrow_type", "value", "said"), MISMATCHES)
def test_what_does_not_fit_is_named(arrow_type: pa.DataType, value: Any, said: str) -> None:
    with pytest.raises(ResultError) as caught:
        validator("weather", arrow_type)(value)
    assert str(caught.value).startswith("weather returned ")
    assert said in str(caught.value)


FIELDS = [
    ({"temp": 1.0}, "missing field 'sky': return every field, None for NULL"),
    ({}, "missing fields 'temp', 'sky': return every field, None for NULL"),
    ({"temp": 1.0, "sky": "x", "wind": 3}, "unknown field 'wind': declare it, or leave it out"),
    ({"temp": 1.0, "sky": "x", 1: 2, None: 3}, "unknown fields 1, None: declare it, or leave it out"),
    ({"tmp": 1.0, "sky": "x"}, "unknown field 'tmp': did you mean 'temp'?"),
    ({"TEMP": 1.0, "Sky": "x"}, "unknown field 'TEMP': did you mean 'temp'?; unknown field 'Sky': did you mean 'sky'?"),
    ({"tmp": 1.0, "w": 3}, "unknown field 'tmp': did you mean 'temp'?; unknown field 'w': declare it, or leave it out"),
    ({"temp": 1.0, "sky": "x", "temps": 2}, "unknown field 'temps': declare it, or leave it out"),
    ({"temp": 1.0, "sky": "x", **dict.fromkeys(map(str, range(20)))}, "'6', '7', ...: declare it, or leave it out"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "said"), FIELDS)
def test_missing_and_unknown_fields_are_told_apart_with_what_to_do(value: Any, said: str) -> None:
    with pytest.raises(ResultError) as caught:
        validator("weather", WEATHER)(value)
    assert str(caught.value).endswith(said)


@dataclasses.dataclass
class MoreWeather(Weather):
    wind: float


class MorePair(NamedTuple):
    temp: float
    sky: str
    wind: float


NESTED = pa.struct([("at", pa.list_(WEATHER)), ("by", pa.map_(pa.string(), WEATHER))])
MORE, LESS = {"temp": 1.0, "sky": "x", "wind": 3}, {"temp": 1.0, "sky": "x"}


@pytest.mark.parametrize(
    ("arrow_type", "value", "validated"),
    [
        (WEATHER, MORE, LESS),
        (WEATHER, LESS, LESS),
        (WEATHER, MoreWeather(1.0, "x", 3), LESS),
        (WEATHER, MorePair(1.0, "x", 3), LESS),
        (WEATHER, {1: 2, **LESS}, LESS),
        (NESTED, {"at": [MORE, LESS], "by": {"k": MORE}, "n": 1}, {"at": [LESS, LESS], "by": {"k": LESS}}),
    ],
)
def test_unknown_fields_are_dropped_where_that_is_asked_for(
    arrow_type: pa.DataType, value: Any, validated: Any
) -> None:
    assert validator("f", arrow_type, extra_fields=ExtraFields.DROP)(value) == validated
    if value is not LESS:
        with pytest.raises(
            ResultError, match=r"unknown .*: declare it, or have such fields left out with extra_fields='drop'"
        ):
            validator("f", arrow_type, extra_fields=ExtraFields.ERROR)(value)


@pytest.mark.parametrize("value", [{"sky": "x", "wind": 3}, {"tmp": 1.0, "sky": "x"}])
def test_a_field_that_is_missing_is_an_error_also_where_unknown_ones_are_dropped(value: Any) -> None:
    with pytest.raises(ResultError, match=r"missing field 'temp'|did you mean 'temp'"):
        validator("f", WEATHER, extra_fields=ExtraFields.DROP)(value)


def test_the_test_kit_drops_fields_as_spark_does() -> None:
    async def weather(city: str) -> Any:
        return MORE

    declared = "temp double, sky string"
    assert run_rows(weather, ["Oslo"], returnType=declared) == [LESS]
    with pytest.raises(ResultError, match="unknown field 'wind'"):
        run_rows(weather, ["Oslo"], returnType=declared, extra_fields="error")
    with pytest.raises(OptionError, match="extra_fields must be one of 'error', 'drop', not 'keep'"):
        run_rows(weather, ["Oslo"], extra_fields="keep")


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.datetimes() | st.decimals(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["temp", "sky", "x"]), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(value=ANYTHING, arrow_type=st.sampled_from([arrow_type for arrow_type, _, _ in FITS]))
def test_whatever_the_validator_lets_through_arrow_takes(value: Any, arrow_type: pa.DataType) -> None:
    try:
        validated = validator("f", arrow_type)(value)
    except ResultError:
        return
    pa.array([validated], type=arrow_type)


@given(st.integers(-(10**6), 10**6), st.integers(-6, 4))
def test_a_decimal_fits_if_arrow_can_keep_it(digits: int, exponent: int) -> None:
    value, arrow_type = decimal.Decimal(digits).scaleb(exponent), pa.decimal128(5, 2)
    try:
        kept = pa.scalar(value, arrow_type).as_py()
    except pa.ArrowInvalid:
        with pytest.raises(ResultError, match="declared decimal128"):
            validator("f", arrow_type)(value)
    else:
        assert validator("f", arrow_type)(value) == value == kept


def test_a_row_of_a_database_is_a_struct_by_its_names() -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.row_factory = sqlite3.Row
        row = database.execute("SELECT 'x' AS b, 1 AS a, 2 AS more").fetchone()
        with_a_name_twice = database.execute("SELECT 1 AS a, 'x' AS b, 2 AS a").fetchone()

    async def call(which: int) -> Any:
        return row if which == 0 else with_a_name_twice

    assert run_rows(call, [0], returnType="a int, b string") == [{"a": 1, "b": "x"}]
    with pytest.raises(ResultError, match="more than once"):
        run_rows(call, [1], returnType="a int, b string")
