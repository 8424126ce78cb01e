"""Errors that are no row's fault: what belongs to another event loop, and too many open files or threads."""

from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Sequence
from functools import lru_cache
from types import FrameType
from typing import Any

from .traces import frames_of, is_raised_alone, replaced

# asyncio's task throws these in where a future of another loop is awaited, in the user's own code. The second one is of
# a future that was awaited in vain before.
_THROWN = re.compile(r"Task <.*> got Future <.*> attached to a different loop|await wasn't used with future", re.DOTALL)
# These are raised in the code of the packages. While a call runs its own loop is open: a closed one is another's.
_PACKAGES = ("asyncio", "uvloop", "aiohttp", "asyncpg")
_RAISED = re.compile(
    r"Event loop is closed|.* is bound to a different event loop"
    r"|The future belongs to a different loop than the one specified as the loop argument"
    r"|Timeout context manager should be used inside a task",
    re.DOTALL,
)
_OF_LOOPS = ("RuntimeError", "ValueError", "InterfaceError")  # by name: the last one is asyncpg's
_OF_FILES = (errno.EMFILE, errno.ENFILE)
# asyncio has tried each address of a host in vain: one error for all, without a number of its own.
_SEVERAL = re.compile(rf"Multiple exceptions: .*\[Errno ({errno.EMFILE}|{errno.ENFILE})\]", re.DOTALL)


def way_out(error: BaseException, capacity: int | None = None) -> str:
    """What to do about an error that is no row's fault; empty if it may be the row's.

    Args:
        capacity: the calls that the task may have in flight.
    """
    if is_of_another_loop(error):
        return (
            "A client, lock or future of another event loop was used, and each task has a loop of its own: make it per "
            "task, with resources= or in AsyncFunction.open"
        )
    calls, asked = ("capacity", "") if capacity is None else (f"capacity={capacity}", f" --capacity {capacity}")
    if _is_out_of_files(error):
        return (
            f"The worker may open no more files{_limit()}, and each call in flight that uses HTTP holds a socket: "
            f"lower {calls}, or raise the limit; python -m asyncudf doctor{asked} checks a machine"
        )
    if _is_out_of_threads(error):
        return (
            "The worker may start no more threads, and each call in flight of a plain def or of asyncio.to_thread runs "
            f"in one: lower {calls}, or raise the limit (of the container: pids; of the user: ulimit -u)"
        )
    return ""


def is_of_another_loop(error: BaseException) -> bool:
    """Whether a client, a lock or a future was used that belongs to another event loop than the running one.

    Clients wrap such errors: see `replaced` for those that count.
    """
    return any(map(_is_of_another_loop, _suspects(error)))


def is_at_a_limit(error: BaseException) -> bool:
    """Whether the process, or the machine, has as many open files or threads as it may have.

    Also in an error of a client. With fewer calls in flight there are fewer of both.
    """
    return _is_out_of_files(error) or _is_out_of_threads(error)


def _is_out_of_files(error: BaseException) -> bool:
    return any(map(_is_of_files, _suspects(error)))


def _is_out_of_threads(error: BaseException) -> bool:
    return any(map(_is_of_threads, _suspects(error)))


def _suspects(error: BaseException) -> Sequence[BaseException]:
    """Those of an error and its causes that may be of one of these kinds; most errors cost no further look."""
    related = (error,) if is_raised_alone(error) else replaced(error)
    return [one for one in related if _is_suspect(type(one))]  # type: ignore[arg-type]


@lru_cache(maxsize=256)
def _is_suspect(kind: Any) -> bool:
    # Not kind.__name__: a metaclass may have one that raises.
    return issubclass(kind, OSError) or type.__dict__["__name__"].__get__(kind) in _OF_LOOPS


def _is_of_another_loop(error: BaseException) -> bool:
    if issubclass(type(error), OSError) or type(text := _text(error)) is not str:
        return False
    frames = frames_of(error)
    if _package(frames[-1:]) not in _PACKAGES:  # else a text of the user's own, whatever it says
        return type(error) is RuntimeError and _THROWN.fullmatch(text) is not None
    is_of_a_value = issubclass(type(error), ValueError)
    return _RAISED.fullmatch(text) is not None or (not is_of_a_value and _has_another_loop(frames))


def _text(error: BaseException) -> Any:
    args = vars(BaseException)["args"].__get__(error)  # a user's class may have an attribute of that name that raises
    return args[0] if args else None


def _package(frames: Sequence[FrameType]) -> str:
    return str(frames[0].f_globals.get("__name__")).partition(".")[0] if frames else ""


def _has_another_loop(frames: Sequence[FrameType]) -> bool:
    """Whether an error comes through a method of an object that belongs to another loop than the running one."""
    # An object of a loop that the call itself has run, in a thread, is no other task's.
    if any("run_until_complete" in frame.f_code.co_name for frame in frames):
        return False
    own = asyncio._get_running_loop()
    loops = [_loop_of(frame.f_locals.get("self")) for frame in frames]
    return own is not None and any(loop is not own for loop in loops if loop is not None)


def _loop_of(owner: Any) -> Any:
    try:
        found = owner if isinstance(owner, asyncio.AbstractEventLoop) else owner._loop
        return found if isinstance(found, asyncio.AbstractEventLoop) else None
    except BaseException:  # it has none, or is of a class of the user's
        return None


def _is_of_files(error: Any) -> bool:
    try:
        # issubclass of the type: isinstance would run code of a user's class.
        is_of_the_system = issubclass(type(error), OSError)
        return is_of_the_system and (error.errno in _OF_FILES or _SEVERAL.match(str(error)) is not None)
    except BaseException:  # a user's class may raise anything
        return False


def _is_of_threads(error: BaseException) -> bool:
    return type(error) is RuntimeError and _text(error) == "can't start new thread"


def _limit() -> str:
    try:
        import resource
    except ImportError:  # Windows
        return ""
    return f" (ulimit -n: {resource.getrlimit(resource.RLIMIT_NOFILE)[0]})"
