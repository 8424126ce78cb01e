"""Operators go on behind a side output, in the same evaluation."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import asyncio

import pytest

from asyncudf import DEAD_LETTERS, AsyncStream, async_pandas_udf
from tests.kit.frames import tuples

pytestmark = pytest.mark.spark


@pytest.fixture
def primary(journal):
    @async_pandas_udf("got string", on_error="dead_letter")
    async def primary(id: int):
        journal.write("primary", id)
        if id % 2:
            raise ConnectionError("no route")
        return {"got": f"primary {id}"}

    return primary


@pytest.fixture
def fallback(journal):
    @async_pandas_udf("got string")
    async def fallback(id: int):
        journal.write("fallback", id)
        await asyncio.sleep(0)
        return {"got": f"fallback {id}"}

    return fallback


def test_operators_behind_a_side_output_are_collected_with_the_rest(spark, stream_of, journal, primary, fallback):
    main = stream_of(spark.range(0, 6, 1, 2)).ordered_wait(primary)
    lost = main.side_output(DEAD_LETTERS)
    repaired = lost.ordered_wait(fallback)
    frames = AsyncStream.collect(main=main, lost=lost, repaired=repaired, loud=repaired.map(lambda row: 1, "int"))
    for _ in range(2):
        assert sorted(row.id for row in frames["lost"].collect()) == [1, 3, 5]
        assert sorted(row.got for row in frames["repaired"].collect()) == [f"fallback {i}" for i in (1, 3, 5)]
        assert sorted(row.got for row in frames["main"].collect()) == [f"primary {i}" for i in (0, 2, 4)]
        assert tuples(frames["loud"]) == [(1,)] * 3
    assert (journal.count("primary"), journal.count("fallback")) == (6, 3)
