"""The ways in which the benchmarks make calls in Spark: each makes all of them, and no more at a time than it may."""

import json
import urllib.request

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import benchmarks
from benchmarks._calls import Calls
from benchmarks._http_server import http_server

pytestmark = [pytest.mark.spark, pytest.mark.services]

cloudpickle.register_pickle_by_value(benchmarks)  # workers cannot import it
ROWS, CAPACITY = 30, 4


@pytest.mark.parametrize("way", ["column", "ordered", "unordered", "handwritten", "gather"])
def test_each_way_makes_a_request_of_each_row_and_as_many_at_a_time_as_are_allowed(
    spark: SparkSession, way: str
) -> None:
    with http_server(0.005) as url:
        sample = getattr(Calls(spark, [0.005] * ROWS, CAPACITY, url=url), way)()
        with urllib.request.urlopen(f"{url}calls") as answer:
            assert json.load(answer) == {"calls": ROWS, "most": CAPACITY}
    assert sample.values["requests/s"] > 0
    assert 0 < sample.values["CPU us/request of the task"] < sample.values["CPU us/request"]
