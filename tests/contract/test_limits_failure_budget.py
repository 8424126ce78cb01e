"""`max_failures`: a job does not end as a table of nulls; it stops, and says what went wrong most. Virtual clock."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncudf import OptionError, async_pandas_udf
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

    @pytest.mark.parametrize("value", [-1, 1.0, 0.0, 1.5, float("nan"), "2%", True, -0.1])
    def test_it_is_a_count_or_a_share(self, value: Any) -> None:
        with pytest.raises(OptionError, match="max_failures must be a whole number of rows, or a share of them"):
            run_rows(Bad(odd), [1], max_failures=value, on_error="null")


def test_while_a_call_waits_at_a_limit_the_job_ends_at_once() -> None:
    from asyncudf import RateLimit

    ended = []

    async def bad(x: int) -> None:
        ended.append(now())
        raise ValueError

    with task_fails():
        run_rows(bad, range(5), max_failures=1, on_error="null", rate_limit=RateLimit(1, per="hour", burst=2))
    assert ended == [0, 0]
