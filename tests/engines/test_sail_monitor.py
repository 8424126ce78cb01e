"""A monitor of jobs on Sail: tasks have no TaskContext there, and their logs cannot be read."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from asyncudf import AsyncStream, OptionError, async_pandas_udf, async_sink, monitor, ordered_wait, unordered_wait
from asyncudf._spark.monitoring.task_report import REGISTRY
from tests.kit.sail import session_at

pysail = pytest.importorskip("pysail.spark", reason="Sail is not installed: scripts/test --sail")
called: Any = sys.modules.setdefault(
    "called_on_sail", types.ModuleType("called_on_sail")
)  # seen by the server, in here
SERVER = """
import sys
from pysail.spark import SparkConnectServer
server = SparkConnectServer("127.0.0.1", 0)
server.start(background=True)
print(server.listening_address[1], flush=True)
sys.stdin.read()
"""
ELSEWHERE = f"import sys; sys.modules['asyncudf'] = None\n{SERVER}"  # a server that cannot import it


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = pysail.SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    yield server.listening_address[1]
    server.stop()


@pytest.fixture(scope="module")
def spark(port: int) -> Iterator[Any]:
    session = session_at(port)
    yield session
    session.stop()


@contextmanager
def server_process(program: str) -> Iterator[Any]:
    """A session of a server that is a process of its own."""
    process = subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    with process:
        assert process.stdout is not None
        session = session_at(int(process.stdout.readline()))
        yield session
        session.stop()
        process.kill()


class Asked:
    """A function that counts its calls; row 7 fails where it is said to."""

    def __init__(self) -> None:
        called.keys = self.keys = []
        called.gate = self.gate = threading.Event()

    def until(self, reached: Callable[[], bool]) -> None:
        end = time.monotonic() + 30
        while not reached():
            assert time.monotonic() < end
            time.sleep(0.01)


async def look(key: int) -> float:
    import called_on_sail  # type: ignore[import-not-found]

    called_on_sail.keys.append(key)
    return key / 2


async def fails_at_7(key: int) -> float:
    if key == 7:
        raise ValueError(key)
    return key / 2


async def waits_at_gate(key: int) -> float:
    import asyncio

    import called_on_sail

    called_on_sail.keys.append(key)
    await asyncio.to_thread(called_on_sail.gate.wait, 60)
    return key / 2


@pytest.fixture(autouse=True)
def asked() -> Iterator[Asked]:
    asked = Asked()
    yield asked
    asked.gate.set()


def in_sql(df: Any) -> Any:
    async_pandas_udf(look, "double", deterministic=True).register(df.sparkSession, "look")
    df.createOrReplaceTempView("keys")
    return lambda: df.sparkSession.sql("select look(id) from keys").collect()


def sent(df: Any) -> Any:
    return lambda: async_sink(df, look, "id")


USES = {
    "column": lambda df: df.select(async_pandas_udf(look, "double", deterministic=True)("id")).collect,
    "column in SQL": in_sql,
    "ordered_wait": lambda df: ordered_wait(df, look, "id", returnType="double").collect,
    "unordered_wait": lambda df: unordered_wait(df, look, "id", returnType="double").collect,
    "chain": lambda df: AsyncStream(df).unordered_wait(look, "id", returnType="double").to_df().collect,
    "sink": sent,
}


@pytest.mark.parametrize("use", USES)
def test_what_the_monitor_counts_is_what_was_called(spark: Any, asked: Asked, use: str) -> None:
    """It said "0 functions". A function in SQL is pickled before there is a monitor."""
    run_it = USES[use](spark.range(0, 300, 1, 2))
    with monitor(spark) as run:
        run_it()
    (function,) = run.metrics["functions"]
    assert (function["rows"], function["attempts"]) == (300, 300)
    assert function["tasks"]["succeeded"] == 2
    assert function["given_up"] == 0
    assert sorted(asked.keys) == list(range(300))
    assert run.manifest()["complete"]


def test_figures_come_while_tasks_run_and_jobs_outside_are_not_counted(spark: Any, asked: Asked) -> None:
    df = spark.range(0, 40, 1, 2)
    unordered_wait(df, look, "id", returnType="double").collect()
    asked.keys.clear()
    job = threading.Thread(target=unordered_wait(df, waits_at_gate, "id", returnType="double").collect)
    with monitor(spark) as run:
        job.start()
        asked.until(lambda: len(asked.keys) == 40)
        asked.until(lambda: [one["tasks"]["running"] for one in run.metrics["functions"]] == [2])
        asked.gate.set()
        job.join()
    unordered_wait(df, look, "id", returnType="double").collect()
    assert [(one["name"], one["rows"]) for one in run.metrics["functions"]] == [("waits_at_gate", 40)]
    assert not os.path.exists(REGISTRY.notice or "")


def test_monitors_that_are_nested_or_follow_each_other_count_their_own(spark: Any) -> None:
    df = ordered_wait(spark.range(0, 40, 1, 2), look, "id", returnType="double")
    with monitor(spark) as outer:
        df.collect()
        with monitor(spark) as inner:
            df.collect()
        df.collect()
    with monitor(spark) as after:
        df.collect()
    assert [run.metrics["functions"][0]["rows"] for run in (outer, inner, after)] == [120, 40, 40]


def test_a_job_that_outlives_the_inner_of_two_monitors_goes_on_reporting_to_the_outer(spark: Any, asked: Asked) -> None:
    job = threading.Thread(target=unordered_wait(spark.range(40), waits_at_gate, "id", returnType="double").collect)
    with monitor(spark) as outer:
        with monitor(spark):
            job.start()
            asked.until(lambda: len(asked.keys) == 40)
        asked.gate.set()
        job.join()
    (function,) = outer.metrics["functions"]
    assert (function["rows"], function["tasks"]["succeeded"], function["tasks"]["lost"]) == (40, 1, 0)


def test_a_job_outlives_the_first_of_two_monitors_in_two_threads(spark: Any, asked: Asked) -> None:
    """The second said of its own job for ever that it runs: the first, through which it reported, was closed."""
    job = threading.Thread(target=unordered_wait(spark.range(40), waits_at_gate, "id", returnType="double").collect)
    with contextlib.ExitStack() as first:
        first.enter_context(monitor(spark))
        with monitor(spark) as second:
            job.start()
            asked.until(lambda: len(asked.keys) == 40)
            first.close()
            asked.gate.set()
            job.join()
    (function,) = second.metrics["functions"]
    assert (function["rows"], function["tasks"]["succeeded"], function["tasks"]["running"]) == (40, 1, 0)
    assert not [one for one in threading.enumerate() if one.name == "asyncudf-monitor"]


def test_a_job_that_fails_says_so_beside_one_that_goes_on(spark: Any, asked: Asked) -> None:
    df = spark.range(0, 40, 1, 2)
    good = threading.Thread(target=unordered_wait(df, waits_at_gate, "id", returnType="double").collect)
    with monitor(spark) as run:
        good.start()
        asked.until(lambda: len(asked.keys) == 40)
        with pytest.raises(Exception, match="7"):
            ordered_wait(df, fails_at_7, "id", returnType="double").collect()
        asked.gate.set()
        good.join()
    going, failed = run.metrics["functions"]
    assert (going["rows"], going["tasks"]["succeeded"], going["given_up"]) == (40, 2, 0)
    assert (failed["tasks"]["failed"], failed["given_up"]) == (1, 1)
    assert run.manifest()["reason"] == "on_error"


def test_a_limit_stops_the_calls_and_the_figures_say_how_many_were_made(spark: Any, asked: Asked) -> None:
    endless = unordered_wait(spark.range(0, 1_000_000, 1, 1), look, "id", returnType="double", capacity=10)
    with monitor(spark) as run:
        assert len(endless.limit(5).collect()) == 5
    (function,) = run.metrics["functions"]
    assert function["tasks"]["stopped"] == 1
    assert function["attempts"] == len(asked.keys) < 1_000_000


def test_progress_counts_the_tasks_that_have_ended(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Sail does not say how many there are; it was "0 tasks" at the end."""
    with monitor(spark, progress=True):
        ordered_wait(spark.range(0, 40, 1, 2), look, "id", returnType="double").collect()
    assert "look: 40 rows" in (shown := capsys.readouterr().err)
    assert "(2 tasks, " in shown


def test_tasks_leave_the_signals_of_the_servers_process_alone(spark: Any, asked: Asked) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    job = threading.Thread(target=unordered_wait(spark.range(2), waits_at_gate, "id", returnType="double").collect)
    job.start()
    asked.until(lambda: len(asked.keys) == 2)
    assert signal.getsignal(signal.SIGUSR1) is before
    asked.gate.set()
    job.join()


def test_a_server_that_is_another_process_of_this_machine_reports() -> None:
    with server_process(SERVER) as spark, monitor(spark) as run:
        ordered_wait(spark.range(0, 40, 1, 2), fails_at_7, "id", returnType="double", on_error="null").collect()
    (function,) = run.metrics["functions"]
    assert (function["rows"], function["failures"]) == (40, 1)


def test_its_end_asks_the_server_nothing(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It asked for logs, which this engine does not keep: after a server that had ended, for ten minutes."""
    with monitor(spark) as run:
        ordered_wait(spark.range(4), look, "id", returnType="double").collect()
        asked: list[str] = []
        for name in ("_execute", "_execute_and_fetch", "_execute_and_fetch_as_iterator", "_analyze"):
            monkeypatch.setattr(spark.client, name, lambda *_, name=name, **__: asked.append(name) or iter(()))
    assert (asked, run.metrics["functions"][0]["rows"]) == ([], 4)


def test_tasks_that_cannot_reach_the_driver_are_told_of_at_once(caplog: pytest.LogCaptureFixture) -> None:
    with server_process(ELSEWHERE) as spark, monitor(spark) as run:
        (told,) = [one.getMessage() for one in caplog.records if one.name == "asyncudf"]
        assert told.startswith("asyncudf.monitor gets no figures from this session, and its jobs run without it: Sail")
        assert "OpenTelemetry" in told
    assert run.metrics["functions"] == []
    assert not os.path.exists(REGISTRY.notice or "")


def test_a_session_that_has_ended_is_refused(port: int) -> None:
    ended = session_at(port)
    ended.sql("select 1").collect()
    ended.stop()
    with pytest.raises(OptionError, match="monitor takes a session that runs"), monitor(ended):
        pass
