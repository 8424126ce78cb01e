"""AsyncStream: operators one behind the other and side by side, all in one stage."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import asyncio
import contextlib
import copy

import pandas as pd
import pytest
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from asyncudf import (
    AsyncFunction,
    AsyncStream,
    ProcessFunction,
    RuntimeContext,
    WatermarkStrategy,
    async_pandas_udf,
    ordered_wait,
)

pytestmark = pytest.mark.spark


@pytest.fixture
def stream_of():
    """Begins streams that are closed at the end of the test."""
    with contextlib.ExitStack() as stack:
        yield lambda df, **options: stack.enter_context(AsyncStream(df, **options))


@pytest.fixture
def kept(spark):
    """How many evaluations Spark keeps."""
    spark.catalog.clearCache()
    return lambda: spark.sparkContext._jsc.getPersistentRDDs().size()


def tuples(frame):
    return [tuple(row) for row in frame.collect()]


@async_pandas_udf("twice bigint, name string", capacity=5)
async def doubled(id: int):
    await asyncio.sleep(id * 7 % 11 / 2000)  # so that rows change places where they may
    return {"twice": id * 2, "name": f"n{id}" if id % 3 else None}


@async_pandas_udf(capacity=3)
async def labelled(name: str, id: int) -> str:
    await asyncio.sleep(id * 5 % 7 / 2000)
    return f"{id}:{name}"


@async_pandas_udf
async def same(id: int) -> int:
    return id


async def told(id: int, context: RuntimeContext) -> int:
    """May write side outputs, so its evaluation is kept."""
    return context.partition


class Passes(ProcessFunction):
    def process_element(self, value, context, collector):
        collector.collect(value)


# --- one behind the other ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second"), [("ordered", "ordered"), ("ordered", "unordered"), ("unordered",) * 2])
@pytest.mark.usefixtures("small_batches")
def test_a_chain_gives_the_rows_of_separate_stages(spark, first, second):
    df = spark.range(0, 60, 1, 2)
    apart = tuples(ordered_wait(ordered_wait(df, doubled), labelled))
    assert apart[1] == (1, 2, "n1", "1:n1")
    waits = {"ordered": AsyncStream.ordered_wait, "unordered": AsyncStream.unordered_wait}
    stream = waits[second](waits[first](AsyncStream(df), doubled), labelled)
    assert stream.columns == ["id", "twice", "name", "labelled"]
    found = tuples(stream)
    assert sorted(found) == apart
    assert second == "unordered" or found == apart


def test_a_chain_is_one_stage(spark, capsys):
    df = spark.range(3)
    chain = AsyncStream(df).ordered_wait(doubled).filter(lambda row: True).map(lambda row: row).unordered_wait(labelled)
    chain.explain()
    assert capsys.readouterr().out.count("MapInArrow") == 1
    ordered_wait(ordered_wait(df, doubled), labelled).explain()
    assert capsys.readouterr().out.count("MapInArrow") == 2


ALL_TYPES = """
    SELECT id, CAST(id / 3 AS decimal(20, 5)) d, IF(id % 3 = 0, NULL, CONCAT('s', id)) s, '' AS empty,
    CAST(CONCAT('b', id) AS binary) b, ARRAY(id, NULL, id + 1) a, MAP(CONCAT('k', id), ARRAY(id)) m,
    NAMED_STRUCT('x', id, 'y', NAMED_STRUCT('z', ARRAY(NAMED_STRUCT('w', CAST(NULL AS string))))) st,
    TIMESTAMP'2021-10-31 00:30:00Z' + MAKE_DT_INTERVAL(0, 0, 0, i * 1800.000001) ts,
    DATE_ADD(DATE'1970-01-01', i) day, TIMESTAMP_NTZ'2020-02-02 02:02:02' ntz, MAKE_DT_INTERVAL(i, 1, 2, 3.5) AS span,
    9007199254740993 + id big, CAST(NULL AS void) nothing, id % 2 = 0 even,
    CAST(i AS float) / 8 f, CAST(i AS tinyint) t,
    ARRAY(TIMESTAMP_MICROS(id)) ats, MAP(id, TIMESTAMP_MICROS(id)) mts, NAMED_STRUCT('t', TIMESTAMP_MICROS(id)) sts
    FROM (SELECT id, CAST(id AS int) i FROM RANGE(0, 10, 1, 2))
"""
KINDS_OF_CHAINS = {
    "operators that do not touch them": lambda s: s.unordered_wait(same).filter(lambda row: row["ts"].tzinfo),
    "a kept evaluation": lambda s: s.ordered_wait(told),
    "python and back": lambda s: s.map(lambda row: row),
    "python and back behind an operator": lambda s: (
        s.ordered_wait(same).process(Passes()).ordered_wait(labelled, "s", "id")
    ),
    "a union": lambda s: s.filter(lambda row: row["id"] < 5).union(s.filter(lambda row: row["id"] >= 5)),
}


@pytest.mark.parametrize("zone", ["America/St_Johns", "Asia/Kathmandu", "+03:15"])
@pytest.mark.usefixtures("small_batches")
def test_columns_of_every_type_come_through_unchanged(spark, conf, stream_of, zone):
    conf("spark.sql.session.timeZone", zone)
    df = spark.sql(ALL_TYPES)
    wanted = tuples(df)
    for name, chain in KINDS_OF_CHAINS.items():
        result = chain(stream_of(df)).to_df().select(*df.columns)
        assert result.dtypes == df.dtypes, name
        assert sorted(tuples(result), key=lambda row: row[0]) == wanted, name


@pytest.mark.usefixtures("small_batches")
def test_no_row_is_lost_between_small_queues_and_micro_batches(spark):
    async def some(id: int):
        for number in range(id % 4):
            yield {"number": number}

    @async_pandas_udf("half double", batch_size=7, capacity=2, queue_size=8)
    async def halved(id: pd.Series):
        await asyncio.sleep(0)
        return pd.DataFrame({"half": id / 2})

    stream = AsyncStream(spark.range(0, 400, 1, 2))
    shared = stream.unordered_wait(some, returnType="number int", capacity=3, queue_size=4)
    left = shared.filter(lambda row: row["id"] % 3).ordered_wait(halved)
    right = shared.filter(lambda row: row["id"] % 3 == 0).unordered_wait(halved, batch_size=4)
    joined = left.union(right).unordered_wait(same, capacity=1, queue_size=1)
    assert sorted(tuples(joined)) == [(i, n, i / 2, i) for i in range(400) for n in range(i % 4)]


class Keys(AsyncFunction):
    async def async_invoke(self, value, result_future):
        result_future.complete([{"keys": sorted(value), "of": value["id"]}])


def test_an_async_function_gets_a_dict_of_the_named_columns_or_of_all(spark, stream_of):
    stream = stream_of(spark.range(1)).ordered_wait(doubled)
    named = stream.ordered_wait(Keys(), "twice", "id", returnType="keys array<string>, of bigint")
    every = stream.ordered_wait(Keys(), returnType="keys array<string>, of bigint")
    assert named.first()["keys"] == ["id", "twice"]
    assert every.first()["keys"] == ["id", "name", "twice"]


def test_a_vectorized_function_behind_another_operator_gets_exact_values_in_full_batches(spark):
    @async_pandas_udf("size int, total bigint, nulls int", batch_size=4, capacity=1)
    async def counted(id: pd.Series, name: pd.Series):
        ones = pd.Series(1, index=id.index)
        return pd.DataFrame({"size": ones * len(id), "total": id + 2**60, "nulls": ones * int(name.isna().sum())})

    found = AsyncStream(spark.range(0, 10, 1, 1)).ordered_wait(doubled).unordered_wait(counted).collect()
    assert [row.total - 2**60 for row in found] == list(range(10))
    assert [row["size"] for row in found] == [4, 4, 4, 4, 4, 4, 4, 4, 2, 2]
    assert [row.nulls for row in found] == [2, 2, 2, 2, 1, 1, 1, 1, 1, 1]


def test_a_vectorized_function_may_take_all_columns_as_a_frame(spark):
    @async_pandas_udf("string", batch_size=3)
    async def described(frame: pd.DataFrame) -> pd.Series:
        return frame["id"].astype(str) + ":" + frame["twice"].astype(str) + ":" + ",".join(frame.columns)

    found = AsyncStream(spark.range(0, 2, 1, 1)).ordered_wait(doubled).ordered_wait(described).collect()
    assert [row.described for row in found] == ["0:0:id,twice,name", "1:2:id,twice,name"]


def test_an_async_generator_gives_the_next_operator_any_number_of_rows(spark):
    async def steps(id: int):
        for step in range(id):
            await asyncio.sleep(0)
            yield step

    async def sums(id: int, steps: int) -> int:
        return id * 10 + steps

    stream = AsyncStream(spark.range(0, 4, 1, 1)).ordered_wait(steps, returnType="int").ordered_wait(sums)
    assert tuples(stream) == [(1, 0, 10), (2, 0, 20), (2, 1, 21), (3, 0, 30), (3, 1, 31), (3, 2, 32)]


ROWS = {
    "map": lambda s, type_, give: s.map(lambda row: give(row["id"]), type_),
    "flat_map": lambda s, type_, give: s.flat_map(lambda row: [give(row["id"])] * 2, type_),
    "flat_map with yield": lambda s, type_, give: s.flat_map(generator(give), type_),
    "process": lambda s, type_, give: s.process(Gives(give), type_),
}
TYPES = {
    "DDL of columns": ("id bigint, city string", lambda n: {"id": n, "city": None}, "id bigint, city string"),
    "a struct": (st.StructType().add("n", "integer"), lambda n: {"n": n}, "n int"),
    "DDL of one value": ("double", lambda n: n / 2, "value double"),
    "an array": (st.ArrayType(st.LongType()), lambda n: [n, None], "value array<bigint>"),
}


def generator(give):
    def rows(row):
        yield give(row["id"])
        yield give(row["id"])

    return rows


class Gives(ProcessFunction):
    def __init__(self, give):
        self.give = give

    def process_element(self, value, context, collector):
        collector.collect(self.give(value["id"]))
        collector.collect(self.give(value["id"]))


@pytest.mark.parametrize("method", ROWS)
def test_plain_functions_give_rows_of_the_declared_columns(spark, method):
    stream = AsyncStream(spark.range(0, 2, 1, 1))
    times = 1 if method == "map" else 2
    for name, (declared, give, columns) in TYPES.items():
        result = ROWS[method](stream, declared, give).to_df()
        assert ", ".join(f"{column} {kind}" for column, kind in result.dtypes) == columns, name
        values = [give(n) for n in (0, 1) for _ in range(times)]
        assert [row.asDict() for row in result.collect()] == [v if type(v) is dict else {"value": v} for v in values]


@pytest.mark.parametrize("method", ROWS)
def test_plain_functions_give_the_same_columns_unless_told_otherwise(spark, method):
    result = ROWS[method](AsyncStream(spark.range(0, 2, 1, 1)), None, lambda n: {"id": -n})
    assert sorted({row.id for row in result.collect()}) == [-1, 0]
    assert result.dtypes == [("id", "bigint")]


def test_the_value_of_a_map_is_read_by_the_next_operator(spark):
    async def plus_one(value: int) -> int:
        return value + 1

    assert tuples(AsyncStream(spark.range(1)).map(lambda row: 41, "int").ordered_wait(plus_one)) == [(41, 42)]


def test_a_filter_keeps_rows_with_all_columns(spark):
    stream = AsyncStream(spark.range(0, 6, 1, 1)).filter(lambda row: row["id"] % 2).ordered_wait(doubled)
    stream = stream.filter(lambda row: row["name"] and row["twice"] < 10).ordered_wait(labelled)
    assert tuples(stream) == [(1, 2, "n1", "1:n1")]


def test_a_chain_without_any_operator_or_with_plain_functions_only(spark):
    stream = AsyncStream(spark.range(0, 5, 1, 2))
    assert tuples(stream) == [(n,) for n in range(5)]
    stream = stream.filter(lambda row: row["id"] > 2).flat_map(lambda row: range(row["id"]), "int")
    assert tuples(stream.map(lambda row: {"n": row["value"]}, "n int")) == [(0,), (1,), (2,), (0,), (1,), (2,), (3,)]


class Opens(AsyncFunction):
    def __init__(self, journal):
        self.journal = journal

    async def open(self, context):
        self.journal.write("open", context.partition)

    async def async_invoke(self, value, result_future):
        result_future.complete([value["id"]])


def test_empty_partitions_and_empty_dataframes_open_nothing(spark, journal, stream_of):
    def chain(df):
        return stream_of(df).ordered_wait(Opens(journal), returnType="bigint").process(Passes()).unordered_wait(same)

    assert tuples(chain(spark.range(0))) == []
    assert tuples(chain(spark.range(0, 8, 1, 4).where("id >= 6"))) == [(6, 6, 6), (7, 7, 7)]
    assert journal.lines == ["open 3"]
    assert chain(spark.range(0)).columns == ["id", "Opens", "same"]


def test_each_partition_has_a_chain_of_its_own(spark, stream_of):
    class Numbers(ProcessFunction):
        def open(self, context):
            self.count = 0

        def process_element(self, value, context, collector):
            self.count += 1
            collector.collect({"part": context.partition, "number": self.count})

    df = spark.range(0, 40, 1, 4)
    stream = stream_of(df).unordered_wait(same, "id").process(Numbers(), "part int, number int")
    assert sorted(tuples(stream)) == [(part, number) for part in range(4) for number in range(1, 11)]


def test_columns_of_any_name_come_through_and_can_be_read(spark, stream_of):
    names = ["id", "address.city", "a b", "`", "result", "r0", "Ünicode"]
    df = spark.range(1).select("id", *(sf.lit(name).alias(name) for name in names[1:]))
    stream = stream_of(df).ordered_wait(told).filter(lambda row: row["address.city"] == "address.city")
    stream = stream.ordered_wait(labelled, "address.city", "id").ordered_wait(same, "told")
    assert stream.columns == [*names, "told", "labelled", "same"]
    assert tuple(stream.first()) == (0, *names[1:], 1, "0:address.city", 1)


@pytest.mark.parametrize("names", [("x", "x"), ("x", "X")])
def test_columns_of_the_same_name_come_through_if_nobody_reads_them(spark, stream_of, names):
    df = spark.range(1).select("id", *(sf.lit(number).alias(name) for number, name in enumerate(names)))
    for function in (same, told):
        stream = stream_of(df).ordered_wait(function).ordered_wait(doubled)
        assert stream.columns == ["id", *names, stream.columns[3], "twice", "name"]
        assert tuple(stream.first())[:3] == (0, 0, 1)


def test_a_limit_ends_the_whole_chain(spark, journal, workers, until):
    @contextlib.asynccontextmanager
    async def client():
        journal.write("open")
        try:
            yield
        finally:
            journal.write("close")

    async def first(id: int, client) -> int:
        await asyncio.sleep(0)
        return id

    async def second(first: int, client) -> str:
        await asyncio.sleep(0)
        return "x" * 1000

    stream = AsyncStream(spark.range(0, 60_000, 1, 1)).ordered_wait(first, resources=client)
    stream = stream.unordered_wait(second, resources=client).filter(lambda row: row["id"] >= 0)
    assert len(stream.limit(5).collect()) == 5
    until(lambda: journal.count("close") == 2, "both operators are closed")
    assert journal.lines == ["open", "open", "close", "close"]


# --- in Spark ---------------------------------------------------------------------------------------------------------


def test_the_rows_are_a_dataframe_like_any_other(spark):
    df = AsyncStream(spark.range(0, 6, 1, 2)).ordered_wait(doubled).to_df()
    other = spark.range(0, 12, 2).withColumnRenamed("id", "twice").withColumn("known", sf.lit(True))
    joined = df.join(other, "twice").groupBy("known").agg(sf.sum("id").alias("ids"), sf.count("name").alias("names"))
    assert tuples(joined) == [(True, 15, 4)]
    df.createOrReplaceTempView("chained")
    assert spark.sql("SELECT max(twice) FROM chained WHERE name IS NOT NULL").first()[0] == 10


def test_a_stream_answers_like_its_dataframe(spark, capsys):
    stream = AsyncStream(spark.range(0, 3, 1, 1)).ordered_wait(doubled)
    assert (stream.count(), stream.columns, stream.isStreaming) == (3, ["id", "twice", "name"], False)
    assert tuples(stream.select("twice").where("twice > 0")) == [(2,), (4,)]
    assert [tuple(row) for row in stream.collect()] == [(0, 0, None), (1, 2, "n1"), (2, 4, "n2")]
    stream.show()
    assert "|  1|    2|  n1|" in capsys.readouterr().out
    assert repr(stream.filter(lambda row: True)) == "<AsyncStream source > doubled > filter>"
    with pytest.raises(AttributeError, match="_private"):
        _ = stream._private


def test_a_stream_can_be_copied(spark):
    stream = AsyncStream(spark.range(0, 2, 1, 1)).ordered_wait(doubled)
    assert tuples(copy.copy(stream)) == tuples(stream)


# --- watermarks -------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def called():
    yield {}


async def late_fives(id: int, called) -> int:
    """Rows 0, 5, 10 ... wait until the calls of the next five rows have started; the others return at once."""
    called.setdefault(id, asyncio.Event()).set()
    if id % 5 == 0 and id < 35:
        await called.setdefault(id + 9, asyncio.Event()).wait()
    return id


async def again(id: int, called) -> int:
    return await late_fives(id, called)


LATE = {"resources": called, "timeout": 30.0}
# Between two fences the rows that return at once leave first; the one that waited leaves last.
FENCED = [i for start in range(0, 40, 5) for i in (start + 1, start + 2, start + 3, start + 4, start)]
FENCED[-5:] = [35, 36, 37, 38, 39]
EVERY_FIVE = WatermarkStrategy.for_monotonous_timestamps("at", interval=5)


@pytest.fixture(scope="module")
def timed(spark):
    """Row i stands at i microseconds after the epoch."""
    return spark.range(0, 40, 1, 1).withColumn("at", sf.col("id"))


def ids(stream):
    return [row.id for row in stream.collect()]


@async_pandas_udf("at bigint")
async def at(id: int):
    return {"at": id}


FENCES = {
    "of the stream, for both operators": lambda s: (
        s.assign_timestamps_and_watermarks(EVERY_FIVE)
        .unordered_wait(late_fives, **LATE)
        .filter(lambda row: True)
        .unordered_wait(again, **LATE)
    ),
    "of the first operator": lambda s: s.unordered_wait(late_fives, watermark=EVERY_FIVE, **LATE).ordered_wait(same),
    "of the second operator": lambda s: s.ordered_wait(same).unordered_wait(late_fives, watermark=EVERY_FIVE, **LATE),
    "behind a map": lambda s: (
        s.map(lambda row: row).assign_timestamps_and_watermarks(EVERY_FIVE).unordered_wait(late_fives, **LATE)
    ),
    "read from what an operator has added": lambda s: (
        s.map(lambda row: {"id": row["id"]}, "id bigint")
        .ordered_wait(at)
        .unordered_wait(late_fives, watermark=EVERY_FIVE, **LATE)
    ),
    "written by the first, read by the second": lambda s: s.ordered_wait(
        same, watermark=EVERY_FIVE, with_watermark_column="mark"
    ).unordered_wait(late_fives, watermark=WatermarkStrategy.from_column("mark"), **LATE),
}


@pytest.mark.parametrize("fences", FENCES)
def test_no_row_passes_a_watermark(timed, fences):
    assert ids(FENCES[fences](AsyncStream(timed))) == FENCED


def test_without_watermarks_rows_pass_those_that_wait(timed):
    found = ids(AsyncStream(timed).ordered_wait(same).unordered_wait(late_fives, **LATE))
    assert sorted(found) == list(range(40))
    assert found.index(9) < found.index(0)


def test_each_arrow_batch_is_a_segment_for_all_operators(timed, conf):
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", 5)
    stream = AsyncStream(timed).assign_timestamps_and_watermarks(WatermarkStrategy.per_batch())
    stream = stream.filter(lambda row: True).unordered_wait(late_fives, **LATE)
    assert ids(stream.unordered_wait(again, **LATE)) == FENCED


def test_the_watermark_in_force_is_a_column_first_and_in_the_middle_of_a_chain(timed):
    stream = AsyncStream(timed).ordered_wait(same, watermark=EVERY_FIVE, with_watermark_column="first")
    stream = stream.ordered_wait(labelled, "at", "id", watermark=EVERY_FIVE, with_watermark_column="second")
    found = stream.selectExpr("id", "unix_micros(first)", "unix_micros(second)")
    marks = {i: None if i < 5 else i // 5 * 5 - 2 for i in range(40)}
    assert tuples(found) == [(i, marks[i], marks[i]) for i in range(40)]


def test_a_process_function_knows_time_and_watermark(timed, stream_of):
    class Tells(ProcessFunction):
        def process_element(self, value, context, collector):
            collector.collect({"id": value["id"], "time": context.timestamp, "mark": context.watermark})

    schema = "id bigint, time bigint, mark bigint"
    stream = stream_of(timed)
    assert tuples(stream.process(Tells(), schema)) == [(i, None, None) for i in range(40)]
    found = tuples(stream.ordered_wait(same, watermark=EVERY_FIVE).process(Tells(), schema))
    assert found == [(i, i, None if i < 5 else i // 5 * 5 - 2) for i in range(40)]


# --- branches ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def looked_up(journal):
    @async_pandas_udf("found bigint")
    async def looked_up(id: int):
        journal.write("call", id)
        return {"found": id * 10}

    return looked_up


def test_branches_are_one_evaluation(spark, stream_of, journal, looked_up):
    shared = stream_of(spark.range(0, 6, 1, 2)).ordered_wait(looked_up)
    frames = AsyncStream.collect(
        even=shared.branch().filter(lambda row: row["id"] % 2 == 0).unordered_wait(same),
        text=shared.branch().map(lambda row: str(row["found"]), "string"),
        whole=shared,
        nothing=shared.filter(lambda row: False).ordered_wait(same),
    )
    for _ in range(2):
        assert tuples(frames["nothing"]) == []
        assert sorted(tuples(frames["text"])) == [("0",), ("10",), ("20",), ("30",), ("40",), ("50",)]
        assert sorted(tuples(frames["even"])) == [(0, 0, 0), (2, 20, 2), (4, 40, 4)]
        assert tuples(frames["whole"].orderBy("id")) == [(i, i * 10) for i in range(6)]
    assert frames["nothing"].columns == ["id", "found", "same"]
    assert sorted(journal.lines) == [f"call {i}" for i in range(6)]


def test_branches_are_joined_again_by_union(spark, journal, looked_up):
    shared = AsyncStream(spark.range(0, 6, 1, 2)).ordered_wait(looked_up)
    small = shared.filter(lambda row: row["id"] < 2).map(lambda row: {"id": row["id"], "found": -1})
    big = shared.filter(lambda row: row["id"] >= 4)
    joined = small.union(big, shared.filter(lambda row: row["id"] == 3)).unordered_wait(same)
    assert sorted(tuples(joined)) == [(0, -1, 0), (1, -1, 1), (3, 30, 3), (4, 40, 4), (5, 50, 5)]
    assert sorted(journal.lines) == [f"call {i}" for i in range(6)]


def test_a_single_stream_is_collected_without_keeping_it(spark, stream_of, kept, looked_up, journal):
    frames = AsyncStream.collect(only=stream_of(spark.range(0, 3, 1, 1)).ordered_wait(looked_up))
    assert tuples(frames["only"]) == [(0, 0), (1, 10), (2, 20)]
    assert kept() == 0
    assert len(journal) == 3


def test_a_stream_collected_under_two_names_is_one_evaluation(spark, stream_of, journal, looked_up):
    stream = stream_of(spark.range(0, 3, 1, 1)).ordered_wait(looked_up)
    frames = AsyncStream.collect(one=stream, other=stream.branch(), source=stream_of(spark.range(0, 3)))
    assert tuples(frames["one"]) == tuples(frames["other"]) == [(0, 0), (1, 10), (2, 20)]
    assert frames["source"].count() == 3
    assert len(journal) == 3


def test_streams_of_several_dataframes_are_an_evaluation_each(spark, stream_of, journal, looked_up):
    left = stream_of(spark.range(0, 3, 1, 1)).ordered_wait(looked_up)
    right = stream_of(spark.range(10, 12, 1, 1)).ordered_wait(looked_up)
    frames = AsyncStream.collect(
        left=left, odd=left.filter(lambda row: row["id"] % 2), right=right, more=right.map(lambda row: row)
    )
    for _ in range(2):
        assert tuples(frames["left"]) == [(0, 0), (1, 10), (2, 20)]
        assert tuples(frames["odd"]) == [(1, 10)]
        assert tuples(frames["right"]) == tuples(frames["more"]) == [(10, 100), (11, 110)]
    assert sorted(journal.lines) == sorted(f"call {i}" for i in (0, 1, 2, 10, 11))


def test_close_releases_what_is_kept_and_the_dataframes_go_on(spark, kept, journal, looked_up):
    stream = AsyncStream(spark.range(0, 3, 1, 1))
    found = stream.ordered_wait(looked_up)
    frames = AsyncStream.collect(found=found, text=found.map(lambda row: "x", "string"))
    assert [frames["found"].count(), frames["text"].count(), kept(), len(journal)] == [3, 3, 1, 3]
    found.close()
    stream.close()
    assert kept() == 0
    assert [frames["found"].count(), kept(), len(journal)] == [3, 0, 6], "evaluated anew"


def test_a_with_block_releases_also_after_an_exception(spark, kept):
    def use():
        with AsyncStream(spark.range(3)).ordered_wait(told) as stream:
            stream.count()
            assert kept() == 1
            raise KeyError("in the block")

    with pytest.raises(KeyError, match="in the block"):
        use()
    assert kept() == 0


def test_a_stream_without_side_outputs_is_not_kept(spark, kept, journal, looked_up):
    stream = AsyncStream(spark.range(0, 3, 1, 1)).ordered_wait(looked_up).map(lambda row: row)
    assert [stream.count(), stream.count(), kept(), len(journal)] == [3, 3, 0, 6]


def test_closing_a_stream_does_not_touch_another_one_like_it(spark, kept, journal):
    async def noted(id: int, context: RuntimeContext) -> int:
        journal.write("call", id)
        return id

    df = spark.range(0, 3, 1, 1)
    with AsyncStream(df).ordered_wait(noted) as one:
        one.count()
        with AsyncStream(df).ordered_wait(noted) as other:
            other.count()
        calls = len(journal)
        one.count()
        assert len(journal) == calls


# --- copies -----------------------------------------------------------------------------------------------------------


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
BEGINNINGS = {
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


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_an_edit_in_place_is_seen_by_no_one_else(nested, stream_of, beginning):
    shared = BEGINNINGS[beginning](stream_of(nested))
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


# --- life cycle -------------------------------------------------------------------------------------------------------


class Lives(AsyncFunction):
    def __init__(self, name, journal):
        self.name = name
        self.journal = journal
        self.state = "not open"

    async def open(self, context):
        self.state = "open"
        self.journal.write("open", self.name)

    async def async_invoke(self, value, result_future):
        await asyncio.sleep(0)
        result_future.complete([{f"with_{len(value)}": self.state}])

    async def close(self):
        self.state = "closed"
        self.journal.write("close", self.name)


class LivesPlainly(ProcessFunction):
    def __init__(self, name, journal):
        self.name = name
        self.journal = journal

    async def open(self, context):
        await asyncio.sleep(0)
        self.journal.write("open", self.name)

    def process_element(self, value, context, collector):
        collector.collect(value)

    def close(self):
        self.journal.write("close", self.name)


def test_operators_open_from_the_tail_to_the_head_and_close_from_the_head_to_the_tail(spark, stream_of, journal):
    @contextlib.asynccontextmanager
    async def client():
        journal.write("open", "client")
        yield
        journal.write("close", "client")

    async def first(id: int, client) -> int:
        return id

    stream = stream_of(spark.range(0, 3, 1, 1)).ordered_wait(first, resources=client)
    stream = stream.process(LivesPlainly("plain", journal))
    stream = stream.unordered_wait(Lives("middle", journal), returnType="with_2 string")
    stream = stream.filter(lambda row: True).ordered_wait(Lives("last", journal), returnType="with_3 string")
    assert tuples(stream) == [(i, i, "open", "open") for i in range(3)]
    names = ["last", "middle", "plain", "client"]
    assert journal.lines == [f"open {name}" for name in names] + [f"close {name}" for name in reversed(names)]


@pytest.mark.parametrize("kind", ["AsyncFunction", "ProcessFunction"])
def test_a_function_used_by_two_operators_is_an_instance_for_each(spark, stream_of, kind):
    class Calls(AsyncFunction):
        opened = 0

        async def open(self, context):
            self.opened += 1

        async def async_invoke(self, value, result_future):
            result_future.complete([{f"opened_{len(value)}": self.opened}])

    class Rows(ProcessFunction):
        opened = 0

        def open(self, context):
            self.opened += 1

        def process_element(self, value, context, collector):
            collector.collect({"opened_1": self.opened, "opened_2": value.get("opened_1")})

    stream, calls, rows = stream_of(spark.range(1)), Calls(), Rows()
    if kind == "AsyncFunction":
        stream = stream.ordered_wait(calls, returnType="opened_1 int").ordered_wait(calls, returnType="opened_2 int")
    else:
        stream = stream.process(rows, "opened_1 int, opened_2 int").process(rows)
    assert tuples(stream.select("opened_1", "opened_2")) == [(1, 1)]
