"""Several operators fused into one chain that runs on one event loop: rows pass between them one by one.

The chain makes the elements of Arrow batches, and samples the figures of its operators ten times a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, count, islice, repeat
from typing import Any

import pyarrow as pa

from asyncudf.queues import LatencyMarker, StreamRecord

from .._arrow.rows import Errors, SourceRows, records_of, rows_of, watermark_marks
from .._arrow.sizes import size_as_objects
from .._engine.operators.async_wait import AsyncWaitOperator
from .._engine.operators.input import InputElement
from .._engine.operators.memory import InputBatch, TaskBatches
from .._engine.operators.operator import BufferedOperator, ChainedOperator, Operator, SourceOperator
from .._engine.operators.outputs import (
    BroadcastingOutput,
    ChainingOutput,
    CopyingBroadcastingOutput,
    CopyingChainingOutput,
    OperatorOutput,
    StreamOutput,
)
from .._engine.stored.elements import RowsAsColumns, with_unreadable
from .._functions.watermarks import WatermarkGenerator
from .._observe.time_account import seconds_without_processor
from .._observe.waits import LOOK_EVERY, TaskWaits, Wait, Waiting
from .environment import TaskEnvironment
from .plan import AssignFactory, ChainPlan, StreamNode, WaitFactory

logger = logging.getLogger("asyncudf")


class SourceReader:
    """Makes the elements of each batch of a task: what the chain's first operator sees of its rows."""

    # Only the columns that the first operator reads become Python values, a whole column at a time. The others stay
    # Arrow: the origin of each row, (SourceRows, number), leads back to them. Elements are made as they are pulled: of
    # the batch of a task that fails the rest is never made. With a store they are looked up together, as columns.

    def __init__(self, plan: ChainPlan) -> None:
        self._declared = plan.nodes[0].layout.source_types
        self._columns: tuple[int, ...] | None = None
        self._names: tuple[str, ...] | None = None
        self._function, self._has_store = "", False
        if plan.head is not None and isinstance(factory := plan.head.factory, WaitFactory):
            self._columns = factory.positions
            self._names = factory.names if factory.function_plan.spec.takes_mapping else None
            self._function = factory.name
            self._has_store = factory.function_plan.options.store is not None
        self._generator: WatermarkGenerator | None = None
        self._mark: int | None = None
        if isinstance(assign := plan.start.factory, AssignFactory):
            self._generator, self._mark = WatermarkGenerator(assign.strategy), assign.position

    def __call__(self, batch: pa.RecordBatch) -> InputBatch:
        rows, size = SourceRows(batch, self._declared), batch.nbytes
        origins = zip(repeat(rows), range(batch.num_rows))
        values: Iterable[Any] = repeat(None)
        errors = Errors()
        if self._columns is not None:
            columns, declared = [batch.column(i) for i in self._columns], [self._declared[i] for i in self._columns]
            labels = [batch.schema.names[i] for i in self._columns]
            values, errors = rows_of(self._function, columns, self._names, declared, labels)
            size += sum(map(size_as_objects, columns))
        if self._generator is None and self._has_store and not errors:
            elements: Iterable[InputElement] = RowsAsColumns([*values], [*origins])
        elif self._generator is None:
            elements = records_of(values, origins)
        else:
            marks = repeat(None) if self._mark is None else watermark_marks(batch.column(self._mark))
            elements = self._generator.weave(zip(values, origins, strict=False), marks)
        return InputBatch(with_unreadable(elements, errors) if errors else elements, rows, size)


SAMPLE_INTERVAL = 0.1  # seconds between two samples, at first
LONGEST_SAMPLE = 1.0  # seconds between two samples of a task that runs for long
BEFORE_INPUT = (Waiting.OPENING, Waiting.COORDINATOR)  # what a task may wait for before it asks for input
LATE = 0.025  # seconds; code that blocks the loop has delayed a sample that comes later


class Sampler:
    """Makes curves and means of what the operators are doing, and finds the time in which the loop was blocked."""

    # A late sample says that the loop was blocked at a moment that nobody has chosen. So the time since the sample
    # before is taken as blocked: too much of it where only its end was, too little where the block was between two
    # samples, and in the mean over many samples what it was. Less the time in which Spark's thread was at work: to make
    # rows of a batch it may hold the interpreter for as long. Less the time, too, in which the machine had no processor
    # for the loop's thread.
    #
    # _excused: seconds of both, by the last sample

    def __init__(
        self, environment: TaskEnvironment, operators: Sequence[AsyncWaitOperator], look: Callable[[], object]
    ) -> None:
        self._look, self._look_due = look, -math.inf
        self._loop = loop = environment.loop
        self._clock = environment.clock
        self._spark_thread = environment.spark_thread
        self._sampled = environment.sampled
        self._operators = operators
        # On the virtual clock it is no event: where nothing else can happen it is a deadlock all the same.
        self._call_at: Callable[..., asyncio.TimerHandle] = getattr(loop, "call_beside", loop.call_at)
        is_virtual = hasattr(loop, "call_beside")  # then time that does not pass may be long, and nobody waits in it
        self._longest = math.inf if is_virtual else LONGEST_SAMPLE
        self._without_processor: Callable[[], float] = (lambda: 0.0) if is_virtual else seconds_without_processor
        self._began = self._due = self._clock()
        self._timer: asyncio.TimerHandle | None = None
        self._excused = self._seconds_excused()

    def start(self) -> None:
        now = self._clock()
        interval = min(max(SAMPLE_INTERVAL, (now - self._began) / 1000), self._longest)
        self._due = now + interval
        self._timer = self._call_at(self._loop.time() + interval, self._tick)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._sample()

    def _tick(self) -> None:
        self._sample()
        if (now := self._clock()) >= self._look_due:
            self._look_due = now + LOOK_EVERY - SAMPLE_INTERVAL / 2  # or it would be late by a sample
            self._look()
        self._sampled()
        self.start()

    def _sample(self) -> None:
        before, self._excused = self._excused, self._seconds_excused()
        was_blocked = self._clock() - self._due - (self._excused - before) > LATE
        for operator in self._operators:
            operator.sample(was_blocked=was_blocked)

    def _seconds_excused(self) -> float:
        at_work = 0.0 if self._spark_thread is None else self._clock() - self._spark_thread.waiting.seconds()
        return at_work + self._without_processor()


class ResultOutputs(ABC):
    """Where the rows leave a chain."""

    @abstractmethod
    def outputs(self, node: StreamNode) -> Iterable[StreamOutput]:
        """The outputs for what is read of a node's rows and of its operator's side rows."""

    def latencies(self, node: StreamNode) -> list[StreamOutput]:
        """Where the latencies up to a node's operator are read."""
        return []

    def close(self) -> None:
        """All operators have ended, and closed their outputs."""


class Chain:
    """The loop task of a Spark task: fed with elements, runs until all operators have ended.

    Operators open from the tail to the head and close from the head to the tail. One that fails ends all.

    Attributes:
        head: the operator that is fed.
        counted: the operators that make calls, by their names, from the head to the tail.
        partition: the partition of the task.
    """

    # The nesting of the operators' `running` blocks is the order of opening and closing: each block ends when its own
    # operator has emitted everything, so by then the operators that it emits to are still open.
    # Failing goes beside it: an error may come from deep in a call or a timer, with no block around it to raise in.
    # So `fail` tells every operator to end with it, and each raises it where it waits for its end.
    #
    # _operators: from the tail to the head

    def __init__(self, plan: ChainPlan, environment: TaskEnvironment, results: ResultOutputs) -> None:
        self._operators: Sequence[Operator] = ()
        self._loop, self._batches = environment.loop, TaskBatches(environment.loop)
        self.partition = environment.partition
        made = _Operators(plan, dataclasses.replace(environment, fail=self.fail, batches=self._batches), results)
        self.head = made.head
        self.counted = made.counted()
        self._operators = [*made.by_node.values(), *([] if plan.head else [made.head])]
        self._results = results
        self.waits = TaskWaits(environment.clock, partial(logger.warning, "%s"))
        self._names, self._spark_thread, self._fed = made.names(), environment.spark_thread, 0
        self._sampler = Sampler(environment, [*self.counted.values()], self.look)
        self._markers = None
        if plan.latency_interval is not None:
            loop, partition = environment.loop, environment.partition
            self._markers = _LatencyMarkers(loop, partition, plan.latency_interval, made.upstream())

    def look(self) -> None:
        """See what the chain waits for."""
        self.waits.look(self._waits())

    def _waits(self) -> Iterator[Wait]:
        waits = [wait._replace(name=name) for operator, name in self._names.items() for wait in operator.waits()]
        yield from waits
        # While Spark's thread is away with a batch it brings no input.
        away = None if self._spark_thread is None else self._spark_thread.away.since
        if away is not None:
            yield Wait(Waiting.SPARK, next(reversed(self._names.values())), away)
        elif self.head.lacks_input and not any(wait.kind in BEFORE_INPUT for wait in waits):
            yield Wait(Waiting.INPUT, self._names[self.head], mark=self._fed)

    def _waiting_now(self) -> list[str]:
        self.look()
        return self.waiting()

    def waiting(self) -> list[str]:
        """What the chain waits for, as it was seen last; any thread may ask."""
        return self.waits.lines()

    def feed(self, elements: Iterable[InputElement]) -> None:
        self._fed += 1
        if isinstance(elements, InputBatch):
            self._batches.add(elements)
            elements = elements.elements
        if self._markers is not None and not self._markers.have_begun:
            elements = self._markers.begin(elements)
        self.head.feed(elements)

    def emitted(self, size: int) -> None:
        """Say that a batch of so many bytes is on its way to Spark."""
        self._batches.emit(size)

    def taken(self) -> None:
        """Say that Spark has taken the oldest batch that was emitted."""
        self._batches.taken()

    def end_of_input(self) -> None:
        self.head.end_of_input()

    async def run(self) -> None:
        """Open all operators, work until everything is emitted, close them; AsyncUDFError if a row or a step failed."""
        self._sampler.start()
        waiting = getattr(self._loop, "waiting", None)  # of the virtual clock, for the error of a deadlock
        if waiting is not None:
            waiting.append(self._waiting_now)
        try:
            async with contextlib.AsyncExitStack() as stack:
                for operator in self._operators:
                    await stack.enter_async_context(operator.running())
            self._results.close()
        finally:
            self._sampler.stop()
            if waiting is not None:
                waiting.remove(self._waiting_now)
            if self._markers is not None:
                self._markers.stop()

    def fail(self, error: BaseException) -> None:
        for operator in self._operators:
            operator.abort(error)


class _Operators:
    """Makes the operators of a chain, from the tail to the head, each with its output to those made before it."""

    # From the tail to the head, because an operator gets its output when it is made, and the output knows the operators
    # behind it. Only requests for more rows go the other way: `_resume` finds the operators before a node when it is
    # called, and by then they are made. So no operator is ever half made, and none learns of its neighbours later.
    #
    # by_node: the operator of each node made so far; all readers of a node are made before it
    # _buffered: those of them that can hold back rows, and the source: between these `_resume` goes
    # _instances: by identity, since two equal objects of the user's are still two

    def __init__(self, plan: ChainPlan, environment: TaskEnvironment, results: ResultOutputs) -> None:
        self._plan = plan
        self._environment = environment
        self._results = results
        self._names = _names(plan)
        self._instances: set[int] = set()  # of the users' objects that an operator has already
        self._buffered: dict[StreamNode, BufferedOperator] = {}
        self.by_node: dict[StreamNode, ChainedOperator] = {}
        start, head = plan.start, plan.head
        for node in reversed(plan.nodes[plan.nodes.index(start) + 1 :]):
            request_rows = environment.request_rows if node is head else partial(self._resume, node)
            own = dataclasses.replace(environment, request_rows=request_rows)
            operator = self.by_node[node] = self._operator(node, own)
            if isinstance(operator, BufferedOperator):
                self._buffered[node] = operator
        if head is None:  # else the first async operator takes the batches itself: one step less for each row
            self._buffered[start] = SourceOperator(
                self._output(start), environment.loop, environment.request_rows, environment.fail
            )
        self.head = self._buffered[head or start]

    def upstream(self) -> dict[BufferedOperator, list[BufferedOperator]]:
        """Each operator that can hold back rows, with those that push rows to it."""
        return {operator: list(self._before(node)) for node, operator in self._buffered.items()}

    def names(self) -> dict[Operator, str]:
        """All operators from the head to the tail, with their names; a source has the name of the operator it feeds."""
        named: dict[Operator, str] = {
            self.by_node[node]: self._names[node] for node in self._plan.nodes if node in self.by_node
        }
        if self.head not in named:
            named = {self.head: next(iter(self.counted()), "source"), **named}
        return named

    def counted(self) -> dict[str, AsyncWaitOperator]:
        """The operators that make calls, by their names, from the head to the tail."""
        made = ((self._names[node], self.by_node.get(node)) for node in self._plan.nodes)
        return {name: operator for name, operator in made if isinstance(operator, AsyncWaitOperator)}

    def _operator(self, node: StreamNode, environment: TaskEnvironment) -> ChainedOperator:
        factory = node.factory
        assert factory is not None
        if id(factory.instance) in self._instances:  # the same object twice in a chain: each operator has its own
            factory = factory.with_own_instance()
        self._instances.add(id(factory.instance))
        return factory.build(environment, self._output(node), node.parents[0].layout)

    def _output(self, node: StreamNode) -> StreamOutput:
        """What an operator writes to: those that read it in the chain, then those outside."""
        outputs = [self._link(node, child) for child in self._plan.readers_of(node)]
        outputs += self._results.outputs(node)
        if len(outputs) == 1 and outputs[0].tag is None:  # by far the most: no loop over one output for each row
            output = outputs[0]
        else:
            output = (BroadcastingOutput if self._plan.object_reuse else CopyingBroadcastingOutput)(outputs)
        splits = isinstance(node.factory, WaitFactory) and node.factory.mixes_sides
        report = partial(_report_latency, self._environment.loop, self._names[node], self._results.latencies(node))
        return OperatorOutput(output, report, splits=splits)

    def _link(self, node: StreamNode, child: StreamNode) -> StreamOutput:
        assert child.factory is not None
        # Each link has a projection of its own: the inputs of a union may be laid out differently.
        copies = child.factory.may_edit(node.layout) and not self._plan.object_reuse
        link = CopyingChainingOutput if copies else ChainingOutput
        factory, before = child.factory, node.layout
        return link(self.by_node[child].input(), factory.project(before), partial(factory.unreadable, before))

    def _resume(self, node: StreamNode) -> None:
        """An operator takes rows again: let those that push to it go on."""
        for operator in self._before(node):
            operator.resume()

    def _before(self, node: StreamNode) -> Iterator[BufferedOperator]:
        """The nearest operators upstream that can hold back rows; what stands between passes rows on at once."""
        for parent in node.parents:
            if parent in self._buffered:
                yield self._buffered[parent]
            else:
                yield from self._before(parent)


def _names(plan: ChainPlan) -> dict[StreamNode, str]:
    """A name for each operator; the second of a name and those behind it have a number."""
    names: dict[StreamNode, str] = {}
    for node in plan.nodes:
        name = "source" if node.factory is None else node.factory.name
        numbered = (f"{name} {number}" for number in count(2))
        names[node] = next(one for one in chain((name,), numbered) if one not in names.values())
    return names


@dataclasses.dataclass(eq=False, repr=False)
class _LatencyMarkers:
    """Puts a latency marker into the chain at each interval, which is in seconds."""

    # upstream: each operator that can hold back rows, with those that push rows to it
    # _due: when the last marker was due; _timer: for the next one

    loop: asyncio.AbstractEventLoop
    partition: int
    interval: float
    upstream: Mapping[BufferedOperator, Sequence[BufferedOperator]]
    _timer: asyncio.TimerHandle | None = dataclasses.field(default=None, init=False)
    _due = 0.0

    @property
    def have_begun(self) -> bool:
        return self._timer is not None

    def begin(self, elements: Iterable[InputElement]) -> Iterator[InputElement]:
        """The first batch, with a marker behind its first row: before it there is nothing to wait for."""
        self._due = self.loop.time()
        first = self._marker()
        rest = iter(elements)
        return chain(islice(rest, 1), [first], rest)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _marker(self) -> LatencyMarker:
        """The marker that is due. The next one comes an interval later, however long the loop is held up."""
        due = min(self._due, self.loop.time())  # a timer may fire a hair before its time
        self._due += self.interval
        call_at = getattr(self.loop, "call_beside", self.loop.call_at)  # on the virtual clock
        self._timer = call_at(self._due, self._insert)
        return LatencyMarker(due, "source", self.partition)

    def _insert(self) -> None:
        """Put the next marker in front of the rows that wait: it measures how long a row would take from now on."""
        # Where the head has passed on its last row those behind it may have long to go: they get the marker themselves.
        marker = self._marker()
        for operator, before in self.upstream.items():
            if all(one.has_finished for one in before):
                operator.insert(marker)


def _report_latency(
    loop: asyncio.AbstractEventLoop, operator: str, outputs: Sequence[StreamOutput], marker: LatencyMarker
) -> None:
    """A marker has left an operator: write how long it took to those that read latencies."""
    for output in outputs:
        latency = loop.time() - marker.marked_time
        output.collect(StreamRecord({"operator": operator, "partition": marker.subtask, "latency": latency}))
