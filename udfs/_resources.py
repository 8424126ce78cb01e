"""Opens what a function needs once per task, and closes it in reverse order on every path."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from functools import partial
from types import TracebackType
from typing import Any

from ._errors import AsyncUDFError
from ._failures import told
from ._function import RuntimeContext
from ._limited import within
from ._signature import FunctionSpec, Kind
from ._text import short

__all__ = ("closing", "opened", "opening")

OPEN_LIMIT = 600.0  # seconds; a client that is not open by then never will be
CLOSE_LIMIT = 30.0


@contextlib.asynccontextmanager
async def opened(spec: FunctionSpec, context: RuntimeContext) -> AsyncIterator[Mapping[str, Any]]:
    """The open resources of a function by parameter name; an AsyncFunction itself is opened and closed too.

    Raises:
        AsyncUDFError: something could not be opened or closed. An error of the rows wins over one of closing.
    """
    async with contextlib.AsyncExitStack() as stack:
        values = {}
        for name, factory in spec.resources.items():
            label = f"resource {name!r} of {spec.name}"
            manager = await opening(partial(_entered, factory), f"{label} could not be opened")
            values[name] = manager.value
            stack.push_async_exit(closing(manager.exit, f"{label} could not be closed", f"{label} failed"))
        if spec.kind is Kind.ASYNC_FUNCTION:
            function = spec.function
            stack.push_async_exit(closing(lambda *_: function.close(), f"{spec.name}.close() failed"))
            await opening(partial(function.open, context), f"{spec.name}.open() failed")
        yield values


async def opening(step: Callable[[], Any], failure: str) -> Any:
    """Call what opens something, in the task of the caller, and wait for it if it is to be awaited.

    Raises:
        AsyncUDFError: it failed, with whatever exception, or was not done within `OPEN_LIMIT` seconds.
        asyncio.CancelledError: others have cancelled the task.
    """
    return await _step(OPEN_LIMIT, step, failure)


Exit = Callable[[type[BaseException] | None, BaseException | None, TracebackType | None], Coroutine[Any, Any, bool]]


def closing(close: Callable[..., Any], failure: str, broken: str | None = None) -> Exit:
    """What closes something, for an exit stack: within `CLOSE_LIMIT` seconds, and it cannot swallow an error.

    An error that ends the block already wins over one of closing. A cancellation does not: it may have come from what
    is closed here, such as a task group whose task has failed, which only now tells its error (as `broken`).
    """

    async def leave(kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> bool:
        is_cancelled = isinstance(error, asyncio.CancelledError)
        told = broken if is_cancelled and broken is not None else failure
        try:
            await _step(CLOSE_LIMIT, partial(close, kind, error, trace), told)
        except (AsyncUDFError, asyncio.CancelledError) as own:
            passed_on = isinstance(own.__cause__, asyncio.CancelledError)
            if error is None or (is_cancelled and not passed_on):
                raise
        return False

    return leave


async def _step(limit: float, step: Callable[[], Any], failure: str) -> Any:
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        return await within(limit, _called(step))
    except BaseException as error:  # a CancelledError or a SystemExit of theirs is an error like any other
        by_others = isinstance(error, asyncio.CancelledError) and task.cancelling() > before
        if by_others or isinstance(error, GeneratorExit):
            raise
        raise AsyncUDFError(f"{failure}: {told(error)}") from error


async def _called(step: Callable[[], Any]) -> Any:
    result = step()
    return await result if inspect.isawaitable(result) else result


class _Entered:
    def __init__(self, manager: Any, value: Any) -> None:
        self.value = value
        self.exit = manager.__aexit__


async def _entered(factory: Callable[..., Any]) -> _Entered:
    manager = factory()
    if not hasattr(manager, "__aenter__"):
        raise TypeError(
            f"{short(factory)} made a {type(manager).__name__}, which is no async context manager; "
            "decorate an async generator function with @contextlib.asynccontextmanager"
        )
    return _Entered(manager, await manager.__aenter__())
