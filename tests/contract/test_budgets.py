"""A budget: reserved before each attempt, settled after it, and never passed by calls in flight. Virtual clock."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from asyncudf import (
    DEAD_LETTERS,
    AsyncFunction,
    AsyncStream,
    Budget,
    FatalError,
    FunctionError,
    OptionError,
    OutputTag,
    RateLimit,
    ResultFuture,
    ResultStore,
    RetryStrategy,
    RuntimeContext,
)
from asyncudf.testing import MemoryStore, run_rows, run_stream
from tests.kit.figures import figures
from tests.kit.limited import ThrottledError

PRICES = Budget(2.0, reserve=0.5, settle=lambda question, answer: answer["price"])


async def ask(x: int) -> int:
    return x


class Paid:
    """A service that bills what an answer costs, and knows what it has billed."""

    def __init__(self, price: float = 0.3, seconds: float = 1.0) -> None:
        self.price, self.seconds, self.billed = price, seconds, 0.0

    async def __call__(self, question: str) -> dict[str, float]:
        await asyncio.sleep(self.seconds)
        self.billed += self.price
        return {"price": self.price}


@pytest.mark.parametrize("capacity", [1, 3, 100])
def test_what_was_reserved_and_not_spent_is_there_for_other_calls(capacity: int) -> None:
    """2 USD and calls that may cost 0.5: six of 0.3 fit, for before the seventh only 0.2 are left."""
    paid = Paid()
    answers = run_rows(paid, "abcdefghij", capacity=capacity, budget=PRICES, on_spent="null")
    assert [answer is not None for answer in answers] == [True] * 6 + [False] * 4
    assert paid.billed == pytest.approx(1.8)


def test_the_job_ends_with_one_message_that_says_how_the_next_run_goes_on(tmp_path: Path) -> None:
    with pytest.raises(FatalError) as caught:
        run_rows(Paid(), "abcdefghij", capacity=1, budget=PRICES, on_error="null")
    told = str(caught.value)
    assert "Paid has spent 1.80 of its budget of 2 USD, and the next call may cost 0.50" in told
    assert "6 rows of this task are done" in told
    assert "Give the budget a name= and the function a disk or Redis store, and the next run goes on" in told
    kept: dict[str, Any] = {"store": ResultStore.disk(tmp_path), "version": "1", "returnType": "price double"}
    with pytest.raises(FatalError, match=r"The store keeps results .*: the next run, with a larger amount of this"):
        run_rows(Paid(), "abcdefghij", capacity=1, budget=dataclasses.replace(PRICES, name="reviews"), **kept)


def test_figures_tell_two_budgets_of_one_unit_apart() -> None:
    """What the last one of the list had spent was told for both."""

    async def ask(x: int, context: RuntimeContext) -> float:
        context.spend(0.25, "USD")
        context.spend(7, "tokens")
        return 0.5

    day = Budget(100, reserve=1, settle=lambda x, paid: paid, name="day")
    month = Budget(1000, reserve=2, settle=lambda x, paid: 2 * paid, name="month")
    for budgets in ([day, month], [month, day]):
        told = figures(ask, range(4), budget=budgets)
        assert told.spent == {'USD of "day"': 3.0, 'USD of "month"': 5.0, "tokens": 28.0}
    assert figures(ask, range(4), budget=month).spent == {"USD": 5.0, "tokens": 28.0}


def test_rows_without_a_budget_are_dead_letters_or_captured() -> None:
    side: dict[OutputTag, list[Any]] = {}
    options: dict[str, Any] = {"capacity": 1, "budget": PRICES}
    got = run_rows(Paid(), "abcdefgh", on_spent="dead_letter", on_error="null", side_outputs=side, **options)
    assert len(got) == 6
    assert [letter["error"]["type"] for letter in side[DEAD_LETTERS]] == ["BudgetSpentError"] * 2
    captured = run_rows(Paid(), "abcdefgh", on_spent="null", on_error="capture", **options)
    assert [row["error"] and row["error"]["attempts"] for row in captured] == [None] * 6 + [0, 0]
    both = run_rows(Paid(), "abcdefgh", on_spent="dead_letter", on_error="capture", side_outputs=side, **options)
    assert len(both) == 6
    assert len(side[DEAD_LETTERS]) == 4


def test_the_errors_of_unpaid_rows_are_alike() -> None:
    """They said how many rows of the task were done, and so no two were equal."""

    async def paid(n: int) -> int:
        await asyncio.sleep(n / 100)
        return n

    budget = Budget(2, reserve=0.5)
    results = run_rows(paid, range(40), budget=budget, on_spent="null", on_error="capture", capacity=2)
    assert {one["error"]["message"] for one in results if one["error"]} == {
        "paid has spent 2 of its budget of 2 USD, and the next call may cost 0.50"
    }


@pytest.mark.parametrize(
    ("declared", "shown"),
    [
        ("label string, n int", {"label": "one", "n": 1}),
        ("string", "one"),
        ("array<string>", ["one"]),
        ("n int", {"n": 1}),
    ],
)
def test_a_dead_letter_waits_among_results_of_any_type(declared: str, shown: Any) -> None:
    """Behind a call that goes on it is weighed; as a result of the struct that was declared it ended the job."""

    async def ask(x: int) -> Any:
        await asyncio.sleep(1.0)
        return shown

    def build(stream: AsyncStream) -> dict[str, AsyncStream]:
        asked = stream.ordered_wait(ask, "x", returnType=declared, as_="y", max_calls=1, on_spent="dead_letter")
        return {"asked": asked, "letters": asked.side_output(DEAD_LETTERS)}

    got = run_stream(build, [{"x": x} for x in range(3)], "x int")
    assert [row["y"] for row in got["asked"]] == [shown]
    assert [row["x"] for row in got["letters"]] == [1, 2]


def test_the_column_of_dead_letters_is_refused_where_there_is_one_of_that_name() -> None:

    def build(stream: AsyncStream) -> AsyncStream:
        return stream.ordered_wait(ask, "x", as_="y", max_calls=1, on_spent="dead_letter")

    with pytest.raises(FunctionError, match="a dead letter of ask"):
        run_stream(build, [{"x": 1, "error": "one"}], "x int, error string")


def test_the_reservation_is_asked_of_the_arguments_and_a_cheaper_row_may_still_be_called() -> None:
    async def ask(text: str) -> int:
        return len(text)

    budget = Budget(10, "tokens", reserve=len)
    assert run_rows(ask, ["aaaaaaaa", "bbbb", "cc", "d"], budget=budget, on_spent="null", capacity=1) == [
        8,
        None,
        2,
        None,
    ]


def test_what_calls_in_flight_are_paid_for_is_kept_when_the_job_ends() -> None:
    """Three calls are begun and paid for when the fourth has no budget; their results were dropped with the job."""
    done = []

    async def ask(x: int) -> int:
        await asyncio.sleep(1)
        done.append(x)
        return x

    for options in ({"budget": Budget(3, reserve=1)}, {"max_calls": 3}):
        done.clear()
        with pytest.raises(FatalError):
            run_rows(ask, range(9), **options)  # type: ignore[arg-type]
        assert done == [0, 1, 2]


def test_small_calls_of_a_large_budget_are_counted() -> None:

    budget = Budget(1e6, reserve=lambda x: 1e6 - 1e-4 if x == 0 else 4e-5)
    assert run_rows(ask, range(6), budget=budget, on_spent="null", capacity=1)[:3] == [0, 1, 2]
    assert run_rows(ask, range(90), budget=budget, on_spent="null", capacity=1).count(None) > 50


def test_each_attempt_counts_and_a_failed_one_is_asked_what_it_cost() -> None:
    """An error of the service is billed 0.1 here; one that settle does not take is not billed."""
    asked = []

    async def ask(x: int) -> float:
        asked.append(x)
        if len(asked) < 3:
            raise OSError if x else ValueError
        return 0.2

    def settle(x: int, outcome: Any) -> float:
        return 0.1 if isinstance(outcome, OSError) else outcome + 0.0  # type: ignore[no-any-return]

    retry = RetryStrategy.fixed_delay(5, 1.0)
    found = figures(ask, [1], retry=retry, budget=Budget(9, reserve=1, settle=settle))
    assert found.spent == {"USD": pytest.approx(0.4)}
    asked.clear()
    found = figures(ask, [0], retry=retry, budget=Budget(9, reserve=1, settle=settle))
    assert found.spent == {"USD": pytest.approx(0.2)}


def test_what_is_cut_short_counts_with_its_reservation() -> None:
    """Nobody knows what the service charges for a call that was cancelled at its deadline."""
    found = figures(
        Paid(0.3, seconds=99.0), "ab", timeout=5.0, on_timeout={"price": 0.0}, budget=PRICES, on_error="null"
    )
    assert found.spent == {"USD": pytest.approx(1.0)}


def test_a_spent_budget_waits_for_calls_whose_reservation_may_come_back() -> None:
    """Three calls hold all of it; the fourth begins when the first has ended for less."""
    seconds = iter([3.0, 2.0, 1.0, 1.0])

    async def ask(x: int) -> float:
        begun = asyncio.get_running_loop().time()
        await asyncio.sleep(next(seconds))
        return begun

    budget = Budget(3, reserve=1, settle=lambda x, begun: 0.0)
    assert run_rows(ask, range(4), budget=budget, returnType="double") == [0.0, 0.0, 0.0, 1.0]


class TestSpend:
    def test_the_function_says_what_it_costs(self) -> None:
        async def ask(x: int, context: RuntimeContext) -> int:
            context.spend(0.1)
            await asyncio.sleep(1)
            context.spend(0.15)
            return x

        options: dict[str, Any] = {"budget": Budget(1, reserve=0.5), "on_spent": "null", "capacity": 1}
        assert run_rows(ask, range(5), **options) == [0, 1, 2, None, None]
        assert figures(ask, range(5), **options).spent == {"USD": pytest.approx(0.75)}

    def test_without_a_budget_it_is_counted_also_if_the_attempt_fails(self) -> None:
        async def ask(x: int, context: RuntimeContext) -> int:
            context.spend(7, "tokens")
            context.spend(0.5)
            if context.attempt_number == 1:
                raise ValueError
            return x

        found = figures(ask, range(3), retry=RetryStrategy.fixed_delay(2, 1.0))
        assert found.spent == {"tokens": 42, "USD": 3}

    def test_an_attempt_that_the_service_refused_costs_nothing(self) -> None:
        """Before it could say what it costs; and one that failed in another way may have cost what it reserved."""

        class RefusedError(Exception):
            status, headers = 429, {"retry-after": "1"}

        begun: list[int] = []

        async def ask(x: int, context: RuntimeContext) -> int:
            begun.append(x)
            if begun.count(x) == 1:
                raise RefusedError if x else OSError
            context.spend(0.1)
            return x

        options: dict[str, Any] = {"budget": Budget(9, reserve=1), "retry": RetryStrategy.fixed_delay(2, 1.0)}
        assert figures(ask, [1, 2, 3], **options).spent == {"USD": pytest.approx(0.3)}
        assert figures(ask, [0], **options).spent == {"USD": pytest.approx(1.1)}

    @pytest.mark.parametrize("amount", [-1, math.nan, math.inf, "1", None, True])
    def test_what_is_no_amount_fails_the_row(self, amount: Any) -> None:
        async def ask(x: int, context: RuntimeContext) -> int:
            context.spend(amount)
            return x

        got = run_rows(ask, [1], on_error="capture")
        assert got[0]["error"]["type"] == "ResultError"
        assert "context.spend takes a number of 0 or more, not" in got[0]["error"]["message"]


class TestWithoutAReservation:
    def test_a_task_learns_what_calls_cost(self) -> None:
        """One call at a time until a cost is known; then each reserves the most so far: six of 0.3 fit into 2 USD."""
        begun: list[float] = []

        async def ask(x: int, context: RuntimeContext) -> int:
            begun.append(asyncio.get_running_loop().time())
            await asyncio.sleep(1)
            context.spend(0.3)
            return x

        got = run_rows(ask, range(10), budget=Budget(2.0), on_spent="null")
        assert got == [0, 1, 2, 3, 4, 5, None, None, None, None]
        assert begun == [0, 1, 1, 1, 1, 1]

    def test_a_call_that_fails_before_it_says_its_cost_teaches_nothing(self) -> None:
        """Its reservation, a millionth, was taken for the price: all rows were called at once, for 29.7 of 2 USD."""

        async def ask(x: int, context: RuntimeContext) -> int:
            if x == 0:
                raise ValueError
            await asyncio.sleep(1)
            context.spend(0.3)
            return x

        options: dict[str, Any] = {"budget": Budget(2.0), "on_spent": "null", "on_error": "null", "capacity": 100}
        assert figures(ask, range(100), **options).spent == {"USD": pytest.approx(1.8, rel=1e-3)}

    def test_a_function_that_says_nothing_is_named_and_called_one_by_one(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def ask(x: int, context: RuntimeContext) -> float:
            begun = asyncio.get_running_loop().time()
            context.spend(0.3, "usd")
            await asyncio.sleep(1)
            return begun

        assert run_rows(ask, range(4), budget=Budget(2.0)) == [0.0, 1.0, 2.0, 3.0]
        (record,) = caplog.records
        assert "not said what it cost of its budget of 2 USD: call context.spend(amount, 'USD')" in record.getMessage()

    @pytest.mark.parametrize(
        ("settle", "seconds", "told"),
        [
            (None, 1.0, "context.spend(amount, 'tokens') in the function, or give settle="),
            (
                lambda x, answer: answer["usage"]["tokens"],
                1.0,
                "settle=, which has given no cost so far (it raised TypeE",
            ),
            (
                lambda x, answer: answer["usage"]["tokens"],
                99.0,
                "settle=, which has given no cost so far; or give reserve=",
            ),
        ],
        ids=["nobody says it", "settle raises", "each call is cut at its deadline"],
    )
    def test_after_five_calls_whose_costs_nobody_says_none_begins(self, settle: Any, seconds: float, told: str) -> None:
        """All 300 calls were made under a budget of 50 tokens, each for nothing."""
        begun: list[int] = []

        async def ask(x: int, context: RuntimeContext) -> dict[str, Any]:
            begun.append(x)
            await asyncio.sleep(seconds)
            return {"usage": None}

        options: dict[str, Any] = {"returnType": "usage string", "timeout": 10.0, "on_error": "null"}
        budget = Budget(50, "tokens", settle=settle)
        with pytest.raises(FatalError) as caught:
            run_rows(ask, range(300), budget=budget, **options)
        assert str(caught.value).startswith("no cost is known of the first 5 calls of ask, so its budget of 50 tokens")
        assert told in str(caught.value)
        assert len(begun) == 5
        assert figures(ask, range(300), budget=budget, on_spent="null", **options).unpaid == 295

    def test_a_call_of_many_rows_counts_though_its_first_row_has_failed(self) -> None:
        begun: list[int] = []

        async def ask(x: pd.Series, context: RuntimeContext) -> list[Any]:
            begun.append(len(x))
            return [ValueError(), *x[1:]]

        options: dict[str, Any] = {"batch_size": 4, "returnType": "bigint", "on_error": "null", "on_spent": "null"}
        assert figures(ask, range(80), budget=Budget(50, "tokens"), **options).unpaid == 60
        assert begun == [4] * 5

    def test_calls_that_say_their_cost_at_times_count_with_the_most_at_others(self) -> None:
        async def ask(x: int, context: RuntimeContext) -> int:
            if x % 5 == 4:
                context.spend(10.0)
            return x

        options: dict[str, Any] = {"budget": Budget(100.0), "on_spent": "null", "capacity": 1}
        got = run_rows(ask, range(30), **options)
        assert [x for x in got if x is not None] == [*range(13)]  # the first four cost a ten-thousandth each

    def test_it_is_told_of_how_many_attempts_settle_could_not_say_the_cost(self) -> None:
        async def ask(x: int) -> dict[str, float]:
            return {"price": 0.5} if x % 3 else {}

        settle = lambda x, answer: answer["price"]  # noqa: E731
        budget, limit = Budget(100, reserve=1.0, settle=settle), RateLimit(10**6, cost=1, settle=settle)
        for options in ({"budget": budget}, {"rate_limit": limit}):
            found = figures(ask, range(9), returnType="map<string, double>", **options)
            assert found.unsettled == {"KeyError: 'price'": 3}, options

    @pytest.mark.parametrize("is_stored", [False, True])
    def test_a_result_that_does_not_fit_its_type_has_its_price(self, is_stored: bool) -> None:
        """It was a failed attempt like others, of which `settle` said nothing: nine paid calls counted with 0."""

        async def ask(x: int) -> dict[str, float]:
            return {"price": 0.5}

        budget = Budget(100, reserve=1.0, settle=lambda x, answer: answer["price"])
        store: dict[str, Any] = {"store": MemoryStore(), "version": "1"} if is_stored else {}
        found = figures(ask, range(9), returnType="text string", on_error="null", budget=budget, **store)
        assert (found.failures, found.spent, found.unsettled) == (9, {"USD": 4.5}, {})

    def test_calls_that_fail_for_nothing_do_not_stop_the_others(self) -> None:
        async def ask(x: int) -> int:
            if x < 5:
                raise ValueError
            return x

        budget = Budget(100, settle=lambda x, result: result / 10)
        assert run_rows(ask, range(8), budget=budget, on_error="null") == [None] * 5 + [5, 6, 7]


class TestKindsOfFunctions:
    def test_a_vectorized_function_is_asked_row_by_row(self) -> None:
        seen: list[Any] = []

        async def ask(x: pa.Array) -> list[Any]:
            return [ValueError("bad") if row == 1 else row for row in x.to_pylist()]

        def settle(x: int, outcome: Any) -> float:
            seen.append((x, outcome))
            return 0.0 if isinstance(outcome, ValueError) else 0.25

        budget = Budget(9, reserve=lambda x: 1.0, settle=settle)
        found = figures(ask, range(3), batch_size=3, on_error="null", budget=budget)
        assert found.spent == {"USD": 0.5}
        assert [(x, repr(outcome)) for x, outcome in seen] == [(0, "0"), (1, "ValueError('bad')"), (2, "2")]

    def test_generators_and_async_functions_give_the_list_of_results(self) -> None:
        async def many(x: int):  # type: ignore[no-untyped-def]
            yield x
            yield x

        class Twice(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete([value["x"], value["x"]])

        budget = Budget(9, reserve=1, settle=lambda row, results: 0.1 * len(results))
        assert figures(many, range(2), budget=budget).spent == {"USD": pytest.approx(0.4)}
        assert figures(Twice(), [{"x": 1}], budget=budget).spent == {"USD": pytest.approx(0.2)}

    def test_what_a_store_answers_costs_nothing(self) -> None:
        paid = Paid()
        store = ResultStore.executor(max_bytes=2**24)
        options: dict[str, Any] = {
            "returnType": "price double", "version": "budget", "store": store, "budget": PRICES, "on_spent": "null",
            "capacity": 1,
        }  # fmt: skip
        rows = ["a", "b", "c", "a", "b", "c", "d", "e", "f", "g"]
        assert [answer is not None for answer in run_rows(paid, rows, **options)] == [True] * 9 + [False]
        assert run_rows(paid, ["a", "g"], **options)[1] is not None, "what was not called was not kept"


class TestBadFunctions:
    @pytest.mark.parametrize("cost", [-1, math.nan, math.inf, "1", None])
    def test_what_is_no_cost_ends_the_job(self, cost: Any) -> None:

        with pytest.raises(FatalError, match="settle must give a number of 0 or more, not"):
            run_rows(ask, [1], budget=Budget(1, reserve=1, settle=lambda x, result: cost), on_error="null")
        with pytest.raises(FatalError, match="reserve of a budget must give a number of 0 or more, not"):
            run_rows(ask, [1], budget=Budget(1, reserve=lambda x: cost), on_error="null")

    @pytest.mark.parametrize("cost", [Decimal("0.5"), Fraction(1, 2), np.float32(0.5), np.float64(0.5)])
    def test_numbers_of_other_libraries_are_costs(self, cost: Any) -> None:
        """A Decimal, or a count that numpy made, ended the job, or failed the row that was paid for."""

        async def ask(x: int, context: RuntimeContext) -> int:
            context.spend(cost)
            context.spend(np.int64(3), "tokens")
            return x

        budget = Budget(cost + cost, reserve=lambda x: cost, settle=lambda x, result: cost - cost)
        assert figures(ask, range(4), budget=budget, on_spent="null", capacity=1).spent == {"USD": 1, "tokens": 6}
        assert run_rows(ask, range(4), rate_limit=RateLimit(9, cost=lambda x: np.int64(1))) == [0, 1, 2, 3]

    def test_settle_that_edits_the_result_changes_it_for_itself(self) -> None:
        async def ask(x: int) -> dict[str, int]:
            return {"x": x, "tokens": 5}

        budget = Budget(9, reserve=1, settle=lambda x, result: result.pop("tokens") / 10)
        got = run_rows(ask, range(2), budget=budget, returnType="x int, tokens int")
        assert got == [{"x": 0, "tokens": 5}, {"x": 1, "tokens": 5}]

    def test_settle_that_raises_loses_no_row_and_no_money(self, caplog: pytest.LogCaptureFixture) -> None:

        budget = Budget(2, reserve=1, settle=lambda x, result: 1 / 0)
        assert run_rows(ask, range(4), budget=budget, on_spent="null", capacity=1) == [0, 1, None, None]
        assert [record.message for record in caplog.records] == [
            "settle of ask raised ZeroDivisionError: division by zero: such calls count with what they had reserved"
        ]

    def test_a_call_that_costs_more_than_it_reserved_is_told_once(self, caplog: pytest.LogCaptureFixture) -> None:
        """The number was meant for each row, and counts for a call: calls in flight spend more than is left."""

        async def ask(x: pd.Series) -> pd.Series:
            return x

        budget = Budget(100, "credits", reserve=3, settle=lambda x, result: 2)
        run_rows(ask, range(100), budget=budget, batch_size=10, on_spent="null", returnType="long")
        (record,) = caplog.records
        assert record.message == (
            "a call of ask did cost 20 credits and had reserved 3: the budget of 100 credits may be passed. Let "
            "reserve= be what a call may cost at most; a number is for all rows of a call, a function of the arguments "
            "for each"
        )
        caplog.clear()
        of_rows = dataclasses.replace(budget, reserve=lambda x: 2)
        run_rows(ask, range(100), budget=of_rows, batch_size=10, on_spent="null", returnType="long")
        assert caplog.records == []

    def test_a_reservation_that_raises_is_the_error_of_its_row(self) -> None:

        assert run_rows(ask, [2, 0, 1], budget=Budget(9, reserve=lambda x: 1 / x), on_error="null") == [2, None, 1]

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"amount": 0}, "amount of a budget must be a number of more than 0, not 0"),
            ({"amount": math.nan, "reserve": 1}, "amount of a budget must be a number of more than 0"),
            ({"amount": 1, "reserve": 0}, "reserve must be a number of more than 0, not 0"),
            ({"amount": 1, "reserve": "x"}, "reserve must be a number or a plain function"),
            ({"amount": 1, "reserve": 1, "settle": 0.5}, "settle must be a plain function"),
            ({"amount": 1, "unit": "", "reserve": 1}, "unit of a budget must be a text"),
            ({"amount": 1, "reserve": 1, "name": ""}, "name of a budget must be a text"),
            ({"amount": 20, "unit": "calls", "settle": len}, "settle is never used with the unit 'calls': each"),
            ({"amount": 20, "unit": "calls", "reserve": 5}, "reserve is never used with the unit 'calls': each"),
        ],
    )
    def test_bad_values_are_named(self, given: dict[str, Any], message: str) -> None:
        with pytest.raises(OptionError, match=message):
            Budget(**given)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"budget": Budget(20)}, "nothing says what a call of abs costs of its budget of USD: give reserve="),
            ({"budget": [Budget(1, reserve=1), Budget(2, reserve=1)]}, "two budgets called 'USD'"),
            ({"on_spent": "null"}, "on_spent='null' is never used without a budget or max_calls"),
            ({"budget": 20}, "budget must be a Budget, such as"),
        ],
    )
    def test_options_that_do_not_go_together(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(OptionError, match=message):
            run_rows(abs, [1], returnType="int", clock="real", **options)


def test_max_calls_is_a_budget_of_calls_beside_money() -> None:
    money: dict[str, Any] = {"budget": Budget(9, reserve=1)}
    for options in ({"max_calls": 3}, {"budget": Budget(3, "calls")}, {"max_calls": 3, **money}):
        assert run_rows(ask, range(5), on_spent="null", **options) == [0, 1, 2, None, None]  # type: ignore[arg-type]
    assert run_rows(ask, range(12), max_calls=10, on_spent="null", **money).count(None) == 3


def test_permits_that_a_call_has_not_used_are_there_for_later_ones() -> None:
    """200 calls of 2 tokens that reserve 10: 100 a second are used to the full, where they were 2 of 10."""

    async def ask(x: int) -> float:
        begun = asyncio.get_running_loop().time()
        await asyncio.sleep(0.1)
        return begun

    settled = RateLimit(100, cost=lambda x: 10, settle=lambda x, begun: 2)
    assert max(run_rows(ask, range(200), rate_limit=settled)) == pytest.approx(4.0, rel=0.15)
    unsettled = RateLimit(100, cost=lambda x: 10)
    assert max(run_rows(ask, range(200), rate_limit=unsettled)) == pytest.approx(20.0, rel=0.15)
    more = RateLimit(100, cost=lambda x: 1, settle=lambda x, begun: 4)
    assert max(run_rows(ask, range(200), rate_limit=more)) == pytest.approx(8.0, rel=0.15)


def test_permits_are_settled_by_what_the_function_has_said() -> None:
    """`settle="tokens"`: a model's function says the tokens by context.spend, and its result does not have them."""

    async def ask(x: int, context: RuntimeContext) -> float:
        begun = asyncio.get_running_loop().time()
        await asyncio.sleep(0.1)
        context.spend(1, "USD")
        context.spend(2, "tokens")
        return begun

    settled = RateLimit(100, cost=10, settle="tokens")
    assert max(run_rows(ask, range(200), rate_limit=settled)) == pytest.approx(4.0, rel=0.15)
    budget = Budget(10**6, "tokens", reserve=10)  # takes what was said as well
    assert max(run_rows(ask, range(200), rate_limit=settled, budget=budget)) == pytest.approx(4.0, rel=0.15)


@pytest.mark.parametrize(
    ("error", "said", "used"), [(ValueError(), 2, 2), (ValueError(), None, 10), (ThrottledError(), None, 0)]
)
def test_a_failed_attempt_takes_the_permits_that_it_has_said(error: Exception, said: int | None, used: int) -> None:
    """All that were reserved if nobody knows how many, and none if the service has refused it."""

    def begun_with(settle: Any) -> list[float]:
        begun: list[float] = []

        async def ask(x: int, context: RuntimeContext) -> None:
            begun.append(asyncio.get_running_loop().time())
            await asyncio.sleep(0.1)
            if context.attempt_number == 1 and len(begun) <= 100:
                if said is not None:
                    context.spend(said, "tokens")
                raise error
            context.spend(10, "tokens")

        limit = RateLimit(100, cost=10, settle=settle)
        run_rows(ask, range(100), rate_limit=limit, retry=RetryStrategy.fixed_delay(2, delay=0.1))
        return begun

    told = begun_with("tokens")
    assert told == begun_with(lambda x, outcome: used if isinstance(outcome, BaseException) else 10)
    assert told != begun_with(lambda x, outcome: used + 3 if isinstance(outcome, BaseException) else 10)


def test_a_function_that_does_not_say_its_permits_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    async def ask(x: int, context: RuntimeContext) -> int:
        context.spend(1, "token")
        return x

    run_rows(ask, range(3), rate_limit=RateLimit(100, cost=10, settle="tokens"))
    (warning,) = [one for one in caplog.messages if "settle=" in one]
    assert "context.spend(amount, 'tokens')" in warning

    async def plain(x: int) -> int:
        return x

    with pytest.raises(OptionError, match="annotated RuntimeContext"):
        run_rows(plain, [1], rate_limit=RateLimit(100, cost=10, settle="tokens"))
    with pytest.raises(OptionError, match="settle of a rate limit"):
        RateLimit(100, cost=10, settle="")


def test_permits_that_were_not_used_are_not_saved_up() -> None:
    """300 calls of 30 s had not used 2,400 permits: later 1,000 calls began at once, at 100 a second."""
    begun: list[float] = []

    async def ask(x: int) -> int:
        begun.append(asyncio.get_running_loop().time())
        await asyncio.sleep(30.0 if x < 300 else 0.1)
        return 2

    limit = RateLimit(100, cost=lambda x: 10, settle=lambda x, used: used)
    figures(ask, range(300), batches=[(4000.0, range(300, 400))], capacity=1000, rate_limit=limit)
    assert sum(2 for time in begun if 4000.0 <= time < 4001.0) <= 100 + 2 + 2


@given(
    amount=st.integers(1, 40),
    capacity=st.integers(1, 6),
    size=st.sampled_from([None, 1, 3]),
    retries=st.integers(1, 3),
    seed=st.integers(0, 10**6),
)
def test_the_amount_is_never_passed(amount: int, capacity: int, size: int | None, retries: int, seed: int) -> None:
    """The service bills at random up to what a call may cost, fails, is refused and hangs: billed <= amount."""
    rng = random.Random(seed)
    billed = 0.0

    async def call(x: int) -> Any:
        nonlocal billed
        await asyncio.sleep(rng.random())
        chance = rng.random()
        price = rng.random() * 2
        billed += price if chance < 0.9 else 0.0
        if chance < 0.1:
            await asyncio.sleep(99)
        if chance < 0.2:
            raise PaidError(price)
        if chance > 0.9:
            raise OSError
        return price

    async def batch(x: pd.Series) -> list[Any]:
        return await asyncio.gather(*map(call, x), return_exceptions=True)

    class PaidError(Exception):
        pass

    def settle(x: int, outcome: Any) -> float:
        return outcome.args[0] if isinstance(outcome, PaidError) else outcome + 0.0  # type: ignore[no-any-return]

    options: dict[str, Any] = {} if size is None else {"batch_size": size}
    run_rows(
        call if size is None else batch, range(30), capacity=capacity, timeout=5.0, on_error="null", on_spent="null",
        retry=RetryStrategy.fixed_delay(retries, 0.5), returnType="double",
        budget=Budget(amount, reserve=lambda x: 2.0, settle=settle), **options,
    )  # fmt: skip
    assert billed <= amount


@example(costs=[0.9] * 20, reserve=0.1, calls=9.5, capacity=3, failing=1)
@given(
    costs=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=40),
    reserve=st.sampled_from([0.1, 0.3, 1e-9, 7.0]),
    calls=st.floats(0.2, 50.0),
    capacity=st.sampled_from([1, 3, 20]),
    failing=st.sampled_from([1, 2, 5]),
)
def test_whatever_calls_cost_the_amount_holds_and_is_used(
    costs: list[float], reserve: float, calls: float, capacity: int, failing: int
) -> None:
    """Sums of floats are seldom 0 again: rows waited for ever for what was left of reservations that were over."""
    billed = 0.0

    async def ask(row: int) -> int:
        nonlocal billed
        await asyncio.sleep(0.1 + row % 3)
        billed += cost(row)
        if row % failing == 1:
            raise ConnectionError
        return row

    def cost(row: int, outcome: object = None) -> float:
        return costs[row] * reserve

    amount = calls * reserve
    budget = Budget(amount, reserve=reserve, settle=cost)
    retry = RetryStrategy.fixed_delay(2, 0.5)
    rows = range(len(costs))
    found = run_rows(
        ask, rows, capacity=capacity, budget=budget, retry=retry, on_spent="null", on_error="capture", timeout=1e4
    )
    assert billed <= amount * (1 + 1e-6)
    if any(one["error"] and one["error"]["type"] == "BudgetSpentError" for one in found):
        assert billed > amount - reserve * (1 + 1e-6)
