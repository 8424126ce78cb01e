"""The arguments that functions and options get of a row: the columns by position, and copies that may be edited."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Any

from ..._functions.signature import BY_POSITION, FunctionSpec, parameters_of


def of_row(asked: Callable[..., Any], spec: FunctionSpec) -> Callable[..., Any]:
    """Makes a function of an option, such as `cost` or `on_timeout`, that is called with the columns of a row.

    It gets by position the arguments that the function gets from the row; without a column, the function's default.
    An argument behind the last column is passed only if the option's parameter has no default, or has the same name.
    """
    if spec.takes_mapping:
        return asked
    own = {*spec.resources, spec.context_parameter}
    placed = [p for p in parameters_of(spec.function) if p.kind in BY_POSITION and p.name not in own]
    ends = [place + 1 for place, p in enumerate(placed) if p.name in spec.parameters]  # of the columns
    try:
        takes = [p for p in parameters_of(asked) if p.kind in BY_POSITION]
    except (ValueError, TypeError):  # some functions made in C have no signature
        takes = []

    def called(*row: Any) -> Any:
        rest = iter(row)
        values = [next(rest, p.default) if p.name in spec.parameters else p.default for p in placed]
        end = ends[min(len(row), len(ends)) - 1] if ends and row else 0
        for given, taken in zip(placed[end:], takes[end:], strict=False):
            if taken.default is not Parameter.empty and taken.name != given.name:
                break
            end += 1
        return asked(*values[:end], *rest)

    return called


def settlement_call(spec: FunctionSpec) -> Callable[[Callable[..., float], Any, Any], float]:
    """Makes a function that calls a `settle` with copies of a row's arguments and of its outcome."""
    row = (lambda *row: row) if spec.takes_mapping else of_row(lambda *row: row, spec)
    return lambda settle, value, outcome: settle(*row(*copied(arguments_of(value))), copied(outcome))


def with_own_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with copies of arguments that it could edit."""

    def call(*args: Any) -> Any:
        return function(*(args if _FIXED.issuperset(map(type, args)) else copied(args)))

    return call


def arguments_of(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple) else (value,)


# Classes whose values cannot be edited. A tuple cannot either, but what is in it can.
_FIXED = frozenset((type(None), bool, int, float, str, bytes, decimal.Decimal)) | frozenset(
    (datetime.date, datetime.datetime, datetime.time, datetime.timedelta)
)


# Not copy.deepcopy of all: it takes many times as long, and remembers what it has seen, which values of a column do not
# need.
def copied(value: Any) -> Any:
    """A copy of a value of a column: lists, dicts and objects of user-defined types are copied, all else is fixed."""
    cls = type(value)
    if cls is list or cls is tuple:
        if _FIXED.issuperset(map(type, value)):  # such as an embedding: no value needs a copy
            return value[:]
        return cls([copied(item) for item in value])
    if cls is dict:
        return {key: copied(item) for key, item in value.items()}
    if cls is bytearray or cls is set:
        return value.copy()
    udt = getattr(cls, "__UDT__", None)  # of a user-defined type of Spark's; deepcopy makes an array of an ML vector
    return value if udt is None else udt.fromInternal(udt.toInternal(value))
