"""A result that was not awaited is told as such, once, and Python does not complain as well."""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import Any

import pandas as pd
import pytest

from asyncudf import AsyncFunction, ResultError, RetryStrategy, RuntimeContext
from asyncudf.testing import run_rows
from tests.kit.costs import python_calls
from tests.kit.errors import raised


async def fetch(x: int) -> int:
    return x


async def ticks(x: int) -> Any:
    yield x


class Awaitable:
    def __await__(self) -> Any:
        yield


async def forgets(x: int) -> Any:
    return fetch(x)


async def forgets_inside(x: int) -> Any:
    return {"a": [1, fetch(x), fetch(x)], "b": None}


async def forgets_to_iterate(x: int) -> Any:
    return ticks(x)


async def returns_awaitable(x: int) -> Any:
    return Awaitable()


async def yields_one(x: int) -> Any:
    yield fetch(x)


class Completes(AsyncFunction):
    async def async_invoke(self, value: Any, result_future: Any) -> None:
        result_future.complete([fetch(value)])


class CompletesWithOne(AsyncFunction):
    async def async_invoke(self, value: Any, result_future: Any) -> None:
        result_future.complete(fetch(value))


async def vectors_one(x: pd.Series) -> pd.Series:
    return fetch(1)  # type: ignore[return-value]


async def vectors_inside(x: pd.Series) -> pd.Series:
    return pd.Series([fetch(1), fetch(2)])


FORGETFUL = [
    forgets, forgets_inside, forgets_to_iterate, returns_awaitable, yields_one, Completes(), CompletesWithOne(),
    vectors_one, vectors_inside,
]  # fmt: skip
TYPES = [
    None, "int", "bigint", "double", "float", "string", "binary", "boolean", "date", "timestamp", "timestamp_ntz",
    "decimal(5,2)", "array<int>", "map<string,int>", "a array<int>, b int",
]  # fmt: skip


@pytest.mark.parametrize("function", FORGETFUL, ids=lambda f: getattr(f, "__name__", type(f).__name__))
def test_a_result_that_was_not_awaited_says_so_and_does_not_complain_as_well(function: Any) -> None:
    word = "async for" if function is forgets_to_iterate else "await"
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # a coroutine that is never awaited
        for return_type in TYPES:
            if function is forgets_inside and return_type not in (None, "a array<int>, b int"):
                continue
            error = raised(lambda: run_rows(function, [1, 2], returnType=return_type))  # noqa: B023
            assert isinstance(error, ResultError), return_type
            assert f"{word} is missing" in str(error), return_type
            del error
        gc.collect()


def test_coroutines_in_a_result_that_fails_for_another_reason_do_not_complain() -> None:
    async def wrong(x: int) -> Any:
        return {"c": fetch(x), "d": [fetch(x)]}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = run_rows(wrong, [1], returnType="a int", on_error="capture")
        gc.collect()
    assert "missing field 'a'" in got[0]["error"]["message"]


def test_a_generator_of_a_plain_def_is_no_coroutine() -> None:
    """Up to Python 3.11 asyncio says that it is one, and the advice to declare it `async def` was of no use."""

    def numbers(n: int) -> Any:
        return (one for one in range(n))

    error = raised(lambda: run_rows(numbers, [3], returnType="array<int>", clock="real"))
    assert "numbers returned <generator object" in str(error)
    assert "give a list" in str(error)


def test_a_class_that_is_not_awaitable_passes_whatever_its_metaclass_does() -> None:
    class Hostile(type):
        def __getattribute__(cls, name: str) -> Any:
            raise RuntimeError(name)

    class Plain(metaclass=Hostile):
        pass

    class Disabled(Awaitable):
        __await__ = None  # type: ignore[assignment]

    values = [Plain(), Disabled()]

    async def gives(x: int) -> Any:
        return [values[x]]

    assert run_rows(gives, [0, 1]) == [[value] for value in values]


def test_to_look_for_a_missing_await_costs_a_row_a_few_calls() -> None:
    """As `inspect.getattr_static` does not: it makes a dozen for each value. Four weigh a row of an unknown type."""

    async def untyped(x):  # type: ignore[no-untyped-def]
        return x

    def calls(function: Any) -> int:
        return python_calls(lambda: run_rows(function, range(300))) - python_calls(lambda: run_rows(function, [0]))

    calls(untyped)  # the first time something is looked up that is kept
    assert calls(untyped) - calls(fetch) <= 8.5 * 300  # turns of the loop are by time


def test_a_task_as_a_result_was_not_awaited_either() -> None:
    async def gives_its_task(x: int) -> Any:
        return asyncio.ensure_future(fetch(x))

    error = raised(lambda: run_rows(gives_its_task, [1], returnType="int"))
    assert "(Task): await is missing" in str(error)


def test_a_coroutine_that_runs_already_is_left_alone() -> None:
    async def slowly(x: int) -> int:
        await asyncio.sleep(5)
        return x

    async def gives_what_runs(x: int) -> Any:
        if x:
            return await tasks[0]
        coroutine = slowly(7)
        tasks.append(asyncio.ensure_future(coroutine))
        await asyncio.sleep(1)
        return coroutine

    tasks: list[Any] = []
    first, second = run_rows(gives_what_runs, [0, 1], capacity=1, returnType="int", on_error="capture")
    assert "await is missing" in first["error"]["message"]
    assert second == {"value": 7, "error": None}


def test_a_row_whose_result_was_not_awaited_follows_its_policy() -> None:
    async def context_tells(x: int, context: RuntimeContext) -> Any:
        return fetch(x) if context.attempt_number < 3 else x

    retry = RetryStrategy.fixed_delay(attempts=3, delay=1)
    assert run_rows(context_tells, [1], retry=retry, returnType="int") == [1]
