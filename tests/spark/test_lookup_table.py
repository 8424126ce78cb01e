"""LookupTable: only what the table does not have is called, and every accident leaves a table that can be read."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from pyspark.sql import functions as sf

from asyncudf import AsyncUDFError, FunctionError, LookupTable, OptionError, RetryStrategy, async_pandas_udf
from asyncudf._spark._compat import engine_of
from tests.kit.lookup_tables import update

pytestmark = pytest.mark.spark


@pytest.fixture
def located(journal):
    async def located(city: str | None) -> dict:
        journal.write("call", city)
        if city is None or city.startswith("bad"):
            raise LookupError(f"no such city: {city}")
        return {"lat": float(len(city)), "lon": None}

    return async_pandas_udf(located, "lat double, lon double", capacity=10)


@pytest.fixture
def where(spark, tmp_path):
    """Spark reads `run[1]` as a pattern, found nothing there, and each update called for everything again."""
    time, name = ("12:30", "t:*") if engine_of(spark).keeps_options else ("noon", "t*")
    return str(tmp_path / f"run[1] {{a,b}} *?\\d at {time}" / name)


@pytest.fixture
def places(spark, located, where):
    return LookupTable(spark, where, located, "city")


def cities(spark, *names):
    return spark.createDataFrame([(number, name) for number, name in enumerate(names)], "id int, city string")


def joined(table, df, **options):
    return sorted(((row.id, row.lat) for row in table.join(df, **options).collect()), key=str)


def test_a_path_may_begin_at_home(spark, located, tmp_path, monkeypatch):
    """A folder called `~` was made in the working directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    places = LookupTable(spark, "~/places", located, "city")
    assert update(places, cities(spark, "Oslo")) == (1, 0, 0)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["places"]


@pytest.mark.promise("LookupTable")
def test_only_what_is_missing_is_called_and_a_join_calls_nobody(spark, places, journal):
    df = cities(spark, "Oslo", "Nowhere", "Rome")
    assert joined(places, df) == [(0, None), (1, None), (2, None)], "before the first update"
    assert joined(places, df, how="inner") == []
    with pytest.raises(FunctionError, match=r"there is no table .* yet; update"):
        places.to_df()
    assert update(places, df.limit(0)) == (0, 0, 0)
    assert update(places, cities(spark, "Oslo", "Oslo")) == (1, 0, 0)
    assert update(places, cities(spark, "Oslo", "Rome")) == (1, 1, 0)
    assert joined(places, df) == [(0, 4.0), (1, None), (2, 4.0)]
    assert joined(places, df, how="inner") == [(0, 4.0), (2, 4.0)]
    assert places.join(df).columns == ["id", "city", "lat", "lon"]
    assert sorted(journal.lines) == ["call Oslo", "call Rome"]


@pytest.mark.parametrize(("on_null_input", "calls"), [("call", 4), ("null", 1)])
def test_nulls_are_arguments_like_others_or_need_no_call(spark, tmp_path, journal, on_null_input, calls):
    async def named(first: str | None, last: str | None) -> str:
        journal.write("call", first, last)
        return f"{first} {last}"

    table = LookupTable(spark, str(tmp_path / "names"), named, on_null_input=on_null_input)
    rows = [("a", None), (None, None), ("a", None), (None, "b"), ("a", "b")]
    df = spark.createDataFrame(rows, "first string, last string")
    for called, reused in ((calls, 0), (0, calls)):
        assert update(table, df) == (called, reused, 0)
    wanted = {row: f"{row[0]} {row[1]}" if on_null_input == "call" or None not in row else None for row in rows}
    found = table.join(df).collect()
    assert ({(row.first, row.last): row.named for row in found}, len(found)) == (wanted, 5)
    assert len(journal) == calls


def test_what_has_failed_is_kept_and_tried_again_unless_an_error_counts_for_a_while(spark, located, places, where):
    df = cities(spark, "Oslo", "bad")
    assert update(places, df) == (2, 0, 1)
    assert update(LookupTable(spark, where, located, "city", error_ttl=3600), df) == (0, 2, 0)
    assert update(places, df) == (1, 1, 1)
    rows = {row.city: row for row in places.to_df().collect()}
    assert (rows["bad"].error.message, rows["bad"].lat) == ("no such city: bad", None)
    assert (rows["Oslo"].error, rows["Oslo"].lat) == (None, 4.0)


def test_results_of_another_age_version_or_function_do_not_count(spark, located, places, where):
    async def other(city: str) -> dict:
        return {"lat": -1.0, "lon": 0.0}

    def called(function=located, **options):
        return update(LookupTable(spark, where, function, "city", **options), cities(spark, "Oslo"))[0]

    assert called() == 1
    assert called(ttl=timedelta.max, error_ttl=10**15) == 0
    assert called(ttl=1e-6) == 1
    assert called(version="2") == 1
    assert called(other, returnType="lat double, lon double") == 1
    assert (joined(places, cities(spark, "Oslo")), places.to_df().count()) == ([(0, 4.0)], 1)


def test_what_only_stands_in_for_a_result_is_not_kept(spark, tmp_path, journal):
    """It would be the result for ever: the last of results that are not good enough, what `on_timeout` gives."""

    async def poor(city: str) -> int:
        journal.write("call", city)
        if city == "late":
            await asyncio.Event().wait()
        return -1 if city == "bad" else 1

    retry = RetryStrategy.fixed_delay(3, 0.001, retry_if_result=lambda n: n < 0)
    table = LookupTable(spark, str(tmp_path / "t"), poor, "city", retry=retry, timeout=0.3, on_timeout=lambda city: 7)
    df = cities(spark, "bad", "good", "late")
    assert update(table, df) == (3, 0, 2)
    assert journal.lines.count("call bad") == 3
    found = {row.city: (row.poor, row.error and row.error.type) for row in table.to_df().collect()}
    assert found == {"bad": (None, "ResultError"), "good": (1, None), "late": (None, "AsyncTimeoutError")}
    assert update(table, df) == (2, 1, 2)


def test_what_no_budget_was_left_for_is_neither_called_nor_failed(spark, located, tmp_path, journal):
    """It is not in the table, where it would count as failed for an hour."""
    limited = located.with_options(max_calls=2, on_spent="null")
    table = LookupTable(spark, str(tmp_path / "places"), limited, "city", error_ttl=3600)
    df = cities(spark, "Oslo", "Rome", "bad")
    done = table.update(df)
    assert (done.called, done.reused, done.unpaid) == (2, 0, 1)
    done = table.update(df)
    assert (done.called, done.reused, done.unpaid) == (1, 2, 0)
    assert (len(journal), table.to_df().count()) == (3, 3)


def test_an_older_result_stays_when_a_newer_call_fails(spark, tmp_path):
    broken = tmp_path / "broken"

    async def located(city: str) -> float:
        if broken.exists():
            raise ConnectionError("down")
        return 1.0

    table = LookupTable(spark, str(tmp_path / "t"), located, ttl=1e-6)
    df = cities(spark, "Oslo")
    update(table, df)
    broken.touch()
    assert update(table, df) == (1, 0, 1)
    [row] = table.to_df().collect()
    assert (row.located, row.error.type) == (1.0, "ConnectionError")
    assert table.join(df).first().located == 1.0


def test_an_update_that_fails_half_way_goes_on_where_it_was(spark, tmp_path, journal):
    """What a killed one leaves behind is not minded, and may be all that there is."""
    where, bad = tmp_path / "places", tmp_path / "bad"
    bad.touch()
    left = where / "wave=a" / "_temporary" / "0" / "_temporary" / "part-0.parquet"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"PAR1 torn")

    async def located(n: int) -> int:
        journal.write("call", n)
        if bad.exists() and len(journal) > 25:
            raise SystemExit(3)  # fails the task under every policy
        return n

    table = LookupTable(spark, str(where), located, wave=10, capacity=1)
    df = spark.range(40).withColumnRenamed("id", "n")
    with pytest.raises(Exception, match="SystemExit"):
        update(table, df)
    kept = {row.n for row in table.to_df().collect()}
    assert 10 <= len(kept) < 30
    assert len(list(where.glob("wave=*"))) > 2
    bad.unlink()
    before = len(journal)
    assert update(table, df) == (40 - len(kept), len(kept), 0)
    assert {int(line.split()[1]) for line in journal.lines[before:]} == set(range(40)) - kept
    assert left.exists()


def test_two_updates_at_a_time_leave_a_table_that_can_be_read(spark, located, tmp_path):
    where = str(tmp_path / "places")
    frames = [spark.range(start, start + 40).select(sf.concat(sf.lit("c"), "id").alias("city")) for start in (0, 20)]
    tables = [LookupTable(spark, where, located, "city", wave=20) for _ in frames]
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda table, df: table.update(df, progress=False), tables, frames))
    assert tables[0].to_df().count() == 60
    assert update(tables[0], frames[0].union(frames[1])) == (0, 60, 0)


def test_columns_may_have_any_names(spark, where):
    async def both(one: str, other: str) -> dict:
        return {"Key": len(one + other)}

    names = ["Outcome", "a.b `c`"]
    df = spark.createDataFrame([("Oslo", "x", 1, 2)], "one string, other string, `KEY_` int, arguments int")
    df = df.toDF(*names, "KEY_", "arguments")
    table = LookupTable(spark, where, both, *names, returnType="Key int")
    assert update(table, df) == (1, 0, 0)
    assert table.join(df).columns == [*names, "KEY_", "arguments", "Key"]
    assert table.join(df).collect() == [("Oslo", "x", 1, 2, 5)]
    upper = LookupTable(spark, where, both, *map(str.upper, names), returnType="Key int")
    assert update(upper, df.toDF(*map(str.lower, names), "x", "y")) == (0, 1, 0)
    assert upper.to_df().columns[:2] == [name.upper() for name in names]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"table": ""}, "table must be a text of at least one character"),
        ({"wave": 0}, "wave must be at least 1"),
        ({"ttl": -1}, "ttl must be more than 0 seconds"),
        ({"error_ttl": "1h"}, "error_ttl must be a number of seconds"),
        ({"format": None}, "format must be a text"),
        ({"format": "CSV"}, "format must be one that keeps the types of columns"),
        ({"spark": None}, "LookupTable takes the Spark session first"),
        ({"capacity": 0}, "capacity must be at least 1"),
    ],
)
def test_a_value_that_cannot_work_is_told(spark, located, tmp_path, change, message):
    given = {"spark": spark, "table": str(tmp_path / "t"), "function": located, **change}
    with pytest.raises(OptionError, match=message):
        LookupTable(given.pop("spark"), given.pop("table"), given.pop("function"), "city", **given)


def test_what_does_not_fit_is_told_at_once(spark, located, places, where, tmp_path, journal):
    async def generator(city: str):
        yield city

    async def same(city: str) -> str:
        return city

    with pytest.raises(FunctionError, match=r"gives 0\.\.n results"):
        LookupTable(spark, str(tmp_path / "t"), generator, "city", returnType="string")
    with pytest.raises(FunctionError, match="would add a column 'city'"):
        LookupTable(spark, str(tmp_path / "t"), same, "city", returnType="city string")
    with pytest.raises(AsyncUDFError, match="how must be one of 'left', 'inner', not 'outer'"):
        places.join(cities(spark, "a"), how="outer")
    update(places, cities(spark, "Oslo"))
    other = LookupTable(spark, where, same, "city")
    with pytest.raises(
        FunctionError, match="has results of the type struct<lat:double,lon:double>, and the function gives"
    ):
        update(other, cities(spark, "Oslo"))
    with pytest.raises(FunctionError, match="has arguments of the type struct<city:string>, not struct<city:int>"):
        update(places, spark.range(3).select(sf.col("id").cast("int").alias("city")))
    with pytest.raises(FunctionError, match="would add a column 'lat'"):
        places.join(cities(spark, "Oslo").withColumn("lat", sf.lit(1)))
    with pytest.raises(FunctionError, match="a map<string,string>, cannot be looked up"):
        places.update(spark.range(1).select(sf.create_map(sf.lit("a"), sf.lit("b")).alias("city")))
    spark.range(3).write.parquet(str(tmp_path / "other"))
    with pytest.raises(FunctionError, match="is not a table of a LookupTable: it has no column 'arguments'"):
        update(LookupTable(spark, str(tmp_path / "other"), located, "city"), cities(spark, "Oslo"))
    assert len(journal) == 1
