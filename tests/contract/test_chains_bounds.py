"""How many rows and bytes may wait: in front of an operator of a chain, and behind a slow row."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from asyncudf import AsyncStream
from asyncudf.testing import run_stream

ROWS = [{"n": n} for n in range(20)]
MANY = 200  # results of a row


async def expand(n: int) -> AsyncIterator[int]:
    for _ in range(MANY):
        yield n


async def expand_later(n: int) -> AsyncIterator[int]:
    await asyncio.sleep(0)
    for _ in range(MANY):
        yield n


async def at_once(n: int) -> int:
    return n


async def later(n: int) -> int:
    await asyncio.sleep(0)
    return n


def many(row: dict[str, Any]) -> list[dict[str, Any]]:
    return [row] * MANY


Build = Callable[[AsyncStream], AsyncStream]


@pytest.mark.parametrize("mode", ["ordered_wait", "unordered_wait"])
@pytest.mark.parametrize(
    "expanded",
    [
        lambda stream: stream.ordered_wait(expand),
        lambda stream: stream.unordered_wait(expand_later),
        lambda stream: stream.ordered_wait(at_once).flat_map(many),
        lambda stream: stream.unordered_wait(later).flat_map(many),
        lambda stream: stream.flat_map(many),
    ],
    ids=["results of a row", "results of a row, later", "flat_map", "flat_map, later", "flat_map of the source"],
)
def test_rows_that_become_many_are_bounded_in_front_of_the_next_operator(expanded: Build, mode: str) -> None:
    """Rows of 200 results each in front of an operator of 10 calls: 2,000 rows waited there."""
    came = 0
    waiting = []

    def count(row: dict[str, Any]) -> dict[str, Any]:
        nonlocal came
        came += 1
        return {"m": row["n"]}

    async def slow(m: int) -> int:
        await asyncio.sleep(1)
        waiting.append(came - len(waiting))
        return m

    def build(stream: AsyncStream) -> AsyncStream:
        return getattr(expanded(stream).map(count, "m int"), mode)(slow, capacity=10)  # type: ignore[no-any-return]

    rows = run_stream(build, ROWS, "n int")
    assert [row["slow"] for row in rows] == [n for n in range(20) for _ in range(MANY)]
    assert max(waiting) <= 10 + 10 + MANY, "ten calls, room for ten rows, and the results of one row"
