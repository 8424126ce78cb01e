"""The result type is read off the annotation where that says enough."""

import dataclasses
import datetime
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Annotated, Any, NamedTuple, Optional, TypedDict

import pytest

from asyncudf import async_pandas_udf, ordered_wait

pytestmark = pytest.mark.spark


@dataclasses.dataclass
class Place:
    name: str
    height: float | None


class Visit(NamedTuple):
    at: datetime.datetime
    place: Place


class Report(TypedDict):
    by_day: dict[str, list[Visit]]
    note: Optional[str]  # noqa: UP045 - both spellings count


AT = datetime.datetime(2024, 5, 6, 7, 8, 9, 10, tzinfo=datetime.UTC)
VALUES = [
    (int, "bigint", 2**63 - 1),
    (datetime.datetime, "timestamp", AT),
    (datetime.timedelta, "interval day to second", datetime.timedelta(days=1, microseconds=1)),
    (Decimal, "decimal(38,18)", Decimal("12345.000000000000000001")),
    (list[dict[str, list[Decimal]]], "array<map<string,array<decimal(38,18)>>>", [{"a": [Decimal(1)]}]),
    (Optional[int], "bigint", None),  # noqa: UP045
    (Annotated[int, "a count"], "bigint", 3),
    (
        Report,
        "struct<by_day:map<string,array<struct<at:timestamp,place:struct<name:string,height:double>>>>,note:string>",
        {"by_day": {"Monday": [Visit(AT, Place("Oslo", 1.0))]}, "note": None},
    ),
]


def function(hint, value):
    async def f(x):
        return value

    f.__annotations__["return"] = hint
    return async_pandas_udf(f)


def test_the_type_is_that_of_the_annotation(spark):
    """As Spark's own schema has it."""
    df = spark.range(1).select(*[function(hint, value)("id") for hint, _, value in VALUES])
    assert [field.dataType.simpleString() for field in df.schema] == [ddl for _, ddl, _ in VALUES]


def test_values_of_inferred_types_come_out_as_they_are(spark):
    """All of them together, as the fields of one struct."""

    async def everything(x):
        return {f"f{i}": value for i, (_, _, value) in enumerate(VALUES)}

    ddl = ", ".join(f"f{i} {ddl}" for i, (_, ddl, _) in enumerate(VALUES))
    row = ordered_wait(spark.range(1), everything, "id", returnType=ddl).drop("id").first()

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value):
            value = dataclasses.asdict(value)
        if isinstance(value, datetime.datetime):  # collect() gives the driver's local time
            return value.astimezone().replace(tzinfo=None)
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items()}
        if hasattr(value, "_asdict"):
            return plain(value._asdict())
        if hasattr(value, "asDict"):
            return plain(value.asDict())
        return [plain(item) for item in value] if isinstance(value, list) else value

    assert [plain(value) for value in row] == [plain(value) for _, _, value in VALUES]


def test_an_async_generator_says_the_type_of_one_result(spark):
    async def stops(x) -> AsyncIterator[Place]:
        yield Place("a", 1.0)
        yield Place("b", None)

    rows = ordered_wait(spark.range(1), stops, "id").collect()
    assert [tuple(row) for row in rows] == [(0, "a", 1.0), (0, "b", None)]


async def unannotated(x):
    return x


async def says_either(x) -> int | str:
    return x


@pytest.mark.parametrize("unclear", [unannotated, says_either])
def test_an_annotation_that_does_not_say_enough_is_refused_with_the_way_out(spark, no_job, unclear):
    f = async_pandas_udf(unclear)
    for plan in (
        lambda: spark.range(1).select(f("id")),
        lambda: ordered_wait(spark.range(1), f, "id"),
        lambda: spark.udf.register("unclear", f),
        lambda: f.with_options(output_mode="unordered").register(spark, "unclear"),
    ):
        refused = rf"return type of {unclear.__name__} cannot be inferred.*; declare it"
        with no_job, pytest.raises(TypeError, match=refused):
            plan()
