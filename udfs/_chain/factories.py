"""What the operators of a chain do: small plans that travel to the executors and make their operator there."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import datetime
import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from asyncudf.queues import StreamRecord

from .._arrow.layout import Layout, Part, View
from .._arrow.validation import fitter
from .._arrow.vectors import Codec
from .._errors.records import Redact
from .._functions.context import RuntimeContext
from .._functions.process_function import ProcessContext, ProcessFunction
from .._functions.side_outputs import DEAD_LETTERS, LATENCIES, OutputTag, SideTypes
from .._functions.signature import Kind
from .._operators.async_wait import AsyncWaitOperator
from .._operators.outputs import Output, TimestampedCollector
from .._operators.synchronous import FilterStep, ProcessStep
from .._operators.watermarks import UnionStep, WatermarkColumnStep, WatermarkStep
from .._policies.options import EventLoop, OnError
from .._policies.watermarks import WatermarkGenerator, WatermarkStrategy
from .function_plan import Work

__all__ = (
    "AssignSpec",
    "FilterSpec",
    "ProcessSpec",
    "Site",
    "Spec",
    "UnionSpec",
    "WaitSpec",
    "WatermarkColumnSpec",
    "wait_operator",
)


@dataclasses.dataclass
class Site:
    """Where a chain runs: what its operators are given by their task."""

    loop: asyncio.AbstractEventLoop
    rng: random.Random
    partition: int = 0
    attempt: int = 0
    side_types: SideTypes = lambda tag: None
    failed: Callable[[BaseException], None] | None = None


class Spec(ABC):
    """One operator."""

    name: str
    threads = 0  # that its calls may need
    loop = EventLoop.AUTO
    mixes_sides = False  # whether side records come among its results

    @property
    def instance(self) -> Any:
        """The object with a life cycle that the user has given; the spec itself if there is none."""
        return self

    def with_own_instance(self) -> Spec:
        """The same with a copy of that object."""
        return self

    @abstractmethod
    def view(self, before: Layout) -> View:
        """What the operator sees of the rows that come in."""

    @abstractmethod
    def build(self, site: Site, output: Output, before: Layout, want: Callable[[], None]) -> Any:
        """The operator itself."""

    def may_write(self, tag: OutputTag) -> bool:
        """Whether it may write to a side output."""
        return False

    def may_edit(self, before: Layout) -> bool:
        """Whether the user's code could change a value in place that others see as well."""
        return False


@dataclasses.dataclass(frozen=True)
class WaitSpec(Spec):
    """`ordered_wait` and `unordered_wait`."""

    work: Work
    positions: tuple[int, ...]  # of the columns that the function reads
    names: tuple[str, ...]

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.work.spec.name

    @property
    def threads(self) -> int:  # type: ignore[override]
        return self.work.threads

    def view(self, before: Layout) -> View:
        takes_mapping = self.work.spec.kind is Kind.ASYNC_FUNCTION
        return before.mapping(self.positions) if takes_mapping else before.arguments(self.positions)

    @property
    def loop(self) -> EventLoop:  # type: ignore[override]
        return self.work.options.loop

    @property
    def instance(self) -> Any:
        return self.work.spec.function if self.work.spec.kind is Kind.ASYNC_FUNCTION else self

    def with_own_instance(self) -> WaitSpec:
        spec = dataclasses.replace(self.work.spec, function=copy.deepcopy(self.instance))
        return dataclasses.replace(self, work=dataclasses.replace(self.work, spec=spec))

    @property
    def mixes_sides(self) -> bool:  # type: ignore[override]
        return self.work.spec.has_context or self.may_write(DEAD_LETTERS)

    def may_write(self, tag: OutputTag) -> bool:
        if tag == DEAD_LETTERS:
            return self.work.options.on_error is OnError.DEAD_LETTER
        return tag != LATENCIES and self.work.spec.has_context

    def may_edit(self, before: Layout) -> bool:
        return before.is_mutable(self.positions)

    def build(self, site: Site, output: Output, before: Layout, want: Callable[[], None]) -> AsyncWaitOperator:
        codec = None
        if self.work.spec.vectorized:
            kinds = [before.kinds[position] for position in self.positions]
            codec = Codec(self.name, self.work.spec.vectors, self.names, kinds)
        return wait_operator(self.work, site, output, codec, want, may_edit=self.may_edit(before))


def wait_operator(
    work: Work, site: Site, output: Output, codec: Codec | None, want: Callable[[], None], *, may_edit: bool
) -> AsyncWaitOperator:
    """The operator of a function in a task.

    Args:
        may_edit: whether its arguments may be lists or dicts.
    """
    context = RuntimeContext(
        work.spec.name,
        site.loop.time,
        partition=site.partition,
        task_attempt_number=site.attempt,
        timeout=work.options.timeout,
        side_types=site.side_types,
    )
    return AsyncWaitOperator(
        work.spec,
        work.options,
        output,
        context,
        loop=site.loop,
        rng=site.rng,
        finish=work.finish(),
        codec=codec,
        weigh=work.weigh,
        may_edit=may_edit,
        want=want,
        failed=site.failed,
    )


@dataclasses.dataclass(frozen=True)
class ProcessSpec(Spec):
    """`map`, `flat_map` and `process`; their rows are new."""

    name: str
    function: ProcessFunction
    part: Part  # the rows that come out
    user: bool  # whether the function is the user's own ProcessFunction
    redact: Redact | None = None

    @property
    def instance(self) -> Any:
        return self.function

    def with_own_instance(self) -> ProcessSpec:
        return dataclasses.replace(self, function=copy.deepcopy(self.function))

    def view(self, before: Layout) -> View:
        return before.whole()

    def may_write(self, tag: OutputTag) -> bool:
        return self.user and tag not in (DEAD_LETTERS, LATENCIES)

    def may_edit(self, before: Layout) -> bool:
        return before.is_mutable(range(len(before.names)))

    def build(self, site: Site, output: Output, before: Layout, want: Callable[[], None]) -> ProcessStep:
        collector = TimestampedCollector(output, fitter(self.name, self.part.kind, row=True), site.failed)
        context = ProcessContext(output.collect_tagged, output.get_watermark_gauge(), site.side_types, site.partition)
        return ProcessStep(output, self.function, collector, context, self.name, self.redact)


@dataclasses.dataclass(frozen=True)
class FilterSpec(Spec):
    """`filter`; rows go on untouched."""

    name: str
    keeps: Callable[[Any], Any]
    redact: Redact | None = None

    def view(self, before: Layout) -> View:
        return before.whole()

    def may_edit(self, before: Layout) -> bool:
        return before.is_mutable(range(len(before.names)))

    def build(self, site: Site, output: Output, before: Layout, want: Callable[[], None]) -> FilterStep:
        return FilterStep(output, self.keeps, before.unseen, self.name, site.partition, self.redact)


@dataclasses.dataclass(frozen=True)
class AssignSpec(Spec):
    """`assign_timestamps_and_watermarks`."""

    strategy: WatermarkStrategy
    position: int | None  # of the strategy's column
    name = "assign_timestamps_and_watermarks"

    def view(self, before: Layout) -> View:
        return before.arguments(() if self.position is None else (self.position,))

    def build(self, site: Site, output: Output, before: Layout, want: Callable[[], None]) -> WatermarkStep:
        of_source = before.is_source
        return WatermarkStep(
            output,
            WatermarkGenerator.of(self.strategy),
            mark=lambda record: _microseconds(record.value[0]) if record.value else None,
            batch=lambda record: record.origin[0] if of_source else None,
            unseen=before.unseen,
            idleness=self.strategy.idleness,
            loop=site.loop,
        )


def _microseconds(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        epoch = datetime.datetime(1970, 1, 1, tzinfo=None if value.tzinfo is None else datetime.UTC)
        return (value - epoch) // datetime.timedelta(microseconds=1)
    if isinstance(value, datetime.date):
        return (value - datetime.date(1970, 1, 1)).days * 86_400_000_000
    return value


@dataclasses.dataclass(frozen=True)
class WatermarkColumnSpec(Spec):
    """`with_watermark_column`."""

    name = "with_watermark_column"

    def view(self, before: Layout) -> View:
        return before.arguments(())

    def build(self, site: Site, output: Output, before: Layout, want: Callable[[], None]) -> WatermarkColumnStep:
        return WatermarkColumnStep(output)


@dataclasses.dataclass(frozen=True)
class UnionSpec(Spec):
    """`union`."""

    name = "union"

    def view(self, before: Layout) -> View:
        whole = before.whole()
        # New rows, with nothing behind them: the inputs have added different columns to theirs.
        return lambda record: _without_origin(whole(record))

    def build(self, site: Site, output: Output, before: Layout, want: Callable[[], None]) -> UnionStep:
        return UnionStep(output)


def _without_origin(record: StreamRecord) -> StreamRecord:
    return StreamRecord(record.value, record.timestamp)
