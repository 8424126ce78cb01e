"""`max_calls`: what a query may cost at most. Virtual clock."""

from __future__ import annotations

import pytest

from asyncudf import RetryStrategy
from asyncudf.testing import ManualFunction, OperatorHarness, run_rows
from tests.kit.engines import Engine
from tests.kit.errors import task_fails
from tests.kit.limited import Service, ThrottledError


@pytest.mark.parametrize("seconds", [0.0, 1.0])
@pytest.mark.parametrize("capacity", [1, 3, 100])
def test_one_call_more_is_not_made(seconds: float, capacity: int) -> None:
    service = Service(seconds)
    assert len(run_rows(service, range(20), capacity=capacity, max_calls=20)) == 20
    service.calls.clear()
    with task_fails() as caught:
        run_rows(service, range(21), capacity=capacity, max_calls=20)
    assert len(service.calls) == 20
    told = str(caught.value)
    assert "Service has made the 20 calls that max_calls= allows in one query, and there are rows left" in told
    assert "asyncudf.dry_run" in told


def test_results_leave_until_then() -> None:
    function = ManualFunction()
    with OperatorHarness(function, capacity=1, max_calls=2) as harness:
        harness.put("a", "b", "c")
        harness.complete("a", "A")
        assert harness.output == ["A"]
        harness.complete("b", "B")
        assert harness.output == ["A", "B"]
        with task_fails():
            assert harness.is_done


def test_further_attempts_count() -> None:
    retry = RetryStrategy.fixed_delay(5, 1.0)
    assert run_rows(Service(0.0, down=(0, 3)), [1], retry=retry, max_calls=4) == [3]
    with task_fails(match="has made the 3 calls"):
        run_rows(Service(0.0, down=(0, 3)), [1], retry=retry, max_calls=3)


def test_and_those_that_were_throttled() -> None:
    service = Service(0.0, down=(0, 15), error=ThrottledError(10))
    with task_fails(match="has made the 2 calls"):
        run_rows(service, [1], max_calls=2)
    assert service.times == [0, 10]


def test_a_micro_batch_is_one() -> None:
    import pandas as pd

    async def plus(x: pd.Series) -> pd.Series:
        return x + 1

    assert run_rows(plus, range(10), returnType="long", batch_size=5, max_calls=2) == list(range(1, 11))


def test_a_call_that_may_not_be_tried_again_is_counted() -> None:
    """It was in no place when the job ended: two attempts of no call."""
    retry = RetryStrategy.fixed_delay(5, 1.0)
    engine = Engine(Service(0.0, down=(0, 10)), max_calls=3, capacity=1, retry=retry)
    engine.feed([1])
    engine.end()
    with task_fails("has made the 3 calls"):
        engine.run()
    engine.look()
    metrics = engine.counted["Service"]["metrics"]
    assert (metrics["calls"], metrics["attempts"], metrics["abandoned"]) == (1, 3, 1)
