"""Messages and records of rows that failed, with and without their inputs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from .bodies import excerpt
from .broken import said_of_broken
from .bulk import said_of_bulk
from .exceptions import AsyncTimeoutError, AsyncUDFError, FatalError, ResultError
from .safe import safe_repr, safe_str, shortened, type_name
from .task_faults import advice, fault_of
from .traces import is_group, leaves, related, wrapped_in

# The record of an error under `on_error="capture"`, and that of a dead letter: names and types, in their order.
ERROR_FIELDS = {"type": "string", "message": "string", "attempts": "integer", "elapsed": "double", "status": "integer"}
LETTER_FIELDS = {**ERROR_FIELDS, "function": "string", "partition": "integer"}
SHOWN_ROWS = 8  # of a call
SHOWN_ERRORS = 8  # of a group

Redact = Callable[[Any], Any]  # from an input to what messages may show of it


def is_fatal(error: BaseException | None) -> bool:
    """SystemExit, KeyboardInterrupt and their like fail the task under every policy, as does a `FatalError`.

    So does a group with one of them.
    """
    # A CancelledError is not fatal, though it is no Exception either: a call whose own task group or timeout raises one
    # has failed like others. (issubclass of the type: isinstance would run code of the user's class.)
    if error is None:
        return False
    kind = type(error)
    if not issubclass(kind, (FatalError, BaseExceptionGroup)):  # one look, as each error is looked at several times
        return not issubclass(kind, (Exception, asyncio.CancelledError))
    return issubclass(kind, FatalError) or any(map(is_fatal, leaves(error)))


def as_exception(error: BaseException) -> Exception:
    """The error itself; wrapped if it would exit the process, or is a StopIteration, which no future can hold."""
    if isinstance(error, Exception) and not issubclass(type(error), StopIteration):
        return error
    substitute = AsyncUDFError(f"{type_name(error)}: {safe_str(error)}")
    substitute.__cause__ = error
    return substitute


# With `redacted` a message has no result that does not fit and no response of a service: they may repeat the input.


def task_error(
    error: BaseException, where: str, *, redacted: bool = False, capacity: int | None = None
) -> AsyncUDFError:
    """The error that fails the task; `where` names the function, the attempt and the input.

    The task may have `capacity` calls in flight.
    """
    located: AsyncUDFError
    if fault := fault_of(error):
        said = error_text(error, redacted=redacted).rstrip(".")
        located = FatalError(f"{where}: {said}. {advice(fault, capacity)}")
        located.__cause__ = error
    elif type(error) in (AsyncTimeoutError, FatalError, ResultError):  # their type says more than "failed"
        located = type(error)(f"{where}: {error_message(error, redacted=redacted)}")  # type: ignore[assignment]
        # A FatalError may be raised by the function, whose frames are then worth showing.
        located.__cause__ = error if error.__cause__ is None and type(error) is FatalError else error.__cause__
    else:
        located = AsyncUDFError(f"{where}: {error_text(error, redacted=redacted)}")
        located.__cause__ = error
    located.is_located, located.is_redacted = True, redacted
    return located


def error_record(
    error: BaseException, status: int | None, attempts: int, elapsed: float, *, redacted: bool = False
) -> dict[str, Any]:
    """The error as a struct, for `on_error="capture"` and for dead letters."""
    values = (type_name(error), error_message(error, redacted=redacted), attempts, elapsed, status)
    return dict(zip(ERROR_FIELDS, values, strict=True))


def error_text(error: BaseException, *, redacted: bool = False) -> str:
    return f"{type_name(error)}: {error_message(error, redacted=redacted)}"


def error_message(error: BaseException, *, redacted: bool = False) -> str:
    """The message of an error and of its causes; for a group, also the messages of its exceptions."""
    message = _own_message(error, redacted=redacted)
    if is_group(error) or issubclass(type(error), AsyncUDFError):
        return message
    why = _why(error, message, redacted=redacted)
    return f"{message} (from {why})".lstrip() if why else message


def _why(error: BaseException, message: str, *, redacted: bool) -> str:
    """The first error among those that this one was raised from, or wraps, that says more; empty if none does.

    Clients say `Connection error.` of a host that they cannot find, and libraries that retry show a future.
    """
    without_text = ""
    for one in islice(related(error), 1, SHOWN_ERRORS + 1):
        kind, text = type_name(one), "" if redacted else _own_message(one, with_causes=False)
        if not issubclass(type(one), Exception):  # a CancelledError is how asyncio.timeout ends what was too long
            continue
        if text and text not in message:
            return f"{kind}: {excerpt(text)}"
        if not text and kind not in f"{type_name(error)} {message}":
            without_text = without_text or kind
    return without_text


def _own_message(error: BaseException, *, redacted: bool = False, with_causes: bool = True) -> str:
    if is_group(error):
        # Without causes where the group is one: `raise group.exceptions[0] from group` makes a circle.
        said = error_message if with_causes else _own_message
        shown = islice(leaves(error), SHOWN_ERRORS + 1)
        inside = [f"{type_name(leaf)}: {said(leaf, redacted=redacted)}" for leaf in shown]
        return f"{safe_str(error)}: {'; '.join([*inside[:SHOWN_ERRORS], *('...' for _ in inside[SHOWN_ERRORS:])])}"
    if issubclass(type(error), AsyncUDFError):
        return (redacted and error.without_value) or safe_str(error)  # type: ignore[attr-defined]
    if redacted and (wrapped := _ours_in(error)) is not None:
        return _own_message(wrapped, redacted=True)  # `raise MyError(error)` has its text
    if bulk := said_of_bulk(error, redacted=redacted):
        return bulk
    why = "" if redacted else said_of_broken(error)
    return f"{safe_str(error)}: {why}" if why else safe_str(error)


def _ours_in(error: BaseException) -> BaseException | None:
    """The error of asyncudf that an exception wraps, or one that it wraps."""
    seen, one = {id(error)}, wrapped_in(error)
    while one is not None and id(one) not in seen and not issubclass(type(one), AsyncUDFError):
        seen.add(id(one))
        one = wrapped_in(one)
    return one if one is not None and issubclass(type(one), AsyncUDFError) else None


def shown_input(rows: Sequence[Any], redact: Redact | None = None) -> str:
    """The input of a call as messages show it: of one row or of several."""
    if redact is None:
        return safe_repr(rows[0] if len(rows) == 1 else list(rows))
    if len(rows) == 1:
        return _redacted(rows[0], redact)
    more = ", ..." if len(rows) > SHOWN_ROWS else ""
    return f"[{', '.join(_redacted(row, redact) for row in islice(rows, SHOWN_ROWS))}{more}]"


def _redacted(row: Any, redact: Redact) -> str:
    # If the user's function fails, nothing is shown: its purpose is to hide the input.
    try:
        visible = redact(row[0] if type(row) is tuple and len(row) == 1 else row)
        return shortened(visible) if issubclass(type(visible), str) else safe_repr(visible)
    except BaseException as error:
        return f"<redact failed: {type_name(error)}>"


def only_types(value: Any) -> str:
    """What `redact=True` shows of an input: the types of its values.

    >>> only_types(("Oslo", 3))
    '<redacted: str, int>'
    """
    values = value.values() if type(value) is dict else value if type(value) is tuple else (value,)
    return f"<redacted: {', '.join(map(type_name, values))}>"
