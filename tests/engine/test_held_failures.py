"""A failure that the breaker holds back counts when the tasks of the job have been heard of after it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from asyncudf import CircuitBreaker, async_pandas_udf
from asyncudf._engine.calls.gatekeeper import Gatekeeper
from asyncudf._engine.calls.row import Row
from asyncudf._errors.failure import Failure
from asyncudf._observe.counters import TaskCounters


def test_a_failure_counts_when_the_coordinator_has_answered_for_the_attempts_after_it() -> None:
    """Ten calls of a dead service may end together, before any of them was reported: the breaker opens for them."""

    async def weather(x: int) -> int:
        return x

    options = async_pandas_udf(
        weather, breaker=CircuitBreaker(window=10, open_for=5.0, max_open=100.0), on_error="null"
    ).options
    operator: Any = SimpleNamespace(name="weather", counters=TaskCounters(lambda: 0.0), rows_under_way=list)
    service = Gatekeeper(operator, options, SimpleNamespace(), async_pandas_udf(weather).spec)  # type: ignore[arg-type]
    shared: Any = SimpleNamespace(open_since=None, is_in_doubt=False)
    health = service.health
    health.share_health(shared)
    held, row, failure = service.held_failures, Row(), Failure(ConnectionError())
    assert held is not None
    assert health.breaker is not None
    health.breaker.attempts = 1
    held.hold(row, failure, failure)
    for _ in range(2):
        shared.replied()
    health.breaker.attempts = 11
    assert not list(held.failed())
    shared.replied()
    assert not list(held.failed()), "this reply may have been on its way"
    shared.replied()
    assert [one for one, _ in held.failed()] == [row]
