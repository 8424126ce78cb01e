"""One Spark task's work, whichever door it came through: batches of elements in, whatever the door writes out."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ._arrow import capture_type, may_be_large
from ._bridge import Bridge
from ._fit import fitter
from ._options import OnError, Options
from ._signature import FunctionSpec, Kind

__all__ = ("OUTPUT_BYTES", "OUTPUT_LINGER", "Work", "pipe")

Out = TypeVar("Out")

OUTPUT_LINGER = 0.1  # seconds that a finished row waits for company
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
    def threads(self) -> int:
        """How many calls may want a thread at the same time."""
        return self.options.capacity

    def finish(self, *, keep: bool = False) -> Callable[[Any], Any] | None:
        """What is done to each result: fit it to the declared type (with `keep`, only check), wrap it if captured."""
        fit = None if self.declared is None else fitter(self.spec.name, self.declared)
        if fit is not None and keep:
            fit = _checked(fit)
        return _captured(fit) if self.captures else fit


def _checked(fit: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        fit(value)
        return value

    return check


def _captured(fit: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    return lambda value: {"value": value if fit is None else fit(value), "error": None}


def pipe(batches: Iterator[Any], start: Callable[[Any], Bridge[Any, Out]], read: Callable[[Any], Any]) -> Iterator[Out]:
    """Run a task over Spark's batches; a partition without rows opens nothing.

    Args:
        start: makes the bridge, knowing the first batch.
        read: makes the elements of one batch.
    """
    first = next(batches, None)
    if first is not None:
        yield from start(first).pipe(map(read, itertools.chain((first,), batches)))
