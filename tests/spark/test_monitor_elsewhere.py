"""monitor where the driver and the executors are apart: a cluster of processes, Spark Connect, a driver that dies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.kit.drivers import SharedDriver

pytestmark = pytest.mark.spark

WAITS = """
@asyncudf.async_pandas_udf(capacity=10)
async def waits(id: int) -> int:
    await asyncio.sleep(0.01)
    return id
"""


def ran(driver: SharedDriver, program: str) -> list[Any]:
    """What a program prints as JSON, one value in a line."""
    return [json.loads(line) for line in driver.run(WAITS + program).splitlines()]


JOB = """
with asyncudf.monitor(spark) as run:
    spark.range(0, 400, 1, 2).select(waits("id")).collect()
    asyncudf.unordered_wait(spark.range(0, 400, 1, 2), waits).collect()
    during = run.metrics
print(json.dumps(run.metrics))
print(json.dumps([row.asDict(True)["rows"] for row in run.to_df().collect()]))
spark.range(0, 400, 1, 2).select(waits("id")).collect()
print(json.dumps([one["rows"] for one in run.metrics["functions"]]))
"""


def check(printed: list[Any]) -> None:
    metrics, of_tasks, afterwards = printed
    assert [(one["rows"], one["calls"]) for one in metrics["functions"]] == [(400, 400), (400, 400)]
    assert [one["tasks"]["succeeded"] for one in metrics["functions"]] == [2, 2]
    assert [one["entry_point"] for one in metrics["functions"]] == ["column", "operator"]
    for function in metrics["functions"]:
        for task in function["per_task"]:
            assert sum(task["time"].values()) == pytest.approx(task["seconds"], abs=1e-3)
    assert sum(of_tasks) == 800
    assert afterwards == [400, 400]


def test_on_a_cluster(cluster: SharedDriver) -> None:
    """Executors in processes of their own tell the driver over the network that Spark itself uses."""
    check(ran(cluster, JOB))


def test_with_spark_connect(connect: SharedDriver) -> None:
    """Tasks tell what they did when they have ended; nothing else of the session is changed."""
    logging = "spark.sql.pyspark.worker.logging.enabled"
    told = f'print(json.dumps([spark.conf.get("{logging}", None), spark.conf.get("spark.asyncudf.monitor", None)]))\n'
    printed = ran(connect, told + JOB + told)
    assert printed[0] == printed[-1]
    check(printed[1:-1])


KEPT = """
async def odd(id):
    if id % 2:
        raise ValueError(id)
    return id

options = [
    "spark.sql.sources.bucketing.autoBucketedScan.enabled",
    "spark.sql.adaptive.applyFinalStageShuffleOptimizations",
]
spark.conf.set(options[0], "true")
with asyncudf.monitor(spark) as run, asyncudf.AsyncStream(spark.range(10)) as stream:
    sent = stream.ordered_wait(asyncudf.async_pandas_udf(odd, "long", on_error="dead_letter"), "id", as_="r")
    counts = [sent.to_df().count(), sent.side_output(asyncudf.DEAD_LETTERS).count()]
(function,) = run.metrics["functions"]
print(json.dumps([counts, function["rows"], function["dead_letters"], [spark.conf.get(one, None) for one in options]]))
spark.conf.unset(options[0])
"""


def test_a_chain_that_is_kept_over_spark_connect(connect: SharedDriver) -> None:
    """Spark plans what it caches in a clone of the session, whose logs nobody can read; the options are as before."""
    assert ran(connect, KEPT) == [[[5, 5], 10, 5, ["true", None]]]


RESTRICTED = """
import io, logging
from unittest import mock
from pyspark.errors import AnalysisException

Conf = type(spark.conf)

def refused(method):
    def call(self, key, *value):
        if sys._getframe(1).f_globals["__name__"].startswith("pyspark"):
            return method(self, key, *value)
        raise AnalysisException(f"[CONFIG_NOT_AVAILABLE] Configuration {key} is not available. SQLSTATE: 42K0I")
    return call

said = logging.StreamHandler(io.StringIO())
logging.getLogger("asyncudf").addHandler(said)
names = ("get", "set", "unset", "isModifiable")
with mock.patch.multiple(Conf, **{name: refused(getattr(Conf, name)) for name in names}):
    with asyncudf.monitor(spark) as run:
        with asyncudf.AsyncStream(spark.range(3)) as stream:
            kept = stream.ordered_wait(waits.with_options(on_error="dead_letter"), "id")
            found = [*kept.to_df().collect(), *kept.side_output(asyncudf.DEAD_LETTERS).collect()]
print(json.dumps([len(found), run.metrics["functions"], said.stream.getvalue().splitlines()]))
logging.getLogger("asyncudf").removeHandler(said)
"""


def test_a_session_that_lets_nobody_set_anything(connect: SharedDriver) -> None:
    """As serverless compute: the job runs, and one line says why there are no figures."""
    ((rows, functions, said),) = ran(connect, RESTRICTED)
    assert (rows, functions) == (3, [])
    assert len(said) == 1
    assert "gets no figures from this session" in said[0]
