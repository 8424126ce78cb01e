"""The traceback of a user's exception, without the frames that say nothing to its user."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import traceback
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from .._text.safe import printable, type_name
from .causes import related
from .exceptions import AsyncUDFError

__all__ = ("trace_of",)


_OWN = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")  # also where this module has travelled by value


def trace_of(error: BaseException, *, full: bool = False, redacted: bool = False) -> str:
    """The tracebacks of an exception and of those that caused it; nothing if they say no more than its message.

    Args:
        full: with the frames of this library and of what it runs on.
        redacted: results that do not fit, and what services answered, are left out, also of the exceptions themselves.
    """
    try:
        if redacted:
            _without_results(error)
        trace = traceback.TracebackException.from_exception(error)
        if not full:
            for one in _related(trace):
                one.stack = _users(one.stack)
        lines = list(trace.format())
        says_more = trace.stack is not None or len(lines) > len(list(trace.format_exception_only()))
        return printable("".join(lines)) if says_more else ""
    except BaseException as unprintable:
        return f"<a traceback that cannot be printed: {type_name(unprintable)}>\n"


def _without_results(error: BaseException) -> None:
    """Leave what may repeat an input out of the exceptions themselves: a traceback prints them once more."""
    for one in related(error, contexts=True):
        if issubclass(type(one), AsyncUDFError) and one.without_value:  # type: ignore[attr-defined]
            one.args = (one.without_value,)  # type: ignore[attr-defined]


def _users(stack: traceback.StackSummary) -> traceback.StackSummary | None:
    """The frames of the user's code and of the libraries that it calls; None if there are none."""
    machinery = (_OWN, _folder(asyncio), _folder(concurrent.futures), str(contextlib.__file__), "uvloop/")
    return traceback.StackSummary.from_list([f for f in stack if not f.filename.startswith(machinery)]) or None


def _folder(package: ModuleType) -> str:
    return os.path.join(os.path.dirname(str(package.__file__)), "")


def _related(trace: Any) -> Iterator[Any]:
    """A traceback and those of its causes, of its context and of its group."""
    waiting = [trace]
    while waiting:
        one = waiting.pop()
        if one is not None:
            yield one
            waiting += [one.__cause__, one.__context__, *(one.exceptions or ())]
