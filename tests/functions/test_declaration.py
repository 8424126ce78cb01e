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

from asyncudf import Budget, FunctionError, OptionError, RateLimit, RetryStrategy, async_pandas_udf
from asyncudf._functions.annotations import UnknownTypeError, from_annotation
from asyncudf._functions.signature import FunctionKind
from asyncudf._spark.types import parsed_offline
from asyncudf.testing import OperatorHarness, run_rows, run_stream


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
        @async_pandas_udf
        async def call(x: int) -> int:
            """Doubles."""
            return x * 2

        assert (call.__name__, call.__doc__) == ("call", "Doubles.")
        assert inspect.iscoroutinefunction(call.__wrapped__)
        assert run_rows(call, [1]) == [2]

    def test_with_parentheses_and_as_a_function(self) -> None:
        """The return type comes first, as in `pandas_udf`, with options behind it; without one it is inferred."""

        async def call(x: int) -> int:
            return x

        declared = async_pandas_udf("temp double, sky string", capacity=5)(call)
        assert (declared.returns, declared.options.capacity) == ("temp double, sky string", 5)
        assert async_pandas_udf()(call).spec.returns == "bigint"
        assert async_pandas_udf(call, "int").returns == async_pandas_udf(call, returnType="int").returns == "int"

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
        (datetime.timedelta, "interval day to second"),
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
    assert parsed_offline(ddl)


@pytest.mark.parametrize("hint", [dict, list, Any, int | str, object, tuple[int, str]])
def test_an_annotation_that_does_not_say_enough(hint: Any) -> None:
    with pytest.raises(UnknownTypeError, match=f"no Spark type for {re.escape(repr(hint))}"):
        from_annotation(hint)


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
        (
            "a int comment 'of b'",
            {"type": "struct", "fields": [{**field("a", "integer"), "metadata": {"comment": "of b"}}]},
        ),
        ("struct<`a b`: int>", {"type": "struct", "fields": [field("a b", "integer")]}),
        ("interval day to second", "interval day to second"),
        ("INTERVAL YEAR", "interval year"),
        ("a char(4), b varchar( 5 )", {"type": "struct", "fields": [field("a", "char(4)"), field("b", "varchar(5)")]}),
        ("map<string, int>", {"type": "map", "keyType": "string", "valueType": "integer", "valueContainsNull": True}),
    ],
)
def test_everyday_ddl_is_read_without_spark(ddl: str, json: Any) -> None:
    assert parsed_offline(ddl).jsonValue() == json


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
    spark.DayTimeIntervalType(),
    spark.DayTimeIntervalType(0, 1),
    spark.DayTimeIntervalType(2, 2),
    spark.YearMonthIntervalType(),
    *([spark.VariantType()] if hasattr(spark, "VariantType") else []),
    *([spark.TimeType(), spark.TimeType(0)] if hasattr(spark, "TimeType") else []),
]


@pytest.mark.parametrize("declared", SPARKS_OWN_NAMES, ids=str)
def test_each_simple_type_is_read_by_the_name_that_spark_gives_it(declared: spark.DataType) -> None:
    """An executor, and a thread without a session, read the DDL of side outputs themselves."""
    assert parsed_offline(declared.simpleString()) == declared
    assert parsed_offline(f"a {declared.simpleString()}") == spark.StructType().add("a", declared)
    assert parsed_offline(f"array<{declared.simpleString()}>") == spark.ArrayType(declared)
    assert parsed_offline(str(declared.jsonValue()).replace("timestamp_ltz", "timestamp")) == declared


ODD_DDL = [
    "interval day to month",
    "interval second to day",
    "interval day to day",
    "interval",
    "char",
    "char(x)",
    "time(",
    "time(7)",
    "string collate x",
    "decimal(5, 6)",
    "array<int, int>",
    "map<int>",
    "'a' int",  # these two are no names
    "struct<1: int>",
    "a int,, b int",
    ", int",
    "a int comment b",
]


@pytest.mark.parametrize("ddl", ["", "blabla", "array<int", "a int,", "int)", "a int default 5", "struct<a>", *ODD_DDL])
def test_other_ddl_is_left_to_spark(ddl: str) -> None:
    with pytest.raises(UnknownTypeError, match=f"{re.escape(repr(ddl))} is not understood"):
        parsed_offline(ddl)


@pytest.mark.parametrize("declared", ["a int, a int", "s struct<a: int, a: string>", "array<struct<a: int, a: int>>"])
def test_two_fields_of_one_name_are_refused(declared: str) -> None:
    async def call(n: int) -> dict[str, int]:
        return {"a": n}

    for run in (in_a_chain, run_rows):
        with pytest.raises(FunctionError, match="the type of call has two fields called 'a'; give each its own name"):
            run(call, [1], returnType=declared)


def in_a_chain(function: Any, values: list[Any], **options: Any) -> Any:
    rows = [{"n": value} for value in values]
    return run_stream(lambda stream: stream.ordered_wait(function, "n", as_="r", **options), rows, "n int")


class TestWhatSparkRefusesTheTestKitRefuses:
    REFUSED = [
        ("char(4)", r"call is declared as char\(4\), which Spark takes from no Python function; declare string"),
        ("array<varchar(4)>", r"call is declared as array<varchar\(4\)>, which Spark takes .*; declare string"),
        ("decimal(39,0)", r"call is declared as decimal\(39,0\), which Spark takes .*; declare another type"),
        ("interval year to month", r"interval year to month, which .*; declare int, the number of months"),
        ("strnig", r"'strnig' is no type that can be read without a Spark session; make one first, or correct it"),
        ("a int, b", r"'a int, b' is no type"),
        ("'a' int", r"\"'a' int\" is no type"),
    ]

    @pytest.fixture(autouse=True)
    def without_a_session(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With one, such as another test's, its engine reads the types: for Sail char(4) is a string."""
        monkeypatch.setattr("asyncudf._spark.types.SparkSession.getActiveSession", lambda: None)
        monkeypatch.setattr("asyncudf._spark.types.active_session", lambda: None)

    @pytest.mark.parametrize(("declared", "said"), REFUSED)
    def test_a_type(self, declared: str, said: str) -> None:
        async def call(n: int) -> Any:
            return n

        for run in (in_a_chain, run_rows):
            with pytest.raises(FunctionError, match=said):
                run(call, [1], returnType=declared)
        with pytest.raises(FunctionError, match=said):
            OperatorHarness(call, returnType=declared)

    @pytest.mark.parametrize(
        "declared",
        ["array<interval year to month>", "a int, b interval month", spark.ArrayType(spark.YearMonthIntervalType())],
    )
    def test_a_type_where_it_is_declared(self, declared: Any) -> None:
        async def call(n: int) -> Any:
            return n

        with pytest.raises(
            FunctionError, match=r"call is declared as .*interval .*; declare int, the number of months"
        ):
            async_pandas_udf(declared)(call)

    def test_an_annotation(self) -> None:
        async def says_dict(n: int) -> dict:  # type: ignore[type-arg]
            return {"n": n}

        async def says_any_values(n: int) -> dict[str, Any]:
            return {"n": n}

        async def yields_lists(n: int) -> AsyncIterator[list]:  # type: ignore[type-arg]
            yield [n]

        for function in (says_dict, says_any_values, yields_lists):
            said = rf"the return type of {function.__name__} cannot be inferred \(no Spark type for .*\); declare it"
            for run in (in_a_chain, run_rows):
                with pytest.raises(FunctionError, match=said):
                    run(function, [1])
        assert run_rows(says_any_values, [1], returnType="n int") == [{"n": 1}]

    def test_but_not_a_function_that_says_nothing(self) -> None:
        """The type may be given where the function is used; then `run_rows` checks no result."""

        async def unannotated(n):  # type: ignore[no-untyped-def]
            return {"n": n}

        async def says_any(n: int) -> Any:
            return {"n": n}

        async def says_object(n: int) -> object:
            return {"n": n}

        async def says_vector(n: pa.Array) -> pa.Array:
            return n

        assert [run_rows(one, [1])[0] for one in (unannotated, says_any, says_object)] == [{"n": 1}] * 3
        assert run_rows(says_vector, [1]) == [1]

    @pytest.mark.parametrize(
        ("schema", "said"),
        [
            (
                "n int, s struct<a: int, a: int>",
                r"column 's' has a struct with two fields called 'a', .*: leave the column out",
            ),
            ("n int, m array<interval month>", r"column 'm' is array<interval month>, which pyarrow does not know"),
            ("n int, c char(4)", r"column 'c' is char\(4\), which Spark takes from no Python function"),
        ],
    )
    def test_a_column_that_no_function_reads(self, schema: str, said: str) -> None:
        async def call(n: int) -> int:
            return n

        with pytest.raises(FunctionError, match=said):
            run_stream(lambda stream: stream.ordered_wait(call, "n"), [{"n": 1}], schema)


async def ask(tenant: str, text: str = "", *, client: Any = None) -> str: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"budget": Budget(1, reserve=0.1, settle=lambda answer: 1.0)}, r"settle of ask takes \(answer\)"),
        ({"budget": Budget(1, reserve=lambda a, b, c: 1.0)}, r"reserve of ask takes \(a, b, c\)"),
        (
            {"rate_limit": RateLimit(5, cost=lambda: 1.0)},
            r"cost of ask takes \(\), and is called with the",
        ),
        ({"rate_limit": RateLimit(5, cost=1, settle=lambda a, b, c, d: 1.0)}, "and then what came of it"),
    ],
)
def test_what_tells_costs_takes_the_arguments_of_a_row(options: Any, text: str) -> None:
    """It was found out by calls that were charged with what they had reserved."""
    with pytest.raises(OptionError, match=text):
        async_pandas_udf(ask, "string", **options)


@pytest.mark.parametrize(
    "function",
    [lambda tenant, answer: 1.0, lambda tenant, text, answer: 1.0, lambda *row: 1.0, lambda t, a, scale=1: 1.0, max],
)
def test_a_column_may_be_left_out_where_the_function_has_a_default(function: Any) -> None:
    async_pandas_udf(ask, "string", budget=Budget(1, reserve=0.1, settle=function))


def test_what_tells_costs_may_be_wrapped() -> None:
    """A wrapper is what is called: it may take other arguments than the function that it wraps."""

    def of_answer(answer: Any) -> float:
        return 1.0

    @functools.wraps(of_answer)
    def settle(tenant: str, text: str, answer: Any) -> float:
        return of_answer(answer)

    @functools.wraps(of_answer)
    def settle_any(*row: Any, **options: Any) -> float:
        return of_answer(row[-1])

    for function in (settle, settle_any):
        async_pandas_udf(ask, "string", budget=Budget(1, reserve=0.1, settle=function))
