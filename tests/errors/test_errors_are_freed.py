"""What an error holds, such as the socket of its response, is free when its row is done, without the collector."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pandas as pd
import pytest

from asyncudf import AsyncFunction, ResultFuture, RetryStrategy
from asyncudf.testing import run_rows

made: list[weakref.ref[BaseException]] = []


class ServiceError(Exception):
    """Stands for one that has a response, as `urllib.error.HTTPError` is one."""

    def __init__(self) -> None:
        super().__init__("status 500")
        made.append(weakref.ref(self))


@pytest.fixture(autouse=True)
def _without_the_collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    made.clear()
    gc.disable()
    with monkeypatch.context() as changed:
        changed.setattr(gc, "collect", lambda *_: 0)
        yield
    gc.enable()


def in_a_thread(x: int) -> int:
    raise ServiceError


async def at_once(x: int) -> int:
    raise ServiceError


async def later(x: int) -> int:
    await asyncio.sleep(0)
    raise ServiceError


async def of_a_task(x: int) -> int:
    return await asyncio.create_task(later(x))


async def of_many(x: pd.Series) -> pd.Series:
    return pd.Series([await later(int(one)) for one in x])


async def of_a_generator(x: int) -> AsyncIterator[int]:
    yield x
    await later(x)


class OfAFuture(AsyncFunction):
    async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
        await asyncio.sleep(0)
        result_future.complete_exceptionally(ServiceError())


FORMS = [in_a_thread, at_once, later, of_a_task, of_many, of_a_generator, OfAFuture()]


@pytest.mark.parametrize("on_error", ["null", "capture"])
@pytest.mark.parametrize("function", FORMS, ids=lambda one: getattr(one, "__name__", "AsyncFunction"))
def test_an_error_is_gone_with_its_row(function: Any, on_error: str) -> None:
    """Errors of calls in threads stayed: an engine in one process had their sockets open until it was busy again."""
    options = {"on_error": on_error, "retry": RetryStrategy.fixed_delay(2, 0.001), "capacity": 5}
    run_rows(function, range(20), returnType="long", clock="real", **options)
    assert made
    assert [one() for one in made if one() is not None] == []
