"""The mean of calls in flight, and the timeouts, are what the service has seen, however rows of a call go apart."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from asyncudf import AsyncUDFError, CircuitBreaker, RetryStrategy
from asyncudf.testing import MemoryStore
from tests.kit.engines import Engine
from tests.kit.figures import figures_so_far

RETRY = RetryStrategy.fixed_delay(2, 1.0, retry_on=ConnectionError)


class Service:
    """Answers each row of a call as it is told, and measures how long it has its calls.

    Attributes:
        seconds: for which it had calls, all together; those that it still has count too.
    """

    def __init__(self, *attempts: tuple[float, dict[int, type[Exception]]]) -> None:
        self.attempts = list(attempts)  # how long each takes, and the errors of rows; the last one repeats
        self.begun: list[float] = []
        self.ended: list[float] = []

    async def __call__(self, number: pa.Array) -> list[Any]:
        clock = asyncio.get_running_loop().time
        seconds, errors = self.attempts[min(len(self.begun), len(self.attempts) - 1)]
        self.begun.append(clock())
        try:
            await asyncio.sleep(seconds)
        finally:
            self.ended.append(clock())
        return [errors[row]("no") if row in errors else row for row in number.to_pylist()]

    def seconds(self, now: float) -> float:
        open_calls = len(self.begun) - len(self.ended)
        return sum(self.ended) + open_calls * now - sum(self.begun)

    async def as_a_whole(self, number: pa.Array) -> list[Any]:
        """The same; a call fails as a whole if one of its rows does."""
        answers = await self(number)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers


def check(engine: Engine, service: Service) -> SimpleNamespace:
    """What the engine has counted so far is what the service has seen."""
    engine.look()
    found = figures_so_far(engine)
    seconds = found.in_flight["mean"] * found.seconds
    assert seconds == pytest.approx(service.seconds(engine.loop.time())), "calls in flight"
    return found


def run(
    service: Service, rows: int, *, whole: bool = False, cut: float | None = None, **options: Any
) -> SimpleNamespace:
    """The figures of a task, which were looked at all the time."""
    function = service.as_a_whole if whole else service
    engine = Engine(function, returnType="long", **{"on_error": "null", "batch_size": rows, **options})
    wrong: list[AssertionError] = []
    engine.feed(range(rows))
    engine.end()

    def look() -> None:
        try:
            check(engine, service)
        except AssertionError as error:  # the loop would only log it
            wrong.append(error)
        engine.loop.call_later(0.25, look)

    engine.loop.call_soon(look)
    with contextlib.suppress(AsyncUDFError):
        engine.run(until=cut)
    assert wrong == []
    return check(engine, service)


def test_rows_that_are_late_behind_the_first_of_their_call() -> None:
    """The first has its result; the others are made again together, or alone, and none has an answer in time."""
    service = Service((0.5, {1: ConnectionError, 2: ConnectionError}), (100.0, {}))
    assert run(service, 3, timeout=4.0, retry=RETRY).timeouts == 1
    service = Service((0.5, {0: ValueError, 1: ConnectionError}), (100.0, {}))
    assert run(service, 2, timeout=4.0, retry=RETRY).timeouts == 1


def test_halves_of_a_call_that_are_late() -> None:
    service = Service((0.5, dict.fromkeys(range(4), OSError)), (100.0, {}))
    found = run(service, 4, whole=True, split_failed=True, timeout=4.0)
    assert found.timeouts == 2, "one for each attempt that was cut"


def test_an_attempt_that_is_cut_with_its_task() -> None:
    service = Service((0.5, {1: ConnectionError, 2: ConnectionError}), (100.0, {}))
    assert run(service, 3, retry=RETRY, cut=7.0).abandoned == 0
    service = Service((0.5, {0: ConnectionError, 1: ConnectionError}), (100.0, {}))
    assert run(service, 1, retry=RETRY, cut=7.0).abandoned == 1


def test_rows_whose_time_begins_anew() -> None:
    """An outage has excused their failures; what their calls took until then counts, and no figure is negative."""
    dead = dict.fromkeys(range(9), ConnectionError)
    breaker = CircuitBreaker(window=10, open_for=3.0, max_open=10.0)
    assert run(Service((0.0, dead)), 9, whole=True, batch_size=1, retry=RETRY, breaker=breaker).in_flight["mean"] == 0
    assert run(Service((0.5, dead)), 9, whole=True, batch_size=1, retry=RETRY, breaker=breaker).in_flight["mean"] > 0
    service = Service(*[(0.5, dead)] * 12, (0.5, {}))
    assert run(service, 9, whole=True, batch_size=1, retry=RETRY, breaker=breaker).failures == 0


@pytest.mark.parametrize("rows", [[1, 1, 1, 2, 3], [2, 3, 1, 1, 1], [1, 2, 2, 3, 3, 3]], ids=str)
def test_rows_that_are_called_for_the_first_time_with_others_that_are_called_again(rows: list[int]) -> None:
    """After an outage rows that had waited for the call of an equal row are called with those that were called."""
    service = Service(*[(100.0, {})] * 3, (0.5, {}))
    shared: dict[str, Any] = {"store": MemoryStore(), "version": "1", "breaker": CircuitBreaker(window=1, open_for=3.0)}
    engine = Engine(service, returnType="long", batch_size=len(rows), timeout=2.0, **shared)
    engine.feed(rows)
    engine.end()
    engine.run()
    found = check(engine, service)
    assert (engine.output, found.attempts, found.rows) == (rows, len(service.begun), len(rows))
