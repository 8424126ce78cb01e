"""Opens what a function needs once per task, and closes it in reverse order on every path."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any

from ..._errors.exceptions import AsyncUDFError
from ..._errors.records import error_text
from ..._errors.safe import safe_repr
from ..._functions.async_function import RuntimeContext
from ..._functions.signature import FunctionSpec
from ..._observe.waits import Wait, Waiting
from ..loop.event_loops import discard, forget
from ..loop.limited import result_of, within

CLOSE_LIMIT = 30.0  # seconds; a server that has gone away must not hold up a finished task for long


@contextlib.asynccontextmanager
async def opened(spec: FunctionSpec, context: RuntimeContext, opening: Opening) -> AsyncIterator[Mapping[str, Any]]:
    """The open resources of a function by parameter name; an AsyncFunction itself is opened and closed too.

    AsyncUDFError if something could not be opened or closed. An error of the rows wins over one of closing.
    """
    async with opening.closed_at_its_end() as stack:
        values = {}
        for name, factory in spec.resources.items():
            label = f"resource {name!r} of {spec.name}"
            step = partial(_entered, stack, factory, label)
            values[name] = await opening.step(f"resource {name!r}", step, f"{label} could not be opened")
        if spec.has_life_cycle:
            function = spec.function
            stack.push_async_exit(closing(lambda *_: function.close(), f"{spec.name}.close() failed"))
            await opening.step("open()", partial(function.open, context), f"{spec.name}.open() failed")
        yield values


class Opening:
    """Opens the resources of a function, each within `limit` seconds (None: no limit), and tells what it waits for."""

    def __init__(self, name: str, limit: float | None) -> None:
        self._name, self._limit = name, math.inf if limit is None else limit
        self._now: Wait | None = None  # what opens or closes now, since when by the loop's time
        self._steps = 0  # how many steps were opened and are to be closed

    async def step(self, what: str, step: Callable[[], Any], failure: str) -> Any:
        """Open one resource; AsyncUDFError with `failure` if it fails, or is not open in time."""
        since = asyncio.get_running_loop().time()
        self._now = Wait(Waiting.OPENING, self._name, since, self._limit, what)
        self._steps += 1
        try:
            return await bounded(step, failure, self._limit, limited_by="open_timeout")
        finally:
            self._now = None

    @contextlib.asynccontextmanager
    async def closed_at_its_end(self) -> AsyncIterator[contextlib.AsyncExitStack]:
        """A stack for exits of what was opened; at the end of the block it closes all, on every path."""
        try:
            async with contextlib.AsyncExitStack() as stack:
                try:
                    yield stack
                finally:
                    since = asyncio.get_running_loop().time()
                    self._now = Wait(Waiting.CLOSING, self._name, since, CLOSE_LIMIT * max(1, self._steps))
        finally:
            self._now = None

    def waits(self) -> Iterator[Wait]:
        if self._now is not None:
            yield self._now


async def bounded(
    step: Callable[[], Any], failure: str, limit: float, *, in_own_task: bool = False, limited_by: str = ""
) -> Any:
    """Call and await the user's code within a limit of seconds; its errors become an AsyncUDFError.

    `in_own_task`: it runs in a task of its own, for it may cancel the task that it runs in. A cancellation by others is
    raised as it is. `limited_by`: the option that is the limit, for the message.
    """
    called = result_of(step)
    step_within = within(limit, _in_own_task(called) if in_own_task else called, limited_by=limited_by)
    return await _reported(step_within, failure)


Exit = Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], Coroutine[Any, Any, bool]]


def closing(close: Callable[..., Any], failure: str, broken: str | None = None, limit: float = CLOSE_LIMIT) -> Exit:
    """Makes an exit of a stack that closes something within `limit` seconds, and cannot swallow an error.

    Once begun it is not cut short by a cancellation of the task, which is raised when it is done.
    If the block ended with an error, an error of closing is dropped. If it was cancelled, the error of closing is
    raised as `broken`: a task group cancels the block first, and tells why when it is closed.
    """

    async def leave(exc_type: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool:
        is_cancelled = issubclass(type(error), asyncio.CancelledError)
        message = broken if is_cancelled and broken is not None else failure
        try:
            step = result_of(partial(close, exc_type, error, trace))
            await _reported(within(limit, step, to_its_end=True), message)
        except (AsyncUDFError, asyncio.CancelledError) as own:
            passed_on = issubclass(type(own.__cause__), asyncio.CancelledError)
            if error is None or (is_cancelled and not passed_on):
                raise
        return False

    return leave


async def _reported(step: Awaitable[Any], failure: str) -> Any:
    """Await a step; its error becomes an AsyncUDFError with `failure`, unless others have cancelled the task."""
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()  # a CancelledError alone does not say whether the user's code has raised it
    try:
        return await step
    except BaseException as error:  # a CancelledError or a SystemExit of the user's code is an error like others
        by_others = issubclass(type(error), asyncio.CancelledError) and task.cancelling() > before
        is_dropped = asyncio.current_task(task.get_loop()) is not task  # a coroutine that waits was closed
        if by_others or is_dropped:
            raise
        raise AsyncUDFError(f"{failure}: {error_text(error)}") from error


async def _in_own_task(called: Coroutine[Any, Any, Any]) -> Any:
    task = asyncio.ensure_future(_outcome(called))
    try:
        value, error = await task
    finally:
        if not task.done():
            discard(task)
    if error is not None:
        raise error
    return value


async def _outcome(called: Coroutine[Any, Any, Any]) -> tuple[Any, BaseException | None]:
    """The result or the error of a coroutine: a SystemExit that ended a task would end the loop."""
    try:
        return await called, None
    except BaseException as error:
        return None, error


def _instead_of(manager: Any) -> str:
    """How to make an async context manager of an object that is no such manager, for a message."""
    generator = "an async generator function decorated with @contextlib.asynccontextmanager"
    if inspect.iscoroutine(manager):
        forget(manager)
        return f"await it in {generator}, which yields what is to be used"
    for name in filter(lambda name: not name.startswith("_"), dir(manager)):
        # A property of others, which may warn. To catch that would be for the whole process: two tasks that do it at
        # once may leave it so.
        with contextlib.suppress(Exception):
            part = getattr(manager, name)
            if hasattr(type(part), "__aenter__") and not type(part).__module__.startswith("asyncio."):  # no lock
                return f"its .{name} is one: let the function return that"
    if hasattr(manager, "__enter__"):
        return f"it is a synchronous one: open it with `with` in {generator}, and yield it"
    for name in ("aclose", "close"):
        if callable(close := getattr(manager, name, None)):
            awaited = "await " if inspect.iscoroutinefunction(close) else ""
            return f"yield it in {generator}, which calls `{awaited}it.{name}()` in a finally"
    return f"yield it in {generator}"


async def _entered(stack: contextlib.AsyncExitStack, factory: Callable[..., Any], label: str) -> Any:
    """Open a resource; from then on the stack closes it, also where the task was cancelled meanwhile."""
    # Not enter_async_context: it would close without a time limit, and an error of closing could hide a row's error.
    manager = factory()
    if not hasattr(manager, "__aenter__"):
        kind = type(manager).__name__
        made = f"{safe_repr(factory)} made a {kind}, which is no async context manager"
        raise TypeError(f"{made}; {_instead_of(manager)}")
    leave = closing(manager.__aexit__, f"{label} could not be closed", f"{label} failed")
    value = await manager.__aenter__()
    stack.push_async_exit(leave)
    return value
