"""What rows that wait keep alive counts in the memory of a queue: their input batches, and what operators have made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from asyncudf import AsyncStream, RetryStrategy
from asyncudf.testing import run_stream

LIMIT = 100_000  # bytes
BATCH = 10  # rows
ROWS = [{"n": n, "page": f"{n:01000}"} for n in range(1_000)]  # 10 kB in each batch
Build = Callable[[AsyncStream], AsyncStream]


class Service:
    """Calls return at once, but for a few.

    Attributes:
        begun: when each row's first call began.
    """

    def __init__(self, slow: dict[int, float]) -> None:
        self.slow = slow
        self.begun: dict[int, float] = {}

    async def __call__(self, n: int) -> int:
        self.begun.setdefault(n, asyncio.get_running_loop().time())
        await asyncio.sleep(self.slow.get(n, 0.0))
        return n

    def begun_before(self, seconds: float) -> int:
        return sum(moment < seconds for moment in self.begun.values())


def service(slow: dict[int, float]) -> tuple[Service, Callable[[int], Any]]:
    calls = Service(slow)

    async def call(n: int) -> int:
        return await calls(n)

    return calls, call


def run(build: Build) -> list[dict[str, Any]]:
    return run_stream(build, ROWS, "n int, page string", batch_size=BATCH)  # type: ignore[no-any-return]


@pytest.mark.parametrize("columns", [("n",), ("n", "page")], ids=["passed through", "read"])
def test_rows_count_with_the_batches_that_they_keep_alive(columns: tuple[str, ...]) -> None:
    """About seven batches, and the two that are the input. If only places counted there would be 250 rows."""
    calls, call = service({0: 60.0})

    async def both(n: int, page: str) -> int:
        return await call(n)

    function: Any = call if len(columns) == 1 else both
    assert len(run(lambda s: s.ordered_wait(function, *columns, capacity=2, max_buffered_bytes=LIMIT))) == 1_000
    least, most = (70, 110) if len(columns) == 1 else (40, 70)  # strings of Python beside those of Arrow
    assert least <= calls.begun_before(60) <= most
    assert max(calls.begun.values()) < 61


def test_rows_in_back_off_keep_their_batches_in_any_order() -> None:
    """The others have left: only the first row of each batch is in the queue."""
    failed = set[int]()
    calls, call = service({})

    async def first_of_each_batch_fails(n: int) -> int:
        await call(n)
        if n % BATCH == 0 and n not in failed:
            failed.add(n)
            raise ConnectionError(n)
        return n

    retry = RetryStrategy.fixed_delay(attempts=2, delay=60)
    options: dict[str, Any] = {"capacity": 2, "retry": retry, "max_buffered_bytes": LIMIT}
    assert len(run(lambda s: s.unordered_wait(first_of_each_batch_fails, "n", **options))) == 1_000
    assert 70 <= calls.begun_before(60) <= 120


def test_rows_enter_when_the_writer_frees_a_batch_though_nothing_else_happens() -> None:
    """It has the rows of the last batch for 50 ms after they have left the queue, and only one call is in flight."""
    calls, call = service({0: 60.0, 300: 120.0})
    rows = run_stream(
        lambda s: s.filter(lambda row: row["n"] % 2 == 0).ordered_wait(call, "n", capacity=2, max_buffered_bytes=10**6),
        [{"n": n, "page": f"{n:01000}"} for n in range(2_000)],
        "n int, page string",
        batch_size=100,
    )
    assert len(rows) == 1_000
    assert calls.begun[300] < 1
    assert calls.begun_before(60.04) + 40 <= calls.begun_before(60.1) == calls.begun_before(120)


def test_results_of_the_operator_before_count_no_more_when_their_rows_have_left() -> None:
    """As many rows wait behind the fifth slow one as behind the first."""
    fetched, count = service({})
    _, slow = service(dict.fromkeys(range(0, 500, 100), 60.0))

    async def fetch(n: int) -> str:
        await count(n)
        return "x" * 10_000

    async def length(n: int, fetch: str) -> int:
        return await slow(n)

    options: dict[str, Any] = {"capacity": 2, "max_buffered_bytes": LIMIT}
    small = [{"n": n} for n in range(600)]
    rows = run_stream(lambda s: s.ordered_wait(fetch, **options).ordered_wait(length, **options), small, "n int")
    assert len(rows) == 600
    ahead = [fetched.begun_before(60 * n + 60) - 100 * n for n in range(5)]
    assert 10 <= ahead[0] <= 30
    assert max(ahead) - min(ahead) <= 2
