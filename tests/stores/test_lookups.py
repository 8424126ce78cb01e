"""What a lookup does with what the store gives: results of a batch together, and large ones few at a time."""

from __future__ import annotations

import asyncio
import logging
import operator
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from asyncudf import async_pandas_udf
from asyncudf._engine.stored.stored_results import DECODED_AT_ONCE, KEYS_AT_ONCE, StoredResults
from asyncudf._stores.keys import ResultKeys
from asyncudf._stores.values import ResultCodec
from asyncudf.testing import MemoryStore, run_stream
from tests.kit.bridges import column
from tests.kit.stores import SlowStore


class NotedCodec(ResultCodec):
    """Notes how many values, and of how many bytes, are decoded together."""

    parts: list[tuple[int, int]]

    def __init__(self) -> None:
        super().__init__(bytes, many=False)
        self.parts = []

    def decode_many(self, keys: Sequence[bytes], values: Sequence[bytes | None]) -> Any:
        self.parts.append((len(values), sum(map(len, filter(None, values)))))
        return super().decode_many(keys, values)


async def looked_up(values: Sequence[bytes], damaged: Sequence[int] = ()) -> tuple[list[Any], NotedCodec]:
    """What is found of these results once they are in a store, those of some numbers damaged; and the codec."""
    store, codec = MemoryStore(), NotedCodec()

    @async_pandas_udf(store=store, version="1")
    async def f(x: int) -> bytes:
        return b""

    keys = ResultKeys("f", "1", "binary").of_many([(x,) for x in range(len(values))])
    items = {key: codec.kept(key, [value]) for key, value in zip(keys, values, strict=True)}
    stored = StoredResults("f", store, None, codec, f.options, lambda: 0.0)  # type: ignore[arg-type]
    await store.open()
    given = {key: kept[0] for key, kept in items.items() if kept is not None}
    await store.put_many(given | {keys[at]: given[keys[at]][:-1] for at in damaged}, None)
    await store.close()
    found = [*await stored.look_up(keys)]
    await stored.close()
    return found, codec


def test_small_results_are_decoded_many_at_a_time() -> None:
    values = [b"x" * (x % 50) for x in range(KEYS_AT_ONCE + 100)]
    found, codec = asyncio.run(looked_up(values))
    assert found == [[value] for value in values]
    assert [count for count, _ in codec.parts] == [KEYS_AT_ONCE, 100]


def test_of_large_results_no_more_are_copied_than_fit_into_the_memory() -> None:
    """To decode results together they are copied: hundreds of a megabyte would be half a gigabyte."""
    values = [bytes((x,)) * (DECODED_AT_ONCE // 5) for x in range(40)]
    found, codec = asyncio.run(looked_up(values))
    assert found == [[value] for value in values]
    assert max(size for _, size in codec.parts) <= DECODED_AT_ONCE
    assert max(count for count, _ in codec.parts) == 4


def test_a_damaged_result_among_others_costs_no_other(caplog: pytest.LogCaptureFixture) -> None:
    """The results of a part are read one by one if one of them is none."""
    values = [b"x" * x for x in range(30)]
    with caplog.at_level(logging.WARNING, "asyncudf"):
        found, _ = asyncio.run(looked_up(values, damaged=[3, 7]))
    assert found == [None if x in (3, 7) else [value] for x, value in enumerate(values)]
    assert [record.message for record in caplog.records] == [
        "2 results in the store of f are damaged or not its own; the function is called in their place"
    ]


def column_of(values: Sequence[int | None], store: SlowStore, calls: list[int], **options: Any) -> list[Any]:
    """What a column gives back for batches of 1,500 rows; each call notes its argument."""

    async def tenfold(x: int | None) -> int | None:
        assert x is not None
        calls.append(x)
        return x * 10

    batches = [pa.array(values[at : at + 1_500], pa.int64()) for at in range(0, len(values), 1_500)]
    arrays = column(tenfold, batches, "bigint", store=store, version="1", store_timeout=60.0, **options)
    return [value for array in arrays for value in array.to_pylist()]


def test_rows_of_a_column_that_have_no_result_are_called_at_their_places() -> None:
    """Batches are looked up in parts. Whatever is found of one, rows leave in order, and are called at most once."""
    store, calls = SlowStore(), list[int]()
    for known in (range(0), range(2_000), range(0, 4_000, 3), range(4_000)):
        store.entries.clear()
        column_of(known, store, [])
        calls.clear()
        assert column_of(range(4_000), store, calls) == [x * 10 for x in range(4_000)]
        assert sorted(calls) == sorted({*range(4_000)} - {*known})


def test_a_column_of_stored_results_and_nulls_stays_in_order() -> None:
    store, calls = SlowStore(), list[int]()
    values = [None if x % 7 == 0 else x for x in range(3_000)]
    wanted = [None if x is None else x * 10 for x in values]
    for _ in range(2):
        assert column_of(values, store, calls, on_null_input="null") == wanted
    assert len(calls) == len([x for x in values if x is not None])


@pytest.mark.parametrize("mode", ["ordered_wait", "unordered_wait"])
@pytest.mark.parametrize("goes_on", [False, True], ids=["to Spark", "to the next operator"])
def test_results_of_the_store_stand_beside_the_columns_of_their_own_rows(mode: str, goes_on: bool) -> None:
    """Hundreds leave at once, alone or among rows that are called."""
    store, calls = SlowStore(), list[int]()

    async def tenfold(n: int) -> int:
        calls.append(n)
        return n * 10

    async def next_one(tenfold: int) -> int:
        return tenfold + 1

    def build(stream: Any) -> Any:
        first = getattr(stream, mode)(tenfold, store=store, version="1")
        return getattr(first, mode)(next_one, store=store, version="1") if goes_on else first

    def rows(known: Sequence[int]) -> list[dict[str, Any]]:
        return [{"n": n, "label": f"row {n}"} for n in known]

    wanted = [
        {**row, "tenfold": 10 * n, **({"next_one": 10 * n + 1} if goes_on else {})}
        for n, row in enumerate(rows(range(2_500)))
    ]
    for known in (range(0), range(0, 2_500, 3), range(2_500)):
        store.entries.clear()
        run_stream(build, rows(known), "n int, label string", batch_size=1_000)
        calls.clear()
        out = run_stream(build, rows(range(2_500)), "n int, label string", batch_size=1_000)
        assert (out if mode == "ordered_wait" else sorted(out, key=operator.itemgetter("n"))) == wanted
        assert sorted(calls) == sorted({*range(2_500)} - {*known})
