"""Latency markers: when they come, what they measure, and that they cost the same however many there are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from asyncudf import LATENCIES, AsyncStream, AsyncUDFError
from asyncudf.testing import VirtualClockLoop, run_stream

Build = Callable[[AsyncStream, Any, int], AsyncStream]


def latencies(build: Build, seconds: float, rows: int, capacity: int, interval: float = 0.25) -> list[float]:
    """Those of the call, in the order in which the markers left it."""

    async def call(n: int) -> int:
        await asyncio.sleep(seconds)
        return n

    def both(stream: AsyncStream) -> dict[str, AsyncStream]:
        built = build(stream, call, capacity)
        return {"rows": built, "latencies": built.side_output(LATENCIES)}

    got = run_stream(both, [{"n": n} for n in range(rows)], "n int", latency_interval=interval)
    assert len(got["rows"]) == rows
    return [row["latency"] for row in got["latencies"] if row["operator"] == "call"]


CHAINS: dict[str, Build] = {
    "ordered": lambda stream, call, capacity: stream.ordered_wait(call, capacity=capacity),
    "unordered": lambda stream, call, capacity: stream.unordered_wait(call, capacity=capacity),
    "behind a filter": lambda stream, call, capacity: stream.filter(lambda row: True).ordered_wait(
        call, capacity=capacity
    ),
    "behind another": lambda stream, call, capacity: stream.ordered_wait(instant).ordered_wait(call, capacity=capacity),
}


async def instant(n: int) -> int:
    return n


@pytest.mark.parametrize("capacity", [5, 100], ids=["rows wait", "all in progress"])
@pytest.mark.parametrize("chain", CHAINS)
def test_the_slowest_of_five_jobs_has_the_highest_latency(chain: str, capacity: int) -> None:
    found = [latencies(CHAINS[chain], seconds, 20, capacity) for seconds in (0.1, 0.3, 0.7, 2.0, 10.0)]
    means = [sum(values) / len(values) for values in found]
    assert means == sorted(means)
    assert [max(values) for values in found] == sorted(max(values) for values in found)
    assert max(found[0]) > 0, "of a job that is over before the second marker too"


@pytest.mark.parametrize("capacity", [5, 100], ids=["rows wait", "all in progress"])
@pytest.mark.parametrize("chain", CHAINS)
def test_markers_come_at_their_interval_until_the_last_row_has_left(chain: str, capacity: int) -> None:
    lasts = 10.0 * 20 / min(capacity, 20)
    due = lasts / 0.25  # and one more where a marker is due when the last row leaves
    assert len(latencies(CHAINS[chain], 10.0, 20, capacity)) in (due, due + 1)


def test_a_marker_counts_from_when_it_was_due_though_nobody_could_take_it() -> None:
    found = latencies(CHAINS["ordered"], 4.0, 1, 1, interval=1.0)
    assert sorted(found)[-4:] == [1.0, 2.0, 3.0, 4.0]


def test_a_timer_that_fires_early_makes_no_latency_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    def call_at(loop: Any, when: float, *callback: Any, **context: Any) -> Any:
        return asyncio.SelectorEventLoop.call_at(loop, when - 0.001, *callback, **context)

    monkeypatch.setattr(VirtualClockLoop, "call_at", call_at)
    monkeypatch.setattr(VirtualClockLoop, "call_beside", call_at)

    assert min(latencies(CHAINS["behind a filter"], 0.5, 20, 5)) >= 0
    assert min(latencies(CHAINS["ordered"], 0.25, 20, 5)) >= 0


def test_a_wait_of_a_billionth_of_a_second_ends_beside_the_markers() -> None:
    """The clock goes on by so little too."""

    async def call(n: int) -> int:
        await asyncio.sleep(n / 7)
        await asyncio.sleep(1e-9)
        return n

    rows = [{"n": n} for n in range(100)]
    got = run_stream(lambda stream: stream.ordered_wait(call), rows, "n int", latency_interval=0.5)
    assert len(got) == 100


async def stuck(n: int) -> int:
    await asyncio.get_running_loop().create_future()
    return n


@pytest.mark.parametrize("before", [lambda stream: stream, lambda stream: stream.filter(lambda row: True)])
def test_a_deadlock_is_told_though_markers_would_go_on_for_ever(before: Callable[[AsyncStream], AsyncStream]) -> None:
    def build(stream: AsyncStream) -> AsyncStream:
        return before(stream).ordered_wait(stuck, timeout=None)

    with pytest.raises(AsyncUDFError, match="deadlock: every call is waiting"):
        run_stream(build, [{"n": 1}], "n int", latency_interval=1.0)
