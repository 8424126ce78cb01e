"""One Spark task's work, whichever door it came through: batches of elements in, whatever the door writes out."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from asyncudf.queues import StreamElement

from ._arrow import Codec, capture_type
from ._bridge import Bridge
from ._fit import fitter
from ._function import RuntimeContext
from ._operator import AsyncWaitOperator
from ._options import OnError, Options
from ._outputs import RecordWriterOutput
from ._signature import FunctionSpec

__all__ = ("Work", "bridge_to", "pipe")

Out = TypeVar("Out")
Write = Callable[[Sequence[Any], Sequence[Any], Sequence[int | None]], Out]

OUTPUT_LINGER = 0.1  # seconds that a finished row waits for company


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
    def threads(self) -> int:
        """Threads of the loop's pool. A timed-out call keeps its thread, so there are more than call slots."""
        return 2 * self.options.capacity

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


def bridge_to(
    work: Work,
    write: Write[Out],
    codec: Codec | None,
    *,
    rows: int,
    partition: int,
    attempt: int,
    keep_watermarks: bool = False,
) -> Bridge[Iterable[StreamElement], Out]:
    """Start the operator of a task on a loop of its own; `write` makes a batch for Spark of results and origins.

    `rows` is how many results are written together at most: as many as Spark's input batches have, so that
    `spark.sql.execution.arrow.maxRecordsPerBatch` bounds the memory of large results too.
    """
    spec, options = work.spec, work.options

    def build(loop: Any, want: Callable[[], None], emit: Callable[[Out], None]) -> AsyncWaitOperator:
        writer = RecordWriterOutput(
            lambda *results: emit(write(*results)), rows, OUTPUT_LINGER, loop, keep_watermarks=keep_watermarks
        )
        context = RuntimeContext(
            spec.name, loop.time, partition=partition, task_attempt_number=attempt, timeout=options.timeout
        )
        finish, rng = work.finish(), random.Random()
        return AsyncWaitOperator(
            spec, options, writer, context, loop=loop, rng=rng, finish=finish, codec=codec, want=want
        )

    return Bridge(build, work.threads)


def pipe(batches: Iterator[Any], start: Callable[[Any], Bridge[Any, Out]], read: Callable[[Any], Any]) -> Iterator[Out]:
    """Run a task over Spark's batches; a partition without rows opens nothing.

    Args:
        start: makes the bridge, knowing the first batch.
        read: makes the elements of one batch.
    """
    first = next(batches, None)
    if first is not None:
        yield from start(first).pipe(map(read, itertools.chain((first,), batches)))
