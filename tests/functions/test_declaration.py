"""What a declaration is read as: kinds, parameters, inferred types, the decorator with and without parentheses."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import functools
import inspect
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NamedTuple, Optional, TypedDict

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import types as spark

from asyncudf import FunctionError, RetryStrategy, async_pandas_udf
from asyncudf._functions.annotations import UnknownTypeError, Vector, from_annotation
from asyncudf._functions.signature import FunctionKind
from asyncudf._spark.types import parsed_offline, to_json
from asyncudf.testing import run_rows, run_stream


@dataclasses.dataclass
class Weather:
    temp: float
    sky: str | None


class Point(NamedTuple):
    x: int
    y: int


class Place(TypedDict):
    name: str
    at: Point


class TestDecorator:
    def test_without_parentheses(self) -> None:
        """`@async_pandas_udf` alone keeps name, docstring and coroutine of the function."""

        @async_pandas_udf
        async def call(x: int) -> int:
            """Doubles."""
            return x * 2

        assert (call.__name__, call.__doc__) == ("call", "Doubles.")
        assert inspect.iscoroutinefunction(call.__wrapped__)
        assert run_rows(call, [1]) == [2]

    def test_with_empty_parentheses(self) -> None:
        """`@async_pandas_udf()` infers the type as well."""

        @async_pandas_udf()
        async def call(x: int) -> int:
            return x

        assert call.spec.returns == "bigint"

    def test_the_return_type_comes_first(self) -> None:
        """By position, as in `pandas_udf`, with options behind it."""

        @async_pandas_udf("temp double, sky string", capacity=5)
        async def call(x: int) -> dict[str, Any]:
            return {"temp": 1.0, "sky": "clear"}

        assert call.returns == "temp double, sky string"
        assert call.options.capacity == 5

    def test_as_a_function(self) -> None:
        """`async_pandas_udf(f, type)` is the same as the decorator."""

        async def call(x: int) -> int:
            return x

        assert async_pandas_udf(call, "int").returns == "int"
        assert async_pandas_udf(call, returnType="int").returns == "int"

    def test_with_options_changes_a_copy(self) -> None:
        @async_pandas_udf("int", retry=RetryStrategy.fixed_delay(2, 1.0))
        async def call(x: int) -> int:
            return x

        other = call.with_options(capacity=3)
        assert (other.options.capacity, call.options.capacity) == (3, 100)
        assert other.options.retry is call.options.retry
        assert other.returns == "int"


class TestKinds:
    def test_each_kind_is_told_from_the_declaration(self) -> None:
        async def coroutine(x: int) -> int:
            return x

        async def generator(x: int) -> AsyncIterator[int]:
            yield x

        def plain(x: int) -> int:
            return x

        class Doer:
            async def __call__(self, x: int) -> int:
                return x

        kinds = [async_pandas_udf(f, "int").spec.kind for f in (coroutine, generator, plain, Doer())]
        assert kinds == [FunctionKind.COROUTINE, FunctionKind.GENERATOR, FunctionKind.THREAD, FunctionKind.COROUTINE]

    def test_partial_keeps_the_name_and_the_kind(self) -> None:
        async def add(a: int, b: int) -> int:
            return a + b

        spec = async_pandas_udf(functools.partial(add, b=1), "int").spec
        assert (spec.name, spec.kind, spec.required) == ("add", FunctionKind.COROUTINE, 1)

    def test_vectors_are_told_from_the_annotations(self) -> None:
        async def call(a: pd.Series, b: pd.DataFrame, c: pa.Array, d: pa.StringArray) -> pd.Series:
            return a

        spec = async_pandas_udf(call, "int").spec
        assert spec.vectors == (Vector.SERIES, Vector.FRAME, Vector.ARRAY, Vector.ARRAY)

    def test_a_vectorized_def_runs_in_a_thread(self) -> None:
        def double(x: pd.Series) -> pd.Series:
            return x * 2

        assert run_rows(double, [1, 2, 3], clock="real", batch_size=2) == [2, 4, 6]


@pytest.mark.parametrize(
    ("hint", "ddl"),
    [
        (str, "string"),
        (int, "bigint"),
        (float, "double"),
        (bool, "boolean"),
        (bytes, "binary"),
        (datetime.date, "date"),
        (datetime.datetime, "timestamp"),
        (decimal.Decimal, "decimal(38,18)"),
        (Optional[int], "bigint"),  # noqa: UP045 - the old spelling is still met
        (int | None, "bigint"),
        (list[str], "array<string>"),
        (Sequence[int], "array<bigint>"),
        (tuple[int, ...], "array<bigint>"),
        (dict[str, list[float]], "map<string,array<double>>"),
        (Mapping[str, int], "map<string,bigint>"),
        (Weather, "struct<temp:double,sky:string>"),
        (Point, "struct<x:bigint,y:bigint>"),
        (Place, "struct<name:string,at:struct<x:bigint,y:bigint>>"),
    ],
)
def test_a_type_is_inferred_from_its_annotation(hint: Any, ddl: str) -> None:
    assert from_annotation(hint) == ddl
    assert to_json(ddl)


@pytest.mark.parametrize("hint", [dict, list, Any, int | str, object, tuple[int, str]])
def test_an_annotation_that_does_not_say_enough(hint: Any) -> None:
    with pytest.raises(UnknownTypeError, match=f"no Spark type for {re.escape(repr(hint))}"):
        from_annotation(hint)


def test_a_generator_is_typed_by_what_it_yields() -> None:
    async def call(x: int) -> AsyncIterator[Weather]:
        yield Weather(1.0, None)

    assert async_pandas_udf(call).spec.returns == "struct<temp:double,sky:string>"


def field(name: str, spark_type: Any, nullable: bool = True) -> dict[str, Any]:
    return {"name": name, "type": spark_type, "nullable": nullable, "metadata": {}}


@pytest.mark.parametrize(
    ("ddl", "json"),
    [
        ("int", "integer"),
        (" BIGINT ", "long"),
        ("decimal(10, 2)", "decimal(10,2)"),
        ("decimal", "decimal(10,0)"),
        ("temp double, sky string", {"type": "struct", "fields": [field("temp", "double"), field("sky", "string")]}),
        ("a: int", {"type": "struct", "fields": [field("a", "integer")]}),
        ("date date", {"type": "struct", "fields": [field("date", "date")]}),
        ("a int not null", {"type": "struct", "fields": [field("a", "integer", False)]}),
        ("struct<`a b`: int>", {"type": "struct", "fields": [field("a b", "integer")]}),
        ("map<string, int>", {"type": "map", "keyType": "string", "valueType": "integer", "valueContainsNull": True}),
    ],
)
def test_everyday_ddl_is_read_without_spark(ddl: str, json: Any) -> None:
    assert to_json(ddl) == json


SPARKS_OWN_NAMES = [
    spark.BooleanType(),
    spark.ByteType(),
    spark.ShortType(),
    spark.IntegerType(),
    spark.LongType(),
    spark.FloatType(),
    spark.DoubleType(),
    spark.DecimalType(12, 3),
    spark.StringType(),
    spark.BinaryType(),
    spark.DateType(),
    spark.TimestampType(),
    spark.TimestampNTZType(),
    spark.NullType(),
]


@pytest.mark.parametrize("declared", SPARKS_OWN_NAMES, ids=str)
def test_each_simple_type_is_read_by_the_name_that_spark_gives_it(declared: spark.DataType) -> None:
    """An executor, and a thread without a session, read the DDL of side outputs themselves."""
    assert parsed_offline(declared.simpleString()) == declared
    assert parsed_offline(f"a {declared.simpleString()}") == spark.StructType().add("a", declared)
    assert parsed_offline(f"array<{declared.simpleString()}>") == spark.ArrayType(declared)
    assert parsed_offline(str(declared.jsonValue()).replace("timestamp_ltz", "timestamp")) == declared


@pytest.mark.parametrize("ddl", ["", "blabla", "array<int", "a int,", "int)", "a int default 5", "struct<a>"])
def test_other_ddl_is_left_to_spark(ddl: str) -> None:
    with pytest.raises(UnknownTypeError, match=f"{re.escape(repr(ddl))} is not understood"):
        to_json(ddl)


@pytest.mark.parametrize("declared", ["a int, a int", "s struct<a: int, a: string>", "array<struct<a: int, a: int>>"])
def test_two_fields_of_one_name_are_refused(declared: str) -> None:
    async def call(n: int) -> dict[str, int]:
        return {"a": n}

    with pytest.raises(FunctionError, match="the type of call has two fields called 'a'; give each its own name"):
        run_stream(lambda stream: stream.ordered_wait(call, "n", returnType=declared, as_="r"), [{"n": 1}], "n int")
