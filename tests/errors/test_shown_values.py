"""Any value and any exception can be shown: short, and never an error itself."""

from __future__ import annotations

from typing import Any

import pytest

from asyncudf._errors.safe import safe_repr, safe_str
from asyncudf._errors.traces import trace_of
from asyncudf.testing import run_rows
from tests.kit.errors import Raises


class Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")


class OfNameless(metaclass=Nameless):
    def __repr__(self) -> str:
        raise RuntimeError("no text")


class NoList(list):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        raise SystemExit

    def __repr__(self) -> str:  # since Python 3.14 reprlib looks at the module of a class called list, too
        raise SystemExit


NoList.__name__ = "list"


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


class Deep:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"Deep({self.inner!r})"


def deep(depth: int) -> Any:
    inner: Any = None
    for _ in range(depth):
        inner = Deep(inner)
    return inner


SHOWN: dict[str, tuple[Any, str]] = {
    "a long number": (10**5000, "<int of 16610 bits>"),
    "a long number inside": ([1, {"n": -(10**5000)}], "[1, {'n': <int of 16610 bits>}]"),
    "a number": (10**30, "1" + "0" * 30),
    "repr raises": (Raises(RuntimeError()), "<Raises that cannot be printed>"),
    "repr exits": ((1, Raises(SystemExit())), "(1, <Raises that cannot be printed>)"),
    "repr is interrupted": (Raises(KeyboardInterrupt()), "<Raises that cannot be printed>"),
    "the class has no name": (OfNameless(), "<OfNameless that cannot be printed>"),
    "a list that is none": (NoList([1]), "<list that cannot be printed>"),
    "deep lists": (nested(100_000), "[[[[[[[...]]]]]]]"),
    "deep objects": (deep(100_000), "<Deep that cannot be printed>"),
    "half an emoji": ("\ud83d", "'\\ud83d'"),
    "a URL": ("https://me:secret@example.com?key=secret", "'https://***@example.com?***'"),
    "a URL in an object": (Deep("https://me:secret@example.com"), "Deep('https://***@example.com')"),
    "a URL that would be cut in its password": (
        {"u": f"https://me:{'secret' * 30}@example.com"},
        "{'u': 'https://***@example.com'}",
    ),
    "a URL that would be cut in its token": (
        [f"https://{'token' * 30}@example.com/{'p' * 40}"],
        f"['https://***@example.com/{'p' * 40}']",
    ),
}


@pytest.mark.parametrize("case", SHOWN)
def test_any_value_can_be_shown(case: str) -> None:
    value, text = SHOWN[case]
    assert safe_repr(value) == text


def test_a_long_value_is_shortened() -> None:
    assert len(safe_repr("x" * 10**6)) < 100
    assert len(safe_repr(Deep("x" * 10**6))) < 100
    assert len(safe_repr(b"x" * 10**6)) < 100


class UnprintableError(Exception):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __str__(self) -> str:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError(), SystemExit(), KeyboardInterrupt(), GeneratorExit()])
def test_an_exception_whose_text_raises_anything_is_told_all_the_same(error: BaseException) -> None:
    name = type(error).__name__
    assert safe_str(UnprintableError(error)) == f"<unprintable: {name}>"

    async def fails(x: int) -> int:
        raise UnprintableError(error)

    got = run_rows(fails, [1], on_error="capture")
    assert (got[0]["error"]["type"], got[0]["error"]["message"]) == ("UnprintableError", f"<unprintable: {name}>")


def test_a_text_that_is_no_plain_string_is_made_one() -> None:
    class Text(str):
        def encode(self, *arguments: Any) -> bytes:
            raise RuntimeError("no bytes")

    class OddError(Exception):
        def __str__(self) -> str:
            return Text("odd")

    assert type(safe_str(OddError())) is str
    assert safe_str(OddError()) == "odd"


class NoTraceError(Exception):
    @property
    def __traceback__(self) -> Any:  # type: ignore[override]
        raise KeyboardInterrupt


def test_a_traceback_that_cannot_be_printed_is_told_as_such() -> None:
    assert trace_of(NoTraceError()) == "<a traceback that cannot be printed: KeyboardInterrupt>\n"
