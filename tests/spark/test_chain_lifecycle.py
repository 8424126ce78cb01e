"""Each operator of a chain is opened before it is called, closed after it, and is an instance of its own."""

import pytest

from asyncudf import AsyncFunction, ProcessFunction
from tests.kit.frames import tuples

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("interface", ["AsyncFunction", "ProcessFunction"])
def test_a_function_used_by_two_operators_is_an_instance_for_each(spark, stream_of, interface):
    class Calls(AsyncFunction):
        opened = 0

        async def open(self, context):
            self.opened += 1

        async def async_invoke(self, value, result_future):
            result_future.complete([{f"opened_{len(value)}": self.opened}])

    class Rows(ProcessFunction):
        opened = 0

        def open(self, context):
            self.opened += 1

        def process_element(self, value, context, collector):
            collector.collect({"opened_1": self.opened, "opened_2": value.get("opened_1")})

    stream, calls, rows = stream_of(spark.range(1)), Calls(), Rows()
    if interface == "AsyncFunction":
        stream = stream.ordered_wait(calls, returnType="opened_1 int").ordered_wait(calls, returnType="opened_2 int")
    else:
        stream = stream.process(rows, "opened_1 int, opened_2 int").process(rows)
    assert tuples(stream.select("opened_1", "opened_2")) == [(1, 1)]
