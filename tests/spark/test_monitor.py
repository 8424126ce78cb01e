"""monitor: what the functions of a block did, through every entry point, live and afterwards."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import asyncio
import concurrent.futures
import json
import threading

import pytest
from pyspark.sql.functions import udf

from asyncudf import AsyncStream, AsyncUDFError, async_pandas_udf, monitor, unordered_wait
from asyncudf._spark.monitoring.job_watch import JobWatch
from asyncudf._spark.monitoring.live import LiveServer
from asyncudf._spark.monitoring.task_report import SESSION_CONF, THREAD_PROPERTY
from tests.kit.threads import left_threads

pytestmark = pytest.mark.spark


@async_pandas_udf(capacity=10)
async def waits(id: int) -> int:
    await asyncio.sleep(0.002)
    return id


@async_pandas_udf("twice long", output_mode="unordered")
async def pairs(id):
    for _ in range(2):
        await asyncio.sleep(0.001)
        yield {"twice": id}


def table(spark, df):
    df.createOrReplaceTempView("monitored")
    pairs.register(spark, "pairs")
    return spark.sql("SELECT * FROM pairs(TABLE(monitored), 'id')")


ENTRY_POINTS = {
    "column": (lambda spark, df: df.select(waits("id")), "column", 1),
    "table function": (table, "table function", 2),
    "unordered_wait": (lambda spark, df: unordered_wait(df, pairs), "operator", 2),
}


def only(run):
    (function,) = run.metrics["functions"]
    return function


@pytest.mark.promise("monitor")
@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_every_entry_point_is_counted(spark, name):
    """Rows, results, calls and the time of each task, whichever way a function is used."""
    build, entry_point, results = ENTRY_POINTS[name]
    with monitor(spark) as run:
        assert build(spark, spark.range(0, 300, 1, 2)).count() >= 0
        build(spark, spark.range(0, 300, 1, 2)).collect()
    functions = [one for one in run.metrics["functions"] if one["rows"]]
    found = functions[-1]
    tasks = found["tasks"]["succeeded"]
    assert found["entry_point"] == entry_point
    assert found["results"] == results * found["rows"]
    assert found["rows"] % 300 == 0
    assert found["calls"] == found["attempts"] == found["rows"] == found["latency"]["count"]
    assert tasks >= (1 if name == "table function" else 2)
    assert sum(found["time"].values()) == pytest.approx(found["seconds"], abs=1e-3 * tasks)
    for task in found["per_task"]:
        assert sum(task["time"].values()) == pytest.approx(task["seconds"], abs=1e-3)
        assert task["status"] == "succeeded"
    assert json.loads(json.dumps(run.metrics)) == run.metrics


def test_what_people_get(spark, tmp_path):
    """A summary, a DataFrame of the tasks, and a report; a run that is asked twice says the same."""
    with monitor(spark) as run:
        spark.range(0, 300, 1, 2).select(waits("id")).collect()
    assert "waits" in run.summary()
    assert "300" in run.summary()
    assert repr(run).startswith("<asyncudf.Run: 1 function in ")
    assert run._repr_html_().startswith("<pre>1 function in ")
    rows = run.to_df().collect()
    assert [(row.function, row.status) for row in rows] == [("waits", "succeeded")] * 2
    assert sum(row.rows for row in rows) == 300
    assert sorted(row.partition for row in rows) == [0, 1]
    run.report(tmp_path / "run.html")
    assert "waits" in (tmp_path / "run.html").read_text()
    assert run.metrics["is_over"]
    assert run.metrics == run.metrics


def test_two_uses_of_one_function_are_told_apart(spark):
    """In one query and in one chain: each has a label of its own."""
    with monitor(spark) as run:
        spark.range(0, 100, 1, 1).select(waits("id"), waits("id").alias("b")).collect()
    assert [(one["function"], one["rows"]) for one in run.metrics["functions"]] == [("waits", 100), ("waits #2", 100)]
    with monitor(spark) as run, AsyncStream(spark.range(0, 100, 1, 1)) as stream:
        stream.ordered_wait(waits, as_="a").filter(lambda row: row["id"] % 2 == 0).ordered_wait(
            waits, as_="b"
        ).to_df().collect()
    found = run.metrics["functions"]
    assert [one["rows"] for one in found] == [100, 50]
    assert len({one["function"] for one in found}) == 2


def test_the_mentions_of_a_sql_function_are_added_up_and_two_names_are_told_apart(spark):
    """Spark calls what was registered alike at each mention: no task knows for which of them it works."""

    def rows(query):
        with monitor(spark) as run:
            spark.sql(query).collect()
        return [(one["function"], one["rows"], one["tasks"]["succeeded"]) for one in run.metrics["functions"]]

    for name in ("waits_a", "waits_b"):
        waits.register(spark, name)
    assert rows("SELECT waits_a(id), waits_a(id + 1) FROM range(0, 100, 1, 1)") == [("waits", 200, 2)]
    found = rows("SELECT waits_a(id), waits_b(id + 1) FROM range(0, 100, 1, 1)")
    assert found == [("waits", 100, 1), ("waits #2", 100, 1)]


def test_a_query_planned_before_is_counted_and_one_run_after_is_not(spark):
    """It matters when a job runs, not when it was planned."""
    df = spark.range(0, 50, 1, 1).select(waits("id"))
    with monitor(spark) as run:
        df.collect()
    df.collect()
    assert only(run)["rows"] == 50
    assert spark.sparkContext.getLocalProperty(THREAD_PROPERTY) is None
    assert spark.conf.get(SESSION_CONF, None) is None


@pytest.mark.promise("monitor")
def test_a_task_that_fails_is_kept_apart(spark):
    """What a failed task did was paid for: it is told, and not mixed with what counts."""

    @async_pandas_udf(capacity=5)
    async def breaks(id: int) -> int:
        await asyncio.sleep(0.001)
        if id == 70:
            raise ValueError("https://user:secret@example.com")
        return id

    with pytest.raises(Exception, match="breaks failed"), monitor(spark) as run:  # noqa: PT012
        spark.range(0, 50, 1, 1).select(breaks("id")).collect()
        spark.range(0, 100, 1, 1).select(breaks("id")).collect()
    good, bad = run.metrics["functions"]
    assert (good["rows"], good["tasks"]["succeeded"]) == (50, 1)
    assert (bad["rows"], bad["tasks"]["failed"]) == (0, 1)
    assert bad["failed_attempts"]["calls"] > 70
    assert bad["failed_attempts"]["errors"] == {"ValueError": 1}
    assert "secret" not in json.dumps(run.metrics)


@pytest.mark.spark_only("which of its tasks have failed")
def test_a_task_that_fails_behind_the_function_is_kept_apart(spark):
    """The function did all it should, and its results are lost all the same."""

    @udf("long")
    def breaks(value):
        if value == 99:
            raise ValueError("behind")
        return value

    with pytest.raises(Exception, match="behind"), monitor(spark) as run:
        spark.range(0, 100, 1, 1).select(breaks(waits("id"))).collect()
    found = only(run)
    assert (found["tasks"]["succeeded"], found["tasks"]["failed"], found["rows"]) == (0, 1, 0)
    assert found["failed_attempts"]["rows"] == 100


def test_monitors_in_one_another(spark):
    """The outer one sees what is in the inner one; the inner one only its own."""
    with monitor(spark) as outer:
        spark.range(0, 10, 1, 1).select(waits("id")).collect()
        with monitor(spark) as inner:
            spark.range(0, 20, 1, 1).select(waits("id")).collect()
        spark.range(0, 30, 1, 1).select(waits("id")).collect()
    assert [one["rows"] for one in inner.metrics["functions"]] == [20]
    assert [one["rows"] for one in outer.metrics["functions"]] == [10, 20, 30]


@pytest.mark.spark_only("properties of a thread's jobs")
def test_monitors_side_by_side(spark):
    """Two threads with a monitor each: neither sees the other's jobs."""
    both = threading.Barrier(2, timeout=60)

    def work(rows):
        with monitor(spark) as run:
            both.wait()
            spark.range(0, rows, 1, 1).select(waits("id")).collect()
            both.wait()
        return [one["rows"] for one in run.metrics["functions"]]

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, [11, 22])) == [[11], [22]]


def test_threads_without_a_monitor_belong_to_that_of_their_session(spark):
    """Jobs that a block hands to a pool of threads are counted."""
    with monitor(spark) as run, concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda rows: spark.range(0, rows, 1, 1).select(waits("id")).collect(), [11, 22]))
    assert sorted(one["rows"] for one in run.metrics["functions"]) == [11, 22]


@pytest.mark.promise("monitor")
@pytest.mark.spark_only("figures of running tasks")
def test_figures_of_a_task_that_runs(spark, tmp_path, until):
    """While calls wait the driver knows how far the task is."""
    gate = tmp_path / "gate"
    path = str(gate)

    @async_pandas_udf(capacity=3)
    async def gated(id: int) -> int:
        import os

        while id >= 40 and not os.path.exists(path):
            await asyncio.sleep(0.02)
        return id

    with monitor(spark) as run, concurrent.futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(spark.range(0, 60, 1, 1).select(gated("id")).collect)
        until(lambda: run.metrics["functions"] and only(run)["rows"] == 40, "40 rows done")
        found = only(run)
        assert (found["tasks"]["running"], found["tasks"]["succeeded"]) == (1, 0)
        assert found["per_task"][0]["timeline"][-1][2] == 3
        assert not run.metrics["is_over"]
        gate.touch()
        job.result()
    assert (only(run)["rows"], only(run)["tasks"]["running"], only(run)["tasks"]["succeeded"]) == (60, 0, 1)


@pytest.mark.spark_only("figures of running tasks")
def test_without_a_connection_figures_come_with_the_end_of_tasks(spark, monkeypatch, caplog):
    """A worker that cannot reach the driver goes on without, and Spark's accumulators have the rest."""
    monkeypatch.setattr(LiveServer, "was_reached", False)
    monkeypatch.setattr(JobWatch, "_has_warned", False)
    for _ in range(2):
        with monitor(spark) as run:
            run._watch._server.close()
            spark.range(0, 300, 1, 2).select(waits("id")).collect()
        assert (only(run)["rows"], only(run)["tasks"]["succeeded"]) == (300, 2)
    (warning,) = caplog.messages
    assert "no task could connect to 127.0.0.1, spark.driver.host" in warning


@pytest.mark.spark_only("foreachBatch runs in the process of the test")
def test_a_stream_is_counted_by_micro_batch(spark, lines_of, to_its_end):
    """A query that begins in a block is counted until the block ends; `foreachBatch` may have a monitor of its own."""
    runs = []

    @async_pandas_udf
    async def upper(line: str) -> str:
        await asyncio.sleep(0.001)
        return line.upper()

    def each(df, number):
        with monitor(spark) as run:
            df.select(upper("line")).collect()
        runs.append([one["rows"] for one in run.metrics["functions"]])

    stream = lines_of("one\ntwo\n", "three\n")
    with monitor(spark) as outer:
        to_its_end(stream.writeStream.foreachBatch(each))
    assert sorted(runs) == [[1], [2]]
    assert sum(one["rows"] for one in outer.metrics["functions"]) == 3
    assert {task["batch"] for one in outer.metrics["functions"] for task in one["per_task"]} == {0, 1}


def test_monitors_that_end_in_another_order_leave_nothing(spark):
    """Whichever ends first: jobs afterwards tell nobody, and the session is as it was."""
    first, second = monitor(spark), monitor(spark)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    spark.range(0, 20, 1, 1).select(waits("id")).collect()
    second.__exit__(None, None, None)
    spark.range(0, 30, 1, 1).select(waits("id")).collect()
    assert [one["rows"] for one in second.metrics["functions"]] == [20]
    assert first.metrics["functions"] == []
    assert spark.sparkContext.getLocalProperty(THREAD_PROPERTY) is None
    assert spark.conf.get(SESSION_CONF, None) is None


def test_a_run_is_for_one_block(spark):
    """Used twice it says so; before its block it has nothing to tell."""
    run = monitor(spark)
    assert run.metrics["functions"] == []
    assert run.summary()
    assert repr(run) == "<asyncudf.Run: no function with rows in 0 s, so far>"
    with run:
        pass
    with pytest.raises(AsyncUDFError, match="one block"), run:
        pass


def test_progress_is_shown_and_ends_with_the_block(spark, capsys):
    """Where there is no terminal it is lines of text; no thread is left."""
    with monitor(spark, progress=True):
        spark.range(0, 300, 1, 2).select(waits("id")).collect()
    assert "waits" in capsys.readouterr().err + capsys.readouterr().out
    assert not left_threads()
