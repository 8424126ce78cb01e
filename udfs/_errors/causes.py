"""From an exception to those that it came from and those that it holds, whatever a user's class makes of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ("leaves", "related")


# Asked of the base classes themselves: a user's class may have an attribute of that name, which fails or is none.
_cause: Any = vars(BaseException)["__cause__"].__get__
_context: Any = vars(BaseException)["__context__"].__get__
_inside: Any = vars(BaseExceptionGroup)["exceptions"].__get__


def related(error: BaseException, *, contexts: bool = False) -> Iterator[BaseException]:
    """An exception, those that it was raised from, and those in groups; each once.

    Args:
        contexts: also those that were being handled when it was raised.
    """
    waiting, seen = [error], set()  # causes may go round in a circle, and deeper than Python's stack
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [*reversed(_members(one)), *([_context(one)] if contexts else ()), _cause(one)]


def leaves(group: BaseException) -> Iterator[BaseException]:
    """The exceptions in a group and in its groups, in their order."""
    waiting = [group]
    while waiting:
        one = waiting.pop()
        if inside := _members(one):
            waiting += reversed(inside)
        else:
            yield one


def _members(error: BaseException) -> tuple[BaseException, ...]:
    return _inside(error) if issubclass(type(error), BaseExceptionGroup) else ()
