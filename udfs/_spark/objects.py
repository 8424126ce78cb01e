"""The types of Spark that Arrow knows in part: Variant, geometries, user-defined types, coarse times."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql import types as spark

from .._arrow.objects import ObjectForm, ObjectType, changed_inside, fields_of
from .._arrow.rows import normalized
from .._errors.exceptions import AsyncUDFError
from .._functions.annotations import function_hints, without_none
from .._functions.signature import FunctionSpec, behind_decorators
from ._compat import SPATIAL, TimeType, VariantType, inside, to_arrow


@dataclasses.dataclass(frozen=True)
class VariantForm:
    """A `VariantVal`, or values that JSON has."""

    name = "variant"
    wanted = "a VariantVal, such as VariantVal.parseJson(text), or parsed JSON: a dict, a list, a number, True or False"

    def reader(self) -> Callable[[Any], Any]:
        return lambda stored: spark.VariantVal(stored["value"], stored["metadata"])

    def written(self, value: Any) -> Any:
        if isinstance(value, str):
            raise ValueError("a text may be JSON or a value of it: parseJson(text), or parseJson(json.dumps(text))")
        if _is_stored_variant(value):
            return value
        if not isinstance(value, spark.VariantVal):
            _check_json(value)
            value = spark.VariantVal.parseJson(json.dumps(value, allow_nan=False))
        return {"value": bytes(value.value), "metadata": bytes(value.metadata)}


def _is_stored_variant(value: Any) -> bool:
    is_struct = isinstance(value, dict) and value.keys() == {"value", "metadata"}
    return is_struct and all(isinstance(part, bytes) for part in value.values())


def _check_json(value: Any) -> None:
    """Raises ValueError for what json would write as something else, or not at all."""
    if isinstance(value, dict):
        if odd := [key for key in value if not isinstance(key, str)]:
            raise ValueError(f"JSON has texts as keys, not {odd[0]!r}")
        for inner in value.values():
            _check_json(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _check_json(inner)
    elif not (value is None or isinstance(value, (str, int, float))):
        raise ValueError(f"JSON has no {type(value).__name__}")


@dataclasses.dataclass(frozen=True)
class SpatialForm:
    """A `Geometry` or a `Geography`."""

    kind: str

    @property
    def name(self) -> str:
        return self.kind.lower()

    @property
    def wanted(self) -> str:
        return f"a {self.kind}"

    def reader(self) -> Callable[[Any], Any]:
        made = getattr(spark, self.kind)
        return lambda stored: made(stored["wkb"], stored["srid"])

    def written(self, value: Any) -> Any:
        if isinstance(value, getattr(spark, self.kind)):
            return {"srid": value.getSrid(), "wkb": bytes(value.getBytes())}
        return value


@dataclasses.dataclass(frozen=True)
class UserDefinedForm:
    """The objects of a user-defined type, which the type itself makes of what Spark stores, and back."""

    udt: spark.UserDefinedType

    @property
    def name(self) -> str:
        return type(self.udt).__name__

    @property
    def wanted(self) -> str:
        return "an object of its class"

    def reader(self) -> Callable[[Any], Any]:
        rows, deserialize = _with_rows(self.udt.sqlType()), self.udt.deserialize
        return lambda stored: deserialize(rows(stored))

    def written(self, value: Any) -> Any:
        own = getattr(value, "__UDT__", None)
        if own is None:
            return value
        if not isinstance(own, type(self.udt)):
            raise ValueError(f"it is of {type(own).__name__}")
        return self.udt.serialize(value)


@dataclasses.dataclass(frozen=True)
class CoarseForm:
    """Times of day, or intervals, of whole steps: Arrow has all of them in microseconds or finer."""

    name: str
    wanted: str
    step: datetime.timedelta

    def reader(self) -> None:
        return None

    def written(self, value: Any) -> Any:
        since = value
        if isinstance(value, datetime.time):
            since = datetime.timedelta(microseconds=value.microsecond)
        if isinstance(since, datetime.timedelta) and since % self.step:
            raise ValueError("it is finer")
        return value


def _coarse_form(data_type: Any) -> CoarseForm | None:
    """The form of a type that is coarser than microseconds; None for another type."""
    name = data_type.simpleString()
    if isinstance(data_type, TimeType) and data_type.precision < 6:
        wanted = f"a time with at most {data_type.precision} decimals of a second, such as value.replace(microsecond=0)"
        return CoarseForm(name, wanted, datetime.timedelta(microseconds=10 ** (6 - data_type.precision)))
    if isinstance(data_type, spark.DayTimeIntervalType) and not name.endswith("second"):
        units = f"{name.split()[-1]}s"
        return CoarseForm(name, f"a timedelta of whole {units}", datetime.timedelta(**{units: 1}))
    return None


def _with_rows(data_type: spark.DataType) -> Callable[[Any], Any]:
    """Makes a Row of each struct in a value: the code of a user-defined type reads it by position."""
    if not any(isinstance(one, spark.StructType) for one in inside(data_type)):
        return lambda value: value
    match data_type:
        case spark.ArrayType():
            item = _with_rows(data_type.elementType)
            return lambda value: value and [item(x) for x in value]
        case spark.MapType():
            of = _with_rows(data_type.valueType)
            return lambda value: value and {key: of(x) for key, x in value.items()}
        case spark.StructType():
            row = Row(*data_type.names)
            fields = [(field.name, _with_rows(field.dataType)) for field in data_type.fields]
            return lambda value: value and row(*(inner(value[name]) for name, inner in fields))
    raise TypeError(data_type)


def _form_of(data_type: spark.DataType) -> ObjectForm | None:
    """The form of a type; None if Arrow has the type in full."""
    if isinstance(data_type, spark.UserDefinedType):
        return UserDefinedForm(data_type)
    if isinstance(data_type, VariantType):
        return VariantForm()
    return _spatial_form(type(data_type)) if isinstance(data_type, SPATIAL) else _coarse_form(data_type)


def _spatial_form(kind: type) -> SpatialForm:
    return SpatialForm(kind.__name__.removesuffix("Type"))


def with_objects(arrow_type: pa.DataType, data_type: spark.DataType) -> pa.DataType:
    """The Arrow type of one of Spark's, with an ObjectType wherever Arrow does not say all."""
    if isinstance(form := _form_of(data_type), UserDefinedForm):
        return ObjectType(with_objects(arrow_type, form.udt.sqlType()), form)
    if form is not None:
        return ObjectType(arrow_type, form)
    match data_type:
        case spark.ArrayType():
            return pa.list_(_with(arrow_type.value_field, data_type.elementType))
        case spark.MapType():
            key, item = arrow_type.key_field, arrow_type.item_field
            return pa.map_(_with(key, data_type.keyType), _with(item, data_type.valueType))
        case spark.StructType():
            return pa.struct(list(map(_with, fields_of(arrow_type), [field.dataType for field in data_type.fields])))
    return arrow_type


def _with(field: pa.Field, data_type: spark.DataType) -> pa.Field:
    return field.with_type(with_objects(field.type, data_type))


def user_defined_parameters(spec: FunctionSpec) -> dict[int, spark.UserDefinedType]:
    """The user-defined types of the parameters that are annotated with their classes, by position."""
    hints = function_hints(behind_decorators(spec.function))
    found = {i: getattr(without_none(hints.get(name)), "__UDT__", None) for i, name in enumerate(spec.parameters)}
    return {i: udt for i, udt in found.items() if isinstance(udt, spark.UserDefinedType)}


def user_defined_type(arrow_type: pa.DataType, udt: spark.UserDefinedType, who: str) -> pa.DataType:
    """The type of a column of objects of a user-defined type; AsyncUDFError if Spark stores them as something else."""
    stored = to_arrow(udt.sqlType())
    if normalized(arrow_type) != normalized(stored):
        raise AsyncUDFError(
            f"{who} takes a column of {type(udt).__name__} by its annotation, which Spark stores as {stored}, and got "
            f"one of {arrow_type}"
        )
    return with_objects(arrow_type, udt)


def of_batch(arrow_type: pa.DataType) -> pa.DataType:
    """The same for the type of a column that Spark has written, which tells variants and geometries and no more."""
    if pa.types.is_struct(arrow_type):
        marks = {mark for field in fields_of(arrow_type) for mark in field.metadata or ()}
        for mark, form in _MARKS.items():
            if mark in marks:
                return ObjectType(arrow_type, form)
    return changed_inside(arrow_type, of_batch)


# The metadata of one of the fields of such a struct.
_MARKS: dict[bytes, ObjectForm] = {
    b"variant": VariantForm(),
    **{form.name.encode(): form for form in map(_spatial_form, SPATIAL)},
}
