"""One Spark task's work, whichever door it came through: batches of elements in, whatever the door writes out."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from ._arrow import may_be_large
from ._bridge import Bridge
from ._error_types import capture_type
from ._fit import fitter
from ._misfit import check_awaited
from ._options import ExtraFields, OnError, Options
from ._signature import FunctionSpec, Kind
from ._weight import weight

__all__ = ("OUTPUT_BYTES", "OUTPUT_LINGER", "Work", "pipe")

Out = TypeVar("Out")

OUTPUT_LINGER = 0.05  # seconds that a finished row waits for company
OUTPUT_BYTES = 64 * 2**20  # of results that are written together, whatever their number


@dataclasses.dataclass(frozen=True)
class Work:
    """What travels to the executors. `declared` is the Arrow type of one result, None if nobody said."""

    spec: FunctionSpec
    options: Options
    declared: Any

    @property
    def captures(self) -> bool:
        return self.options.on_error is OnError.CAPTURE

    @property
    def written(self) -> Any:
        """The Arrow type of what comes out for one result."""
        return capture_type(self.declared) if self.captures else self.declared

    @property
    def may_be_large(self) -> bool:
        """Whether what one row gives differs in size: by its type, by the number of results, or on the side."""
        spec = self.spec
        if spec.kind in (Kind.GENERATOR, Kind.ASYNC_FUNCTION) or spec.context_parameter is not None:
            return True
        return self.declared is None or may_be_large(self.declared)

    @property
    def weigh(self) -> Callable[[Any], int] | None:
        """How much a result weighs, where that matters."""
        return weight if self.may_be_large else None

    @property
    def threads(self) -> int:
        """How many calls may want a thread at the same time."""
        return self.options.capacity

    def finish(self, *, keep: bool = False) -> Callable[[Any], Any]:
        """What is done to each result: fit it to the declared type, wrap it if captured.

        Args:
            keep: only check a result that has all and only its fields.
        """
        name, extra = self.spec.name, self.options.extra_fields
        if self.declared is None:
            fit = _checked(partial(check_awaited, name))
        else:
            fit = fitter(name, self.declared, extra_fields=extra)
            if keep and extra is ExtraFields.ERROR:
                fit = _checked(fit)
        return _captured(fit) if self.captures else fit


def _checked(fit: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        fit(value)
        return value

    return check


def _captured(fit: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: {"value": fit(value), "error": None}


def pipe(batches: Iterator[Any], start: Callable[[Any], Bridge[Any, Out]], read: Callable[[Any], Any]) -> Iterator[Out]:
    """Run a task over Spark's batches; a partition without rows opens nothing.

    Args:
        start: makes the bridge, knowing the first batch.
        read: makes the elements of one batch.
    """
    first = next(batches, None)
    if first is not None:
        yield from start(first).pipe(map(read, itertools.chain((first,), batches)))
