"""A refused row waits alone, and uses no attempt; all calls pause only when the answers show a limit for all."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from asyncudf import AsyncUDFError, RetryStrategy
from asyncudf.testing import ManualFunction, OperatorHarness, run_rows
from tests.kit.costs import python_calls
from tests.kit.engines import Engine
from tests.kit.figures import figures
from tests.kit.limited import Service, ThrottledError
from tests.kit.unwell_services import record, unwell

RETRY = RetryStrategy.fixed_delay(attempts=2, delay=1.0)
WAYS = pytest.mark.parametrize("more", [{}, {"retry": RETRY}, {"job_capacity": 50}], ids=["plain", "retry", "gates"])


def throttled(until: float, seconds: float | str = 10, status: int = 429) -> Service:
    """Refuses all calls until then."""
    return Service(0.0, down=(0, until), error=ThrottledError(seconds, status))


class TestARefusedRow:
    @WAYS
    @pytest.mark.parametrize("status", [429, 503])
    def test_waits_as_long_as_it_was_asked_to_and_is_not_lost(self, more: Any, status: int) -> None:
        """Also without a retry strategy: the service has said when it will answer."""
        service = throttled(15, 10, status)
        assert run_rows(service, [1, 2, 3], capacity=2, **more) == [20, 20, 20]
        assert set(service.times) == {0, 10, 20}

    def test_others_go_on(self) -> None:
        function = ManualFunction()
        with OperatorHarness(function, capacity=2) as harness:
            harness.put("a", "b", "c")
            harness.fail("a", ThrottledError(10))
            assert function.running == ["b", "c"], "its slot is free at once"
            harness.complete("b", "B")
            harness.complete("c", "C")
            harness.advance(9.9)
            assert function.running == []
            harness.advance(0.1)
            assert function.running == ["a"]
            harness.complete("a", "A")
            assert harness.output == ["A", "B", "C"]

    def test_no_attempt_is_used_up(self) -> None:
        """Throttled twice and failed once, with two attempts."""
        function = ManualFunction()
        with OperatorHarness(function, retry=RETRY) as harness:
            harness.put("a")
            for _ in range(2):
                harness.fail("a", ThrottledError(10))
                harness.advance(10.0)
            harness.fail("a", ValueError())
            harness.advance(1.0)
            harness.complete("a", "A")
            assert harness.output == ["A"]

    @pytest.mark.parametrize(
        ("asked", "sent", "pause"),
        [
            ("7", None, 7),
            ("1.5", None, 1.5),
            ("Wed, 21 Oct 2015 07:30:00 GMT", "Wed, 21 Oct 2015 07:28:00 GMT", 120),
            ("Wed, 21 Oct 2015 07:30:00 GMT", "Wed, 21 Oct 2015 07:20:00 GMT", 300),
            ("9e8", None, 300),
        ],
        ids=["seconds", "part of a second", "date", "date beyond the cap", "beyond the cap"],
    )
    def test_seconds_and_dates_up_to_the_cap(self, asked: str, sent: str | None, pause: float) -> None:
        service = throttled(0.5, asked)
        if sent is not None:
            service.error.headers["Date"] = sent  # type: ignore[attr-defined]
        assert run_rows(service, [1], timeout=1000) == [pause]

    @WAYS
    @pytest.mark.parametrize("asked", ["0", "-5", 0, "Wed, 21 Oct 2015 07:28:00 GMT"])
    def test_no_time_is_a_short_one(self, asked: Any, more: Any) -> None:
        """Such a row failed, though the service had only asked for patience; one that always says so is not flooded."""
        service = throttled(5.5, asked)
        assert run_rows(service, [1], **more) == [6]
        assert service.times == [*range(7)]

    @pytest.mark.parametrize(("asked", "is_over"), [(30.0, True), (29.9, False)])
    def test_it_does_not_wait_for_a_time_at_which_its_own_is_over(self, asked: float, is_over: bool) -> None:
        function = ManualFunction()
        with OperatorHarness(function, timeout=30, on_error="null") as harness:
            harness.put("a")
            harness.fail("a", ThrottledError(asked))
            assert harness.output == [None] * is_over

    def test_with_a_cap_of_0_no_pause_is_heeded(self) -> None:
        retry = RetryStrategy.fixed_delay(2, 3.0, max_retry_after=0)
        assert run_rows(throttled(1e9, 0), [1], retry=retry, on_error="null") == [None]
        assert run_rows(throttled(2, 0), [1], retry=retry) == [3]

    @pytest.mark.parametrize("asked", ["soon", "nan", None, "9" * 10**6])
    def test_without_a_time_that_can_be_read_it_waits_for_a_second(self, asked: Any) -> None:
        assert run_rows(throttled(0.5, asked), [1]) == [1]

    def test_a_service_that_forbids_another_call_is_not_called_again(self) -> None:
        service = throttled(1e9, 1)
        service.error.headers["x-should-retry"] = "false"  # type: ignore[attr-defined]
        assert run_rows(service, [1], retry=RETRY, on_error="null") == [None]
        assert service.times == [0]


class TestErrorsThatAreAnswers:
    @pytest.mark.parametrize("answer", ["an error", "a result that is not good enough"])
    def test_show_that_not_all_calls_are_refused(self, answer: str) -> None:
        """Among 404s each refusal counted as if it had followed the last one, so that ten of a thousand paused all."""

        class NotFoundError(Exception):
            status = 404

        retry = RetryStrategy.fixed_delay(2, 100.0, retry_if_result=lambda result: result == "not yet")
        function = ManualFunction()
        with OperatorHarness(function, capacity=100, on_error="null", retry=retry) as harness:
            for number in range(30):
                row = f"{number:02d}"
                harness.put(row)
                if number % 3 == 0:
                    harness.fail(row, ThrottledError(10))
                elif answer == "an error":
                    harness.fail(row, NotFoundError())
                else:
                    harness.complete(row, "not yet")
            harness.put("next")
            assert function.running == ["next"]
            harness.complete("next", "N")


class TestTheDeadline:
    @pytest.mark.parametrize("error", [ThrottledError(5), ConnectionError("row")], ids=["refused", "failed"])
    def test_is_later_by_the_pause_of_all_in_which_a_row_has_waited(self, error: Exception) -> None:
        """A row in back-off must not be lost because others make the service refuse."""
        retry = RetryStrategy.fixed_delay(2, 5.0)
        function = ManualFunction()
        rows = [str(number) for number in range(10)]
        with OperatorHarness(function, capacity=11, timeout=10.0, on_error="null", retry=retry) as harness:
            harness.put("a", *rows)
            harness.fail("a", error)
            harness.advance(1.0)
            for row in rows:
                harness.fail(row, ThrottledError(11))
            harness.advance(10.9)
            assert (function.running, harness.output) == ([], [])
            harness.advance(0.1)
            assert function.running == ["a"], "its deadline was at 10 s, and most of these were the pause"
            harness.complete("a", "A")
            assert harness.output == ["A", *[None] * 10]

    def test_still_ends_a_row_that_was_given_time_back(self) -> None:
        function = ManualFunction()
        rows = [str(number) for number in range(10)]
        with OperatorHarness(function, capacity=11, timeout=10.0, on_error="null", retry=RETRY) as harness:
            harness.put("a", *rows)
            harness.fail("a", ThrottledError(5))
            harness.advance(1.0)
            for row in rows:
                harness.fail(row, ThrottledError(11))
            harness.advance(11.0)
            assert function.running == ["a"]
            harness.advance(8.9)
            assert harness.output == []
            harness.advance(0.2)
            assert harness.output == [None] * 11


class TestAfterwards:
    @pytest.mark.parametrize("refusals", [1, 10], ids=["of a row", "of all"])
    def test_rows_take_the_short_way_again(self, refusals: int) -> None:
        """When nothing contradicts any more no call has to ask, as before the refusals."""

        def spent(error: Exception) -> int:
            first = range(-refusals, 0)
            service = Service(0.0, bad=first, error=error)
            engine = Engine(service, capacity=5, on_error="null", timeout=5.0)
            engine.feed(first)
            engine.loop.call_at(50.0, engine.feed, ["the probe"])
            engine.loop.call_at(100.0, engine.feed, range(1000))
            engine.loop.call_at(101.0, engine.end)
            calls = python_calls(engine.run)
            assert engine.output == [None] * refusals + [50.0] + [100.0] * 1000
            return calls

        class OtherError(ValueError):  # like a refusal it is looked through, which errors of Python's own are not
            """No refusal."""

        spent(ThrottledError(10))  # the first time in a process modules are imported, and lines of code are looked up
        assert spent(ThrottledError(10)) < spent(OtherError()) + 1000, "not even one more for each row"

    def test_it_is_counted(self) -> None:
        found = figures(throttled(15, 10), [1, 2, 3], capacity=3)
        assert (found.throttled, found.calls, found.attempts, found.failures) == (6, 3, 9, 0)
        assert found.seconds == pytest.approx(20)


@pytest.mark.parametrize("rows", [1, 20, 200])
def test_a_service_that_refuses_all_calls_for_good_ends_the_job(rows: int) -> None:
    """Time in pauses is given back, but not without end: 100 rows of 30 seconds were at it for hours."""
    service = throttled(5_000, seconds=1)
    with pytest.raises(AsyncUDFError, match="ThrottledError"):
        run_rows(service, range(rows), timeout=30, job_capacity=100)
    assert service.times[-1] <= 30 + 300 + 30


def test_the_end_of_the_input_and_a_snapshot_keep_what_waits() -> None:
    function = ManualFunction()
    with OperatorHarness(function, capacity=1) as harness:
        harness.put("a", "b")
        harness.fail("a", ThrottledError(10))
        harness.complete("b", "B")
        harness.end()
        assert ([element.value for element in harness.snapshot()], harness.is_done) == ([("a",), ("b",)], False)  # type: ignore[union-attr]
        harness.advance(10.0)
        harness.complete("a", "A")
        assert (harness.output, harness.is_done) == (["A", "B"], True)


@pytest.mark.parametrize("seed", [1, 4])
def test_a_service_that_refuses_many_at_random_does_not_stall_the_job(seed: int) -> None:
    rng, end = random.Random(seed), 0.0

    async def ask(row: int) -> int:
        nonlocal end
        await asyncio.sleep(0.1)
        end = asyncio.get_running_loop().time()
        if rng.random() < 0.4:
            raise ThrottledError
        return row

    assert run_rows(ask, range(2000), capacity=100) == [*range(2000)]
    assert end < 300  # 1,463 and 4,421 s where only a pace that had hardly grown showed that lower paces do not help


def test_a_service_that_takes_few_slow_calls_at_once_is_not_called_in_vain() -> None:
    """20 at once, of 2 s each, refused in 1 ms: 97% of the calls were refused, as if it refused them at random."""
    recording = record(unwell(117, is_shared=False), None)
    assert (recording.given_up, recording.refused < 150) == (0, True)  # 30 of them at once; were 12,739
    assert recording.seconds < 45  # of 34 at least
