"""Arguments by name over gaps, what DDL means in every session and thread, and rows without columns."""

import datetime
import functools
import threading

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import types as spark_types

from asyncudf import AsyncFunction, AsyncStream, OutputTag, RuntimeContext, async_pandas_udf, ordered_wait
from tests.kit.frames import from_ddl

pytestmark = pytest.mark.spark
UTC = datetime.UTC


async def greet(context: RuntimeContext, city: str, units: str = "metric", lang: str = "en") -> str:
    return f"{context.attempt_number} {city} {units} {lang}"


class Both(AsyncFunction):
    async def async_invoke(self, value, result_future):
        result_future.complete([str(value)])


@pytest.fixture(scope="module")
def trips(spark):
    df = spark.createDataFrame([("Oslo", "no")], "city string, lang string").coalesce(1)
    df.createOrReplaceTempView("spoken")
    df.select().createOrReplaceTempView("nothing")
    return df


def test_a_gap_at_every_entry_point(spark, trips):
    """An optional parameter in the middle may be left out, by name or by position."""
    udf = async_pandas_udf(greet)
    udf.with_options(output_mode="unordered").register(spark, "greet_table")
    udf.register(spark, "greet")
    found = [
        trips.select(udf(city="city", lang="lang")),
        trips.select(udf("city", lang="lang")),
        ordered_wait(trips, udf).select("greet"),
        spark.sql("SELECT greet FROM greet_table(TABLE(spoken))"),
        spark.sql("SELECT greet FROM greet_table(TABLE(spoken), 'city', lang => 'lang')"),
        spark.sql("SELECT greet FROM greet_table(TABLE(spoken), lang => 'lang', city => 'city')"),
    ]
    assert [row[0] for row in functools.reduce(DataFrame.union, found).collect()] == ["1 Oslo metric no"] * 6
    assert spark.sql("SELECT greet(city, lang) FROM spoken").first()[0] == "1 Oslo no en"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("both()", "the first argument of Both is a table"),
        ("both(city => 'city')", "the first argument of Both is a table"),
        ("both(TABLE(nothing))", "the table has no columns"),
        ("both(TABLE(spoken), 'city', 'CITY')", "'city' is there twice"),
        ("greet_again(TABLE(spoken), lang => 'lang')", "there is none for city"),
    ],
)
@pytest.mark.usefixtures("trips")
def test_a_wrong_call_of_a_table_function_is_refused_when_it_is_analysed(spark, no_job, call, message):
    async_pandas_udf(Both(), "string", output_mode="unordered").register(spark, "both")
    async_pandas_udf(greet, output_mode="unordered").register(spark, "greet_again")
    with no_job, pytest.raises(AnalysisException, match=message):
        spark.sql(f"SELECT * FROM {call}")


def test_a_struct_without_fields_adds_nothing(spark, trips):
    @async_pandas_udf("struct<>", output_mode="unordered")
    async def nothing(city):
        return {}

    nothing.register(spark, "adds_nothing")
    assert spark.sql("SELECT * FROM adds_nothing(TABLE(spoken))").collect() == trips.collect()
    assert ordered_wait(trips, nothing).collect() == trips.collect()


SEEN = OutputTag("seen", "at timestamp, zoned timestamp_ltz")


class Sees(AsyncFunction):
    def __init__(self, zone):
        self.zone = zone

    async def open(self, context):
        self.context = context

    async def async_invoke(self, value, result_future):
        at = datetime.datetime(2026, 1, 2, tzinfo=UTC)
        self.context.output(SEEN, {"at": at.replace(tzinfo=self.zone), "zoned": at})
        result_future.complete(["x"])


@pytest.mark.parametrize(("timestamp_type", "zone"), [("TIMESTAMP_NTZ", None), ("TIMESTAMP_LTZ", UTC)])
def test_the_schema_of_a_side_output_means_the_same_on_both_sides(spark, trips, conf, timestamp_type, zone):
    conf("spark.sql.timestampType", timestamp_type)
    with AsyncStream(trips).ordered_wait(Sees(zone), returnType="string") as stream:
        assert stream.count() == 1
        seen = stream.side_output(SEEN)  # after the evaluation, which did not know of it
        written = spark_types.TimestampType() if zone else spark_types.TimestampNTZType()
        assert [field.dataType for field in seen.to_df().schema] == [written, spark_types.TimestampType()]
        assert seen.selectExpr("CAST(at AS string)").first().at == "2026-01-02 00:00:00"


@pytest.mark.parametrize("timestamp_type", ["TIMESTAMP_NTZ", "TIMESTAMP_LTZ"])
@pytest.mark.parametrize("ddl", ["timestamp", "a timestamp, b array<timestamp_ltz>"])
def test_ddl_means_the_same_in_every_thread_of_the_driver(spark, conf, timestamp_type, ddl):
    conf("spark.sql.timestampType", timestamp_type)

    @async_pandas_udf(ddl)
    async def call(city):
        return None

    return_types = []

    def in_another_thread():
        assert type(spark).getActiveSession() is None, "the thread has a session already"
        return_types.append(call.returnType)

    thread = threading.Thread(target=in_another_thread)
    thread.start()
    thread.join()
    assert return_types == [call.returnType] == [from_ddl(ddl)]
