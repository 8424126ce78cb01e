"""`max_failures`: a job does not end as a table of nulls; it stops, and says what went wrong most. Virtual clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncudf import OptionError, RetryStrategy, RuntimeContext, async_pandas_udf
from asyncudf.testing import ManualFunction, OperatorHarness, run_rows
from tests.kit.errors import task_fails
from tests.kit.limited import Service, now
from tests.kit.stores import SlowStore


class Bad:
    """Fails for some rows, with one error in ten that is another."""

    def __init__(self, bad: Any, seconds: float = 0.0) -> None:
        self.bad, self.seconds = bad, seconds
        self.calls = 0

    async def __call__(self, x: int) -> int:
        self.calls += 1
        await asyncio.sleep(self.seconds)
        if self.bad(x):
            raise KeyError("rare") if x % 10 == 0 else ValueError(f"no {x}")
        return x


def odd(x: int) -> bool:
    return x % 2 == 1


class TestACount:
    @pytest.mark.parametrize("on_error", ["null", "capture"])
    def test_so_many_may_fail(self, on_error: Any) -> None:
        assert len(run_rows(Bad(lambda x: x < 3), range(20), max_failures=3, on_error=on_error)) == 20
        with task_fails(match=r"4 of \d+ rows of Bad failed, more than max_failures= allows \(3 may\)"):
            run_rows(Bad(lambda x: x < 4), range(20), max_failures=3, on_error=on_error)

    def test_it_stops_at_once(self) -> None:
        bad = Bad(odd, seconds=1.0)
        with task_fails():
            run_rows(bad, range(1000), capacity=10, max_failures=3, on_error="null")
        assert bad.calls <= 20

    def test_the_errors_are_told_by_how_often_they_came(self) -> None:
        with task_fails() as caught:
            run_rows(Bad(lambda x: True), range(1000), max_failures=30, on_error="null")
        assert str(caught.value).splitlines() == [
            "31 of 31 rows of Bad failed, more than max_failures= allows (30 may): ValueError (27), KeyError (4)",
            "  for example KeyError: 'rare'",
            "  for example ValueError: no 1",
            "  for example ValueError: no 2",
        ]

    def test_with_no_secret(self) -> None:
        async def secret(x: int) -> None:
            raise ConnectionError("https://me:secret@host/?key=secret")

        with task_fails(match="host") as caught:
            run_rows(secret, [1], max_failures=0, on_error="null")
        assert "secret@" not in str(caught.value)
        assert "key=" not in str(caught.value)


class TestAShare:
    def test_it_counts_after_a_hundred_rows(self) -> None:
        assert len(run_rows(Bad(odd), range(99), max_failures=0.02, on_error="null")) == 99
        bad = Bad(odd)
        with task_fails(match=r"50 of 100 rows .* \(2% may\): ValueError \(50\)"):
            run_rows(bad, range(1000), max_failures=0.02, on_error="null")
        assert bad.calls <= 200

    @pytest.mark.parametrize(("rows", "is_said"), [(4, False), (60, True)])
    def test_a_task_of_fewer_rows_says_that_it_judges_none(
        self, rows: int, is_said: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A table in small partitions was a column of NULLs, with a bound of 2%."""
        assert run_rows(Bad(odd), range(rows), max_failures=0.02, on_error="null").count(None) == rows // 2
        assert (
            "30 of the 60 rows of Bad in this task failed, more than max_failures= allows" in caplog.text
        ) is is_said

    def test_also_at_the_end(self) -> None:
        """All failures come among the first hundred rows, in which they count for nothing yet."""
        with task_fails(match=r"50 of 100 rows"):
            run_rows(Bad(lambda x: x < 50), range(100), max_failures=0.3, on_error="null")

    def test_rows_in_flight_are_not_done(self) -> None:
        function = ManualFunction()
        with OperatorHarness(function, capacity=200, max_failures=0.5, on_error="null") as harness:
            harness.put(*range(150))
            for row in range(99):
                harness.fail(row, ValueError())
            assert not harness.is_done
            harness.fail(99, ValueError())
            with task_fails(match="100 of 100 rows"):
                assert harness.is_done


class TestWhatIsAFailure:
    def test_not_an_answer_of_on_timeout(self) -> None:
        assert run_rows(Service(10.0), [1], timeout=5.0, on_timeout=-1.0, max_failures=0, on_error="null") == [-1.0]

    def test_a_batch_that_failed_is_a_share_of_all_its_rows(self) -> None:
        """Not of those before it."""
        import pandas as pd

        async def bad(x: pd.Series) -> pd.Series:
            if x[0] >= 100:
                raise ValueError("batch")
            return x

        options: dict[str, Any] = {"returnType": "long", "batch_size": 50, "on_error": "null"}
        assert run_rows(bad, range(150), max_failures=0.4, **options)[100:] == [None] * 50
        with task_fails(match=r"50 of 150 rows"):
            run_rows(bad, range(150), max_failures=0.3, **options)

    def test_one_that_comes_from_the_store(self) -> None:
        store = SlowStore()
        store.error_ttl = 1000.0

        @async_pandas_udf("int", store=store, version="1", on_error="null")
        async def looked_up(x: int) -> int:
            raise LookupError("nobody")

        assert run_rows(looked_up, [1, 2, 3]) == [None] * 3
        with task_fails(match="rows of looked_up failed"):
            run_rows(looked_up, [1, 2, 3], max_failures=2)


class TestTheOption:
    def test_it_needs_a_policy_that_goes_on(self) -> None:
        with pytest.raises(OptionError, match=r"max_failures is never used with on_error='raise'.* 'dead_letter'"):
            run_rows(Bad(odd), [1], max_failures=3)

    @pytest.mark.parametrize("value", [-1, 0.0, 1.5, float("nan"), "2%", True, -0.1])
    def test_it_is_a_count_or_a_share(self, value: Any) -> None:
        with pytest.raises(OptionError, match="max_failures must be a whole number of rows, or a share of them"):
            run_rows(Bad(odd), [1], max_failures=value, on_error="null")


class TestAFunctionThatIsWrongItself:
    """Under "null", without max_failures: a column of NULLs is what nobody wanted."""

    @pytest.mark.parametrize(
        "mistake",
        [
            lambda: {}["temp"],
            lambda: [][0],
            lambda: None.temp,  # type: ignore[attr-defined]
            lambda: "a" + 1,  # type: ignore[operator]
            lambda: undefined,  # type: ignore[name-defined]  # noqa: F821
            lambda: __import__("no_such_module_here"),
            lambda: "no number",  # of a function that declares one
        ],
        ids=[
            "KeyError",
            "IndexError",
            "AttributeError",
            "TypeError",
            "NameError",
            "ModuleNotFoundError",
            "ResultError",
        ],
    )
    def test_it_ends_the_task_after_the_first_hundred_rows(self, mistake: Any, request: pytest.FixtureRequest) -> None:
        called = []

        async def wrong(x: int) -> int:
            called.append(x)
            await asyncio.sleep(0.01)
            return mistake()

        with task_fails(match=r"wrong failed for each of the first 1\d\d rows of a task") as caught:
            run_rows(wrong, range(1000), on_error="null", capacity=10)
        assert f"{request.node.callspec.id} (1" in str(caught.value)
        assert "max_failures=1.0 lets such rows be NULL" in str(caught.value)
        assert len(called) < 120

    def test_fewer_rows_say_nothing(self) -> None:
        assert run_rows(wrong_for(lambda x: True), range(99), on_error="null") == [None] * 99

    @pytest.mark.parametrize("good", [0, 50, 99])
    def test_one_good_row_shows_that_it_can_be_right(self, good: int) -> None:
        results = run_rows(wrong_for(lambda x: x != good), range(300), on_error="null", capacity=1)
        assert (results[good], results.count(None)) == (good, 299)

    def test_one_row_that_the_service_has_failed_leaves_it_open(self) -> None:
        async def asked(x: int) -> int:
            if x == 50:
                raise ConnectionError("reset")
            return {}["temp"]  # type: ignore[no-any-return]

        assert run_rows(asked, range(300), on_error="null") == [None] * 300

    @pytest.mark.parametrize("output_mode", ["ordered", "unordered"])
    @pytest.mark.parametrize("capacity", [10, 100, 1000])
    def test_good_rows_may_be_slower_than_mistakes(self, capacity: int, output_mode: Any) -> None:
        """With a column that is NULL in four of five rows the job ended: 100 rows had failed at once, before the first
        of the others had its answer."""

        async def asked(x: int) -> int:
            if x % 5:
                raise AttributeError("'NoneType' object has no attribute 'strip'")
            await asyncio.sleep(1)
            return x

        results = run_rows(asked, range(1000), on_error="null", capacity=capacity, output_mode=output_mode)
        assert results.count(None) == 800

    def test_a_good_row_may_wait_for_its_next_attempt(self) -> None:
        async def asked(x: int, context: RuntimeContext) -> int:
            if x:
                raise KeyError("name")
            if context.attempt_number == 1:
                raise ConnectionError("reset")
            return x

        retry = RetryStrategy.fixed_delay(attempts=2, delay=60.0, retry_on=(ConnectionError,))
        assert run_rows(asked, range(300), on_error="null", retry=retry) == [0] + [None] * 299

    @pytest.mark.parametrize("capacity", [1, 150])
    def test_they_end_the_job_at_its_end_too(self, capacity: int) -> None:
        async def wrong(x: int) -> int:
            await asyncio.sleep(1)
            return {}["temp"]  # type: ignore[no-any-return]

        with task_fails(match=r"each of the first \d\d\d rows"):
            run_rows(wrong, range(100 if capacity == 1 else 150), on_error="null", capacity=capacity)

    def test_of_two_calls_of_many_rows_one_may_fail_because_of_one_row(self) -> None:
        import pandas as pd

        async def asked(x: pd.Series) -> pd.Series:
            if (x == 3).any():
                raise KeyError("no such city")
            return x

        results = run_rows(asked, range(200), returnType="long", on_error="null", batch_size=100)
        assert results == [None] * 100 + [*range(100, 200)]

    def test_rows_that_were_not_called_are_no_good_rows(self) -> None:
        rows = [None if x % 2 else x for x in range(400)]
        with task_fails(match=r"each of the first \d\d\d rows"):
            run_rows(wrong_for(lambda x: True), rows, on_error="null", on_null_input="null")

    def test_an_attempt_that_is_tried_again_counts_with_its_row(self) -> None:
        retry = RetryStrategy.fixed_delay(attempts=3, delay=1.0)
        with task_fails(match=r"each of the first \d\d\d rows"):
            run_rows(wrong_for(lambda x: True), range(200), on_error="null", retry=retry)

    @pytest.mark.parametrize("batch_size", [1, 7, 100, 150])
    def test_rows_that_are_called_together_count_each(self, batch_size: int) -> None:
        import pandas as pd

        async def wrong(x: pd.Series) -> pd.Series:
            return x["temp"]

        with task_fails(match=r"each of the first \d\d\d rows of a task.*KeyError"):
            run_rows(wrong, range(500), returnType="int", on_error="null", batch_size=batch_size)

    @pytest.mark.parametrize("options", [{"max_failures": 1.0}, {"max_failures": 1000}, {"on_error": "capture"}])
    def test_it_may_be_wrong_where_that_was_said_or_can_be_seen(self, options: Any) -> None:
        results = run_rows(wrong_for(lambda x: True), range(300), **{"on_error": "null", **options})
        assert len(results) == 300

    def test_with_a_store_whose_results_are_right_it_goes_on(self) -> None:
        store = SlowStore()

        @async_pandas_udf("int", store=store, version="1", on_error="null")
        async def looked_up(x: int) -> int:
            if x >= 50:
                raise KeyError("temp")
            return x

        run_rows(looked_up, range(50))
        assert run_rows(looked_up, range(400)).count(None) == 350

    def test_the_input_stays_out_of_the_message_where_it_may_be_secret(self) -> None:
        async def wrong(x: str) -> int:
            return x  # type: ignore[return-value]

        with task_fails(match=r"each of the first \d\d\d rows") as caught:
            run_rows(wrong, ["SECRET"] * 200, on_error="null", redact=True)
        assert "SECRET" not in str(caught.value)


def wrong_for(bad: Any) -> Any:
    async def wrong(x: int) -> int:
        return {}["temp"] if bad(x) else x

    return wrong


def test_while_a_call_waits_at_a_limit_the_job_ends_at_once() -> None:
    from asyncudf import RateLimit

    ended = []

    async def bad(x: int) -> None:
        ended.append(now())
        raise ValueError

    with task_fails():
        run_rows(bad, range(5), max_failures=1, on_error="null", rate_limit=RateLimit(1, per="hour", burst=2))
    assert ended == [0, 0]
