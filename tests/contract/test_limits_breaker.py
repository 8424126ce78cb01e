"""`breaker`: while the service is dead rows wait, one call at a time tries it, and no row is given up for it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from asyncudf import (
    AsyncFunction,
    CircuitBreaker,
    OptionError,
    RateLimit,
    ResultFuture,
    RetryStrategy,
    async_pandas_udf,
)
from asyncudf.testing import ManualFunction, OperatorHarness, run_rows
from tests.kit.errors import task_fails
from tests.kit.figures import figures
from tests.kit.limited import Service, ThrottledError, now
from tests.kit.stores import SlowStore

BREAKER = CircuitBreaker(window=10, open_for=5.0, max_open=100.0)
POLICIES = pytest.mark.parametrize("on_error", ["raise", "null", "capture"])


def plain(results: list[Any]) -> list[Any]:
    """The results, also of those that could have been captured errors."""
    return [one["value"] if isinstance(one, dict) else one for one in results]


class TestAnOutage:
    @POLICIES
    @pytest.mark.parametrize("seconds", [0.0, 1.0], ids=["refused at once", "refused late"])
    @pytest.mark.parametrize("capacity", [1, 5, 100])
    def test_no_row_is_given_up_for_it(self, on_error: Any, seconds: float, capacity: int) -> None:
        """2,000 rows became 2,000 dead letters in 9.5 s."""
        service = Service(seconds, down=(0, 30))
        got = plain(run_rows(service, range(200), capacity=capacity, on_error=on_error, breaker=BREAKER))
        assert len(got) == 200
        assert all(time >= 30 for time in got)

    @pytest.mark.parametrize("capacity", [10, 50])
    @pytest.mark.parametrize("of", ["calls", "rows"])
    def test_a_third_that_fails_is_no_outage(self, of: str, capacity: int) -> None:
        """Of 5,000 rows 1,300 were called twice, and they took 46 s instead of 25; bad rows made the task fail."""
        rng, seconds, calls, end = random.Random(4), capacity / 200, 0, 0.0

        async def service(x: int) -> int:
            nonlocal calls, end
            calls += 1
            await asyncio.sleep(seconds)
            end = now()
            if (rng if of == "calls" else random.Random(x)).random() < 1 / 3:
                raise ConnectionError("bad luck")
            return x

        got = run_rows(service, range(5_000), capacity=capacity, on_error="null", breaker=CircuitBreaker())
        assert 1_500 < got.count(None) < 1_800
        assert (calls, end) == (5_000, pytest.approx(25.0))

    def test_one_call_at_a_time_tries_the_service(self) -> None:
        service = Service(1.0, down=(0, 30))
        run_rows(service, range(200), capacity=10, on_error="null", breaker=BREAKER)
        tries = [time for time in service.times if time >= 2.0]
        assert tries[:5] == [6.0, 12.0, 18.0, 24.0, 30.0], "5 s after each that has failed"
        assert len([time for time in service.times if time < 6.0]) == 10, "those before it opened"

    def test_a_row_that_had_an_attempt_before_it_is_not_late_because_of_it(self) -> None:
        """Also where `failure_on` takes no timeout for a failure of the service."""
        service = Service(0.0, down=(0, 60))
        retry = RetryStrategy.fixed_delay(3, 1.0)
        breaker = CircuitBreaker(window=10, open_for=5.0, max_open=100.0, failure_on=ConnectionError)
        got = run_rows(
            service, range(50), capacity=5, timeout=4.0, on_timeout=-1.0, retry=retry, on_error="null", breaker=breaker
        )
        assert all(time >= 60 for time in got)

    def test_a_throttled_answer_is_an_answer(self) -> None:
        """It closes the breaker, and the rows wait as long as they are asked to."""
        service = Service(0.0, down=(0, 20))
        service.seconds = 1.0

        async def asked(x: int) -> float:
            if 20 <= now() < 30:
                raise ThrottledError(10)
            return await service(x)

        assert all(time >= 30 for time in run_rows(asked, range(30), capacity=5, on_error="null", breaker=BREAKER))

    def test_attempts_that_hang_open_it_too(self) -> None:
        async def hangs(x: int) -> float:
            began = now()
            await asyncio.sleep(1.0 if began >= 60 else 1e6)
            return began

        got = run_rows(hangs, range(50), capacity=5, timeout=3.0, on_error="null", breaker=BREAKER)
        assert all(time >= 60 for time in got)


class TestTheEnd:
    @POLICIES
    def test_one_error_says_it_for_all_rows(self, on_error: Any) -> None:
        service = Service(1.0, down=(0, 1e9))
        with task_fails() as caught:
            run_rows(service, range(200), capacity=5, on_error=on_error, breaker=BREAKER)
        told = str(caught.value)
        assert "the service of Service has given no answer for 100 s, the max_open of its circuit breaker" in told
        assert "ConnectionError: down" in told
        assert len(service.calls) <= 15 + 100 / 5

    def test_it_tells_of_the_last_call_that_tried_the_service(self) -> None:
        """It told of a failed connection of long ago, and of no answer, while each call was a KeyError."""

        async def asked(x: int) -> int:
            await asyncio.sleep(0.1)
            if now() < 20:
                raise ConnectionError("down")
            raise KeyError("title")

        with task_fails() as caught:
            run_rows(asked, range(2000), capacity=5, on_error="null", breaker=BREAKER, max_failures=1.0)
        assert "the circuit breaker of asked has been open for 100 s, its max_open, and no call" in str(caught.value)
        assert "the last that tried it ended with KeyError: 'title', which says nothing about" in str(caught.value)


class TestRowsThatAreToBlame:
    @pytest.mark.parametrize("rows", [1, 5, 9])
    def test_fewer_than_the_window_never_open_it(self, rows: int) -> None:
        service = Service(1.0, down=(0, 1e9))
        assert run_rows(service, range(rows), on_error="null", breaker=BREAKER) == [None] * rows

    def test_a_bad_row_among_good_ones_is_known_after_a_window(self) -> None:
        function = ManualFunction()
        breaker = CircuitBreaker(window=4)
        with OperatorHarness(
            function, output_mode="unordered", capacity=2, on_error="null", breaker=breaker
        ) as harness:
            harness.put("bad", *range(10))
            harness.fail("bad", ConnectionError())
            for row in range(3):
                harness.complete(row, row)
            assert harness.output == [0, 1, 2], "it may be the first of many yet"
            harness.complete(3, 3)
            assert set(harness.output) == {0, 1, 2, 3, None}

    def test_an_error_of_the_row_itself_waits_for_nothing(self) -> None:
        function = ManualFunction()
        with OperatorHarness(function, capacity=2, on_error="null", breaker=BREAKER) as harness:
            harness.put("a", "b")
            harness.fail("a", ValueError("bad"))
            assert harness.output == [None]

    def test_when_no_more_rows_come_for_now_they_do_not_wait(self) -> None:
        """The next row may come tomorrow."""
        function = ManualFunction()
        with OperatorHarness(function, on_error="null", breaker=BREAKER) as harness:
            harness.put("a", "b")
            harness.fail("a", ConnectionError())
            assert harness.output == []
            harness.complete("b", "B")
            assert harness.output == [None, "B"]

    def test_answers_of_the_service_never_open_it(self) -> None:
        class MissingError(Exception):
            status = 404

        service = Service(0.1, error=MissingError(), down=(0, 1e9))
        assert run_rows(service, range(50), capacity=5, on_error="null", breaker=BREAKER) == [None] * 50
        assert len(service.calls) == 50

    def test_a_row_whose_coroutine_runs_on_is_ended_by_its_deadline(self) -> None:
        """It held the only slot for three hours."""
        ended = []

        class RunsOn(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete_exceptionally(ConnectionError())
                try:
                    await asyncio.sleep(10_000 if value == {"x": 0} else 0)
                finally:
                    ended.append(now())

        rows = [{"x": x} for x in range(3)]
        assert run_rows(RunsOn(), rows, capacity=1, timeout=50.0, on_error="null", breaker=BREAKER) == [None] * 3
        assert ended == [50, 50, 50]


class TestFailureOn:
    @pytest.mark.parametrize(
        "failure_on", [KeyError, (KeyError, ValueError), lambda error: isinstance(error, KeyError)]
    )
    def test_it_says_what_counts(self, failure_on: Any) -> None:
        breaker = CircuitBreaker(window=10, open_for=5.0, failure_on=failure_on)
        service = Service(1.0, down=(0, 30), error=KeyError("maintenance"))
        assert None not in run_rows(service, range(50), capacity=5, on_error="null", breaker=breaker)
        others = Service(1.0, down=(0, 30))
        assert None in run_rows(others, range(50), capacity=5, on_error="null", breaker=breaker)

    @pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
    @pytest.mark.parametrize("way", ["raises", "hangs", "future"])
    def test_one_that_fails_ends_the_job_and_says_so(self, error: type[BaseException], way: str) -> None:
        def broken(seen: BaseException) -> bool:
            raise error("predicate")

        class Told(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                if way == "raises":
                    raise ConnectionError
                if way == "future":
                    result_future.complete_exceptionally(ConnectionError())
                await asyncio.sleep(100)

        breaker = CircuitBreaker(failure_on=broken)
        with task_fails(match=f"failure_on of .* Told must say .* raised {error.__name__}"):
            run_rows(Told(), [{"x": 1}], timeout=5.0, on_error="null", breaker=breaker)

    def test_a_refusal_shows_that_the_service_is_back(self) -> None:
        """Each row that tried it got a 404, which said nothing: after `max_open` seconds the job failed."""

        class MissingError(Exception):
            status = 404

        async def asked(x: int) -> int:
            await asyncio.sleep(0.1)
            if now() < 20:
                raise ConnectionError
            if now() < 40:
                raise MissingError
            return x

        breaker = CircuitBreaker(window=10, open_for=5.0, max_open=100.0, failure_on=ConnectionError)
        got = figures(asked, range(300), capacity=5, on_error="null", breaker=breaker)
        assert (got.failures, got.seconds) == (300, pytest.approx(26, abs=2))

    def test_an_answer_that_has_to_be_awaited_ends_the_job(self, recwarn: pytest.WarningsRecorder) -> None:
        """It was true of any error."""

        async def later(error: BaseException) -> bool:
            return False

        breaker = CircuitBreaker(failure_on=lambda error: later(error))  # type: ignore[arg-type,return-value]
        service = Service(0.1, bad=[3], error=KeyError("x"))
        with task_fails(match=r"failure_on of .* TypeError: it answers with a coroutine, which"):
            run_rows(service, range(9), on_error="null", breaker=breaker)
        assert not recwarn.list


class TestBesideOthers:
    def test_a_smaller_one_is_refused(self) -> None:
        """Behind a full queue nothing more could be tried: rows became nulls before the breaker could open."""
        with pytest.raises(OptionError, match=r"queue_size must be at least 15, not 14: capacity and the breaker's"):
            run_rows(Service(), [1], capacity=5, queue_size=14, breaker=BREAKER)

    def test_a_rate_limit_holds_for_those_that_try(self) -> None:
        service = Service(0.0, down=(0, 60))
        limit = RateLimit(1, per=8.0)
        run_rows(service, range(14), on_error="null", breaker=BREAKER, rate_limit=limit)
        assert service.times == [8.0 * n for n in range(len(service.times))]

    @pytest.mark.parametrize("error_ttl", [None, 1000.0])
    def test_no_failure_is_stored_for_it(self, error_ttl: float | None) -> None:
        service, store = Service(1.0, down=(0, 30)), SlowStore()
        store.error_ttl = error_ttl

        @async_pandas_udf("double", store=store, version="1", capacity=5, on_error="null", breaker=BREAKER)
        async def looked_up(x: int) -> float:
            return await service(x)

        got = run_rows(looked_up, [*range(40), *range(40)])
        assert None not in got
        assert sorted(row for row, time in service.calls if time >= 30) == list(range(40)), "once for equal rows"

    def test_its_time_goes_to_the_breaker(self) -> None:
        found = figures(Service(1.0, down=(0, 30)), range(50), capacity=5, on_error="null", breaker=BREAKER)
        assert 25 < found.time["breaker"] <= 30
        assert (found.failures, found.rows) == (0, 50)
