"""AsyncFunction, a function with a life cycle, and the ResultFuture that it completes."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from .._errors.exceptions import AsyncTimeoutError
from .._errors.type_mismatch import check_awaited, result_error
from .context import RuntimeContext

Results = Sequence[Any]
Deliver = Callable[[Results | None, BaseException | None], None]


class ResultFuture:
    """The results of one row, completed once, from any thread.

    The first completion finishes the row at once, even if the coroutine runs on; later ones are ignored.
    """

    # Not an asyncio.Future: only the loop's thread may complete one, it raises at the second completion, and its
    # callbacks run one turn of the loop later, while the row's slot must be free at once.
    #
    # _deliver is called once, on the loop's thread: this decides which of two racing completions is the first.

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

        With anything but a list or a tuple the row fails with a `ResultError`: a string would otherwise be
        emitted letter by letter. If the code of a list's own class raises, the row fails with that error.
        """
        try:
            taken = as_results(results, self._function)
        except BaseException as error:  # raised in a caller's thread it may go unseen, and the row would wait for ever
            self._finish(None, error)
        else:
            self._finish(taken, None)

    def complete_exceptionally(self, error: BaseException) -> None:
        """Fail the row's attempt with an exception, to which `retry` and `on_error` apply."""
        if not isinstance(error, BaseException):
            error = result_error(f"{self._function}: complete_exceptionally takes an exception, not", error, "")
        self._finish(None, error)

    @property
    def is_done(self) -> bool:
        """Whether the future is completed."""
        return self._done

    async def wait(self) -> None:
        """Wait until the future is completed (for the operator)."""
        if not self._done:
            self._waiter = self._loop.create_future()
            await self._waiter

    def _finish(self, results: Results | None, error: BaseException | None) -> None:
        """Finish on the loop's thread: at once if this is it."""
        if threading.get_ident() == self._thread:
            self._finish_here(results, error)
            return
        try:
            self._loop.call_soon_threadsafe(self._finish_here, results, error)
        except RuntimeError:  # the loop is closed: the task ended and did not wait for this thread
            self._done = True

    def _finish_here(self, results: Results | None, error: BaseException | None) -> None:
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

        In the operator forms `value` is a mapping of the named columns. It may return without completing the
        future: the row then waits until other code completes it, or for its deadline.
        """

    def timeout(self, value: Any, result_future: ResultFuture) -> None:
        """Give the results of a row whose deadline has passed; by default it fails with `AsyncTimeoutError`.

        Called on the event loop, must not wait, and must complete `result_future` before it returns.
        """
        result_future.complete_exceptionally(AsyncTimeoutError("the deadline has passed"))

    async def close(self) -> None:
        """Called once after the last row, also after a failure or a cancellation, if `open` was called."""


def as_results(results: Any, function: str) -> tuple[Any, ...]:
    """The results as a tuple. Raises ResultError for anything but a list or a tuple; a NamedTuple is one result."""
    if isinstance(results, (list, tuple)) and not hasattr(results, "_fields"):
        return tuple(results)
    check_awaited(function, results)
    raise result_error(
        f"{function} completed a row with", results, "; give a list of results: [result] for one, [] for none"
    )
