"""Types that Arrow knows in part: those that a function sees as objects, such as Variant, and coarse times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa


class ObjectForm(Protocol):
    """How the values of a type look in Arrow. It can be pickled, and compares by content."""

    @property
    def name(self) -> str:
        """The name of the type, in messages and in keys of stores."""
        ...

    @property
    def wanted(self) -> str:
        """What to give for it, in messages."""
        ...

    def reader(self) -> Callable[[Any], Any] | None:
        """A function from a value of the Arrow type to the object; None: a function sees what Arrow has."""
        ...

    def written(self, value: Any) -> Any:
        """A result as a value of the Arrow type; such a value stays as it is. ValueError if there is no such value."""


_forms: list[ObjectForm] = []  # all forms of this process: Arrow names each by its number


class ObjectType(pa.ExtensionType):  # type: ignore[misc]
    """Stands in declared types, at any depth, where Arrow's own type does not say enough.

    Arrays are of the `stored_type`: this type is for reading and checking alone, and no array has it.
    """

    def __init__(self, storage: pa.DataType, form: ObjectForm) -> None:
        self.form = form
        super().__init__(storage, "asyncudf.object")

    def __arrow_ext_serialize__(self) -> bytes:
        if self.form not in _forms:
            _forms.append(self.form)
        return str(_forms.index(self.form)).encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> ObjectType:
        return cls(storage, _forms[int(serialized)])

    def __reduce__(self) -> Any:
        return type(self), (self.storage_type, self.form)  # a number means nothing in another process

    def __str__(self) -> str:
        return self.form.name


def has_objects(arrow_type: Any) -> bool:
    """Whether there is an ObjectType in a type, at any depth; there is none where no type is declared."""
    if arrow_type is None:
        return False
    return isinstance(arrow_type, ObjectType) or any(has_objects(field.type) for field in fields_of(arrow_type))


def seen_type(arrow_type: Any) -> Any:
    """The type as Arrow has it, if a function sees what Arrow has; else the type itself."""
    is_seen = isinstance(arrow_type, ObjectType) and arrow_type.form.reader() is None
    return arrow_type.storage_type if is_seen else arrow_type


def stored_type(arrow_type: Any) -> Any:
    """The type as Arrow's arrays have it."""
    if isinstance(arrow_type, ObjectType):
        return stored_type(arrow_type.storage_type)
    return changed_inside(arrow_type, stored_type) if has_objects(arrow_type) else arrow_type


def fields_of(arrow_type: pa.DataType) -> list[pa.Field]:
    """The fields of a struct, the item field of a list, or the key and item fields of a map."""
    if pa.types.is_struct(arrow_type):
        return [arrow_type.field(i) for i in range(arrow_type.num_fields)]
    if pa.types.is_map(arrow_type):
        return [arrow_type.key_field, arrow_type.item_field]
    has_items = pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type)
    return [arrow_type.value_field] if has_items else []


def changed_inside(arrow_type: pa.DataType, change: Callable[[Any], Any], *, nullable: bool = False) -> pa.DataType:
    """A nested type with changed types inside, all nullable if `nullable` says so; any other type as it is."""
    fields = [field.with_type(change(field.type)) for field in fields_of(arrow_type)]
    if nullable:
        fields = [field.with_nullable(True) for field in fields]
    if pa.types.is_struct(arrow_type):
        return pa.struct(fields)
    if pa.types.is_map(arrow_type):
        return pa.map_(fields[0].with_nullable(False), fields[1])
    if pa.types.is_list(arrow_type):
        return pa.list_(*fields)
    return pa.large_list(*fields) if pa.types.is_large_list(arrow_type) else arrow_type
