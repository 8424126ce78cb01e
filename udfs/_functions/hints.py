"""Annotations as types, read one by one: one that exists for type checkers only does not hide the others."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Mapping
from typing import Any

from .context import RuntimeContext

__all__ = ("class_hints", "function_hints", "without_none")


class _Unimported:
    """A package that only the type checker has imported: its classes are known by their names."""

    def __init__(self, package: str) -> None:
        self._package = package

    def __getattr__(self, name: str) -> type:
        return type(name, (), {"__module__": self._package})


# What we look for in annotations, under the names that people give it, for modules where nobody has imported it.
_UNIMPORTED: Mapping[str, Any] = {
    "RuntimeContext": RuntimeContext,
    "asyncudf": types.SimpleNamespace(RuntimeContext=RuntimeContext),
    "typing": typing,
    "Annotated": typing.Annotated,
    "Optional": typing.Optional,
    "pd": _Unimported("pandas"),
    "pandas": _Unimported("pandas"),
    "pa": _Unimported("pyarrow"),
    "pyarrow": _Unimported("pyarrow"),
}


def function_hints(function: Any) -> dict[str, Any]:
    """The types of a function's parameters and of its result (`return`), as far as they can be read."""
    while isinstance(function, functools.partial):
        function = function.func
    target = function if inspect.isroutine(function) else type(function).__call__
    origin = inspect.unwrap(target)  # functools.wraps copies the annotations, but not the names in them
    origin = getattr(origin, "__func__", origin)
    return _read(_annotations(target), _closure(origin), getattr(origin, "__globals__", {}))


def class_hints(cls: type) -> dict[str, Any]:
    """The types of the fields of a dataclass, a NamedTuple or a TypedDict, as far as they can be read."""
    hints: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        module = vars(sys.modules[base.__module__]) if base.__module__ in sys.modules else {}
        # The module first: `date: date = None` speaks of the type, not of the default.
        hints |= _read(_annotations(base), module, vars(base))
    return hints


def without_none(hint: Any) -> Any:
    """`X` for `X | None` and `Optional[X]`."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        others = [one for one in typing.get_args(hint) if one is not types.NoneType]
        if len(others) == 1:
            return others[0]
    return hint


def _annotations(owner: Any) -> Mapping[str, Any]:
    """What is written there, also where a name in it means nothing yet: since Python 3.14 they are read when asked."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(owner, format=annotationlib.Format.FORWARDREF)
    return inspect.get_annotations(owner)


def _closure(function: Any) -> dict[str, Any]:
    """The variables around a function that it uses: an annotation may name a class that is made in a function."""
    code = getattr(function, "__code__", None)
    found = {}
    for name, cell in zip(code.co_freevars if code else (), getattr(function, "__closure__", None) or (), strict=False):
        with contextlib.suppress(ValueError):  # an empty cell: a variable that is set later
            found[name] = cell.cell_contents
    return found


def _read(annotations: Mapping[str, Any], nearer: Mapping[str, Any], further: Mapping[str, Any]) -> dict[str, Any]:
    """The annotations that can be read, their names looked up nearer first."""
    # One by one, each as the only one of a made-up object: typing.get_type_hints gives all or nothing.
    scope = {**_UNIMPORTED, **further}
    hints: dict[str, Any] = {}
    for name, annotation in annotations.items():
        spellings = [annotation]
        if isinstance(annotation, str):  # only type checkers know pd.Series[int]
            spellings.append(re.sub(r"\[[^][]*\]", "", annotation))
        for text in spellings:
            with contextlib.suppress(Exception):  # a text may say anything
                alone = types.SimpleNamespace(__annotations__={name: text})
                hints |= typing.get_type_hints(alone, scope, dict(nearer))
                break
    return hints
