"""What must not happen while calls are in flight."""

import gc
import sys

import pytest

from asyncudf import async_pandas_udf
from tests.kit.doors import through

pytestmark = pytest.mark.spark


@pytest.fixture
def new_workers(spark, request):
    """Workers of another environment are new ones, and these have what Spark itself has imported."""
    conf, name = spark.sparkContext._jsc.sc().conf(), "spark.python.daemon.module"
    preloaded = conf.get(name)
    conf.set(name, "pyspark.daemon")
    spark.sparkContext.environment["NEW_WORKERS"] = request.node.name
    yield
    del spark.sparkContext.environment["NEW_WORKERS"]
    conf.set(name, preloaded)


@through("column", "ordered_wait")
@pytest.mark.usefixtures("new_workers")
def test_a_new_worker_is_ready_before_its_first_call(spark, door):
    """pyarrow imports pandas with its first array: a quarter of a second in which every call would stand still.

    And a full collection of garbage looks at all that is imported, unless it is frozen.
    """

    @async_pandas_udf("has_pandas boolean, frozen int")
    async def found(id: int):  # noqa: A002
        return {"has_pandas": "pandas" in sys.modules, "frozen": gc.get_freeze_count()}

    (result,) = (row.result for row in door(spark.range(0, 1, 1, 1), found, "id").collect())
    assert result.has_pandas
    assert result.frozen > 10_000
