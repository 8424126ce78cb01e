"""Each operator of a chain is opened before it is called, closed after it, and is an instance of its own."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import asyncio
import contextlib

import pytest

from asyncudf import AsyncFunction, ProcessFunction
from tests.kit.frames import tuples

pytestmark = pytest.mark.spark


class Lives(AsyncFunction):
    def __init__(self, name, journal):
        self.name = name
        self.journal = journal
        self.state = "not open"

    async def open(self, context):
        self.state = "open"
        self.journal.write("open", self.name)

    async def async_invoke(self, value, result_future):
        await asyncio.sleep(0)
        result_future.complete([{f"with_{len(value)}": self.state}])

    async def close(self):
        self.state = "closed"
        self.journal.write("close", self.name)


class LivesPlainly(ProcessFunction):
    def __init__(self, name, journal):
        self.name = name
        self.journal = journal

    async def open(self, context):
        await asyncio.sleep(0)
        self.journal.write("open", self.name)

    def process_element(self, value, context, collector):
        collector.collect(value)

    def close(self):
        self.journal.write("close", self.name)


def test_operators_open_from_the_tail_to_the_head_and_close_from_the_head_to_the_tail(spark, stream_of, journal):
    @contextlib.asynccontextmanager
    async def client():
        journal.write("open", "client")
        yield
        journal.write("close", "client")

    async def first(id: int, client) -> int:
        return id

    stream = stream_of(spark.range(0, 3, 1, 1)).ordered_wait(first, resources=client)
    stream = stream.process(LivesPlainly("plain", journal))
    stream = stream.unordered_wait(Lives("middle", journal), returnType="with_2 string")
    stream = stream.filter(lambda row: True).ordered_wait(Lives("last", journal), returnType="with_3 string")
    assert tuples(stream) == [(i, i, "open", "open") for i in range(3)]
    names = ["last", "middle", "plain", "client"]
    assert journal.lines == [f"open {name}" for name in names] + [f"close {name}" for name in reversed(names)]


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
