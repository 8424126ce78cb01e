"""AsyncWaitOperator: takes rows in, runs their calls, emits results in the promised order."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from asyncudf.queues import OrderedStreamElementQueue, StreamElement, StreamElementQueue, UnorderedStreamElementQueue

from ..._errors.exceptions import FatalError
from ..._functions.async_function import FAIL_TASK, TELL_LIMITS, RuntimeContext
from ..._functions.options import OnNullInput, Options, OutputMode
from ..._functions.signature import FunctionSpec
from ..._limits.coordinator.names import TaskIdentity
from ..._limits.gate import Gate
from ..._limits.own_limits import OwnLimits
from ..._observe.counters import TaskCounters
from ..._observe.time_account import State
from ..._observe.waits import Wait, Waiting
from ..calls.attempt import Attempt
from ..calls.costs import Costs, GroupBounds
from ..calls.gatekeeper import Gatekeeper
from ..calls.invokers import GroupCodec, Invoker, invoker_of
from ..calls.lifecycle import RowLifecycle
from ..calls.plain import returning, starting
from ..calls.resources import Opening, closing, opened
from ..calls.row import Row
from ..calls.slots import Slot, SlotPool, notify_on_suspend
from ..stored.elements import ROWS, AnsweredRows, UnreadableRow, plain
from .fast_path import BURST, FastPath, FastPathEnd
from .input import RowGroup
from .memory import QueueMemory, RowSizes, TaskBatches
from .null_answers import NullAnswers
from .operator import BufferedOperator, ChainedOperator
from .outputs import StreamOutput

if TYPE_CHECKING:
    from ..stored.sharing import StoreSharing
    from ..stored.stored_results import StoredResults

# Rows that leave before timers and the mailbox get their turn. More than calls that return at once can add before the
# next turn, or a long queue would never shrink.
LEAVE_AT_ONCE = 10_000
ANSWERED_TOGETHER = 200  # rows that need no call and are emitted together

QUEUES: dict[OutputMode, Callable[[int], StreamElementQueue]] = {
    OutputMode.ORDERED: OrderedStreamElementQueue,
    OutputMode.UNORDERED: UnorderedStreamElementQueue,
}


class AsyncWaitOperator(BufferedOperator, ChainedOperator):
    """Flink's `AsyncWaitOperator` for one task: every method is called on one event loop, nothing is locked.

    Rows are pulled: the operator calls `request_rows` when it can use more, and gets them by `feed`, or in a chain by
    `process` as long as it is `available`. Results leave in the order of `options.output_mode`, each exactly once, as
    long as `output` is available.

    Args:
        validate: checks and converts each result; raises ResultError for a result of another type.
        may_edit: whether arguments may be lists or dicts, which an attempt could edit before the next attempt.
        stored: the store of the function in this task; closed with the operator.
        counters: count what is done; their clock is the operator's.
        identity: this task among those of the job; None: this task is the whole job.
        shared_clock: seconds, of a clock that all tasks share to within a tenth of a second.
        own_limits: the limits that no other task shares; all operators of the task have the same object.
    """

    # The order of wrapping: store( deadline( retry( limits( slot( attempt_timeout( function )))))); that of the limits
    # is in `Gatekeeper`. A row asks the store before it has a deadline, and its result is written after the deadline
    # has been stopped.
    #
    # A row is in one place: in the input, which may prepare it (`_inlet`); in the queue; or it has left. In the queue
    # it has a `RowState`. There it holds a place and, in order, all rows behind it: so rows wait in the input, and a
    # slot takes one when its call can begin. Elements leave the input in `_take`, in `_call_rows` where a row is called
    # as soon as it has its place, and in a `FastPath`, where a row that needs none is called without one.
    #
    # Rows come, calls end, the output can take more: each such event first changes the state where it belongs, and then
    # calls `pump`, which looks at the state alone. `work` is the life of a slot, which makes the calls.
    #
    # A row that leaves runs the operators further down right here, on the stack of the code that has completed the row.
    # If they complete another row of this operator it must not overtake the row that is leaving: so only `pump` emits,
    # and while it does so it lets nothing else leave.
    #
    # len(_queue) <= queue_size; calls in progress that count <= capacity
    # _finished is set once: by the first error, or when the input has ended and the queue is empty

    def __init__(
        self,
        spec: FunctionSpec,
        options: Options,
        output: StreamOutput,
        context: RuntimeContext,
        *,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        validate: Callable[[Any], Any] | None = None,
        codec: GroupCodec | None = None,
        sizes: RowSizes | None = None,
        batches: TaskBatches | None = None,
        may_edit: bool = True,
        stored: StoredResults | None = None,
        counters: TaskCounters | None = None,
        identity: TaskIdentity | None = None,
        shared_clock: Callable[[], float] | None = None,
        own_limits: OwnLimits | None = None,
        request_rows: Callable[[], None] = lambda: None,
        fail: Callable[[BaseException], None] | None = None,
    ) -> None:
        # Each part is made of parts made before it. Whatever a part asks of the operator, such as `pump`, it asks when
        # rows flow, and by then all parts are there.
        super().__init__(output, loop, request_rows, fail)
        self.name, self._spec, self._options, self._context, self._codec = spec.name, spec, options, context, codec
        self._opening = Opening(spec.name, options.open_timeout)
        self.counters = counters or TaskCounters(loop.time)
        bounds = GroupBounds(spec, options)
        self._queue = QUEUES[options.output_mode](options.queue_rows)
        self._queue.entry_class = Row
        self._memory: QueueMemory | None = None
        if (limit := options.max_buffered_bytes) is not None:
            batches, sizes = batches or TaskBatches(loop), sizes or RowSizes()
            self._memory = QueueMemory(self._queue, limit, options.open_calls * bounds.size, sizes, batches)
            batches.watch(self._memory.update, self.pump)
        self._leaving_context = contextvars.copy_context()  # without the variables of any call
        self._has_uncalled = stored is not None or options.on_null_input is OnNullInput.NULL
        self._pool = SlotPool(self, options.slots, has_uncalled=self._has_uncalled)
        costs = Costs(options.counted, spec)
        self._gatekeeper = Gatekeeper(
            self, options, self._pool, spec, identity=identity, shared_clock=shared_clock, own_limits=own_limits
        )
        self._lifecycle = RowLifecycle(
            self, spec, options, self._pool, self._gatekeeper, costs, bounds, validate=validate, may_edit=may_edit,
            partition=context.partition, rng=rng,
        )  # fmt: skip
        self._sharing: StoreSharing | None = None
        if stored is not None:
            from ..stored.sharing import StoreSharing  # most workers have no store

            self._sharing = sharing = StoreSharing(
                self, stored, options, self._lifecycle, self._queue, self._buffer, request_rows,
                is_single=not spec.many_results,
            )  # fmt: skip
            self._inlet = sharing.inlet
            self._lifecycle.share(sharing)
        if options.on_null_input is OnNullInput.NULL:
            self._inlet = NullAnswers(self._inlet, validate)
        self._group: RowGroup | None = None
        if bounds.size > 1:
            self._group = RowGroup(bounds, self._lifecycle.weight_of, options.batch_linger, loop, self._pool.wake)
        self._wanted_rows = max(options.slots, bounds.size)
        self.is_taking = False  # an element is on its way from the input to its place, and none may pass it
        self._is_pumping = False  # rows leave
        self._will_pump = False  # `pump` is called in the next turn of the loop
        self._may_leave = LEAVE_AT_ONCE  # how many elements may leave before that turn
        self._is_plain = False  # rows are called as soon as they have their places, if no limit has to be asked
        self._fast_path: FastPath | None = None

    def observe(self, observer: Gate) -> None:
        """Ask this gate before each attempt; before `running`."""
        self._gatekeeper.observe(observer)

    @property
    def available(self) -> int:
        """How many rows may come one by one: what the call slots can start at once, less the rows that wait."""
        return self._wanted_rows - self._inlet.waiting

    def process(self, element: StreamElement) -> None:
        """Take one row, or a marker at its place behind the rows so far."""
        self._inlet.put(element)
        self._pool.wake()

    process_marker = process

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the function; at the end of the block wait until everything is emitted, close, and end the output."""
        async with contextlib.nullcontext() if self._sharing is None else self._sharing.running():
            async with contextlib.AsyncExitStack() as stack:
                learner = self._gatekeeper.learner
                TELL_LIMITS.set(None if learner is None else learner.tell)
                resources = await stack.enter_async_context(opened(self._spec, self._context, self._opening))
                stack.callback(self._lifecycle.close)
                await stack.enter_async_context(self._gatekeeper.running(self._lifecycle.backlog.aside))
                stack.push_async_exit(closing(self._end_calls, f"the calls of {self.name} could not be ended"))
                self._open(invoker_of(self._spec, self._options, resources, self._context, self._codec))
                with self._owning_its_end():
                    yield
                    await self._finished
            self._end_output()

    def _open(self, invoker: Invoker) -> None:
        """The function is open: calls can begin."""
        self._lifecycle.use(invoker)
        complete: Callable[[Any, Any], object] = self._complete
        if self._sharing is not None:
            complete = self._sharing.keep
        elif self._output.leaves_chain:
            # No code runs there that could complete a row, or see the variables of a call.
            complete = self._queue.completing(self._output, self.pump)
        self._starts, self._returned = starting(self._lifecycle), returning(self._lifecycle, complete)
        self._is_plain = self._lifecycle.function is not None and self._sharing is None
        if self._is_plain and FastPath.suits(self._lifecycle, self._output):
            self._fast_path = FastPath(
                self, self._lifecycle, self._buffer, self._queue, self._output, self._starts, self._returned,
                self._finished.done,
            )  # fmt: skip
        FAIL_TASK.set(self._may_fail)
        self._pool.open()
        self._request_rows()
        self._pool.wake()
        if self._sharing is not None:
            self._sharing.inlet.open()

    def _may_fail(self) -> Callable[[str], None]:
        """The value of FAIL_TASK."""
        failed = self._gatekeeper.failed

        def fail(mistake: str) -> None:
            if failed != self._gatekeeper.failed:
                return
            error = FatalError(f"{self.name} {mistake}")
            if asyncio._get_running_loop() is self.loop:
                self.fail(error)
            else:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self.loop.call_soon_threadsafe(self.fail, error)

        return fail

    async def _end_calls(self, exc_type: type[BaseException] | None, *_: object) -> None:
        self._lifecycle.abandon()
        if exc_type is not None:
            self._lifecycle.close()  # no row has an answer any more; else coroutines that run on have their deadlines
        if self._sharing is not None:
            await self._sharing.end()
        self._lifecycle.abandon()  # calls that have begun meanwhile
        await self._pool.close(patient=exc_type is None)

    def fail(self, error: BaseException) -> None:
        self._lifecycle.counts.ends_task(error)
        super().fail(error)

    # The state changes.

    def pump(self) -> None:
        # A call of it inside itself, by code further down that completes another row, returns at once: the outer one
        # goes on with what has changed, and no row overtakes the one that is leaving.
        if self._is_pumping or self._finished.done():  # after an error nothing more leaves
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
        if self._gatekeeper.held_failures is not None and self._pool.is_idle:  # no slot ends and decides about these
            self.loop.call_soon(self.health_changed, context=self._own_context.copy())

    def pump_soon(self) -> None:
        if not self._will_pump:
            self._will_pump = True
            self.loop.call_soon(self._pump_now, context=self._own_context.copy())

    def _pump_now(self) -> None:
        self._will_pump, self._may_leave = False, LEAVE_AT_ONCE
        self.pump()

    def _emit_and_take(self) -> None:
        while True:
            if not self.is_taking and self._must_take_without_slot():
                row = self._take(may_call=False)
                if row is not None:  # the result that had landed for it has just ended
                    self._lifecycle.backlog.put(Attempt((row,)))
            if not (emitted := self._emit()):
                break
            self._may_leave -= emitted
        if self._may_leave <= 0:
            self.pump_soon()
        self._held_back = self._queue.has_completed_elements() and self._output.available <= 0

    def _emit(self) -> int:
        """Let elements leave that may, while the output can take more; returns how many have left."""
        if not self._queue.has_completed_elements():
            return 0
        if self._output.leaves_chain:  # no code runs there that sees the variables of a call
            return self._queue.emit_completed_elements(self._output, self._may_leave)
        return self._leaving_context.run(self._emit_while_there_is_room)

    def _emit_while_there_is_room(self) -> int:
        queue, output, emitted = self._queue, self._output, 0
        # One by one: each may become many on its way.
        while emitted < self._may_leave and output.available > 0 and queue.emit_completed_elements(output, 1):
            emitted += 1
        return emitted

    def _must_take_without_slot(self) -> bool:
        """Whether no slot comes soon that would take in elements which need none."""
        # All slots may be held by coroutines that run on after their rows are done.
        if not (self._pool.is_full or self._gatekeeper.closed_by is not None):
            return False
        # Without rows that need no call there are only markers, and one behind rows has time until they have left.
        return self._queue.places > 0 if self._has_uncalled else self._queue.is_empty()

    def _finish_if_drained(self) -> None:
        if self._buffer.is_drained and self._queue.is_empty() and not self._finished.done():
            self._finished.set_result(None)

    # Rows enter.

    def _take(self, *, may_call: bool) -> Row | None:
        """Take elements out of the input, each into its place, up to the first row that is to be called; returns that.

        Without `may_call` it stays in the input if it was known to be one.
        """
        queue, source, sharing, entries = self._queue, self._buffer, self._sharing, self._queue.entries
        has_others = False
        self.is_taking = True
        try:
            while len(entries) < queue.most:
                element: Any = source.take() if may_call else source.take_unless(self._has_to_call)
                if element is None:
                    return None
                if type(element) in ROWS:
                    row: Row = queue.put_record(element)
                    row.open()
                    if sharing is None or sharing.admit(row):
                        return row
                else:
                    self._place(element)
                has_others = True
            return None
        finally:
            self.is_taking = False
            if has_others:
                self.pump()

    def _place(self, element: Any) -> None:
        """Give an element that is no row to call its place in the queue."""
        if type(element) is UnreadableRow:
            row: Row = self._queue.put_record(element)
            row.open()
            self._lifecycle.not_called([row], element.error)
            return
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
            self._buffer.put_back(element)  # type: ignore[arg-type]

    def _has_to_call(self, element: Any) -> bool:
        """Whether an element that is next in line is a row to call."""
        if self._sharing is not None:
            return self._sharing.has_to_call(element)
        return type(element) in ROWS

    def _leave(self, records: Sequence[Any], results: list[Any]) -> None:
        """Emit rows that have one result each, if they may leave; the others take their places in the queue."""
        was_pumping, self._is_pumping = self._is_pumping, True
        left = 0

        def leave() -> None:
            nonlocal left
            if self._output.leaves_chain:
                left = len(records)
                self._output.collect_results(records, results)
            while left < len(records) and self._output.available > 0:
                left += 1
                self._output.collect_result(records[left - 1], results[left - 1])

        try:
            if self._queue.may_pass():  # nothing before them waits: they need not be put
                self._leaving_context.run(leave)
        except BaseException as error:  # a call that has just begun must not fail with it
            self.fail(error)
        finally:
            self._is_pumping = was_pumping
        self._queue.put_completed(records[left:], results[left:])
        if self._queue.has_completed_elements():
            self.pump()

    def _next_row(self) -> Row | None:
        """The next row to call; all elements before it have their places."""
        while not self.is_taking and (self._sharing is None or self._sharing.claims.takes_more):
            row = self._take(may_call=True)
            if row is not None or not self._buffer.may_have_more or not self._queue.places:
                return row
        return None

    def _next_attempt(self) -> Attempt | None:
        """The next attempt: first rows whose back-off is over, which have waited longest, then new rows."""
        backlog = self._lifecycle.backlog
        # A dead service is tried with a new row, if there is one: rows that have failed may be the cause.
        is_new = (
            self._gatekeeper.held_failures is not None
            and self._gatekeeper.health.is_broken
            and not backlog.has_new
            and self._may_form_call()
        )
        attempt = backlog.next() if backlog.ready and self._has_ready() and not is_new else None
        while attempt is None:
            if self._group is not None:
                attempt = self._group.gather(self._next_row, self._is_starved)
            elif (row := self._next_row()) is not None:
                attempt = Attempt((row,))
            if attempt is None:
                self._finish_if_drained()
                return backlog.next() if self._has_ready() else None
            if self._sharing is not None and self._sharing.claims.claim(attempt):
                attempt = None
        return attempt

    def _has_ready(self) -> bool:
        """Whether there are attempts that should begin now, before rows that come now."""
        backlog = self._lifecycle.backlog
        if not backlog.ready or not backlog.waits_for_more():
            return bool(backlog.ready)
        is_waiting = self._sharing is not None and self._sharing.is_waiting
        return self._buffer.has_ended and not (is_waiting or self._may_form_call())

    def _may_form_call(self) -> bool:
        """Whether a slot would probably find rows for a call; sure only after one was taken."""
        if self._sharing is not None and not self._sharing.claims.takes_more:
            return False
        if self._buffer.may_have_more and self._queue.places > 0:
            return True
        return bool(self._group) and (self._group.is_ready or self._is_starved())  # type: ignore[union-attr]

    def _is_starved(self) -> bool:
        return self._buffer.has_ended or not self._queue.places  # a full queue waits for the rows of the group

    def has_rows(self) -> bool:
        return self._may_form_call() or (self._sharing is not None and self._sharing.is_waiting)

    def rows_under_way(self) -> list[Any]:
        """The rows that have their places and are not done; markers are from the start."""
        return [entry for entry in self._queue.entries if not entry.is_done]

    def has_work(self) -> bool:
        if self._finished.done():
            return False
        return self._has_ready() or self._may_form_call()

    def snapshot_state(self) -> list[StreamElement]:
        """The elements not yet emitted, in order: first the queue, then what was fed and not taken.

        After `restore_state` each row is called anew: emission is exactly once, calls are at least once, as in Flink.
        """
        called = () if self._fast_path is None else self._fast_path.values()
        return plain([*self._queue.values(), *called, *self._inlet.values()])

    def restore_state(self, elements: Sequence[StreamElement]) -> None:
        """Replay a snapshot before any new input; it may hold more elements than the queue."""
        self._inlet.restore(elements)
        self._pool.wake()

    # Calls are made.

    async def work(self, slot: Slot) -> None:
        """The life of one call slot: one call after another, until there is no call or the slot is dirty."""
        try:
            slot.capture_baseline()
            while not (self._finished.done() or slot.is_dirty()):
                if self._gatekeeper.closed_by is not None:
                    if self._pool.is_led_by_another(slot):
                        break
                    await self._gatekeeper.reopened()
                    continue
                calls = self._call_rows if self.may_call_rows() else self._call_each
                if await notify_on_suspend(calls(slot), slot, self._pool.release):
                    if not slot.is_dirty():
                        await asyncio.sleep(0)  # let timers and the mailbox have their turn
                elif self._gatekeeper.closed_by is None and not self._has_ready():
                    break
        except BaseException as error:  # the source or the output failed, not a row
            if slot.has_retired or (issubclass(type(error), asyncio.CancelledError) and slot.task.cancelling()):
                raise  # the pool has cancelled the slot, or other code has, between two calls
            self.fail(error)
        finally:
            self._pool.retire(slot)
            self._gatekeeper.slot_is_free()
            self._lifecycle.evaluate_held()
            self._finish_if_drained()

    def may_call_rows(self) -> bool:
        is_free = self._is_plain and self._gatekeeper.asks_nothing
        return is_free and not (self._lifecycle.backlog.ready or self.is_taking)

    async def _call_rows(self, slot: Slot) -> bool:
        """Call the function for one row after another, as soon as each has its place.

        Returns whether there may be more rows, after a pause; else there is none now, or no place.
        """
        if self._fast_path is not None and self._fast_path.may_begin():
            if (ending := await self._fast_path.of(slot)) is not FastPathEnd.QUEUE:
                return ending is FastPathEnd.TURN
            if not self.may_call_rows() or slot.is_dirty() or self._finished.done():
                return True
        # What never changes is looked up once: this is done for each row. The clock is read once for each: the end of a
        # call is the start of the next.
        lifecycle, gatekeeper, source, queue = self._lifecycle, self._gatekeeper, self._buffer, self._queue
        function, starts, returned, clock = lifecycle.function, self._starts, self._returned, lifecycle.clock
        entries, put_record = queue.entries, queue.put_record
        ready, is_over = lifecycle.backlog.ready, self._finished.done
        context, own, rows_have = slot.context, slot.own, ROWS
        assert function is not None
        started, longest_turn = clock(), lifecycle.longest_turn
        end = started + longest_turn  # when the event loop gets its turn
        while len(entries) < queue.most:
            element, rows, has_waited = None, source.current, False
            for element in islice(rows, BURST):
                if type(element) is not tuple and type(element) not in rows_have:
                    self.take_in(element)
                    break
                result = None  # or the last one would live on through this call
                row = put_record(element)  # type: ignore[arg-type]
                starts(slot, row, started)
                try:
                    result = await function(*element[0])  # type: ignore[index, misc]
                except BaseException as error:  # every error of the user's code has its policy
                    lifecycle.coroutine_ended(slot, own, None, error)
                    started = clock()
                else:
                    started = returned(slot, own, result) if slot.attempt is own else clock()
                if slot.is_suspended:
                    slot.is_suspended, has_waited = False, True
                    end = started + longest_turn
                elif started > end:
                    return True
                if ready or source.current is not rows or len(entries) >= queue.most or not gatekeeper.asks_nothing:
                    break
                try:
                    if context != slot.clean or slot.is_cancelled or is_over():
                        return True
                except BaseException:  # variables that cannot be compared
                    return True
            else:
                if element is not None:
                    if not has_waited:
                        return True
                elif not source.refill():
                    self._finish_if_drained()
                    return False
            if not self.may_call_rows() or slot.is_dirty() or is_over():
                return True
        return False

    def take_in(self, element: Any) -> None:
        self.is_taking = True
        try:
            self._place(element)
        finally:
            self.is_taking = False
        self.pump()

    async def _call_each(self, slot: Slot) -> bool:
        """Make one attempt after another, as the limits let them begin.

        Returns whether there may be more, after a pause; else there is no call, or a limit holds it back.
        """
        lifecycle, returned, is_direct = self._lifecycle, self._returned, self._lifecycle.function is not None
        end = 0.0  # when the event loop gets its turn; 0: it has just had it
        while self._gatekeeper.closed_by is None and (attempt := self._next_attempt()) is not None:
            result = None  # or the last result would live on through this call
            if lifecycle.begin(slot, attempt):
                try:
                    result = await lifecycle.start(slot, attempt)
                except BaseException as error:  # every error of the user's code has its policy
                    lifecycle.coroutine_ended(slot, attempt, None, error)
                    if not self._gatekeeper.asks_nothing:  # limits have to know of other failures before the next call
                        slot.is_suspended = False
                        return True
                else:
                    if is_direct and slot.attempt is attempt:
                        returned(slot, attempt, result)
                    else:
                        lifecycle.coroutine_ended(slot, attempt, result, None)
            if slot.is_suspended:
                end, slot.is_suspended = 0.0, False
            elif not end:
                end = lifecycle.clock() + lifecycle.longest_turn
            elif lifecycle.clock() > end:
                return True
            if slot.is_dirty() or self._finished.done() or (self._is_plain and self.may_call_rows()):
                return True
        return False

    def wanted_calls(self) -> int:
        rows = min(self._buffer.known_rows, self._queue.places)
        return min(self._pool.capacity, self._pool.in_flight + len(self._lifecycle.backlog.ready) + rows)

    @property
    def _followers(self) -> int:
        return 0 if self._sharing is None else self._sharing.followers

    def calls_wait(self) -> None:
        if self._has_uncalled:
            self.pump_soon()

    def health_changed(self) -> None:
        if not self._finished.done():
            self._lifecycle.evaluate_held()

    def waiting_has_changed(self) -> None:
        if self._memory is not None:
            self._memory.hold_calls(self._lifecycle.backlog.later + self._followers)

    def _complete(self, row: Row, result: Any) -> bool:
        row.complete((result,))
        self.pump()
        return True

    # Figures.

    def why_idle(self) -> State:
        if self._held_back or (self._memory is not None and self._memory.waits_for_spark):
            return State.OUTPUT
        if self._sharing is not None and self._sharing.is_waiting:
            return State.STORE
        if self._lifecycle.backlog.aside.attempts and (self._queue.places <= 0 or self._buffer.is_drained):
            return State.LIMIT
        if self._queue.places <= 0:
            return State.HEAD_OF_LINE
        return State.START_AND_END if self._buffer.is_drained else State.INPUT

    @property
    def lacks_input(self) -> bool:
        return super().lacks_input and not (self._sharing is not None and self._sharing.is_waiting)

    def waits(self) -> Iterator[Wait]:
        yield from self._opening.waits()
        in_flight, options, lifecycle = self._pool.in_flight, self._options, self._lifecycle
        longest = min(options.attempt_timeout or math.inf, options.timeout or math.inf)
        if in_flight and (oldest := self._pool.oldest) < math.inf:
            yield Wait(Waiting.CALL, self.name, oldest, longest)
        begun = self.counters.so_far()["attempts"] + in_flight
        yield from self._gatekeeper.waits(begun, lifecycle.backlog.aside)
        if (sharing := self._sharing) is not None:
            if (lease := sharing.claims.wait) is not None:
                yield lease
            elif sharing.is_waiting:
                yield Wait(Waiting.STORE, self.name, mark=self.counters.rows_done, left=options.store_timeout)
        if lifecycle.backlog.is_backing_off and not in_flight and self._gatekeeper.closed_by is None:
            yield Wait(Waiting.BACK_OFF, self.name, most=options.timeout or math.inf, mark=begun)

    @property
    def in_progress(self) -> tuple[int, int]:
        return self._pool.in_flight, len(self._queue)

    def count_open(self) -> None:
        self._lifecycle.count_open()

    def sample(self, *, was_blocked: bool) -> None:
        totals = self.counters.totals
        totals.in_flight_peak = max(totals.in_flight_peak, self._pool.most)
        if self.counters.calls_ended:  # no slot waits for a call that fails at once
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
        self._gatekeeper.count_aside()
