"""A row with a NULL among its arguments, for a function with `on_null_input="null"`: no call, and nothing of a call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncudf import AsyncUDFError, RateLimit
from asyncudf.queues import Watermark
from asyncudf.testing import MemoryStore, OperatorHarness, run_rows
from tests.kit.functions import KINDS, of_kind

CALLED: list[Any] = []
NULLS: dict[str, Any] = {"on_null_input": "null"}


@pytest.fixture(autouse=True)
def _nothing_called() -> None:
    CALLED.clear()


async def times_ten(x: int) -> int:
    CALLED.append(x)
    return x * 10


async def slow(x: int) -> int:
    await asyncio.sleep(x)
    return await times_ten(x)


def blocking(x: int) -> int:
    CALLED.append(x)
    return x * 10


ROWS = [None, 3, None, None, 1, 2, None]
RESULTS = [None, 30, None, None, 10, 20, None]


@pytest.mark.parametrize("kind", [*KINDS, "slow", "def"])
@pytest.mark.parametrize("options", [{}, {"capacity": 1}, {"capacity": 2, "queue_size": 2}], ids=str)
def test_they_have_the_result_null_at_their_place(kind: str, options: dict[str, Any]) -> None:
    function = {"slow": slow, "def": blocking}.get(kind) or of_kind(kind, times_ten)
    if kind == "vectorized":
        options = {**options, "batch_size": 2}
    clock = {"clock": "real"} if kind == "def" else {}
    assert run_rows(function, ROWS, **NULLS, **options, **clock, returnType="bigint") == RESULTS
    assert sorted(CALLED) == [1, 2, 3]


@pytest.mark.parametrize("store", [None, MemoryStore()], ids=["", "store"])
def test_in_completion_order_they_pass_what_is_called_but_no_watermark(store: Any) -> None:
    rows = [5, None, Watermark(1), 3, 4, None]
    got = run_rows(slow, rows, output_mode="unordered", capacity=1, store=store, **NULLS)
    assert got == [None, 50, Watermark(1), 30, None, 40]  # the last waits behind 4, which waits for 3


@pytest.mark.parametrize("mode", ["ordered", "unordered"])
def test_they_ask_no_limit(mode: str) -> None:
    async def then(x: int | None) -> float:
        return asyncio.get_running_loop().time()

    limit = RateLimit(10, burst=1)
    got = run_rows(then, [*[None] * 100, 1, *[None] * 100, 2], output_mode=mode, rate_limit=limit, max_calls=2, **NULLS)
    assert sorted(one for one in got if one is not None) == pytest.approx([0.0, 0.1], abs=0.02)
    assert got.count(None) == 200
    took = run_rows(then, [None] * 100, output_mode=mode, rate_limit=limit, max_calls=1, job_capacity=1, **NULLS)
    assert took == [None] * 100


def test_a_hundred_behind_a_call_that_waits_for_its_permit_take_no_time() -> None:
    harness = OperatorHarness(times_ten, output_mode="unordered", rate_limit=RateLimit(1, burst=1), **NULLS)
    with harness:
        harness.put(1, 2, *[None] * 100)
        assert sorted(harness.output, key=str) == [10, *[None] * 100]
        harness.advance(1.1)
        assert 20 in harness.output


async def fails(x: int) -> int:
    raise ValueError(x)


def test_they_are_no_failures() -> None:
    assert run_rows(fails, [None] * 300, max_failures=1, on_error="null", **NULLS) == [None] * 300
    got = run_rows(fails, [None, 1], on_error="capture", **NULLS)
    assert got[0] == {"value": None, "error": None}
    assert got[1]["error"]["type"] == "ValueError"


def test_one_null_of_several_arguments_is_enough() -> None:
    async def both(a: int, b: int) -> int:
        CALLED.append((a, b))
        return a + b

    assert run_rows(both, [(1, 2), (None, 2), (1, None), (None, None)], **NULLS) == [3, None, None, None]
    assert CALLED == [(1, 2)]


def test_a_store_has_nothing_of_them() -> None:
    store = MemoryStore()
    assert run_rows(times_ten, [None, 1, None, 1], store=store, returnType="bigint", **NULLS) == [None, 10, None, 10]
    assert run_rows(times_ten, [None, 1], store=store, returnType="bigint", **NULLS) == [None, 10]
    assert CALLED == [1]
    info = asyncio.run(store.info())
    assert (info["entries"], info["hits"], info["misses"]) == (1, 1, 2)


def test_by_default_they_are_called() -> None:
    async def shown(x: int | None) -> str:
        return repr(x)

    assert run_rows(shown, [None, 1]) == run_rows(shown, [None, 1], on_null_input="call") == ["None", "1"]
    with pytest.raises(AsyncUDFError, match="on_null_input"):
        run_rows(shown, [], on_null_input="skip")  # type: ignore[arg-type]
