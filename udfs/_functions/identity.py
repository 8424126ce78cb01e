"""What tells the results of one function from those of others, in a store."""

from __future__ import annotations

import functools
import inspect
import logging
from typing import Any

from .._errors.exceptions import OptionError

__all__ = ("check_key_name", "key_name")


logger = logging.getLogger("asyncudf")


def key_name(function: Any) -> str:
    """The name of a function with that of its module; of an object that is one that of its class."""
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def check_key_name(name: str, function: Any) -> None:
    """Look whether the name tells a function from others; where it may not, there is a warning.

    Raises:
        OptionError: it does not.
    """
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
    if bound := _bound(function):
        logger.warning(
            "the store keeps the results of %s by its name and its arguments, and it uses %s besides: where these "
            "differ it takes other results for its own; give it a version='...' that tells them",
            name,
            bound,
        )


def _bound(function: Any) -> str:
    """What a function has that its name does not tell: its object, or plain values of variables around it."""
    owner = getattr(function, "__self__", None)
    if owner is not None and not inspect.ismodule(owner) and not inspect.isclass(owner):
        return "the object that it is a method of"
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = getattr(function, "__closure__", None) or ()
    plain = [name for name, cell in zip(names, cells, strict=False) if type(_content(cell)) in (bool, int, float, str)]
    return f"the variable{'s' * (len(plain) > 1)} {', '.join(plain)}" if plain else ""


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None
