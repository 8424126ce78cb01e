"""What a user's function meets: AsyncFunction, its ResultFuture, and the context of the running call."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

from asyncudf.queues import StreamRecord

from ._errors import AsyncTimeoutError, AsyncUDFError, ResultError
from ._failures import misfit_error
from ._misfit import check_awaited
from ._tags import OutputTag, SideRecord, SideTypes, check_own_tag

__all__ = ("CURRENT_SLOT", "NO_RECORD", "AsyncFunction", "CallSlot", "ResultFuture", "RuntimeContext", "as_results")

Results = Sequence[Any]
Deliver = Callable[[Results | None, BaseException | None], None]


NO_RECORD = StreamRecord(())


class CallSlot:
    """What one of the `capacity` call slots is doing.

    Of a function that can ask for its context each attempt has one of its own, which the tasks that it makes share
    with it: one that outlives its row still sees that row.
    """

    __slots__ = ("attempt", "deadline", "element", "key", "side", "started")

    def __init__(self, element: Any = NO_RECORD, attempt: int = 1) -> None:
        self.element: Any = element  # of a vectorized call, one whose value is that of all rows
        self.attempt = attempt
        self.started = 0.0  # when the attempt began, on the loop's clock
        self.deadline: float | None = None  # of the row; None: not registered yet, the call is in its first step
        self.key: str | None = None  # made when it is first asked for
        self.side: list[SideRecord] = []  # what this attempt has written to side outputs


CURRENT_SLOT: ContextVar[CallSlot] = ContextVar("asyncudf_call_slot")


class RuntimeContext:
    """Where a function runs, and what is known of the row that it is working on.

    Given to `AsyncFunction.open`; a plain function gets it by a parameter annotated `RuntimeContext`. One
    object per task: the per-row parts speak of the row whose call asks.

    >>> from asyncudf.testing import run_rows
    >>> async def charge(card: str, context: RuntimeContext) -> int:
    ...     return context.attempt_number
    >>> run_rows(charge, ["4111"])
    [1]
    """

    def __init__(
        self,
        function: str,
        clock: Callable[[], float],
        *,
        partition: int = 0,
        task_attempt_number: int = 0,
        timeout: float | None = None,
        side_types: SideTypes = lambda tag: None,
    ) -> None:
        self._function = function
        self._clock = clock  # the loop's time; a function in a thread has no running loop to ask
        self._partition = partition
        self._task_attempt_number = task_attempt_number
        self._timeout = timeout
        self._side_types = side_types

    @property
    def partition(self) -> int:
        """The Spark partition of this task, from 0."""
        return self._partition

    @property
    def task_attempt_number(self) -> int:
        """How often Spark has started this task before, from 0."""
        return self._task_attempt_number

    @property
    def attempt_number(self) -> int:
        """Which call for the current row this is, from 1.

        Raises:
            AsyncUDFError: asked outside a call, for example in `open`.
        """
        return self._slot().attempt

    def remaining(self) -> float | None:
        """Seconds until the deadline of the current row (all attempts and back-offs), or None without a timeout.

        Raises:
            AsyncUDFError: asked outside a call.
        """
        slot = self._slot()
        if self._timeout is None:
            return None
        deadline = slot.started + self._timeout if slot.deadline is None else slot.deadline
        return max(0.0, deadline - self._clock())

    @property
    def idempotency_key(self) -> str:
        """A key for the current row: the same in every attempt and in every re-run of the task.

        Made of the function's name and the input values, so two equal rows have the same key: a service that
        is told the key can answer the second from the first.

        Raises:
            AsyncUDFError: asked outside a call.
        """
        slot = self._slot()
        if slot.key is None:
            text = f"{self._function}:{slot.element[0]!r}"
            slot.key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        return slot.key

    def output(self, tag: OutputTag, value: Any) -> None:
        """Write a row to a side output, which `AsyncStream.side_output(tag)` reads.

        The row leaves together with the results of the current row, at its place in line, and counts only if
        this attempt gives those results: what a failed attempt has written is dropped, so nothing is written
        twice by a retry. A tag that nobody reads, and any at the doors without side outputs (a column, SQL,
        `ordered_wait(df, ...)`), is dropped as in Flink.

        Raises:
            ResultError: the value does not fit the tag's schema.
            OptionError: not a tag, or one that the library fills.
            AsyncUDFError: asked outside a call.
        """
        fit = self._side_types(check_own_tag(tag))
        slot = self._slot()
        if fit is not None:
            slot.side.append(SideRecord(tag, fit(value)))

    @staticmethod
    def _slot() -> CallSlot:
        slot = CURRENT_SLOT.get(None)
        if slot is None:
            raise AsyncUDFError("no row is being worked on here; ask inside a call, not in open() or close()")
        return slot


class ResultFuture:
    """The results of one row, completed once, from any thread.

    The first completion finishes the row at once, even if the coroutine runs on; later ones are ignored.
    """

    __slots__ = ("_deliver", "_done", "_function", "_loop", "_thread", "_waiter")

    def __init__(self, function: str, loop: asyncio.AbstractEventLoop, deliver: Deliver) -> None:
        self._function = function
        self._loop = loop
        self._thread = threading.get_ident()
        self._deliver = deliver
        self._done = False
        self._waiter: asyncio.Future[None] | None = None

    def complete(self, results: Sequence[Any]) -> None:
        """Finish the row with a list of 0..n results.

        Anything but a list or a tuple makes the row fail with a `ResultError`: a string would otherwise be
        emitted letter by letter.
        """
        try:
            self._settle(as_results(results, self._function), None)
        except ResultError as error:
            self._settle(None, error)

    def complete_exceptionally(self, error: BaseException) -> None:
        """Finish the row's attempt with an exception, which follows `retry` and `on_error`."""
        if not isinstance(error, BaseException):
            error = misfit_error(f"{self._function}: complete_exceptionally takes an exception, not", error, "")
        self._settle(None, error)

    @property
    def is_done(self) -> bool:
        """Whether a completion has been seen."""
        return self._done

    async def wait(self) -> None:
        """Wait until the future is completed (for the operator)."""
        if not self._done:
            self._waiter = self._loop.create_future()
            await self._waiter

    def _settle(self, results: Results | None, error: BaseException | None) -> None:
        if threading.get_ident() == self._thread:
            self._settle_here(results, error)
            return
        try:
            self._loop.call_soon_threadsafe(self._settle_here, results, error)
        except RuntimeError:  # the loop is closed: the task ended without waiting for this thread
            self._done = True

    def _settle_here(self, results: Results | None, error: BaseException | None) -> None:
        if self._done:
            return
        self._done = True
        self._deliver(results, error)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class AsyncFunction(ABC):
    """A function with a life cycle: one instance per task, opened and closed on the event loop of its calls.

    `open`, `async_invoke`, `timeout` and `close` all run on the task's own loop, so a client made in `open`
    belongs to the loop that uses it. After Flink's `RichAsyncFunction`.

    >>> from asyncudf.testing import run_rows
    >>> class Double(AsyncFunction):
    ...     async def async_invoke(self, value, result_future):
    ...         result_future.complete([value, value])
    >>> run_rows(Double(), [1, 2])
    [1, 1, 2, 2]
    """

    async def open(self, context: RuntimeContext) -> None:
        """Called once before the first row; make clients here."""

    @abstractmethod
    async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
        """Call the service for one row and complete `result_future` with 0..n results.

        `value` is a mapping of the named columns in the operator forms. Returning without a completion is
        allowed: the row then waits for a completion from elsewhere, until its deadline.
        """

    def timeout(self, value: Any, result_future: ResultFuture) -> None:
        """Give the results of a row whose deadline has passed; by default it fails with `AsyncTimeoutError`.

        Called on the event loop, must not wait, and must complete `result_future` before it returns.
        """
        result_future.complete_exceptionally(AsyncTimeoutError("the deadline has passed"))

    async def close(self) -> None:
        """Called once after the last row, also after a failure or a cancellation, if `open` was called."""


def as_results(results: Any, function: str) -> tuple[Any, ...]:
    """A tuple of results, if that is what was given."""
    if isinstance(results, (list, tuple)) and not hasattr(results, "_fields"):
        return tuple(results)
    check_awaited(function, results)
    raise misfit_error(
        f"{function} completed a row with", results, "; give a list of results: [result] for one, [] for none"
    )
