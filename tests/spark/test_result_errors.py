"""A result that does not fit the declared type is an error of its row, and says which field and which value."""

# ruff: noqa: A001, A002 - parameters are called like the columns, and Spark's own is `id`

import datetime
import decimal
from typing import Any

import pytest

from asyncudf import async_pandas_udf, ordered_wait

pytestmark = pytest.mark.spark

NAIVE = datetime.datetime(2024, 1, 2)
AWARE = NAIVE.replace(tzinfo=datetime.UTC)
GOOD: dict[str, tuple[str, Any]] = {
    "i": ("int", 1),
    "n": ("bigint", 1),
    "b": ("tinyint", 1),
    "d": ("double", 1.0),
    "f": ("float", 1.0),
    "m": ("decimal(5,2)", decimal.Decimal("1.50")),
    "ok": ("boolean", True),
    "s": ("string", "x"),
    "raw": ("binary", b"x"),
    "day": ("date", datetime.date(2024, 1, 2)),
    "at": ("timestamp", AWARE),
    "ntz": ("timestamp_ntz", NAIVE),
    "a": ("array<int>", [1]),
    "map_": ("map<string,int>", {"k": 1}),
    "st": ("struct<x:int,y:string>", {"x": 1, "y": "a"}),
    "deep": ("array<struct<x:map<string,array<int>>>>", [{"x": {"k": [1]}}]),
}
DDL = ", ".join(f"{name} {ddl}" for name, (ddl, _) in GOOD.items())

# (field, bad value, path in the message, value in the message)
BAD = [
    ("i", 1.0, "i", "1.0 (float)"),
    ("n", 2**63, "n", "9223372036854775808 (int)"),
    ("m", 1.5, "m", "1.5 (float)"),
    ("s", b"x", "s", "b'x' (bytes)"),
    ("at", NAIVE, "at", "datetime.datetime(2024, 1, 2, 0, 0) (datetime)"),
    ("st", {"x": 1, "y": "a", "z": 2}, "st", "unknown field 'z'"),
    ("deep", [{"x": {"k": [1, None, True]}}], "deep[].x value[]", "True (bool)"),
]


@async_pandas_udf(DDL)
async def result(id: int):
    """Row 2n is good, row 2n + 1 has the bad value number n."""
    good = {name: value for name, (_, value) in GOOD.items()}
    if id % 2:
        field, value, *_ = BAD[id // 2]
        good[field] = value
    return good


@pytest.fixture(scope="module")
def rows(spark):
    return spark.range(0, 2 * len(BAD), 1, 1)


@pytest.fixture(scope="module")
def captured(spark, rows):
    found = rows.select("id", result.with_options(on_error="capture")("id").alias("r")).collect()
    return {row.id: row.r for row in found}


@pytest.mark.parametrize("number", range(len(BAD)), ids=[f"{value!r} for {GOOD[f][0]}" for f, value, *_ in BAD])
def test_the_message_names_function_field_and_value(captured, number):
    _field, _value, path, text = BAD[number]
    row = captured[2 * number + 1]
    assert row.value is None
    assert row.error is not None, "taken without an error"
    assert row.error.type == "ResultError"
    assert row.error.message.startswith("result returned ")
    assert f" in field {path!r}: " in row.error.message
    assert text in row.error.message


def test_only_the_bad_rows_are_affected(captured):
    for id in range(0, 2 * len(BAD), 2):
        assert captured[id].error is None
        assert (captured[id].value.i, captured[id].value.deep[0].x) == (1, {"k": [1]})


FORMS = {
    "column": lambda spark, rows, f: rows.select("id", f("id").s.alias("s")),
    "operator": lambda spark, rows, f: ordered_wait(rows, f).select("id", "s"),
    "table function": lambda spark, rows, f: spark.sql("SELECT id, s FROM result_of(TABLE(result_rows))"),
}


@pytest.mark.promise("types")
@pytest.mark.parametrize("form", FORMS)
def test_under_null_the_bad_rows_are_null_and_the_others_are_not(spark, rows, form):
    lenient = result.with_options(on_error="null")
    rows.createOrReplaceTempView("result_rows")
    lenient.with_options(output_mode="unordered").register(spark, "result_of")
    found = FORMS[form](spark, rows, lenient).collect()
    assert {row.id: row.s for row in found} == {id: None if id % 2 else "x" for id in range(2 * len(BAD))}


def test_not_null_in_the_declared_type_is_kept(spark):
    @async_pandas_udf("struct<a: int not null, b: array<int>>", on_error="capture")
    async def maybe(id: int):
        return {"a": None if id else 1, "b": [None]}

    first, second = (row[0] for row in spark.range(0, 2, 1, 1).select(maybe("id")).collect())
    assert first.value == (1, [None])
    assert second.error.type == "ResultError"
    assert "'a'" in second.error.message
