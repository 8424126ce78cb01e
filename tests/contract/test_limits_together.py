"""Random jobs under all limits together, on the virtual clock: nothing is lost, in excess, or left running."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from asyncudf import AdaptiveCapacity, AsyncStream, AsyncUDFError, CircuitBreaker, RateLimit, RetryStrategy
from asyncudf.queues import Watermark
from asyncudf.testing import ManualFunction, OperatorHarness, run_rows, run_stream
from tests.kit.errors import is_of_the_task
from tests.kit.limited import Service, ThrottledError, most_within, now
from tests.kit.stores import SlowStore

KINDS = ("quick", "quick", "quick", "instant", "bad", "slow once", "throttled once", "refused", "hangs", "blip")


class Calls:
    """Plays the kinds of rows, and remembers from when to when each call was made."""

    def __init__(self, down: float) -> None:
        self.down = down
        self.made: Counter[int] = Counter()
        self.spans: list[tuple[float, float]] = []
        self.in_flight = 0

    async def __call__(self, number: int, kind: str) -> int:
        self.made[number] += 1
        self.in_flight += 1
        began = now()
        try:
            await self.play(kind, self.made[number] == 1)
            if began < self.down:
                raise ConnectionError("down")
        finally:
            self.in_flight -= 1
            self.spans.append((began, now()))
        return number

    async def play(self, kind: str, is_first: bool) -> None:
        if kind == "hangs" or (kind == "slow once" and is_first):
            await asyncio.sleep(500.0)
        elif kind != "instant":
            await asyncio.sleep(1.0)
        if kind == "bad":
            raise ValueError("bad")
        if kind == "refused" or (kind == "blip" and is_first):
            raise ConnectionError("refused")
        if kind == "throttled once" and is_first:
            raise ThrottledError(3)

    @property
    def begun(self) -> list[float]:
        return sorted(began for began, _ in self.spans)

    @property
    def peak(self) -> int:
        """The most calls that were in flight for any time."""
        steps = sorted([(end, -1) for _, end in self.spans] + [(began, 1) for began, _ in self.spans])
        flying = most = 0
        for _, step in steps:
            flying += step
            most = max(most, flying)
        return most


LIMITS = st.builds(
    RateLimit,
    st.integers(1, 10),
    st.sampled_from([1.0, 5.0]),
    st.integers(1, 5),
    scope=st.sampled_from(["job", "task"]),
)
OPTIONS = st.fixed_dictionaries(
    {
        "output_mode": st.sampled_from(["ordered", "unordered"]),
        "capacity": st.integers(1, 6) | st.builds(AdaptiveCapacity, st.integers(1, 2), st.integers(2, 6)),
        "timeout": st.sampled_from([15.3, 1000.3]),
    },
    optional={
        "rate_limit": st.lists(LIMITS, max_size=2),
        "job_capacity": st.integers(1, 6),
        "breaker": st.builds(
            CircuitBreaker, st.sampled_from([0.5, 1.0]), st.integers(2, 8), st.just(3.0), st.just(60.0)
        ),
        "retry": st.builds(RetryStrategy.fixed_delay, st.integers(1, 3), st.sampled_from([0.0, 2.5])),
        "attempt_timeout": st.just(6.3),
        "max_calls": st.just(10_000),
        "max_failures": st.just(10_000),
    },
)
ROWS = st.lists(st.sampled_from(KINDS) | st.none(), max_size=25)  # None stands for a watermark


def _limit(capacity: int | AdaptiveCapacity) -> int:
    return capacity.maximum if isinstance(capacity, AdaptiveCapacity) else capacity


@given(kinds=ROWS, options=OPTIONS, down=st.sampled_from([0.0, 0.0, 4.5, 30.5]), is_stored=st.booleans())
def test_every_row_has_its_outcome_once_and_all_limits_hold(
    kinds: list[str | None], options: dict[str, Any], down: float, is_stored: bool
) -> None:
    calls = Calls(down)
    rows = [Watermark(number) if kind is None else (number, kind) for number, kind in enumerate(kinds)]
    if is_stored:
        options = {**options, "store": SlowStore(get=0.1, put=0.1), "version": "1"}
    try:
        got = run_rows(calls, rows, on_error="capture", returnType="int", **options)
    except AsyncUDFError as error:  # of max_open
        if not is_of_the_task(error):
            raise
        assert {"refused", "hangs"} & set(kinds), (
            "rows that never have an answer; to the breaker a service that is dead"
        )
    else:
        assert len(got) == len(rows)
        assert [one for one in got if isinstance(one, Watermark)] == [one for one in rows if isinstance(one, Watermark)]
        _assert_order(got, kinds, options["output_mode"])
    assert calls.in_flight == 0
    assert calls.peak <= min(_limit(options["capacity"]), options.get("job_capacity", 6))
    for limit in options.get("rate_limit", ()):
        if calls.spans:
            assert most_within(limit.period, calls.begun) <= limit.permits + limit.saved
    if "retry" not in options and "breaker" not in options:
        assert all(made == 1 or kinds[number] == "throttled once" for number, made in calls.made.items()), (
            "each row is called once"
        )


def _assert_order(got: list[Any], kinds: list[str | None], mode: str) -> None:
    """Each result is that of its row, and between the watermarks that its row was between."""
    place = 0
    waiting: list[str] = []
    emitted: list[Any] = []
    for one in [*got, None]:
        if one is not None and not isinstance(one, Watermark):
            emitted.append(one)
            continue
        waiting.clear()
        start = place
        while place < len(kinds) and kinds[place] is not None:
            place += 1
        assert len(emitted) == place - start
        for number, result in zip(range(start, place), emitted, strict=True):
            if result["error"] is None and mode == "ordered":
                assert result["value"] == number
        values = [result["value"] for result in emitted if result["error"] is None]
        assert set(values) <= set(range(start, place))
        assert len(set(values)) == len(values)
        place += 1
        emitted = []


@given(options=OPTIONS, rows=st.integers(10, 40), down=st.sampled_from([3.5, 40.5, 400.5]), window=st.integers(1, 8))
def test_no_row_is_given_up_for_a_dead_service(options: dict[str, Any], rows: int, down: float, window: int) -> None:
    """However late it comes back, unless that is before a window of calls has shown that it is dead: each takes 1 s."""
    assume(down > window)
    calls = Calls(down)
    limited = {name: value for name, value in options.items() if name not in ("rate_limit", "attempt_timeout")}
    limited["breaker"] = CircuitBreaker(0.5, window, 3.0, 1e9)
    got = run_rows(calls, [(number, "quick") for number in range(rows)], on_error="capture", **limited)
    assert [one["error"] for one in got] == [None] * rows
    assert sorted(one["value"] for one in got) == list(range(rows))


@pytest.mark.parametrize("scope", ["job", "task"])
@pytest.mark.parametrize(("second", "last"), [(10, 1.1), (5, 6 * 0.2 + 5 * 0.1)], ids=["equal", "other numbers"])
def test_limits_of_one_name_are_one_limit_of_the_chain(scope: Any, second: int, last: float) -> None:
    """Those of other numbers were two, of 10 and 5 a second: the last call began after 1.1 s."""
    service = Service(0.0)

    async def left(n: int) -> float:
        return await service(n)

    async def right(left: float) -> float:
        return await service(left)

    def build(stream: AsyncStream) -> AsyncStream:
        limits = [RateLimit(permits, burst=1, name="the account", scope=scope) for permits in (10, second)]
        return stream.ordered_wait(left, rate_limit=limits[0]).ordered_wait(right, rate_limit=limits[1])

    run_stream(build, [{"n": n} for n in range(6)], "n int")
    assert max(service.times) == pytest.approx(last)


def test_while_a_call_waits_for_one_limit_no_other_asks() -> None:
    """`a` is tried again when `b` is done, and waits for a permit then: `c`, which has just come, waits behind it."""
    function = ManualFunction()
    limits: dict[str, Any] = {"job_capacity": 1, "rate_limit": RateLimit(6, per="minute", burst=2)}
    retry = RetryStrategy.fixed_delay(attempts=2, delay=1.0)
    with OperatorHarness(function, capacity=5, output_mode="unordered", retry=retry, **limits) as harness:
        harness.put("a")
        harness.fail("a", ConnectionError("down"))
        harness.put("b")
        harness.advance(2.0)
        harness.put("c")
        harness.complete("b", "B")
        assert function.running == [], "two permits of ten seconds each are used up"
        harness.advance(8.0)
        assert function.running == ["a"]
        harness.complete("a", "A")
        harness.advance(10.0)
        assert function.running == ["c"]
