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
@pytest.mark.parametrize("price", ["double", "decimal(5, 2)"], ids=["built", "by pyarrow"])
@pytest.mark.usefixtures("new_workers")
def test_a_new_worker_is_ready_before_its_first_call(spark, door, price):
    """pyarrow imports pandas with its first array: a quarter of a second in which every call would stand still.

    So that is done before, if a type of the result needs it. And a full collection of garbage looks at all that is
    imported, unless it is frozen.
    """

    @async_pandas_udf(f"has_pandas boolean, frozen int, price {price}")
    async def found(id: int):  # noqa: A002
        return {"has_pandas": "pandas" in sys.modules, "frozen": gc.get_freeze_count(), "price": None}

    (result,) = (row.result for row in door(spark.range(0, 1, 1, 1), found, "id").collect())
    assert result.has_pandas == (price != "double")
    assert result.frozen > 10_000
