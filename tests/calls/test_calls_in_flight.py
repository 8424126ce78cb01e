"""How many calls are in flight is true in every turn of the loop: a task's share of the job's calls rests on it."""

from __future__ import annotations

import asyncio

import pytest

from tests.kit.engines import Engine

TURNS = 20  # of the event loop in which slots start, take rows and end


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_a_slot_that_finds_no_row_and_ends_is_no_call_less(rows: int) -> None:
    flying, seen = 0, []

    async def call(x: int) -> int:
        nonlocal flying
        flying += 1
        await asyncio.sleep(1)
        flying -= 1
        return x

    engine = Engine(call, capacity=10)

    def look(turns: int) -> None:
        (operator,) = engine._chain.counted.values()
        seen.append((operator.in_progress[0], flying))
        if turns:
            engine.loop.call_soon(look, turns - 1)

    def begin() -> None:
        engine.feed(range(rows))
        look(TURNS)

    engine.loop.call_later(0.5, begin)
    engine.loop.call_later(2.0, engine.end)
    engine.run()
    assert len(engine.output) == rows
    assert (rows, rows) in seen
    assert [one for one in seen if one[0] != one[1]] == []
