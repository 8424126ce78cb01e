"""Checks of what a store is made with."""

from __future__ import annotations

import importlib.util
import inspect
import math
import os
import stat
from datetime import timedelta
from typing import Any

from .._errors.exceptions import OptionError
from .._text.safe import safe_repr

__all__ = ("Seconds", "check_attributes", "folder", "need", "plain_function", "size", "span")


Seconds = float | timedelta


def need(what: str, extra: str, *libraries: str) -> None:
    """See that libraries are installed, without importing them."""
    missing = [name for name in libraries if importlib.util.find_spec(name) is None]
    if missing:
        raise OptionError(f'{what} needs {" and ".join(missing)}: pip install "asyncudf[{extra}]"')


def span(value: Seconds | None, name: str) -> float | None:
    """A time span in seconds, more than zero, or none."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if seconds is None:
        return None
    if not _is_span(seconds):
        raise OptionError(f"{name} must be more than 0 seconds, or a timedelta, not {safe_repr(value)}; None: no limit")
    return float(seconds)


def _is_span(seconds: object) -> bool:
    return not isinstance(seconds, bool) and isinstance(seconds, (int, float)) and 0 < seconds < math.inf


def plain_function(key: Any) -> None:
    """What stands for the arguments in a key: nothing, or a function that is not `async`."""
    if key is None:
        return
    if not callable(key) or any(map(_is_async, (key, type(key).__call__))):
        raise OptionError(f"key must be a plain function of the arguments, not {safe_repr(key)}; None: all of them")


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def check_attributes(store: Any) -> None:
    """See that a store, also one of a user's class, has a `ttl`, an `error_ttl` and a `key` that can work.

    Raises:
        OptionError: one cannot. The message names it, its value, and what it must be.
    """
    for name in ("ttl", "error_ttl"):
        value = getattr(store, name)
        if isinstance(value, timedelta):  # what the library's own take, and turn into a number
            seconds = value.total_seconds()
            raise OptionError(f"{name} of a store must be a number of seconds: {name} = {seconds!r}, not a timedelta")
        if value is not None and not _is_span(value):
            raise OptionError(f"{name} of a store must be more than 0 seconds, or None, not {safe_repr(value)}")
    plain_function(store.key)


def folder(path: Any) -> str:
    """The absolute path of a folder."""
    try:
        text = os.fspath(path)
    except TypeError:
        text = None
    if not isinstance(text, str) or not text or "\0" in text:
        raise OptionError(f"path must be that of a folder, a text, not {safe_repr(path)}")
    found = os.path.abspath(os.path.expanduser(text))
    if os.path.lexists(found) and not os.path.isdir(found):
        raise OptionError(f"path must be that of a folder, but {found} is none")
    # Of another user's the tasks say so: theirs may be another one. Without it they would call for each row, and warn.
    if os.path.isdir(found) and hasattr(os, "geteuid"):
        status = os.stat(found)
        if status.st_uid == os.geteuid() and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OptionError(f"path must be that of a folder which others cannot write to; chmod go-w {found}")
    return found


def size(max_bytes: int, smallest: int, largest: int) -> int:
    """A number of bytes."""
    if isinstance(max_bytes, bool) or not isinstance(max_bytes, int) or not smallest <= max_bytes <= largest:
        raise OptionError(
            f"max_bytes must be a whole number of at least {smallest} and at most {largest}, not {safe_repr(max_bytes)}"
        )
    return max_bytes
