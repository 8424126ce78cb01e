"""Annotations are read one by one, in every spelling, also those that exist for type checkers only."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
from collections.abc import AsyncIterator, Callable
from datetime import date, datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, NewType, Optional, TypedDict, TypeVar

import pandas as pd
import pytest
from typing_extensions import TypeAliasType

from asyncudf import FunctionError, RuntimeContext, async_pandas_udf
from asyncudf._functions.annotations import UnknownTypeError, Vector, from_annotation
from asyncudf._functions.signature import FunctionKind
from asyncudf.testing import MemoryStore, run_rows

if TYPE_CHECKING:
    from nowhere import Client, Unit  # type: ignore[import-not-found]


@dataclasses.dataclass
class Weather:
    units: ClassVar[Unit]
    temp: Annotated[float, "in degrees"]
    date: date | None = None  # the type, though the field's default has the same name in the class
    day: Optional[datetime] = None  # noqa: UP045 - the old spelling is still met
    sky: Annotated[str | None, "clear"] = None


class Point(NamedTuple):
    x: Annotated[int, "right"]
    y: int


class Place(TypedDict, total=False):
    at: Annotated[Point, "on the map"]


@dataclasses.dataclass
class Measured:
    temp: float
    unit: Unit


async def for_checkers(client: Client, city: str, context: RuntimeContext) -> int:
    return context.attempt_number


async def optional(city: str, context: RuntimeContext | None = None) -> int:
    return 1


async def old_optional(city: str, context: Optional[RuntimeContext] = None) -> int:  # noqa: UP045
    return 1


async def annotated(city: str, context: Annotated[RuntimeContext, "the row's"]) -> Annotated[int, "bytes"]:
    return 1


async def annotated_optional(city: str, context: Annotated[RuntimeContext | None, "the row's"] = None) -> int | None:
    return 1


def written(annotation: str) -> Callable[..., Any]:
    """A function whose module has imported nothing that its annotations name."""
    names: dict[str, Any] = {"__name__": "elsewhere"}
    exec(f"async def call(city, context: {annotation!r} = None) -> 'int': return 1", names)
    call: Callable[..., Any] = names["call"]
    return call


@pytest.mark.parametrize(
    "function",
    [
        for_checkers,
        optional,
        old_optional,
        annotated,
        annotated_optional,
        written("RuntimeContext"),
        written("asyncudf.RuntimeContext"),
        written("RuntimeContext | None"),
        written("Optional[RuntimeContext]"),
        written("typing.Annotated[RuntimeContext, 1]"),
    ],
)
def test_the_context_and_the_result_are_seen(function: Any) -> None:
    spec = async_pandas_udf(function).spec
    assert (spec.context_parameter, spec.returns) == ("context", "bigint")


async def series(x: Annotated[pd.Series, "numbers"], y: Optional[pd.Series] = None) -> pd.Series | None:  # noqa: UP045
    return x


def test_vectors_are_seen_in_every_spelling() -> None:
    assert async_pandas_udf(series, "int").spec.vectors == (Vector.SERIES, Vector.SERIES)
    names: dict[str, Any] = {}
    exec("async def call(x: 'pd.Series | None', y: 'pandas.DataFrame', z: 'pa.StringArray') -> 'pd.Series': ...", names)
    assert async_pandas_udf(names["call"], "int").spec.vectors == (Vector.SERIES, Vector.FRAME, Vector.ARRAY)


def test_fields_whose_names_are_no_identifiers() -> None:
    """They are quoted in the type, as in SQL."""
    fields = {"max.temp": float, "a `b` c": int}
    reading = TypedDict("reading", fields)  # type: ignore[misc]
    names: dict[str, Any] = {"reading": reading}
    exec("async def call(n: int) -> reading: return {'max.temp': 1.5, 'a `b` c': n}", names)
    assert run_rows(names["call"], [3]) == [{"max.temp": 1.5, "a `b` c": 3}]


def test_a_variable_that_is_set_later_does_no_harm() -> None:
    async def call(city: str) -> int:
        return later

    udf = async_pandas_udf(call)
    later = 1
    assert udf.spec.returns == "bigint"


def test_the_annotations_of_a_decorated_function_are_read_where_it_stands() -> None:
    names: dict[str, Any] = {"functools": functools}
    exec("def wrap(f):\n @functools.wraps(f)\n async def wrapper(city): return await f(city)\n return wrapper", names)

    async def call(city: str) -> Weather:
        return Weather(1.0)

    assert (async_pandas_udf(names["wrap"](call)).spec.returns or "").startswith("struct<temp:double")


Name = NewType("Name", str)
Names = TypeAliasType("Names", Optional[list[Name]])  # noqa: UP045


@pytest.mark.parametrize(
    ("hint", "ddl"),
    [
        (Weather, "struct<temp:double,date:date,day:timestamp,sky:string>"),
        (Place, "struct<at:struct<x:bigint,y:bigint>>"),
        (Optional[Point], "struct<x:bigint,y:bigint>"),  # noqa: UP045
        (Names, "array<string>"),
        (dict[str, Names], "map<string,array<string>>"),
    ],
)
def test_the_fields_of_a_class_are_read_one_by_one(hint: Any, ddl: str) -> None:
    assert from_annotation(hint) == ddl


# As `type Tree = list[Tree]` and `type Json = dict[str, Json] | str` are from Python 3.12 on.
Tree = type("TypeAliasType", (), {"__value__": property(lambda self: list[self]), "__repr__": lambda self: "Tree"})()
Json = type("TypeAliasType", (), {"__value__": property(lambda self: dict[str, self] | str)})()  # type: ignore[name-defined]
Itself = type("TypeAliasType", (), {"__value__": property(lambda self: self)})()


def test_an_alias_that_contains_itself_is_no_spark_type_and_no_vector() -> None:
    with pytest.raises(UnknownTypeError, match="Tree contains itself"):
        from_annotation(Tree)
    with pytest.raises(UnknownTypeError, match="no Spark type for"):
        from_annotation(Itself)
    for alias in (Tree, Json, Itself):

        async def call(x: int) -> int:
            return x

        call.__annotations__["x"] = alias
        assert not async_pandas_udf("int")(call).spec.vectorized


T = TypeVar("T")
Maybe = TypeAliasType("Maybe", Optional[T], type_params=(T,))  # noqa: UP045


def test_an_alias_with_a_vector_as_its_argument_is_no_scalar() -> None:
    async def call(x: Maybe[pd.Series]) -> int:  # type: ignore[valid-type]
        return 1

    with pytest.raises(FunctionError, match="which no batch of rows is"):
        async_pandas_udf("int")(call)


def test_a_field_that_cannot_be_read_is_named() -> None:
    with pytest.raises(UnknownTypeError, match=r"the annotation of unit in .*Measured.* cannot be read"):
        from_annotation(Measured)


def test_a_generator_with_an_annotation_for_checkers_is_typed_by_what_it_yields() -> None:
    async def call(city: Client) -> AsyncIterator[Annotated[int, "x"]]:
        yield 1

    spec = async_pandas_udf(call).spec
    assert (spec.kind, spec.returns) == (FunctionKind.GENERATOR, "bigint")


@contextlib.asynccontextmanager
async def client() -> AsyncIterator[int]:
    yield 1


def run_apart(source: str) -> dict[str, Any]:
    """The names of a module without `from __future__ import annotations`."""
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(source, "<module>", "exec", dont_inherit=True), names)
    return names


def test_annotations_that_are_types_are_read() -> None:
    names = run_apart("""
import dataclasses, datetime, typing
from asyncudf import RuntimeContext

class Base(typing.TypedDict):
    day: datetime.date

class Given(Base):
    names: list[str] | None

@dataclasses.dataclass
class Parent:
    given: Given

@dataclasses.dataclass
class Child(Parent):
    count: "int"

async def call(x: int, here: RuntimeContext) -> Child: ...
""")
    spec = async_pandas_udf(names["call"]).spec
    assert (spec.parameters, spec.context_parameter) == (("x",), "here")
    assert spec.returns == "struct<given:struct<day:date,names:array<string>>,count:bigint>"


@pytest.mark.skipif(sys.version_info < (3, 14), reason="since 3.14 annotations are read when they are asked for")
def test_annotations_whose_names_are_set_later_or_for_checkers_only_are_read_one_by_one() -> None:
    names = run_apart("""
import dataclasses, typing
from collections.abc import AsyncIterator

@dataclasses.dataclass
class Outer:
    inner: list[Inner]
    unit: typing.ClassVar[Unit]

class Inner(typing.NamedTuple):
    x: int

async def call(x: str, client: Client, context: RuntimeContext) -> Outer: ...
async def series(x: pd.Series[int], y: pa.Array) -> pd.Series[float]: ...
async def stream(x: Client) -> AsyncIterator[Inner]: yield
@dataclasses.dataclass
class Measured:
    unit: Unit
""")
    spec = async_pandas_udf(names["call"]).spec
    assert spec.context_parameter == "context"
    assert spec.returns == "struct<inner:array<struct<x:bigint>>>"
    assert async_pandas_udf(names["series"], "int").spec.vectors == (Vector.SERIES, Vector.ARRAY)
    assert async_pandas_udf(names["stream"]).spec.returns == "struct<x:bigint>"
    assert run_rows(names["call"], ["x"], resources=client, store=MemoryStore()) == [None]
    with pytest.raises(UnknownTypeError, match=r"the annotation of unit in .*Measured.* cannot be read"):
        from_annotation(names["Measured"])
