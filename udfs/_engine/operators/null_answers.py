"""Rows with a NULL argument need no call where NULL is their result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..stored.elements import ROWS, AnsweredRows, Inlet


class NullAnswers:
    """An inlet that answers rows with a NULL argument: their result is NULL (`on_null_input="null"`)."""

    def __init__(self, inlet: Inlet, validate: Callable[[Any], Any] | None) -> None:
        self._inlet = inlet
        self._validate = validate

    @property
    def waiting(self) -> int:
        return self._inlet.waiting

    def feed(self, batch: Iterable[Any]) -> None:
        self._inlet.feed(self._answered(batch))

    def put(self, element: Any) -> None:
        for one in self._answered((element,)):
            self._inlet.put(one)

    def restore(self, elements: Iterable[Any]) -> None:
        self._inlet.restore([*self._answered(elements)])

    def end(self) -> None:
        self._inlet.end()

    def values(self) -> list[Any]:
        return self._inlet.values()

    def _answered(self, elements: Iterable[Any]) -> Iterator[Any]:
        nulls: list[Any] = []
        for element in elements:
            if type(element) in ROWS and _has_null(element[0]):
                nulls.append(element)
                continue
            if nulls:
                yield self._nulls(nulls)
                nulls = []
            yield element
        if nulls:
            yield self._nulls(nulls)

    def _nulls(self, rows: list[Any]) -> AnsweredRows:
        validate = self._validate
        return AnsweredRows(rows, [None if validate is None else validate(None) for _ in rows], "null_rows")


def _has_null(value: Any) -> bool:
    values = value.values() if type(value) is dict else value if type(value) is tuple else (value,)
    return any(one is None for one in values)
