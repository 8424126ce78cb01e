"""What an operator edits in place is seen by no one else, on the way through Spark too."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import asyncio
import copy

import pandas as pd
import pytest

from asyncudf import AsyncFunction, AsyncStream, ProcessFunction
from tests.kit.frames import tuples
from tests.kit.spark_functions import labelled

pytestmark = pytest.mark.spark


class Keys(AsyncFunction):
    async def async_invoke(self, value, result_future):
        result_future.complete([{"keys": sorted(value), "of": value["id"]}])


NESTED = "id bigint, xs array<int>, m map<string, array<int>>, s struct<a: array<int>, b: struct<c: array<int>>>"


@pytest.fixture(scope="module")
def nested(spark):
    rows = [(i, [i], {"k": [i]}, ([i], ([i],))) for i in range(3)]
    return spark.createDataFrame(rows, NESTED).coalesce(1)


def spoil(xs, m, s):
    xs.append(99)
    m["k"].append(99)
    m["new"] = []
    s["a"].append(99)
    s["b"]["c"] = None


def spoil_row(row):
    spoil(row["xs"], row["m"], row["s"])
    row["id"] = -1
    return True


async def spoils(xs, m, s):
    spoil(xs, m, s)
    await asyncio.sleep(0)
    xs.clear()
    return {"n": 1}


async def spoils_many(xs: pd.Series, m: pd.Series, s: pd.Series):
    for row in zip(xs, m, s, strict=True):
        spoil(*row)
    return pd.DataFrame({"n": xs.map(len)})


class Spoils(AsyncFunction):
    async def async_invoke(self, value, result_future):
        spoil_row(value)
        result_future.complete([{"n": 1}])


class SpoilsRows(ProcessFunction):
    def process_element(self, value, context, collector):
        before = {name: copy.deepcopy(value[name]) for name in ("id", "xs", "m", "s")}
        spoil_row(value)
        collector.collect(before)
        spoil_row(before)


COLUMNS = ("xs", "m", "s")
EDITORS = {
    "filter": lambda s: s.filter(spoil_row),
    "map": lambda s: s.map(lambda row: {"spoilt": spoil_row(row)}, "spoilt boolean"),
    "flat_map": lambda s: s.flat_map(lambda row: [spoil_row(row)], "boolean"),
    "process": lambda s: s.process(SpoilsRows(), NESTED),
    "coroutine": lambda s: s.ordered_wait(spoils, *COLUMNS, returnType="n int"),
    "async_function": lambda s: s.unordered_wait(Spoils(), returnType="n int"),
    "vectorized": lambda s: s.ordered_wait(spoils_many, *COLUMNS, returnType="n int"),
    "twice": lambda s: s.filter(spoil_row).filter(spoil_row),
}
SOURCES = {
    "columns of the source": lambda s: s,
    "columns of an operator": lambda s: s.map(lambda row: {"id": row["id"]}, "id bigint").ordered_wait(
        nest,
        "id",
        returnType="xs array<int>, m map<string, array<int>>, s struct<a: array<int>, b: struct<c: array<int>>>",
    ),
}


async def nest(id):
    await asyncio.sleep(0)
    return {"xs": [id], "m": {"k": [id]}, "s": {"a": [id], "b": {"c": [id]}}}


def text_of(row):
    return str({name: row[name] for name in ("id", *COLUMNS)})


@pytest.mark.parametrize("source", SOURCES)
def test_an_edit_in_place_is_seen_by_no_one_else(nested, stream_of, source):
    shared = SOURCES[source](stream_of(nested))
    edited = {name: edit(shared) for name, edit in EDITORS.items()}
    behind = {f"behind_{name}": s.map(text_of, "string") for name, s in edited.items() if "xs" in s.columns}
    frames = AsyncStream.collect(before=shared, **edited, beside=shared.map(text_of, "string"), **behind)
    texts = [text_of({"id": i, "xs": [i], "m": {"k": [i]}, "s": {"a": [i], "b": {"c": [i]}}}) for i in range(3)]
    whole = tuples(nested)
    assert tuples(frames["before"].select("id", *COLUMNS)) == whole
    assert len(behind) == 6
    for name, frame in frames.items():
        if name == "beside" or name in behind:
            assert [row.value for row in frame.collect()] == texts, name
        elif "xs" in frame.columns:
            assert tuples(frame.select("id", *COLUMNS)) == whole, name


def test_with_object_reuse_functions_that_edit_nothing_give_the_same(nested, stream_of):
    for reuse in (False, True):
        shared = stream_of(nested, object_reuse=reuse).ordered_wait(labelled, "xs", "id")
        frames = AsyncStream.collect(
            longer=shared.map(lambda row: [*row["xs"], 99], "array<int>"),
            keys=shared.ordered_wait(Keys(), "id", "m", returnType="keys array<string>, of bigint").map(
                lambda row: {**row["m"], "of": [row["of"]]}, "map<string, array<int>>"
            ),
            whole=shared,
        )
        assert tuples(frames["longer"]) == [([i, 99],) for i in range(3)]
        assert tuples(frames["keys"]) == [({"k": [i], "of": [i]},) for i in range(3)]
        assert tuples(frames["whole"]) == [(*row, f"{row[0]}:[{row[0]}]") for row in tuples(nested)]
