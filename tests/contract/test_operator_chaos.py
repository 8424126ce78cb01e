"""Random rows, latencies, failures, bounds and policies on the virtual clock: every row is accounted for, in order."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf import DEAD_LETTERS, AsyncUDFError, OutputTag, RetryStrategy
from asyncudf.queues import Watermark
from asyncudf.testing import VirtualClockLoop, run_rows

# What a call does in each attempt: how long it takes, and the error that it ends with. All times but the limits are
# multiples of a half, so that no two things of one row ever happen at once.
BEHAVIOURS: dict[str, tuple[float, type[BaseException] | None]] = {
    "instant": (0, None),
    "wait 1": (1, None),
    "wait 3": (3, None),
    "wait 7": (7, None),
    "raise": (0, ValueError),
    "wait then raise": (1.5, ValueError),
    "cancel": (0, asyncio.CancelledError),
    "hang": (math.inf, None),
    "swallow": (math.inf, None),  # refuses to die
}
TIMEOUT, ATTEMPT_TIMEOUT = 10.3, 2.3
ROW = st.lists(st.sampled_from(list(BEHAVIOURS)), min_size=1, max_size=3)  # one for each attempt; the last one repeats
ROWS = st.lists(st.one_of(ROW, ROW, ROW, st.just(None)), max_size=30)  # None stands for a watermark


class Retry(NamedTuple):
    """A strategy, and the same as plain numbers."""

    strategy: RetryStrategy | None
    delays: list[float]


RETRIES = [
    Retry(None, []),
    Retry(RetryStrategy.fixed_delay(3, 2.0), [2, 2]),
    Retry(RetryStrategy.exponential_backoff(4, 1.0, 4.0, jitter=False), [1, 2, 4]),
]


class Service:
    """Plays the behaviours and counts what is in progress."""

    def __init__(self) -> None:
        self.attempts: Counter[int] = Counter()
        self.running = self.peak = 0

    async def __call__(self, number: int, behaviours: list[str]) -> int:
        self.attempts[number] += 1
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await self.play(behaviours[min(self.attempts[number], len(behaviours)) - 1])
        finally:
            self.running -= 1
        return number

    async def play(self, behaviour: str) -> None:
        seconds, error = BEHAVIOURS[behaviour]
        if behaviour == "swallow":
            for _ in range(2):
                try:
                    await asyncio.sleep(100)
                except asyncio.CancelledError:
                    continue
        elif seconds == math.inf:
            await asyncio.get_running_loop().create_future()
        elif seconds:
            await asyncio.sleep(seconds)
        if error is not None:
            raise error


class Outcome(NamedTuple):
    """What becomes of a row."""

    error: str | None
    attempts: int

    @classmethod
    def of(cls, behaviours: list[str], delays: list[float], attempt_timeout: float | None) -> Outcome:
        """If it never has to wait for a slot: the rules of deadlines and retries, in a few lines."""
        now = 0.0
        for attempt, delay in enumerate([*delays, math.inf], 1):
            seconds, error = BEHAVIOURS[behaviours[min(attempt, len(behaviours)) - 1]]
            if attempt_timeout is not None and seconds > attempt_timeout:
                seconds, error = attempt_timeout, TimeoutError
            if now + seconds > TIMEOUT:
                return cls("AsyncTimeoutError", attempt)
            now += seconds + delay
            # A CancelledError is no Exception, so no strategy here tries it again.
            if error is None or error is asyncio.CancelledError or now >= TIMEOUT:
                break
        name = {None: None, TimeoutError: "AsyncTimeoutError"}.get(error, error and error.__name__)
        return cls(name, attempt)


@given(
    rows=ROWS,
    mode=st.sampled_from(["ordered", "unordered"]),
    capacity=st.integers(1, 5) | st.just(30),
    spare=st.integers(0, 10),
    retry=st.sampled_from(RETRIES),
    attempt_timeout=st.sampled_from([None, ATTEMPT_TIMEOUT]),
    on_error=st.sampled_from(["capture", "dead_letter"]),
)
def test_every_row_has_its_own_outcome_once_and_no_watermark_is_passed(
    rows: list[Any], mode: str, capacity: int, spare: int, retry: Retry, attempt_timeout: float | None, on_error: str
) -> None:
    service, sides = Service(), dict[OutputTag, list[Any]]()
    given_rows = [Watermark(i) if row is None else (i, row) for i, row in enumerate(rows)]
    got = run_rows(
        service,
        given_rows,
        output_mode=mode,
        capacity=capacity,
        queue_size=capacity + spare,
        timeout=TIMEOUT,
        attempt_timeout=attempt_timeout,
        retry=retry.strategy,
        on_error=on_error,
        side_outputs=sides,
    )
    expected = {i: Outcome.of(row, retry.delays, attempt_timeout) for i, row in enumerate(rows) if row is not None}
    # With few slots a second attempt may have to wait for one, and then be too late.
    sure = {i for i, outcome in expected.items() if capacity == 30 or retry.strategy is None or outcome.attempts == 1}

    segments, watermarks = split(got)
    given_segments, given_watermarks = split(given_rows)
    assert watermarks == given_watermarks
    numbers = [[i for i, _ in segment] for segment in given_segments]
    if on_error == "capture":
        assert [len(segment) for segment in segments] == [len(segment) for segment in numbers]
        results = [[(row["value"], row["error"] and row["error"]["type"]) for row in segment] for segment in segments]
        if mode == "ordered":
            found = dict(zip(itertools.chain(*numbers), itertools.chain(*results), strict=True))
            assert all(value in (i, None) for i, (value, _) in found.items())
            assert all(found[i] == (None if expected[i].error else i, expected[i].error) for i in sure)
        for result, known in zip(results, numbers, strict=True):
            check(result, known, expected, sure)
    else:
        failed = {letter["input"][0]: letter["error"] for letter in sides.get(DEAD_LETTERS, [])}
        everywhere = [
            sorted([*segment, *failed.keys() & known]) for segment, known in zip(segments, numbers, strict=True)
        ]
        assert everywhere == numbers
        for i in sure:
            assert (failed[i]["type"] if i in failed else None) == expected[i].error
            assert (failed[i]["attempts"] if i in failed else service.attempts[i]) == expected[i].attempts
        assert mode == "unordered" or all(segment == sorted(segment) for segment in segments)

    assert service.running == 0, "nothing is left in progress"
    assert set(service.attempts) == set(expected)
    assert all(service.attempts[i] == expected[i].attempts for i in sure)
    assert all(1 <= count <= len(retry.delays) + 1 for count in service.attempts.values())


def check(
    results: list[tuple[Any, str | None]], known: list[int], expected: dict[int, Outcome], sure: set[int]
) -> None:
    """The results between two watermarks, whatever their order, are those of the rows that stood there."""
    values = [value for value, error in results if error is None]
    assert set(values) <= set(known)
    assert len(set(values)) == len(values)
    assert {i for i in sure.intersection(known) if expected[i].error is None} <= set(values)
    errors = Counter(error for value, error in results if value is None)
    wanted = Counter(expected[i].error for i in sure.intersection(known) if expected[i].error is not None)
    assert wanted <= errors, "each failure as often as there are rows for it"
    if sure.issuperset(known):
        assert wanted == errors


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


@given(
    rows=st.lists(ROW, max_size=15),
    bad=st.sampled_from(["raise", "wait then raise", "cancel", "hang", "swallow"]),
    at=st.integers(0, 15),
    capacity=st.integers(1, 4),
)
def test_a_failure_leaves_nothing_running(rows: list[list[str]], bad: str, at: int, capacity: int) -> None:
    rows.insert(at, [bad])
    service, loops = Service(), []
    original = VirtualClockLoop.__init__

    def remember(self: VirtualClockLoop) -> None:
        original(self)
        loops.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VirtualClockLoop, "__init__", remember)
        with pytest.raises(AsyncUDFError, match="Service failed in attempt 1"):
            run_rows(service, enumerate(rows), capacity=capacity, timeout=TIMEOUT)
    assert service.running == 0
    assert [loop.is_closed() for loop in loops] == [True]
