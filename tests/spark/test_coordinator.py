"""The coordinator that a driver starts: tasks share it, faults pause or end a job, nothing of it stays or is shown."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from asyncudf._limits.coordinator.server import CoordinatorServer
from tests.kit.drivers import SharedDriver, driver, next_line

pytestmark = [pytest.mark.spark, pytest.mark.services]


def is_there(url: str) -> bool:
    parts = urlsplit(url)
    with contextlib.suppress(OSError), socket.create_connection((parts.hostname, parts.port), timeout=1.0):
        return True
    return False


# What programs begin with: a job whose tasks tell the server that they run, and then wait.
WAITS = """
from asyncudf._spark.coordinators import coordinator_url

class Waits:
    def __init__(self, url):
        self.url = url
    def __call__(self, batches):
        import redis
        redis.Redis.from_url(self.url).incr("tasks")
        time.sleep(60)
        yield from batches

def run(spark, url):
    frame = spark.range(0, 2, 1, 2).mapInArrow(Waits(url), "id bigint")
    threading.Thread(target=frame.collect, daemon=True).start()

"""


def tasks(url: str) -> int:
    with redis.Redis.from_url(url) as connection:
        return int(connection.get("tasks") or 0)  # type: ignore[arg-type]


def test_spark_connect_in_this_process_shares_one(connect: SharedDriver) -> None:
    """`remote("local[2]")`: its workers are here, and the calls of both tasks count together."""
    program = """
@async_pandas_udf("long", max_calls=20, on_spent="null")
async def call(id):
    return id

print(sorted(row.n is None for row in spark.range(0, 40, 1, 2).select(call("id").alias("n")).collect()).index(True))
"""
    assert connect.run(program) == "20\n"


def shown_in(password: str, data: bytes) -> bool:
    """Whether it can be read of some text: also in parts, or as the numbers of bytes."""
    text = data.decode(errors="replace")
    parts = [password[at : at + 16] for at in range(0, len(password) - 15, 4)]
    return any(part in text or ", ".join(str(ord(one)) for one in part) in text for part in parts)


# One application after the other in a process. Of the first there is all that Spark writes and shows; the other one
# runs a job, and has forked, when it is killed.
APPLICATIONS = """
import urllib.request
folder, shared = sys.argv[1:]

@async_pandas_udf("long", max_calls=8, coordinator=shared)
async def call(id: int) -> int:
    return id

def five_calls_in_each_query(spark):
    assert len(spark.range(0, 5, 1, 1).select(call("id")).collect()) == 5
    assert spark.range(0, 5, 1, 1).select(call("id")).rdd.count() == 5  # no SQL query, a stage

os.mkdir(folder + "/events")
builder = SparkSession.builder.master("local[2]").config("spark.eventLog.enabled", "true").config(
    "spark.eventLog.dir", "file://" + folder + "/events").config("spark.eventLog.compress", "false").config(
    "spark.eventLog.rolling.enabled", "false").config("spark.local.dir", folder + "/local").config(
    "spark.ui.port", "0").config("spark.ui.showConsoleProgress", "false")
spark = builder.getOrCreate()
url = coordinator_url(None, spark)
tell(url)

class Passes:
    def __init__(self, url):
        self.url = url
    def __call__(self, batches):
        yield from batches

frame = spark.range(0, 10, 1, 2).mapInArrow(Passes(url), "id bigint")
frame.collect()
five_calls_in_each_query(spark)
plan = frame._jdf.queryExecution()
pages = [plan.toString(), plan.logical().toJSON(), plan.executedPlan().toJSON(), repr([url])]
for path in ("environment/", "SQL/execution/?id=0", "stages/stage/?id=0&attempt=0", "jobs/job/?id=0"):
    pages.append(urllib.request.urlopen(spark.sparkContext.uiWebUrl + "/" + path).read().decode())
for number, page in enumerate(pages):
    with open(f"{folder}/page{number}", "w") as file:
        file.write(page)
tell("done")
sys.stdin.readline()
spark.stop()

spark = session(SparkSession.builder.master("local[2]"))
five_calls_in_each_query(spark)
url = coordinator_url(None, spark)
tell(url)
sys.stdin.readline()
run(spark, url)
if os.fork() == 0:
    time.sleep(300)
time.sleep(300)
"""


def test_each_application_has_its_own_which_is_shown_nowhere_and_ends_with_it(tmp_path: Path, until: Any) -> None:
    """Its password is in no plan, event log, page, file or log of Spark, nor in what processes show of themselves.

    With a server of the user's, applications count for themselves.
    """
    with (
        (tmp_path / "log").open("w") as log,
        contextlib.closing(CoordinatorServer()) as shared,
        driver(WAITS + APPLICATIONS, tmp_path, shared.url, stderr=log) as started,
    ):
        first = next_line(started)
        password = urlsplit(first).password
        assert password is not None
        assert is_there(first)
        assert next_line(started) == "done"
        for path in Path("/proc").glob("[0-9]*"):
            for name in ("cmdline", "environ"):
                with contextlib.suppress(OSError):
                    assert not shown_in(password, (path / name).read_bytes()), path
        assert files_with(password, tmp_path) == []
        print(file=started.stdin, flush=True)
        second = next_line(started)
        until(lambda: not is_there(first), "the server of the stopped application is gone")
        assert is_there(second)
        assert len(list(tmp_path.glob("page*"))) == 8
        assert list(tmp_path.glob("events/*"))
        assert files_with(password, tmp_path) == []
        print(file=started.stdin, flush=True)
        until(lambda: tasks(second) == 2, "both tasks run")
        os.kill(started.pid, signal.SIGKILL)
        until(lambda: not is_there(second), "the server is gone")
        with redis.Redis.from_url(shared.url) as connection:
            assert len(connection.keys("*:budget:*")) == 4, "one for each query of an application"  # type: ignore[arg-type]


def files_with(password: str, folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and shown_in(password, path.read_bytes())]
