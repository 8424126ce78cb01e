"""Computes that refuse `persist()`, as serverless ones do: results are kept in a folder, and rows are called once."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import os
import weakref

import pytest
from pyspark.errors import AnalysisException

from asyncudf import DEAD_LETTERS, AsyncStream, async_pandas_udf, monitor
from asyncudf._spark import _compat
from asyncudf._spark.keeping import keep
from tests.kit.frames import tuples

pytestmark = pytest.mark.spark
REFUSED = "[NOT_SUPPORTED_WITH_SERVERLESS] PERSIST TABLE is not supported on serverless compute. SQLSTATE: 0A000"


@pytest.fixture
def refusals(spark, monkeypatch):
    """The calls of `persist()`, all of which are refused from here on."""
    asked = []

    def persist(df, *arguments):
        asked.append(df)
        raise AnalysisException(REFUSED)

    monkeypatch.setattr(type(spark.range(1)), "persist", persist)
    monkeypatch.setattr(_compat, "_engines", weakref.WeakKeyDictionary())
    return asked


@pytest.fixture
def folder(tmp_path, monkeypatch):
    kept = tmp_path / "kept"  # beside the journal
    kept.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ASYNCUDF_FOLDER", "~/kept")
    return kept


@pytest.fixture
def halved_once(journal):
    @async_pandas_udf("half bigint", on_error="dead_letter")
    async def halved_once(id: int):
        journal.write("call", id)
        if id % 2:
            raise ValueError(f"{id} is odd")
        return {"half": id // 2}

    return halved_once


def test_side_outputs_are_called_once_a_row(spark, refusals, folder, journal, halved_once):
    with AsyncStream(spark.range(0, 6, 1, 3)).ordered_wait(halved_once) as stream:
        letters = stream.side_output(DEAD_LETTERS)
        for _ in range(2):
            assert tuples(stream) == [(0, 0), (2, 1), (4, 2)]
            assert [(row.id, row.error.partition) for row in letters.collect()] == [(1, 0), (3, 1), (5, 2)]
        assert len(os.listdir(folder)) == 1
    assert sorted(journal.lines) == [f"call {i}" for i in range(6)]
    assert os.listdir(folder) == []


def test_branches_are_one_evaluation(spark, refusals, folder, journal, halved_once):
    stream = AsyncStream(spark.range(0, 6, 1, 2)).ordered_wait(halved_once)
    with stream:
        frames = AsyncStream.collect(whole=stream, big=stream.filter(lambda row: row["id"] > 2))
        assert (tuples(frames["big"]), tuples(frames["whole"])) == ([(4, 2)], [(0, 0), (2, 1), (4, 2)])
    assert len(journal) == 6


def test_a_session_is_asked_once(spark, refusals, folder):
    for _ in range(2):
        with keep(spark.range(0, 4, 1, 2)) as kept:
            assert tuples(kept) == [(0,), (1,), (2,), (3,)], "in the order of its partitions"
    assert len(refusals) == 2, "for the first frame, and for a small one that nothing is wrong with"


def test_a_dataframe_that_is_wrong_is_no_refusal(spark, folder, monkeypatch):
    """One plan that cannot be kept made all later ones of its session go by a folder."""
    frame, kept = spark.range(1).withColumnRenamed("id", "wrong"), type(spark.range(1)).persist

    def persist(df, *arguments):
        if df.columns == ["wrong"]:
            raise AnalysisException("[TABLE_OR_VIEW_NOT_FOUND] a table that is gone")
        return kept(df, *arguments)

    monkeypatch.setattr(type(frame), "persist", persist)
    with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        keep(frame)
    assert _compat.engine_of(spark).keeps_frames
    assert os.listdir(folder) == []


def test_a_query_that_fails_leaves_nothing_and_is_run_again_by_the_next_call(spark, refusals, folder, tmp_path_factory):
    """The task has written rows before it fails."""
    tried = tmp_path_factory.mktemp("tried") / "once"

    def fail_once(batches):
        for batch in batches:
            yield batch
            if not tried.exists():
                tried.touch()
                raise ValueError("the first attempt")

    frame = spark.range(0, 10, 1, 1).mapInArrow(fail_once, "id bigint")
    with pytest.raises(Exception, match="the first attempt"):
        keep(frame)
    assert os.listdir(folder) == []
    with keep(frame) as kept:
        assert kept.count() == 10


def test_a_monitor_sees_the_calls_around_the_first_read_and_no_others(spark, refusals, folder, halved_once):
    with AsyncStream(spark.range(0, 6, 1, 2)).ordered_wait(halved_once) as stream:
        with monitor(spark) as first:
            stream.count()
        with monitor(spark) as second:
            stream.side_output(DEAD_LETTERS).count()
    (figures,) = first.metrics["functions"]
    assert (figures["rows"], figures["calls"], figures["tasks"]["succeeded"]) == (6, 6, 2)
    assert second.metrics["functions"] == []


VALUES = {
    "numbers": "struct(cast(1 as tinyint), cast(2 as smallint), cast(3.5 as float), cast('1.05' as decimal(38, 10)))",
    "moments": "struct(date'2020-01-02', timestamp'2020-11-01 10:00:00', timestamp_ntz'1969-12-31 23:59:59.999999')",
    "duration": "interval '1 02:03:04.000005' day to second",
    "nested": "array(named_struct('m', map('k', array(1, null)), 'n', cast(null as struct<x: int>)), null)",
    "empty": "struct(array(1, null), x'', '')",
    "void": "null",
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_come_back_as_they_were(spark, refusals, folder, conf, kind):
    conf("spark.sql.session.timeZone", "America/New_York")
    rows = spark.range(0, 2, 1, 2).selectExpr("id", f"{VALUES[kind]} AS v", f"if(id = 0, null, {VALUES[kind]}) AS `v`")
    with keep(rows) as kept:
        assert (kept.dtypes, kept.collect()) == (rows.dtypes, rows.collect())


def test_over_spark_connect(connect, folder):
    assert (
        connect.run(f"""
os.environ["ASYNCUDF_FOLDER"] = {str(folder)!r}
from pyspark.errors import AnalysisException
from asyncudf._spark import _compat
calls = os.environ["ASYNCUDF_FOLDER"] + ".calls"

def refuse(df, *arguments):
    raise AnalysisException({REFUSED!r})

kind = type(spark.range(1))
persist, kind.persist = kind.persist, refuse

@async_pandas_udf("half bigint", on_error="dead_letter")
async def halved(id: int):
    with open(calls, "a") as file:
        file.write(f"{{id}} ")
    if id % 2:
        raise ValueError(id)
    return {{"half": id // 2}}

try:
    with AsyncStream(spark.range(0, 4, 1, 2)).ordered_wait(halved) as stream:
        letters = stream.side_output(DEAD_LETTERS)
        print(stream.count(), letters.count(), stream.count(), len(os.listdir(os.environ["ASYNCUDF_FOLDER"])))
    print(sorted(open(calls).read().split()), os.listdir(os.environ["ASYNCUDF_FOLDER"]))
finally:
    kind.persist = persist
    _compat._engines.pop(spark)
    del os.environ["ASYNCUDF_FOLDER"]
""")
        == "2 2 2 1\n['0', '1', '2', '3'] []\n"
    )
