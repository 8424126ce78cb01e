"""Calls that give way, in a slot that goes on with the next row: what one leaves behind is no matter of the next."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from asyncudf import AsyncUDFError
from asyncudf.testing import OperatorHarness, run_rows
from tests.kit.engines import Engine


@pytest.mark.parametrize("mode", ["ordered", "unordered"])
@pytest.mark.parametrize("queue_size", [2, 3, 4, 5, 8, 400])
def test_a_cancellation_that_is_taken_back_meets_no_other_row(queue_size: int, mode: str) -> None:
    """It was still to come, at the next `await` of whoever waited first; and places were given twice."""

    async def call(x: int) -> int:
        if x in (0, 5):
            await asyncio.sleep(5)
        if x in (3, 6):
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            task.uncancel()
        return x

    found = run_rows(call, range(12), capacity=2, queue_size=queue_size, output_mode=mode)
    assert sorted(found) == [*range(12)]
    assert mode == "unordered" or found == sorted(found)


def test_an_error_does_not_outlive_its_row() -> None:
    """Its slot held it until the next call of the slot had waited, with all that the error's frames hold."""
    held: list[weakref.ref[Any]] = []

    class HttpError(Exception):
        body: set[int]

    async def call(x: int) -> int:
        if x == 1:
            error, failing = HttpError(), asyncio.get_running_loop().create_future()
            error.body = {1}
            held.append(weakref.ref(error.body))
            asyncio.get_running_loop().call_soon(failing.set_exception, error)
            del error
            await failing
        await asyncio.sleep(3600)
        return x

    with OperatorHarness(call, capacity=1, on_error="null", timeout=None) as harness:
        harness.put(1, 2)
        harness.advance(1800)
        gc.collect()
        assert harness.output == [None]
        assert [body() for body in held] == [None]


def test_slots_that_end_are_no_garbage_in_cycles() -> None:
    """Each slot and its task had each other, a hundred times for each row that all others wait for."""

    async def call(x: int) -> int:
        await asyncio.sleep(5 if x % 20 == 0 else 1)
        return x

    def tasks() -> int:
        return sum(issubclass(type(one), asyncio.Task) for one in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = tasks()
        assert len(run_rows(call, range(100), capacity=10, queue_size=20)) == 100
        assert tasks() - before < 10, "not even one for each slot"
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", [StopIteration, GeneratorExit, KeyboardInterrupt, ValueError])
def test_an_output_that_raises_fails_the_task_with_its_own_error(kind: type[BaseException]) -> None:
    """Raised within a coroutine a StopIteration would be told as a RuntimeError."""

    class Full(list[Any]):
        def append(self, value: Any) -> None:
            raise kind("no room")

    async def call(x: int) -> int:
        await asyncio.sleep(1)
        return x

    engine = Engine(call, output=Full())
    engine.feed([1, 2])
    with pytest.raises((AsyncUDFError, kind), match="no room") as told:
        engine.run()
    assert "RuntimeError" not in repr(told.value)
