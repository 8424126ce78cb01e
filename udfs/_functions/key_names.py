"""The name of a function in the keys of a result store, and the warning if that does not tell it from others."""

from __future__ import annotations

import functools
import inspect
import logging
import types
from collections.abc import Iterator
from typing import Any

from .._errors.exceptions import OptionError
from .._stores.keys import canonical
from .async_function import AsyncFunction
from .signature import signature_of

logger = logging.getLogger("asyncudf")


def key_name(function: Any) -> str:
    """The module and qualified name of a function; for a callable object, of its class."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def defaults_of(function: Any) -> dict[str, Any]:
    """The defaults of a function's parameters that a key can be made of, without those that are None."""
    return {name: value for name, value in _defaults(function) if value is not None and _has_key(value)}


def check_key_name(name: str, function: Any) -> None:
    """Warn if other functions may have the name too; OptionError for a partial or a lambda."""
    what = ""
    if isinstance(function, functools.partial):
        what = "the arguments that are bound to it"
    elif "<lambda>" in key_name(function):
        what = "one lambda from another"
    if what:
        raise OptionError(
            f"the store keeps results by the name of their function, which does not tell {what}: give {name} a "
            "version='...' that nothing else in the store has, or make it a function with a name"
        )
    if besides := [*dict.fromkeys(_besides(function, set()))]:
        logger.warning(
            "the store keeps the results of %s by its name and its arguments, and it uses %s besides: where these "
            "differ it takes other results for its own; give it a version='...' that tells them",
            name,
            " and ".join(besides),
        )


# Two functions of one name may differ in everything but their code: in the variables around them, their attributes or
# their object. The warning lists all of that, of whatever type, except what is known to do no harm (`_is_harmless`).


def _besides(function: Any, seen: set[int]) -> Iterator[str]:
    """What a function uses besides its code, its globals and its arguments."""
    if id(function) in seen:
        return
    seen.add(id(function))
    if isinstance(function, types.MethodType):
        owner, function = function.__self__, function.__func__
        if not inspect.isclass(owner):
            yield "the object that it is a method of"
        elif function.__qualname__ != f"{owner.__qualname__}.{function.__name__}":
            yield "the class that it is a method of"
    if not isinstance(function, types.FunctionType):
        yield from _of_object(function, seen)
        return
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    names = [name for name, cell in cells if not _is_harmless(name, cell, function, seen)]
    yield from _listed("variable", names)
    yield from _listed("default", [name for name, value in _defaults(function) if not _has_key(value)])
    attributes = {name: value for name, value in vars(function).items() if name != "__wrapped__"}
    yield from _listed("attribute", [name for name, value in attributes.items() if value is not None])


def _of_object(value: Any, seen: set[int]) -> Iterator[str]:
    """What a callable object has of its own, and what the methods of its class use."""
    slots = [name for base in type(value).__mro__ for name in _slots(base) if hasattr(value, name)]
    own = {name: getattr(value, name) for name in [*slots, *getattr(value, "__dict__", ())]}
    yield from _listed("attribute", [name for name, one in own.items() if one is not None])
    for base in type(value).__mro__:
        if base is AsyncFunction or base.__module__ in ("abc", "builtins"):
            continue
        for one in vars(base).values():
            method = getattr(one, "__func__", getattr(one, "fget", one))
            if isinstance(method, types.FunctionType):
                yield from _besides(method, seen)


def _slots(base: type) -> list[str]:
    slots = vars(base).get("__slots__", ())
    return [name for name in ([slots] if isinstance(slots, str) else slots) if name not in ("__dict__", "__weakref__")]


def _listed(what: str, names: list[str]) -> Iterator[str]:
    if names:
        yield f"the {what}{'s' * (len(names) > 1)} {', '.join(names)}"


def _is_harmless(name: str, cell: Any, function: Any, seen: set[int]) -> bool:
    """Whether a variable around a function is the same for all functions of that name."""
    if name in ("__class__", function.__name__):  # of super(), and of a function that calls itself
        return True
    try:
        content = cell.cell_contents
    except ValueError:  # not set yet
        return False
    if content is None:  # of two functions that differ, the other one has the warning
        return True
    if inspect.ismodule(content) or id(content) in seen:
        return True
    # A function that was made in the same call as this one, or that this one wraps under its name.
    scope = function.__qualname__.rpartition(".")[0]
    return (
        isinstance(content, types.FunctionType)
        and content.__module__ == function.__module__
        and content.__qualname__.rpartition(".")[0] == scope
        and (bool(scope) or content.__qualname__ == function.__qualname__)
        and not [*_besides(content, seen)]
    )


def _defaults(function: Any) -> Iterator[tuple[str, Any]]:
    try:
        parameters = signature_of(function).parameters.values()
    except (TypeError, ValueError):  # not a Python function
        return
    for parameter in parameters:
        if parameter.default is not parameter.empty:
            yield parameter.name, parameter.default


def _has_key(value: Any) -> bool:
    try:
        canonical(value)
    except Exception:  # a class without a canonical form, or nested too deeply
        return False
    return True
