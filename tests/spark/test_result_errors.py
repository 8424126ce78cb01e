"""A result that does not fit the declared type is an error of its row, and says which field and which value."""

# ruff: noqa: A001, A002 - parameters are called like the columns, and Spark's own is `id`

import datetime
import decimal
import re
from typing import Any

import pytest

from asyncudf import AsyncFunction, async_pandas_udf, ordered_wait, unordered_wait

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
    ("i", 1.5, "i", "1.5 (float)"),
    ("i", 1.0, "i", "1.0 (float)"),
    ("i", True, "i", "True (bool)"),
    ("i", "1", "i", "'1' (str)"),
    ("i", 2**31, "i", "2147483648 (int)"),
    ("i", decimal.Decimal(1), "i", "Decimal('1') (Decimal)"),
    ("n", 2**63, "n", "9223372036854775808 (int)"),
    ("b", -129, "b", "-129 (int)"),
    ("d", True, "d", "True (bool)"),
    ("d", "1.0", "d", "'1.0' (str)"),
    ("d", decimal.Decimal("1.5"), "d", "Decimal('1.5') (Decimal)"),
    ("d", 2**53 + 1, "d", "9007199254740993 (int)"),
    ("f", False, "f", "False (bool)"),
    ("m", 1.5, "m", "1.5 (float)"),
    ("m", True, "m", "True (bool)"),
    ("m", decimal.Decimal("1000.00"), "m", "Decimal('1000.00') (Decimal)"),
    ("m", decimal.Decimal("1.555"), "m", "Decimal('1.555') (Decimal)"),
    ("ok", 1, "ok", "1 (int)"),
    ("ok", "true", "ok", "'true' (str)"),
    ("s", b"x", "s", "b'x' (bytes)"),
    ("s", 1, "s", "1 (int)"),
    ("s", "\ud800", "s", "'\\ud800' (str)"),
    ("raw", "x", "raw", "'x' (str)"),
    ("day", AWARE, "day", "datetime.datetime(2024, 1, 2"),
    ("day", "2024-01-02", "day", "'2024-01-02' (str)"),
    ("at", NAIVE, "at", "datetime.datetime(2024, 1, 2, 0, 0) (datetime)"),
    ("at", datetime.date(2024, 1, 2), "at", "datetime.date(2024, 1, 2) (date)"),
    ("at", 1704153600, "at", "1704153600 (int)"),
    ("ntz", AWARE, "ntz", "datetime.datetime(2024, 1, 2, 0, 0, tzinfo=datetime.timezone.utc) (datetime)"),
    ("a", "abc", "a", "'abc' (str)"),
    ("a", {1: 2}, "a", "{1: 2} (dict)"),
    ("a", [1, 2.5], "a[]", "2.5 (float)"),
    ("map_", [("k", 1)], "map_", "[('k', 1)] (list)"),
    ("map_", {"k": "v"}, "map_ value", "'v' (str)"),
    ("map_", {1: 1}, "map_ key", "1 (int)"),
    ("map_", {None: 1}, "map_ key", "None"),
    ("st", {"x": 1}, "st", "missing field 'y'"),
    ("st", {"x": 1, "y": "a", "z": 2}, "st", "unknown field 'z'"),
    ("st", {"x": 1, "Y": "a"}, "st", "unknown field 'Y': did you mean 'y'?"),
    ("st", {"x": "1", "y": "a"}, "st.x", "'1' (str)"),
    ("st", 5, "st", "5 (int)"),
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


def test_under_null_the_bad_rows_are_null_and_the_others_are_not(rows):
    found = rows.select("id", result.with_options(on_error="null")("id").alias("r")).collect()
    assert [row.r is None for row in found] == [bool(row.id % 2) for row in found]


@pytest.mark.parametrize("wait", [ordered_wait, unordered_wait])
def test_in_the_operator_form_too(rows, wait):
    """Only the bad rows are null, beside the columns of the input."""
    found = wait(rows, result, on_error="null").select("id", "s").collect()
    assert {row.id: row.s for row in found} == {id: None if id % 2 else "x" for id in range(2 * len(BAD))}


def test_at_the_table_function_too(spark, rows):
    """Only the bad rows are null in SQL, too."""
    rows.createOrReplaceTempView("result_rows")
    result.with_options(output_mode="unordered", on_error="null").register(spark, "result_of")
    found = spark.sql("SELECT id, s FROM result_of(TABLE(result_rows))").collect()
    assert {row.id: row.s for row in found} == {id: None if id % 2 else "x" for id in range(2 * len(BAD))}


def test_under_raise_the_spark_error_says_it_all(rows, spark_error):
    text = spark_error(rows.select(result("id")))
    assert re.search(
        r"ResultError: result failed in attempt 1, partition 0, for the input \(1,\): "
        r"result returned 1\.5 \(float\) in field 'i': declared int32",
        text,
    )


def test_a_result_future_completed_with_anything_but_a_list(spark):
    bad = [None, "letters", 5, {"a": 1}, {1, 2}]

    class Sloppy(AsyncFunction):
        async def async_invoke(self, value, result_future):
            result_future.complete(bad[value["id"]] if value["id"] < len(bad) else ["fine"])

    df = ordered_wait(spark.range(0, len(bad) + 1, 1, 1), Sloppy(), returnType="string", on_error="capture")
    *found, fine = df.collect()
    assert (fine.value, fine.error) == ("fine", None)
    for row, value in zip(found, bad, strict=True):
        assert row.value is None
        assert row.error.type == "ResultError"
        assert re.search(rf"Sloppy .*{re.escape(repr(value))}.*list", row.error.message)


def test_a_whole_result_that_does_not_fit(spark):
    @async_pandas_udf("a int, b string", on_error="capture")
    async def wrong(id: int):
        return [{"a": 1, "b": "x"}, "text", 5, (1, "x"), (1,), None, {"b": "x", "a": 1}][id]

    found = [row[0] for row in spark.range(0, 7, 1, 1).select(wrong("id")).collect()]
    assert [row.error is None for row in found] == [True, False, False, True, False, True, True]
    assert found[3].value == found[6].value == (1, "x")
    assert found[5].value is None
    assert "wrong returned 'text' (str): declared struct<a, b>" in found[1].error.message


def test_not_null_in_the_declared_type_is_kept(spark):
    @async_pandas_udf("struct<a: int not null, b: array<int>>", on_error="capture")
    async def maybe(id: int):
        return {"a": None if id else 1, "b": [None]}

    first, second = (row[0] for row in spark.range(0, 2, 1, 1).select(maybe("id")).collect())
    assert first.value == (1, [None])
    assert second.error.type == "ResultError"
    assert "'a'" in second.error.message
