"""The plan of a chain, which travels to the executors: its streams, and the factories of the operators between them."""

from __future__ import annotations

import copy
import dataclasses
import datetime
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from asyncudf.queues import StreamRecord

from .._arrow.layout import ColumnGroup, Projection, RowLayout
from .._arrow.objects import has_objects
from .._arrow.sizes import size_of_dict
from .._arrow.validation import validator
from .._engine.operators.async_wait import AsyncWaitOperator
from .._engine.operators.memory import PLACE_BYTES, RowSizes
from .._engine.operators.operator import ChainedOperator
from .._engine.operators.outputs import StreamOutput, TimestampedCollector
from .._engine.operators.synchronous import (
    FilterOperator,
    ProcessOperator,
    UnionOperator,
    WatermarkColumnOperator,
    WatermarkOperator,
)
from .._engine.stored.elements import KEY_BYTES_MORE, UnreadableRow
from .._errors.exceptions import FunctionError, UnreadableError
from .._errors.records import Redact
from .._functions.async_function import RuntimeContext
from .._functions.options import EventLoop
from .._functions.process_function import ProcessContext, ProcessFunction
from .._functions.side_outputs import DEAD_LETTERS, LATENCIES, OutputTag
from .._functions.watermarks import WatermarkGenerator, WatermarkStrategy
from .._limits.rates.option import check_names
from .environment import TaskEnvironment
from .function_plan import FunctionPlan


@dataclasses.dataclass(frozen=True)
class ChainPlan:
    """A chain that does not run yet."""

    # Plain data: no DataFrame, no session, no loop. So it can travel, each task makes a running chain of its own, and
    # the test kit runs the same one without Spark.

    nodes: tuple[StreamNode, ...]  # all streams that are needed, the source first, each after those that it reads
    is_source_read: bool = False  # whether the source's own rows are among the results of the chain
    object_reuse: bool = False  # whether operators may see one another's objects instead of copies
    latency_interval: float | None = None  # seconds between two latency markers; None: none are made

    @classmethod
    def of_function(cls, plan: FunctionPlan, names: Sequence[str], arrow_types: Sequence[Any]) -> ChainPlan:
        """A function alone, for a column, a table function or the test kit; it reads columns of these names and types.

        An Arrow type is None where it is not declared.
        """
        source = StreamNode(None, (), RowLayout(tuple(names), tuple(arrow_types)), None)
        factory = WaitFactory(plan, tuple(range(len(arrow_types))), tuple(names))
        return cls((source, StreamNode(factory, (source,), source.layout, None)))

    def __post_init__(self) -> None:
        # Both raise where the chain is planned, not on an executor.
        self.loop  # noqa: B018
        check_names(limit for plan in self.functions for limit in plan.options.rate_limit)

    @property
    def threads(self) -> int:
        """How many calls may need a thread at the same time."""
        return max(1, sum(plan.options.slots for plan in self.functions))

    @property
    def functions(self) -> list[FunctionPlan]:
        return [node.factory.function_plan for node in self.nodes if isinstance(node.factory, WaitFactory)]

    @property
    def written(self) -> list[Any]:
        """The declared Arrow types that the operators write. A list, as an `ObjectType` has no hash."""
        groups = [group.arrow_type for node in self.nodes for group in node.layout.groups]
        return [one for one in (*groups, *(plan.written for plan in self.functions)) if one is not None]

    @property
    def moves_rows(self) -> bool:
        """Whether it does more than to keep each row in its place."""
        waits = [node.factory for node in self.nodes[1:]]
        return not all(isinstance(one, WaitFactory) and one.function_plan.keeps_rows for one in waits)

    @property
    def name(self) -> str:
        """The name of the first function, for messages about the task."""
        return next((plan.spec.name for plan in self.functions), "the chain")

    @property
    def loop(self) -> EventLoop:
        """The event loop that the operators ask for; FunctionError if one asks for uvloop and another for asyncio."""
        asked = {plan.options.loop for plan in self.functions} - {EventLoop.AUTO}
        if len(asked) > 1:
            raise FunctionError("the operators of a chain share one event loop; give all of them the same loop=")
        return asked.pop() if asked else EventLoop.AUTO

    def readers_of(self, node: StreamNode) -> list[StreamNode]:
        """The streams that read a stream; a stream that reads it twice is listed twice."""
        return [child for child in self.nodes for parent in child.parents if parent is node]

    @property
    def start(self) -> StreamNode:
        """The first stream whose rows pass one by one: the source, or the source with its watermarks."""
        readers = self.readers_of(self.nodes[0])
        if len(readers) == 1 and not self.is_source_read:
            factory = readers[0].factory
            if isinstance(factory, AssignFactory) and factory.strategy.idleness is None:
                return readers[0]
        return self.nodes[0]

    @property
    def head(self) -> StreamNode | None:
        """The async operator that can be fed with whole batches, if the chain begins with one and nothing else."""
        readers = self.readers_of(self.start)
        is_read = self.is_source_read and self.start is self.nodes[0]
        return readers[0] if len(readers) == 1 and not is_read and isinstance(readers[0].factory, WaitFactory) else None


@dataclasses.dataclass(frozen=True, eq=False)
class StreamNode:
    """A stream in a plan: the operator that makes it, and the streams that the operator reads."""

    # A node knows the nodes before it and never those behind it. So it is frozen, both branches of a stream share the
    # nodes before them, and streams that are not read are in no plan. By identity, since two equal operators are two.

    factory: OperatorFactory | None  # None for the source
    parents: tuple[StreamNode, ...]
    layout: RowLayout  # of its rows
    schema: Any  # the same as a Spark StructType, for planning

    def may_write(self, tag: OutputTag) -> bool:
        return self.factory is not None and self.factory.may_write(tag)

    def path(self) -> Iterator[StreamNode]:
        """The node and all before it, each once, each after the nodes that it reads."""
        seen: set[StreamNode] = set()

        def visit(node: StreamNode) -> Iterator[StreamNode]:
            if node not in seen:
                seen.add(node)
                for parent in node.parents:
                    yield from visit(parent)
                yield node

        return visit(self)


class OperatorFactory(ABC):
    """Travels to the executors, and makes one operator there."""

    # An operator has futures, timers and clients, none of which can be pickled. So the plan has a factory: plain data
    # with the user's function and the positions of columns. The rest of the plan asks it what the operator will see,
    # write and edit.

    name: str

    @property
    def instance(self) -> Any:
        """The user's object with a life cycle; the factory itself if there is none."""
        return self

    def with_own_instance(self) -> OperatorFactory:
        """A factory with a copy of `instance`."""
        return self

    @abstractmethod
    def project(self, before: RowLayout) -> Projection:
        """What the operator sees of its input rows, which are laid out as `before`."""

    def unreadable(self, before: RowLayout, record: StreamRecord, error: UnreadableError) -> StreamRecord:
        """What the operator sees of a row with an unreadable value; raises the error if no policy applies to it."""
        raise error

    @abstractmethod
    def build(self, environment: TaskEnvironment, output: StreamOutput, before: RowLayout) -> ChainedOperator:
        """The operator itself; the environment's `request_rows` asks for more rows of its input."""

    def may_write(self, tag: OutputTag) -> bool:
        """Whether it may write to a side output."""
        return False

    def may_edit(self, before: RowLayout) -> bool:
        """Whether the user's code could change a value in place that others see as well."""
        return False


@dataclasses.dataclass(frozen=True)
class WaitFactory(OperatorFactory):
    """`ordered_wait` and `unordered_wait`."""

    function_plan: FunctionPlan
    positions: tuple[int, ...]  # of the columns that the function reads
    names: tuple[str, ...]

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.function_plan.spec.name

    def project(self, before: RowLayout) -> Projection:
        projected = before.mapping if self.function_plan.spec.takes_mapping else before.arguments
        return projected(self.positions)

    def unreadable(self, before: RowLayout, record: StreamRecord, error: UnreadableError) -> StreamRecord:
        return UnreadableRow.of(before.arguments(())(record), error)

    @property
    def instance(self) -> Any:
        return self.function_plan.spec.function if self.function_plan.spec.has_life_cycle else self

    def with_own_instance(self) -> WaitFactory:
        spec = dataclasses.replace(self.function_plan.spec, function=copy.deepcopy(self.instance))
        return dataclasses.replace(self, function_plan=dataclasses.replace(self.function_plan, spec=spec))

    @property
    def mixes_sides(self) -> bool:
        """Whether rows of side outputs come among its results."""
        return self.function_plan.spec.has_context or self.may_write(DEAD_LETTERS)

    def may_write(self, tag: OutputTag) -> bool:
        if tag == DEAD_LETTERS:
            return self.function_plan.options.writes_dead_letters
        return tag != LATENCIES and self.function_plan.spec.has_context

    def may_edit(self, before: RowLayout) -> bool:
        return before.is_mutable(self.positions)

    def _has_plain_arguments(self, before: RowLayout) -> bool:
        return not self.function_plan.spec.takes_mapping and before.is_plain(self.positions)

    def _row_sizes(self, before: RowLayout) -> RowSizes:
        """The bytes of a row in the operator's queue, without the source's columns, which are counted by batches."""
        added, result = self.function_plan.size_in_queue()
        place = PLACE_BYTES + added + before.size_of_place
        if self.function_plan.options.store is not None:
            place += KEY_BYTES_MORE
        if self.function_plan.spec.takes_mapping:
            place += size_of_dict(len(self.positions))
        weigh = before.weigher()
        if weigh is None:
            return RowSizes(place, None, result)

        def size_of_row(seen: StreamRecord) -> int:
            _, _, record = seen
            return weigh((record.value,), (record.origin,))

        return RowSizes(place, size_of_row, result)

    def build(self, environment: TaskEnvironment, output: StreamOutput, before: RowLayout) -> AsyncWaitOperator:
        plan, codec = self.function_plan, None
        if plan.spec.vectorized:
            arrow_types = [before.arrow_types[position] for position in self.positions]
            codec = plan.vector_codec(self.names, arrow_types)
        counters, store = environment.counters(), plan.options.store
        context = RuntimeContext(
            self.name,
            counters.clock,
            partition=environment.partition,
            task_attempt_number=environment.attempt,
            timeout=plan.options.timeout,
            side_types=environment.side_types,
            keys=plan.result_keys,
            is_stored=store is not None,
            metrics=counters.so_far,
        )
        return AsyncWaitOperator(
            plan.spec,
            plan.options,
            output,
            context,
            loop=environment.loop,
            rng=environment.rng,
            validate=plan.result_validator(),
            codec=codec,
            sizes=self._row_sizes(before),
            batches=environment.batches,
            may_edit=self.may_edit(before),
            stored=None if store is None else environment.stored(plan, are_plain=self._has_plain_arguments(before)),
            counters=counters,
            identity=environment.identity(plan),
            shared_clock=environment.shared_clock,
            own_limits=environment.own_limits,
            request_rows=environment.request_rows,
            fail=environment.fail,
        )


@dataclasses.dataclass(frozen=True)
class ProcessFactory(OperatorFactory):
    """`map`, `flat_map` and `process`; their rows are new."""

    name: str
    function: ProcessFunction
    group: ColumnGroup  # the rows that come out
    user: bool  # whether the function is the user's own ProcessFunction
    redact: Redact | None = None

    @property
    def instance(self) -> Any:
        return self.function

    def with_own_instance(self) -> ProcessFactory:
        return dataclasses.replace(self, function=copy.deepcopy(self.function))

    def project(self, before: RowLayout) -> Projection:
        return before.whole()

    def may_write(self, tag: OutputTag) -> bool:
        return self.user and tag not in (DEAD_LETTERS, LATENCIES)

    def may_edit(self, before: RowLayout) -> bool:
        return before.is_mutable(range(len(before.names)))

    def build(self, environment: TaskEnvironment, output: StreamOutput, before: RowLayout) -> ProcessOperator:
        collector = TimestampedCollector(
            output, validator(self.name, self.group.arrow_type, row=True), environment.fail
        )
        context = ProcessContext(
            output.collect_tagged, output.get_watermark_gauge(), environment.side_types, environment.partition
        )
        return ProcessOperator(output, self.function, collector, context, self.name, self.redact)


@dataclasses.dataclass(frozen=True)
class FilterFactory(OperatorFactory):
    """`filter`; rows go on untouched."""

    name: str
    keeps: Callable[[Any], Any]
    redact: Redact | None = None

    def project(self, before: RowLayout) -> Projection:
        return before.whole()

    def may_edit(self, before: RowLayout) -> bool:
        return before.is_mutable(range(len(before.names)))

    def build(self, environment: TaskEnvironment, output: StreamOutput, before: RowLayout) -> FilterOperator:
        return FilterOperator(output, self.keeps, before.unprojected, self.name, environment.partition, self.redact)


@dataclasses.dataclass(frozen=True)
class AssignFactory(OperatorFactory):
    strategy: WatermarkStrategy
    position: int | None  # of the strategy's column
    name = "assign_timestamps_and_watermarks"

    def project(self, before: RowLayout) -> Projection:
        return before.arguments(() if self.position is None else (self.position,))

    def build(self, environment: TaskEnvironment, output: StreamOutput, before: RowLayout) -> WatermarkOperator:
        of_source = before.is_source  # only bare rows of the source tell their batch; operators do not keep batches
        return WatermarkOperator(
            output,
            WatermarkGenerator(self.strategy),
            mark=lambda record: _microseconds(record.value[0]) if record.value else None,
            batch=lambda record: record.origin[0] if of_source else None,
            unprojected=before.unprojected,
            idleness=self.strategy.idleness,
            loop=environment.loop,
            fail=environment.fail,
        )


def _microseconds(value: Any) -> Any:
    """Moments and days as a watermark counts them; flags and numbers as they are."""
    if isinstance(value, datetime.datetime):
        epoch = datetime.datetime(1970, 1, 1, tzinfo=None if value.tzinfo is None else datetime.UTC)
        return (value - epoch) // datetime.timedelta(microseconds=1)
    if isinstance(value, datetime.date):
        return (value - datetime.date(1970, 1, 1)).days * 86_400_000_000
    return value


@dataclasses.dataclass(frozen=True)
class WatermarkColumnFactory(OperatorFactory):
    name = "with_watermark_column"

    def project(self, before: RowLayout) -> Projection:
        return before.arguments(())

    def build(self, environment: TaskEnvironment, output: StreamOutput, before: RowLayout) -> WatermarkColumnOperator:
        return WatermarkColumnOperator(output)


@dataclasses.dataclass(frozen=True)
class UnionFactory(OperatorFactory):
    group: ColumnGroup  # the rows that come out
    name = "union"

    def project(self, before: RowLayout) -> Projection:
        whole = before.whole()
        # New rows, without an origin: the inputs have added different columns to theirs.
        if not has_objects(self.group.arrow_type):
            return lambda record: StreamRecord(whole(record).value, record.timestamp)
        stored = validator(self.name, self.group.arrow_type)
        return lambda record: StreamRecord(stored(whole(record).value), record.timestamp)

    def build(self, environment: TaskEnvironment, output: StreamOutput, before: RowLayout) -> UnionOperator:
        return UnionOperator(output)
