"""Opens what a function needs once per task, and closes it in reverse order on every path."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from ._errors import AsyncUDFError
from ._function import RuntimeContext
from ._signature import FunctionSpec, Kind
from ._text import text_of

__all__ = ("opened",)

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
            manager = await _within(OPEN_LIMIT, _entered(factory), f"{label} could not be opened")
            values[name] = manager.value
            stack.push_async_exit(_closing(manager.exit, f"{label} could not be closed"))
        if spec.kind is Kind.ASYNC_FUNCTION:
            function = spec.function
            stack.push_async_exit(_closing(lambda *_: function.close(), f"{spec.name}.close() failed"))
            await _within(OPEN_LIMIT, function.open(context), f"{spec.name}.open() failed")
        yield values


class _Entered:
    def __init__(self, manager: Any, value: Any) -> None:
        self.value = value
        self.exit = manager.__aexit__


async def _entered(factory: Callable[..., Any]) -> _Entered:
    manager = factory()
    if not hasattr(manager, "__aenter__"):
        raise TypeError(
            f"{factory!r} made a {type(manager).__name__}, which is no async context manager; "
            "decorate an async generator function with @contextlib.asynccontextmanager"
        )
    return _Entered(manager, await manager.__aenter__())


async def _within(limit: float, step: Awaitable[Any], failure: str) -> Any:
    try:
        async with asyncio.timeout(limit):
            return await step
    except Exception as error:
        raise AsyncUDFError(f"{failure}: {type(error).__name__}: {text_of(error)}") from error


def _closing(close: Callable[..., Awaitable[Any]], failure: str) -> Callable[..., Awaitable[bool]]:
    async def leave(kind: Any, error: BaseException | None, trace: Any) -> bool:
        try:
            await _within(CLOSE_LIMIT, close(kind, error, trace), failure)
        except AsyncUDFError:
            if error is None:
                raise
        return False  # a resource cannot swallow the task's error

    return leave
