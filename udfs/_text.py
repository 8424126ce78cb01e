"""Texts of users' values and exceptions for messages: short, printable, and never an error themselves."""

from __future__ import annotations

import reprlib
import traceback
from typing import Any

__all__ = ("short", "text_of", "trace_of")


class _Short(reprlib.Repr):
    """Shortens inside of containers too; a value that cannot be printed is shown by its class."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = 80
        self.maxdict = self.maxtuple = self.maxlist = 8

    def repr_instance(self, x: Any, level: int) -> str:
        try:
            return super().repr_instance(x, level)
        except BaseException:
            return f"<{type(x).__name__} that cannot be printed>"


_shortener = _Short()


def short(value: Any) -> str:
    """A shortened `repr`."""
    return _unicode(_shortener.repr(value))


def text_of(error: BaseException) -> str:
    """`str(error)`."""
    try:
        return _unicode(str(error))
    except Exception as unprintable:
        return f"<unprintable: {type(unprintable).__name__}>"


def trace_of(error: BaseException) -> str:
    """The traceback of an exception and of those that caused it."""
    return _unicode("".join(traceback.format_exception(error)))


def _unicode(text: str) -> str:
    # Half an emoji, as JSON allows it, cannot be encoded: Spark's worker would fail to send the message, and Spark
    # would wait for it for ever.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
