"""A row that fails names its function, its input and its cause; then all is closed."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import asyncio

import pytest

from asyncudf import AsyncFunction, AsyncStream, ProcessFunction, async_pandas_udf
from tests.kit.spark_functions import Passes, same

pytestmark = pytest.mark.spark


def picky(row):
    if row["id"] == 3:
        raise KeyError("nothing for three")
    return True


class Picky(ProcessFunction):
    def process_element(self, value, context, collector):
        if picky(value):
            collector.collect(value)


class PickyCall(AsyncFunction):
    async def async_invoke(self, value, result_future):
        result_future.complete([picky(value)])


@async_pandas_udf("boolean")
async def picky_call(id: int):
    await asyncio.sleep(0)
    return picky({"id": id})


FAILURES = {
    "map": (lambda s: s.map(picky, "boolean"), "picky failed, partition 1, for the input {'id': 3"),
    "filter": (lambda s: s.filter(picky), "picky failed, partition 1, for the input {'id': 3"),
    "a lambda": (lambda s: s.filter(lambda row: picky(row)), "filter failed, partition 1, for the input {'id': 3"),
    "flat_map": (
        lambda s: s.flat_map(lambda row: [picky(row)], "boolean"),
        "flat_map failed, partition 1, for the input {",
    ),
    "process": (lambda s: s.process(Picky()), "Picky failed, partition 1, for the input {'id': 3"),
    "an async def": (
        lambda s: s.ordered_wait(picky_call),
        "picky_call failed in attempt 1, partition 1, for the input (3,)",
    ),
    "an AsyncFunction": (
        lambda s: s.unordered_wait(PickyCall(), "id", returnType="boolean"),
        "PickyCall failed in attempt 1, partition 1, for the input {'id': 3}",
    ),
}
PLACES = {
    "first": lambda s, chain: chain(s),
    "behind an async operator": lambda s, chain: chain(s.ordered_wait(same)),
    "in the middle": lambda s, chain: chain(s.map(lambda row: row)).filter(lambda row: True),
    "on a branch": lambda s, chain: AsyncStream.collect(one=s.filter(picky_no_more), other=chain(s))["one"],
}


def picky_no_more(row):
    return True


@pytest.mark.parametrize("place", PLACES)
def test_a_row_that_fails_names_function_row_and_cause(spark, stream_of, spark_error, place):
    df = spark.range(0, 4, 1, 2)
    for name, (chain, said) in FAILURES.items():
        text = spark_error(PLACES[place](stream_of(df), chain).collect)
        assert said in text, name
        assert "KeyError: 'nothing for three'" in text, name
        assert "\n\nTraceback" in text, name


MISMATCHES = {
    "map": (lambda s: s.map(lambda row: {"id": "x"}), "map failed.*returned 'x' (str) in field 'id': declared int64"),
    "flat_map": (lambda s: s.flat_map(lambda row: 3, "int"), "flat_map failed.*an iterable of rows.*not 3"),
    "process": (lambda s: s.process(Passes(), "id int, x int"), "Passes failed.*missing field 'x'"),
    "a generator that fails": (
        lambda s: s.flat_map(two_and_an_end, "int"),
        "two_and_an_end failed.*RuntimeError: the end",
    ),
}


def two_and_an_end(row):
    yield 1
    yield 2
    raise RuntimeError("the end")


@pytest.mark.parametrize("method", MISMATCHES)
def test_a_row_that_does_not_fit_names_function_and_field(spark, spark_error, method):
    chain, said = MISMATCHES[method]
    text = spark_error(chain(AsyncStream(spark.range(1))).to_df())
    for words in said.split(".*"):
        assert words in text


class Lives(AsyncFunction):
    """Says when it is opened and closed; row 3 fails in one of its methods."""

    def __init__(self, name, journal, fails=""):
        self.name, self.journal, self.fails = name, journal, fails

    async def open(self, context):
        self.journal.write("open", self.name)
        if self.fails == "open":
            raise OSError("no way in")

    async def async_invoke(self, value, result_future):
        if self.fails == "call" and value["id"] == 3:
            raise OSError("no answer")
        if self.fails == "hangs":
            self.journal.write("call", self.name)
            try:
                await asyncio.Event().wait()
            finally:
                self.journal.write("cancelled", self.name)
        await asyncio.sleep(0)
        result_future.complete([{self.name: 1}])

    async def close(self):
        self.journal.write("close", self.name)
        if self.fails == "close":
            raise OSError("no way out")


class LivesPlainly(ProcessFunction):
    def __init__(self, journal, fails=""):
        self.journal, self.fails = journal, fails

    def open(self, context):
        self.journal.write("open", "plain")
        if self.fails == "open":
            raise OSError("no way in")

    def process_element(self, value, context, collector):
        if self.fails == "call" and value["id"] == 3:
            raise OSError("no answer")
        collector.collect(value)

    async def close(self):
        self.journal.write("close", "plain")
        if self.fails == "close":
            raise OSError("no way out")


def chain(stream, journal, **fails):
    stream = stream.ordered_wait(Lives("head", journal, fails.get("head", "")), "id", returnType="head int")
    stream = stream.process(LivesPlainly(journal, fails.get("plain", "")))
    return stream.unordered_wait(Lives("tail", journal, fails.get("tail", "")), "id", returnType="tail int")


OPEN = ["open tail", "open plain", "open head"]
CLOSE = ["close head", "close plain", "close tail"]
NAMES = {"head": "Lives", "plain": "LivesPlainly", "tail": "Lives"}


@pytest.mark.parametrize("where", NAMES)
def test_a_row_that_fails_in_one_operator_closes_all(spark, stream_of, journal, spark_error, where):
    text = spark_error(chain(stream_of(spark.range(0, 9, 1, 1)), journal, **{where: "call"}).collect)
    assert f"{NAMES[where]} failed" in text
    assert "OSError: no answer" in text
    assert journal.lines == [*OPEN, *CLOSE]


@pytest.mark.parametrize("where", NAMES)
def test_an_operator_that_cannot_be_opened_is_named_and_those_opened_are_closed(
    spark, stream_of, journal, spark_error, where
):
    text = spark_error(chain(stream_of(spark.range(1)), journal, **{where: "open"}).collect)
    assert f"{NAMES[where]}.open() failed: OSError: no way in" in text
    opened = OPEN[: [line.split()[1] for line in OPEN].index(where) + 1]
    assert journal.lines == [*opened, *(line.replace("open", "close") for line in reversed(opened))]


@pytest.mark.parametrize("where", NAMES)
def test_an_operator_that_cannot_be_closed_is_named_and_the_others_are_closed(
    spark, stream_of, journal, spark_error, where
):
    text = spark_error(chain(stream_of(spark.range(1)), journal, **{where: "close"}).collect)
    assert f"{NAMES[where]}.close() failed: OSError: no way out" in text
    assert journal.lines == [*OPEN, *CLOSE]


def test_calls_on_other_branches_are_cancelled_when_a_row_fails(spark, stream_of, journal, spark_error):
    stream = stream_of(spark.range(0, 4, 1, 1))
    frames = AsyncStream.collect(
        hangs=stream.ordered_wait(Lives("hangs", journal, "hangs"), returnType="hangs int"),
        fails=stream.ordered_wait(Lives("fails", journal, "call"), returnType="fails int"),
    )
    assert "OSError: no answer" in spark_error(frames["hangs"])
    assert journal.count("cancelled") == journal.count("call") > 0
    assert (journal.count("open"), journal.count("close")) == (2, 2)
    assert journal.lines[-1].startswith("close")


def test_a_failed_evaluation_is_not_kept_and_can_be_tried_again(spark, stream_of, journal, spark_error, tmp_path):
    class Healed(AsyncFunction):
        async def async_invoke(self, value, result_future):
            if not healed.exists():
                raise OSError("still ill")
            result_future.complete([value["id"]])

    healed = tmp_path / "healed"
    stream = stream_of(spark.range(0, 3, 1, 1)).ordered_wait(Healed(), "id", returnType="bigint")
    assert "still ill" in spark_error(stream.to_df())
    healed.touch()
    assert [row.Healed for row in stream.collect()] == [0, 1, 2]
