"""AsyncFunction, a function with a life cycle, the context that it asks, and the ResultFuture that it completes."""

from __future__ import annotations

import asyncio
import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

from asyncudf.queues import StreamRecord
from asyncudf.queues._public import public

from .._errors.checks import is_number
from .._errors.exceptions import AsyncTimeoutError, AsyncUDFError, FatalError, ResultError
from .._errors.safe import safe_repr
from .._errors.type_mismatch import check_awaited, result_error
from .._stores.keys import ResultKeys
from .side_outputs import OutputTag, SideRecord, SideTypes, check_own_tag

NO_RECORD = StreamRecord(())


class AttemptState:
    """What one of the `capacity` call slots is doing: which row, which attempt, since when.

    If the function can ask for its context, each attempt has a state of its own and shares it with the asyncio tasks
    that it starts: a task that outlives its row still sees that row.
    """

    __slots__ = (
        "attempt", "deadline", "element", "is_of_many", "key", "last_error", "sends_keys", "side", "spent",
        "started",
    )  # fmt: skip

    def __init__(self, element: Any = NO_RECORD, attempt: int = 1) -> None:
        self.element: Any = element  # of a vectorized call: its value has all rows
        self.attempt = attempt
        self.is_of_many = False  # whether the element's value is that of several rows
        self.started = 0.0  # when the attempt began, on the loop's clock
        self.deadline: float | None = None  # of the row; None: not registered yet, the call is in its first step
        self.last_error: Any = None  # what the attempt before has ended with
        self.sends_keys = False  # whether the function has asked for idempotency keys
        self.key: str | None = None  # made when it is first asked for
        self.side: list[SideRecord] = []  # what this attempt has written to side outputs
        self.spent: dict[str, float] | None = None  # what this attempt has spent, by unit


# A context variable, not an argument: one RuntimeContext serves all rows of the task, and the code that asks it may be
# deep in a call, in an asyncio task that the call started, or in a thread.
CURRENT_CALL: ContextVar[AttemptState] = ContextVar("asyncudf_call_slot")
# For a mistake in the function that concerns no single row and is noticed later. Returns a callable that any thread may
# call with the mistake: it fails the task, unless an attempt has failed meanwhile, which may be the reason.
FAIL_TASK: ContextVar[Callable[[], Callable[[str], None]]] = ContextVar("asyncudf_fail_task")

# Takes the headers of an answer, and when its call began; None: no limit of the function is learned from them.
TELL_LIMITS: ContextVar[Callable[[Any, float], None] | None] = ContextVar("asyncudf_tell_limits")


@public("asyncudf")
class RuntimeContext:
    """The task that a function runs in, and the row that it is working on.

    `AsyncFunction.open` gets it; a plain function gets it by a parameter annotated `RuntimeContext`. One object
    per task: what it says of a row is about the row whose call asks.

    Raises:
        AsyncUDFError: it is asked about a row, or told something of it, outside a call, for example in `open`.

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
        keys: Callable[[], ResultKeys] | None = None,
        is_stored: bool = False,
        metrics: Callable[[], dict[str, int]] = dict,
    ) -> None:
        self._function = function
        self._clock = clock  # the loop's time; a function in a thread has no running loop to ask
        self._partition = partition
        self._task_attempt_number = task_attempt_number
        self._timeout = timeout
        self._side_types = side_types
        self._make_keys = keys or (lambda: ResultKeys(function, "1", ""))
        self._is_stored = is_stored
        self._metrics = metrics

    @property
    def metrics(self) -> dict[str, int]:
        """What the function has done in this task so far, under the names that `run.metrics` has.

        These are `rows` that are done, `calls` that have ended, their `attempts`, and `failures`, `timeouts` and
        `throttled`.
        """
        return self._metrics()

    @property
    def partition(self) -> int:
        """The Spark partition of this task, from 0."""
        return self._partition

    @property
    def task_attempt_number(self) -> int:
        """How many times Spark has started this task before, from 0."""
        return self._task_attempt_number

    @property
    def attempt_number(self) -> int:
        """The number of this attempt for the current row, from 1."""
        return self._state().attempt

    @property
    def last_error(self) -> Any:
        """What the attempt before has ended with: its exception, or the result that `retry_if_result` did not accept.

        None in the first attempt. So a model can be asked again, and told what was wrong. In a call of many rows it is
        the error of the first row that has one. An exception has no traceback here.

        >>> from asyncudf import RetryStrategy
        >>> from asyncudf.testing import run_rows
        >>> async def ask(question: str, context: RuntimeContext) -> str:
        ...     if context.last_error is None:
        ...         raise ValueError("no JSON")
        ...     return f"{question} (not as before: {context.last_error})"
        >>> run_rows(ask, ["How many?"], retry=RetryStrategy.fixed_delay(2, 1.0))
        ['How many? (not as before: no JSON)']
        """
        return self._state().last_error

    def remaining(self) -> float | None:
        """Seconds until the deadline of the current row (all attempts and back-offs), or None without a timeout."""
        state = self._state()
        if self._timeout is None:
            return None
        deadline = state.started + self._timeout if state.deadline is None else state.deadline
        return max(0.0, deadline - self._clock())

    @property
    def idempotency_key(self) -> str:
        """A key for the current row: the same in every attempt and in every re-run of the task.

        Made of the function's name, its `version=`, the declared type and the input values. So two equal rows have the
        same key: a service that gets the key can answer the second from the first. It is the key of the row in a
        `ResultStore`, in hexadecimal digits. A call of several rows has one key for all of them;
        `idempotency_keys` has a key for each row.

        Raises:
            AsyncUDFError: no key can be made of the input.
        """
        state = self._state()
        state.sends_keys = True
        if state.key is None:
            value = state.element[0]
            state.key = (self._result_keys.of_call(value) if state.is_of_many else self._result_keys.of(value)).hex()
        return state.key

    @property
    def idempotency_keys(self) -> list[str]:
        """The `idempotency_key` of each row of this call, in their order: one, but for a vectorized function.

        A row keeps its key when it is called again, also together with other rows than before.

        Raises:
            AsyncUDFError: no key can be made of the input.
        """
        state = self._state()
        if not state.is_of_many:
            return [self.idempotency_key]
        state.sends_keys = True
        return [self._result_keys.of(value).hex() for value in state.element[0]]

    @functools.cached_property
    def _result_keys(self) -> ResultKeys:
        return self._make_keys()

    def spend(self, amount: float, unit: str = "USD") -> None:
        """Say what this attempt costs, if only the function knows; several amounts of one unit add up.

        It counts in `run.metrics`, also if the attempt fails, and in each `Budget` of this unit: the attempt then costs
        this and not what was reserved, beside what the budget's `settle` says. It has to be said before the function
        returns.

        Raises:
            ResultError: the amount is no number of 0 or more.

        >>> from asyncudf import Budget
        >>> from asyncudf.testing import run_rows
        >>> async def ask(question: str, context: RuntimeContext) -> str:
        ...     context.spend(0.25)
        ...     return question.upper()
        >>> run_rows(ask, ["a", "b", "c"], capacity=1, budget=Budget(0.6, reserve=0.3), on_spent="null")
        ['A', 'B', None]
        """
        if not (is_number(amount) and amount >= 0):
            raise ResultError(f"context.spend takes a number of 0 or more, not {safe_repr(amount)}")
        if not isinstance(unit, str) or not unit:
            raise ResultError(f"the unit of context.spend must be a text, not {safe_repr(unit)}")
        state = self._state()
        if state.spent is None:
            state.spent = {}
        state.spent[unit] = state.spent.get(unit, 0.0) + float(amount)

    def output(self, tag: OutputTag, value: Any) -> None:
        """Write a row to a side output, which `AsyncStream.side_output(tag)` reads.

        The row is emitted together with the results of the current row, at their place, and only if this attempt
        gives those results: what a failed attempt has written is dropped, so a retry writes nothing twice. Rows for a
        tag that is not read are dropped, as in Flink, and so are all rows at the entry points without side outputs
        (a column, SQL, `ordered_wait(df, ...)`).

        Raises:
            ResultError: the value does not fit the tag's schema.
            OptionError: `tag` is not a tag, or one that the library fills.
            FatalError: the function has a store, which keeps results alone: the next run would not write the row.
        """
        if self._is_stored:
            raise FatalError(
                f"{self._function} writes to the side output {check_own_tag(tag).name!r}, and its store= keeps results "
                "alone: a row answered from the store would write nothing; leave store out, or make it a result"
            )
        validate = self._side_types(check_own_tag(tag))
        state = self._state()
        if validate is not None:
            state.side.append(SideRecord(tag, validate(value)))

    @staticmethod
    def _state() -> AttemptState:
        state = CURRENT_CALL.get(None)
        if state is None:
            raise AsyncUDFError("no row is being worked on here; ask inside a call, not in open() or close()")
        return state


Results = Sequence[Any]
Deliver = Callable[[Results | None, BaseException | None], None]


@public("asyncudf")
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


@public("asyncudf")
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
