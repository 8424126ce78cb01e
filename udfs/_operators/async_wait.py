"""AsyncWaitOperator: admits rows, runs their calls, emits results in the promised order."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from asyncudf.queues import Entry, StreamElement

from .._calls.call import Call, RowSharing
from .._calls.calls import Calls
from .._calls.invokers import BatchCodec, Costs, Invoker, invoker_of
from .._calls.resources import closing, opened
from .._calls.slots import CallSlot, SlotPool
from .._coordination.config import TaskIdentity
from .._errors.exceptions import FatalError
from .._functions.context import FAIL_TASK, RuntimeContext
from .._functions.signature import FunctionSpec, batch_rows
from .._limits.limits import Limits
from .._metrics.counters import TaskCounters
from .._metrics.time_account import State
from .._policies.options import OnNullInput, Options
from .._stored.rows import NullAnswers, plain
from .._stored.sharing import StoreSharing
from .._stored.stored_results import StoredResults
from .fast_path import FastPath
from .intake import Intake, MicroBatch
from .memory import QueueMemory, RowSizes, TaskBatches
from .operator import BufferedOperator, ChainedOperator
from .outputs import Output
from .queues import Emitter, queue_of

__all__ = ("AsyncWaitOperator",)


class AsyncWaitOperator(BufferedOperator, ChainedOperator):
    """Flink's operator of that name for one task: every method is called on one event loop, nothing is locked.

    Rows are pulled: the operator calls `request_batch` when it can use more, and gets them by `feed`, or in a chain by
    `process` as long as it is `available`. Results leave in the order of `options.output_mode`, each exactly once, as
    long as `output` is available.

    Args:
        validate: checks and converts each result; raises ResultError for a result of another type.
        codec: for vectorized functions.
        sizes: how many bytes a row holds, for `options.max_buffered_bytes`.
        batches: those of the task.
        may_edit: whether arguments may be lists or dicts, which an attempt could edit before the next attempt.
        stored: the store of the function in this task; closed with the operator.
        rng: for the jitter of delays.
        counters: count what is done; their clock is the operator's.
        identity: this task among those of the job; None: this task is the whole job.
        shared_clock: seconds, of a clock that all tasks share to within a tenth of a second.
    """

    # The order of wrapping: store( deadline( retry( breaker( limits( slot( attempt_timeout( function ))))))). A row
    # asks the store before it has a deadline, and its result is written after the deadline has been stopped.
    #
    # A row goes through _inlet, _input, _intake, _queue, _calls (most rows by _fast_path), _emitter, in this order.
    #
    # Rows come by `feed` or `process`, slots ask for them, calls end: each such event first changes the state where it
    # belongs (input, queue, entry), and then calls `_pool.wake` or `push`. These two look at the state alone: they may
    # be called at any time, in any order, and once too often does no harm.
    #
    # len(_queue) <= queue_size; calls in progress that count <= capacity
    # _finished is set once: by the first error, or when the input has ended and the queue is empty
    # _is_admitting, _will_admit: `admit_without_slot` is at work, or will be in the next turn of the loop
    # _will_emit: rows may leave, and will in the next turn of the loop

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
        sizes: RowSizes | None = None,
        batches: TaskBatches | None = None,
        may_edit: bool = True,
        stored: StoredResults | None = None,
        counters: TaskCounters | None = None,
        identity: TaskIdentity | None = None,
        shared_clock: Callable[[], float] | None = None,
        request_batch: Callable[[], None] = lambda: None,
        fail: Callable[[BaseException], None] | None = None,
    ) -> None:
        # Each part is made of parts made before it. Whatever a part asks of the operator, such as `push`, it asks when
        # rows flow, and by then all parts are there.
        super().__init__(output, loop, request_batch, fail)
        self.name, self._spec, self._options, self._context, self._codec = spec.name, spec, options, context, codec
        self.counters = counters or TaskCounters(loop.time)
        rows = batch_rows(spec, options)
        self._queue = queue_of(options)
        self._memory: QueueMemory | None = None
        if (limit := options.max_buffered_bytes) is not None:
            batches, sizes = batches or TaskBatches(loop), sizes or RowSizes()
            self._memory = QueueMemory(self._queue, limit, options.open_calls * rows, sizes, batches)
            batches.watch(self._memory.update, self._memory_is_free)
        self._emitter = Emitter(self._queue, output)
        has_uncalled = stored is not None or options.on_null_input is OnNullInput.NULL
        self._pool = SlotPool(self, options.slots, has_uncalled=has_uncalled)
        costs = Costs(options.rate_limit or (), spec)
        self._limits = Limits(self, options, self._pool, costs.of_each, identity=identity, shared_clock=shared_clock)
        self._health, self._admission = self._limits.health, self._limits.admission
        self._calls = Calls(
            self, spec, options, self._pool, self._limits, costs, validate=validate, may_edit=may_edit,
            partition=context.partition, rng=rng,
        )  # fmt: skip
        self._sharing = RowSharing()
        if stored is not None:
            self._sharing = sharing = StoreSharing(
                self, stored, options, self._calls, self._queue, self._input, request_batch,
                is_single=not spec.many_results,
            )  # fmt: skip
            self._inlet = sharing.inlet
            self._calls.share(sharing)
        if options.on_null_input is OnNullInput.NULL:
            self._inlet = NullAnswers(self._inlet, validate)
        batch = MicroBatch(rows, options.batch_linger, loop, self._pool.wake)
        self._intake = Intake(self, self._input, self._queue, batch, self._sharing, has_uncalled=has_uncalled)
        self._fast_path: FastPath | None = None  # once the function is open, if it is for the fast path
        self._wanted_rows = max(options.slots, rows)
        self._has_uncalled = has_uncalled
        self._is_admitting = self._will_admit = self._will_emit = False

    @property
    def available(self) -> int:
        """How many rows may come one by one: what the call slots can start at once, less the rows that wait."""
        return self._wanted_rows - self._inlet.waiting

    def process(self, element: StreamElement) -> None:
        """Take one row, or a marker at its place behind the rows so far."""
        self._inlet.put(element)
        self._pool.wake()

    process_marker = process

    def look_at_input(self) -> None:
        self._wake()
        self.admit_without_slot()
        if self._input.has_ended:
            self.finish_if_drained()

    def _memory_is_free(self) -> None:
        """There may be places again, for a row or for cached rows."""
        if not self.has_finished:
            self.look_at_input()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the function; at the end of the block wait until everything is emitted, close, and end the output.

        Raises:
            AsyncUDFError: a row failed under `on_error="raise"`, or the function could not be opened or closed.
        """
        async with self._sharing.running():
            async with contextlib.AsyncExitStack() as stack:
                resources = await stack.enter_async_context(opened(self._spec, self._context))
                stack.callback(self._calls.close)
                await stack.enter_async_context(self._limits.running())
                stack.push_async_exit(closing(self._end_calls, f"the calls of {self.name} could not be ended"))
                self._open(invoker_of(self._spec, self._options, resources, self._context, self._codec))
                with self._owning_its_end():
                    yield
                    await self._finished
            self._end_output()

    def _open(self, invoker: Invoker) -> None:
        """The function is open: calls can begin."""
        self._calls.use(invoker)
        if self._calls.function is not None:
            complete: Callable[[Entry, Any], object] = self._complete
            if self._output.leaves_chain:
                # No code runs there that could complete a row, or see the variables of a call.
                complete = self._queue.completing(self._output, self._emit_plainly)
            self._fast_path = FastPath(
                self, self._finished, self._calls, self._intake, self._emitter, self._memory, complete
            )
        FAIL_TASK.set(self._may_fail)
        self._pool.open()
        self._request_batch()
        self._pool.wake()
        self._sharing.open()

    def _may_fail(self) -> Callable[[str], None]:
        """The value of FAIL_TASK."""
        failed = self._admission.failed

        def fail(mistake: str) -> None:
            if failed != self._admission.failed:
                return
            error = FatalError(f"{self.name} {mistake}")
            if asyncio._get_running_loop() is self.loop:
                self.fail(error)
            else:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self.loop.call_soon_threadsafe(self.fail, error)

        return fail

    async def _end_calls(self, exc_type: type[BaseException] | None, *_: object) -> None:
        self._calls.abandon()
        await self._sharing.end()
        self._calls.abandon()  # calls that have begun meanwhile
        await self._pool.close(patient=exc_type is None)

    def fail(self, error: BaseException) -> None:
        self._calls.counts.ends_task(error)
        super().fail(error)

    # Rows enter.

    def has_rows(self) -> bool:
        return self._intake.has_call or self._sharing.is_waiting

    def has_work(self) -> bool:
        if self._finished.done():
            return False
        return self._calls.has_ready or self._intake.has_call

    def slots_are_taken(self) -> None:
        """A call begins in the last slot, or a limit holds calls back: the next element may need neither."""
        if not self._will_admit and (self._pool.is_full or self._admission.closed_by is not None):
            self._will_admit = True
            self.loop.call_soon(self._admit_soon, context=self._own_context.copy())

    def _admit_soon(self) -> None:
        self._will_admit = False
        self.admit_without_slot()

    def admit_without_slot(self) -> None:
        """Admit elements that need no slot (markers, rows that need no call) while no slot is free."""
        if self._is_admitting:  # an element may leave at once, and the emission comes here again
            return
        if self._emitter.is_going_on:  # the row that is leaving has completed another one, and must not be passed
            self.slots_are_taken()
            return
        self._is_admitting = True
        try:
            while (self._pool.is_full or self._admission.closed_by is not None) and self._intake.may_admit_without_slot:
                if not self._intake.admit_without_slot():
                    self.finish_if_drained()
                    break
        finally:
            self._is_admitting = False

    def finish_if_drained(self) -> None:
        if self._intake.is_drained and not self._finished.done():
            self._finished.set_result(None)

    def snapshot_state(self) -> list[StreamElement]:
        """The elements not yet emitted, in order: first the queue, then what was fed and not admitted.

        After `restore_state` each row is called anew: emission is exactly once, calls are at least once, as in Flink.
        """
        return plain(self._queue.values() + self._inlet.values())

    def restore_state(self, elements: Sequence[StreamElement]) -> None:
        """Replay a snapshot before any new input; it may hold more elements than the queue."""
        self._inlet.restore(elements)
        self._pool.wake()

    # Calls are made.

    async def work(self, slot: CallSlot) -> None:
        """The life of one call slot: one call after another, until there is no call or the slot is dirty."""
        # All in one coroutine: each coroutine between a call and its task costs something whenever the call goes on.
        #
        # In this order: a row whose back-off is over, as it has waited longest; then the fast path, which takes rows
        # itself; then calls that it cannot run (a plain def, a micro-batch, 0..n results, `retry_if_result`).
        try:
            slot.capture_baseline()
            clock, pause, fast_path = self._calls.clock, self._calls.pause, self._fast_path
            end = clock() + pause
            while not (self._finished.done() or slot.is_dirty()):
                if self._admission.closed_by is not None:
                    if self._pool.is_led_by_another(slot):
                        break
                    await self._admission.opened()
                    continue
                # A dead service is tried with a new row, if there is one: rows that have failed may be the cause.
                is_broken = not self._admission.is_open and self._health.is_broken
                is_new = is_broken and self._intake.has_call and not self._calls.has_new
                call = None if is_new else self._calls.next_ready()
                is_fast = self._admission.may_begin_row and not is_broken and (call is None or call.is_first)
                if fast_path is not None and is_fast:
                    try:
                        has_more = await fast_path.run(slot, call)
                    finally:
                        fast_path.flush()
                    if has_more and not slot.is_dirty():
                        await asyncio.sleep(0)
                    elif not self._calls.has_ready:
                        break
                    continue
                if call is None:
                    if not (rows := self._intake.rows_of_a_call()):
                        self.finish_if_drained()
                        break
                    call = self._calls.open(*zip(*rows, strict=True))
                    if not self._sharing.may_begin(call):
                        continue
                if self._calls.begin(slot, call):
                    await self._run_call(slot, call)
                # Calls that return at once: let timers and the mailbox have their turn.
                if clock() > end and not slot.is_dirty():
                    await asyncio.sleep(0)
                    end = clock() + pause
        except BaseException as error:  # the source or the output failed, not a row
            if slot.abandoned or (issubclass(type(error), asyncio.CancelledError) and slot.task.cancelling()):
                raise  # the pool has cancelled the slot, or other code has, between two calls
            self.fail(error)
        finally:
            self._pool.retire(slot)
            self._admission.slot_is_free()
            self._calls.evaluate_held()
            self.finish_if_drained()

    async def _run_call(self, slot: CallSlot, call: Call) -> None:
        running = self._calls.invoke(slot, call)
        self._pool.release(slot)
        results = error = None
        try:
            results = await running
        except BaseException as raised:  # every error of the user's code has its policy
            error = raised
        if not slot.abandoned:
            self._calls.ended(slot, call, results, error)

    def wanted_calls(self) -> int:
        """How many calls would be in flight if limits allowed it."""
        rows = min(self._input.known_rows, self._queue.places)
        return min(self._pool.capacity, self._pool.in_flight + len(self._calls.ready) + rows)

    def calls_wait(self) -> None:
        """A limit holds all calls back."""
        if self._has_uncalled:
            self.slots_are_taken()

    def health_changed(self) -> None:
        """More is known of the service, or of the calls that are to come."""
        if not self._finished.done():
            self._calls.evaluate_held()

    def waiting_has_changed(self) -> None:
        """The rows of calls that wait hold more memory than others."""
        if self._memory is not None:
            self._memory.hold_calls(self._calls.backing_off + self._sharing.followers)

    # Results leave.

    def push(self) -> None:
        """Emit everything that may leave, and let a slot start on what there is place for then."""
        self._emit()
        self._wake()

    def _wake(self) -> None:
        self._pool.wake()
        if self._health.held is not None and self._pool.is_idle:  # no slot ends and decides about these
            self.loop.call_soon(self.health_changed, context=self._own_context.copy())

    def emit_done(self, records: list[Any], results: list[Any]) -> None:
        """Emit rows that have one result each, or give them their places; both lists are empty then."""
        try:
            self._emitter.emit_done(records, results)
        except BaseException as error:  # a call that has just begun must not fail with it
            self.fail(error)
        if self._queue.has_completed_elements():
            self.push()

    def emit_cached(self, records: list[Any], results: list[Any]) -> None:
        """Emit rows that need no call."""
        self.counters.totals.rows += len(records)
        self.counters.totals.results += len(records)
        self.emit_done(records, results)

    def _complete(self, entry: Entry, result: Any) -> None:
        entry.complete((result,))
        self._emit()

    def _emit_plainly(self) -> None:
        if not self._will_emit and self._emitter.emit_plainly():
            self._emit_soon()

    def _emit(self) -> None:
        # An operator further down has completed a row: the emission takes it. Or there is more to come already.
        if self._emitter.is_going_on or self._will_emit:
            return
        try:
            has_more = self._emitter.emit()
            self._held_back = has_more and self._output.available <= 0
            if has_more and not self._held_back:
                self._emit_soon()
        except BaseException as error:  # called from timers too, where an exception would only be logged
            self.fail(error)
        if self._has_uncalled or self._emitter.is_bounded:
            self.admit_without_slot()
        if not self._input.may_have_more:
            self.finish_if_drained()

    def _emit_soon(self) -> None:
        """Let the event loop have its turn, and emit more."""
        self._will_emit = True
        self.loop.call_soon(self._emit_more, context=self._own_context.copy())

    def _emit_more(self) -> None:
        self._will_emit = False
        if not self.has_finished:
            self.push()

    # Figures.

    def why_idle(self) -> State:
        """What a free slot waits for."""
        if self._held_back or (self._memory is not None and self._memory.waits_for_spark):
            return State.OUTPUT
        if self._sharing.is_waiting:
            return State.STORE
        if self._queue.places <= 0:
            return State.HEAD_OF_LINE
        return State.WINDING_DOWN if self._input.is_drained else State.INPUT

    @property
    def in_progress(self) -> tuple[int, int]:
        """Calls in flight, and rows in the queue."""
        return self._pool.in_flight, len(self._queue)

    def count_open(self) -> None:
        """Bring up to date how long the calls in flight have taken."""
        self._calls.count_open()

    def sample(self, *, was_blocked: bool) -> None:
        """Bring the counters up to date."""
        totals = self.counters.totals
        totals.in_flight_peak = max(totals.in_flight_peak, self._pool.most)
        if totals.calls:  # no slot waits for a call that fails at once
            totals.in_flight_peak = max(totals.in_flight_peak, 1)
        if self._sharing.keeps_results and not (totals.in_flight_peak or self.counters.calls_answered):
            # Slots were taken to see which rows have a call, and none had.
            self.counters.account.move(State.CALLS_BUSY, State.STORE)
        if self._memory is not None:
            self.waiting_has_changed()
            self._memory.look()
            totals.bytes_peak = self._memory.peak
        follows = self._sharing.followers > 0 and not self._pool.is_full
        self.counters.look(*self.in_progress, was_blocked=was_blocked, follows=follows)
