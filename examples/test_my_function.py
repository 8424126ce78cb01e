"""Unit tests of a function such as yours, with its timeout and its retries: no Spark, no Java, no waiting.

    pytest examples/test_my_function.py
    python examples/test_my_function.py        # the same; arguments go to pytest

Time is virtual: it jumps to the next thing that happens, so five virtual minutes take a few milliseconds and every run
is the same. The service is replaced by a fake one, given as the resource that the function opens.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from typing import Literal

import aiohttp
import pytest

from asyncudf import RetryStrategy, async_pandas_udf
from asyncudf.testing import ManualFunction, OperatorHarness, run_rows

# --- the function under test; in your project it is imported from there -----------------------------------------------


class Tariff:
    """A client of a service that knows prices."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def price(self, item: str) -> float:
        async with self._session.get(f"/prices/{item}") as response:
            response.raise_for_status()
            return float(await response.text())


@contextlib.asynccontextmanager
async def tariff() -> AsyncIterator[Tariff]:
    async with aiohttp.ClientSession("http://127.0.0.1:8080") as session:
        yield Tariff(session)


@async_pandas_udf(
    capacity=2,
    timeout=60.0,
    attempt_timeout=20.0,
    retry=RetryStrategy.fixed_delay(attempts=3, delay=5.0, retry_on=(ConnectionError, TimeoutError)),
    on_error="null",
    resources=tariff,
)
async def cost(item: str, count: int, tariff: Tariff) -> float:
    if count < 0:
        raise ValueError(f"cannot buy {count}")
    return count * await tariff.price(item)


# --- its tests --------------------------------------------------------------------------------------------------------


class FakeTariff:
    """Answers with what the test has prepared: for each call seconds to wait, then a price or an exception."""

    def __init__(self, *answers: tuple[float, float | Exception]) -> None:
        self._answers = iter(answers)
        self.called_at: list[float] = []

    async def price(self, item: str) -> float:
        self.called_at.append(asyncio.get_running_loop().time())
        seconds, answer = next(self._answers)
        await asyncio.sleep(seconds)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def as_resource(self) -> dict[str, object]:
        return {"tariff": lambda: contextlib.nullcontext(self)}


def test_the_function_alone() -> None:
    # __wrapped__ is the coroutine function as it was written.
    assert asyncio.run(cost.__wrapped__("tea", 3, FakeTariff((0.0, 2.5)))) == 7.5  # type: ignore[arg-type]


def test_a_broken_connection_is_tried_again_after_five_seconds() -> None:
    fake = FakeTariff((0.0, ConnectionError("reset")), (0.0, 2.5))
    assert run_rows(cost, [("tea", 2)], resources=fake.as_resource()) == [5.0]
    assert fake.called_at == [0.0, 5.0]


def test_a_call_that_hangs_is_given_up_after_twenty_seconds_and_tried_again() -> None:
    fake = FakeTariff((3600.0, 0.0), (1.0, 2.5))
    assert run_rows(cost, [("tea", 2)], resources=fake.as_resource()) == [5.0]
    assert fake.called_at == [0.0, 25.0]


def test_a_row_that_stays_without_an_answer_is_null_and_the_others_are_not_lost() -> None:
    fake = FakeTariff((3600.0, 0.0), (0.0, 2.5), (3600.0, 0.0), (3600.0, 0.0))
    assert run_rows(cost, [("tea", 1), ("jam", 2)], resources=fake.as_resource()) == [None, 5.0]


def test_a_mistake_in_the_input_is_not_tried_again() -> None:
    fake = FakeTariff()
    captured = run_rows(cost, [("tea", -1)], on_error="capture", resources=fake.as_resource())
    assert captured[0]["error"]["type"] == "ValueError"
    assert captured[0]["error"]["attempts"] == 1


@pytest.mark.parametrize(("mode", "expected"), [("ordered", [1.0, 2.0]), ("unordered", [2.0, 1.0])])
def test_the_order_of_the_results(mode: Literal["ordered", "unordered"], expected: list[float]) -> None:
    fake = FakeTariff((10.0, 1.0), (1.0, 2.0))
    assert run_rows(cost, [("slow", 1), ("quick", 1)], output_mode=mode, resources=fake.as_resource()) == expected


def test_step_by_step_at_most_two_calls_run_and_rows_keep_their_order() -> None:
    # Where the order of events matters, a ManualFunction ends each call when the test says so.
    calls = ManualFunction()
    with OperatorHarness(calls, capacity=2, timeout=60.0, on_timeout="too late") as harness:
        harness.put("a", "b", "c")
        assert calls.running == ["a", "b"]
        harness.complete("b", "B")
        assert calls.running == ["a", "c"]
        assert harness.output == []  # b waits for a
        harness.advance(60.0)
        assert harness.output == ["too late", "B", "too late"]


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, *sys.argv[1:]]))
