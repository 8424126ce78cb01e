"""StoredWaitOperator: an operator that asks a store before it calls, and keeps what it has called for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from .._calls.looked_up import KeyedRecord
from .._calls.lookup import Lookup
from .._calls.resources import closing
from .._calls.stored_calls import StoredCalls
from .._calls.stored_results import StoredResults
from .._functions.signature import FunctionSpec
from .._metrics.counters import TaskCounters
from .input_buffer import InputBuffer
from .lookup_buffer import LookupBuffer
from .uncalled_wait import UncalledWaitOperator

__all__ = ("StoredWaitOperator",)


class StoredWaitOperator(UncalledWaitOperator):
    """The same operator with other parts: an input that looks rows up, calls that keep their results.

    Args:
        stored: the store of the function in this task; closed with the operator.
        parts: as of an `AsyncWaitOperator`.
    """

    # The order of wrapping: store( deadline( retry( slot( attempt_timeout( function ))))). A row asks the store before
    # it has a deadline, and its result is written after the deadline has been stopped.

    _calls: StoredCalls
    _input: LookupBuffer

    def __init__(
        self, stored: StoredResults, spec: FunctionSpec, *parts: Any, counters: TaskCounters, **more: Any
    ) -> None:
        self._stored = stored
        self._lookup = Lookup(stored, counters, is_single=not spec.many_results)
        super().__init__(spec, *parts, counters=counters, **more)
        self._row_type = KeyedRecord
        self.gauges.waits_for_store = self._waits_for_store

    def _new_input(self, request_batch: Callable[[], None]) -> InputBuffer:
        return LookupBuffer(
            request_batch,
            self._lookup,
            self._loop,
            lambda: self._calls.landed.looking(),
            lambda missed: self._calls.landed.looked(missed),
            self._look_at_input,
            lambda error: self._fail(error),
        )

    def _new_calls(self, *parts: Any) -> StoredCalls:
        return StoredCalls(
            *parts,
            stored=self._stored,
            is_starved=lambda: self._queue.places <= 0,
            is_over=self._finished.done,
            weighed=self._bytes,
        )

    def _waits_for_store(self) -> bool:
        is_last = (self._calls.writer.is_writing or self._calls.claims.is_waiting) and not self._pool.in_flight
        return is_last or (self._input.is_looking_up and not self._input.may_have_more)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            told = f"what {self.name} has called for could not be stored"
            stack.push_async_exit(closing(self._close_in_own_task, told, limit=self._stored.close_limit))
            await stack.enter_async_context(super().running())
            self._input.open()
            yield

    async def _end_calls(self, exc_type: type[BaseException] | None, *error: object) -> None:
        # Whatever comes back while the others end is for nobody any more.
        self._calls.writer.end()
        self._calls.counts.abandon()
        await self._input.close()
        await self._calls.claims.close()
        await super()._end_calls(exc_type, *error)

    async def _close_in_own_task(self, *error: object) -> None:
        # The limits of a store would not count in one that is not to be cut short.
        await asyncio.create_task(self._close_store())

    async def _close_store(self) -> None:
        try:
            await self._calls.writer.close()
        finally:
            await self._stored.close()
