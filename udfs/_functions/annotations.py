"""The DDL of the type that an annotation stands for; no Spark is needed to tell."""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import decimal
import re
import typing
from typing import Any

from .hints import class_hints, without_none

__all__ = ("UnknownTypeError", "from_annotation")


class UnknownTypeError(Exception):
    """An annotation or a DDL text that is not understood here."""


_SCALARS: dict[Any, str] = {
    str: "string",
    int: "bigint",
    float: "double",
    bool: "boolean",
    bytes: "binary",
    datetime.date: "date",
    datetime.datetime: "timestamp",
    datetime.timedelta: "interval day to second",
    decimal.Decimal: "decimal(38,18)",  # as Spark itself infers it
}


def from_annotation(hint: Any) -> str:
    """The DDL of the type that an annotation stands for.

    Raises:
        UnknownTypeError: it does not say enough.

    >>> from_annotation(dict[str, list[int]])
    'map<string,array<bigint>>'
    """
    hint = without_none(hint)
    if isinstance(hint, type) and hint in _SCALARS:
        return _SCALARS[hint]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if (origin in (list, collections.abc.Sequence) and args) or (origin is tuple and args[1:] == (Ellipsis,)):
        return f"array<{from_annotation(args[0])}>"
    if origin in (dict, collections.abc.Mapping) and args:
        return f"map<{from_annotation(args[0])},{from_annotation(args[1])}>"
    if fields := _fields(hint):
        inner = ",".join(f"{_quoted(name)}:{from_annotation(hint)}" for name, hint in fields.items())
        return f"struct<{inner}>"
    raise UnknownTypeError(f"no Spark type for {hint!r}")


def _fields(hint: Any) -> dict[str, Any] | None:
    """The fields of a dataclass, a TypedDict or a NamedTuple with their annotations; None for anything else."""
    if not isinstance(hint, type):
        return None
    if dataclasses.is_dataclass(hint):
        names = [field.name for field in dataclasses.fields(hint)]
    elif typing.is_typeddict(hint):
        names = list(hint.__annotations__)
    elif issubclass(hint, tuple) and hasattr(hint, "_fields"):
        names = list(getattr(hint, "_fields", ()))
    else:
        return None
    hints = class_hints(hint)
    if missing := [name for name in names if name not in hints]:
        raise UnknownTypeError(f"the annotation of {', '.join(missing)} in {hint!r} cannot be read")
    return {name: hints[name] for name in names}


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else "`" + name.replace("`", "``") + "`"
