"""Plain functions in a chain whose result has yet to run, or has no truth: the error of their row, with their name."""

from __future__ import annotations

import asyncio
import functools
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import numpy as np
import pytest

from asyncudf import AsyncStream, AsyncUDFError, FunctionError, ProcessFunction
from asyncudf.testing import run_stream

ROWS = [{"x": 1}]


async def known(row: dict[str, Any]) -> bool:
    return True


async def numbers(row: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    yield row


class Handing(ProcessFunction):
    def process_element(self, value: Any, context: Any, collector: Any) -> Any:
        return known(value)


class Awaitable:
    def __await__(self) -> Iterator[None]:
        yield


def asks_later(row: dict[str, Any]) -> Any:
    return known(row)


LATER: dict[str, Callable[[AsyncStream], AsyncStream]] = {
    "filter": lambda s: s.filter(asks_later),
    "map": lambda s: s.map(asks_later),
    "flat_map": lambda s: s.flat_map(asks_later),
    "process": lambda s: s.process(Handing()),
    "an async generator": lambda s: s.filter(lambda row: numbers(row)),
    "any awaitable": lambda s: s.filter(lambda row: Awaitable()),
}


@pytest.mark.parametrize("build", LATER.values(), ids=LATER)
def test_a_result_that_has_to_be_awaited_is_an_error_of_the_row(build: Callable[[AsyncStream], AsyncStream]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a coroutine that was never awaited
        with pytest.raises(
            AsyncUDFError, match=r"failed, partition 0, for the input \{'x': 1\}.*has not run.*ordered_wait"
        ) as caught:
            run_stream(build, ROWS, "x int")
    assert str(caught.value).startswith(("asks_later", "Handing", "filter"))


class TestRefusedWhenPlanning:
    @pytest.mark.parametrize("method", ["filter", "map", "flat_map"])
    @pytest.mark.parametrize(
        "function", [known, functools.partial(known), functools.partial(functools.partial(numbers))]
    )
    def test_an_async_def(self, method: str, function: Any) -> None:
        """Refused where a plain function is needed; the error names `ordered_wait`."""
        with pytest.raises(FunctionError, match=f"{method} takes a plain def; for an async def use ordered_wait"):
            run_stream(lambda s: getattr(s, method)(function), ROWS, "x int")

    @pytest.mark.parametrize("method", ["filter", "map"])
    def test_a_function_that_yields(self, method: str) -> None:
        """Refused where one value is needed; the error names `flat_map`."""

        def keeps(row: dict[str, Any]) -> Iterator[bool]:
            yield True

        with pytest.raises(FunctionError, match=f"{method} takes a function that returns one value.*use flat_map"):
            run_stream(lambda s: getattr(s, method)(keeps), ROWS, "x int")

    def test_a_process_element_that_would_not_run(self) -> None:
        """An `async def` or a generator would be made and never run."""

        class Coroutine(ProcessFunction):
            async def process_element(self, value: Any, context: Any, collector: Any) -> None:  # type: ignore[override]
                await asyncio.sleep(0)

        class Yields(ProcessFunction):
            def process_element(self, value: Any, context: Any, collector: Any) -> Any:
                yield value

        with pytest.raises(FunctionError, match=r"Coroutine\.process_element must be a plain def"):
            run_stream(lambda s: s.process(Coroutine()), ROWS, "x int")
        with pytest.raises(FunctionError, match=r"Yields\.process_element must not yield.*collector\.collect"):
            run_stream(lambda s: s.process(Yields()), ROWS, "x int")


def test_a_result_without_truth_names_the_function() -> None:
    def is_close(row: dict[str, Any]) -> Any:
        return np.array([True, False])

    with pytest.raises(AsyncUDFError, match=r"is_close failed, partition 0, .*ValueError: The truth value of an array"):
        run_stream(lambda s: s.filter(is_close), ROWS, "x int")
