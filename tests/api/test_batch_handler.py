"""A function as a handler of batches: what comes in and out, and what holds inside, in plain Python."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pandas as pd
import pytest

from asyncudf import (
    Budget,
    FunctionError,
    OptionError,
    RateLimit,
    ResultError,
    RetryStrategy,
    async_pandas_udf,
    batch_handler,
)
from tests.kit.coordinators import start_server


def results(function: Any, *batches: Any, returns: Any = None, **options: Any) -> list[list[Any]]:
    """What the handler gives for these batches: a list for each Series."""
    return [list(series) for series in batch_handler(function, returns, **options)(iter(batches))]


async def shown(value: Any) -> str:
    return repr(value)


def test_each_batch_gets_its_results_in_a_series_of_its_length() -> None:
    async def backwards(value: int) -> int:
        await asyncio.sleep((5 - value) / 1000)
        return value

    batches = [pd.Series([0, 1, 2]), pd.Series([], dtype="int64"), pd.Series([3]), pd.Series([], dtype="int64")]
    assert results(backwards, *batches) == [[0, 1, 2], [], [3], []]
    assert results(backwards, pd.Series([], dtype="int64")) == [[]]
    assert results(backwards) == []


def test_calls_of_one_batch_overlap_with_those_of_the_next() -> None:
    async def together(value: int) -> int:
        arrived.append(value)
        if len(arrived) == 4:
            everybody.set()
        await everybody.wait()
        return value

    arrived: list[int] = []
    everybody = asyncio.Event()
    assert results(together, pd.Series([0, 1]), pd.Series([2, 3]), timeout=60) == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("series", "expected"),
    [
        (pd.Series([1, 2]), [1, 2]),
        (pd.Series([1.5, np.nan]), [1.5, None]),
        (pd.Series(["a", None]), ["a", None]),
        (pd.Series([True, None]), [True, None]),
        (pd.Series([1, None], dtype="Int64"), [1, None]),
        (pd.Series([b"a", None]), [b"a", None]),
        (pd.Series([np.array([1, 2]), None]), [[1, 2], None]),
        (pd.Series([np.array([np.array(["a"])], dtype=object)]), [[["a"]]]),
        (pd.Series([{"k": np.array([1])}, {}]), [{"k": [1]}, {}]),
        (pd.Series([pd.Timestamp("2024-05-01 12:00"), pd.NaT]), [datetime.datetime(2024, 5, 1, 12), None]),
        (pd.Series([[pd.Timestamp("2024-05-01"), pd.NaT, pd.NA]]), [[datetime.datetime(2024, 5, 1), None, None]]),
        (pd.Series([pd.Timedelta(seconds=1)]), [datetime.timedelta(seconds=1)]),
        (
            pd.Series([np.array(["2024-05-01T12:00", "NaT"], "M8[ns]"), np.array(["2024-05-01"], "M8[D]")]),
            [[datetime.datetime(2024, 5, 1, 12), None], [datetime.date(2024, 5, 1)]],
        ),
        (pd.Series([{"took": np.timedelta64(1, "s").astype("m8[ns]")}]), [{"took": datetime.timedelta(seconds=1)}]),
        (pd.Series([datetime.date(2024, 5, 1)]), [datetime.date(2024, 5, 1)]),
        (pd.DataFrame({"a": [1, None], "b": ["x", None]}), [{"a": 1.0, "b": "x"}, {"a": None, "b": None}]),
        (pd.Series(["x", "y"], dtype="category"), ["x", "y"]),
    ],
    ids=str,
)
def test_arguments_are_python_values_and_a_missing_one_is_none(series: Any, expected: list[Any]) -> None:
    seen = []

    async def see(value: Any) -> str:
        seen.append(value)
        return ""

    results(see, series, capacity=1)
    assert list(map(repr, seen)) == list(map(repr, expected))


def test_a_parameter_that_is_annotated_int_gets_whole_numbers_where_pandas_has_floats() -> None:
    async def number(value: int | None) -> str:
        return repr(value)

    assert results(number, pd.Series([1.0, np.nan, 2.0])) == [["1", "None", "2"]]
    with pytest.raises(
        Exception, match=r"column 1 of number is annotated int, and is a column of floats that has 1\.5"
    ):
        results(number, pd.Series([1.5]))


def test_several_parameters_take_tuples_of_series() -> None:
    async def joined(city: str, number: int, suffix: str = "!") -> str:
        return f"{city}{number}{suffix}"

    assert results(joined, (pd.Series(["a", "b"]), pd.Series([1, 2]))) == [["a1!", "b2!"]]
    assert results(joined, (pd.Series(["a"]), pd.Series([1]), pd.Series(["?"]))) == [["a1?"]]


def test_results_keep_what_pandas_would_lose() -> None:
    async def large(value: int) -> int | None:
        return None if value else 2**53 + 1

    async def record(value: int) -> dict[str, Any] | None:
        return None if value else {"n": 2**53 + 1, "at": datetime.date(2024, 5, 1), "items": [1, None]}

    assert results(large, pd.Series([0, 1])) == [[2**53 + 1, None]]
    (frame,) = batch_handler(record, "n bigint, at date, items array<int>")(iter([pd.Series([0, 1])]))
    assert frame.n.tolist() == [2**53 + 1, None]
    assert frame["at"].tolist() == [datetime.date(2024, 5, 1), None]
    assert list(frame["items"][0]) == [1, None]
    assert frame["items"][1] is None


def test_nested_results_are_lists_and_dicts() -> None:
    """Spark takes no pairs for a map, and reads moments without a zone as those of the session."""
    at = datetime.datetime(2024, 7, 1, 12, tzinfo=datetime.UTC)

    async def record(value: int) -> dict[str, Any] | None:
        return {"inner": {"n": 2**53 + 1, "by": {"a": 1}} if value else None, "times": [at, None]}

    async def by_name(value: int) -> dict[str, int] | None:
        return {"a": value} if value else None

    (frame,) = batch_handler(record, "inner struct<n: bigint, by: map<string, int>>, times array<timestamp>")(
        iter([pd.Series([0, 1])])
    )
    assert frame.inner.tolist() == [None, {"n": 2**53 + 1, "by": {"a": 1}}]
    assert frame.times.tolist() == [[at, None]] * 2
    assert results(by_name, pd.Series([0, 1])) == [[None, {"a": 1}]]


def test_a_vectorized_function_is_called_for_batches_of_its_own() -> None:
    sizes = []

    @async_pandas_udf("string", batch_size=2)
    async def upper(texts: pd.Series) -> pd.Series:
        sizes.append(len(texts))
        return texts.str.upper()

    whole, short = results(upper, pd.Series(["a", "b", "c"]), pd.Series(["d", None]))
    assert [*whole, short[0]] == ["A", "B", "C", "D"]
    assert pd.isna(short[1])  # None, or nan with pandas 3
    assert sorted(sizes) == [1, 2, 2]


def test_deadlines_retries_and_error_policies_hold_inside() -> None:
    attempts: dict[int, int] = {}

    async def troubled(row: int) -> int:
        attempts[row] = attempts.get(row, 0) + 1
        if row == 1:
            await asyncio.Event().wait()
        if row == 2 and attempts[row] < 3:
            raise ConnectionError
        if row == 3:
            raise ValueError
        return row

    options: dict[str, Any] = {
        "timeout": 2.0,
        "on_timeout": -1,
        "retry": RetryStrategy.fixed_delay(3, 0.001, retry_on=ConnectionError),
    }
    assert results(troubled, pd.Series([0, 1, 2, 3]), on_error="null", **options) == [[0, -1, 2, None]]
    assert attempts == {0: 1, 1: 1, 2: 3, 3: 1}
    with pytest.raises(Exception, match="troubled failed"):
        results(troubled, pd.Series([3]), **options)


def test_a_failed_row_a_bad_result_and_an_iterator_that_is_closed_leave_nothing_open() -> None:
    events = []

    @asynccontextmanager
    async def client() -> AsyncIterator[str]:
        events.append("open")
        try:
            yield "client"
        finally:
            events.append("closed")

    async def ask(row: int, client: str) -> int:
        if row == 1:
            raise ValueError("no such row")
        if row == 2:
            return "two"  # type: ignore[return-value]
        if row == 3:
            try:
                await asyncio.Event().wait()
            finally:
                events.append("cancelled")
        return row

    handler = batch_handler(ask, resources={"client": client}, capacity=1)
    with pytest.raises(Exception, match="no such row"):
        list(handler(iter([pd.Series([0, 1])])))
    with pytest.raises(ResultError, match="'two'"):
        list(handler(iter([pd.Series([0, 2])])))
    assert events == ["open", "closed"] * 2
    events.clear()

    def rows() -> Iterator[pd.Series]:
        yield pd.Series([0])
        yield pd.Series([3])

    running = handler(rows())
    assert list(next(running)) == [0]
    running.close()  # type: ignore[attr-defined]
    assert events in (["open", "closed"], ["open", "cancelled", "closed"])


def test_an_error_of_the_input_is_the_error_of_the_handler() -> None:
    def rows() -> Iterator[pd.Series]:
        yield pd.Series([0])
        raise OSError("the table is gone")

    with pytest.raises(OSError, match="the table is gone"):
        list(batch_handler(shown)(rows()))


async def several(row: int) -> AsyncIterator[int]:
    yield row


async def of_nothing() -> int:
    return 1


async def untyped(row: Any):  # type: ignore[no-untyped-def]
    return row


@pytest.mark.parametrize(
    ("function", "options", "error", "message"),
    [
        (of_nothing, {}, FunctionError, "of_nothing has no parameter that a column could fill"),
        (several, {}, FunctionError, "gives 0..n results per row"),
        (shown, {"output_mode": "unordered"}, FunctionError, "is UNORDERED"),
        (shown, {"on_error": "dead_letter"}, OptionError, "have nowhere to go here"),
        (untyped, {}, FunctionError, "the return type of untyped cannot be inferred"),
        (shown, {"job_capacity": 5}, OptionError, "job_capacity of shown counts the calls of a query"),
        (shown, {"max_calls": 5}, OptionError, "max_calls of shown counts the calls of a query"),
        (shown, {"rate_limit": RateLimit(5)}, OptionError, r"needs coordinator='redis://\.\.\.' here"),
        (shown, {"budget": Budget(5, reserve=1)}, OptionError, r"a budget of shown needs coordinator"),
        (
            shown,
            {"rate_limit": RateLimit(5), "coordinator": "redis://cache:6379"},
            OptionError,
            "a rate_limit of the job of shown needs a name here",
        ),
    ],
)
def test_what_cannot_work_is_an_error_where_the_handler_is_made(
    function: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        batch_handler(function, **options)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ([1, 2], "takes an iterator of pandas Series, or of tuples of them, not of list"),
        ((), "not of nothing"),
        ((pd.Series([1]), pd.Series([1])), r"shown takes the columns \(value\), not 2 of them"),
    ],
)
def test_batches_that_are_none_are_an_error_that_says_what_is_taken(batch: Any, message: str) -> None:
    with pytest.raises(FunctionError, match=message):
        list(batch_handler(shown)(iter([batch])))


def test_series_of_one_batch_have_one_length() -> None:
    async def two(a: int, b: int) -> int:
        return a + b

    with pytest.raises(FunctionError, match="the Series of one batch of two have different lengths"):
        list(batch_handler(two)(iter([(pd.Series([1]), pd.Series([1, 2]))])))


def test_a_limit_of_a_task_needs_nobody() -> None:
    assert results(shown, pd.Series([1, 2]), rate_limit=RateLimit(1000, scope="task")) == [["1", "2"]]


@pytest.mark.services
def test_a_budget_with_a_name_is_that_of_all_calls_of_the_handler() -> None:
    server = start_server()
    try:
        options = {"budget": Budget(5, "calls", name="handler"), "on_spent": "null", "coordinator": server.url}
        handler = batch_handler(shown, **options)  # type: ignore[arg-type]
        found = [value for _ in range(3) for series in handler(iter([pd.Series([1, 2, 3])])) for value in series]
        assert found[:5] == ["1", "2", "3", "1", "2"]
        assert pd.isna(found[5:]).tolist() == [True] * 4
    finally:
        server.close()
