"""Limits of the whole job when something breaks: a worker, the coordinator, a password; drivers that share a server."""

import contextlib
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
import redis

from asyncudf import RateLimit, async_pandas_udf, ordered_wait
from asyncudf._limits.coordinator.client import Coordinator
from asyncudf._limits.coordinator.server import CoordinatorServer
from asyncudf._spark import coordinators
from asyncudf._spark.coordinators import coordinator_url
from tests.kit.drivers import HEAD
from tests.kit.limited import ahead_of
from tests.kit.programs import run_program

pytestmark = [pytest.mark.spark, pytest.mark.services]

NOTE = """
import contextlib

def note(*words):
    file = os.open(JOURNAL, os.O_APPEND | os.O_CREAT | os.O_WRONLY)
    os.write(file, (" ".join(map(str, words)) + "\\n").encode())
    os.close(file)

@contextlib.asynccontextmanager
async def opened():
    note("open", time.time())
    yield

"""


def noted(journal, program, **names):
    """A program whose functions write to the journal; the names are variables of it."""
    set_names = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    return f"JOURNAL = {journal._path!r}\n{set_names}{NOTE}{program}"


def server_of(url):
    with redis.Redis.from_url(url) as connection:
        return connection.info("server")["process_id"]


@pytest.mark.promise("limits of the job")
def test_a_coordinator_that_is_killed_makes_nobody_unlimited(spark, journal, until, noting):
    """The job pauses until it is back, and goes on at its rate."""
    limit = RateLimit(50, burst=2)
    noted = noting(rate_limit=limit, job_capacity=20)
    noted_rows = ordered_wait(spark.range(0, 120, 1, 2), noted, "id")
    with ThreadPoolExecutor() as threads:
        running = threads.submit(noted_rows.collect)
        until(lambda: journal.count("call") >= 40, "calls")
        os.kill(server_of(coordinator_url(None, spark)), signal.SIGKILL)
        assert len(running.result()) == 120
    assert journal.count("call") == 120
    assert ahead_of(limit, journal.times("call"), since=journal.times("open")[0]) <= 2 * 2 + 4


def test_who_has_the_wrong_password_makes_no_call(spark, journal, spark_error, noting):
    password = urlsplit(coordinator_url(None, spark)).password
    url = coordinator_url(None, spark).replace(password, "guessed")
    noted = noting(rate_limit=RateLimit(50), coordinator=url)
    error = spark_error(spark.range(0, 10, 1, 2).select(noted("id")))
    assert "does not let us in" in error
    assert "guessed" not in error
    assert journal.count("call") == 0


def make_impatient():
    """From now on this process waits a second for its coordinator, not half a minute."""
    Coordinator.__init__.__kwdefaults__["patience"] = 1.0


class Impatient:
    """Makes the worker impatient that unpickles it."""

    def __reduce__(self):
        return make_impatient, ()


def test_a_job_fails_when_its_coordinator_does_not_come_back(spark, journal, until, spark_error):
    """With an error that names it and not its password; it never goes on without. The next query has another."""
    url, impatient = coordinator_url(None, spark), Impatient()
    assert url == coordinator_url(None, spark.newSession())
    (server,) = [one for one in coordinators._servers.values() if one.url == url]

    @async_pandas_udf(rate_limit=RateLimit(100, burst=2))
    async def noted(id: int) -> int:  # noqa: A002
        journal.write("call", impatient is None)
        return id

    with ThreadPoolExecutor() as threads:
        running = threads.submit(spark_error, spark.range(0, 100_000, 1, 2).select(noted("id")))
        until(lambda: journal.count("call") >= 20, "calls")
        os.killpg(server._watchdog.pid, signal.SIGKILL)
        error = running.result()
    assert f"the coordinator at redis://***@127.0.0.1:{urlsplit(url).port}/0 has not answered for 1 s" in error
    assert urlsplit(url).password not in error
    assert coordinator_url(None, spark) != url
    assert spark.range(0, 10, 1, 2).select(noted("id")).distinct().count() == 10


def test_two_jobs_share_what_has_a_name(spark, cluster, journal, tmp_path):
    """On one Redis: a limit with a name is that of both drivers, another is each one's own."""
    program = """
def call(word, limit, tasks=2):
    @async_pandas_udf(capacity=20, rate_limit=limit, coordinator=URL)
    async def noted(id: int) -> int:
        note(word, time.time())
        return id
    assert len(spark.range(0, 60, 1, tasks).select(noted("id")).collect()) == 60

call("warm", RateLimit(1000))
note("ready", time.time())
while open(JOURNAL).read().count("ready") < 2:
    time.sleep(0.02)
call("named", RateLimit(60, burst=2, name="the account"))
call("own", RateLimit(1, "day", burst=100), tasks=1)  # both jobs together would need permits of tomorrow
"""
    with contextlib.closing(CoordinatorServer()) as server:
        text = noted(journal, program, URL=server.url)
        other = tmp_path / "other.py"
        other.write_text(f"{HEAD}\nspark = session(SparkSession.builder)\n{text}")
        cluster.begin(text)
        run_program(spark, other, folder=tmp_path)
        cluster.finish()
    assert (journal.count("named"), journal.count("own")) == (120, 120)
    assert ahead_of(RateLimit(60), journal.times("named"), since=journal.times("ready")[-1]) <= 2 + 4
