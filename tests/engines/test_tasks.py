"""Tasks on an engine that tells them nothing and runs them side by side in one process: Sail, in this one."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
import time
import types
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import functions as sf

from asyncudf import (
    AsyncFunction,
    AsyncStream,
    Budget,
    OptionError,
    RateLimit,
    ResultStore,
    async_pandas_udf,
    async_sink,
    ordered_wait,
    unordered_wait,
)
from asyncudf._engine.loop import bridge
from asyncudf._spark import _compat, coordinators, running_task
from asyncudf._spark.loopback import runs_here

pytest.importorskip("pysail.spark", reason="Sail is not installed: scripts/test --sail")


class Service(types.ModuleType):
    """What the functions of all tasks call: they run in this process, and find it by its name."""

    def __init__(self) -> None:
        super().__init__("tasks_call_this")
        self.lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        self.calls: Counter[int] = Counter()
        self.tenants: Counter[int] = Counter()
        self.began: list[float] = []
        self.now = self.most = 0
        self.gate: threading.Event | None = None

    def begin(self, key: int, tenant: int = 0) -> None:
        with self.lock:
            self.calls[key] += 1
            self.tenants[tenant] += 1
            self.began.append(time.monotonic())
            self.now += 1
            self.most = max(self.most, self.now)

    def end(self) -> None:
        with self.lock:
            self.now -= 1


service: Any = sys.modules.setdefault("tasks_call_this", Service())


async def look(key: int, tenant: int) -> int:
    import asyncio

    from tasks_call_this import begin, end  # type: ignore[import-not-found]

    begin(key, tenant)
    try:
        await asyncio.sleep(0.01)
        return key
    finally:
        end()


@pytest.fixture(autouse=True)
def forgetful() -> None:
    service.forget()


def rows(spark: Any, partitions: int, number: int = 24) -> Any:
    """Keys of two tenants in turn."""
    return spark.range(0, number, 1, partitions).select(sf.col("id").alias("key"), (sf.col("id") % 2).alias("tenant"))


Query = Callable[[], Any]


def by_operator(df: Any, udf: Any) -> Query:
    return ordered_wait(df, udf, "key", "tenant").collect  # type: ignore[no-any-return]


def by_unordered_operator(df: Any, udf: Any) -> Query:
    return unordered_wait(df, udf, "key", "tenant").collect  # type: ignore[no-any-return]


def by_chain(df: Any, udf: Any) -> Query:
    stream = AsyncStream(df).filter(lambda row: True).ordered_wait(udf, "key", "tenant")
    return stream.to_df().collect  # type: ignore[no-any-return]


def by_column(df: Any, udf: Any) -> Query:
    return df.select(udf("key", "tenant").alias("w")).collect  # type: ignore[no-any-return]


def by_sink(df: Any, udf: Any) -> Query:
    letters = {"on_error": "dead_letter"} | ({"on_spent": "dead_letter"} if udf.options.budgets else {})
    return lambda: async_sink(df, udf.with_options(**letters), "key", "tenant")


def by_sql(df: Any, udf: Any) -> Query:
    udf.register(df.sparkSession, "look_in_sql")
    df.createOrReplaceTempView("keys_of_tenants")
    return df.sparkSession.sql("SELECT look_in_sql(key, tenant) FROM keys_of_tenants").collect  # type: ignore[no-any-return]


OF_FRAMES = [by_operator, by_unordered_operator, by_chain, by_column, by_sink]
both = pytest.mark.parametrize("partitions", [2, 4])
SPENT = {"on_spent": "null", "on_error": "null"}


class TestLimitsOfAQuery:
    @both
    @pytest.mark.parametrize("form", OF_FRAMES)
    def test_each_run_of_one_frame_has_a_budget_of_its_own(self, spark: Any, form: Any, partitions: int) -> None:
        run = form(rows(spark, partitions), async_pandas_udf(look, "long", budget=Budget(3, "calls"), **SPENT))
        for _ in range(2):
            service.forget()
            run()
            assert service.calls.total() == 3

    @both
    @pytest.mark.parametrize("form", OF_FRAMES)
    def test_so_it_is_with_max_calls(self, spark: Any, form: Any, partitions: int) -> None:
        run = form(rows(spark, partitions), async_pandas_udf(look, "long", max_calls=5, **SPENT))
        run()
        run()
        assert service.calls.total() == 10

    @pytest.mark.parametrize("form", OF_FRAMES)
    def test_each_value_of_a_key_has_its_own(self, spark: Any, form: Any) -> None:
        budget = Budget(3, "calls", by="tenant")
        run = form(rows(spark, 4), async_pandas_udf(look, "long", budget=budget, **SPENT))
        run()
        run()
        assert service.tenants == {0: 6, 1: 6}

    def test_two_queries_at_once_do_not_share_it(self, spark: Any) -> None:
        udf = async_pandas_udf(look, "long", budget=Budget(3, "calls"), **SPENT)
        queries = [threading.Thread(target=by_operator(rows(spark, 2), udf)) for _ in range(4)]
        for query in queries:
            query.start()
        for query in queries:
            query.join()
        assert service.calls.total() == 12

    def test_two_uses_in_one_query_share_it(self, spark: Any) -> None:
        udf = async_pandas_udf(look, "long", budget=Budget(5, "calls"), **SPENT)
        frames = [ordered_wait(rows(spark, 2), udf, "key", "tenant") for _ in range(2)]
        frames[0].union(frames[1]).collect()
        assert service.calls.total() == 5

    def test_a_view_is_a_new_query_each_time_too(self, spark: Any) -> None:
        udf = async_pandas_udf(look, "long", max_calls=3, **SPENT)
        ordered_wait(rows(spark, 2), udf, "key", "tenant").createOrReplaceTempView("looked_up")
        for _ in range(2):
            spark.sql("SELECT * FROM looked_up").collect()
        assert service.calls.total() == 6

    @pytest.mark.parametrize("number", [0, 1, 3])
    def test_empty_partitions_have_no_part_in_it(self, spark: Any, number: int) -> None:
        df = rows(spark, 8).where(sf.col("key") < number)
        udf = async_pandas_udf(look, "long", max_calls=2, **SPENT)
        assert len(by_operator(df, udf)()) == number
        assert service.calls.total() == min(2, number)

    def test_marks_are_in_no_result(self, spark: Any) -> None:
        frame = ordered_wait(rows(spark, 2, 4), look, "key", "tenant", returnType="long", as_="w")
        assert frame.columns == ["key", "tenant", "w"]
        assert sorted(map(tuple, frame.collect())) == [(0, 0, 0), (1, 1, 1), (2, 0, 2), (3, 1, 3)]

    @pytest.mark.parametrize(
        "limit", [{}, {"max_calls": 99}, {"job_capacity": 3}], ids=["none", "max_calls", "capacity"]
    )
    def test_nor_in_the_name_of_a_column(self, spark: Any, limit: Any) -> None:
        column = async_pandas_udf(look, "long", **limit)("key", sf.lit(1))
        df = rows(spark, 2, 4)
        assert df.select(column, column + 1).columns == ["look(key, 1)", "(look(key, 1) + 1)"]
        assert [row[0] for row in df.where(column > 2).select(column.alias("w")).collect()] == [3]

    @pytest.mark.parametrize("form", [by_operator, by_unordered_operator, by_chain, by_sink])
    def test_columns_may_be_called_like_them(self, spark: Any, form: Any) -> None:
        names = [name.upper() if name == running_task.MARKS[0] else name for name in running_task.MARKS]
        df = rows(spark, 2, 4).select("*", *(sf.lit(number).alias(name) for number, name in enumerate(names)))
        form(df, async_pandas_udf(look, "long"))()
        assert service.calls == dict.fromkeys(range(4), 1)
        frame = ordered_wait(df, look, "key", "tenant", returnType="long", as_="w")
        assert frame.columns == ["key", "tenant", *names, "w"]
        assert sorted(map(tuple, frame.collect())) == [(n, n % 2, 0, 1, n) for n in range(4)]

    def test_a_column_made_for_another_engine_makes_no_call_that_its_limit_does_not_count(
        self, spark: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two sessions in one process: the active one says what a column is made for."""
        monkeypatch.setattr("asyncudf._spark.column.engine_of", lambda session: _compat.SPARK)
        column = async_pandas_udf(look, "long", max_calls=3, **SPENT)("key", "tenant")
        with pytest.raises(Exception, match=r"look has a budget .*max_calls.* in which query this task is"):
            rows(spark, 4).select(column).collect()
        assert not service.calls

    @pytest.mark.parametrize("option", [{"budget": Budget(3, "calls")}, {"max_calls": 3}], ids=["budget", "max_calls"])
    def test_a_function_of_sql_cannot_have_it_and_says_so(self, spark: Any, option: Any) -> None:
        told = "without a name" if "budget" in option else "max_calls"
        with pytest.raises(OptionError, match=rf"look: .*{told} is for one query, and Sail.*ordered_wait\(df, look"):
            async_pandas_udf(look, "long", **option, **SPENT).register(spark, "refused")

    def test_a_budget_with_a_name_is_one_for_all_queries(self, spark: Any) -> None:
        for number, form in enumerate([*OF_FRAMES, by_sql]):
            budget = Budget(3, "calls", name=f"all queries of {number}")
            run = form(rows(spark, 2), async_pandas_udf(look, "long", budget=budget, **SPENT))
            service.forget()
            run()
            run()
            assert service.calls.total() == 3


READINGS = {  # what is done with a frame of 24 rows: the calls of it, and whether it is told that some are paid again
    "once": (lambda df: df.collect(), 24, False),
    "two actions": (lambda df: [df.collect(), df.count()], 48, True),
    "ten actions": (lambda df: [df.collect() for _ in range(10)], 240, True),
    "cached": (lambda df: [df.cache().collect(), df.collect()], 48, True),
    "union": (lambda df: df.union(df).collect(), 48, True),
    "join": (lambda df: df.alias("a").join(df.alias("b"), "key").collect(), 48, True),
}


class TestSecondEvaluations:
    @both
    @pytest.mark.parametrize("reading", READINGS)
    def test_what_is_paid_again_is_told_once(self, spark: Any, caplog: Any, reading: str, partitions: int) -> None:
        read, calls, is_told = READINGS[reading]
        read(ordered_wait(rows(spark, partitions), look, "key", "tenant", returnType="long", as_="w"))
        assert service.calls.total() == calls
        told = [one for one in caplog.messages if "evaluated a second time" in one]
        assert len(told) == is_told
        assert all(
            re.match(r"\S*look: .* paid again.*ResultStore.executor\(\).*write the results", one) for one in told
        )

    def test_another_frame_of_the_same_rows_is_no_second_evaluation_nor_is_one_with_a_store(
        self, spark: Any, caplog: Any, tmp_path: Any
    ) -> None:
        stored = async_pandas_udf(look, "long", store=ResultStore.executor(), version=str(tmp_path))
        for run in (by_operator(rows(spark, 2), async_pandas_udf(look, "long")) for _ in range(2)):
            run()
        twice = by_operator(rows(spark, 2), stored)
        twice(), twice()
        assert service.calls.total() == 72
        assert "second time" not in caplog.text


class TestLimitsOfAllQueries:
    @both
    @pytest.mark.parametrize("form", [*OF_FRAMES, by_sql])
    def test_no_more_calls_are_in_flight_than_the_job_may_have(self, spark: Any, form: Any, partitions: int) -> None:
        form(rows(spark, partitions), async_pandas_udf(look, "long", job_capacity=3))()
        assert service.calls.total() == 24
        assert service.most == 3

    @both
    @pytest.mark.parametrize(("by", "permits"), [(None, 12), ("tenant", 6)])
    def test_no_more_calls_begin_than_a_rate_says(self, spark: Any, by: Any, permits: int, partitions: int) -> None:
        """Of twice as many as a second lets begin the last ones begin in the next."""
        udf = async_pandas_udf(look, "long", rate_limit=RateLimit(permits, by=by))
        before = time.monotonic()
        by_operator(rows(spark, partitions), udf)()
        assert len(service.began) == 24
        assert max(service.began) - before >= 1


class TestTheCoordinator:
    def test_it_is_one_of_this_process_for_a_server_on_this_machine(self, spark: Any) -> None:
        assert runs_here(spark)
        first, again = (coordinators.coordinator_url(None, spark) for _ in range(2))
        assert "@127.0.0.1:" in first
        assert first == again

    def test_one_that_cannot_be_reached_is_named(self, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """No row is lost, and nothing hangs."""
        monkeypatch.setattr(
            "asyncudf._limits.coordinator.client.Coordinator.__init__.__kwdefaults__", {"patience": 0.2}
        )
        nobody = "redis://:secret@127.0.0.1:1/0"
        udf = async_pandas_udf(look, "long", job_capacity=2, coordinator=nobody)
        with pytest.raises(Exception, match=r"the coordinator at redis://\S+:1/0 has not answered for") as told:
            by_operator(rows(spark, 2), udf)()
        assert "secret" not in str(told.value)
        assert not service.calls


class Remembers(AsyncFunction):
    """What it opens is of the task alone."""

    async def open(self, context: Any) -> None:
        from tasks_call_this import opened

        self.loop, self.partition = asyncio.get_running_loop(), context.partition
        opened.append((id(self), self.partition, id(self.loop)))

    async def async_invoke(self, row: dict[str, Any], result: Any) -> None:
        assert asyncio.get_running_loop() is self.loop
        result.complete([{"key_again": row["key"], "of": self.partition}])


def by_dead_letters(df: Any, udf: Any) -> Query:
    stream = AsyncStream(df).ordered_wait(udf.with_options(on_error="dead_letter"), "key", "tenant")
    return stream.to_df


class TestCancelled:
    """Sail ends a task only when that gives its next row, and drops batches without rows."""

    @pytest.mark.parametrize("form", [by_operator, by_chain, by_sink, by_dead_letters])
    @pytest.mark.parametrize("fails", [False, True], ids=["results", "errors"])
    def test_calls_end_with_the_query(
        self, spark: Any, monkeypatch: pytest.MonkeyPatch, form: Any, fails: bool
    ) -> None:
        """A sink, and a chain with dead letters, give rows only at their end, and called for all rows."""
        monkeypatch.setattr(bridge, "SILENCE", 0.1)

        @contextlib.asynccontextmanager
        async def counted() -> AsyncIterator[None]:
            import tasks_call_this

            tasks_call_this.open += 1
            try:
                yield
            finally:
                tasks_call_this.open -= 1

        async def lingers(key: int, tenant: int, client: Any) -> int:
            import asyncio

            from tasks_call_this import begin

            begin(key)
            await asyncio.sleep(0.01)
            return 1 // (not fails)

        service.open = 0
        udf = async_pandas_udf(
            lingers, "long", capacity=1, on_error="null", max_failures=1.0, resources={"client": counted}
        )
        run = form(rows(spark, 2, 4000), udf)
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            query = thread.submit(run)
            while service.calls.total() < 20 and not query.done():
                time.sleep(0.01)
            spark.interruptAll()
            with pytest.raises(Exception, match="operation not found"):
                query.result()
        end = time.monotonic() + 30
        while service.open:  # else its calls would be among those of the next test
            assert time.monotonic() < end
            time.sleep(0.01)
        assert service.calls.total() < 2000


class TestSideBySide:
    def test_each_task_has_its_own_function_and_loop_and_knows_its_partition(self, spark: Any) -> None:
        service.opened = []
        found = ordered_wait(rows(spark, 4), Remembers(), "key", returnType="key_again long, of long").collect()
        functions, partitions, loops = (set(one) for one in zip(*service.opened, strict=True))
        assert [len(functions), partitions, len(loops)] == [4, {0, 1, 2, 3}, 4]
        assert {(row.key // 6, row.of) for row in found} == {(n, n) for n in range(4)}

    @pytest.mark.parametrize("form", [by_operator, by_column])
    def test_equal_keys_of_several_tasks_are_called_once(self, spark: Any, form: Any, tmp_path: Any) -> None:
        df = spark.range(0, 400, 1, 4).select((sf.col("id") % 10).alias("key"), sf.lit(0).alias("tenant"))
        for store in (ResultStore.disk(str(tmp_path / "store")), ResultStore.executor()):
            service.forget()
            udf = async_pandas_udf(look, "long", store=store, version=str(tmp_path))
            assert len(form(df, udf)()) == 400
            assert service.calls == dict.fromkeys(range(10), 1)

    def test_two_queries_at_once_share_a_store_too(self, spark: Any, tmp_path: Any) -> None:
        udf = async_pandas_udf(look, "long", store=ResultStore.executor(), version=str(tmp_path))
        queries = [threading.Thread(target=by_operator(rows(spark, 2), udf)) for _ in range(3)]
        for query in queries:
            query.start()
        for query in queries:
            query.join()
        assert service.calls == dict.fromkeys(range(24), 1)

    def test_a_query_that_fails_leaves_the_one_beside_it_alone(self, spark: Any) -> None:
        service.has_begun, service.has_failed = threading.Event(), threading.Event()

        async def goes_on(key: int, tenant: int) -> int:
            from tasks_call_this import has_begun, has_failed

            has_begun.set()
            assert await asyncio.to_thread(has_failed.wait, 60)
            return key

        async def fails(key: int, tenant: int) -> int:
            raise KeyError(key)

        found: list[Any] = []
        run = by_operator(rows(spark, 4), async_pandas_udf(goes_on, "long"))
        beside = threading.Thread(target=lambda: found.extend(run()))
        beside.start()
        assert service.has_begun.wait(60)
        environment = dict(os.environ)
        with pytest.raises(Exception, match="fails failed in attempt 1, partition"):
            by_operator(rows(spark, 2), async_pandas_udf(fails, "long"))()
        service.has_failed.set()
        beside.join()
        assert len(found) == 24
        assert dict(os.environ) == environment

    def test_an_error_shows_the_users_frames_and_none_of_the_librarys(self, spark: Any) -> None:
        """What Sail makes of a long traceback is cut in the middle."""

        async def fails(key: int) -> int:
            return {}[key]  # type: ignore[no-any-return]

        with pytest.raises(Exception, match="fails failed in attempt 1") as told:
            ordered_wait(rows(spark, 2), fails, "key").collect()
        assert __file__ in str(told.value)
        assert "asyncudf/_" not in str(told.value)

    def test_nothing_of_a_task_stays(self, spark: Any) -> None:
        by_operator(rows(spark, 4), async_pandas_udf(look, "long"))()
        names = {thread.name for thread in threading.enumerate() if thread.name.startswith("asyncudf")}
        assert names <= {"asyncudf-coordinator"}
        assert len(running_task._uses) <= running_task.TASKS


PROGRAM = """
import os, sys
from pyspark.sql import SparkSession
from asyncudf import Budget, async_pandas_udf, ordered_wait
from asyncudf._spark.coordinators import coordinator_url

address, folder = sys.argv[1:]
spark = SparkSession.builder.remote(address).getOrCreate()

async def look(id: int) -> int:
    open(os.path.join(folder, f"{os.getpid()}-{os.urandom(8).hex()}"), "w").close()
    return id

udf = async_pandas_udf(look, budget=Budget(3, "calls"), on_spent="null", on_error="null")
for partitions in (2, 4):
    frame = ordered_wait(spark.range(0, 20, 1, partitions), udf, "id")
    for _ in range(2):
        frame.collect()
print(coordinator_url(None, spark).rpartition("@")[2].partition("/")[0], flush=True)
"""


class TestAServerBesideUs:
    @pytest.fixture
    def server(self) -> Iterator[tuple[int, str]]:
        """The process of a server of its own, and its address."""
        program = (
            "import sys; from pysail.spark import SparkConnectServer; server = SparkConnectServer('127.0.0.1', 0); "
            "server.start(background=True); print(*server.listening_address, flush=True); sys.stdin.read()"
        )
        started = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        with started:
            assert started.stdin is not None
            assert started.stdout is not None
            host, port = started.stdout.readline().split()
            yield started.pid, f"sc://{host}:{port}"
            started.stdin.close()

    def test_its_tasks_share_a_coordinator_of_the_client_which_ends_with_it(self, server: Any, tmp_path: Any) -> None:
        pid, address = server
        calls = tmp_path / "calls"
        calls.mkdir()
        (tmp_path / "program.py").write_text(PROGRAM)  # with `python -c` the client of Spark 4.2 takes us for doctests
        ran = subprocess.run(
            [sys.executable, str(tmp_path / "program.py"), address, str(calls)], capture_output=True, text=True
        )
        assert ran.returncode == 0, ran.stderr
        assert {int(call.name.partition("-")[0]) for call in calls.iterdir()} == {pid}
        assert len([*calls.iterdir()]) == 4 * 3
        host, _, port = ran.stdout.strip().rpartition(":")
        end = time.monotonic() + 30
        while is_open(host, int(port)):
            assert time.monotonic() < end, "the coordinator has outlived its client"


def is_open(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=1):
        return True
    return False
