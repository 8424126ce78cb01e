"""`hedge`: a second call for a row whose first takes long. The first answer counts, the other call is cancelled."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from asyncudf import (
    AdaptiveCapacity,
    AsyncFunction,
    CircuitBreaker,
    Hedge,
    OptionError,
    RateLimit,
    ResultFuture,
    RetryStrategy,
)
from asyncudf.testing import ManualFunction, OperatorHarness, run_rows
from tests.kit.figures import figures
from tests.kit.limited import ThrottledError, now

HEDGE = Hedge(after=2.0, budget=1.0)
RETRY = RetryStrategy.fixed_delay(attempts=2, delay=1.0)


class StatusError(Exception):
    """What a client raises for an answer with this HTTP status."""

    def __init__(self, status: int) -> None:
        super().__init__(str(status))
        self.status = status


class Slow:
    """The first call of each of these rows takes 100 s, all others a second; notes how calls begin and end."""

    def __init__(self, *slow: Any, error: BaseException | None = None) -> None:
        self.slow, self.error = set(slow), error
        self.log: list[tuple[str, Any, float]] = []
        self.in_flight = self.peak = 0

    async def __call__(self, x: Any) -> float:
        began, is_slow = now(), x in self.slow
        self.slow.discard(x)
        self.log.append(("begins", x, began))
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            await asyncio.sleep(100.0 if is_slow else 1.0)
        except asyncio.CancelledError:
            self.log.append(("cancelled", x, now()))
            raise
        finally:
            self.in_flight -= 1
        if self.error is not None:
            raise self.error
        return now()

    def when(self, what: str) -> list[tuple[Any, float]]:
        return [(row, time) for seen, row, time in self.log if seen == what]


class TestTheFirstAnswer:
    def test_it_counts_and_the_other_call_is_cancelled(self) -> None:
        slow = Slow("a")
        assert run_rows(slow, ["a"], hedge=HEDGE) == [3.0]
        assert slow.log == [("begins", "a", 0.0), ("begins", "a", 2.0), ("cancelled", "a", 3.0)]

    def test_also_if_it_is_that_of_the_first_call(self) -> None:
        function = ManualFunction()
        with OperatorHarness(function, hedge=HEDGE) as harness:
            harness.put("a")
            harness.advance(2.0)
            assert function.running == ["a", "a"]
            harness.complete("a", "first")
            assert (harness.output, function.running) == (["first"], [])

    def test_quick_calls_are_made_once(self) -> None:
        slow = Slow()
        assert run_rows(slow, range(50), capacity=5, hedge=HEDGE) == [n // 5 + 1.0 for n in range(50)]
        assert len(slow.log) == 50

    @pytest.mark.parametrize("mode", ["ordered", "unordered"])
    def test_rows_leave_in_their_order(self, mode: Any) -> None:
        got = run_rows(Slow(0), [0, 1, 2], output_mode=mode, hedge=HEDGE)
        assert got == ([3.0, 1.0, 1.0] if mode == "ordered" else [1.0, 1.0, 3.0])

    def test_a_result_future_answers_once_for_both(self) -> None:
        """The first call completes its future when the second has answered, and each of them twice."""
        begun: list[float] = []

        class Late(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                begun.append(now())
                after = 10.0 if len(begun) == 1 else 1.0
                for again in (0.0, 0.5):
                    loop = asyncio.get_running_loop()
                    loop.call_later(after + again, result_future.complete, [f"{len(begun)} {again}"])
                await asyncio.sleep(20)

        assert run_rows(Late(), [{"x": 1}, {"x": 2}], capacity=3, hedge=HEDGE) == ["3 0.0", "2 0.0"]
        assert begun == [0.0, 0.0, 2.0]

    def test_it_may_be_one_for_a_whole_micro_batch(self) -> None:
        import pandas as pd

        calls = []

        async def plus(x: pd.Series) -> pd.Series:
            calls.append(now())
            await asyncio.sleep(100.0 if len(calls) == 1 else 1.0)
            return x + 1

        assert run_rows(plus, [1, 2, 3], returnType="long", batch_size=3, hedge=HEDGE) == [2, 3, 4]
        assert calls == [0.0, 2.0]


class TestFailures:
    def test_one_that_fails_leaves_it_to_the_other(self) -> None:
        function = ManualFunction()
        with OperatorHarness(function, hedge=HEDGE) as harness:
            harness.put("a")
            harness.advance(2.0)
            harness.fail("a", ConnectionError())
            assert (harness.output, function.running) == ([], ["a"])
            harness.complete("a", "second")
            assert harness.output == ["second"]

    @pytest.mark.parametrize(("status", "seconds"), [(404, 4.0), (408, 100.0), (429, 100.0), (503, 100.0)])
    def test_one_that_a_second_call_would_not_mend_is_the_answer(self, status: int, seconds: float) -> None:
        """A row whose first call had ended with a 404 waited for the second one to end."""
        begun: list[float] = []

        async def refused(x: str) -> str:
            begun.append(now())
            await asyncio.sleep(4.0 if len(begun) == 1 else 98.0)
            raise StatusError(status)

        found = figures(refused, ["a"], on_error="null", hedge=HEDGE, throttle_counts=True)
        assert (begun, found.seconds) == ([0.0, 2.0], seconds)

    def test_one_that_the_retry_strategy_names_leaves_it_to_the_other(self) -> None:
        """A service may answer with a 404 until its copies have met."""
        function = ManualFunction()
        retry = RetryStrategy.fixed_delay(2, 1.0, retry_on=StatusError)
        with OperatorHarness(function, hedge=HEDGE, retry=retry) as harness:
            harness.put("a")
            harness.advance(2.0)
            harness.fail("a", StatusError(404))
            harness.complete("a", "second")
            assert harness.output == ["second"]

    def test_if_both_fail_that_was_one_attempt(self) -> None:
        slow = Slow(error=ValueError("bad"))

        async def both(x: str) -> float:
            await asyncio.sleep(4.0 if len(slow.log) == 0 else 0.0)
            return await slow(x)

        with pytest.raises(Exception, match="ValueError: bad"):
            run_rows(both, ["a"], hedge=HEDGE)
        slow.log.clear()
        got = run_rows(both, ["a"], hedge=HEDGE, retry=RETRY, on_error="capture")
        assert got[0]["error"]["message"] == "bad"

    def test_attempts_are_counted_without_them(self) -> None:
        """Two attempts, of two calls each."""
        begun: list[float] = []

        async def fails(x: str) -> None:
            begun.append(now())
            await asyncio.sleep(5.0)
            raise ValueError("bad")

        assert run_rows(fails, ["a"], hedge=HEDGE, retry=RETRY, on_error="null") == [None]
        assert begun == [0.0, 2.0, 8.0, 10.0]

    def test_the_limit_of_an_attempt_is_that_of_the_first_call(self) -> None:
        slow = Slow("a")
        retry = RetryStrategy.fixed_delay(2, 1.0)
        assert run_rows(slow, ["a"], attempt_timeout=2.5, retry=retry, hedge=HEDGE) == [4.5]
        assert slow.when("cancelled") == [("a", 2.5), ("a", 2.5)]

    def test_the_deadline_ends_both(self) -> None:
        slow = Slow("a")
        assert run_rows(slow, ["a"], timeout=2.5, on_error="null", hedge=HEDGE) == [None]
        assert slow.when("cancelled") == [("a", 2.5), ("a", 2.5)]

    def test_a_row_that_is_tried_again_waits_for_no_second_call(self) -> None:
        """The first has failed while the second waited for a permit: the attempt is over, and the back-off begins."""
        begun: list[float] = []

        async def fails_late(x: str) -> float:
            begun.append(now())
            await asyncio.sleep(5.0)
            if len(begun) == 1:
                raise ConnectionError
            return now()

        retry = RetryStrategy.fixed_delay(2, 100.0)
        assert run_rows(fails_late, ["a"], retry=retry, rate_limit=RateLimit(1, per=10.0), hedge=HEDGE) == [110.0]
        assert begun == [0.0, 105.0]

    def test_a_refusal_of_one_holds_up_no_other_row(self) -> None:
        function = ManualFunction()
        with OperatorHarness(function, hedge=HEDGE) as harness:
            harness.put("a")
            harness.advance(2.0)
            harness.fail("a", ThrottledError(10))
            harness.complete("a", "A")
            harness.put("b")
            assert (harness.output, function.running) == (["A"], ["b"])

    def test_one_that_ends_the_process_ends_the_job(self) -> None:
        """Though the other could have an answer yet."""
        function = ManualFunction()
        with OperatorHarness(function, on_error="null", hedge=HEDGE) as harness:
            harness.put("a")
            harness.advance(2.0)
            harness.fail("a", SystemExit(3))
            with pytest.raises(Exception, match="SystemExit"):
                assert harness.is_done


class TestTheBudget:
    def test_it_is_a_share_of_all_calls(self) -> None:
        slow = Slow(*range(200))
        run_rows(slow, range(200), capacity=300, timeout=50.0, on_error="null", hedge=Hedge(after=2.0, budget=0.05))
        assert len(slow.when("begins")) == 210

    def test_a_quantile_is_learned_first(self) -> None:
        slow = Slow(*range(0, 400, 50))
        run_rows(slow, range(400), capacity=10, hedge=Hedge(after="p90", budget=0.05))
        begun = slow.when("begins")
        assert begun.count((0, 0.0)) == 1
        assert len(begun) > 400, "later ones had a second call"
        assert [time for _, time in slow.when("cancelled")], "which was the quicker one"

    def test_a_second_call_needs_a_free_slot(self) -> None:
        assert run_rows(Slow("a"), ["a"], capacity=1, hedge=HEDGE) == [100.0]

    def test_it_comes_before_new_rows(self) -> None:
        function = ManualFunction()
        with OperatorHarness(function, capacity=2, hedge=HEDGE) as harness:
            harness.put("a", "b", "c")
            harness.advance(2.0)
            harness.complete("b", "B")
            assert function.running == ["a", "a"]

    @pytest.mark.parametrize(
        "options", [{"job_capacity": 3}, {"capacity": 3}, {"capacity": AdaptiveCapacity(3, 3)}], ids=str
    )
    def test_it_counts_for_the_capacity(self, options: dict[str, Any]) -> None:
        slow = Slow(0, 5, 10)
        assert len(run_rows(slow, range(30), hedge=HEDGE, **options)) == 30
        assert slow.peak == 3

    def test_it_needs_a_permit(self) -> None:
        slow = Slow("a")
        assert run_rows(slow, ["a", "b"], rate_limit=RateLimit(1, per=10.0), hedge=HEDGE) == [21.0, 11.0]
        assert slow.when("begins") == [("a", 0.0), ("b", 10.0), ("a", 20.0)]

    def test_it_is_one_of_max_calls(self) -> None:
        assert run_rows(Slow("a"), ["a"], max_calls=2, hedge=HEDGE) == [3.0]

    def test_it_is_left_out_where_none_of_these_is_left(self) -> None:
        """The row has a call under way that may have an answer."""
        assert run_rows(Slow("a"), ["a"], max_calls=1, hedge=HEDGE) == [100.0]


class TestTheWait:
    """It is that of one attempt: what was before it does not count."""

    def test_one_that_found_no_slot_is_not_made_in_the_next_attempt_before_its_time(self) -> None:
        """Row 0 would have had a second call, for which there was no slot until it was refused; then others take it."""
        begun: list[tuple[int, float]] = []

        async def call(x: int) -> None:
            begun.append((x, round(now(), 2)))
            if x:
                await asyncio.sleep(3.05)
            elif now() < 3:
                await asyncio.sleep(3.0)
                raise ThrottledError(0.01)
            else:
                await asyncio.sleep(0.9)

        run_rows(call, range(3), capacity=3, hedge=Hedge(1.0, 1.0), returnType="int")
        assert [time for x, time in begun if x == 0] == [0.0, 3.05]

    def test_back_offs_are_not_part_of_it(self) -> None:
        """Each fifth row is tried again, and late; one of fifty is slow, and gets a second call all the same."""
        failed: set[int] = set()
        begun: list[int] = []

        async def call(x: int) -> int:
            begun.append(x)
            if x % 5 == 1 and x not in failed:
                failed.add(x)
                raise ValueError(x)
            await asyncio.sleep(1.0 if x % 50 == 0 and begun.count(x) == 1 else 0.1)
            return x

        retry = RetryStrategy.fixed_delay(attempts=2, delay=2.0)
        run_rows(call, range(1000), capacity=5, retry=retry, hedge=Hedge("p95", budget=0.5))
        second = [x for x in range(500, 1000, 50) if begun.count(x) == 2]
        assert second == list(range(500, 1000, 50))


def test_it_is_counted() -> None:
    found = figures(Slow(0), range(3), hedge=HEDGE)
    assert (found.calls, found.attempts, found.hedges, found.retries) == (3, 4, 1, 0)
    assert found.seconds == 3.0
    assert found.latency["max"] == pytest.approx(3.0)


def test_a_dead_service_gets_no_second_call_of_the_one_that_tries_it() -> None:
    begun: list[tuple[int, float]] = []

    async def hangs(x: int) -> float:
        begun.append((x, now()))
        await asyncio.sleep(10.0 if now() < 60 else 0.5)
        if begun[-1][1] < 60:
            raise ConnectionError
        return now()

    breaker = CircuitBreaker(window=4, open_for=5.0)
    got = run_rows(hangs, range(8), capacity=4, on_error="null", breaker=breaker, hedge=HEDGE)
    assert None not in got
    tries = [time for _, time in begun if 12 < time < 60]
    assert all(later - earlier >= 5 for earlier, later in itertools.pairwise(tries))


@pytest.mark.parametrize("value", [5, "p95", 0.05, Hedge, True])
def test_only_a_hedge_is_one(value: Any) -> None:
    with pytest.raises(OptionError, match=r"hedge must be a Hedge\(...\), not "):
        run_rows(Slow(), [1], hedge=value)
