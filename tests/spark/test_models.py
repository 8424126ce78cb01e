"""Models of Pydantic, enums and literals in queries."""

import enum
from decimal import Decimal
from typing import Generic, Literal, Optional, TypeVar

import pytest
from pyspark.sql import Row

from asyncudf import async_pandas_udf, ordered_wait

pydantic = pytest.importorskip("pydantic")
pytestmark = pytest.mark.spark

T = TypeVar("T")


class Tone(str, enum.Enum):  # noqa: UP042 - as people have it
    GOOD = "good"


class Part(pydantic.BaseModel):
    name: str
    price: Decimal | None = None


class Box(pydantic.BaseModel, Generic[T]):
    item: T


class Review(pydantic.BaseModel):
    tone: Tone
    language: Literal["en", "de"]
    parts: list[Part] = []
    box: Optional[Box[int]] = None  # noqa: UP045 - both spellings count
    by: str = pydantic.Field("nobody", alias="author")


async def review(x: int) -> Review:
    return Review(tone="good", language="en", parts=[Part(name="x", price="1.5")], box=Box[int](item=x), author="me")


def expected(number):
    fields = {"tone": "good", "language": "en", "parts": [Row(name="x", price=Decimal("1.5"))]}
    return Row(**fields, box=Row(item=number), by="me")


@pytest.mark.promise("models")
def test_as_a_column_and_in_sql(spark):
    declared = async_pandas_udf(review)
    rows = spark.range(2).select(declared("id").alias("r"), declared("id").tone.alias("tone")).collect()
    assert rows == [Row(r=expected(number), tone="good") for number in range(2)]
    declared.register(spark, "review")
    assert spark.sql("SELECT review(id).box.item AS item FROM range(3)").collect() == [Row(item=n) for n in range(3)]


def local():
    """A function and its model, which exist on no executor: cloudpickle sends the classes with them."""

    class Local(pydantic.BaseModel):
        number: int

        @pydantic.model_validator(mode="after")
        def _checked(self):
            return self

    async def local(x: int) -> Local:
        return Local(number=x)

    return local


def test_a_class_that_is_pickled_by_value(spark):
    assert ordered_wait(spark.range(1), local(), "id").collect() == [Row(id=0, number=0)]
