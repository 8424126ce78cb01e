"""Random rows, latencies, failures, bounds and policies on the virtual clock: every row is accounted for, in order."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from asyncudf import RetryStrategy
from asyncudf.queues import Watermark
from asyncudf.testing import VirtualClockLoop, run_rows

# What a call does in each attempt: return at once, after some seconds, raise, cancel itself, hang, or refuse to die.
BEHAVIOUR = st.sampled_from(
    ["instant", "wait 1", "wait 3", "wait 7", "raise", "wait then raise", "cancel", "hang", "swallow"]
)
ROW = st.lists(BEHAVIOUR, min_size=1, max_size=3)  # one behaviour for each attempt; the last one repeats
ROWS = st.lists(st.one_of(ROW, ROW, ROW, st.just(None)), max_size=30)  # None stands for a watermark


class Service:
    """Plays the behaviours and counts what is in progress."""

    def __init__(self) -> None:
        self.attempts: dict[int, int] = {}
        self.running = self.peak = 0

    async def __call__(self, number: int, behaviours: list[str]) -> int:
        attempt = self.attempts[number] = self.attempts.get(number, 0) + 1
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await self.play(behaviours[min(attempt, len(behaviours)) - 1])
        finally:
            self.running -= 1
        return number

    async def play(self, behaviour: str) -> None:
        match behaviour.split():
            case ["wait", seconds] if seconds.isdigit():
                await asyncio.sleep(int(seconds))
            case ["wait", "then", "raise"]:
                await asyncio.sleep(2)
                raise ValueError
            case ["raise"]:
                raise ValueError
            case ["cancel"]:
                raise asyncio.CancelledError
            case ["hang"]:
                await asyncio.get_running_loop().create_future()
            case ["swallow"]:
                for _ in range(2):
                    try:
                        await asyncio.sleep(100)
                    except asyncio.CancelledError:
                        continue


@settings(max_examples=300)
@given(
    rows=ROWS,
    mode=st.sampled_from(["ordered", "unordered"]),
    capacity=st.integers(1, 5),
    spare=st.integers(0, 10),
    retry=st.sampled_from([None, RetryStrategy.fixed_delay(3, 2.0), RetryStrategy.exponential_backoff(4, 1.0, 4.0)]),
    attempt_timeout=st.sampled_from([None, 2.0]),
)
def test_every_row_comes_out_once_and_no_watermark_is_passed(
    rows: list[Any], mode: str, capacity: int, spare: int, retry: Any, attempt_timeout: Any
) -> None:
    service = Service()
    given_rows = [Watermark(i) if row is None else (i, row) for i, row in enumerate(rows)]
    got = run_rows(
        service,
        given_rows,
        output_mode=mode,
        capacity=capacity,
        queue_size=capacity + spare,
        timeout=10.0,
        attempt_timeout=attempt_timeout,
        retry=retry,
        on_error="capture",
    )
    segments, numbers = split(got)
    expected, _ = split([row if isinstance(row, Watermark) else {"value": row[0], "error": None} for row in given_rows])
    assert [len(segment) for segment in segments] == [len(segment) for segment in expected]
    for segment, wanted in zip(segments, expected, strict=True):
        values = [row["value"] for row in segment if row["error"] is None]
        known = [row["value"] for row in wanted]
        assert set(values) <= set(known)
        assert len(set(values)) == len(values)
        if mode == "ordered":
            assert all(row["value"] in (None, value) for row, value in zip(segment, known, strict=True))
    assert numbers == [row for row in given_rows if isinstance(row, Watermark)]
    assert service.running == 0, "nothing is left in progress"
    assert set(service.attempts) == {i for i, row in enumerate(rows) if row is not None}


def split(elements: list[Any]) -> tuple[list[list[Any]], list[Watermark]]:
    """The rows between the watermarks, and the watermarks."""
    segments: list[list[Any]] = [[]]
    watermarks = []
    for element in elements:
        if isinstance(element, Watermark):
            watermarks.append(element)
            segments.append([])
        else:
            segments[-1].append(element)
    return segments, watermarks


@settings(max_examples=100)
@given(rows=st.lists(ROW, min_size=1, max_size=15), capacity=st.integers(1, 4))
def test_a_failure_leaves_nothing_running(rows: list[list[str]], capacity: int) -> None:
    service, loops = Service(), []
    original = VirtualClockLoop.__init__

    def remember(self: VirtualClockLoop) -> None:
        original(self)
        loops.append(self)

    VirtualClockLoop.__init__ = remember  # type: ignore[method-assign]
    try:
        run_rows(service, enumerate(rows), capacity=capacity, timeout=10.0)
    except Exception:
        pass
    finally:
        VirtualClockLoop.__init__ = original  # type: ignore[method-assign]
    assert service.running == 0
    assert all(loop.is_closed() for loop in loops)
