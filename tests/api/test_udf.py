"""The object that async_pandas_udf makes: its own attributes, copies of it, and what help() says."""

from __future__ import annotations

import asyncio
import copy
import pickle
import pydoc
from collections.abc import Callable
from typing import Any

import pytest
from pyspark import cloudpickle

import asyncudf
import asyncudf.testing
from asyncudf import AsyncFunction, AsyncUDF, ResultFuture, async_pandas_udf
from asyncudf.testing import run_rows


async def doubled(x: int) -> int:
    """Twice as much."""
    return 2 * x


class Twice(AsyncFunction):
    """Each row twice."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
        self.seen.append(value)
        result_future.complete([value, value])


OURS = sorted(name for name in dir(async_pandas_udf(doubled)) if not name.startswith("__"))


@pytest.mark.parametrize("name", OURS)
def test_no_attribute_of_the_function_hides_one_of_ours(name: str) -> None:
    async def call(x: int) -> int:
        return x + 1

    setattr(call, name, "the user's")
    udf = async_pandas_udf(call, capacity=7)
    assert getattr(udf, name) != "the user's"
    assert getattr(udf.__wrapped__, name) == "the user's"
    assert run_rows(udf.with_options(capacity=3), [1]) == [2]


def test_an_async_functions_class_lends_its_name_and_text_only() -> None:
    udf = async_pandas_udf(Twice(), "int")
    assert (udf.__name__, udf.__doc__) == ("Twice", "Each row twice.")
    assert sorted(name for name in dir(udf) if not name.startswith("__")) == OURS


def by_cloudpickle(udf: Any) -> Any:
    return cloudpickle.loads(cloudpickle.dumps(udf))


def by_pickle(udf: Any) -> Any:
    return pickle.loads(pickle.dumps(udf))


@pytest.mark.parametrize("copied", [by_cloudpickle, by_pickle, copy.copy, copy.deepcopy])
def test_a_copy_works_and_stands_for_itself(copied: Callable[[Any], Any]) -> None:
    plain, rich = async_pandas_udf(doubled, capacity=7), async_pandas_udf(Twice(), "int", timeout=5)
    for udf, result in ((plain, [4]), (rich, [2, 2])):
        other = copied(udf)
        assert isinstance(other, AsyncUDF)
        assert other is not udf
        assert (other.options, other.returns, other.__name__) == (udf.options, udf.returns, udf.__name__)
        assert other.__wrapped__ is other.spec.function
        assert run_rows(other, [2]) == result


def test_a_deep_copy_has_an_async_function_of_its_own() -> None:
    udf = async_pandas_udf(Twice(), "int")
    run_rows(copy.deepcopy(udf), [1])
    assert udf.spec.function.seen == []


def lines_of_help(thing: Any) -> list[str]:
    return pydoc.render_doc(thing, renderer=pydoc.plaintext).splitlines()


def test_help_on_a_udf_is_about_the_users_function() -> None:
    assert "    Twice as much." in lines_of_help(async_pandas_udf(doubled))[:5]


def test_help_on_the_package_opens_with_the_entry_points() -> None:
    text = "\n".join(lines_of_help(asyncudf)[:40])
    for name in (
        "async_pandas_udf(",
        "ordered_wait(",
        "AsyncStream(",
        "register(",
        "run_rows",
        "asyncudf.testing",
    ):
        assert name in text
    assert "_spark" not in text


def test_help_on_the_test_kit_is_about_testing() -> None:
    text = "\n".join(lines_of_help(asyncudf.testing))
    assert "run_rows(function, rows)" in text
    assert "OperatorHarness" in text
    assert "call_soon" not in text, "the methods of asyncio's loop bury ours"


def test_the_clock_of_the_test_kit_is_an_event_loop() -> None:
    with asyncio.Runner(loop_factory=asyncudf.testing.VirtualClockLoop) as runner:
        assert runner.run(_an_hour()) == 3600


async def _an_hour() -> float:
    await asyncio.sleep(3600)
    return asyncio.get_running_loop().time()
