"""What the benchmarks call a batch of so many rows is one, as the program that makes the calls sees them."""

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import benchmarks
from benchmarks._calls import Calls

pytestmark = pytest.mark.spark

cloudpickle.register_pickle_by_value(benchmarks)  # workers cannot import it


def test_the_same_calls_come_in_large_and_in_small_batches(spark: SparkSession) -> None:
    # The program in the worker fails at a batch of another size.
    calls = Calls(spark, [0.0] * 25)
    for each in (calls, calls.in_batches_of(10)):
        assert each.gather().values["calls/s"] > 0
