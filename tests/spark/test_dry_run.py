"""A dry run says how often a query calls its functions, and calls none of them."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import asyncio

import pandas as pd
import pytest
from pyspark import TaskContext
from pyspark.sql import functions as sf

from asyncudf import AsyncFunction, AsyncStream, RateLimit, ResultStore, async_pandas_udf, dry_run, ordered_wait
from asyncudf._observe.planned_calls import Bounds, RowCosts
from asyncudf.testing import run_rows
from tests.spark.test_calls_per_row import MENTIONS

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("adaptive")]

ROWS = 100


@pytest.fixture
def function(spark, journal):
    """Makes a function that counts its calls, also one of SQL; the table is `t`."""
    spark.range(0, ROWS, 1, 2).createOrReplaceTempView("t")

    def make(**options):
        @async_pandas_udf("a int, b int", **options)
        async def f(id: int):
            journal.write("called", id)
            return {"a": id, "b": id % 10}

        if options.get("output_mode") != "unordered":
            spark.udf.register("f", f)
        f.with_options(output_mode="unordered", deterministic=False).register(spark, "rows_of_f")
        return f

    return make


@pytest.fixture
def told_and_made(journal):
    """What a dry run says, and how many calls the query makes then; the dry run makes none."""

    def run(df):
        told = dry_run(df)
        assert len(journal) == 0, "the dry run has called the function"
        df.collect()
        return told, len(journal)

    return run


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("query", MENTIONS)
def test_the_queries_of_the_readme(spark, function, told_and_made, query, deterministic):
    """Exact, but where a filter reads the results of the first mention."""
    function(deterministic=deterministic)
    told, made = told_and_made(spark.sql(query))
    assert made == MENTIONS[query][deterministic]
    is_copied = deterministic and query.count("f(id)") == 1 and len(told.mentions) == 2
    if (query.count("f(id)") == 2 and "WHERE" in query) or is_copied:
        assert (told.calls.at_least, told.calls.at_most) == (100, 200)
        assert "depends on results of other async functions" in " ".join(str(told).split())
    else:
        assert told.calls.at_least == told.calls.at_most == made
    assert [("copied" in mention.reasons) for mention in told.mentions] == [is_copied] * len(told.mentions)


def test_what_is_persisted_is_called_once_and_then_no_more(spark, function, journal):
    kept = spark.table("t").select("id", function()("id").alias("r")).persist()
    try:
        first = dry_run(kept.orderBy("r.a"))
        assert (first.calls.at_least, first.calls.at_most, len(journal)) == (100, 100, 0)
        assert first.mentions[0].reasons == ("cached",)
        behind = dry_run(kept.where("id < 10").select(function()("id")))
        assert len(journal) == 0, "a cache was filled to count rows, which calls the function"
        assert behind.calls.at_least == 100
        kept.orderBy("r.a").collect()
        assert len(journal) == 100
        again = dry_run(kept.orderBy("r.a"))
        assert (again.calls.at_most, again.mentions[0].reasons) == (0, ("loaded",))
        kept.orderBy("r.a").collect()
        assert len(journal) == 100
    finally:
        kept.unpersist()


def test_a_cache_that_an_action_has_filled_in_part_calls_for_the_rest(spark, function, journal):
    kept = spark.table("t").select("id", function()("id").alias("r")).persist()
    try:
        kept.take(1)
        before = len(journal)
        told = dry_run(kept)
        kept.collect()
        assert 0 < before < ROWS
        assert told.calls.at_least <= len(journal) - before <= told.calls.at_most
    finally:
        kept.unpersist()


def test_a_join_whose_other_side_is_empty_says_so(spark, conf, function, journal):
    """Adaptive execution had ended the calls of a join after 50 of 100."""
    f, t = function(), spark.table("t")
    for rows, is_dropped in ((0, True), (30, False)):
        told = dry_run(t.select("id", f("id")).join(t.where(f"id < {rows}"), "id"))
        assert ("dropped" in told.mentions[0].reasons) == is_dropped
        assert told.calls.at_least == (0 if is_dropped else ROWS)


def test_a_session_that_makes_equal_exchanges_twice(spark, conf, function, told_and_made):
    conf("spark.sql.exchange.reuse", "false")
    r = spark.table("t").select(function()("id").alias("r"))
    told, made = told_and_made(r.alias("x").join(r.alias("y"), sf.expr("x.r.a = y.r.a")))
    assert told.calls.at_least <= made == told.calls.at_most == 200


def test_side_outputs_are_one_evaluation(spark, function, told_and_made):
    with AsyncStream(spark.table("t")).ordered_wait(function(), on_error="dead_letter") as stream:
        told, made = told_and_made(stream.to_df())
        assert told.calls.at_least == told.calls.at_most == made == 100
        assert dry_run(stream).calls.at_most == 0


@pytest.mark.parametrize("lazy", [lambda df: df.rdd.toDF(df.schema), lambda df: df.localCheckpoint(eager=False)])
def test_rows_of_an_rdd_that_may_call_are_not_run(spark, function, journal, lazy):
    df = lazy(spark.table("t").select("id", function()("id").alias("r")))
    told = dry_run(df.where("id > 3").select(function()("id")))
    assert len(journal) == 0
    assert told.is_hidden
    assert told.calls.at_most is None
    assert "What they call cannot be seen" in str(told)


def test_functions_larger_than_a_megabyte_are_found(spark, journal):
    """Spark sends them by another way."""
    table = {i: str(i) * 100 for i in range(10_000)}

    @async_pandas_udf
    async def large(id: int) -> str:
        journal.write("called", id)
        return table[id]

    told = dry_run(spark.range(10).select(large("id")).where("length(`large(id)`) > 3"))
    assert (told.calls.at_least, told.calls.at_most, len(journal)) == (10, 10, 0)
    assert [mention.function for mention in told.mentions] == ["large"]


class OnlyThere:
    """Can be read in a worker only, as what connects to something when it is unpickled."""

    def __reduce__(self):
        return _in_a_worker, ()


def _in_a_worker():
    if TaskContext.get() is None:
        raise RuntimeError("not on the driver")
    return OnlyThere()


def test_a_function_that_the_driver_cannot_read_is_counted_without_its_options(spark, journal, told_and_made):
    there = OnlyThere()

    @async_pandas_udf
    async def closed(id: int) -> int:
        journal.write("called", type(there).__name__)
        return id

    told, made = told_and_made(spark.range(10).select(closed("id")))
    assert told.calls.at_least == told.calls.at_most == made == 10
    assert [(mention.function, mention.entry_point) for mention in told.mentions] == [("closed", "unknown")]
    assert "options are not known" in str(told)
    told = dry_run(ordered_wait(spark.range(10), closed))
    assert len(journal) == 10
    assert (told.calls.at_least, told.calls.at_most) == (0, None)


def test_a_store_may_call_for_each_row_and_saves_what_is_equal(spark, function, journal):
    """Two tasks of one host had made 351 calls for 213 distinct arguments, which were said to be the most."""
    t = spark.range(ROWS).select((sf.col("id") % 7).alias("id"))
    without = dry_run(t.select(function()("id")))
    assert (without.calls.at_least, without.mentions[0].distinct) == (100, 7)
    assert "7 distinct: a store would save about 93 of the calls" in str(without)
    told = dry_run(t.select(function(store=ResultStore.executor(), version="dry run")("id")))
    assert (told.calls.at_least, told.calls.at_most, told.mentions[0].distinct) == (0, 100, 7)
    assert told.calls.expected == Bounds(7, 7)
    assert str(told).startswith("about 7 calls while the store is empty, at most 100, in 1 mention")
    assert len(journal) == 0


def test_what_to_expect_of_a_store(spark, function):
    """One call for each distinct argument, also below a sort; mentions of one function may share the results."""
    f = function(store=ResultStore.executor(), version="expected", capacity=10)
    spark.range(ROWS).select((sf.col("id") % 40).alias("id")).createOrReplaceTempView("t")
    t = spark.table("t")
    ordered = dry_run(t.select(f("id").alias("r")).orderBy("r.a"), latency=2, price=1)
    assert (ordered.calls.expected, ordered.cost.expected) == (Bounds(40, 40), Bounds(40.0, 40.0))
    assert ordered.seconds.expected == Bounds(4.0, 4.0)  # 2 tasks, 10 at a time, and no call in the second evaluation
    union = dry_run(t.select(f("id")).union(t.where("id < 30").select(f("id"))))
    assert union.calls.expected == Bounds(40, 70)
    twice = dry_run(t.select(f("id"), f((sf.col("id") % 20).alias("id"))))
    assert sorted(mention.distinct for mention in twice.mentions) == [20, 40]
    assert twice.calls.expected == Bounds(40, 60)
    nested = dry_run(t.select(f(f("id").getField("b"))))
    assert sorted(str(mention.distinct) for mention in nested.mentions) == ["40", "None"]
    assert dry_run(t.select(f("id").alias("r")).where("r.b > 2").limit(3)).calls.expected == Bounds(0, 40)
    assert dry_run(t.select(f("id")), counting="estimate").calls.expected is None
    keyed = f.with_options(store=ResultStore.executor(key=lambda key: key % 4))
    assert dry_run(t.select(keyed("id"))).calls.expected == Bounds(0, 40)

    @async_pandas_udf("long", store=ResultStore.executor(), version="expected", batch_size=20)
    async def in_batches(id: pd.Series):
        return id

    assert dry_run(t.select(in_batches("id"))).calls.expected == Bounds(2, 40)


@pytest.mark.promise("dry_run")
def test_arguments_are_counted_at_every_entry_point(spark, function, journal):
    f = function()
    spark.range(ROWS).selectExpr("id AS other", "id % 9 AS id").createOrReplaceTempView("few")
    few = spark.table("few")
    table = spark.sql("SELECT * FROM rows_of_f(TABLE(few), 'id')")
    for df in (few.select(f("id")), few.select(f(few.id + 1)), ordered_wait(few, f, "id"), table):
        for counting in ("exact", "approximate"):
            (mention,) = dry_run(df, counting=counting).mentions
            assert (mention.distinct, mention.rows.at_most, mention.function) == (9, ROWS, "f")
        assert dry_run(df, counting="estimate").mentions[0].distinct is None
    assert len(journal) == 0


def test_an_estimate_runs_nothing(spark, no_job, function):
    f = function()
    with no_job:
        told = dry_run(spark.table("t").select(f("id")), counting="estimate")
        unknown = dry_run(spark.createDataFrame([(1,)], "id int").select(f("id")), counting="estimate")
    assert (told.calls.at_least, told.calls.at_most) == (ROWS, ROWS)
    assert "estimate" in str(told)
    assert (unknown.calls.at_least, unknown.calls.at_most) == (0, None)
    assert "uncounted" in unknown.mentions[0].reasons


def test_an_async_function_object_and_0_to_n_results(spark, journal, told_and_made):
    class Many(AsyncFunction):
        async def open(self, context):
            pass

        async def async_invoke(self, value, result_future):
            journal.write("called")
            result_future.complete([1, 2])

        async def close(self):
            pass

    told, made = told_and_made(ordered_wait(spark.range(10), Many(), "id", returnType="int"))
    assert told.calls.at_least == told.calls.at_most == made == 10
    behind = dry_run(
        ordered_wait(ordered_wait(spark.range(10), Many(), returnType="int"), Many(), returnType="int", as_="x")
    )
    assert (behind.calls.at_least, behind.calls.at_most) == (10, None)


def test_seconds_and_cost(spark, function):
    df = spark.table("t").select(function(capacity=10)("id"))
    told = dry_run(df, latency=2, price=0.01)
    assert (told.seconds.at_least, told.seconds.at_most) == (10.0, 10.0)  # 100 calls, 2 tasks, 10 at a time
    assert told.cost.at_most == pytest.approx(1.0)
    assert "10 s at 2 s a call; costs 1.00" in str(told)
    assert dry_run(df).seconds is None
    assert "5 x the latency of a call (2 tasks at a time, 10 calls in flight in each)" in str(dry_run(df))
    of_job = dry_run(spark.table("t").select(function(job_capacity=4)("id")))
    assert "25 x the latency of a call (4 calls in flight in the whole job)" in str(of_job)


def tokens(id, extra=3):
    return id % 7 + extra


def test_a_cost_function_is_evaluated_over_the_rows(spark, function, journal):
    """It was left out, and "rate_limit= included" said, of a time that was a fifth of what the calls took."""
    permits = float(sum(map(tokens, range(ROWS))))
    f = function(rate_limit=[RateLimit(1000), RateLimit(10, cost=tokens, scope="task")])
    f.with_options(output_mode="unordered").register(spark, "rows_of_f")
    t = spark.table("t")
    for df in (t.select(f("id")), ordered_wait(t, f, "id"), spark.sql("SELECT * FROM rows_of_f(TABLE(t), 'id')")):
        told = dry_run(df, latency=0.1)
        assert told.mentions[0].costs == RowCosts((float(ROWS), permits), ROWS)
        assert "rate_limit= included" in str(told)
        assert dry_run(df).mentions[0].costs is None
    assert len(journal) == 0

    async def ends(id):
        await asyncio.sleep(0.1)
        return asyncio.get_running_loop().time()

    one = dry_run(t.coalesce(1).select(f("id")), latency=0.1).seconds
    ended = max(run_rows(ends, range(ROWS), returnType="double", rate_limit=f.options.rate_limit))
    assert one.at_least == one.at_most == pytest.approx(ended, rel=0.02)


def test_a_cost_function_gets_what_it_gets_in_the_run(spark):
    """Moments with their zone, a dict where the function gets one, no row that makes no call; each row of a batch."""

    class Asks(AsyncFunction):
        async def async_invoke(self, value, result_future):
            result_future.complete([1])

    @async_pandas_udf("int", rate_limit=RateLimit(9, cost=lambda at: at.tzinfo is not None and 2.0))
    async def when(at):
        return 1

    @async_pandas_udf("int", rate_limit=RateLimit(9, cost=lambda n: 2.0 if n % 2 else None), on_null_input="null")
    async def odd(id):
        return 1

    @async_pandas_udf("int", rate_limit=RateLimit(9, cost=lambda n: 2.0), batch_size=50)
    async def batched(id: pd.Series) -> pd.Series:
        return id

    t = spark.range(0, ROWS, 1, 2).selectExpr("id", "timestamp_seconds(id) AS at", "if(id % 2 = 1, id, null) AS odd")
    limit = RateLimit(9, cost=lambda row: 2.0 * (row["id"] >= 0 and {*row} == {"id"}))
    asked = ordered_wait(t, Asks(), "id", returnType="int", as_="x", rate_limit=limit)
    for df, rows in ((t.select(when("at")), ROWS), (t.select(odd("odd")), ROWS // 2), (asked, ROWS)):
        assert dry_run(df, latency=1).mentions[0].costs == RowCosts((2.0 * rows,), rows)
    told = dry_run(t.select(batched("id")), latency=1)
    assert (told.calls.at_least, told.calls.at_most) == (2, 100)
    # 200 permits at 9 a second, whatever the batches are; a call of 50 rows begins when the burst is there, and owes.
    assert (round(told.seconds.at_least), round(told.seconds.at_most)) == (12, 23)


def test_a_cost_that_cannot_be_evaluated_is_told(spark, function, no_job):
    """Then a rate limit may take any time: there is no upper bound. An error of the function is no error of ours."""
    t, limit = spark.table("t"), {"rate_limit": RateLimit(10, cost=tokens)}
    f = function(**limit)
    with no_job:
        estimated = dry_run(t.select(f("id")), latency=1, counting="estimate")
    chain = dry_run(AsyncStream(t).filter(lambda row: True).ordered_wait(f, "id"), latency=1)
    fails = dry_run(t.select(function(rate_limit=RateLimit(10**6, cost=lambda n: 1 / (n % 10)))("id")), latency=1)
    ends = dry_run(t.select(function(rate_limit=RateLimit(1000, cost=lambda n: -n))("id")), latency=1)
    for told, why in (
        (estimated, 'a rate_limit= is not included: its cost needs the rows, of which counting="estimate" reads none'),
        (chain, "a rate_limit= is not included: its cost needs arguments that only a run of the query makes"),
        (ends, "not included: the job would end with FatalError: cost of a rate limit must give a number of 0 or more"),
    ):
        assert why in " ".join(str(told).split())
        assert told.seconds.at_most is None
    assert "included, without 10 rows whose cost failed: ZeroDivisionError" in " ".join(str(fails).split())
    assert (fails.mentions[0].costs.failed, fails.seconds.at_most) == (10, 1.0)


def test_what_no_plan_can_be_read_of_is_refused(spark, function, lines_of):
    f = function()
    with pytest.raises(ValueError, match=r"foreachBatch"):
        dry_run(ordered_wait(lines_of("1"), f, "line"))
    with pytest.raises(ValueError, match=r"takes a DataFrame or an AsyncStream, not 'SELECT 1'"):
        dry_run("SELECT 1")
    df = spark.range(3)
    for options in (
        {"latency": 0},
        {"price": -1},
        {"price": float("nan")},
        {"price": True},
        {"price": 10**400},
        {"counting": "quick"},
    ):
        with pytest.raises(ValueError, match=next(iter(options))):
            dry_run(df, **options)
