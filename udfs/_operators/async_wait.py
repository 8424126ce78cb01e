"""AsyncWaitOperator: admits rows, runs their calls, emits results in the promised order."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from asyncudf.queues import Entry, StreamElement, StreamRecord

from .._calls.attempts import Calls
from .._calls.call import Call, CallHooks
from .._calls.error_policy import ErrorPolicy
from .._calls.invokers import VectorCodec, invocation_of
from .._calls.micro_batch import MicroBatch
from .._calls.resources import closing, opened
from .._calls.slots import Worker, WorkerPool, driven
from .._functions.async_function import Results
from .._functions.context import RuntimeContext
from .._functions.signature import FunctionSpec, batch_rows
from .._policies.options import Options
from .buffered import Driver
from .emission import Emission
from .fast_path import BURST, Pace, Passed, run_direct
from .input_buffer import Fed, record_of
from .outputs import Output
from .queues import queue_of

__all__ = ("AsyncWaitOperator",)


class AsyncWaitOperator(Driver):
    """Flink's operator of that name for one task: every method is called on one event loop, nothing is locked.

    Rows are pulled: `want` is called when more can be used, which comes by `feed`, or in a chain by `process` while
    there is `room`. Results leave in the order of `options.output_mode`, each exactly once, while `output` has room.

    Args:
        finish: checks and converts each result; raises ResultError for one that does not fit.
        codec: for vectorized functions.
        weigh: how many bytes a result has, where they may be so large that `options.max_buffered_bytes` matters.
        may_edit: whether arguments may be lists or dicts, which an attempt could edit under the next one's feet.
        rng: for the jitter of delays.
    """

    # A row is in exactly one place: in the input, or in the queue, or emitted.
    # Of those in the queue, each unfinished one is in _batch or belongs to one Call.
    # len(_queue) <= queue_size; calls in progress that count <= capacity

    def __init__(
        self,
        spec: FunctionSpec,
        options: Options,
        output: Output,
        context: RuntimeContext,
        *,
        loop: asyncio.AbstractEventLoop,
        rng: random.Random,
        finish: Callable[[Any], Any] | None = None,
        codec: VectorCodec | None = None,
        weigh: Callable[[Any], int] | None = None,
        may_edit: bool = True,
        want: Callable[[], None] = lambda: None,
        failed: Callable[[BaseException], None] | None = None,
    ) -> None:
        super().__init__(output, loop, want, failed)
        self.name, self._spec = spec.name, spec
        self._on_timeout = options.on_timeout
        self._context = context
        self._finish = finish
        self._codec = codec
        self._queue, self._output, self._bytes = queue_of(options, output, weigh)
        self._weigh = None if self._bytes is None else weigh
        self._emission = Emission(self._queue, self._output, self._is_bounded)
        self._wanted_rows = max(options.capacity, batch_rows(spec, options))
        policy = ErrorPolicy(options, spec.name, context.partition)
        self._pace = Pace(loop.time, options.timeout, options.attempt_timeout)
        self._passed = Passed()
        self._direct: Callable[..., Coroutine[Any, Any, Any]] | None = None
        self._pool = WorkerPool(loop, options.capacity, self._work, self._has_work)
        self._batch = MicroBatch(batch_rows(spec, options), options.batch_linger, loop, self._pool.wake)
        hooks = CallHooks(self._push, self._fail, self._look_past_slots, self._pool.wake, self._pool.abandon)
        self._calls = Calls(spec, options, finish, may_edit, policy, rng, loop, hooks)

    @property
    def room(self) -> int:
        """How many rows may be handed over one by one: what the call slots can start at once, less what waits."""
        return self._wanted_rows - self._input.waiting

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
            invocation = invocation_of(self._spec, self._on_timeout, resources, self._context, self._codec)
            self._direct = self._calls.use(invocation)
            stack.callback(self._calls.close)
            stack.push_async_exit(closing(self._end_calls, f"the calls of {self.name} could not be ended"))
            self._pool.open()
            self._want()
            self._pool.wake()
            with self._owning_its_end():
                yield
                await self._finished
        self._end_output()

    async def _end_calls(self, kind: type[BaseException] | None, *_: object) -> None:
        await self._pool.close(patient=kind is None)

    def _look_past_slots(self) -> None:
        """Take markers, and the end, where all slots are held by coroutines that run on after their rows are done."""
        while self._pool.is_full and self._queue.is_empty():
            if (marker := self._input.take_marker()) is None:
                self._finish_if_drained()
                break
            self._put(marker)
            self._push()

    def _finish_if_drained(self) -> None:
        if self._input.is_drained and self._queue.is_empty() and not self._finished.done():
            self._finished.set_result(None)

    def snapshot_state(self) -> list[StreamElement]:
        """The elements not yet emitted, in order: those in the queue, then those handed over but not admitted.

        After `restore_state` each row is called anew: emission is exactly once, calls are at least once, as in Flink.
        """
        return self._queue.values() + self._input.values()

    def restore_state(self, elements: Sequence[StreamElement]) -> None:
        """Replay a snapshot before any new input; it may hold more elements than the queue."""
        self._input.restore(elements)
        self._pool.wake()

    def _has_work(self) -> bool:
        can_admit = self._input.may_have_more and self._queue.places > 0
        is_due = len(self._batch) > 0 and (self._batch.is_ready or self._input.has_ended)
        return not self._finished.done() and (can_admit or bool(self._calls.ready) or is_due)

    async def _work(self, worker: Worker) -> None:
        """The life of one call slot: pull a row, run its call, again; ends when there is nothing to pull."""
        try:
            await self._run_calls(worker)
        except BaseException as error:  # the source or the output failed, not a row
            if worker.abandoned or (isinstance(error, asyncio.CancelledError) and worker.task.cancelling()):
                raise  # the pool, or somebody else's code between two calls, has cancelled it
            self._fail(error)

    async def _run_calls(self, worker: Worker) -> None:
        worker.settle_in()
        clock, pause = self._pace.clock, self._pace.pause
        end = clock() + pause
        while not (self._finished.done() or worker.is_spoiled()):
            call = self._calls.next_ready()
            if call is None and self._direct is not None:
                if await self._run_direct(worker, self._direct):
                    await asyncio.sleep(0)
                elif not self._calls.ready:
                    return
                continue
            if call is None:
                rows = self._batch.gather(self._next_row, self._is_starved)
                if not rows:
                    return
                call = self._calls.open(*zip(*rows, strict=True))
            await self._run_call(worker, call)
            if clock() > end:  # calls that return at once: let timers and the mailbox have their turn
                await asyncio.sleep(0)
                end = clock() + pause

    async def _run_call(self, worker: Worker, call: Call) -> None:
        running = self._calls.invoke(worker, call)
        self._pool.done_pulling(worker)
        results = error = None
        try:
            results = await running
        except BaseException as raised:  # every error of the user's code has its policy
            error = raised
        if not worker.abandoned:
            self._calls.ended(worker, call, results, error)

    async def _run_direct(self, worker: Worker, function: Callable[..., Coroutine[Any, Any, Any]]) -> bool:
        """Run call after call for as long as rows come; False when the worker has nothing to do here."""
        running = run_direct(
            function, worker, self._finish, self._weigh, self._calls.asks, self._pace, self._passed, self
        )
        try:
            return await driven(running, worker, partial(self._suspended, worker))
        finally:
            if self._passed.records:
                self._pass()

    def next_rows(self, worker: Worker) -> Iterator[Fed] | None:
        """Rows for `run_direct`, at most a burst."""
        places = self._queue.places
        if not places or self._finished.done() or self._calls.ready or worker.is_spoiled():
            return None
        room = self._output.room if self._is_bounded else BURST
        self._passed.may_leave = room > 0 and self._queue.may_pass()
        if self._bytes is not None:
            self._passed.spare = self._bytes.spare
        return islice(self._input.current, min(BURST, places, room) if self._passed.may_leave else min(BURST, places))

    def refill(self) -> bool:
        """Go on to the next batch, for `run_direct`; False if there is none."""
        if not (has_rows := self._input.refill()):
            self._finish_if_drained()
        return has_rows

    def admit_marker(self, marker: Fed) -> None:
        """Take a marker that `run_direct` has come to."""
        if self._passed.records:
            self._pass()
        self._put(marker)  # type: ignore[arg-type]
        self._push()

    def ended(self, worker: Worker, results: list[Results] | None, error: BaseException | None) -> None:
        """A call of `run_direct` is over, and its result cannot simply be passed on."""
        if not worker.is_suspended:
            self._admit(worker)
        if not worker.abandoned:
            self._calls.ended(worker, worker.call, results, error)

    def _suspended(self, worker: Worker) -> None:
        self._admit(worker)
        self._pool.done_pulling(worker)

    def _admit(self, worker: Worker) -> None:
        if self._passed.records:
            self._pass()
        record = record_of(worker.slot.element)
        self._calls.admit(worker, record, self._put(record))  # type: ignore[arg-type]

    def _pass(self) -> None:
        """Take the rows that were done at once: emit them, if they need not wait in the queue."""
        passed = self._passed
        try:
            self._emission.emit_passed(passed)
        except BaseException as error:  # a call that has just begun must not be lost with it
            self._fail(error)
        if passed.records:
            self._queue.put_completed([*map(record_of, passed.records)], passed.results)  # type: ignore[list-item]
            passed.drop(len(passed.records))
        if self._queue.has_completed_elements():
            self._push()

    def _next_row(self) -> tuple[StreamRecord, Entry] | None:
        """The next row, if there is one and the queue has a place; markers before it go into the queue."""
        while self._queue.places and (element := self._input.next()) is not None:
            entry = self._put(element)
            if isinstance(element, StreamRecord):
                return element, entry
            self._push()
        self._finish_if_drained()
        return None

    def _is_starved(self) -> bool:
        return self._input.has_ended or not self._queue.places  # behind a full queue a batch would wait for itself

    def _put(self, element: StreamElement) -> Entry:
        entry = self._queue.try_put(element)
        assert entry is not None, "a place was free: only this coroutine-free stretch of code fills it"
        return entry

    def _push(self) -> None:
        """Emit everything that may leave."""
        if self._emission.is_going_on:
            return
        try:
            self._held_back = self._emission.emit()
        except BaseException as error:  # called from timers too, where an exception would only be logged
            self._fail(error)
        if self._is_bounded:
            self._look_past_slots()
        if not self._input.may_have_more:
            self._finish_if_drained()
        self._pool.wake()
