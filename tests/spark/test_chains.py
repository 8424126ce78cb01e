"""AsyncStream: operators one behind the other, all in one stage; each row once, with all its columns."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import asyncio
import copy
import inspect

import pytest
from pyspark.sql import functions as sf

from asyncudf import AsyncStream, async_pandas_udf, ordered_wait
from tests.kit.frames import tuples
from tests.kit.sail import HAS_SAIL
from tests.kit.spark_functions import Passes, labelled, same, told

pytestmark = pytest.mark.spark


@async_pandas_udf("twice bigint, name string", capacity=5)
async def doubled(id: int):
    await asyncio.sleep(id * 7 % 11 / 2000)  # so that rows change places where they may
    return {"twice": id * 2, "name": f"n{id}" if id % 3 else None}


@pytest.mark.usefixtures("small_batches")
def test_a_chain_gives_the_rows_of_separate_stages(spark):
    df = spark.range(0, 60, 1, 2)
    apart = sorted(tuples(ordered_wait(ordered_wait(df, doubled), labelled)))
    assert apart[1] == (1, 2, "n1", "1:n1")
    ordered = AsyncStream(df).ordered_wait(doubled)
    in_order = sorted if HAS_SAIL else list  # Sail may give rows of its partitions in turns
    for stream, as_found in ((ordered.ordered_wait(labelled), in_order), (ordered.unordered_wait(labelled), sorted)):
        assert stream.columns == ["id", "twice", "name", "labelled"]
        assert as_found(tuples(stream)) == apart


@pytest.mark.promise("chain")
@pytest.mark.spark_only("the words of its plan")
def test_a_chain_is_one_stage(spark, capsys):
    df = spark.range(3)
    chain = AsyncStream(df).ordered_wait(doubled).filter(lambda row: True).map(lambda row: row).unordered_wait(labelled)
    chain.explain()
    assert capsys.readouterr().out.count("MapInArrow") == 1
    ordered_wait(ordered_wait(df, doubled), labelled).explain()
    assert capsys.readouterr().out.count("MapInArrow") == 2


ALL_TYPES = """
    SELECT id, CAST(id / 3 AS decimal(20, 5)) d, IF(id % 3 = 0, NULL, CONCAT('s', id)) s, '' AS empty,
    CAST(CONCAT('b', id) AS binary) b, ARRAY(id, NULL, id + 1) a, MAP(CONCAT('k', id), ARRAY(id)) m,
    NAMED_STRUCT('x', id, 'y', NAMED_STRUCT('z', ARRAY(NAMED_STRUCT('w', CAST(NULL AS string))))) st,
    TIMESTAMP'2021-10-31 00:30:00Z' + MAKE_DT_INTERVAL(0, 0, 0, i * 1800.000001) ts,
    DATE_ADD(DATE'1970-01-01', i) day, TIMESTAMP_NTZ'2020-02-02 02:02:02' ntz, MAKE_DT_INTERVAL(i, 1, 2, 3.5) AS span,
    9007199254740993 + id big, CAST(NULL AS void) nothing, id % 2 = 0 even,
    CAST(i AS float) / 8 f, CAST(i AS tinyint) t,
    ARRAY(TIMESTAMP_MICROS(id)) ats, MAP(id, TIMESTAMP_MICROS(id)) mts, NAMED_STRUCT('t', TIMESTAMP_MICROS(id)) sts
    FROM (SELECT id, CAST(id AS int) i FROM RANGE(0, 10, 1, 2))
"""
KINDS_OF_CHAINS = {
    "operators that do not touch them": lambda s: s.unordered_wait(same).filter(lambda row: row["ts"].tzinfo),
    "a kept evaluation": lambda s: s.ordered_wait(told),
    "python and back": lambda s: s.map(lambda row: row),
    "python and back behind an operator": lambda s: (
        s.ordered_wait(same).process(Passes()).ordered_wait(labelled, "s", "id")
    ),
    "a union": lambda s: s.filter(lambda row: row["id"] < 5).union(s.filter(lambda row: row["id"] >= 5)),
}


@pytest.mark.promise("chain", "types")
@pytest.mark.usefixtures("small_batches")
def test_columns_of_every_type_come_through_unchanged(spark, conf, stream_of):
    conf("spark.sql.session.timeZone", "+03:15")
    df = spark.sql(ALL_TYPES)
    wanted = sorted(tuples(df), key=lambda row: row[0])
    for name, chain in KINDS_OF_CHAINS.items():
        result = chain(stream_of(df)).to_df().select(*df.columns)
        assert result.dtypes == df.dtypes, name
        assert sorted(tuples(result), key=lambda row: row[0]) == wanted, name


def test_columns_of_any_name_come_through_and_can_be_read(spark, stream_of):
    names = ["id", "address.city", "a b", "`", "result", "r0", "Ünicode"]
    df = spark.range(0, 1, 1, 1).select("id", *(sf.lit(name).alias(name) for name in names[1:]))
    stream = stream_of(df).ordered_wait(told).filter(lambda row: row["address.city"] == "address.city")
    stream = stream.ordered_wait(labelled, "address.city", "id").ordered_wait(same, "told")
    assert stream.columns == [*names, "told", "labelled", "same"]
    assert tuple(stream.first()) == (0, *names[1:], 0, "0:address.city", 0)


@pytest.mark.parametrize("names", [("x", "x"), ("x", "X")])
def test_columns_of_the_same_name_come_through_if_nobody_reads_them(spark, stream_of, names):
    df = spark.range(1).select("id", *(sf.lit(number).alias(name) for number, name in enumerate(names)))
    for function in (same, told):
        stream = stream_of(df).ordered_wait(function).ordered_wait(doubled)
        assert stream.columns == ["id", *names, stream.columns[3], "twice", "name"]
        assert tuple(stream.first())[:3] == (0, 0, 1)


def test_a_stream_answers_like_its_dataframe(spark, capsys):
    stream = AsyncStream(spark.range(0, 3, 1, 1)).ordered_wait(doubled)
    assert (stream.count(), stream.columns, stream.isStreaming) == (3, ["id", "twice", "name"], False)
    assert tuples(stream.select("twice").where("twice > 0")) == [(2,), (4,)]
    assert [tuple(row) for row in stream.collect()] == [(0, 0, None), (1, 2, "n1"), (2, 4, "n2")]
    stream.show()
    assert "|  1|    2|  n1|" in capsys.readouterr().out
    assert repr(stream.filter(lambda row: True)) == "<AsyncStream source > doubled > filter>"
    with pytest.raises(AttributeError, match="_private"):
        _ = stream._private


class Pickled:
    """An async function that tells how often it was pickled: each plan pickles it."""

    __name__ = "pickled"
    times = 0

    async def __call__(self, id):
        return id

    def __reduce__(self):
        type(self).times += 1
        return Pickled, ()


def test_attributes_of_a_stream_can_be_looked_up_and_nothing_is_planned(spark):
    """Each of these planned the stream, pickled its functions and persisted its rows until `close`."""
    keeps = spark._jsparkSession.sharedState().cacheManager()
    spark.catalog.clearCache()  # of the tests before
    stream = AsyncStream(spark.range(2)).ordered_wait(Pickled(), returnType="long", on_error="dead_letter")
    before = Pickled.times
    has = ["show", "count", "toPandas", "union", "write_nothing", "shape", "pickled", "_repr_html_", "__array__", "_x"]
    assert [name for name in has if hasattr(stream, name)] == has[:4]
    inspect.getmembers(stream)
    copy.copy(stream)
    repr(stream)
    assert (Pickled.times, keeps.isEmpty()) == (before, True)
    with stream:
        assert stream.count() == 2
        assert not keeps.isEmpty()
    assert stream.select.__name__ == "select"
    assert "cols" in inspect.signature(stream.select).parameters


def test_a_column_is_no_attribute_of_a_stream(spark):
    """It was one of another DataFrame than the next call of a method made, which Spark then refused."""
    stream = AsyncStream(spark.range(2)).ordered_wait(doubled)
    with pytest.raises(AttributeError, match=r"use sf.col\('twice'\)"):
        _ = stream.twice
    with pytest.raises(AttributeError, match=r"neither an AsyncStream nor a DataFrame has 'thrice'; to_df\(\)"):
        _ = stream.thrice
