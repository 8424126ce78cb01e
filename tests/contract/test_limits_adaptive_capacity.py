"""`capacity="auto"` and `job_capacity`: how many calls are in flight. Virtual clock."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from asyncudf import AdaptiveCapacity, CircuitBreaker, OptionError, RetryStrategy
from asyncudf.testing import run_rows
from tests.kit.figures import figures
from tests.kit.limited import Service, ThrottledError, now


class Saturating:
    """A service that works on so many requests at once; others wait for their turn."""

    def __init__(self, places: int, seconds: float = 0.1) -> None:
        self.places, self.seconds = places, seconds
        self.free: asyncio.Semaphore | None = None
        self.in_flight = self.peak = 0
        self.seen: list[tuple[float, int]] = []

    async def __call__(self, x: int) -> int:
        if self.free is None:
            self.free = asyncio.Semaphore(self.places)
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        self.seen.append((now(), self.in_flight))
        try:
            async with self.free:
                await asyncio.sleep(self.seconds)
        finally:
            self.in_flight -= 1
        return x


class TestAuto:
    def test_it_finds_what_the_service_can_do(self) -> None:
        service = Saturating(40)
        found = figures(service, range(10_000), capacity="auto")
        assert found.seconds < 1.25 * 10_000 / 40 * 0.1
        late = [flying for time, flying in service.seen if time > 10]
        assert 30 < sum(late) / len(late) < 75

    def test_never_more_than_its_maximum_nor_less_than_its_minimum(self) -> None:
        service = Saturating(1000)
        run_rows(service, range(3000), capacity=AdaptiveCapacity(3, 17))
        assert service.peak == 17
        assert [flying for _, flying in service.seen[:3]] == [1, 2, 3]

    def test_throttled_calls_make_it_less(self) -> None:
        """A service that refuses what comes beyond 20 calls: few are refused in the long run."""
        refused = 0
        flying = 0

        async def strict(x: int) -> int:
            nonlocal refused, flying
            flying += 1
            try:
                if flying > 20:
                    refused += 1
                    await asyncio.sleep(0.01)
                    raise ThrottledError(None)
                await asyncio.sleep(0.1)
            finally:
                flying -= 1
            return x

        retry = RetryStrategy.exponential_backoff(50, 0.1, 1.0, jitter=False)
        assert len(run_rows(strict, range(10_000), capacity="auto", retry=retry)) == 10_000
        assert refused < 500

    @pytest.mark.parametrize("error", [ThrottledError(None), None], ids=["refused", "hangs"])
    @pytest.mark.parametrize("failure_on", [None, ConnectionError])
    def test_what_a_breaker_takes_for_a_failure_is_not_its_affair(self, error: Any, failure_on: Any) -> None:
        """With a `failure_on=` of the user's it saw no 429 and no timeout, and lost almost all rows."""
        flying = 0

        async def strict(x: int) -> int:
            nonlocal flying
            flying += 1
            try:
                if flying > 20:
                    await asyncio.sleep(0 if error else 30)
                    raise error or AssertionError
                await asyncio.sleep(0.1)
            finally:
                flying -= 1
            return x

        breaker = CircuitBreaker(1.0, failure_on=failure_on)
        options: dict[str, Any] = {"capacity": "auto", "attempt_timeout": 1.0, "on_error": "null"}
        assert run_rows(strict, range(5000), breaker=breaker, **options).count(None) < 500

    @pytest.mark.parametrize("since", [0.0, 5.0])
    @pytest.mark.parametrize("share", [0.06, 0.3])
    def test_failures_that_come_however_few_are_in_flight_are_no_reason_for_fewer(
        self, share: float, since: float
    ) -> None:
        """One call at a time was left where 6% or more failed at random: 711 s in the place of 21."""
        service, rng = Saturating(40), random.Random(1)

        async def failing(x: int) -> int:
            result = await service(x)
            if now() >= since and rng.random() < share:
                raise ConnectionError
            return result

        retry = RetryStrategy.fixed_delay(20, 0.1)
        found = figures(failing, range(5000), capacity="auto", retry=retry)
        assert found.seconds < 2 * 5000 / 40 * 0.1 / (1 - share)

    @pytest.mark.parametrize("value", [0, -1, "automatic", 1.5, None, True])
    def test_what_it_may_be(self, value: Any) -> None:
        with pytest.raises(OptionError, match="capacity must be"):
            run_rows(Service(), [1], capacity=value)
        with pytest.raises(OptionError, match=r"maximum must be at least minimum \(4\), not 3"):
            AdaptiveCapacity(4, 3)


class TestJobCapacity:
    """In one task, which is the whole job."""

    @pytest.mark.parametrize("capacity", [1, 3, 4, 100])
    @pytest.mark.parametrize("seconds", [0.0, 1.0])
    def test_so_many_at_most(self, capacity: int, seconds: float) -> None:
        """With as many slots as job_capacity nothing ever began again."""
        service = Service(seconds)
        assert len(run_rows(service, range(50), capacity=capacity, job_capacity=3)) == 50
        assert service.peak <= 3

    def test_it_is_used_to_the_full(self) -> None:
        found = figures(Service(1.0), range(30), capacity=100, job_capacity=3)
        assert (found.seconds, found.in_flight["peak"]) == (10, 3)
        assert found.time["limit"] == pytest.approx(9)

    def test_rows_that_wait_for_another_attempt_do_not_count(self) -> None:
        service = Service(0.0, down=(0, 1))
        retry = RetryStrategy.fixed_delay(2, 10.0)
        assert run_rows(service, range(5), job_capacity=1, retry=retry) == [10] * 5

    def test_a_call_that_was_given_up_makes_room(self) -> None:
        async def hangs(x: int) -> int:
            await asyncio.sleep(1000 if x == 0 else 1)
            return x

        assert run_rows(hangs, range(3), job_capacity=1, timeout=5.0, on_error="null") == [None, 1, 2]


@pytest.mark.parametrize(("broken", "least"), [(0.2, 1_500), (1.0, 850)])
def test_a_size_that_broke_the_service_is_approached_with_care(broken: float, least: float) -> None:
    """Of 2,500 calls per second there were 933 and 307: it went over the cliff again every few rounds."""
    rows, in_flight, end = 50_000, 0, 0.0

    async def service(x: int) -> int:
        nonlocal in_flight, end
        in_flight += 1
        await asyncio.sleep(0.02 if in_flight <= 50 else broken)
        in_flight -= 1
        end = now()
        return x

    assert run_rows(service, range(rows), capacity="auto") == list(range(rows))
    assert rows / end >= least
