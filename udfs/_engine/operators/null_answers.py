"""Rows with a NULL argument need no call where NULL is their result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from types import NoneType
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
        for has_null, run in groupby(elements, _has_null):
            if has_null:
                yield self._nulls([*run])
            else:
                yield from run

    def _nulls(self, rows: list[Any]) -> AnsweredRows:
        validate = self._validate
        results = [None] * len(rows) if validate is None else [validate(None) for _ in rows]
        return AnsweredRows(rows, results, "null_rows")


def _has_null(element: Any) -> bool:
    if type(element) not in ROWS:
        return False
    value = element[0]
    if type(value) is tuple:  # of classes, as the values may compare as they like
        return NoneType in map(type, value)
    return NoneType in map(type, value.values()) if type(value) is dict else value is None
