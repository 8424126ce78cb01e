"""LookupTable: only what the table does not have is called, and every accident leaves a table that can be read."""

import shutil

import pytest
from pyspark.sql import functions as sf

from asyncudf import (
    AsyncFunction,
    AsyncUDFError,
    FunctionError,
    LookupTable,
    OptionError,
    ResultStore,
    async_pandas_udf,
)
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
def places(spark, located, tmp_path):
    return LookupTable(spark, str(tmp_path / "places"), located, "city")


def cities(spark, *names):
    return spark.createDataFrame([(number, name) for number, name in enumerate(names)], "id int, city string")


def joined(table, df, **options):
    return sorted(((row.id, row.lat) for row in table.join(df, **options).collect()), key=str)


def test_only_what_is_missing_is_called(spark, places, journal):
    assert update(places, cities(spark, "Oslo", "Rome", "Oslo")) == (2, 0, 0)
    assert update(places, cities(spark, "Oslo", "Paris")) == (1, 1, 0)
    assert update(places, cities(spark, "Oslo")) == (0, 1, 0)
    assert sorted(journal.lines) == ["call Oslo", "call Paris", "call Rome"]


def test_a_join_calls_nobody(spark, places, journal):
    df = cities(spark, "Oslo", "Nowhere", "Rome")
    update(places, cities(spark, "Oslo", "Rome"))
    assert joined(places, df) == [(0, 4.0), (1, None), (2, 4.0)]
    assert joined(places, df, how="inner") == [(0, 4.0), (2, 4.0)]
    assert places.join(df).columns == ["id", "city", "lat", "lon"]
    assert len(journal) == 2


def test_nulls_are_arguments_like_others(spark, tmp_path, journal):
    async def named(first: str | None, last: str | None) -> str:
        journal.write("call", first, last)
        return f"{first} {last}"

    table = LookupTable(spark, str(tmp_path / "names"), named)
    df = spark.createDataFrame([("a", None), (None, None), ("a", None), (None, "b")], "first string, last string")
    assert update(table, df) == (3, 0, 0)
    assert update(table, df) == (0, 3, 0)
    found = sorted(row.named for row in table.join(df).collect())
    assert found == ["None None", "None b", "a None", "a None"]


def test_nulls_that_need_no_call_are_passed_over(spark, tmp_path, journal):
    async def named(first: str, last: str) -> str:
        journal.write("call", first, last)
        return f"{first} {last}"

    table = LookupTable(spark, str(tmp_path / "names"), named, on_null_input="null")
    df = spark.createDataFrame([("a", None), (None, None), ("a", "b")], "first string, last string")
    assert update(table, df) == (1, 0, 0)
    assert update(table, df) == (0, 1, 0)
    assert sorted(str(row.named) for row in table.join(df).collect()) == ["None", "None", "a b"]


def test_before_the_first_update_there_is_nothing_to_join(spark, places):
    df = cities(spark, "Oslo")
    assert joined(places, df) == [(0, None)]
    assert joined(places, df, how="inner") == []
    with pytest.raises(FunctionError, match=r"there is no table .* yet; update"):
        places.to_df()


def test_an_update_of_nothing(spark, places):
    assert update(places, cities(spark, "x").limit(0)) == (0, 0, 0)


def test_what_has_failed_is_kept_and_tried_again(spark, places, journal):
    df = cities(spark, "Oslo", "bad")
    assert update(places, df) == (2, 0, 1)
    assert update(places, df) == (1, 1, 1)
    rows = {row.city: row for row in places.to_df().collect()}
    assert rows["bad"].error.message == "no such city: bad"
    assert rows["bad"].lat is None
    assert rows["Oslo"].error is None
    assert rows["Oslo"].lat == 4.0
    assert joined(places, df) == [(0, 4.0), (1, None)]


def test_unless_an_error_counts_for_a_while(spark, located, tmp_path, journal):
    table = LookupTable(spark, str(tmp_path / "places"), located, "city", error_ttl=3600)
    assert update(table, cities(spark, "bad")) == (1, 0, 1)
    assert update(table, cities(spark, "bad")) == (0, 1, 0)


def test_what_no_budget_was_left_for_is_neither_called_nor_failed(spark, located, tmp_path, journal):
    """It is not in the table, where it would count as failed for an hour."""
    limited = located.with_options(max_calls=2, on_spent="null")
    table = LookupTable(spark, str(tmp_path / "places"), limited, "city", error_ttl=3600)
    df = cities(spark, "Oslo", "Rome", "bad")
    done = table.update(df)
    assert (done.called, done.reused, done.unpaid) == (2, 0, 1)
    assert repr(done) == f"LookupUpdate(called=2, reused=0, failed={done.failed}, unpaid=1)"
    done = table.update(df)
    assert (done.called, done.reused, done.unpaid) == (1, 2, 0)
    assert (len(journal), table.to_df().count()) == (3, 3)


def test_results_age(spark, located, tmp_path):
    where = str(tmp_path / "places")
    assert update(LookupTable(spark, where, located, "city"), cities(spark, "Oslo")) == (1, 0, 0)
    assert update(LookupTable(spark, where, located, "city", ttl=3600), cities(spark, "Oslo")) == (0, 1, 0)
    assert update(LookupTable(spark, where, located, "city", ttl=1e-6), cities(spark, "Oslo")) == (1, 0, 0)
    table = LookupTable(spark, where, located, "city")
    assert table.to_df().count() == 1
    assert joined(table, cities(spark, "Oslo")) == [(0, 4.0)]


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


def test_results_of_another_version_do_not_count(spark, located, tmp_path):
    where = str(tmp_path / "places")
    assert update(LookupTable(spark, where, located, "city"), cities(spark, "Oslo")) == (1, 0, 0)
    assert update(LookupTable(spark, where, located, "city", version="2"), cities(spark, "Oslo")) == (1, 0, 0)


def test_waves_are_added_one_by_one(spark, located, tmp_path, journal):
    where = tmp_path / "places"
    table = LookupTable(spark, str(where), located, "city", wave=20)
    df = spark.range(100).select(sf.concat(sf.lit("city"), "id").alias("city"))
    assert update(table, df) == (100, 0, 0)
    assert len(list(where.glob("wave=*"))) == 5
    assert len(set(journal.lines)) == len(journal) == 100


def test_an_update_that_fails_half_way_goes_on_where_it_was(spark, tmp_path, journal):
    where, bad = tmp_path / "places", tmp_path / "bad"
    bad.touch()

    async def located(n: int) -> int:
        journal.write("call", n)
        if bad.exists() and len(journal) > 50:
            raise SystemExit(3)  # fails the task under every policy
        return n

    table = LookupTable(spark, str(where), located, wave=20, capacity=1)
    df = spark.range(100).withColumnRenamed("id", "n")
    with pytest.raises(Exception, match="SystemExit"):
        update(table, df)
    kept = {row.n for row in table.to_df().collect()}
    assert 20 <= len(kept) < 60
    bad.unlink()
    before = len(journal)
    called, reused, failed = update(table, df)
    assert (called, reused, failed) == (100 - len(kept), len(kept), 0)
    assert {int(line.split()[1]) for line in journal.lines[before:]} == set(range(100)) - kept


def test_two_updates_at_a_time_leave_a_table_that_can_be_read(spark, located, tmp_path):
    import threading

    where = str(tmp_path / "places")
    frames = [spark.range(40 * i, 40 * i + 80).select(sf.concat(sf.lit("c"), "id").alias("city")) for i in range(3)]
    errors = []

    def run(df):
        try:
            LookupTable(spark, where, located, "city", wave=20).update(df, progress=False)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(df,)) for df in frames]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    table = LookupTable(spark, where, located, "city")
    assert table.to_df().count() == 160
    assert update(table, frames[0].union(frames[2])) == (0, 160, 0)


def test_a_table_of_the_catalog(spark, located, journal):
    try:
        table = LookupTable(spark, "lookup_places", located, "city", wave=2)
        assert update(table, cities(spark, "a", "b", "c")) == (3, 0, 0)
        assert update(table, cities(spark, "a", "d")) == (1, 1, 0)
        assert spark.table("lookup_places").count() == 4
        assert joined(table, cities(spark, "a")) == [(0, 1.0)]
    finally:
        spark.sql("DROP TABLE IF EXISTS lookup_places")
        shutil.rmtree(
            spark.conf.get("spark.sql.warehouse.dir").removeprefix("file:") + "/lookup_places", ignore_errors=True
        )


def test_orc(spark, located, tmp_path):
    table = LookupTable(spark, str(tmp_path / "t"), located, "city", format="orc")
    assert update(table, cities(spark, "a")) == (1, 0, 0)
    assert update(table, cities(spark, "a", "b")) == (1, 1, 0)


def test_with_a_store_as_well(spark, located, tmp_path, journal):
    stored = located.with_options(store=ResultStore.disk(tmp_path / "store"))
    for where in ("one", "two"):
        assert update(LookupTable(spark, str(tmp_path / where), stored, "city"), cities(spark, "Oslo")) == (1, 0, 0)
    assert len(journal) == 1


def test_an_async_function_of_named_columns(spark, tmp_path):
    class Located(AsyncFunction):
        async def async_invoke(self, value, result_future):
            result_future.complete([len(value["city"])])

    with pytest.raises(FunctionError, match=r"gives 0\.\.n results"):
        LookupTable(spark, str(tmp_path / "t"), Located(), "city", returnType="int")


def test_odd_names(spark, tmp_path):
    async def f(value: str) -> int:
        return len(value)

    table = LookupTable(spark, str(tmp_path / "t"), f, "a.b `c`", returnType="int")
    df = spark.createDataFrame([("xyz", 1)], "`a.b ``c``` string, key int")
    assert update(table, df) == (1, 0, 0)
    assert table.join(df).collect() == [("xyz", 1, 3)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"table": ""}, "table must be a text of at least one character"),
        ({"wave": 0}, "wave must be at least 1"),
        ({"ttl": -1}, "ttl must be more than 0 seconds"),
        ({"error_ttl": "1h"}, "error_ttl must be a number of seconds"),
        ({"format": None}, "format must be a text"),
        ({"spark": None}, "LookupTable takes the Spark session first"),
        ({"capacity": 0}, "capacity must be at least 1"),
    ],
)
def test_a_value_that_cannot_work_is_told(spark, located, tmp_path, change, message):
    given = {"spark": spark, "table": str(tmp_path / "t"), "function": located, **change}
    with pytest.raises(OptionError, match=message):
        LookupTable(given.pop("spark"), given.pop("table"), given.pop("function"), "city", **given)


def test_what_does_not_fit_is_told_at_once(spark, located, places, tmp_path, journal):
    async def generator(city: str):
        yield city

    async def same(city: str) -> str:
        return city

    with pytest.raises(FunctionError, match=r"gives 0\.\.n results"):
        LookupTable(spark, str(tmp_path / "t"), generator, "city", returnType="string")
    with pytest.raises(FunctionError, match="would have two columns called 'city'"):
        LookupTable(spark, str(tmp_path / "t"), same, "city", returnType="city string")
    with pytest.raises(AsyncUDFError, match="how must be one of 'left', 'inner', not 'outer'"):
        places.join(cities(spark, "a"), how="outer")
    update(places, cities(spark, "Oslo"))
    other = LookupTable(spark, str(tmp_path / "places"), same, "city")
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
