"""Rows leave a chain in the order that its operators promise."""

from __future__ import annotations

import asyncio

from asyncudf.testing import run_stream
from tests.kit.chains import column, first, numbers, second


class TestOrder:
    def test_ordered_behind_unordered_keeps_the_order_that_it_was_given(self) -> None:
        got = run_stream(lambda s: s.unordered_wait(first).ordered_wait(second), numbers(5), "n int")
        assert column(got, "n") == [4, 3, 2, 1, 0]

    def test_a_row_goes_on_before_the_others_are_done(self) -> None:
        seen: list[tuple[str, int, float]] = []

        async def one(n: int) -> int:
            await asyncio.sleep(n)
            seen.append(("one", n, asyncio.get_running_loop().time()))
            return n

        async def two(one: int) -> int:
            seen.append(("two", one, asyncio.get_running_loop().time()))
            return one

        run_stream(lambda s: s.unordered_wait(one).unordered_wait(two), numbers(3), "n int")
        assert seen == [(f, n, float(n)) for n in range(3) for f in ("one", "two")]
