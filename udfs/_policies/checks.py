"""Checks of options: each takes a value and the name of its option, and says what is wrong with it."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import enum
import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any

from .._errors.exceptions import OptionError
from .._errors.records import Redact, only_types
from .._stores.base import ResultStore, check_attributes
from .._text.safe import safe_repr
from .._text.urls import SecretUrl
from .numbers import is_number

__all__ = (
    "Seconds",
    "anything",
    "choice",
    "discard",
    "flag",
    "instance",
    "is_async_def",
    "is_plain",
    "optional",
    "positive_int",
    "redaction",
    "result_store",
    "seconds",
    "server_url",
    "span",
    "text",
    "traced",
    "unknown_name",
)


Seconds = float | timedelta


def seconds(value: Seconds, name: str) -> float:
    """A time span in seconds, more than zero."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise OptionError(f"{name} must be a number of seconds or a timedelta, not {safe_repr(value)}")
    if not (is_number(value) and value > 0):
        raise OptionError(f"{name} must be more than 0 seconds, not {safe_repr(value)}; use None for no limit")
    return float(value)


def span(value: Seconds, name: str) -> float:
    """A time span in seconds, 0 or more."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if not (is_number(value) and value >= 0):
        raise OptionError(f"{name} must be seconds (0 or more) or a timedelta, not {safe_repr(value)}")
    return float(value)


def positive_int(value: int, name: str) -> int:
    """A whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int):  # capacity=True is a mistake, though Python calls it 1
        raise OptionError(f"{name} must be a whole number, not {safe_repr(value)}")
    if value < 1:
        raise OptionError(f"{name} must be at least 1, not {value}")
    return value


# Before Python 3.12 inspect does not know what is marked as one, as mocks of an `async def` are.
is_async_def = inspect.iscoroutinefunction if sys.version_info >= (3, 12) else asyncio.iscoroutinefunction


def is_plain(function: Any) -> bool:
    """Whether it gives its answer when it is called: it is no `async def` and no generator, in whatever form."""
    while isinstance(function, functools.partial):
        function = function.func
    kinds = (is_async_def, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    forms = (function, type(function).__call__) if callable(function) else ()  # an object may be one by its __call__
    return bool(forms) and not any(is_kind(form) for is_kind in kinds for form in forms)


def discard(awaitable: Any) -> None:
    """Nobody is going to await it: Python shall not warn of that, in whatever row comes next."""
    if inspect.iscoroutine(awaitable):
        awaitable.close()


def redaction(value: Any, name: str) -> Redact | None:
    """What `redact=` accepts: a plain function, True for the types alone, or False or None to show inputs."""
    if value is None or value is False:
        return None
    if value is True:
        return only_types
    if not is_plain(value):
        raise OptionError(f"{name} must be True or a plain function of the input, not {safe_repr(value)}")
    return value  # type: ignore[no-any-return]


def result_store(value: Any, name: str) -> ResultStore:
    """A store of results."""
    if not isinstance(value, ResultStore):
        raise OptionError(f"{name} must be a ResultStore, such as ResultStore.disk('/data'), not {safe_repr(value)}")
    check_attributes(value)
    return value


def text(value: Any, name: str) -> str:
    """A text of at least one character."""
    if not isinstance(value, str) or not value:
        raise OptionError(f"{name} must be a text of at least one character, not {safe_repr(value)}")
    return value


def server_url(value: Any, name: str) -> SecretUrl:
    """The URL of a server, with its password; what kind of server is looked at when it is used."""
    return SecretUrl(text(value, name))


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """The message for a name that does not exist, with the nearest that does."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
    return f"unknown {what} {name!r}; {hint}"


def optional(check: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    """The check with None allowed."""
    return lambda value, name: None if value is None else check(value, name)


def choice(members: type[enum.Enum]) -> Callable[[Any, str], enum.Enum]:
    """One of an enum's members, or its value in any case."""

    def check(value: Any, name: str) -> enum.Enum:
        wanted = value.lower() if isinstance(value, str) else value
        for member in members:
            if wanted in (member, member.value):
                return member
        raise OptionError(f"{name} must be one of {', '.join(repr(m.value) for m in members)}, not {safe_repr(value)}")

    return check


def instance(kind: type) -> Callable[[Any, str], Any]:
    """An object of one class."""

    def check(value: Any, name: str) -> Any:
        if isinstance(value, type) or not isinstance(value, kind):
            raise OptionError(f"{name} must be a {kind.__name__}(...), not {safe_repr(value)}")
        return value

    return check


def flag(value: Any, name: str) -> bool:
    """True or False, and nothing that only counts as one."""
    if not isinstance(value, bool):
        raise OptionError(f"{name} must be True or False, not {safe_repr(value)}")
    return value


def traced(value: Any, name: str) -> bool:
    """True or False, and True only where OpenTelemetry is installed."""
    if not flag(value, name):
        return False
    with contextlib.suppress(ImportError):  # of what is above it
        if importlib.util.find_spec("opentelemetry.trace") is not None:
            return True
    raise OptionError(f'{name}=True needs OpenTelemetry: pip install "asyncudf[otel]", here and on every executor')


def anything(value: Any, name: str) -> Any:
    """Any value: what is checked elsewhere."""
    return value
