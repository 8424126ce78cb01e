"""What is read of a stream more than once is evaluated once, kept, and released."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import pytest

from asyncudf import AsyncStream, RuntimeContext, async_pandas_udf
from tests.kit.frames import tuples
from tests.kit.spark_functions import same, told

pytestmark = pytest.mark.spark


@pytest.fixture
def persisted(spark):
    """How many evaluations Spark keeps that it did not keep before; other tests may have left some."""

    def kept():
        return set(spark.sparkContext._jsc.getPersistentRDDs())

    before = kept()
    return lambda: len(kept() - before)


@pytest.fixture
def looked_up(journal):
    @async_pandas_udf("found bigint")
    async def looked_up(id: int):
        journal.write("call", id)
        return {"found": id * 10}

    return looked_up


@pytest.mark.promise("chain")
def test_branches_are_one_evaluation(spark, stream_of, journal, looked_up):
    shared = stream_of(spark.range(0, 6, 1, 2)).ordered_wait(looked_up)
    frames = AsyncStream.collect(
        even=shared.branch().filter(lambda row: row["id"] % 2 == 0).unordered_wait(same),
        text=shared.branch().map(lambda row: str(row["found"]), "string"),
        whole=shared,
        nothing=shared.filter(lambda row: False).ordered_wait(same),
    )
    for _ in range(2):
        assert tuples(frames["nothing"]) == []
        assert sorted(tuples(frames["text"])) == [("0",), ("10",), ("20",), ("30",), ("40",), ("50",)]
        assert sorted(tuples(frames["even"])) == [(0, 0, 0), (2, 20, 2), (4, 40, 4)]
        assert tuples(frames["whole"].orderBy("id")) == [(i, i * 10) for i in range(6)]
    assert frames["nothing"].columns == ["id", "found", "same"]
    assert sorted(journal.lines) == [f"call {i}" for i in range(6)]


def test_branches_are_joined_again_by_union(spark, journal, looked_up):
    shared = AsyncStream(spark.range(0, 6, 1, 2)).ordered_wait(looked_up)
    small = shared.filter(lambda row: row["id"] < 2).map(lambda row: {"id": row["id"], "found": -1})
    big = shared.filter(lambda row: row["id"] >= 4)
    joined = small.union(big, shared.filter(lambda row: row["id"] == 3)).unordered_wait(same)
    assert sorted(tuples(joined)) == [(0, -1, 0), (1, -1, 1), (3, 30, 3), (4, 40, 4), (5, 50, 5)]
    assert sorted(journal.lines) == [f"call {i}" for i in range(6)]


def test_a_single_stream_is_collected_without_keeping_it(spark, stream_of, persisted, looked_up, journal):
    frames = AsyncStream.collect(only=stream_of(spark.range(0, 3, 1, 1)).ordered_wait(looked_up))
    assert tuples(frames["only"]) == [(0, 0), (1, 10), (2, 20)]
    assert persisted() == 0
    assert len(journal) == 3


def test_close_releases_what_is_kept_and_the_dataframes_go_on(spark, persisted, journal, looked_up):
    stream = AsyncStream(spark.range(0, 3, 1, 1))
    found = stream.ordered_wait(looked_up)
    frames = AsyncStream.collect(found=found, text=found.map(lambda row: "x", "string"))
    assert [frames["found"].count(), frames["text"].count(), persisted(), len(journal)] == [3, 3, 1, 3]
    found.close()
    stream.close()
    assert persisted() == 0
    assert [frames["found"].count(), persisted(), len(journal)] == [3, 0, 6], "evaluated anew"


def test_a_with_block_releases_also_after_an_exception(spark, persisted):
    def use():
        with AsyncStream(spark.range(3)).ordered_wait(told) as stream:
            stream.count()
            assert persisted() == 1
            raise KeyError("in the block")

    with pytest.raises(KeyError, match="in the block"):
        use()
    assert persisted() == 0


def test_a_stream_without_side_outputs_is_not_kept(spark, persisted, journal, looked_up):
    stream = AsyncStream(spark.range(0, 3, 1, 1)).ordered_wait(looked_up).map(lambda row: row)
    assert [stream.count(), stream.count(), persisted(), len(journal)] == [3, 3, 0, 6]


def test_closing_a_stream_does_not_touch_another_one_like_it(spark, persisted, journal):
    async def noted(id: int, context: RuntimeContext) -> int:
        journal.write("call", id)
        return id

    df = spark.range(0, 3, 1, 1)
    with AsyncStream(df).ordered_wait(noted) as one:
        one.count()
        with AsyncStream(df).ordered_wait(noted) as other:
            other.count()
        calls = len(journal)
        one.count()
        assert len(journal) == calls
