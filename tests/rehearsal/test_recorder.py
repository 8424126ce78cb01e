"""What is recorded of the calls of a sample: how many are made, which attempts each has, what keeps others waiting."""

import asyncio
import random
from typing import Any

import pandas as pd
import pytest

from asyncudf import AsyncTimeoutError, RetryStrategy
from asyncudf._chain.chain import Chain
from asyncudf._chain.environment import TaskEnvironment
from asyncudf._chain.function_plan import FunctionPlan
from asyncudf._chain.plan import ChainPlan
from asyncudf._chain.results import SingleOutput
from asyncudf._engine.calls.recorder import Recorder
from asyncudf._engine.loop.event_loops import run_to_end
from asyncudf._engine.loop.virtual_clock import VirtualClockLoop
from asyncudf._engine.operators.outputs import Output
from asyncudf._functions.options import Options
from asyncudf._functions.signature import read_function


class Nowhere(Output):
    def collect(self, record: Any) -> None:
        pass


def recorded(function: Any, values: list[Any], most: int, **options: Any) -> Recorder:
    """Run a function on the virtual clock, and record at most so many calls."""
    loop = VirtualClockLoop()
    checked = Options.of({"on_error": "null", "capacity": 4, **options})
    plan = FunctionPlan(read_function(function, checked), checked, None)
    recorders = []

    async def main() -> None:
        environment = TaskEnvironment(loop, random.Random(0))
        chain = Chain(ChainPlan.of_function(plan, ["x"], [None]), environment, SingleOutput(Nowhere()))
        (operator,) = chain.counted.values()
        recorders.append(Recorder(operator.counters, most, clock=loop.time, without_processor=lambda: 0.0))
        operator.observe(recorders[0])
        chain.feed(((value,), None, None) for value in values)
        chain.end_of_input()
        await chain.run()

    run_to_end(loop, main(), 4)
    return recorders[0]


def test_rows_beyond_the_calls_of_a_sample_are_not_called():
    called = []

    async def heavy(x: pd.Series) -> pd.Series:
        called.append(len(x))
        return x

    recorder = recorded(heavy, [10] * 50, 5, batch_size=20, batch_weight=lambda x: x, max_batch_weight=20)
    assert called == [2] * 5  # by their weight, two rows are a batch
    assert (len(recorder.records), recorder.not_called) == (5, 40)


def test_calls_that_have_begun_get_all_their_attempts():
    called = []

    async def flaky(x: int) -> int:
        called.append(x)
        await asyncio.sleep(1.0)
        if called.count(x) < 3:
            raise ConnectionError("not now")
        return x

    recorder = recorded(flaky, [*range(10)], 4, retry=RetryStrategy.fixed_delay(3, 1.0))
    assert sorted(called) == sorted([0, 1, 2, 3] * 3)
    assert sorted(one.call for one in recorder.records) == sorted([0, 1, 2, 3] * 3)
    assert recorder.not_called == 6


def test_code_that_blocks_the_loop_takes_the_time_of_all_calls():
    async def blocks(x: int) -> int:
        loop: Any = asyncio.get_running_loop()
        loop.block(0.05)
        await asyncio.sleep(0.2)
        return x

    recorder = recorded(blocks, [*range(40)], 40)
    assert recorder.processor == pytest.approx(40 * 0.05, rel=0.2)


def test_code_that_awaits_does_not():
    async def waits(x: int) -> int:
        await asyncio.sleep(0.2)
        return x

    recorder = recorded(waits, [*range(40)], 40)
    assert recorder.processor < 1.0


def test_an_attempt_is_cut_by_its_limit_and_not_by_an_error_of_that_name():
    async def late(x: int) -> int:
        if x == 0:
            raise AsyncTimeoutError("the client's own")
        await asyncio.sleep(100.0)
        return x

    recorder = recorded(late, [0, 1], 2, attempt_timeout=1.0)
    assert [(one.seconds, one.is_cut) for one in recorder.records] == [(0.0, False), (1.0, True)]
