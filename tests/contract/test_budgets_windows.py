"""Budgets of windows and keys: each has the amount, and only rows of one that is spent are left out. Virtual clock."""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf import AsyncFunction, Budget, FatalError, OptionError, ResultFuture, RetryStrategy
from asyncudf.testing import run_rows
from tests.kit.figures import figures

DAY = 86_400.0


async def ask(tenant: Any, x: int) -> float:
    begun = asyncio.get_running_loop().time()
    await asyncio.sleep(1.0)
    return begun


def called(rows: list[Any], answers: list[Any]) -> list[Any]:
    """The rows that were called."""
    return [row for row, answer in zip(rows, answers, strict=True) if answer is not None]


class TestWindows:
    def test_each_window_has_the_amount(self) -> None:
        """Rows of a window that is spent are left out; they do not wait for the next one."""
        begun: list[float] = []

        async def ask(x: int) -> int:
            begun.append(asyncio.get_running_loop().time())
            await asyncio.sleep(1.0)
            return x

        budget = Budget(2, "calls", per="day")
        batches = [(DAY - 0.5, range(10, 13)), (DAY + 5, range(20, 22)), (3 * DAY, range(30, 33))]
        found = figures(ask, range(3), batches=batches, budget=budget, on_spent="null")
        assert begun == [0, 0, DAY + 5, DAY + 5, 3 * DAY, 3 * DAY]
        assert found.unpaid == 1 + 3 + 1

    def test_an_attempt_belongs_to_the_window_in_which_it_began(self) -> None:
        """It ends after midnight, for less than it had reserved: the next day has its amount, no more and no less."""
        begun: list[float] = []

        async def ask(x: int) -> float:
            begun.append(asyncio.get_running_loop().time())
            await asyncio.sleep(10.0)
            return 0.25 if x < 10 else 1.0

        budget = Budget(3, reserve=1, settle=lambda x, cost: cost, per="day")
        batches = [(DAY - 5, range(3)), (DAY + 1, range(10, 20))]
        figures(ask, [], batches=batches, budget=budget, on_spent="null", capacity=100)
        assert begun == [DAY - 5] * 3 + [DAY + 1] * 3

    @pytest.mark.parametrize("by", [None, "x"])
    def test_a_call_that_waits_for_others_in_flight_begins_at_midnight(self, by: str | None) -> None:
        begun: list[float] = []

        async def ask(x: int) -> float:
            begun.append(asyncio.get_running_loop().time())
            await asyncio.sleep(60.0)
            return 1.0

        budget = Budget(1, reserve=1, settle=lambda x, cost: cost, per="day", by=by)
        figures(ask, [], batches=[(DAY - 5, [0, 0])], budget=budget, on_spent="null")
        assert begun == [DAY - 5, DAY]

    def test_each_attempt_counts_where_it_begins(self) -> None:
        begun: list[float] = []

        async def ask(x: int) -> int:
            begun.append(asyncio.get_running_loop().time())
            raise OSError

        retry = RetryStrategy.fixed_delay(4, 10.0)
        budget = Budget(1, "calls", per=15)
        assert run_rows(ask, [1], budget=budget, retry=retry, on_spent="null", on_error="null") == [None]
        assert begun == [0.0], "the second attempt had no budget left"
        begun.clear()
        retry = RetryStrategy.fixed_delay(4, 20.0)
        run_rows(ask, [1], budget=budget, retry=retry, on_spent="null", on_error="null")
        assert begun == [0.0, 20.0, 40.0, 60.0]


class TestKeys:
    def test_rows_of_a_key_that_is_spent_are_left_out_and_others_go_on(self) -> None:
        rows: list[Any] = [("a", 1), ("a", 2), ("b", 3), ("a", 4), (None, 5), ("b", 6), ("b", 7), (None, 8)]
        budget = Budget(2, "calls", by="tenant")
        answers = run_rows(ask, rows, budget=budget, on_spent="null", capacity=1)
        assert called(rows, answers) == [("a", 1), ("a", 2), ("b", 3), (None, 5), ("b", 6), (None, 8)]
        found = figures(ask, rows, budget=budget, on_spent="null", capacity=1)
        assert (found.unpaid, found.spent_keys) == (2, 2)

    def test_a_spent_key_ends_the_task_when_calls_of_others_have_ended(self) -> None:
        """It waited for the end of a call of its own, which there was none of."""

        async def takes(tenant: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            ended.append(tenant)

        ended: list[str] = []
        with pytest.raises(FatalError, match="has spent 1 of its budget of 1 calls by \"tenant\" for tenant='a'"):
            run_rows(
                takes, [("a", 1), ("b", 5), ("a", 1), ("c", 1)], capacity=2, budget=Budget(1, "calls", by="tenant")
            )
        assert ended == ["a", "b"]

    def test_keys_are_compared_as_those_of_a_store(self) -> None:
        keys = [1, 1.0, True, "1", None, [1], (1,), {"a": 1, "b": 2}, {"b": 2, "a": 1}]
        answers = run_rows(ask, [(key, 0) for key in keys], budget=Budget(1, "calls", by="tenant"), on_spent="null")
        assert [keys[i] for i, one in enumerate(answers) if one is None] == [(1,), {"b": 2, "a": 1}]
        utc = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
        same = utc.astimezone(datetime.timezone(datetime.timedelta(hours=2)))
        answers = run_rows(ask, [(utc, 0), (same, 0)], budget=Budget(1, "calls", by="tenant"), on_spent="null")
        assert answers == [0.0, None]

    def test_what_no_key_can_be_made_of_is_the_error_of_its_row(self) -> None:
        rows = [("a", 1), (object(), 2), ("a", 3)]
        options: dict[str, Any] = {"budget": Budget(9, "calls", by="tenant"), "on_error": "capture"}
        answers = run_rows(ask, rows, **options)
        assert [one["error"] is None for one in answers] == [True, False, True]
        assert 'by="tenant" can make no key of a value of type object' in answers[1]["error"]["message"]

    def test_several_parameters_make_a_key(self) -> None:
        rows = [("a", 1), ("a", 2), ("b", 1), ("a", 1)]
        answers = run_rows(ask, rows, budget=Budget(1, "calls", by=["tenant", "x"]), on_spent="null")
        assert called(rows, answers) == rows[:3]

    def test_what_is_reserved_comes_back_to_its_key(self) -> None:
        """2 USD a key and calls that may cost 1 and cost 0.5: three of each fit, and one more."""

        budget = Budget(2, reserve=1, settle=lambda tenant, x, result: 0.5, by="tenant")
        rows = [(tenant, x) for x in range(9) for tenant in "ab"]
        answers = run_rows(ask, rows, budget=budget, on_spent="null")
        assert sorted(row[0] for row in called(rows, answers)) == ["a"] * 3 + ["b"] * 3

    def test_the_job_ends_and_names_the_budget_and_the_key(self) -> None:
        budget = Budget(2, reserve=1, by=["tenant"], per="month", name="reviews")
        rows = [("acme", x) for x in range(4)]
        with pytest.raises(FatalError) as caught:
            run_rows(ask, rows, budget=budget)
        told = str(caught.value)
        assert 'ask has spent 2 of its budget of 2 USD a month by "tenant" of "reviews"' in told
        assert " for tenant='acme' in 1970-01, and the next call may cost 1. " in told
        with pytest.raises(FatalError) as caught:
            run_rows(ask, rows, budget=budget, redact=True)
        assert "acme" not in str(caught.value)
        assert " for the input <redacted: str, int> in 1970-01" in str(caught.value)

    def test_dead_letters_and_an_async_function_of_columns(self) -> None:
        class Ask(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete([value["x"]])

        rows = [{"tenant": "a", "x": 1}, {"tenant": "a", "x": 2}, {"tenant": "b", "x": 3}]
        budget = Budget(1, "calls", by="tenant")
        assert figures(Ask(), rows, budget=budget, on_spent="dead_letter").unpaid == 1

    def test_beside_a_budget_of_all_and_max_calls(self) -> None:
        rows = [(tenant, x) for x in range(4) for tenant in "abc"]
        of_each = Budget(2, reserve=1, by="tenant", name="each")
        answers = run_rows(ask, rows, budget=[Budget(5, reserve=1), of_each], on_spent="null", capacity=1)
        assert called(rows, answers) == rows[:5]
        assert run_rows(ask, rows, budget=of_each, max_calls=4, on_spent="null").count(None) == 8

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"by": "owner"}, "by='owner' needs a column: the parameters of ask that columns fill are"),
            ({"by": 3}, "by must be the name of a parameter of the function"),
            ({"by": []}, "by must be the name of a parameter"),
            ({"by": ["tenant", "tenant"]}, "by has 'tenant' twice"),
        ],
    )
    def test_names_that_cannot_be_keys_are_errors_at_once(self, given: dict[str, Any], message: str) -> None:
        with pytest.raises(OptionError, match=message):
            run_rows(ask, [("a", 1)], budget=Budget(1, reserve=1, **given))

    def test_a_function_of_many_rows_a_call_is_refused(self) -> None:
        async def ask(tenant: pd.Series) -> pd.Series:
            return tenant

        with pytest.raises(OptionError, match="by='tenant' is for functions of one row a call"):
            run_rows(ask, ["a"], budget=Budget(1, "calls", by="tenant"), returnType="string")


@given(
    amount=st.integers(1, 8),
    per=st.sampled_from([None, 3, 10]),
    is_by_key=st.booleans(),
    capacity=st.integers(1, 6),
    costs=st.lists(st.tuples(st.sampled_from([None, "a", "b"]), st.floats(0, 1)), min_size=1, max_size=40),
)
def test_no_window_and_no_key_passes_its_amount(
    amount: int, per: int | None, is_by_key: bool, capacity: int, costs: list[tuple[str | None, float]]
) -> None:
    billed: dict[Any, float] = {}

    async def ask(tenant: str | None, x: int) -> int:
        begun = asyncio.get_running_loop().time()
        await asyncio.sleep(0.5 + x % 3)
        key = (begun // per if per else 0, tenant if is_by_key else "all")
        billed[key] = billed.get(key, 0.0) + costs[x][1]
        if x % 5 == 1:
            raise ConnectionError
        return x

    budget = Budget(
        amount, reserve=1, settle=lambda tenant, x, result: costs[x][1], per=per, by="tenant" if is_by_key else None
    )
    rows = [(tenant, x) for x, (tenant, _) in enumerate(costs)]
    retry = RetryStrategy.fixed_delay(2, 0.5)
    found = run_rows(ask, rows, capacity=capacity, budget=budget, retry=retry, on_spent="null", on_error="capture")
    assert all(one <= amount * (1 + 1e-9) for one in billed.values())
    if per is None:
        for tenant, x in rows:
            if (error := found[x]["error"]) and error["type"] == "BudgetSpentError":
                assert billed[0, tenant if is_by_key else "all"] > amount - 1 - 1e-9
