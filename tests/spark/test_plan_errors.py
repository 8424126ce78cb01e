"""Mistakes that the driver can see are raised there, before any job runs, with the value and the way out."""

import contextlib
import functools
import threading

import pandas as pd
import pytest
import tenacity
from pyspark.sql import functions as sf

from asyncudf import (
    AsyncFunction,
    AsyncStream,
    AsyncUDFError,
    Budget,
    FunctionError,
    LookupTable,
    WatermarkStrategy,
    async_pandas_udf,
    async_sink,
    ordered_wait,
    unordered_wait,
)

pytestmark = pytest.mark.spark


@async_pandas_udf
async def weather(city: str, day: str = "") -> str:
    return city


@async_pandas_udf(output_mode="unordered")
async def quick(city: str) -> str:
    return city


@async_pandas_udf("string")
async def letters(city):
    yield city


@async_pandas_udf
async def total(*numbers: int) -> int:
    return sum(numbers)


@async_pandas_udf
async def nothing() -> str:
    return "nothing"


@async_pandas_udf
async def untyped(city):
    return city


@async_pandas_udf
async def optional(city: str = "", day: str = "") -> str:
    return city


@pytest.fixture(scope="module")
def trips(spark):
    return spark.sql("SELECT 1 AS id, 'Oslo' AS city, current_timestamp() AS ts, 'x' AS weather, 1.5D AS temp")


UNORDERED_COLUMN = (
    r"quick is UNORDERED.*order of its rows.*unordered_wait\(df, quick, \.\.\.\).*quick\.register\(spark, 'quick'\)"
)
PLANS = {
    "an unknown column": (lambda s, df: ordered_wait(df, quick, "town"), "unknown column 'town'.*id, city, ts"),
    "an expression": (
        lambda s, df: ordered_wait(df, quick, sf.upper("city")),
        r"Column<'upper\(city\)'> is not known to be a column .* the name of one, such as 'id'; .*withColumn",
    ),
    "a column of another DataFrame": (lambda s, df: ordered_wait(df, quick, s.range(1).id), "give the name of one"),
    "a column of the DataFrame behind an operator": (
        lambda s, df: AsyncStream(df).ordered_wait(quick, df.city).ordered_wait(weather, df.city, as_="w"),
        "give the name of one",
    ),
    "a field as a column": (
        lambda s, df: ordered_wait(df.selectExpr("struct(city) AS trip"), quick, "trip.city"),
        r"unknown column 'trip.city'; .*df.withColumn\('city', sf.col\('trip.city'\)\)",
    ),
    "a list of columns": (lambda s, df: ordered_wait(df, weather, ["city", "ts"]), r"one by one .*put a \* before it"),
    "columns by name": (
        lambda s, df: ordered_wait(df, weather, day="city", city="id"),
        r"weather takes columns by position .*: write 'id', 'city' after the function, .* \(city, day\)",
    ),
    "a column for a LookupTable": (
        lambda s, df: LookupTable(s, "t", weather, df.city),
        "the name of a column must be a text .*Column<'city'>",
    ),
    "an option of a column": (
        lambda s, df: df.select(weather("city", capacity=5)),
        r"cannot take capacity by name.*with_options\(capacity=\.\.\.\)",
    ),
    "no parameter for a column": (lambda s, df: df.select(nothing()), "no parameter .* async def nothing.id."),
    "no column like a parameter": (
        lambda s, df: ordered_wait(df.select("id"), optional),
        r"there is none called like a parameter of it \(city, day\)",
    ),
    "a watermark's column as a column": (
        lambda s, df: WatermarkStrategy.for_punctuation(df.ts),
        "takes the name of a column, such as 'ts', not Column<'ts'>",
    ),
    "a name clash": (
        lambda s, df: ordered_wait(df, weather, "city"),
        r"weather would add a column 'weather', but there is one.*withColumnRenamed",
    ),
    "a name clash of a field": (
        lambda s, df: ordered_wait(df, quick, "city", returnType="TEMP double"),
        r"would add a column 'TEMP', but there is 'temp' already; .*withColumnRenamed\('temp', ",
    ),
    "too many columns": (
        lambda s, df: df.select(weather("city", "city", "city")),
        r"weather takes .*\(city, day\), not 3",
    ),
    "too few columns": (
        lambda s, df: df.select(weather(day="city")),
        r"weather takes the columns \(city, day\); there is none for city",
    ),
    "no column, all being optional": (lambda s, df: df.select(total()), "total takes at least one column"),
    "an unknown parameter": (lambda s, df: df.select(weather("city", town="id")), "cannot take town by name"),
    "an unordered column": (lambda s, df: df.select(quick("city")), UNORDERED_COLUMN),
    "an unordered SQL function": (lambda s, df: s.udf.register("quick", quick), UNORDERED_COLUMN),
    "an async generator as a column": (
        lambda s, df: df.select(letters("city")),
        r"letters gives 0\.\.n results per row.*ordered_wait\(df, letters",
    ),
    "a watermark column of a wrong type": (
        lambda s, df: unordered_wait(df, quick, watermark=WatermarkStrategy.for_monotonous_timestamps("city")),
        "watermarks cannot be read from 'city', a string; use timestamp",
    ),
    "a watermark column without watermarks": (
        lambda s, df: unordered_wait(df, quick, with_watermark_column="w"),
        "with_watermark_column needs watermark=",
    ),
    "no type": (lambda s, df: df.select(untyped("city")), "return type of untyped cannot be inferred.*; declare it"),
    "no type of a SQL function": (
        lambda s, df: s.udf.register("f", untyped),
        "return type of untyped cannot be inferred",
    ),
    "no function": (lambda s, df: ordered_wait(df, "quick", returnType="string"), "expected a function.*not 'quick'"),
}


@pytest.mark.parametrize("plan", PLANS)
def test_the_driver_refuses(spark, trips, no_job, plan):
    """Each with its message, and before Spark runs any job."""
    make, message = PLANS[plan]
    with no_job, pytest.raises(AsyncUDFError, match=message):
        make(spark, trips)


def test_an_unknown_type_is_refused_by_name(trips, no_job):
    for make in (lambda f: trips.select(f("city")), lambda f: ordered_wait(trips, f, "city")):
        with no_job, pytest.raises(Exception, match=r"(?i)strnig"):
            make(quick.with_options(output_mode="ordered") and async_pandas_udf(lambda x: x, "strnig"))


LOCK = threading.Lock()


def unpicklable_closure():
    lock = threading.Lock()

    async def f(city) -> str:
        with lock:
            return city

    return {"f": f}


def unpicklable_global():
    async def f(city) -> str:
        with LOCK:
            return city

    return {"f": f}


def unpicklable_resource():
    lock = threading.Lock()

    @contextlib.asynccontextmanager
    async def client():
        yield lock

    async def f(city, client) -> str:
        return city

    return {"f": f, "resources": client}


def unpicklable_async_function():
    class Locked(AsyncFunction):
        def __init__(self):
            self.lock = threading.Lock()

        async def async_invoke(self, value, result_future):
            result_future.complete([])

    return {"f": Locked(), "returnType": "string"}


def unpicklable_answer():
    lock = threading.Lock()

    async def f(city) -> str:
        return city

    return {"f": f, "on_timeout": lambda city: str(lock)}


def unpicklable_in(option, value_with, **others):
    def make():
        lock = threading.Lock()

        async def f(cities: pd.Series) -> pd.Series:
            return cities

        return {"f": f, "returnType": "string", option: value_with(lambda *_: lock), **others}

    return make


def test_a_session_or_a_dataframe_inside_a_function_is_named(spark, trips, no_job):
    async def asks_spark(city) -> int:
        return spark.range(1).count() + trips.count()

    with no_job, pytest.raises(TypeError, match=r"asks_spark cannot be sent .* its variable '(spark|trips)'"):
        ordered_wait(trips, asks_spark, "city")


def unpicklable_decorator():
    async def f(city: str) -> str:
        return city

    return {"f": tenacity.retry(f)}


def unpicklable_method():
    class Client:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        async def f(self, city: str) -> str:
            return city

    return {"f": Client().f}


def unpicklable_argument():
    async def f(client, city: str) -> str:
        return city

    return {"f": functools.partial(f, threading.Lock())}


def unpicklable_in_a_partial():
    return {"f": functools.partial(unpicklable_closure()["f"])}


@pytest.mark.promise("errors when planned")
@pytest.mark.parametrize(
    ("make", "culprit"),
    [
        (unpicklable_decorator, "its decorator's attribute 'retry' (AsyncRetrying)"),
        (unpicklable_method, "its attribute 'lock' (lock)"),
        (unpicklable_argument, "its argument 0 (lock)"),
        (unpicklable_in_a_partial, "its variable 'lock' (lock)"),
        (unpicklable_closure, "its variable 'lock' (lock)"),
        (unpicklable_global, "its variable 'LOCK' (lock)"),
        (unpicklable_resource, "resource 'client'"),
        (unpicklable_async_function, "its attribute 'lock' (lock)"),
        (unpicklable_answer, "on_timeout"),
        (unpicklable_in("batch_weight", lambda f: f, max_batch_weight=9), "batch_weight: its variable 'lock' (lock)"),
        (unpicklable_in("budget", lambda f: Budget(1, reserve=f)), "budget: its attribute 'reserve' (function)"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_cannot_be_sent_to_the_executors_is_named(trips, no_job, make, culprit):
    f = async_pandas_udf(**make())
    with no_job, pytest.raises(TypeError, match=f"{f.__name__} cannot be sent to the executors") as caught:
        unordered_wait(trips, f, "city")
    assert culprit in str(caught.value)
    assert "resources=" in str(caught.value), "the way out"


def test_a_module_that_workers_import_may_have_anything(trips, no_job, tmp_path, monkeypatch):
    """The lock beside the client was named, which no worker gets."""
    (tmp_path / "locked_clients.py").write_text(
        "import contextlib, threading\n"
        "LOCK = threading.Lock()\n"
        "@contextlib.contextmanager\n"
        "def client():\n"
        "    yield LOCK\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import locked_clients

    async def f(city, client) -> str:
        return city

    bad = async_pandas_udf(**{**unpicklable_answer(), "f": f, "resources": locked_clients.client})
    with no_job, pytest.raises(TypeError, match=r"executors: on_timeout: its variable 'lock' \(lock\)"):
        unordered_wait(trips, bad, "city")


def test_spark_refuses_an_unknown_column_of_a_column_function(trips, no_job):
    with no_job, pytest.raises(Exception, match="town"):
        trips.select(weather("town"))


@pytest.mark.parametrize("column", ["struct(1 AS a, 2 AS a)", "array(struct(1 AS a, 2 AS a))"])
def test_a_struct_with_a_name_given_twice_is_refused_though_nobody_reads_it(spark, no_job, column):
    """Spark's own error named neither the column nor what to do, and came with the first batch."""
    df = spark.range(2).select("id", sf.expr(column).alias("pair"))
    refused = "column 'pair' has a struct with two fields called 'a', .*leave the column out, or give each"
    with pytest.raises(FunctionError, match=refused):
        ordered_wait(df, total, "id")
    with pytest.raises(FunctionError, match=refused):
        AsyncStream(df)


@pytest.mark.parametrize("column", ["INTERVAL '1-2' YEAR TO MONTH", "array(struct(INTERVAL '3' MONTH AS m))"])
def test_a_column_that_pyarrow_cannot_read_is_refused_though_nobody_reads_it(spark, column):
    df = spark.range(2).select("id", sf.expr(column).alias("span"))
    refused = "column 'span' is .*interval.*, which pyarrow does not know; leave it out, or cast it to a string"
    with pytest.raises(FunctionError, match=refused):
        AsyncStream(df)
    with pytest.raises(FunctionError, match=refused):
        ordered_wait(df, total, "id")
    assert df.select(total("id").alias("n")).count() == 2  # a column reads its own arguments only
    # Sail reads the batch before the function is called, and says no more.
    told = r"weather.* year-month intervals, which pyarrow|weather.* interval of months|KeyError: 21"
    with pytest.raises(Exception, match=told):
        df.select(weather("span")).collect()


def test_a_column_of_calendar_intervals_is_refused_but_as_an_argument_of_a_column(spark, no_job):
    """Spark's own error spoke of mapInPandas, and of a table function of an internal method."""
    df = spark.range(2).select("id", sf.expr("struct(make_interval(1) AS i)").alias("every"))
    df.createOrReplaceTempView("with_intervals")
    total.with_options(output_mode="unordered").register(spark, "total_with_intervals")
    refused = r"column 'every' is struct<i:interval>, which Spark sends only to columns.*cast it to a string"
    for plan in (
        lambda: ordered_wait(df, total, "id"),
        lambda: async_sink(df, total, "id"),
        lambda: AsyncStream(df),
        lambda: spark.sql("SELECT * FROM total_with_intervals(TABLE(with_intervals), 'id')"),
    ):
        with no_job, pytest.raises(Exception, match=refused):
            plan()


def test_a_table_with_a_name_given_twice_in_a_struct_is_refused_though_nobody_reads_it(spark, no_job):
    """One of the two values was passed on twice."""
    df = spark.range(2).select("id", sf.expr("struct(1 AS a, 2 AS a)").alias("pair"))
    df.createOrReplaceTempView("pairs")
    total.with_options(output_mode="unordered").register(spark, "total_of_pairs")
    with no_job, pytest.raises(Exception, match="column 'pair' has a struct with two fields called 'a'"):
        spark.sql("SELECT * FROM total_of_pairs(TABLE(pairs), 'id')")


def test_columns_of_char_and_varchar_that_the_session_preserves_are_refused(spark, no_job, conf):
    """Spark's own error spoke of mapInPandas, and a table function failed in its worker: "f is declared as char(5)"."""
    conf("spark.sql.preserveCharVarcharTypeInfo", "true")
    df = spark.sql("SELECT 1 AS id, ARRAY(CAST('a' AS char(5))) AS codes, CAST('b' AS varchar(4)) AS kind")
    if "char(5)" not in df.schema.simpleString():
        pytest.skip("in this Spark no schema has them")
    df.createOrReplaceTempView("with_codes")
    total.with_options(output_mode="unordered").register(spark, "total_with_codes")
    refused = r"column 'codes' is array<char\(5\)>, which Spark takes from no Python function.*cast it to a string"
    for plan in (
        lambda: ordered_wait(df, total, "id"),
        lambda: async_sink(df, total, "id"),
        lambda: AsyncStream(df),
        lambda: spark.sql("SELECT * FROM total_with_codes(TABLE(with_codes), 'id')"),
    ):
        with no_job, pytest.raises(Exception, match=refused):
            plan()
    with pytest.raises(FunctionError, match=r"column 'kind' is varchar\(4\)"):
        ordered_wait(df.drop("codes"), total, "id")
    cast = df.selectExpr("id", "CAST(codes AS array<string>) AS codes", "CAST(kind AS string) AS kind")
    assert tuple(ordered_wait(cast, total, "id").first())[1:3] == (["a    "], "b")
