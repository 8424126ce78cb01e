"""The parameters of a user's function, also behind decorators, and the function with some of them bound."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from inspect import Parameter
from typing import Any

from .._policies.checks import is_async_def

BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def behind_decorators(function: Any) -> Any:
    """The function whose parameters and annotations count.

    A decorator's wrapper with `functools.wraps` and `*args, **kwargs` passes its arguments on, so the function that it
    decorates counts. Of a wrapper with parameters of its own these count.
    """
    if isinstance(function, functools.partial):
        return functools.partial(behind_decorators(function.func), *function.args, **function.keywords)
    if inspect.ismethod(function):
        return types.MethodType(behind_decorators(function.__func__), function.__self__)
    return behind_decorators(function.__wrapped__) if _passes_on(function) else function


def _passes_on(function: Any) -> bool:
    """Whether a function is a decorator's wrapper that takes the parameters of the decorated function."""
    # __wrapped__ alone does not say so: decorators that add or remove an argument also use functools.wraps.
    if getattr(function, "__wrapped__", None) is None or hasattr(function, "__signature__"):
        return False
    try:
        own = _own_parameters(function)
    except ValueError:  # made in C, as by functools.cache
        return True
    stars = [p for p in own if p.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)]
    named = [p.name for p in own if p not in stars]
    return len(stars) == 2 and named == [p.name for p in parameters_of(function.__wrapped__)][: len(named)]


def called(function: Any) -> Any:
    """The function that runs when `function` is called: of a partial, a staticmethod, a singledispatch, an object."""
    function = _unwrapped(function)
    return function if inspect.isroutine(function) else type(function).__call__


def is_coroutine_function(function: Any) -> bool:
    """Whether a call of it returns a coroutine."""
    # An object may be marked as one itself, as an AsyncMock is.
    return any(map(is_async_def, (_unwrapped(function), called(function))))


def _unwrapped(function: Any) -> Any:
    """The function behind partials, a staticmethod or a singledispatch function."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, staticmethod):
            function = function.__func__
        elif inspect.isfunction(function) and hasattr(function, "dispatch") and hasattr(function, "registry"):
            function = function.__wrapped__  # type: ignore[attr-defined]
        else:
            return function


def parameters_of(function: Any) -> Sequence[Parameter]:
    """The parameters that count, in their order.

    Raises:
        ValueError, TypeError: the signature cannot be read.
    """
    return _own_parameters(behind_decorators(function))


def _own_parameters(function: Any) -> list[Parameter]:
    try:
        signature = signature_of(function, follow_wrapped=False)
    except TypeError:  # an AsyncMock before Python 3.11.4: it looks like a function, and its code is a mock
        signature = signature_of(function.__call__, follow_wrapped=False)
    return list(signature.parameters.values())


def signature_of(function: Any, *, follow_wrapped: bool = True) -> inspect.Signature:
    """The signature, also if a name in an annotation has no value yet, which Python allows since 3.14.

    Raises:
        ValueError, TypeError: it cannot be read.
    """
    if sys.version_info >= (3, 14):
        import annotationlib

        lenient = annotationlib.Format.FORWARDREF
        return inspect.signature(function, follow_wrapped=follow_wrapped, annotation_format=lenient)
    return inspect.signature(function, follow_wrapped=follow_wrapped)


def bound(
    function: Callable[..., Any], parameters: Sequence[Parameter], columns: Collection[str], given: Mapping[str, Any]
) -> Callable[..., Any]:
    """The function of its columns alone; the function itself if no other parameter is filled.

    Args:
        parameters: of the function.
        columns: the parameters that columns fill, in the order of the columns; there may be fewer columns.
        given: the values of other parameters. A parameter that neither fills keeps its default.
    """
    # Columns come by position. A partial can give values by keyword, or in front of all columns. Only values between
    # columns, or positional-only ones behind them, need a wrapper, which runs in each call.
    placed = [p for p in parameters if p.kind in BY_POSITION]
    # *rest takes the columns that are left once every other parameter has its own.
    may_rest = all(p.name in columns or p.name in given for p in placed)
    if not (may_rest and any(p.kind is Parameter.VAR_POSITIONAL for p in parameters)):
        while placed and not (placed[-1].name in columns or _only_by_position(placed[-1], given)):
            placed.pop()
    keywords = {name: value for name, value in given.items() if name not in [p.name for p in placed]}
    in_order = [(p.name in columns, given.get(p.name, p.default)) for p in placed]
    first = [value for _, value in itertools.takewhile(lambda one: not one[0], in_order)]
    if all(is_column for is_column, _ in in_order[len(first) :]):
        return functools.partial(function, *first, **keywords) if first or keywords else function

    def in_place(*row: Any) -> Any:
        rest = iter(row)
        values = [next(rest, value) if is_column else value for is_column, value in in_order]
        return function(*values, *rest, **keywords)

    return in_place


def _only_by_position(parameter: Parameter, given: Mapping[str, Any]) -> bool:
    return parameter.kind is Parameter.POSITIONAL_ONLY and parameter.name in given
