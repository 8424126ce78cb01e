"""An exception's causes and its traceback, whatever a user's exception class makes of them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import traceback
from collections.abc import Callable, Iterator
from types import FrameType, ModuleType, TracebackType
from typing import Any

from .bulk import is_of_bulk
from .exceptions import AsyncUDFError
from .safe import presentable, type_name

# Read from the base classes: a user's class may have an attribute of that name that raises, or is no exception.
_cause: Any = vars(BaseException)["__cause__"].__get__
_context: Any = vars(BaseException)["__context__"].__get__
_arguments: Any = vars(BaseException)["args"].__get__
_traceback: Any = vars(BaseException)["__traceback__"].__get__
_inside: Any = vars(BaseExceptionGroup)["exceptions"].__get__


def related(
    error: BaseException, *, context: Callable[[BaseException], BaseException | None] | None = None
) -> Iterator[BaseException]:
    """An exception, those that it was raised from or wraps, and those in groups, each once.

    `context` gives what was being handled when an exception was raised, where that counts too.
    """
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()  # causes may form a circle, or a chain longer than Python's stack
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            arguments = _arguments(one)  # as `wrapped_in` does, which is a call for each
            if len(arguments) == 1 and issubclass(type(arguments[0]), BaseException):
                waiting.append(arguments[0])
            waiting += [*reversed(_members(one)), *([context(one)] if context else ()), _cause(one)]


def replaced(error: BaseException) -> Iterator[BaseException]:
    """An exception, those that it was raised from or in place of, and those in groups, each once.

    Of those that were being handled when it was raised only one counts whose handler has raised it itself. An exception
    from further down belongs to a second try, for example with a new client, and stands for itself.
    """
    return related(error, context=_handled_by_its_raiser)


def _handled_by_its_raiser(error: BaseException) -> BaseException | None:
    """The exception that was being handled by the very code that raised this one."""
    handled: BaseException | None = _context(error)
    last = frames_of(error)[-1:]
    is_by_raiser = handled is not None and any(frame is last[0] for frame in frames_of(handled) if last)
    return handled if is_by_raiser else None


def is_raised_alone(error: BaseException) -> bool:
    """Whether it is no group, has no cause, wraps no other, and was raised while no other exception was handled."""
    if _cause(error) is not None or _context(error) is not None or issubclass(type(error), BaseExceptionGroup):
        return False
    return wrapped_in(error) is None


def wrapped_in(error: BaseException) -> BaseException | None:
    """The exception that is the only argument of another one: some clients name so what they wrap."""
    arguments = _arguments(error)
    return arguments[0] if len(arguments) == 1 and issubclass(type(arguments[0]), BaseException) else None


def frames_of(error: BaseException) -> list[FrameType]:
    """The last one has raised it."""
    trace: TracebackType | None = _traceback(error)
    frames = []
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    return frames


def forget_frames(ended_with: object) -> None:
    """Remove the tracebacks of an exception and of all behind it: their frames keep what was called alive."""
    if issubclass(type(ended_with), BaseException):
        for one in related(ended_with, context=_context):  # type: ignore[arg-type]
            BaseException.with_traceback(one, None)  # a frozen exception refuses an assignment


def leaves(group: BaseException) -> Iterator[BaseException]:
    """The exceptions in a group and in its groups, in their order."""
    waiting = [group]
    while waiting:
        one = waiting.pop()
        if inside := _members(one):
            waiting += reversed(inside)
        else:
            yield one


def is_group(error: BaseException) -> bool:
    return issubclass(type(error), BaseExceptionGroup)


def matches(error: BaseException, kinds: type[BaseException] | tuple[type[BaseException], ...]) -> bool:
    """Whether an exception is of one of these types; also a group in which everything is, in its groups too."""
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if not issubclass(type(one), kinds):
            if not is_group(one):
                return False
            waiting += _members(one)
    return True


def _members(error: BaseException) -> tuple[BaseException, ...]:
    return _inside(error) if is_group(error) else ()


OWN = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")  # also in a process that got this module by value


def trace_of(error: BaseException, *, full: bool = False, redacted: bool = False) -> str:
    """The tracebacks of an exception and of its causes; empty if they say no more than its message.

    `full`: with the frames of this library; `redacted`: without results that do not fit and responses of services.
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
        return presentable("".join(lines)) if says_more else ""
    except BaseException as unprintable:
        return f"<a traceback that cannot be printed: {type_name(unprintable)}>\n"


def _without_results(error: BaseException) -> None:
    """Remove what may repeat an input from the exceptions themselves: a traceback prints their messages again."""
    for one in related(error, context=_context):
        if issubclass(type(one), AsyncUDFError) and one.without_value:  # type: ignore[attr-defined]
            one.args = (one.without_value,)  # type: ignore[attr-defined]
        elif is_of_bulk(one):  # the text of OpenSearch's has the documents
            one.args = one.args[:1]


def _users(stack: traceback.StackSummary) -> traceback.StackSummary | None:
    """The frames of the user's code and of the libraries that it calls; None if there are none."""
    machinery = (OWN, _folder(asyncio), _folder(concurrent.futures), str(contextlib.__file__), "uvloop/")
    return traceback.StackSummary.from_list([f for f in stack if not f.filename.startswith(machinery)]) or None


def _folder(package: ModuleType) -> str:
    return os.path.join(os.path.dirname(str(package.__file__)), "")


def _related(trace: Any) -> Iterator[Any]:
    waiting = [trace]
    while waiting:
        one = waiting.pop()
        if one is not None:
            yield one
            waiting += [one.__cause__, one.__context__, *(one.exceptions or ())]
