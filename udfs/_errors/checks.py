"""Checks of options: each takes a value and its option's name, and returns what is kept or raises OptionError."""

from __future__ import annotations

import asyncio
import enum
import functools
import inspect
import math
import numbers
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any, TypeVar

from .exceptions import FatalError, OptionError
from .records import Redact, only_types
from .safe import SecretUrl, safe_repr, type_name

Seconds = float | timedelta
T = TypeVar("T")


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


def positive_int(value: int, name: str, most: float = math.inf) -> int:
    """A whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int):  # capacity=True is a mistake, though Python calls it 1
        raise OptionError(f"{name} must be a whole number, not {safe_repr(value)}")
    if value < 1:
        raise OptionError(f"{name} must be at least 1, not {value}")
    if value > most:
        raise OptionError(f"{name} must be at most {most:,}, not {safe_repr(value)}")
    return value


def is_number(value: Any) -> bool:
    """Whether a value is a finite number and no bool; numbers of numpy are, and money is often a Decimal."""
    try:
        is_one = isinstance(value, (int, float, Decimal, numbers.Real)) and not isinstance(value, bool)
        return is_one and math.isfinite(value)
    except (OverflowError, ValueError):  # an int with hundreds of digits, a Decimal that signals
        return False


LARGEST = 10**15  # an amount: beyond, sums of floats lose what a call costs
LONGEST = 36_525 * 86_400.0  # seconds of a period: a hundred years


def amount(value: Any, name: str) -> float:
    """A number of more than 0."""
    if not (is_number(value) and value > 0):
        raise OptionError(f"{name} must be a number of more than 0, not {safe_repr(value)}")
    if value > LARGEST:
        raise OptionError(f"{name} must be at most {LARGEST:,}, not {safe_repr(value)}")
    return float(value)


def period(value: Seconds, name: str) -> float:
    """A time span in seconds in which something is allowed anew."""
    if (length := seconds(value, name)) > LONGEST:
        raise OptionError(f"{name} must be at most a hundred years ({LONGEST:,.0f} seconds), not {safe_repr(value)}")
    return length


def share(value: Any, name: str) -> float:
    """A share: more than 0, at most 1."""
    if not (is_number(value) and 0 < value <= 1):
        raise OptionError(f"{name} must be a share, more than 0 and at most 1, not {safe_repr(value)}")
    return float(value)


# Before Python 3.12 inspect does not recognize functions marked as coroutine functions, such as AsyncMock.
is_async_def = inspect.iscoroutinefunction if sys.version_info >= (3, 12) else asyncio.iscoroutinefunction


def is_plain(function: Any) -> bool:
    """Whether a call of the function returns its answer: it is neither an `async def` nor a generator function."""
    while isinstance(function, functools.partial):
        function = function.func
    kinds = (is_async_def, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    forms = (function, type(function).__call__) if callable(function) else ()  # the __call__ of an object counts too
    return bool(forms) and not any(is_kind(form) for is_kind in kinds for form in forms)


def several(value: Any, name: str, kind: type[T], example: str) -> tuple[T, ...]:
    """None, one object of a class or several of them, as a tuple."""
    given = () if value is None else (value,) if isinstance(value, kind) else value
    if not isinstance(given, (list, tuple)) or not all(isinstance(one, kind) for one in given):
        raise OptionError(f"{name} must be {example}, or a list of them, not {safe_repr(value)}")
    return tuple(given)


def twice(names: Sequence[T]) -> T | None:
    """The first name that is there more than once."""
    return next((name for name in names if names.count(name) > 1), None)


def check_cost(value: Any, name: str, example: str) -> None:
    """Check what a call may cost: None, a number of more than 0, or a plain function of the call's arguments."""
    if value is None or is_plain(value):
        return
    if callable(value) or not is_number(value):
        raise OptionError(
            f"{name} must be a number or a plain function of the call's arguments, such as {example}, "
            f"not {safe_repr(value)}"
        )
    amount(value, name)


def check_settle(value: Any, example: str) -> None:
    """Check what tells what a call did cost: None, or a plain function of the call's arguments and its result."""
    if value is not None and not is_plain(value):
        raise OptionError(
            "settle must be a plain function of the call's arguments and its result, such as lambda text, answer: "
            f"{example}, not {safe_repr(value)}"
        )


def plain_function(value: Any, name: str) -> Callable[..., Any]:
    """A function of a row's arguments that returns its answer."""
    if not is_plain(value):
        raise OptionError(f"{name} must be a plain function of a row's arguments, not {safe_repr(value)}")
    return value  # type: ignore[no-any-return]


def discard(awaitable: Any) -> None:
    """Close a coroutine that is not awaited, or Python warns of it during some later row."""
    if inspect.iscoroutine(awaitable):
        awaitable.close()


def given_number(value: Any, what: str) -> float:
    """A number of 0 or more that a function of the user's has given; raises FatalError if it is none."""
    if is_number(value) and value >= 0:
        return float(value)
    discard(value)
    before = f"{what} must give a number of 0 or more, not"
    error = FatalError(f"{before} {safe_repr(value)}")
    error.without_value = f"{before} this {type_name(value)}"  # the value may be the input, or made of it
    raise error


def redaction(value: Any, name: str) -> Redact | None:
    """What `redact=` accepts: a plain function, True for the types alone, or False or None to show inputs."""
    if value is None or value is False:
        return None
    if value is True:
        return only_types
    if not is_plain(value):
        raise OptionError(f"{name} must be True or a plain function of the input, not {safe_repr(value)}")
    return value  # type: ignore[no-any-return]


def text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise OptionError(f"{name} must be a text of at least one character, not {safe_repr(value)}")
    return value


def server_url(value: Any, name: str) -> SecretUrl:
    """The URL of a server, with its password; the kind of server is checked when it is used."""
    return SecretUrl(text(value, name))


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """The message for an unknown name, with the nearest known one."""
    known = list(known)
    from difflib import get_close_matches  # only a message needs it

    near = get_close_matches(name, known, n=1)
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
    def check(value: Any, name: str) -> Any:
        if isinstance(value, type) or not isinstance(value, kind):
            raise OptionError(f"{name} must be a {kind.__name__}(...), not {safe_repr(value)}")
        return value

    return check


def flag(value: Any, name: str) -> bool:
    """True or False, but not 1 or 0."""
    if not isinstance(value, bool):
        raise OptionError(f"{name} must be True or False, not {safe_repr(value)}")
    return value


def anything(value: Any, name: str) -> Any:
    """Any value; it is checked elsewhere."""
    return value
