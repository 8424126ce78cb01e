"""Texts of users' values and exceptions for messages: short, printable, without secrets, never an error themselves."""

from __future__ import annotations

import reprlib
from typing import Any

from .urls import without_secrets

__all__ = ("one_line", "printable", "safe_repr", "safe_str", "shortened", "type_name")


LENGTH = 80


class _Short(reprlib.Repr):
    """Shortens inside of containers too; a value that cannot be printed is shown by its class."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = LENGTH
        self.maxdict = self.maxtuple = self.maxlist = 8

    def repr1(self, x: Any, level: int) -> str:
        try:
            return super().repr1(x, level)
        except BaseException:  # whatever it raises, somebody else's row is not to fail for it
            return f"<{type_name(x)} that cannot be printed>"

    def repr_str(self, x: str, level: int) -> str:
        return super().repr_str(without_secrets(x), level)

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to write a number of many digits in full.
        return super().repr_int(x, level) if x.bit_length() < 8 * LENGTH else f"<int of {x.bit_length()} bits>"

    def repr_instance(self, x: Any, level: int) -> str:
        return shortened(repr(x))


_shortener = _Short()


def safe_repr(value: Any) -> str:
    """A shortened `repr`."""
    return printable(_shortener.repr(value))


def shortened(text: str) -> str:
    """A text of at most `LENGTH` characters, without what is in its middle."""
    text = printable(text)
    half = (LENGTH - 3) // 2
    return text if len(text) <= LENGTH else f"{text[:half]}...{text[-half:]}"


def one_line(name: object) -> str:
    """A name that may be anything, short and in plain characters."""
    return " ".join("".join(one if one.isprintable() else " " for one in shortened(str(name))).split())


def safe_str(error: BaseException) -> str:
    """`str(error)`."""
    try:
        return printable(str(error))
    except BaseException as unprintable:
        return f"<unprintable: {type_name(unprintable)}>"


def type_name(value: Any) -> str:
    """The name of a value's class."""
    # Asked of `type` itself: a metaclass may have a `__name__` of its own, which fails.
    return str(type.__dict__["__name__"].__get__(type(value)))


def printable(text: str) -> str:
    """The text without the secrets of its URLs, as a plain `str` that can be encoded."""
    # Half an emoji, as JSON allows it, cannot be encoded: Spark's worker would fail to send the message, and Spark
    # would wait for it for ever.
    return without_secrets(str.encode(text, "utf-8", "backslashreplace").decode("utf-8"))
