"""Variants and user-defined types: a function sees objects, Arrow has what Spark stores of them."""

from __future__ import annotations

import datetime
import pickle
import re
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.ml.linalg import DenseVector, Vectors, VectorUDT
from pyspark.sql import types as spark
from pyspark.testing.objects import ExamplePoint, ExamplePointUDT

from asyncudf import (
    DEAD_LETTERS,
    AsyncStream,
    AsyncUDFError,
    OptionError,
    OutputTag,
    ResultError,
    RetryStrategy,
    RuntimeContext,
    async_pandas_udf,
)
from asyncudf._arrow.objects import ObjectType, has_objects, stored_type
from asyncudf._spark.types import arrow_type
from asyncudf.testing import MemoryStore, run_rows, run_stream
from tests.kit.bridges import column

VariantVal: Any = getattr(spark, "VariantVal", None)
needs_variant = pytest.mark.skipif(VariantVal is None, reason="since Spark 4.0")

POINTS = spark.StructType().add("p", ExamplePointUDT())
NESTED = (
    spark.StructType()
    .add("ps", spark.ArrayType(ExamplePointUDT()))
    .add("s", spark.StructType().add("q", ExamplePointUDT()))
    .add("m", spark.MapType(spark.StringType(), ExamplePointUDT()))
)
ONE, TWO = ExamplePoint(1.0, 2.0), ExamplePoint(3.0, 4.0)
NESTED_ROW = {"ps": [ONE, None], "s": {"q": TWO}, "m": {"k": ONE}}


async def moved(p: ExamplePoint | None) -> Any:
    if p is None:
        return None
    assert type(p) is ExamplePoint
    return ExamplePoint(p.x + 2, p.y + 2)


def variant(text: str) -> Any:
    return VariantVal.parseJson(text)


class TestUserDefinedTypes:
    def test_come_and_go_as_objects(self) -> None:
        rows = [{"p": ONE}, {"p": None}]
        found = run_stream(lambda s: s.ordered_wait(moved, returnType=ExamplePointUDT()), rows, POINTS)
        assert found == [{"p": ONE, "moved": TWO}, {"p": None, "moved": None}]

    def test_at_any_depth(self) -> None:
        def build(stream: AsyncStream) -> AsyncStream:
            async def both(ps: Any, s: Any, m: Any) -> Any:
                assert {"ps": ps, "s": s, "m": m} == NESTED_ROW
                return {"ps": ps, "s": s, "m": m}

            return stream.ordered_wait(both, returnType=NESTED, as_="r")

        rows = [NESTED_ROW, NESTED_ROW]
        assert run_stream(build, rows, NESTED) == [{**NESTED_ROW, "r": NESTED_ROW}] * 2

    def test_from_operator_to_operator(self) -> None:
        seen = []

        def build(stream: AsyncStream) -> AsyncStream:
            def noted(row: dict[str, Any]) -> dict[str, Any]:
                seen.append(row)
                return row

            first = stream.ordered_wait(moved, returnType=ExamplePointUDT())
            second = first.filter(lambda row: type(row["moved"]) is ExamplePoint).map(noted)
            united = second.branch().union(second.branch().filter(lambda row: row["p"] == ONE))
            return united.unordered_wait(moved, "moved", returnType=ExamplePointUDT(), as_="again")

        found = run_stream(build, [{"p": ONE}], POINTS)
        assert found == [{"p": ONE, "moved": TWO, "again": ExamplePoint(5.0, 6.0)}] * 2
        assert seen == [{"p": ONE, "moved": TWO}]

    def test_beside_their_errors(self) -> None:
        async def call(p: ExamplePoint) -> Any:
            if p == TWO:
                raise ValueError("two")
            return p

        rows = [{"p": ONE}, {"p": TWO}]
        returns = ExamplePointUDT()
        found = run_stream(lambda s: s.ordered_wait(call, returnType=returns, on_error="capture"), rows, POINTS)
        assert [row["value"] for row in found] == [ONE, None]

        def build(stream: AsyncStream) -> dict[str, AsyncStream]:
            main = stream.ordered_wait(call, returnType=returns, on_error="dead_letter")
            return {"main": main, "dead": main.side_output(DEAD_LETTERS)}

        both = run_stream(build, rows, POINTS)
        assert both["main"] == [{"p": ONE, "call": ONE}]
        assert [row["p"] for row in both["dead"]] == [TWO]

    def test_in_side_outputs(self) -> None:
        tag = OutputTag("seen", POINTS)

        async def call(p: ExamplePoint, context: RuntimeContext) -> int:
            context.output(tag, {"p": p})
            return 1

        def build(stream: AsyncStream) -> dict[str, AsyncStream]:
            main = stream.ordered_wait(call, returnType="int")
            return {"main": main, "side": main.side_output(tag)}

        assert run_stream(build, [{"p": ONE}], POINTS)["side"] == [{"p": ONE}]

    def test_in_series_and_arrays(self) -> None:
        async def series(p: pd.Series) -> pd.Series:
            assert [type(one) for one in p] == [ExamplePoint, type(None), ExamplePoint]
            return p

        async def array(p: pa.Array) -> pa.Array:
            assert p.to_pylist() == [[1.0, 2.0], None, [3.0, 4.0]]
            return p

        rows = [{"p": ONE}, {"p": None}, {"p": TWO}]
        for function in (series, array):
            found = run_stream(
                lambda s, f=function: s.ordered_wait(f, returnType=ExamplePointUDT(), as_="r"), rows, POINTS
            )
            assert [row["r"] for row in found] == [ONE, None, TWO]

    def test_what_an_attempt_has_edited_is_as_it_was_in_the_next(self) -> None:
        async def call(v: DenseVector) -> float:
            assert type(v) is DenseVector
            v.array[0] += 1
            if v.array[0] > 2:
                return float("nan")
            raise ConnectionError

        schema = spark.StructType().add("v", VectorUDT())
        retry = RetryStrategy.fixed_delay(3, 1.0)
        with pytest.raises(AsyncUDFError, match="ConnectionError"):
            run_stream(lambda s: s.ordered_wait(call, retry=retry), [{"v": Vectors.dense(1.0)}], schema)

    def test_branches_do_not_see_each_others_edits(self) -> None:
        """And a vector of Spark ML, of which deepcopy makes an array of numpy, stays one."""

        async def edited(v: DenseVector) -> float:
            assert type(v) is DenseVector
            v.array[0] += 1
            return float(v.array[0])

        def build(stream: AsyncStream) -> dict[str, AsyncStream]:
            source = stream.filter(lambda row: True)
            return {name: source.branch().ordered_wait(edited) for name in ("one", "two")}

        schema = spark.StructType().add("v", VectorUDT())
        found = run_stream(build, [{"v": Vectors.dense(1.0)}], schema)
        assert [found[name][0]["edited"] for name in ("one", "two")] == [2.0, 2.0]
        assert found["one"][0]["v"] == Vectors.dense(1.0)

    @pytest.mark.parametrize("vector", [Vectors.dense(1.0, 2.0), Vectors.sparse(3, [1], [2.0])], ids=str)
    def test_that_are_stored_as_structs(self, vector: Any) -> None:
        schema = spark.StructType().add("v", VectorUDT())

        async def call(v: Any) -> Any:
            return v

        found = run_stream(lambda s: s.ordered_wait(call, returnType=VectorUDT()), [{"v": vector}], schema)
        assert found == [{"v": vector, "call": vector}]

    def test_what_spark_stores_of_them_is_taken_too(self) -> None:
        async def call(x: int) -> Any:
            return [1.0, 2.0]

        found = run_stream(lambda s: s.ordered_wait(call, returnType=ExamplePointUDT()), [{"x": 1}], "x int")
        assert found == [{"x": 1, "call": ONE}]

    @pytest.mark.parametrize("value", [5, "(1,2)", Vectors.dense(1.0), [1.0, "x"]], ids=str)
    def test_other_values_are_refused_by_the_name_of_the_type(self, value: Any) -> None:
        async def call(x: int) -> Any:
            return value

        said = r"call returned .*: declared ExamplePointUDT \(give an object of its class\)"
        with pytest.raises(ResultError, match=said):
            run_rows(call, [1], returnType=ExamplePointUDT())

    def test_rows_that_are_no_objects_of_it_are_refused_by_run_stream(self) -> None:
        with pytest.raises(OptionError, match=r"the rows do not fit the schema .* declared ExamplePointUDT"):
            run_stream(lambda s: s.ordered_wait(moved, returnType="string"), [{"p": 5}], POINTS)

    def test_in_a_column_by_the_annotation(self) -> None:
        async def kind(p: ExamplePoint | None) -> str:
            return type(p).__name__

        stored = pa.array([[1.0, 2.0], None], pa.list_(pa.field("element", pa.float64(), nullable=False)))
        written = column(kind, [stored], "string")
        assert [value for batch in written for value in batch.to_pylist()] == ["ExamplePoint", "NoneType"]
        with pytest.raises(AsyncUDFError, match=r"kind takes a column of ExamplePointUDT by its annotation, .* int64"):
            list(column(kind, [pa.array([1])], "string"))

    def test_with_a_store(self) -> None:
        """The key is made of what Spark stores, the result comes back as an object."""
        calls = []
        store = MemoryStore()

        @async_pandas_udf(ExamplePointUDT(), store=store, version="1")
        async def call(p: ExamplePoint) -> Any:
            calls.append(p)
            return ExamplePoint(p.y, p.x)

        rows = [{"p": ONE}, {"p": ExamplePoint(1.0, 2.0)}, {"p": TWO}]
        for _ in range(2):
            found = run_stream(lambda s: s.ordered_wait(call), rows, POINTS)
            assert [row["call"] for row in found] == [
                ExamplePoint(2.0, 1.0),
                ExamplePoint(2.0, 1.0),
                ExamplePoint(4.0, 3.0),
            ]
        assert run_rows(call, [ONE]) == [ExamplePoint(2.0, 1.0)]
        assert calls == [ONE, TWO]


@needs_variant
class TestVariants:
    def schema(self) -> spark.StructType:
        return spark.StructType().add("v", spark.VariantType())

    def results(self, value: Any) -> Any:
        async def call(x: int) -> Any:
            return value

        returns = spark.VariantType()
        (row,) = run_stream(lambda s: s.ordered_wait(call, returnType=returns, as_="r"), [{"x": 1}], "x int")
        return row["r"]

    def test_come_and_go_as_variant_vals(self) -> None:
        async def call(v: Any) -> Any:
            assert type(v) in (VariantVal, type(None))
            return v

        rows = [{"v": variant('{"a": [1, null]}')}, {"v": None}, {"v": variant("null")}]
        found = run_stream(lambda s: s.ordered_wait(call, returnType=spark.VariantType()), rows, self.schema())
        assert [row["call"] and row["call"].toPython() for row in found] == [{"a": [1, None]}, None, None]
        assert [type(row["call"]) for row in found] == [VariantVal, type(None), VariantVal]

    @pytest.mark.parametrize("value", [{"a": [1, None, {"b": "x"}]}, [], 5, True, (1, 2)], ids=str)
    def test_parsed_json_is_taken(self, value: Any) -> None:
        found = self.results(value)
        assert type(found) is VariantVal
        assert found.toPython() == (list(value) if isinstance(value, tuple) else value)

    def test_numbers_are_as_parse_json_makes_them(self) -> None:
        assert self.results([0.1, 1e300, 2**63, -5]).toJson() == "[0.1,1e+300,9223372036854775808,-5]"

    REFUSED = [
        ("{}", "a text may be JSON or a value of it"),
        ({1: 2}, "JSON has texts as keys, not 1"),
        ({"a": b"x"}, "JSON has no bytes"),
        (float("nan"), "declared variant"),
        ([object], "JSON has no type"),
    ]

    @pytest.mark.parametrize(("value", "said"), REFUSED, ids=str)
    def test_what_json_does_not_have_is_refused(self, value: Any, said: str) -> None:
        with pytest.raises(
            ResultError, match=rf"call returned .*: declared variant \(give a VariantVal.*{said}|{said}"
        ):
            self.results(value)

    def test_at_any_depth(self) -> None:
        async def call(x: int) -> Any:
            return {"vs": [{"a": 1}, None], "m": {"k": variant("2")}}

        returns = (
            spark.StructType()
            .add("vs", spark.ArrayType(spark.VariantType()))
            .add("m", spark.MapType(spark.StringType(), spark.VariantType()))
        )

        async def read(vs: Any, m: Any) -> str:
            return repr([[v and v.toPython() for v in vs], m["k"].toPython()])

        found = run_stream(lambda s: s.ordered_wait(call, returnType=returns).ordered_wait(read), [{"x": 1}], "x int")
        assert found[0]["read"] == "[[{'a': 1}, None], 2]"

    def test_in_a_column_by_what_spark_writes(self) -> None:
        async def kind(v: Any) -> str:
            return type(v).__name__

        stored = stored_type(arrow_type(spark.ArrayType(spark.VariantType()), "v"))
        array = pa.array([[{"value": b"\x0c\x01", "metadata": b"\x01\x00\x00"}]], stored)

        async def kinds(vs: Any) -> list[str]:
            return [await kind(v) for v in vs]

        written = column(kinds, [array], "array<string>")
        assert [value for batch in written for value in batch.to_pylist()] == [["VariantVal"]]

    def test_with_a_store(self) -> None:
        calls = []

        @async_pandas_udf("variant", store=MemoryStore(), version="1")
        async def call(v: Any) -> Any:
            calls.append(v.toPython())
            return {"was": v.toPython()}

        rows = [variant('{"a": 1}'), variant('{"a": 1}'), variant('{"a": 2}')]
        for _ in range(2):
            assert [found.toPython() for found in run_rows(call, rows)] == [{"was": row.toPython()} for row in rows]
        assert calls == [{"a": 1}, {"a": 2}]


@pytest.mark.skipif(not hasattr(spark, "Geometry"), reason="since Spark 4.1")
def test_geometries_come_and_go_as_objects() -> None:
    there: Any = spark
    origin = there.Geometry(bytes.fromhex("01010000000000000000000000" + "00" * 8), 0)
    schema = spark.StructType().add("g", there.GeometryType(0)).add("h", there.GeographyType(4326))
    row = {"g": origin, "h": there.Geography(origin.getBytes(), 4326)}

    async def call(g: Any, h: Any) -> Any:
        return {"g2": g, "h2": h}

    returns = spark.StructType().add("g2", there.GeometryType(0)).add("h2", there.GeographyType(4326))
    assert run_stream(lambda s: s.ordered_wait(call, returnType=returns), [row], schema) == [
        {**row, "g2": row["g"], "h2": row["h"]}
    ]

    async def kinds(g: Any) -> str:
        return repr(g)

    stored = pa.array([{"srid": 0, "wkb": origin.getBytes()}], stored_type(arrow_type(there.GeometryType(0), "g")))
    assert [batch.to_pylist() for batch in column(kinds, [stored], "string")] == [[repr(origin)]]
    with pytest.raises(ResultError, match=r"declared geometry \(give a Geometry\)"):
        run_rows(kinds, [1], returnType=there.GeometryType(0))


def test_keys_of_a_map_are_objects_whatever_spark_stores_of_them() -> None:
    """Spark stores a struct, which Python has as a dict, and that is no key of another dict."""

    async def sizes(x: int) -> Any:
        return {Vectors.dense([1.0, 2.0]): x}

    found = run_rows(sizes, [1], returnType=spark.MapType(VectorUDT(), spark.IntegerType()))
    assert found == [{Vectors.dense([1.0, 2.0]): 1}]


TIME, HOURS = datetime.time(12, 34, 56, 123456), datetime.timedelta(hours=25)
COARSE = [
    *(("time(0)", TIME, TIME.replace(microsecond=0)), ("time(3)", TIME, TIME.replace(microsecond=123000))),
    ("interval day", HOURS, datetime.timedelta(days=1)),
    ("interval day to hour", HOURS + datetime.timedelta(minutes=1), HOURS),
    ("interval minute", datetime.timedelta(seconds=90), datetime.timedelta(seconds=60)),
    ("array<interval day>", [HOURS], [datetime.timedelta(days=1)]),
]


@pytest.mark.parametrize(("declared", "finer", "exact"), COARSE, ids=str)
def test_a_time_or_an_interval_is_no_finer_than_declared(declared: str, finer: Any, exact: Any) -> None:
    """Arrow has microseconds or nanoseconds of all of them, and Spark reads what it is given."""
    if declared.startswith("time") and not hasattr(spark, "TimeType"):
        pytest.skip("since Spark 4.1")

    async def call(x: Any) -> Any:
        return x

    assert run_rows(call, [exact, None], returnType=declared) == [exact, None]
    one = declared.removeprefix("array<").removesuffix(">")
    with pytest.raises(ResultError, match=rf"declared {re.escape(one)} \(give a .*\): it is finer"):
        run_rows(call, [finer], returnType=declared)
    with pytest.raises(ResultError, match=rf"declared {re.escape(one)} \(give a"):
        run_rows(call, [["x"] if declared.startswith("array") else "x"], returnType=declared)


def test_an_argument_of_such_a_type_is_what_arrow_has() -> None:
    async def hours(x: pd.Series) -> pd.Series:
        assert x.dtype.kind == "m"
        return x.dt.total_seconds() // 3600

    rows = [{"x": datetime.timedelta(hours=hours)} for hours in (24, 48)]
    found = run_stream(lambda s: s.ordered_wait(hours, returnType="int"), rows, "x interval day")
    assert [row["hours"] for row in found] == [24, 48]
    assert [row["x"] for row in found] == [row["x"] for row in rows]


@pytest.fixture(scope="module")
def nested() -> pa.DataType:
    return arrow_type(NESTED, "f")


def test_the_type_of_an_array_has_no_object(nested: pa.DataType) -> None:
    assert has_objects(nested)
    stored = stored_type(nested)
    assert not has_objects(stored)
    point = pa.list_(pa.field("element", pa.float64(), nullable=False))
    assert stored.field("ps").type.value_type == point
    assert not has_objects(None)


def test_a_declared_type_travels(nested: pa.DataType) -> None:
    again = pickle.loads(pickle.dumps(nested))
    assert again == nested
    inner = again.field("ps").type.value_type
    assert isinstance(inner, ObjectType)
    assert inner.form == nested.field("ps").type.value_type.form
