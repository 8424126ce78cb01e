"""Bad input gets a clear error at the earliest moment: the message names the value and the fix."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import aiohttp
import pandas as pd
import pytest
from google import genai

from asyncudf import (
    AsyncFunction,
    AsyncUDFError,
    FunctionError,
    OptionError,
    OutputMode,
    OutputTag,
    ResultFuture,
    RetryStrategy,
    WatermarkStrategy,
    async_pandas_udf,
)
from asyncudf.testing import run_rows
from tests.kit.ids import shown


async def city(name: str) -> str:
    return name


@contextlib.asynccontextmanager
async def client() -> AsyncIterator[str]:
    yield "client"


class Lookup(AsyncFunction):
    async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
        result_future.complete([value])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"capacity": 0}, "capacity must be at least 1, not 0"),
        ({"capacity": 2.5}, "capacity must be a whole number, not 2.5"),
        ({"capacity": True}, "capacity must be a whole number, not True"),
        ({"max_buffered_bytes": "1GB"}, "max_buffered_bytes must be a whole number, not '1GB'"),
        ({"queue_size": 50}, r"queue_size must be at least capacity \(100\), not 50"),
        ({"timeout": 0}, "timeout must be more than 0 seconds, not 0; use None for no limit"),
        ({"timeout": -1.0}, "timeout must be more than 0 seconds, not -1.0"),
        ({"timeout": "5s"}, "timeout must be a number of seconds or a timedelta, not '5s'"),
        ({"output_mode": "sorted"}, "output_mode must be one of 'ordered', 'unordered', not 'sorted'"),
        ({"on_error": "ignore"}, "on_error must be one of 'raise', 'null', 'capture', 'dead_letter', not 'ignore'"),
        ({"retry": RetryStrategy.fixed_delay(2, 1.0), "timeout": None}, "retry needs a timeout"),
        ({"retry": 3}, "retry must be a RetryStrategy"),
        ({"on_timeout": "x", "timeout": None}, "on_timeout is never used without a timeout"),
        ({"batch_size": 10}, "batch_size=10 is for vectorized functions; city takes one row a call"),
        ({"deterministic": "yes"}, "deterministic must be True or False, not 'yes'"),
        ({"capacty": 5}, "unknown option 'capacty'; did you mean 'capacity'?"),
        ({"zzz": 5}, "unknown option 'zzz'; there are: capacity, timeout"),
    ],
)
def test_an_option_that_cannot_work(options: dict[str, Any], said: str) -> None:
    """Refused alike by the decorator, by `with_options` and by the test kit."""
    with pytest.raises(ValueError, match=said) as caught:
        async_pandas_udf(city, "string", **options)
    assert isinstance(caught.value, AsyncUDFError)
    with pytest.raises(OptionError, match=said):
        async_pandas_udf(city, "string").with_options(**options)
    with pytest.raises(OptionError, match=said):
        run_rows(city, ["Oslo"], **options)


def test_options_that_work_are_taken_in_every_spelling() -> None:
    udf = async_pandas_udf(city, output_mode="UNORDERED", timeout=timedelta(minutes=1), on_error="NULL")  # type: ignore[call-overload]
    assert udf.options.output_mode is OutputMode.UNORDERED
    assert udf.options.timeout == 60
    assert udf.with_options(capacity=7).options.slots == 7
    assert udf.options.capacity == 100, "with_options makes a copy"


def plain_generator(x: int) -> Iterator[int]:
    yield x


async def keyword_only(x: int, *, session: Any) -> int:
    return x


async def mixed(x: int, y: pd.Series) -> pd.Series:
    return y


async def vector_generator(x: pd.Series) -> AsyncIterator[pd.Series]:
    yield x


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (plain_generator, "plain_generator is a plain generator"),
        (keyword_only, "keyword-only parameter 'session' without a default"),
        (mixed, "mixed mixes vectors and scalars"),
        (vector_generator, "vectorized and a generator"),
        (dict, "expected a function such as"),
    ],
)
def test_a_function_that_cannot_be_run(function: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said) as caught:
        async_pandas_udf(function, "int")
    assert isinstance(caught.value, FunctionError)


def test_a_resource_must_be_a_named_parameter_and_made_on_the_executor() -> None:
    async def call(x: int, session: Any) -> int:
        return x

    @contextlib.asynccontextmanager
    async def other() -> AsyncIterator[None]:
        yield

    async def undecorated() -> AsyncIterator[None]:
        yield

    with pytest.raises(FunctionError, match="call has no parameter called 'other'"):
        async_pandas_udf(call, "int", resources=other)
    with pytest.raises(FunctionError, match=r"decorate it with @contextlib\.asynccontextmanager"):
        async_pandas_udf(call, "int", resources={"session": undecorated})
    with pytest.raises(FunctionError, match="must be an async context manager's function or class"):
        async_pandas_udf(call, "int", resources={"session": "http://localhost"})  # type: ignore[dict-item]
    with pytest.raises(AsyncUDFError, match="made a dict, which is no async context manager; yield it in an async gen"):
        run_rows(call, [1], resources={"session": dict})
    assert async_pandas_udf(call, "int", resources={"session": aiohttp.ClientSession}).spec.parameters == ("x",)


class Facade:
    """As google-genai's client: its .aio is the asynchronous one."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()

    @property
    def above(self) -> Any:
        raise RuntimeError("not this one")

    @property
    def aio(self) -> Any:
        return contextlib.nullcontext()


class Closed:
    async def aclose(self) -> None: ...


class Connection:
    def close(self) -> None: ...


async def connect() -> Connection:
    return Connection()


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (Facade, r"its \.aio is one: let the function return that"),
        (
            functools.partial(genai.Client, api_key="k"),
            r"made a Client, .*; its \.aio is one: let",
        ),
        (Closed, r"which calls `await it\.aclose\(\)` in a finally"),
        (Connection, r"which calls `it\.close\(\)` in a finally"),
        (contextlib.ExitStack, "it is a synchronous one: open it with `with`"),
        (connect, "await it in an async generator function"),
    ],
    ids=shown,
)
def test_what_is_no_async_context_manager_is_told_how_to_become_one(made: Any, said: str) -> None:
    async def call(x: int, client: Any) -> int:
        return x

    with pytest.raises(AsyncUDFError, match=said):
        run_rows(call, [1], resources={"client": made})


def test_an_async_function_has_the_right_methods() -> None:
    class SyncClose(Lookup):
        def close(self) -> None:  # type: ignore[override]
            pass

    class AsyncTimeout(Lookup):
        async def timeout(self, value: Any, result_future: ResultFuture) -> None:  # type: ignore[override]
            pass

    with pytest.raises(FunctionError, match=r"SyncClose\.close must be declared async def"):
        async_pandas_udf(SyncClose(), "int")
    with pytest.raises(FunctionError, match=r"AsyncTimeout\.timeout must be a plain def"):
        async_pandas_udf(AsyncTimeout(), "int")
    with pytest.raises(OptionError, match="Lookup opens its own in open"):
        async_pandas_udf(Lookup(), "int", resources=client)


class Session:
    """What `register` looks at first."""

    udf = None


@pytest.mark.parametrize("output_mode", ["ordered", "unordered"])
@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (("city", Session()), "'city' and <"),
        ((Session, "city"), "<class '.*Session'> and 'city'"),
        ((Session(), ""), "> and ''"),
        ((Session(), 5), "> and 5"),
    ],
)
def test_a_function_is_registered_in_a_session_under_a_name(output_mode: Any, arguments: Any, given: str) -> None:
    with pytest.raises(OptionError, match=rf"as in city\.register\(spark, 'city'\), not .*{given}"):
        async_pandas_udf(city, output_mode=output_mode).register(*arguments)


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: async_pandas_udf(city, 5), OptionError, "returnType must be DDL"),  # type: ignore[call-overload]
        (lambda: async_pandas_udf("int", "string"), OptionError, "two return types"),
        (lambda: run_rows(5, []), FunctionError, "expected a function such as"),
        (lambda: run_rows(city, [], clock="wall"), OptionError, "'virtual' or 'real', not 'wall'"),  # type: ignore[arg-type]
        (lambda: async_pandas_udf(async_pandas_udf(city)), FunctionError, "already; use with_options"),
        (lambda: OutputTag("", "city string"), OptionError, "needs a name, not ''"),
    ],
)
def test_a_declaration_that_cannot_work(make: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        make()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: WatermarkStrategy.for_bounded_out_of_orderness("ts", "ten seconds"),
            r"delay must be like '10 seconds' \(.*\), not 'ten seconds'",
        ),
        (
            lambda: WatermarkStrategy.for_bounded_out_of_orderness("ts", -1),
            r"delay must be seconds \(0 or more\) or a timedelta, not -1",
        ),
        (lambda: WatermarkStrategy.for_monotonous_timestamps("ts", interval=0), "interval must be at least 1, not 0"),
        (lambda: WatermarkStrategy.for_punctuation(5), "takes the name of a column, such as 'ts', not 5"),  # type: ignore[arg-type]
    ],
)
def test_a_watermark_strategy_that_cannot_work(make: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        make()
