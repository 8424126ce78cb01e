"""Functions whose `async def` is behind something: found where it can be, and told where not."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable
from types import CodeType
from typing import Any
from unittest.mock import AsyncMock, NonCallableMock

import pytest

from asyncudf import FunctionError, OptionError, ResultError, async_pandas_udf
from asyncudf._functions.signature import FunctionKind
from asyncudf.testing import run_rows, run_stream


async def double(x: int) -> int:
    await asyncio.sleep(1)
    return 2 * x


async def twice(x: int) -> AsyncIterator[int]:
    yield x
    yield x


@functools.singledispatch
async def dispatched(x: Any) -> int:
    return 0


@dispatched.register
async def _(x: int) -> int:
    return 2 * x


class Client:
    double = staticmethod(double)


HIDDEN: dict[str, Callable[..., Any]] = {
    "staticmethod": staticmethod(double),
    "staticmethod of an object": Client().double,
    "partial of a staticmethod": functools.partial(staticmethod(double)),
    "singledispatch": dispatched,
    "mock": AsyncMock(side_effect=double),
}


@pytest.mark.parametrize("case", HIDDEN)
def test_a_call_that_gives_a_coroutine_is_awaited(case: str) -> None:
    udf = async_pandas_udf(HIDDEN[case], "int")
    assert udf.spec.kind is FunctionKind.COROUTINE
    assert run_rows(udf, [1, 1]) == [2, 2]


def test_a_mock_whose_signature_cannot_be_read_takes_the_columns_that_it_is_given() -> None:
    """The AsyncMock of Python before 3.11.4 looks like a function whose code is a mock: inspect raised TypeError."""
    mock = AsyncMock(side_effect=double)
    mock.__dict__["__code__"] = NonCallableMock(spec_set=CodeType, co_flags=inspect.CO_COROUTINE)
    with pytest.raises(TypeError):
        inspect.signature(mock)
    assert run_rows(mock, [1, 1], returnType="int") == [2, 2]


def test_a_generator_behind_a_staticmethod_gives_its_results() -> None:
    assert run_rows(staticmethod(twice), [1], returnType="int") == [1, 1]


@pytest.mark.parametrize("case", HIDDEN)
def test_a_plain_function_of_a_chain_and_on_timeout_may_not_hide_one(case: str) -> None:
    with pytest.raises(FunctionError, match="filter takes a plain def; for an async def use ordered_wait"):
        run_stream(lambda stream: stream.filter(HIDDEN[case]), [{"x": 1}], "x int")
    with pytest.raises(OptionError, match="on_timeout must be a value or a plain def"):
        async_pandas_udf(double, "int", on_timeout=HIDDEN[case])


@pytest.mark.parametrize("cached", [functools.cache(double), functools.lru_cache(staticmethod(double))])
def test_a_cache_of_coroutines_is_refused(cached: Any) -> None:
    with pytest.raises(FunctionError, match=r"async def behind functools\.cache or lru_cache, which keeps"):
        async_pandas_udf(cached, "int")


def test_a_decorator_that_hides_its_async_def_is_told() -> None:
    @functools.wraps(double)
    def hides(*args: Any, **kwargs: Any) -> Any:
        return double(*args, **kwargs)

    with pytest.raises(ResultError, match="if a decorator hides its async def, make the decorator's wrapper async"):
        run_rows(hides, [1], returnType="int", clock="real")


def test_a_decorator_that_runs_its_async_def_itself_is_a_plain_def() -> None:
    async def now(x: int) -> int:
        return 2 * x

    @functools.wraps(now)
    def runs(*args: Any, **kwargs: Any) -> Any:
        return asyncio.run(now(*args, **kwargs))

    assert run_rows(runs, [1], returnType="int", clock="real") == [2]
