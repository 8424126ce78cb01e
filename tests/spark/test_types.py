"""Every type, both ways, through every entry point: exact, and the same values at each."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import datetime

import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import functions as sf
from pyspark.sql import types as spark_types
from pyspark.testing.objects import ExamplePoint, ExamplePointUDT

from asyncudf import AsyncStream, async_pandas_udf, ordered_wait
from tests.kit.doors import table, through

pytestmark = pytest.mark.spark
HAS_VARIANT = hasattr(spark_types, "VariantVal")

# Two instants of the hour that the workers' zone has twice (01:30 and again 01:30), and one before railway time.
COLUMNS = {
    "byte_": ("CAST(-128 AS tinyint)", "int -128"),
    "short_": ("CAST(32767 AS smallint)", "int 32767"),
    "int_": ("CAST(-2147483648 AS int)", "int -2147483648"),
    "long_": ("9007199254740993", "int 9007199254740993"),
    "least": ("-9223372036854775807 - 1", "int -9223372036854775808"),
    "float_": ("CAST(0.1 AS float)", "float 0.10000000149011612"),
    "double_": ("CAST(0.1 AS double)", "float 0.1"),
    "nan": ("CAST('NaN' AS double)", "float nan"),
    "infinite": ("CAST('-Infinity' AS float)", "float -inf"),
    "decimal_": (
        "CAST('12345678901234567890123456.789012345678' AS decimal(38, 12))",
        "Decimal 12345678901234567890123456.789012345678",
    ),
    "money": ("CAST('1.50' AS decimal(9, 2))", "Decimal 1.50"),
    "boolean_": ("true", "bool True"),
    "string_": ("'Zürich \U0001f682'", "str 'Zürich \U0001f682'"),
    "binary_": ("X'00FF10'", "bytes b'\\x00\\xff\\x10'"),
    "date_": ("DATE'1582-10-04'", "date 1582-10-04"),
    "first_130": ("TIMESTAMP'2024-11-03 05:30:00.000001Z'", "aware datetime 2024-11-03T05:30:00.000001"),
    "second_130": ("TIMESTAMP'2024-11-03 06:30:00.000001Z'", "aware datetime 2024-11-03T06:30:00.000001"),
    "old": ("TIMESTAMP'1850-01-02 03:04:05Z'", "aware datetime 1850-01-02T03:04:05"),
    "ntz": ("TIMESTAMP_NTZ'2024-03-10 02:30:00.5'", "naive datetime 2024-03-10T02:30:00.500000"),
    "span": ("INTERVAL '1 02:03:04.000005' DAY TO SECOND", "timedelta 1 day, 2:03:04.000005"),
    "array_": ("ARRAY(9007199254740993, NULL, 1)", "list [int 9007199254740993, None, int 1]"),
    "arrays": ("ARRAY(ARRAY('a'), NULL, ARRAY())", "list [list [str 'a'], None, list []]"),
    "times": ("ARRAY(TIMESTAMP'2024-11-03 06:30:00Z', NULL)", "list [aware datetime 2024-11-03T06:30:00, None]"),
    "map_": ("MAP('a', NULL, 'b', 9007199254740993)", "dict {str 'a': None, str 'b': int 9007199254740993}"),
    "by_int": (
        "MAP(1, NAMED_STRUCT('blob', X'01', 'at', TIMESTAMP'2024-11-03 06:30:00Z'))",
        "dict {int 1: dict {str 'at': aware datetime 2024-11-03T06:30:00, str 'blob': bytes b'\\x01'}}",
    ),
    "by_time": (
        "MAP(TIMESTAMP'2024-11-03 06:30:00Z', DATE'2024-01-01')",
        "dict {aware datetime 2024-11-03T06:30:00: date 2024-01-01}",
    ),
    "struct_": (
        "NAMED_STRUCT('x', 9007199254740993, 'y', NAMED_STRUCT('money', CAST(1.5 AS decimal(5, 2)), 'no', INT(NULL)))",
        "dict {str 'x': int 9007199254740993, str 'y': dict {str 'money': Decimal 1.50, str 'no': None}}",
    ),
    "structs": (
        "ARRAY(NAMED_STRUCT('s', 'x', 'm', MAP('k', ARRAY(X'02'))), NULL)",
        "list [dict {str 'm': dict {str 'k': list [bytes b'\\x02']}, str 's': str 'x'}, None]",
    ),
}


@pytest.fixture(scope="module")
def everything(spark):
    """A row of values, a row of NULLs, and the row of values again, in one batch."""
    columns = ", ".join(f"{sql} AS {name}" for name, (sql, _) in COLUMNS.items())
    full = spark.sql(f"SELECT 0 AS row, {columns} FROM range(1)")
    nulls = full.select(
        sf.lit(1).alias("row"), *[sf.lit(None).cast(full.schema[name].dataType).alias(name) for name in COLUMNS]
    )
    df = full.union(nulls).union(full.withColumn("row", sf.lit(2))).coalesce(1).cache()
    df.createOrReplaceTempView("everything")
    return df


def seen(value) -> str:
    """A text that tells values of different types apart, and the same values at different entry points together."""
    if value is None:
        return "None"
    name = type(value).__name__
    if isinstance(value, dict):
        return f"{name} {{{', '.join(sorted(f'{seen(k)}: {seen(v)}' for k, v in value.items()))}}}"
    if isinstance(value, list):
        return f"{name} [{', '.join(map(seen, value))}]"
    if isinstance(value, datetime.datetime):
        if value.tzinfo is None:
            return f"naive {name} {value.isoformat()}"
        return f"aware {name} {value.astimezone(datetime.UTC).replace(tzinfo=None).isoformat()}"
    return f"{name} {value!r}" if isinstance(value, (str, bytes, float)) else f"{name} {value}"


EXPECTED = [text for _, text in COLUMNS.values()]


def assert_seen(full, nulls, again) -> None:
    assert dict(zip(COLUMNS, full, strict=True)) == dict(zip(COLUMNS, EXPECTED, strict=True))
    assert nulls == ["None"] * len(COLUMNS)
    assert again == full


def echo_for(everything):
    fields = ", ".join(f"{name}_out: {everything.schema[name].dataType.simpleString()}" for name in COLUMNS)

    @async_pandas_udf(f"seen array<string>, {fields}")
    async def echo(*values):
        echoed = {f"{name}_out": value for name, value in zip(COLUMNS, values, strict=True)}
        return {"seen": [seen(value) for value in values], **echoed}

    return echo


def echoed(df):
    """The rows of a DataFrame whose results equal the columns that they came from, and these are what they were.

    Spark itself judges that.
    """
    texts = []
    for name, (sql, _) in COLUMNS.items():
        texts += [sf.to_json(sf.struct(sf.col(out).alias("v"))).alias(out) for out in (name, f"{name}_out")]
        texts.append(sf.to_json(sf.expr(f"IF(row = 1, NULL, NAMED_STRUCT('v', {sql}))")).alias(f"{name}_was"))
    rows = sorted(df.select("row", "seen", *texts).collect())
    assert len(rows) == 3
    for row in rows:
        was = {name: row[f"{name}_was"] or "{}" for name in COLUMNS}
        assert {name: row[name] for name in COLUMNS} == was, "columns that came through"
        assert {name: row[f"{name}_out"] for name in COLUMNS} == was, "results"
    return rows


@pytest.mark.promise("types")
@through("column", "table function", "ordered_wait")
@pytest.mark.spark_only("GMT+5:30 is a time zone")
def test_a_function_sees_and_gives_back(everything, conf, door):
    """Each type, exact, whatever the zone of the session, and the same at each door; it comes out as it went in."""
    conf("spark.sql.session.timeZone", "GMT+5:30")  # a name that Python does not know
    results = door(everything, echo_for(everything), *COLUMNS)
    assert_seen(*(row.seen for row in echoed(results.select("row", *COLUMNS, "result.*"))))


FIRST, LAST = "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999"


@through("column", "table function", "ordered_wait")
def test_the_first_and_the_last_timestamp_and_date(spark, door):
    """Not the first one as a table: a worker whose zone is west of UTC cannot read it, PySpark says "year 0"."""

    @async_pandas_udf("at2 timestamp, ntz2 timestamp_ntz, day2 date, text string")
    async def same(at, ntz, day):
        return {"at2": at, "ntz2": ntz, "day2": day, "text": f"{seen(at)}, {seen(ntz)}, {seen(day)}"}

    for extreme in (LAST,) if door is table else (FIRST, LAST):
        at = f"TIMESTAMP'{extreme}Z'"
        df = spark.sql(f"SELECT {at} AS at, TIMESTAMP_NTZ'{extreme}' AS ntz, DATE'{extreme[:10]}' AS day")
        columns = (f"at = {at}", "at = result.at2", "ntz = result.ntz2", "day = result.day2", "result.text")
        iso = extreme.replace(" ", "T")
        text = f"aware datetime {iso}, naive datetime {iso}, date {extreme[:10]}"
        assert tuple(door(df, same, *df.columns).selectExpr(*columns).first()) == (True, True, True, True, text)


def test_spark_may_be_told_to_use_large_arrow_types(spark, conf):
    conf("spark.sql.execution.arrow.useLargeVarTypes", "true")

    @async_pandas_udf("text string, blob binary")
    async def both(s: str, b: bytes) -> dict:
        return {"text": s, "blob": b}

    df = spark.sql("SELECT 'x' AS s, X'01' AS b")
    assert tuple(ordered_wait(df, both).first()) == ("x", bytearray(b"\x01"), "x", bytearray(b"\x01"))
    assert tuple(df.select(both("s", "b")).first()[0]) == ("x", bytearray(b"\x01"))


def test_a_type_that_is_a_struct_in_arrow_alone_is_one_column(spark):
    """Its fields were written as columns of their own, and Spark read null."""

    def vector(id):
        return {"type": 1, "size": None, "indices": None, "values": [float(id)]}

    df = spark.range(7, 8)
    assert ordered_wait(df, vector, returnType=VectorUDT()).collect() == [(7, Vectors.dense(7))]
    mapped = AsyncStream(df).map(lambda row: vector(**row), returnType=VectorUDT())
    assert mapped.to_df().collect() == [(Vectors.dense(7),)]


@pytest.fixture(scope="module")
def objects(spark):
    """Points in every place, and a variant where Spark has them."""
    point, other = ExamplePoint(1.0, 2.0), ExamplePoint(3.0, 4.0)
    schema = spark_types.StructType().add("p", ExamplePointUDT()).add("ps", spark_types.ArrayType(ExamplePointUDT()))
    schema = schema.add("s", spark_types.StructType().add("q", ExamplePointUDT()))
    df = spark.createDataFrame([(point, [point, other], (other,)), (None, None, None)], schema).coalesce(1)
    return df.withColumn("v", sf.expr("""IF(p IS NULL, NULL, parse_json('{"a": 1}'))""")) if HAS_VARIANT else df


SEEN = [
    (
        "ExamplePoint(1.0,2.0) [ExamplePoint(1.0,2.0), ExamplePoint(3.0,4.0)] {'q': ExamplePoint(3.0,4.0)}",
        '{"a":1}' if HAS_VARIANT else "none",
    ),
    ("None None None", "none"),
]


@through("ordered_wait", *(["table function"] if HAS_VARIANT else []))
@pytest.mark.spark_only("a client lacks the module of the example's type")
def test_a_function_sees_variants_and_objects_of_user_defined_types(objects, door):
    @async_pandas_udf("a string, b string")
    async def seen(p, ps, s, v=None):
        return {"a": f"{p!r} {ps!r} {s!r}", "b": "none" if v is None else v.toJson()}

    found = door(objects, seen, *objects.columns).orderBy(sf.isnull("p")).collect()
    assert [tuple(row.result) for row in found] == SEEN
    assert found[0].p == ExamplePoint(1.0, 2.0), "the columns come through"


def test_a_column_function_sees_variants_and_by_its_annotations_objects_of_user_defined_types(objects):
    @async_pandas_udf("string")
    async def seen(p: ExamplePoint, v=None):
        return f"{p!r} {'none' if v is None else v.toJson()}"

    found = objects.select(seen("p", "v") if HAS_VARIANT else seen("p")).collect()
    assert [row[0] for row in found] == [f"ExamplePoint(1.0,2.0) {SEEN[0][1]}", "None none"]


@through(
    "ordered_wait", *(["column"] if hasattr(sf, "arrow_udf") else []), *(["table function"] if HAS_VARIANT else [])
)
@pytest.mark.spark_only("a client lacks the module of the example's type")
def test_objects_of_user_defined_types_are_results(objects, door):
    @async_pandas_udf(spark_types.StructType().add("one", ExamplePointUDT()).add("two", ExamplePointUDT()))
    async def both(p: ExamplePoint):
        return {"one": p, "two": p and ExamplePoint(p.y, p.x)}

    rows = door(objects.select("p"), both, "p").orderBy(sf.isnull("p")).select("result.*").collect()
    assert [tuple(row) for row in rows] == [(ExamplePoint(1.0, 2.0), ExamplePoint(2.0, 1.0)), (None, None)]


@pytest.mark.skipif(not HAS_VARIANT, reason="since Spark 4.0")
@through("column", "table function", "ordered_wait")
@pytest.mark.spark_only("variants as JSON")
def test_variants_are_results(spark, door):
    @async_pandas_udf("v variant, vs array<variant>")
    async def answer(id):
        variant = spark_types.VariantVal.parseJson('{"b": [1, null]}') if id else {"b": [1, None]}
        return {"v": variant, "vs": [variant, None]}

    found = door(spark.range(2), answer, "id").selectExpr("to_json(result)").collect()
    assert [row[0] for row in found] == ['{"v":{"b":[1,null]},"vs":[{"b":[1,null]},null]}'] * 2


BAD = [
    ("i int", 1.0, "1.0 (float) in field 'i': declared int32"),
    ("n bigint", 2**63, "9223372036854775808 (int) in field 'n'"),
    ("m decimal(5, 2)", 1.5, "1.5 (float) in field 'm'"),
    ("s string", b"x", "b'x' (bytes) in field 's'"),
    ("at timestamp", datetime.datetime(2024, 1, 2), "datetime.datetime(2024, 1, 2, 0, 0) (datetime) in field 'at'"),
    ("st struct<x: int, y: int>", {"x": 1, "z": 2}, "in field 'st': declared struct<x, y>; missing field 'y'"),
    ("deep array<map<string, array<int>>>", [{"k": [1, True]}], "True (bool) in field 'deep[] value[]'"),
    ("needed array<int> not null", None, "in field 'needed'"),
]


@pytest.mark.promise("types")
@through("column", "SQL function", "ordered_wait")
def test_a_result_that_does_not_fit_is_the_error_of_its_row_with_field_and_value(spark, door):
    names = [ddl.split()[0] for ddl, _, _ in BAD]

    @async_pandas_udf(", ".join(ddl for ddl, _, _ in BAD), on_error="capture")
    async def wrong(id: int):
        return {name: value if id == number else [] if name == "needed" else None
                for number, (name, (_, value, _)) in enumerate(zip(names, BAD, strict=True))}  # fmt: skip

    *bad, good = door(spark.range(0, len(BAD) + 1, 1, 1), wrong, "id").select("result.*").collect()
    assert (good.error, good.value.needed) == (None, [])
    for row, (_, _, said) in zip(bad, BAD, strict=True):
        assert (row.value, row.error.type) == (None, "ResultError")
        assert row.error.message.startswith("wrong returned ")
        assert said in row.error.message


@async_pandas_udf("map<struct<a: int, b: string>, int>")
async def keyed(id: int):
    return {(1, "x"): id}


@through("column", "table function")
def test_a_map_may_have_structs_as_keys_read_or_not(spark, door):
    df = spark.sql("SELECT 1L AS id, map(named_struct('a', 1, 'at', timestamp'2026-01-01 00:00:00'), 'x') AS m")
    found = door(df, keyed, "id").selectExpr("to_json(map_entries(m))", "to_json(map_entries(result))").first()
    unread = df.selectExpr("to_json(map_entries(m))").first()
    assert tuple(found) == (*unread, '[{"key":{"a":1,"b":"x"},"value":1}]')


@through("column", "table function")
def test_a_moment_that_python_cannot_read_back_names_the_function(spark, spark_error, door):
    @async_pandas_udf("timestamp")
    async def early(id: int):
        return datetime.datetime.min.replace(tzinfo=datetime.timezone(datetime.timedelta(hours=14)))

    query = door(spark.range(1), early, "id")
    text = spark_error(query)
    assert "asyncudf.ResultError: early failed in attempt 1" in text
    assert "in UTC it is not in the years 1 to 9999" in text


def test_a_field_with_a_comment(spark):
    """Before Spark 4.2 the column failed: its type had metadata, and what came from Python had none."""
    commented = async_pandas_udf(lambda n: {"a": n}, "a bigint COMMENT 'a number'")
    commented.register(spark, "commented")
    assert spark.range(1).select(commented("id")).first()[0] == (0,)
    assert spark.sql("SELECT commented(id) FROM range(1)").first()[0] == (0,)
