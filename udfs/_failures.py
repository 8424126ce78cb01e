"""What is said of a row that failed."""

from __future__ import annotations

import asyncio
from typing import Any

from ._errors import AsyncTimeoutError, AsyncUDFError, FatalError, ResultError
from ._text import text_of

__all__ = ("is_fatal", "located_error", "told_error")


def is_fatal(error: BaseException | None) -> bool:
    """SystemExit, KeyboardInterrupt and their like fail the task under every policy, as does a `FatalError`."""
    if isinstance(error, FatalError):
        return True
    return error is not None and not isinstance(error, (Exception, asyncio.CancelledError))


def located_error(error: BaseException, where: str) -> AsyncUDFError:
    """The error that fails the task; `where` names the function, the attempt and the input."""
    if type(error) in (
        AsyncTimeoutError,
        FatalError,
        ResultError,
    ):  # their type says more than "failed"
        own: AsyncUDFError = type(error)(f"{where}: {text_of(error)}")  # type: ignore[assignment]
        own.__cause__ = error.__cause__
        return own
    failed = AsyncUDFError(f"{where}: {type(error).__name__}: {text_of(error)}")
    failed.__cause__ = error
    return failed


def told_error(error: BaseException, attempts: int, elapsed: float) -> dict[str, Any]:
    """The error as a struct, for a policy that goes on."""
    return {"type": type(error).__name__, "message": text_of(error), "attempts": attempts, "elapsed": elapsed}
