"""Each entry point beside columns and operators on Sail: once a row, counted, or refused by name."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import sys
import threading
import types
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark import TaskContext
from pyspark.sql import functions as sf

from asyncudf import (
    AsyncFunction,
    AsyncUDFError,
    FunctionError,
    LookupTable,
    OptionError,
    ResultStore,
    RuntimeContext,
    SinkError,
    Submission,
    async_pandas_udf,
    async_sink,
    batch_function,
    dry_run,
    ordered_wait,
    rehearse,
    ship,
    sink_source,
    stream_sink,
    submit,
    unordered_wait,
)
from asyncudf._spark._compat import HAS_DATA_SOURCES
from asyncudf.batches import BatchRequest, BatchService, JobState, JobStatus

pytest.importorskip("pysail", reason="Sail is not installed: scripts/test --sail")
# Functions are pickled by value: a module that is the same in each copy sees what they do.
seen: Any = sys.modules.setdefault("seen_of_entry_points", types.ModuleType("seen_of_entry_points"))
KEYS = list(range(8))


async def look(key: int) -> dict[str, Any]:
    import seen_of_entry_points as seen  # type: ignore[import-not-found]

    seen.calls.append(key)
    if key == 1:
        raise KeyError(key)
    return {"a": float(key)}


async def double(key: int) -> int:
    import seen_of_entry_points as seen

    seen.calls.append(key)
    return 2 * key


@pytest.fixture(autouse=True)
def calls() -> list[Any]:
    """What the functions were called for."""
    seen.calls, seen.opened, seen.closed, seen.jobs = [], [], [], {}
    return seen.calls  # type: ignore[no-any-return]


@pytest.fixture
def df(spark: Any) -> Any:
    """Eight keys in two partitions."""
    return spark.range(0, 8, 1, 2).select(sf.col("id").alias("key"))


def rows(frame: Any) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, frame.collect()))


as_data_source = pytest.mark.skipif(not HAS_DATA_SOURCES, reason="this needs Spark 4.0")


class TestSinks:
    def test_each_row_is_sent_once_and_one_that_fails_is_a_dead_letter(self, df: Any, calls: list[int]) -> None:
        report = async_sink(df, look, "key")
        assert (report.written, report.failed, sorted(calls)) == (7, 1, KEYS)
        assert rows(report.dead_letters.select("key", "error.type")) == [(1, "KeyError")]
        assert sorted(calls) == KEYS, "the dead letters were evaluated by calls"

    def test_too_many_failures_are_an_error_with_the_report(self, df: Any) -> None:
        with pytest.raises(SinkError, match="1 of 1 row of look failed") as caught:
            async_sink(df.where("key = 1"), look, "key")
        assert rows(caught.value.report.dead_letters.select("key")) == [(1,)]

    @as_data_source
    def test_a_data_source_sends_each_row_once(self, spark: Any, df: Any, calls: list[int], tmp_path: Path) -> None:
        spark.dataSource.register(sink_source("crm", look, columns="key", dead_letters=str(tmp_path)))
        df.write.format("crm").mode("append").save()
        assert sorted(calls) == KEYS
        assert rows(spark.read.parquet(str(tmp_path)).select("key", "error.type")) == [(1, "KeyError")]

    @as_data_source
    def test_without_a_place_for_dead_letters_a_row_ends_the_write(self, spark: Any, df: Any) -> None:
        spark.dataSource.register(sink_source("strict", look, columns="key"))
        with pytest.raises(Exception, match=r"look failed in attempt 1.*KeyError: 1"):
            df.write.format("strict").mode("append").save()

    @as_data_source
    def test_it_gets_values_as_the_other_entry_points(self, spark: Any, calls: list[Any]) -> None:
        async def send(n: int, d: Any, ts: Any, items: Any) -> None:
            import seen_of_entry_points as seen

            seen.calls.append((n, d, ts, items))

        spark.dataSource.register(sink_source("typed", send))
        text = "1S AS n, CAST(1.5 AS decimal(5,2)) AS d, timestamp'2020-01-01 00:00:00' AS ts, array(1, null) AS items"
        spark.sql(f"SELECT {text}").write.format("typed").mode("append").save()
        moment = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
        assert calls == [(1, Decimal("1.50"), moment, [1, None])]

    @as_data_source
    def test_a_type_that_it_cannot_get_is_named(self, spark: Any) -> None:
        spark.dataSource.register(sink_source("months", double))
        with pytest.raises(Exception, match=r"FunctionError: a column cannot be written.*cast it to a string"):
            spark.sql("SELECT interval '1' month AS key").write.format("months").mode("append").save()

    @as_data_source
    def test_it_warns_of_sorts_which_are_lost(
        self, spark: Any, df: Any, calls: list[int], caplog: pytest.LogCaptureFixture
    ) -> None:
        spark.dataSource.register(sink_source("in_turn", double, columns="key", capacity=1))
        (told,) = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
        assert told.startswith("in_turn: Sail takes a sort before a write out of the plan")
        down = df.coalesce(1).orderBy(sf.desc("key"))
        down.write.format("in_turn").mode("append").save()
        assert calls == KEYS, "Sail keeps the sort: then nothing is to be warned of"
        calls.clear()
        down.offset(0).write.format("in_turn").mode("append").save()
        assert calls == KEYS[::-1]

    def test_what_is_for_streams_is_refused_by_name(self, spark: Any) -> None:
        stream = spark.readStream.format("rate").load()
        with pytest.raises(FunctionError, match=r"is for foreachBatch, and Sail has none.*async_sink\(df, double"):
            stream_sink(double, "value")
        with pytest.raises(FunctionError, match="Sail has none"):
            async_sink(stream, double, "value")


class TestLimits:
    """Sail looks one batch with rows ahead, and passes on what a filter leaves only by thousands of rows."""

    @pytest.mark.parametrize("wait", [ordered_wait, unordered_wait])
    def test_a_limit_ends_calls_and_closes_what_is_open(self, spark: Any, calls: list[int], wait: Any) -> None:
        async def answer(id: int, client: str) -> int:  # noqa: A002
            import seen_of_entry_points as seen

            seen.calls.append(id)
            try:
                await asyncio.sleep(0.02)
            except asyncio.CancelledError:
                seen.closed.append(id)
                raise
            seen.ended.append(id)
            return id

        @contextlib.asynccontextmanager
        async def client() -> AsyncIterator[str]:
            import seen_of_entry_points as seen

            try:
                yield "open"
            finally:
                seen.is_closed.set()

        seen.is_closed, seen.ended = threading.Event(), []
        options: Any = {"returnType": "long", "as_": "w", "capacity": 4, "resources": {"client": client}}
        assert len(wait(spark.range(0, 100_000, 1, 1), answer, "id", **options).limit(5).collect()) == 5
        assert seen.is_closed.wait(60), "the task goes on"
        assert len(calls) < 10_000
        assert sorted([*seen.ended, *seen.closed]) == calls
        assert 0 < len(seen.closed) <= 4


def test_an_operator_runs_all_partitions_at_once(spark: Any, calls: list[int]) -> None:
    """However few cores there are; so each has the calls of its own capacity in flight."""

    async def meet(id: int) -> int:  # noqa: A002
        import seen_of_entry_points as seen

        seen.calls.append(id)
        while len(seen.calls) < 9:  # the timeout of the call ends it
            await asyncio.sleep(0.01)
        return id

    assert ordered_wait(spark.range(0, 9, 1, 9), meet, "id", returnType="long", as_="w", capacity=1).count() == 9
    assert sorted(calls) == list(range(9))


class TestCounting:
    @pytest.mark.parametrize(
        ("made", "options"),
        [
            (KEYS, {}),
            (KEYS, {"store": ResultStore.executor()}),
            ([0, 1], {"store": ResultStore.executor(key=lambda key: key % 2)}),
        ],
        ids=["plain", "store", "store with a key"],
    )
    def test_a_rehearsal_makes_the_calls_of_its_sample(
        self, df: Any, calls: list[int], made: list[int], options: dict[str, Any]
    ) -> None:
        told = rehearse(df, double, "key", returnType="long", **options)
        assert (told.rows, told.sample, len(calls)) == (8, len(made), len(made))
        assert sorted({call % 2 for call in calls} if len(made) == 2 else calls) == made

    def test_it_takes_rows_in_any_order_and_a_column(self, df: Any, calls: list[int]) -> None:
        assert rehearse(df.orderBy("key"), async_pandas_udf(double, "long")("key"), sample=4).sample == 4
        assert len(calls) == 4

    def test_both_parts_of_its_sample_are_of_one(self, spark: Any, calls: list[int]) -> None:
        """Rows are chosen at random, and once."""
        rehearse(spark.range(0, 100, 1, 1), double, "id", sample=60, returnType="long")
        assert len(set(calls)) == len(calls) == 60

    def test_of_a_vectorized_function_it_calls_batches(self, spark: Any, calls: list[int]) -> None:
        told = rehearse(spark.range(0, 500, 1, 2).toDF("key"), of_series, returnType="long", sample=4, batch_size=10)
        assert (told.sample, calls) == (4, [10] * 4)

    def test_a_dry_run_makes_none(self, df: Any, calls: list[int]) -> None:
        told = dry_run(df.union(df), double, "key", store=ResultStore.executor())
        assert (told.rows, told.distinct, told.calls, calls) == (16, 8, 8, [])


class TestLookupTables:
    @pytest.mark.parametrize("is_path", [True, False], ids=["path", "name"])
    def test_each_argument_is_called_once(
        self, spark: Any, df: Any, calls: list[int], tmp_path: Path, is_path: bool
    ) -> None:
        where = str(tmp_path / "table") if is_path else "lookups"
        table = LookupTable(spark, where, look, "key", returnType="a double", wave=3, ttl=3600, error_ttl=3600)
        told = table.update(df.union(df), progress=False)
        assert (told.called, told.failed, told.reused, sorted(calls)) == (8, 1, 0, KEYS)
        again = table.update(df.union(spark.range(8, 10)), progress=False)
        assert (again.called, again.reused, sorted(calls)) == (2, 8, [*KEYS, 8, 9])
        wanted = [(key, None if key == 1 else float(key)) for key in KEYS]
        assert sorted(map(tuple, table.join(df).select("key", "a").collect())) == wanted
        assert table.to_df().count() == len(calls) == 10

    def test_nothing_at_a_path_is_no_table(self, spark: Any, df: Any, tmp_path: Path) -> None:
        """Sail reads it as a table without columns."""
        table = LookupTable(spark, str(tmp_path / "none"), look, "key", returnType="a double")
        with pytest.raises(FunctionError, match=r"there is no table .*; update"):
            table.to_df()
        assert table.join(df).where("a is null").count() == 8


class Service(BatchService):
    max_requests, poll_every = 3, 0.01

    def submit(self, requests: Sequence[BatchRequest], key: str) -> str:
        import seen_of_entry_points as seen

        seen.jobs[key] = {request.key: request.body for request in requests}
        return key

    def poll(self, job: str) -> JobStatus:
        return JobStatus(JobState.ENDED)

    def fetch(self, job: str) -> Iterable[tuple[str, Any]]:
        import seen_of_entry_points as seen

        return [*seen.jobs[job].items()]

    def cancel(self, job: str) -> None: ...


def read(answer: Any) -> int:
    if answer["n"] == 1:
        raise ValueError("one")
    return 2 * answer["n"]  # type: ignore[no-any-return]


@batch_function(parse=read)
def request(key: int) -> dict[str, int]:
    return {"n": key}


class TestSubmissions:
    def test_each_request_is_sent_once_and_another_process_collects(self, df: Any, tmp_path: Path) -> None:
        state = str(tmp_path / "state")
        submit(df.union(df).orderBy("key"), request, "key", service=Service(), state=state, attempts=1)
        assert sorted(body["n"] for job in seen.jobs.values() for body in job.values()) == KEYS
        assert max(map(len, seen.jobs.values())) <= Service.max_requests
        assert submit(df.union(df), request, "key", service=Service(), state=state, attempts=1).wait(60).is_done
        found = Submission.open(state)
        assert rows(found.collect()) == sorted([(key, 2 * key) for key in KEYS if key != 1] * 2)
        assert rows(found.dead_letters().select("key", "error.message")) == [(1, "one")] * 2
        assert sum(map(len, seen.jobs.values())) == 8
        for path in (f"file:{state}", f"file://{state}"):  # Sail began the first at its own working directory
            assert Submission.open(path).status().is_done

    def test_a_folder_of_others_is_refused(self, df: Any, tmp_path: Path) -> None:
        """Sail reads a text at any path, also where nothing is."""
        df.write.parquet(str(tmp_path / "state" / "rows"))
        with pytest.raises(OptionError, match="has rows/ that no submission has written"):
            submit(df, request, "key", service=Service(), state=str(tmp_path / "state"))


class Opened(AsyncFunction):
    async def open(self, context: RuntimeContext) -> None:
        import seen_of_entry_points as seen

        seen.opened.append(context)

    async def close(self) -> None:
        import seen_of_entry_points as seen

        seen.closed.append(self)

    async def async_invoke(self, row: Any, result: Any) -> None:
        import seen_of_entry_points as seen

        seen.calls.append(row["key"])
        result.complete([2 * row["key"]])


async def of_series(key: pd.Series) -> pd.Series:
    import seen_of_entry_points as seen

    seen.calls.append(len(key))
    return 2 * key


async def of_frame(given: pd.DataFrame) -> pd.Series:
    return await of_series(given["key"])


async def of_array(key: pa.Array) -> pa.Array:
    import seen_of_entry_points as seen

    seen.calls.append(len(key))
    return pc.multiply(key, 2)


class TestFunctions:
    def test_an_async_function_opens_and_closes_once_a_task(self, df: Any, calls: list[int]) -> None:
        found = ordered_wait(df, Opened(), returnType="long", as_="w")
        assert rows(found) == [(key, 2 * key) for key in KEYS]
        assert (sorted(calls), len(seen.opened), len(seen.closed)) == (KEYS, 2, 2)

    @pytest.mark.parametrize("function", [of_series, of_frame, of_array])
    def test_vectors_are_called_by_batches(self, df: Any, calls: list[int], function: Any) -> None:
        found = ordered_wait(df, function, "key", returnType="long", as_="w", batch_size=3)
        assert rows(found) == [(key, 2 * key) for key in KEYS]
        assert sorted(calls) == [1, 1, 3, 3]

    def test_a_table_function_says_what_to_use(self, spark: Any) -> None:
        with pytest.raises(FunctionError, match="does not tell such a function the types of its table's columns"):
            async_pandas_udf(double, "long", output_mode="unordered").register(spark, "many")


VALUES = {
    "boolean": "true",
    "tinyint": "1Y",
    "float": "CAST(1.5 AS float)",
    "string": "'x'",
    "binary": "binary('x')",
    "decimal(38,10)": "CAST(1.5 AS decimal(38,10))",
    "date": "date'2020-01-01'",
    "timestamp": "timestamp'2020-07-01 12:00:00'",
    "timestamp_ntz": "timestamp_ntz'2020-07-01 12:00:00'",
    "interval day to second": "interval '1 02:03:04' day to second",
    "array<struct<x:timestamp>>": "array(named_struct('x', timestamp'2020-07-01 12:00:00'), null)",
    "map<string,array<int>>": "map('a', array(1, null))",
    "variant": """parse_json('{"a": 1}')""",
    "time": "time'10:11:12'",
}


async def same(v: Any) -> Any:
    return v


class TestTypes:
    @pytest.mark.parametrize("declared", VALUES)
    def test_a_value_comes_back_as_it_was(self, spark: Any, declared: str) -> None:
        if declared in ("variant", "time") and not hasattr(sf, "make_time"):
            pytest.skip("of Spark 4.1")
        df = spark.sql(f"SELECT {VALUES[declared]} AS v UNION ALL SELECT NULL")  # in any order
        wanted = sorted(repr(row.v) for row in df.collect())  # a variant equals no other
        column = async_pandas_udf(same, declared, deterministic=True)
        assert sorted(repr(row.w) for row in df.select(column("v").alias("w")).collect()) == wanted
        found = ordered_wait(df, same, "v", returnType=declared, as_="w").collect()
        assert sorted((repr(row.v), repr(row.w)) for row in found) == list(zip(wanted, wanted, strict=True))

    @pytest.mark.parametrize("wait", [ordered_wait, async_sink])
    def test_months_are_refused_before_a_call(self, spark: Any, wait: Any) -> None:
        df = spark.sql("SELECT interval '3' month AS v, 1 AS key")
        options = {} if wait is async_sink else {"returnType": "int"}
        with pytest.raises(FunctionError, match="column 'v' is interval month, which pyarrow does not know"):
            wait(df, double, "key", **options)


class TestErrors:
    @pytest.fixture
    def failed(self, df: Any) -> Iterator[Callable[..., str]]:
        def failed(function: Any, **options: Any) -> str:
            with pytest.raises(Exception, match="Traceback") as caught:
                ordered_wait(df, function, "key", returnType="a double", **options).collect()
            return str(caught.value)

        return failed

    def test_the_message_and_the_users_frames_are_shown_alone(self, failed: Callable[..., str]) -> None:
        told = failed(look)
        head, _, rest = told.partition("AsyncUDFError: look failed in attempt 1")
        assert "asyncudf/_engine" not in told.replace("\\", "/"), "frames of the library"
        assert "/_spark/" not in head.replace("\\", "/")
        assert "for the input (1,): KeyError: 1" in rest
        assert "raise KeyError(key)" in rest

    def test_all_frames_are_shown_on_request(self, failed: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ASYNCUDF_FULL_TRACEBACK", "1")
        assert "evaluations.py" in failed(look) or "chain_task.py" in failed(look)

    def test_a_function_that_asks_for_the_task_is_told_of_the_context(self, failed: Callable[..., str]) -> None:
        async def where(key: int) -> dict[str, Any]:
            task: Any = TaskContext.get()
            return {"a": task.partitionId()}

        told = failed(where)
        assert "runs functions without a TaskContext; a parameter `context: asyncudf.RuntimeContext`" in told
        assert "'NoneType' object has no attribute 'partitionId'" in told


class TestModules:
    def test_there_is_nothing_to_ship_where_functions_run_here(self, spark: Any) -> None:
        ship(spark, "tenacity")

    def test_a_module_that_is_not_there_is_named(self, spark: Any) -> None:
        with pytest.raises(AsyncUDFError, match=r"no_such_module cannot be imported.*Sail takes no modules"):
            ship(spark, "no_such_module")
