"""AsyncWaitOperator: takes rows in, runs their calls, emits results in the promised order."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import islice
from typing import Any

from asyncudf.queues import StreamElement

from .._calls.calls import Calls
from .._calls.invokers import BatchBounds, BatchCodec, Costs, Invoker, invoker_of
from .._calls.resources import closing, opened
from .._calls.row import NO_TROUBLE, Call, Row
from .._calls.service import Service
from .._calls.slots import CallSlot, SlotPool, notify_on_suspend
from .._coordination.client import TaskIdentity
from .._errors.exceptions import FatalError
from .._functions.async_function import FAIL_TASK, Results, RuntimeContext
from .._functions.signature import FunctionSpec
from .._metrics.counters import TaskCounters
from .._metrics.time_account import State
from .._policies.options import OnNullInput, Options
from .._stored.elements import ROWS, AnsweredRows, plain
from .._stored.sharing import StoreSharing
from .._stored.stored_results import StoredResults
from .emitter import Emitter, queue_of
from .input import MicroBatch
from .memory import QueueMemory, RowSizes, TaskBatches
from .null_answers import NullAnswers
from .operator import BufferedOperator, ChainedOperator
from .outputs import Output

# Rows that leave before timers and the mailbox get their turn. More than calls that return at once can add before the
# next turn, or a long queue would never shrink.
AT_ONCE = 10_000
ANSWERED_TOGETHER = 200  # rows that need no call and are emitted together
BURST = 200  # rows that are taken together
BURSTS_AT_ONCE = 20  # such bursts, if calls fail at once or wait each, before the event loop gets its turn for sure


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

    # The order of wrapping: store( deadline( retry( budget( breaker( limits( slot( attempt_timeout( function )))))))).
    # A row asks the store before it has a deadline, and its result is written after the deadline has been stopped.
    #
    # A row is in one place: in the input, which may prepare it (`_inlet`); in the queue; or it has left. In the queue
    # it waits for its call (`_batch`, `Claims`, `Calls.ready`, back-off, held), is called in a slot, follows the call
    # of an equal row, or waits until its result is written. There it holds a place and, in order, all rows behind it:
    # so rows wait in the input, and a slot takes one when its call can begin. `_take` is the only place where elements
    # leave the input, but for `_burst`, whose row is in its slot (`record`) or in `_records` until it needs a place.
    #
    # Rows come, calls end, the output can take more: each such event first changes the state where it belongs, and then
    # calls `pump`, which looks at the state alone. `work` is the life of a slot, which makes the calls.
    #
    # len(_queue) <= queue_size; calls in progress that count <= capacity
    # _finished is set once: by the first error, or when the input has ended and the queue is empty
    # _is_taking: an element is on its way from the input to its place, and none may pass it
    # _is_pumping: rows leave; _will_pump: `pump` is called in the next turn of the loop
    # _may_leave: how many elements may leave before that turn
    # _records, _results: rows that were done at once, in their order, none of them in the queue. Only one slot fills
    # them, until its call suspends; _times: when each was done; the first of them began at _since

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
        # Each part is made of parts made before it. Whatever a part asks of the operator, such as `pump`, it asks when
        # rows flow, and by then all parts are there.
        super().__init__(output, loop, request_batch, fail)
        self.name, self._spec, self._options, self._context, self._codec = spec.name, spec, options, context, codec
        self.counters = counters or TaskCounters(loop.time)
        bounds = BatchBounds(spec, options)
        self._queue = queue_of(options)
        self._memory: QueueMemory | None = None
        if (limit := options.max_buffered_bytes) is not None:
            batches, sizes = batches or TaskBatches(loop), sizes or RowSizes()
            self._memory = QueueMemory(self._queue, limit, options.open_calls * bounds.size, sizes, batches)
            batches.watch(self._memory.update, self._memory_is_free)
        self._emitter = Emitter(self._queue, output)
        self._has_uncalled = stored is not None or options.on_null_input is OnNullInput.NULL
        self._pool = SlotPool(self, options.slots, has_uncalled=self._has_uncalled)
        costs = Costs(options.rate_limit, options.budgets, spec)
        self._service = Service(
            self, options, self._pool, costs.of_each, spec, identity=identity, shared_clock=shared_clock
        )
        self._calls = Calls(
            self, spec, options, self._pool, self._service, costs, bounds, validate=validate, may_edit=may_edit,
            partition=context.partition, rng=rng,
        )  # fmt: skip
        self._sharing: StoreSharing | None = None
        if stored is not None:
            self._sharing = sharing = StoreSharing(
                self, stored, options, self._calls, self._queue, self._input, request_batch,
                is_single=not spec.many_results,
            )  # fmt: skip
            self._inlet = sharing.inlet
            self._calls.share(sharing)
        if options.on_null_input is OnNullInput.NULL:
            self._inlet = NullAnswers(self._inlet, validate)
        self._batch: MicroBatch | None = None
        if bounds.size > 1:
            self._batch = MicroBatch(bounds, self._calls.weight_of, options.batch_linger, loop, self._pool.wake)
        self._wanted_rows = max(options.slots, bounds.size)
        self._is_taking = self._is_pumping = self._will_pump = False
        self._may_leave = AT_ONCE
        self._can_burst = False
        self._records: list[Any] = []
        self._results: list[Any] = []
        self._times: list[float] = []
        self._since = 0.0

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
        self.pump()

    def _memory_is_free(self) -> None:
        """There may be places again, for a row or for rows that need no call."""
        if not self.has_finished:
            self.look_at_input()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the function; at the end of the block wait until everything is emitted, close, and end the output.

        Raises:
            AsyncUDFError: a row failed under `on_error="raise"`, or the function could not be opened or closed.
        """
        async with contextlib.nullcontext() if self._sharing is None else self._sharing.running():
            async with contextlib.AsyncExitStack() as stack:
                resources = await stack.enter_async_context(opened(self._spec, self._context))
                stack.callback(self._calls.close)
                await stack.enter_async_context(self._service.running())
                stack.push_async_exit(closing(self._end_calls, f"the calls of {self.name} could not be ended"))
                self._open(invoker_of(self._spec, self._options, resources, self._context, self._codec))
                with self._owning_its_end():
                    yield
                    await self._finished
            self._end_output()

    def _open(self, invoker: Invoker) -> None:
        """The function is open: calls can begin."""
        self._calls.use(invoker)
        complete: Callable[[Any, Any], object] = self._complete
        if self._sharing is not None:
            complete = self._sharing.keep
        elif self._output.leaves_chain:
            # No code runs there that could complete a row, or see the variables of a call.
            complete = self._queue.completing(self._output, self.pump)
        self._returned, self._placed = self._calls.returning(complete), self._placing()
        self._can_burst = not (
            self._calls.function is None or self._calls.looks_at_results or self._sharing is not None
        )
        FAIL_TASK.set(self._may_fail)
        self._pool.open()
        self._request_batch()
        self._pool.wake()
        if self._sharing is not None:
            self._sharing.open()

    def _may_fail(self) -> Callable[[str], None]:
        """The value of FAIL_TASK."""
        failed = self._service.failed

        def fail(mistake: str) -> None:
            if failed != self._service.failed:
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
        if self._sharing is not None:
            await self._sharing.end()
        self._calls.abandon()  # calls that have begun meanwhile
        await self._pool.close(patient=exc_type is None)

    def fail(self, error: BaseException) -> None:
        self._calls.counts.ends_task(error)
        super().fail(error)

    # The state changes.

    def pump(self) -> None:
        """Something has changed: emit what may leave, take in what needs no slot, and start a slot if there is work."""
        # A call of it inside itself, by code further down that completes another row, returns at once: the outer one
        # goes on with what has changed, and no row overtakes the one that is leaving.
        if self._is_pumping:
            return
        self._is_pumping = True
        try:
            self._emit_and_take()
        except BaseException as error:  # called from timers too, where an exception would only be logged
            self.fail(error)
        finally:
            self._is_pumping = False
        self._finish_if_drained()
        self._pool.wake()
        if self._service.held_failures is not None and self._pool.is_idle:  # no slot ends and decides about these
            self.loop.call_soon(self.health_changed, context=self._own_context.copy())

    def pump_soon(self) -> None:
        """The same in the next turn of the event loop, once for all that ask for it."""
        if not self._will_pump:
            self._will_pump = True
            self.loop.call_soon(self._pump_now, context=self._own_context.copy())

    def _pump_now(self) -> None:
        self._will_pump, self._may_leave = False, AT_ONCE
        if not self.has_finished:
            self.pump()

    def _emit_and_take(self) -> None:
        while True:
            if not self._is_taking and self._must_take_without_slot():
                row = self._take(may_call=False)
                if row is not None:  # the result that had landed for it has just ended
                    self._calls.ready.append(row)
            if not (emitted := self._emitter.emit(self._may_leave)):
                break
            self._may_leave -= emitted
        if self._may_leave <= 0:
            self.pump_soon()
        self._held_back = self._queue.has_completed_elements() and self._output.available <= 0

    def _must_take_without_slot(self) -> bool:
        """Whether no slot comes soon that would take in elements which need none."""
        # All slots may be held by coroutines that run on after their rows are done.
        if not (self._pool.is_full or self._service.closed_by is not None):
            return False
        # Without rows that need no call there are only markers, and one behind rows has time until they have left.
        return self._queue.places > 0 if self._has_uncalled else self._queue.is_empty()

    def _finish_if_drained(self) -> None:
        if self._input.is_drained and self._queue.is_empty() and not self._finished.done():
            self._finished.set_result(None)

    # Rows enter.

    def _take(self, *, may_call: bool) -> Row | None:
        """Take elements out of the input, each into its place, up to the first row that is to be called.

        Returns:
            That row; without `may_call` it stays in the input if it was known to be one.
        """
        queue, source, sharing, line = self._queue, self._input, self._sharing, self._queue.line
        has_others = False
        self._is_taking = True
        try:
            while len(line) < queue.most:
                element: Any = source.take() if may_call else source.take_unless(self._has_to_call)
                if element is None:
                    return None
                if type(element) in ROWS:
                    row: Row = queue.put_record(element)
                    row.open()
                    if sharing is None or sharing.needs_call(row):
                        return row
                else:
                    self._place(element)
                has_others = True
            return None
        finally:
            self._is_taking = False
            if has_others:
                self.pump()

    def _place(self, element: Any) -> None:
        """Give an element that is no single row its place in the queue."""
        if type(element) is not AnsweredRows:
            self._queue.put_marker(element)
            return
        while len(element) and (places := self._queue.places) > 0:
            records, results = element.take(min(places, ANSWERED_TOGETHER))
            totals = vars(self.counters.totals)
            for figure in ("rows", "results", element.figure):
                totals[figure] += len(records)
            self._leave(records, results)
        if len(element):
            self._input.put_back(element)  # type: ignore[arg-type]

    def _has_to_call(self, element: Any) -> bool:
        """Whether an element that is next in line is a row to call."""
        if self._sharing is not None:
            return self._sharing.has_to_call(element)
        return type(element) in ROWS

    def _leave(self, records: list[Any], results: list[Any]) -> None:
        """Emit rows that have one result each, or give them their places; both lists are empty then."""
        was_pumping, self._is_pumping = self._is_pumping, True
        try:
            self._emitter.leave(records, results)
        except BaseException as error:  # a call that has just begun must not fail with it
            self.fail(error)
        finally:
            self._is_pumping = was_pumping
        if self._queue.has_completed_elements():
            self.pump()

    def _next_row(self) -> Row | None:
        """The next row to call; all elements before it have their places."""
        while not self._is_taking and (self._sharing is None or self._sharing.claims.takes_more):
            row = self._take(may_call=True)
            if row is not None or not self._input.may_have_more or not self._queue.places:
                return row
        return None

    def _next_call(self) -> Call | None:
        """The next call: of a row whose back-off is over, as it has waited longest, or of rows that come now."""
        # A dead service is tried with a new row, if there is one: rows that have failed may be the cause.
        is_new = (
            self._service.held_failures is not None
            and self._service.is_broken
            and not self._calls.has_new
            and self._may_form_call()
        )
        call = self._calls.next_ready() if self._has_ready() and not is_new else None
        while call is None:
            batch = self._batch
            call = self._next_row() if batch is None else batch.gather(self._next_row, self._is_starved)
            if call is None:
                self._finish_if_drained()
                return self._calls.next_ready() if self._has_ready() else None
            if self._sharing is not None and self._sharing.claims.claim(call):
                call = None
        return call

    def _has_ready(self) -> bool:
        """Whether there are calls whose next attempt should begin now."""
        if not self._calls.ready or not self._calls.waits_for_more():
            return bool(self._calls.ready)
        is_waiting = self._sharing is not None and self._sharing.is_waiting
        return self._input.has_ended and not (is_waiting or self._may_form_call())

    def _may_form_call(self) -> bool:
        """Whether a slot would probably find rows for a call; sure only after one was taken."""
        if self._sharing is not None and not self._sharing.claims.takes_more:
            return False
        if self._input.may_have_more and self._queue.places > 0:
            return True
        return bool(self._batch) and (self._batch.is_ready or self._is_starved())  # type: ignore[union-attr]

    def _is_starved(self) -> bool:
        return self._input.has_ended or not self._queue.places  # a full queue waits for the rows of the batch

    def has_rows(self) -> bool:
        return self._may_form_call() or (self._sharing is not None and self._sharing.is_waiting)

    def has_work(self) -> bool:
        if self._finished.done():
            return False
        return self._has_ready() or self._may_form_call()

    def snapshot_state(self) -> list[StreamElement]:
        """The elements not yet emitted, in order: first the queue, then what was fed and not taken.

        After `restore_state` each row is called anew: emission is exactly once, calls are at least once, as in Flink.
        """
        called = [slot.record for slot in self._pool.at_work if slot.record is not None]
        return plain([*self._queue.values(), *self._records, *called, *self._inlet.values()])

    def restore_state(self, elements: Sequence[StreamElement]) -> None:
        """Replay a snapshot before any new input; it may hold more elements than the queue."""
        self._inlet.restore(elements)
        self._pool.wake()

    # Calls are made.

    async def work(self, slot: CallSlot) -> None:
        """The life of one call slot: one call after another, until there is no call or the slot is dirty."""
        try:
            slot.capture_baseline()
            while not (self._finished.done() or slot.is_dirty()):
                if self._service.closed_by is not None:
                    if self._pool.is_led_by_another(slot):
                        break
                    await self._service.reopened()
                    continue
                calls = self._burst if self._may_burst() else self._call_each
                if await notify_on_suspend(calls(slot), slot, self._placed):
                    if not slot.is_dirty():
                        await asyncio.sleep(0)  # let timers and the mailbox have their turn
                elif self._service.closed_by is None and not self._has_ready():
                    break
        except BaseException as error:  # the source or the output failed, not a row
            if slot.abandoned or (issubclass(type(error), asyncio.CancelledError) and slot.task.cancelling()):
                raise  # the pool has cancelled the slot, or other code has, between two calls
            self.fail(error)
        finally:
            self._pool.retire(slot)
            self._service.slot_is_free()
            self._calls.evaluate_held()
            self._finish_if_drained()

    async def _call_each(self, slot: CallSlot) -> bool:
        """Make one call after another, as the limits let them begin.

        Returns:
            Whether there may be more, after a pause; else there is no call, or a limit holds it back.
        """
        calls, returned, is_direct = self._calls, self._returned, self._calls.function is not None
        end = 0.0  # when the event loop gets its turn; 0: it has just had it
        while self._service.closed_by is None and (call := self._next_call()) is not None:
            result = None  # or the last result would live on through this call
            if calls.begin(slot, call):
                try:
                    result = await calls.attempt(slot, call)
                except BaseException as error:  # every error of the user's code has its policy
                    calls.coroutine_ended(slot, call, None, error)
                    if not self._service.is_free:  # limits have to know of other failures before the next call
                        slot.is_suspended = False
                        return True
                else:
                    if is_direct and slot.call is call:
                        returned(slot, call, result)  # type: ignore[arg-type]
                    else:
                        calls.coroutine_ended(slot, call, result, None)
            if slot.is_suspended:
                end, slot.is_suspended = 0.0, False
            elif not end:
                end = calls.clock() + calls.pause
            elif calls.clock() > end:
                return True
            if slot.is_dirty() or self._finished.done() or (self._can_burst and self._may_burst()):
                return True
        return False

    # Calls that nothing holds back, of a function of one row and one result.

    def _may_burst(self) -> bool:
        return self._can_burst and self._service.is_free and not (self._calls.ready or self._finished.done())

    async def _burst(self, slot: CallSlot) -> bool:
        """Call the function for one row after another; a row gets a place in the queue only if its call suspends.

        Returns:
            Whether there may be more rows, after a pause.
        """
        # A function that has its answer at hand must cost little more than calling it: no place and no deadline is made
        # before it is known that the row needs one. If its call suspends, `_placed` makes them, as of when it began.
        #
        # After each row the loop checks what a single row may change: time, memory, traces in the context. A `break`
        # goes on with the next pass, before which everything is checked; a `return` goes back to `work`. To await costs
        # a third of driving each call by hand, which ends with an exception that has to be caught.
        calls, service, source, queue, memory = self._calls, self._service, self._input, self._queue, self._memory
        function, returned, clock, validate = calls.function, self._returned, calls.clock, calls.validate
        asks, limit, pause, is_over = calls.asks, calls.limit, calls.pause, self._finished.done
        note_record, note_result, note_time = self._records.append, self._results.append, self._times.append
        size, spare = None if memory is None else memory.size_of_result, 0.0
        takes_all, line, ready = not self._emitter.is_bounded, queue.line, calls.ready
        state, context, clean = slot.state, slot.context, slot.clean
        end = 0.0  # when the event loop gets its turn; 0: it has just had it
        try:
            for _ in range(BURSTS_AT_ONCE):
                self._flush()  # or its places would be given twice
                if not self._may_burst() or slot.is_dirty():
                    return True
                if not (count := min(self._emitter.places, BURST)):
                    return False
                if size is not None:
                    spare = memory.spare  # type: ignore[union-attr]
                taken, has_waited, started = None, False, clock()
                self._since = started
                if not end:
                    end = started + pause
                elif started > end:
                    return True
                rows = source.current
                for taken in islice(rows, count):
                    if type(taken) not in ROWS:
                        self._flush()
                        self._take_in(taken)
                        break
                    slot.record, slot.began = taken, started
                    if asks:
                        state, clean = slot.begin_attempt(taken), slot.clean
                        state.started = started
                    result = value = None  # or the last result would live on through this call
                    try:
                        result = await function(*taken[0])  # type: ignore[misc, index]
                    except BaseException as error:  # every error of the user's code has its policy
                        if slot.is_suspended:
                            end, slot.is_suspended = 0.0, False
                        self._burst_ended(slot, None, error)
                        break
                    if slot.is_suspended:
                        slot.is_suspended = False
                        if slot.call is not None:  # no name for it here, where it would live on through the next call
                            returned(slot, slot.call, result)  # type: ignore[arg-type]
                        self._since = started = clock()
                        end, has_waited = started + pause, True
                        if not (takes_all and service.is_free and len(line) <= queue.most - BURST) or (
                            source.current is not rows or ready or is_over()
                        ):
                            break
                    else:
                        if asks and (state.side or state.spent):  # it needs a place for its side records
                            self._burst_ended(slot, [(result,)], None)
                            break
                        try:
                            value = result if validate is None else validate(result)
                        except BaseException as error:  # to check it again would run code of the user's again
                            self._burst_ended(slot, None, error)
                            break
                        # The clock is read once per row: the end of this call is the start of the next.
                        if (now := clock()) - started > limit:
                            self._burst_ended(slot, [(result,)], None)
                            break
                        started = now
                        note_record(taken)
                        note_result(value)
                        note_time(now)
                        if now > end or (size is not None and (spare := spare - size(value)) <= 0):
                            return True
                    try:
                        if context != clean or slot.is_cancelled:  # `is_dirty` asks more than can have happened here
                            break
                    except BaseException:  # variables that cannot be compared
                        break
                else:
                    if taken is None:
                        if not source.refill():
                            self._finish_if_drained()
                            return False
                    elif not has_waited:
                        return True
            return True
        finally:
            slot.record = None
            self._flush()

    def _flush(self) -> None:
        """Emit the rows that were done at once, or give them their places in the queue."""
        if self._records:
            self.counters.done_at_once(self._since, self._times)
            self._times.clear()
            if self._memory is not None:
                self._memory.note_result(self._results[-1])
            self._leave(self._records, self._results)

    def _take_in(self, element: Any) -> None:
        """Give an element that a burst has taken, and that is no row, its place."""
        self._is_taking = True
        try:
            self._place(element)
        finally:
            self._is_taking = False
        self.pump()

    def _placing(self) -> Callable[[CallSlot], None]:
        """Makes a function that is called when the call in a slot suspends.

        A row of a burst gets its place in the queue, and its deadlines start as of when its call began.
        """
        # What never changes is looked up once: this is done for each row that has to wait.
        records, flush, put_record, release = self._records, self._flush, self._queue.put_record, self._pool.release
        timeout, deadlines = self._options.timeout, self._calls.deadlines
        attempts = self._calls.attempt_deadlines if self._options.attempt_timeout is not None else None
        watched = deadlines.line

        def placed(slot: CallSlot) -> None:
            if slot.record is not None:
                if records:
                    flush()
                slot.call = row = put_record(slot.record)
                slot.record = row.deadline = None
                row.attempt, row.slot, row.trouble = 1, slot, NO_TROUBLE
                row.is_fresh = row.is_over = False
                row.started = began = slot.began
                if timeout is not None:
                    watched[row] = slot.state.deadline = row.deadline = deadline = began + timeout
                    if deadlines.timer is None:
                        deadlines.watch_for(deadline)
                if attempts is not None:
                    attempts.start(row, began)
            if slot.is_suspended:
                release(slot)

        return placed

    def _burst_ended(self, slot: CallSlot, results: list[Results] | None, error: BaseException | None) -> None:
        """A call of a burst is over, and its result cannot simply be passed on."""
        self._placed(slot)  # an error, or a late result, needs what a row in the queue knows
        if slot.call is not None:
            self._calls.coroutine_ended(slot, slot.call, results, error)

    def wanted_calls(self) -> int:
        """How many calls would be in flight if limits allowed it."""
        rows = min(self._input.known_rows, self._queue.places)
        return min(self._pool.capacity, self._pool.in_flight + len(self._calls.ready) + rows)

    @property
    def _followers(self) -> int:
        return 0 if self._sharing is None else self._sharing.followers

    def calls_wait(self) -> None:
        """A limit holds all calls back."""
        if self._has_uncalled:
            self.pump_soon()

    def health_changed(self) -> None:
        """More is known of the service, or of the calls that are to come."""
        if not self._finished.done():
            self._calls.evaluate_held()

    def waiting_has_changed(self) -> None:
        """The rows of calls that wait hold more memory than others."""
        if self._memory is not None:
            self._memory.hold_calls(self._calls.backing_off + self._followers)

    def _complete(self, row: Row, result: Any) -> None:
        row.complete((result,))
        self.pump()

    # Figures.

    def why_idle(self) -> State:
        """What a free slot waits for."""
        if self._held_back or (self._memory is not None and self._memory.waits_for_spark):
            return State.OUTPUT
        if self._sharing is not None and self._sharing.is_waiting:
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
        if self._sharing is not None and not (totals.in_flight_peak or self.counters.calls_answered):
            # Slots were taken to see which rows have a call, and none had.
            self.counters.account.move(State.CALLS_BUSY, State.STORE)
        if self._memory is not None:
            self.waiting_has_changed()
            self._memory.look()
            totals.bytes_peak = self._memory.peak
        follows = self._followers > 0 and not self._pool.is_full
        self.counters.look(*self.in_progress, was_blocked=was_blocked, follows=follows)
