"""A value that Python cannot read, such as bytes that are no UTF-8 in a string, is the fault of its row alone."""

import re

import pytest

from asyncudf import DEAD_LETTERS, AsyncStream, ResultStore, async_pandas_udf, async_sink, ordered_wait, unordered_wait
from tests.kit.doors import table, through

pytestmark = [pytest.mark.spark, pytest.mark.spark_only("another engine may refuse text that is not UTF-8 itself")]

BYTES = "cast(X'FFFE41' AS string)"
KINDS = {
    "text": (f"if(id = 1, {BYTES}, 'ok')", "bytes that are not UTF-8: .*make_valid_utf8"),
    "text in an array": (f"array('a', if(id = 1, {BYTES}, 'ok'))", "bytes that are not UTF-8"),
    "text in a struct": (f"named_struct('x', if(id = 1, {BYTES}, 'ok'))", "bytes that are not UTF-8"),
    "key of a map": (f"map(if(id = 1, {BYTES}, 'ok'), 1)", "bytes that are not UTF-8"),
    "moment": (
        "if(id = 1, timestamp_micros(253402300800000000 + 86400000000), timestamp'2026-01-01 00:00:00')",
        r"a moment that is not in the years 1 to 9999: CAST\(t AS STRING\)",
    ),
    "day": (
        "if(id = 1, date_add(date'9999-12-31', 1), date'2026-01-01')",
        "a moment that is not in the years 1 to 9999",
    ),
}


@async_pandas_udf("int", on_error="null")
async def one(number: int, value: object) -> int:
    return 1


@pytest.fixture
def rows(spark):
    """Three rows, of which the second cannot be read, beside columns of each type that can."""

    def make(kind: str = "text"):
        return spark.range(0, 3, 1, 1).selectExpr("id", f"{KINDS[kind][0]} AS value")

    return make


@through("column", "SQL function", "ordered_wait", "unordered_wait")
@pytest.mark.parametrize("kind", ["text", "moment"])
def test_its_row_is_null_and_the_others_have_results(rows, door, kind):
    found = door(rows(kind), one, "id", "value").select("id", "result").collect()
    assert sorted(map(tuple, found)) == [(0, 1), (1, None), (2, 1)]


def test_a_table_function_gets_text_as_spark_sends_it(rows):
    found = table(rows("text"), one, "id", "value").select("id", "result").collect()
    assert sorted(map(tuple, found)) == [(0, 1), (1, 1), (2, 1)], "Spark itself replaces the bytes there"


def test_the_error_says_what_the_value_is_and_what_to_write(spark, rows):
    stream = AsyncStream(
        spark.range(0, 3, 1, 1).selectExpr("id", *(f"{sql} AS `{kind}`" for kind, (sql, _) in KINDS.items()))
    )
    for number, kind in enumerate(KINDS):
        stream = stream.ordered_wait(one, "id", kind, on_error="capture", as_=f"r{number}")
    results = [f"r{number}" for number in range(len(KINDS))]
    captured = stream.to_df().select(*results).collect()
    for result, (kind, (_, message)) in zip(results, KINDS.items(), strict=True):
        assert [row[result].value for row in captured] == [1, None, 1]
        error = captured[1][result].error
        assert (error.type, error.attempts) == ("UnreadableError", 0)
        assert re.match(rf"the input of .* \(column {kind}, .* has {message}", error.message), error.message
    with pytest.raises(
        Exception, match=r"the input of one \(column 2, string\) has bytes that are not UTF-8: .*valid_utf8"
    ):
        rows().select(one.with_options(on_error="raise")("id", "value")).collect()


def test_no_call_is_made_for_it(rows, journal):
    @async_pandas_udf("int", on_error="null")
    async def noted(number: int, value: str) -> int:
        journal.write("call", number)
        return number

    ordered_wait(rows(), noted, "id", "value", as_="r").collect()
    assert sorted(journal.lines) == ["call 0", "call 2"]


def test_a_column_that_the_function_does_not_read_passes_as_it_is(rows):
    found = ordered_wait(rows(), one.with_options(on_error="raise"), "id", "id", as_="r")
    assert [row.b.hex() for row in found.selectExpr("cast(value AS binary) AS b").collect()][1] == "fffe41"


def test_an_operator_that_has_no_policy_ends_the_job_with_the_reason(rows):
    stream = AsyncStream(rows()).filter(lambda row: True).ordered_wait(one, "id", "value", as_="r")
    with pytest.raises(Exception, match=r"input of the chain \(column value, string\) has bytes that are not UTF-8"):
        stream.to_df().collect()


@pytest.mark.parametrize("object_reuse", [False, True])
def test_the_second_operator_of_a_chain_fails_its_row_too(rows, object_reuse):
    stream = AsyncStream(rows(), object_reuse=object_reuse)
    stream = stream.ordered_wait(one, "id", "id", as_="first").unordered_wait(one, "first", "value", as_="second")
    found = stream.to_df().select("id", "first", "second").collect()
    assert sorted(map(tuple, found)) == [(0, 1, 1), (1, 1, None), (2, 1, 1)]


def test_it_is_a_dead_letter_with_the_columns_of_its_row(rows):
    stream = AsyncStream(rows()).ordered_wait(one, "id", "value", as_="r", on_error="dead_letter")
    letters = stream.side_output(DEAD_LETTERS).to_df()
    assert [(row.id, row.error.type) for row in letters.collect()] == [(1, "UnreadableError")]
    report = async_sink(rows(), one, "id", "value")
    assert (report.written, report.failed, report.reasons) == (2, 1, {"UnreadableError": 1})


def test_with_a_store_the_others_are_kept(rows, tmp_path, journal):
    @async_pandas_udf("int", on_error="null", store=ResultStore.disk(str(tmp_path)), version="1")
    async def noted(number: int, value: str) -> int:
        journal.write("call", number)
        return number

    for _ in range(2):
        found = unordered_wait(rows(), noted, "id", "value", as_="r").select("id", "r").collect()
        assert sorted(map(tuple, found)) == [(0, 0), (1, None), (2, 2)]
    assert sorted(journal.lines) == ["call 0", "call 2"]


def test_in_a_vectorized_function_and_beside_a_watermark(spark, rows):
    import pandas as pd

    from asyncudf import WatermarkStrategy

    @async_pandas_udf("int", on_error="null", batch_size=10)
    async def sizes(number: pd.Series, value: pd.Series) -> pd.Series:
        return value.str.len()

    assert [row.r for row in ordered_wait(rows(), sizes, "id", "value", as_="r").orderBy("id").collect()] == [
        2,
        None,
        2,
    ]
    timed = rows().selectExpr("*", "timestamp_seconds(id) AS t")
    watermark = WatermarkStrategy.for_monotonous_timestamps("t")
    found = unordered_wait(timed, one, "id", "value", as_="r", watermark=watermark).select("id", "r").collect()
    assert list(map(tuple, found)) == [(0, 1), (1, None), (2, 1)]
