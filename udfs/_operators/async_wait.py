"""AsyncWaitOperator: admits rows, runs their calls, emits results in the promised order."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from asyncudf.queues import Entry, StreamElement, StreamRecord

from .._calls.call import Call, CallHooks
from .._calls.calls import Calls
from .._calls.costs import Costs
from .._calls.invokers import BatchCodec, invoker_of
from .._calls.micro_batch import MicroBatch
from .._calls.resources import closing, opened
from .._calls.slots import CallSlot, SlotPool
from .._coordination.config import TaskIdentity
from .._errors.exceptions import FatalError
from .._functions.context import FAIL_TASK, RuntimeContext
from .._functions.signature import FunctionSpec, batch_rows
from .._limits.limits import Limits
from .._metrics.counters import TaskCounters
from .._policies.options import Options
from .bursts import BurstOperator
from .emission import Emission
from .fast_path import ImmediateResults, Pace
from .gauges import Gauges
from .intake import Intake
from .operator import ChainedOperator
from .outputs import Output
from .queues import queue_of

__all__ = ("AsyncWaitOperator",)


class AsyncWaitOperator(BurstOperator, ChainedOperator):
    """Flink's operator of that name for one task: every method is called on one event loop, nothing is locked.

    Rows are pulled: `request_batch` is called when more can be used, which comes by `feed`, or in a chain by `process`
    while there is `room`. Results leave in the order of `options.output_mode`, each exactly once, while `output` has
    room.

    Args:
        validate: checks and converts each result; raises ResultError for one that does not fit.
        codec: for vectorized functions.
        weigh: how many bytes a result has, where they may be so large that `options.max_buffered_bytes` matters.
        may_edit: whether arguments may be lists or dicts, which an attempt could edit under the next one's feet.
        rng: for the jitter of delays.
        counters: of what is done here; their clock is the operator's.
        place: where the tasks of the job meet for its limits; None: this one is the whole job.
        shared_clock: seconds, of a clock that all tasks share to within a tenth of a second.
    """

    # Rows come by `feed` or `process`, slots ask for them, calls end: whatever happens first notes it where it belongs
    # (input, queue, entry), and then calls `_pool.wake` or `_push`. These two look at the state alone: they may be
    # called at any time, in any order, and once too often does no harm.
    #
    # len(_queue) <= queue_size; calls in progress that count <= capacity
    # _finished is set once: by the first error, or when the input has ended and the queue is empty

    _new_calls: Callable[..., Calls] = Calls
    _new_intake: Callable[..., Intake] = Intake

    def __init__(
        self,
        spec: FunctionSpec,
        options: Options,
        output: Output,
        context: RuntimeContext,
        *,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        validate: Callable[[Any], Any] | None = None,
        codec: BatchCodec | None = None,
        weigh: Callable[[Any], int] | None = None,
        may_edit: bool = True,
        counters: TaskCounters | None = None,
        identity: TaskIdentity | None = None,
        shared_clock: Callable[[], float] | None = None,
        request_batch: Callable[[], None] = lambda: None,
        fail: Callable[[BaseException], None] | None = None,
    ) -> None:
        super().__init__(output, loop, request_batch, fail)
        self.name, self._spec, self._context = spec.name, spec, context
        self.counters = counters or TaskCounters(loop.time)
        self._queue, self._output, self._bytes = queue_of(options, output, weigh)
        self._wanted_rows = max(options.slots, rows := batch_rows(spec, options))
        self._pace = Pace(self.counters.clock, options.timeout, options.attempt_timeout)
        self._immediate, self._emission = ImmediateResults(), Emission(self._queue, self._output, self._is_bounded)
        self._fast_path: Callable[[CallSlot], Awaitable[bool]] | None = None
        self._row_type, self._is_looking = StreamRecord, False
        self.gauges: Gauges
        why_idle = lambda: self.gauges.why_idle(self._held_back)  # noqa: E731
        self._pool = SlotPool(loop, options.slots, self._work, self._has_work, why_idle, self.counters.account)
        self.gauges = Gauges(self.counters, self._pool, self._queue, self._bytes, self._input)
        batch = MicroBatch(rows, options.batch_linger, loop, self._pool.wake)
        costs = Costs(options.rate_limit or (), spec)
        limits = Limits(self, options, self._pool, costs.of_each, identity=identity, shared_clock=shared_clock)
        self._limits, self._health, self._admission = limits, limits.health, limits.admission
        complete: Callable[[Entry, Any], object] = self._complete
        if output.leaves_chain:  # no code runs there that could complete a row, or see the variables of a call
            complete = partial(self._queue.complete_and_emit, self._output)
        has_rows = lambda: self._intake.has_call  # noqa: E731
        hooks = CallHooks(self._push, complete, self._fail, self._look_past_slots, has_rows)
        own = (self._pool, self.counters, costs, limits, hooks)
        self._calls = self._new_calls(spec, options, validate, may_edit, context, rng, loop, *own)
        self._intake = self._new_intake(self._input, self._queue, batch, self._push)
        self._admit = self._calls.admitting(self._queue.put_record, self._immediate.records, self._take_immediate)
        self._looks_past_slots = self._is_bounded or self._intake.passes_slots
        self.gauges.count_open = self._calls.counts.count_open

        def use(resources: Mapping[str, Any]) -> Callable[[CallSlot], Awaitable[bool]] | None:
            function = self._calls.use(invoker_of(spec, options, resources, context, codec))
            return (
                None
                if function is None
                else self._fast_path_of(function, validate, None if self._bytes is None else weigh)
            )

        self._use = use  # the function is open, with these resources; returned is the fast path, if it may be taken

    @property
    def room(self) -> int:
        """How many rows may be handed over one by one: what the call slots can start at once, less what waits."""
        return self._wanted_rows - self._input.waiting

    def wanted_calls(self) -> int:
        """How many calls would be in flight if limits allowed it."""
        waiting = len(self._calls.ready) + (self._admission.waiting is not None)
        rows = min(self._input.known_rows, self._queue.places)
        return min(self._pool.capacity, self._pool.in_flight + waiting + rows)

    def call_waits(self) -> None:
        """A call begins to wait for a limit, and no other may begin."""

    def health_changed(self) -> None:
        """The coordinator has said what the tasks of the job know of the service."""
        self._calls.settle()

    def fail(self, error: BaseException) -> None:
        """A limit ends the task."""
        self._fail(error)

    def process(self, element: StreamElement) -> None:
        """Hand over one row, or a marker at its place behind the rows so far."""
        self._input.put(element)
        self._pool.wake()

    process_marker = process

    def _look_at_input(self) -> None:
        self._pool.wake()
        self._look_past_slots()
        if self._input.has_ended:
            self._finish_if_drained()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the function; at the end of the block wait until everything is emitted, close, and end the output.

        Raises:
            AsyncUDFError: a row failed under `on_error="raise"`, or the function could not be opened or closed.
        """
        async with contextlib.AsyncExitStack() as stack:
            resources = await stack.enter_async_context(opened(self._spec, self._context))
            stack.callback(self._calls.close)
            await stack.enter_async_context(self._limits.running())
            self._fast_path = self._use(resources)
            stack.push_async_exit(closing(self._end_calls, f"the calls of {self.name} could not be ended"))
            FAIL_TASK.set(self._may_fail)
            self._pool.open()
            self._request_batch()
            self._pool.wake()
            with self._owning_its_end():
                yield
                await self._finished
        self._end_output()

    def _may_fail(self) -> Callable[[str], None]:
        """See FAIL_TASK."""
        failed = self._admission.failed

        def fail(mistake: str) -> None:
            if failed != self._admission.failed:
                return
            error = FatalError(f"{self.name} {mistake}")
            if asyncio._get_running_loop() is self._loop:
                self._fail(error)
            else:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._fail, error)

        return fail

    async def _end_calls(self, exc_type: type[BaseException] | None, *_: object) -> None:
        self._calls.counts.abandon()
        await self._pool.close(patient=exc_type is None)

    def _look_past_slots(self) -> None:
        """Take markers, and the end, where all slots are held by coroutines that run on after their rows are done."""
        if self._is_looking:  # what is taken may leave at once, and who emits it looks again: one after the other
            return
        self._is_looking = True
        try:
            while (self._pool.is_full or self._admission.waiting is not None) and self._intake.may_pass_slots:
                if not self._intake.admit_marker():
                    self._finish_if_drained()
                    break
        finally:
            self._is_looking = False

    def _finish_if_drained(self) -> None:
        if self._intake.is_drained and not self._finished.done():
            self._finished.set_result(None)

    def snapshot_state(self) -> list[StreamElement]:
        """The elements not yet emitted, in order: those in the queue, then those handed over but not admitted.

        After `restore_state` each row is called anew: emission is exactly once, calls are at least once, as in Flink.
        """
        return self._intake.values()

    def restore_state(self, elements: Sequence[StreamElement]) -> None:
        """Replay a snapshot before any new input; it may hold more elements than the queue."""
        self._intake.restore(elements)
        self._pool.wake()

    def _has_work(self) -> bool:
        if self._finished.done() or self._admission.waiting is not None:
            return False
        return self._calls.has_ready or self._intake.has_call

    async def _work(self, slot: CallSlot) -> None:
        """The life of one call slot: one call after another, until there is none or the slot is contaminated."""
        # All in one coroutine: whatever a call waits for comes back through each of those between it and its task.
        #
        # In this order: a row whose back-off is over has waited longest; then the fast path, which takes rows itself;
        # what it cannot run (a plain def, a micro-batch, 0..n results, `retry_if_result`) gets to the rest.
        try:
            slot.settle_in()
            clock, pause = self._pace.clock, self._pace.pause
            end = clock() + pause
            while not (self._finished.done() or self._admission.waiting is not None or slot.is_contaminated()):
                # A dead service is tried with a new row, where there is one: those that have failed may be to blame.
                is_broken = not self._admission.is_open and self._health.is_broken
                is_new = is_broken and self._intake.has_call and not self._calls.has_new
                call = None if is_new else self._calls.next_ready()
                if call is None and self._fast_path is not None and self._admission.may_begin_nowait and not is_broken:
                    try:
                        has_more = await self._fast_path(slot)
                    finally:
                        self._take_immediate()
                    if has_more and not slot.is_contaminated():
                        await asyncio.sleep(0)
                    elif not self._calls.has_ready:
                        break
                    continue
                if call is None:
                    if not (rows := self._intake.rows_of_a_call()):
                        self._finish_if_drained()
                        break
                    call = self._calls.open(*zip(*rows, strict=True))
                    if not self._calls.may_begin(call):
                        continue
                if self._admission.is_open or (self._calls.price(call) and await self._admission.begin(slot, call)):
                    await self._run_call(slot, call)
                # Calls that return at once: let timers and the mailbox have their turn.
                if clock() > end and not slot.is_contaminated():
                    await asyncio.sleep(0)
                    end = clock() + pause
        except BaseException as error:  # the source or the output failed, not a row
            if slot.abandoned or (isinstance(error, asyncio.CancelledError) and slot.task.cancelling()):
                raise  # the pool, or somebody else's code between two calls, has cancelled it
            self._fail(error)
        finally:
            self._pool.retire(slot)
            self._admission.wake()
            self._calls.settle()
            self._finish_if_drained()

    async def _run_call(self, slot: CallSlot, call: Call) -> None:
        running = self._calls.invoke(slot, call)
        self._pool.done_pulling(slot)
        results = error = None
        try:
            results = await running
        except BaseException as raised:  # every error of the user's code has its policy
            error = raised
        if not slot.abandoned:
            self._calls.ended(slot, call, results, error)

    def _push(self) -> None:
        """Emit everything that may leave, and let a slot start on what there is place for then."""
        self._emit()
        self._pool.wake()

    def _complete(self, entry: Entry, result: Any) -> None:
        entry.complete((result,))
        self._emit()

    def _emit(self) -> None:
        if self._emission.is_going_on:  # further down the chain something has completed a row of ours: it is seen there
            return
        try:
            self._held_back = self._emission.emit()
        except BaseException as error:  # called from timers too, where an exception would only be logged
            self._fail(error)
        if self._looks_past_slots:
            self._look_past_slots()
        if not self._input.may_have_more:
            self._finish_if_drained()
