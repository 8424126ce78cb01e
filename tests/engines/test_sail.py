"""What an engine that is not Spark keeps of a plan: Sail, where `pysail` is installed, in this process.

Functions run in the server's process, so a list of this module sees each call.
"""

from __future__ import annotations

import logging
import sys
import types
from typing import Any

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as sf

from asyncudf import AsyncStream, FunctionError, ResultStore, async_pandas_udf, async_sink, ordered_wait, unordered_wait
from asyncudf._spark import _compat
from asyncudf._spark._compat import SAIL, engine_of

pytest.importorskip("pysail", reason="Sail is not installed: scripts/test --sail")
seen: Any = sys.modules.setdefault("seen_by_sail", types.ModuleType("seen_by_sail"))
RESULT = "a double, deep struct<b: long>, items array<struct<x: long>>, m map<string, struct<y: long>>"
FIELDS = ["w is null", "w.a", "w.deep.b", "w.items[1].x", "w.m['n'].y"]
NOTHING = (None, None, None, None)


async def look(key: int) -> dict[str, Any]:
    from seen_by_sail import keys  # type: ignore[import-not-found]

    keys.append(key)
    if key == 1:
        raise KeyError(key)
    return {"a": float(key), "deep": {"b": key}, "items": [{"x": key}, None], "m": {"k": {"y": key}, "n": None}}


@pytest.fixture(autouse=True)
def keys() -> list[int]:
    """Those that `look` was called for."""
    seen.keys = []
    return seen.keys  # type: ignore[no-any-return]


@pytest.fixture
def df(spark: Any) -> Any:
    """Four keys in one partition, in the order 0, 3, 2, 1."""
    return spark.range(0, 4, 1, 1).select(((sf.col("id") * 3) % 4).alias("key"))


def test_the_engine_is_found_by_what_it_answers(spark: Any) -> None:
    assert spark.version != spark.sql("select version()").collect()[0][0], "Sail has repeated the client's version"
    assert engine_of(spark) is SAIL


def test_it_is_asked_once(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    engine_of(spark)
    monkeypatch.setattr(type(spark), "sql", lambda *_: pytest.fail("asked again"))
    assert engine_of(spark) is SAIL


@pytest.mark.parametrize("wait", [ordered_wait, unordered_wait])
def test_a_field_of_a_null_struct_is_null(df: Any, wait: Any, keys: list[int]) -> None:
    """It was 0.0: Sail reads the fields' array alone, and pyarrow writes values there."""
    rows = wait(df, look, "key", returnType=RESULT, on_error="null", as_="w").selectExpr("key", *FIELDS).collect()
    assert sorted(map(tuple, rows)) == [
        (0, False, 0.0, 0, None, None),
        (1, True, *NOTHING),
        (2, False, 2.0, 2, None, None),
        (3, False, 3.0, 3, None, None),
    ]
    assert sorted(keys) == [0, 1, 2, 3]


def test_so_is_that_of_a_column_and_of_a_captured_error(df: Any) -> None:
    locate = async_pandas_udf(look, RESULT, on_error="capture", store=ResultStore.executor())
    wanted = ["w.value.a", "w.value.deep.b", "w.error.type", "w.error.attempts"]
    rows = df.where("key < 2").withColumn("w", locate("key")).selectExpr("key", *wanted).collect()
    assert sorted(map(tuple, rows)) == [(0, 0.0, 0, None, None), (1, None, None, "KeyError", 1)]


class TestColumns:
    def warnings(self, caplog: pytest.LogCaptureFixture) -> list[str]:
        return [one.getMessage() for one in caplog.records if one.name == "asyncudf" and one.levelno == logging.WARNING]

    def test_each_use_is_warned_of_and_told_what_to_do(self, df: Any, caplog: pytest.LogCaptureFixture) -> None:
        locate = async_pandas_udf(look, RESULT, on_error="null")
        locate("key")
        locate("key")
        told = self.warnings(caplog)
        assert len(told) == 2
        assert told[0].startswith("look: Sail evaluates a column as often as its query mentions it")
        assert "asyncudf.ordered_wait(df, look, ...); with store=ResultStore.executor()" in told[0]

    def test_what_it_warns_of_is_true(self, df: Any, keys: list[int]) -> None:
        """If Sail calls once a row, the warning is not needed."""
        w = async_pandas_udf(look, RESULT, on_error="null")("key")
        assert len(df.withColumn("w", w).where("w.a >= 0").select("w.a", "w.deep").collect()) == 3
        assert len(keys) > 4

    def test_a_function_in_sql_is_warned_of_once(self, spark: Any, caplog: pytest.LogCaptureFixture) -> None:
        async_pandas_udf(look, RESULT).register(spark, "look_in_sql")
        assert len(self.warnings(caplog)) == 1


def below_the_highest(df: Any) -> Any:
    """With a subquery for which Sail goes over the plan once more."""
    df.createOrReplaceTempView("some")
    return df.sparkSession.sql("select key from some where key <= (select max(key) from some)")


def sorted_frames(df: Any) -> dict[str, Any]:
    spark = df.sparkSession
    df.orderBy("key").createOrReplaceTempView("in_order")
    return {
        "orderBy": df.orderBy("key"),
        "sortWithinPartitions": df.sortWithinPartitions("key"),
        "a column after it": df.orderBy("key").withColumn("more", sf.col("key") + 1),
        "a filter after it": df.orderBy("key").where("key > 0"),
        "a view": spark.table("in_order"),
        "SQL": spark.sql("select key from in_order"),
        "coalesce": df.orderBy("key").coalesce(1),
        "offset of each partition's sort": df.sortWithinPartitions("key").offset(0),
        "limit of each partition's sort": df.sortWithinPartitions("key").limit(10),
        "offset behind a filter": df.orderBy("key").withColumn("z", sf.col("key") + 1).where("z > 1").offset(0),
        "offset behind a column": df.orderBy("key").withColumn("z", sf.col("key") + 1).offset(0),
        "limit behind a sample": df.orderBy("key").sample(1.0, seed=1).limit(10),
        "a text of several lines": df.orderBy("key").withColumn("ask", sf.lit("Read this.\nLimit: skip=0\n\nText: x")),
        "explode": df.orderBy("key").select("key", sf.explode(sf.array(sf.lit(1)))),
        "numbers of rows": df.orderBy("key").withColumn("n", sf.monotonically_increasing_id()),
        "another operator": df.orderBy("key").mapInArrow(lambda batches: batches, df.schema),
        "a join": df.orderBy("key").join(df, "key"),
        "a filter by another table": df.orderBy("key").join(df, "key", "semi"),
        "a subquery": spark.sql("select key from (select * from in_order) where key in (select key from in_order)"),
        "a union": df.orderBy("key").union(df),
        "offset, if that is lost for a subquery": below_the_highest(df).orderBy("key").offset(0),
        "offset, if that is lost in a union": df.orderBy("key").offset(0).union(df.limit(0)),
    }


KEPT = {
    "offset": lambda df: df.orderBy("key").offset(0),
    "a column after it": lambda df: df.orderBy("key").offset(0).withColumn("more", sf.col("key") + 1),
    "a filter after it": lambda df: df.orderBy("key").offset(0).withColumn("z", sf.col("key") + 1).where("z > 0"),
    "a filter before": lambda df: df.orderBy("key").where("key >= 0").offset(0),
    "names before": lambda df: df.orderBy("key").select("key").alias("x").offset(0),
    "explode after it": lambda df: df.orderBy("key").offset(0).select("key", sf.explode(sf.array(sf.lit(1)))),
    "limit of all": lambda df: below_the_highest(df).orderBy("key").limit(2**31 - 1),
    "names given twice": lambda df: df.selectExpr("key", "key AS b", "key AS b").orderBy("key").offset(0),
    "limit": lambda df: df.orderBy("key").limit(10),
    "a column before a limit": lambda df: df.orderBy("key").withColumn("z", sf.col("key") + 1).limit(10),
}


class TestSorts:
    def test_a_sort_that_sail_would_drop_is_refused_by_name(self, df: Any, keys: list[int]) -> None:
        told = r"Sail takes a sort before an operator out.*\.offset\(0\)"
        for shape, frame in sorted_frames(df).items():
            with pytest.raises(FunctionError, match=told):
                pytest.fail(f"{shape}: {ordered_wait(frame, look, 'key', returnType=RESULT).collect()}")
        with pytest.raises(FunctionError, match="the DataFrame that look reads sorts the rows of each partition"):
            AsyncStream(df.sortWithinPartitions("key")).ordered_wait(look, "key", returnType=RESULT).to_df()
        assert keys == []

    def test_a_sink_refuses_it_too(self, df: Any, keys: list[int]) -> None:
        with pytest.raises(FunctionError, match="Sail takes a sort before an operator out"):
            async_sink(df.orderBy("key"), look, "key")
        assert keys == []
        assert async_sink(df.orderBy("key").offset(0), look, "key", capacity=1).written == 3
        assert keys == [0, 1, 2, 3]

    @pytest.mark.parametrize("shape", KEPT)
    def test_rows_are_called_in_the_order_of_a_sort_that_is_taken(self, df: Any, keys: list[int], shape: str) -> None:
        ordered_wait(KEPT[shape](df), look, "key", returnType=RESULT, on_error="null", capacity=1).collect()
        assert keys == [0, 1, 2, 3]

    @pytest.mark.parametrize("shape", ["aggregate", "window", "right", "left", "none", "repartition"])
    def test_a_sort_that_says_nothing_of_the_order_here_is_taken(self, df: Any, keys: list[int], shape: str) -> None:
        ordered = df.orderBy("key")
        frame = {
            "aggregate": ordered.groupBy("key").count(),
            "window": ordered.withColumn("n", sf.count("key").over(Window.partitionBy("key"))),
            "right": df.join(ordered, "key", "left"),
            "left": ordered.join(df, "key", "right"),
            "none": df,
            "repartition": ordered.repartition(2),
        }[shape]
        ordered_wait(frame, look, "key", returnType=RESULT, on_error="null").collect()
        assert sorted(keys) == [0, 1, 2, 3]


def test_an_operator_over_a_stream_is_refused_by_name(spark: Any) -> None:
    stream = spark.readStream.format("rate").load()
    with pytest.raises(FunctionError, match="look reads a stream, and Sail has no operators for streams"):
        ordered_wait(stream, look, "value", returnType=RESULT)


def test_a_table_function_is_refused_by_name(spark: Any) -> None:
    with pytest.raises(FunctionError, match=r"many would be a table function.*Sail does not tell.*unordered_wait"):
        async_pandas_udf(look, RESULT, output_mode="unordered").register(spark, "many")


def test_a_column_needs_the_client_of_spark_4_1(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It failed in its tasks: before that, results pass by what only Spark's own worker has."""
    monkeypatch.setattr(_compat, "arrow_udf", None)
    told = "look would be a column, which Sail makes with a client of Spark 4.1 or newer.*ordered_wait"
    with pytest.raises(FunctionError, match=told):
        async_pandas_udf(look, RESULT)("key")
    with pytest.raises(FunctionError, match=told):
        async_pandas_udf(look, RESULT).register(spark, "look_in_sql")
