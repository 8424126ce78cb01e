"""Functions of pd.Series, pd.DataFrame and pa.Array: one call for many rows."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import asyncio
import datetime

import pandas as pd
import pyarrow as pa
import pytest

from asyncudf import RetryStrategy, RuntimeContext, async_pandas_udf, ordered_wait, unordered_wait

pytestmark = pytest.mark.spark

BIG = 9007199254740993


@pytest.fixture(scope="module")
def numbers(spark):
    df = spark.sql(f"SELECT id, IF(id % 5 = 4, NULL, {BIG} + id) AS big, concat('s', id) AS s FROM range(0, 25, 1, 1)")
    df.createOrReplaceTempView("numbers")
    return df


EXPECTED = [None if i % 5 == 4 else BIG + i for i in range(25)]


@async_pandas_udf("bigint", batch_size=10)
async def series(big: pd.Series) -> pd.Series:
    await asyncio.sleep(0.001)
    assert isinstance(big, pd.Series)
    return big


@async_pandas_udf("bigint", batch_size=10)
async def arrays(big: pa.Array, id: pa.Array) -> pa.Array:
    assert isinstance(big, pa.Array)
    assert big.type == id.type == pa.int64()
    return big


@async_pandas_udf("big2 bigint, s2 string", batch_size=10)
async def frame(big: pd.Series, s: pd.Series) -> pd.DataFrame:
    return pd.DataFrame({"s2": s, "big2": big})


def test_large_integers_beside_nulls_stay_exact_through_series(numbers):
    assert [row[0] for row in numbers.select(series("big")).collect()] == EXPECTED
    assert [row.series for row in ordered_wait(numbers, series).collect()] == EXPECTED


@async_pandas_udf("price bigint, day date", batch_size=10)
async def quoted(id: pd.Series) -> pd.DataFrame:
    largest_first = id.sort_values(ascending=False)
    days = pd.to_datetime("2026-01-01") + pd.to_timedelta(largest_first, "D")
    return pd.DataFrame({"price": largest_first.where(largest_first % 5 != 4), "day": days})


def test_what_pandas_sorts_and_makes_floats_and_moments_of_is_taken_as_it_was(numbers):
    expected = [(None if i % 5 == 4 else i, datetime.date(2026, 1, 1 + i)) for i in range(25)]
    assert [tuple(row[0]) for row in numbers.select(quoted("id")).collect()] == expected
    found = ordered_wait(numbers, quoted).select("price", "day").collect()
    assert [tuple(row) for row in found] == expected


def test_large_integers_beside_nulls_stay_exact_through_arrow_arrays(numbers):
    assert [row[0] for row in numbers.select(arrays("big", "id")).collect()] == EXPECTED
    assert sorted(row.id for row in unordered_wait(numbers, arrays).where("arrays = big").collect()) == [
        i for i in range(25) if i % 5 != 4
    ]


def test_a_dataframe_gives_the_fields_of_a_struct(numbers):
    found = [row[0] for row in numbers.select(frame("big", "s")).collect()]
    assert [tuple(r) for r in found] == [(EXPECTED[i], f"s{i}") for i in range(25)]
    assert ordered_wait(numbers, frame).columns == ["id", "big", "s", "big2", "s2"]


def test_a_table_function_may_be_vectorized(spark, numbers):
    series.with_options(output_mode="unordered").register(spark, "series_of")
    found = spark.sql("SELECT id, series FROM series_of(TABLE(numbers), 'big')").collect()
    assert {row.id: row.series for row in found} == dict(enumerate(EXPECTED))


def test_one_call_takes_up_to_batch_size_rows(numbers, journal):
    @async_pandas_udf("int", batch_size=10)
    async def sizes(id: pd.Series) -> pd.Series:
        journal.write(len(id))
        return pd.Series([len(id)] * len(id))

    assert [row[0] for row in numbers.select(sizes("id")).collect()] == [10] * 20 + [5] * 5
    assert journal.lines == ["10", "10", "5"]


@pytest.mark.usefixtures("small_batches")
def test_a_call_takes_rows_of_several_small_arrow_batches(numbers, journal):
    @async_pandas_udf("int", batch_size=10)
    async def sizes(id: pd.Series) -> pd.Series:
        journal.write(len(id))
        return pd.Series([len(id)] * len(id))

    numbers.select(sizes("id")).collect()
    assert journal.lines == ["10", "10", "5"]


def test_a_full_queue_sends_a_partial_batch_rather_than_waiting_for_itself(numbers):
    @async_pandas_udf("bigint", batch_size=10, capacity=2, queue_size=4)
    async def tight(id: pd.Series) -> pd.Series:
        await asyncio.sleep(0)
        assert len(id) <= 4
        return id

    assert [row[0] for row in numbers.select(tight("id")).collect()] == list(range(25))


def test_batch_linger_sends_what_there_is(numbers):
    @async_pandas_udf("bigint", batch_size=1000, batch_linger=0.01)
    async def lingering(id: pd.Series) -> pd.Series:
        return id

    assert [row[0] for row in numbers.select(lingering("id")).collect()] == list(range(25))


def test_a_struct_column_is_a_dataframe(spark):
    @async_pandas_udf("string", batch_size=2)
    async def described(st: pd.DataFrame) -> pd.Series:
        return pd.Series([f"{x} {y}" for x, y in zip(st["x"], st["y"], strict=True)])

    df = spark.sql("SELECT NAMED_STRUCT('x', id, 'y', concat('y', id)) AS st FROM range(0, 3, 1, 1)")
    assert [row[0] for row in df.select(described("st")).collect()] == ["0 y0", "1 y1", "2 y2"]


def test_a_dataframe_parameter_gets_the_named_columns_in_the_operator_form(numbers):
    @async_pandas_udf("string", batch_size=100)
    async def described(rows: pd.DataFrame) -> pd.Series:
        return rows["s"] + " of " + str(list(rows.columns))

    assert ordered_wait(numbers, described, "id", "s").first().described == "s0 of ['id', 's']"
    assert ordered_wait(numbers, described).first().described == "s0 of ['id', 'big', 's']"


def test_an_answer_that_is_no_vector_of_the_rows_fails_their_batch_only(numbers):
    answers = [lambda rows: rows[:-1], tuple, lambda rows: 5, lambda rows: None]  # a row too few, a tuple, ...

    @async_pandas_udf("bigint", batch_size=5, on_error="capture")
    async def sloppy(id: pd.Series) -> pd.Series:
        number = int(id.iloc[0]) // 5
        return answers[number](id) if number < 4 else id

    found = [row[0] for row in numbers.select(sloppy("id")).collect()]
    assert [r.value for r in found] == [None] * 20 + [20, 21, 22, 23, 24]
    for failed in found[:20]:
        assert failed.error.type == "ResultError"
        assert "sloppy" in failed.error.message


def test_one_value_that_does_not_fit_affects_its_row_only(numbers):
    @async_pandas_udf("int", batch_size=10, on_error="capture")
    async def one_too_large(id: pd.Series) -> pd.Series:
        return id.map(lambda i: 2**31 if i == 12 else i)

    found = [row[0] for row in numbers.select(one_too_large("id")).collect()]
    assert [r.value for r in found] == [None if i == 12 else i for i in range(25)]


def test_a_list_answers_for_each_row_and_only_failed_rows_are_called_again(numbers):
    @async_pandas_udf(batch_size=10, on_error="null", retry=RetryStrategy.fixed_delay(2, 0.01))
    async def bulk(id: pd.Series, context: RuntimeContext) -> list[str | Exception]:
        number = context.attempt_number
        return [ValueError(i) if i == 3 or (i % 10 == 7 and number == 1) else f"{number}, {len(id)}" for i in id]

    found = [row[0] for row in numbers.select(bulk("id")).collect()]
    assert found[3] is None
    assert {found[7], found[17]} <= {"2, 1", "2, 2", "2, 3"}, "without the rows that succeeded"
    assert [answer for i, answer in enumerate(found) if i not in (3, 7, 17)] == ["1, 10"] * 17 + ["1, 5"] * 5


def test_an_exception_fails_all_rows_of_its_call(numbers):
    @async_pandas_udf("bigint", batch_size=10, on_error="null")
    async def second_batch_fails(id: pd.Series) -> pd.Series:
        if 12 in set(id):
            raise LookupError
        return id

    found = [row[0] for row in numbers.select(second_batch_fails("id")).collect()]
    assert found == [None if 10 <= i < 20 else i for i in range(25)]


def test_all_types_reach_and_leave_a_series(spark):
    df = spark.sql("""
        SELECT CAST(1 AS tinyint) AS b, CAST(2 AS int) AS i, 1.5D AS d, CAST(1.50 AS decimal(9, 2)) AS m, true AS ok,
            'x' AS s, X'01' AS raw, DATE'2024-01-02' AS day, TIMESTAMP'2024-11-03 05:30:00.000001Z' AS at,
            TIMESTAMP_NTZ'2024-01-02 03:04:05' AS ntz, ARRAY(1, NULL) AS a, MAP('k', 1) AS mp
        FROM range(2)
    """)
    nulls = spark.range(1).selectExpr(*[f"CAST(NULL AS {spark_type}) AS {name}" for name, spark_type in df.dtypes])
    fields = ", ".join(f"{name} {spark_type}" for name, spark_type in df.dtypes)

    @async_pandas_udf(fields, batch_size=100)
    async def same(
        b: pd.Series, i: pd.Series, d: pd.Series, m: pd.Series, ok: pd.Series, s: pd.Series,
        raw: pd.Series, day: pd.Series, at: pd.Series, ntz: pd.Series, a: pd.Series, mp: pd.Series,
    ) -> pd.DataFrame:  # fmt: skip
        columns = [b, i, d, m, ok, s, raw, day, at, ntz, a, mp]
        return pd.DataFrame(dict(zip(df_names, columns, strict=True)))

    df_names = df.columns
    for rows in (df.coalesce(1), df.union(nulls).coalesce(1)):
        for row in rows.select("*", same(*df.columns).alias("out")).collect():
            assert tuple(row.out) == tuple(row)[:-1]
