"""What is recorded of the calls of a sample: how many are made, and what came of each attempt."""

import asyncio
import random
from typing import Any

import pandas as pd
import pytest

from asyncudf import RateLimit, RetryStrategy, RuntimeContext
from asyncudf._chain.chain import Chain
from asyncudf._chain.environment import TaskEnvironment
from asyncudf._chain.function_plan import FunctionPlan
from asyncudf._chain.plan import ChainPlan
from asyncudf._chain.results import SingleOutput
from asyncudf._engine.calls.recorder import Recorder
from asyncudf._engine.loop.event_loops import run_to_end
from asyncudf._engine.loop.virtual_clock import VirtualClockLoop
from asyncudf._engine.operators.outputs import StreamOutput
from asyncudf._functions.options import Options
from asyncudf._functions.signature import read_function


class Nowhere(StreamOutput):
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
        recorders.append(Recorder(operator.counters, most, clock=loop.time))
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


def test_what_each_attempt_took_is_recorded():
    class RefusedError(Exception):
        status = 429
        retry_after = 2.0

    async def busy(x: int, context: RuntimeContext) -> int:
        await asyncio.sleep(1.0)
        if context.attempt_number == 1 and asyncio.get_running_loop().time() < 1.5:
            raise RefusedError
        context.spend(0.5)
        return x

    recorder = recorded(busy, [1, 2], 2, rate_limit=RateLimit(1000, cost=3, scope="task"))
    assert [(one.began, one.seconds, one.is_refused) for one in recorder.records] == [
        (pytest.approx(0.0), pytest.approx(1.0), True),
        (pytest.approx(0.0), pytest.approx(1.0), True),
        (pytest.approx(3.0), pytest.approx(1.0), False),
        (pytest.approx(3.0), pytest.approx(1.0), False),
    ]
    assert [one.costs for one in recorder.records] == [(3.0,)] * 4
    assert [one.spent for one in recorder.records] == [{}, {}, {"USD": 0.5}, {"USD": 0.5}]
