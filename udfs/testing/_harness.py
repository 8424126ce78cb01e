"""OperatorHarness and ManualFunction: an operator step by step, with calls that the test completes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Self, Unpack

from asyncudf.queues import StreamElement
from asyncudf.queues._public import public

from .._engine.loop.event_loops import run_to_end
from .._engine.loop.virtual_clock import VirtualClockLoop
from .._engine.operators.async_wait import AsyncWaitOperator
from .._errors.exceptions import AsyncUDFError
from .._functions.options import FunctionOptions, shows_options
from .._spark.api.decorator import udf_of
from ._loops import is_loop_running
from ._runs import ListOutput, chain_of, elements_of


@public("asyncudf.testing")
class ManualFunction:
    """An async function whose calls wait until the test completes them.

    Attributes:
        calls: the arguments of each call so far; of one argument, the argument itself.
    """

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    async def __call__(self, *args: Any) -> Any:
        number = len(self.calls)
        self.calls.append(args[0] if len(args) == 1 else args)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            return await future
        finally:
            del self._waiting[number]

    @property
    def running(self) -> list[Any]:
        """The arguments of the calls that are waiting, in the order of their start."""
        return [self.calls[number] for number in self._waiting]

    def complete(self, value: Any, result: Any) -> None:
        """Let the oldest waiting call with these arguments return."""
        self._future(value).set_result(result)

    def fail(self, value: Any, error: BaseException) -> None:
        """Let the oldest waiting call with these arguments raise."""
        self._future(value).set_exception(error)

    def _future(self, value: Any) -> asyncio.Future[Any]:
        for number, future in self._waiting.items():
            if self.calls[number] == value and not future.done():
                return future
        raise AssertionError(f"no call with {value!r} is waiting; waiting are {self.running}")


@public("asyncudf.testing")
class OperatorHarness:
    """One operator on a virtual clock that stands still unless the test advances it.

    Every method runs what can run and returns when all calls are waiting. `output` holds what was emitted.
    `is_done`, or at the latest the end of the `with` block, raises the error that ended the operator.

    >>> function = ManualFunction()
    >>> with OperatorHarness(function) as harness:
    ...     harness.put("a", "b")
    ...     harness.complete("b", "B")
    ...     waiting = list(harness.output)
    ...     harness.complete("a", "A")
    >>> waiting, harness.output
    ([], ['A', 'B'])
    """

    @shows_options(FunctionOptions)
    def __init__(self, function: Any, *, returnType: Any = None, **options: Unpack[FunctionOptions]) -> None:  # noqa: N803
        if is_loop_running():
            raise AsyncUDFError(
                "an OperatorHarness runs its own event loop step by step and cannot do so inside another; use it in a "
                "plain test function, or in one that a coroutine awaits with asyncio.to_thread"
            )
        self._udf = udf_of(function, returnType, options)
        self._function = function
        self._loop = VirtualClockLoop()
        self._output = ListOutput()
        with contextlib.ExitStack() as undo:
            undo.callback(self._loop.close)
            self._chain = chain_of(self._udf, self._output, self._loop)
            undo.pop_all()  # no mistake was found: the loop is closed at the end of the block
        assert isinstance(self._chain.head, AsyncWaitOperator)
        self._operator: AsyncWaitOperator = self._chain.head
        self._main: asyncio.Task[None] | None = None
        self._raised = False

    def __enter__(self) -> Self:
        self._main = self._loop.create_task(self._chain.run())
        self._run(lambda: None)
        return self

    def __exit__(self, *exception: object) -> None:
        async def stop() -> None:
            if self._main is not None:
                self._main.cancel()
                try:
                    await self._main
                except asyncio.CancelledError:
                    pass
                except Exception:
                    if exception[0] is None and not self._raised:  # an error that the test has not seen
                        raise

        run_to_end(self._loop, stop(), self._udf.options.slots)

    @property
    def output(self) -> list[Any]:
        """Results, watermarks, statuses and latency markers in the order of emission."""
        return self._output.everything

    @property
    def is_done(self) -> bool:
        """Whether the operator has ended; raises the error that ended it."""
        if self._main is None or not self._main.done():
            return False
        self._raised = True
        self._main.result()
        return True

    def put(self, *rows: Any) -> None:
        """Feed rows and elements."""
        self._run(lambda: self._chain.feed(list(elements_of(self._udf, rows))))

    def end(self) -> None:
        """End the input."""
        self._run(self._chain.end_of_input)

    def complete(self, value: Any, result: Any) -> None:
        """Let a call of the `ManualFunction` return."""
        self._run(lambda: self._function.complete(value, result))

    def fail(self, value: Any, error: BaseException) -> None:
        """Let a call of the `ManualFunction` raise."""
        self._run(lambda: self._function.fail(value, error))

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._loop.run_until_complete(asyncio.sleep(seconds))
        self._run(lambda: None)

    def snapshot(self) -> list[StreamElement]:
        """The elements not yet emitted, in order; a row's value is the tuple of its arguments."""
        return self._operator.snapshot_state()

    def restore(self, elements: list[StreamElement]) -> None:
        """Replay what `snapshot` gave; before any `put`."""
        self._run(lambda: self._operator.restore_state(elements))

    def _run(self, action: Callable[[], object]) -> None:
        """Do something on the loop, and run it until all calls are waiting."""

        # A fixed number of turns: asyncio does not say when nothing is ready, and the clock must stand still.
        async def run() -> None:
            action()
            for _ in range(20):  # more turns of the loop than any chain of callbacks here is long
                await asyncio.sleep(0)

        self._loop.run_until_complete(run())
