"""Copies of arguments, so that an attempt that edits what it was given is not seen by the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ("copied", "with_own_arguments")


# Not copy.deepcopy: it takes many times as long, and remembers what it has seen, which values of a column do not need.
_EDITABLE = frozenset((list, tuple, dict, bytearray, set))  # a tuple itself cannot be edited, but what is in it can


def copied(value: Any) -> Any:
    """The value with lists, dicts and the like of its own; all else cannot be edited, or is no value of a column.

    >>> row = {"tags": ["a"]}
    >>> copied(row) == row, copied(row)["tags"] is row["tags"]
    (True, False)
    """
    cls = type(value)
    if cls is list or cls is tuple:
        if _EDITABLE.isdisjoint(map(type, value)):  # an embedding: nothing to look at one by one
            return value[:]
        return cls([copied(item) for item in value])
    if cls is dict:
        return {key: copied(item) for key, item in value.items()}
    return value.copy() if cls is bytearray or cls is set else value


def with_own_arguments(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called with copies of its arguments each time."""

    def call(*args: Any) -> Any:
        return function(*copied(args))

    return call
