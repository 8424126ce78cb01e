"""Errors that are no row's fault: of another loop or thread, of too many files, threads or connections, of tokens."""

from __future__ import annotations

import asyncio
import enum
import errno
import re
from collections.abc import Sequence
from functools import lru_cache
from types import FrameType
from typing import Any

from .exceptions import CredentialsError
from .safe import named_class
from .traces import frames_of, is_raised_alone, replaced

# asyncio's task throws these in where a future of another loop is awaited, in the user's own code. The second one is of
# a future that was awaited in vain before.
_THROWN = re.compile(r"Task <.*> got Future <.*> attached to a different loop|await wasn't used with future", re.DOTALL)
# These are raised in the code of the packages. While a call runs its own loop is open: a closed one is another's.
_PACKAGES = ("asyncio", "uvloop", "aiohttp", "asyncpg", "pymongo", "async_lru")
_RAISED = re.compile(
    r"Event loop is closed|.* is bound to a different event loop"
    r"|The future belongs to a different loop than the one specified as the loop argument"
    r"|Timeout context manager should be used inside a task"
    r"|Cannot use \w+ in different event loop\..*"
    r"|alru_cache is not safe to use across event loops: .*",
    re.DOTALL,
)
_RUN = re.compile(
    r"(asyncio|Runner)\.run\(\) cannot be called from a running event loop|[Tt]his event loop is already running\.?"
    r"|Cannot run the event loop while another loop is running|There is no current event loop in thread .*"
)
_SIGNAL = re.compile(r"(signal|set_wakeup_fd) only works in main thread.*|add_signal_handler\(\) .* the main thread")
_OF_LOOPS = ("RuntimeError", "ValueError", "InterfaceError")  # by name: the last one is asyncpg's
_OF_FILES = {errno.EMFILE, errno.ENFILE}
_SEVERAL, _NUMBER = "Multiple exceptions: ", re.compile(r"\[Errno (\d+)\]")
# What clients raise when all connections of their own pool are in use: by package and name, and where the name says
# less, by the text.
_OF_POOLS: dict[tuple[str, str], re.Pattern[str] | None] = {
    **dict.fromkeys((("httpx", "PoolTimeout"), ("httpx2", "PoolTimeout"), ("httpcore", "PoolTimeout"))),
    **dict.fromkeys((("psycopg_pool", "PoolTimeout"), ("psycopg_pool", "TooManyRequests"))),
    ("pymongo", "WaitQueueTimeoutError"): None,
    ("redis", "MaxConnectionsError"): None,
    ("redis", "ConnectionError"): re.compile(r"Too many connections|No connection available\."),
    ("sqlalchemy", "TimeoutError"): re.compile(r"QueuePool limit of size .*"),
}


class TaskFault(enum.Enum):
    """Why an error is no row's fault."""

    LOOP = "loop"  # a client, a lock or a future was used that belongs to another event loop than the running one
    PATCH = "patch"  # a library changes the running loop, and cannot change uvloop
    RUN = "run"  # a loop is run on a running one, or looked for in a thread
    SIGNAL = "signal"  # a handler of a signal is set in a thread
    # The process, or the machine, has as many as it may have; with fewer calls in flight there are fewer.
    FILES = "files"
    THREADS = "threads"
    POOL = "pool"  # the client's own pool has as many connections as it may have
    TOKEN = "token"  # the service accepts none of the session's


# A thread takes 8 MiB of addresses, and those of a Python worker are what the setting of Spark bounds.
THREAD_LIMITS = "the limit (of the container: pids; of the user: ulimit -u; of Spark: spark.executor.pyspark.memory)"
AT_A_LIMIT = (TaskFault.FILES, TaskFault.THREADS, TaskFault.POOL)
PASSING = (*AT_A_LIMIT, TaskFault.TOKEN)  # another attempt may go well
LASTING = tuple(fault for fault in TaskFault if fault not in PASSING)  # another attempt ends like the first


def fault_of(error: BaseException) -> TaskFault | None:
    """The fault in an error, or in one that a client has wrapped (see `replaced`); None if it may be the row's."""
    # Most errors cost no further look than that at their types.
    if is_raised_alone(error):
        return _fault_in(error) if _is_suspect(type(error)) else None  # type: ignore[arg-type]
    found = {_fault_in(one) for one in replaced(error) if _is_suspect(type(one))}  # type: ignore[arg-type]
    return next((fault for fault in TaskFault if fault in found), None)


def advice(fault: TaskFault, capacity: int | None = None) -> str:
    """What to do about a fault of a task that may have `capacity` calls in flight."""
    calls, asked = ("capacity", "") if capacity is None else (f"capacity={capacity}", f" --capacity {capacity}")
    return _ADVICE[fault].format(calls=calls, asked=asked, limit=_limit())


_ADVICE = {
    TaskFault.LOOP: "A client, lock or future of another event loop was used, and each task has a loop of its own: "
    "make it per task, with resources= or in AsyncFunction.open",
    TaskFault.PATCH: "A library changes the event loop, which cannot be done with uvloop: give the function "
    "loop='asyncio', or do without the library, as an async def can await",
    TaskFault.RUN: "An event loop was run, or looked for, where it cannot be: an async def runs on one, so await the "
    "coroutine; a plain def runs in a thread without one, so use asyncio.run",
    TaskFault.SIGNAL: "Signals are of the main thread, and calls run in others: in place of an alarm give timeout= or "
    "attempt_timeout=",
    TaskFault.FILES: "The worker may open no more files{limit}, and each call in flight that uses HTTP holds a socket: "
    "lower {calls}, or raise the limit; python -m asyncudf doctor{asked} checks a machine",
    TaskFault.THREADS: "The worker may start no more threads, and each call in flight of a plain def or of "
    f"asyncio.to_thread runs in one: lower {{calls}}, or raise {THREAD_LIMITS}",
    TaskFault.POOL: "More requests were in flight than the pool of the client may have connections, and one waited in "
    "vain: raise the limit of the pool, as in httpx.Limits(max_connections=...), or lower {calls}",
    TaskFault.TOKEN: "The service accepts no token of http.session, which is no row's fault: look at what token= "
    "returns; if new tokens are accepted late, give retry= longer delays; if the service answers so to single rows, "
    "look at response.status before http.raise_for_status",
}


def errnos_of(error: Any) -> Sequence[int]:
    try:
        # asyncio has tried each address of a host in vain: one error for all, without a number of its own.
        if type(text := _text(error)) is str and text.startswith(_SEVERAL):
            return [*map(int, _NUMBER.findall(text))]
        return [error.errno] if type(error.errno) is int else []
    except BaseException:  # a user's class may raise anything
        return []


@lru_cache(maxsize=256)
def _is_suspect(kind: Any) -> bool:
    if issubclass(kind, (OSError, CredentialsError)) or named_class(kind)[1] in _OF_LOOPS:
        return True
    return any(named_class(one) in _OF_POOLS for one in kind.__mro__)


def _fault_in(error: BaseException) -> TaskFault | None:
    if issubclass(type(error), OSError):  # of the type: isinstance would run code of a user's class
        return None if _OF_FILES.isdisjoint(errnos_of(error)) else TaskFault.FILES
    if issubclass(type(error), CredentialsError):
        return TaskFault.TOKEN
    text = _text(error)
    if _is_of_a_pool(type(error), text):
        return TaskFault.POOL
    if type(text) is not str:
        return None
    if type(error) is RuntimeError and text == "can't start new thread":
        return TaskFault.THREADS
    if type(error) is ValueError and text.startswith("Can't patch loop of type <class 'uvloop"):  # nest_asyncio's
        return TaskFault.PATCH
    if (fault := _misuse_in(error, text)) is not None:
        return fault
    return TaskFault.LOOP if _is_of_another_loop(error, text) else None


def _is_of_a_pool(kind: type, text: Any) -> bool:
    known = (named for one in kind.__mro__ if (named := named_class(one)) in _OF_POOLS)
    says = (_OF_POOLS[named] for named in known)
    return any(said is None or (type(text) is str and said.match(text) is not None) for said in says)


def _misuse_in(error: BaseException, text: str) -> TaskFault | None:
    fault = TaskFault.RUN if _RUN.fullmatch(text) else TaskFault.SIGNAL if _SIGNAL.fullmatch(text) else None
    return fault if fault is not None and _package(error) in (*_PACKAGES, "signal") else None


def _is_of_another_loop(error: BaseException, text: str) -> bool:
    if type(error) is RuntimeError and _THROWN.fullmatch(text) is not None:  # by asyncio, wherever the call waited
        return True
    if _package(error) not in _PACKAGES:  # a text of the user's own, whatever it says
        return False
    is_of_a_value = issubclass(type(error), ValueError)
    return _RAISED.fullmatch(text) is not None or (not is_of_a_value and _has_another_loop(frames_of(error)))


def _package(error: BaseException) -> str:
    """The package whose code has raised an error."""
    frames = frames_of(error)
    return _module(frames[-1]).partition(".")[0] if frames else ""


def _text(error: BaseException) -> Any:
    args = vars(BaseException)["args"].__get__(error)  # a user's class may have an attribute of that name that raises
    return args[0] if args else None


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _has_another_loop(frames: Sequence[FrameType]) -> bool:
    """Whether an error comes through a method of an object that belongs to another loop than the running one."""
    # A loop that the call itself has run, in a thread, is no other task's: it is still running there, or the error
    # comes through what has run it or has waited for its result.
    if any("run_until_complete" in one.f_code.co_name or _module(one) == "concurrent.futures._base" for one in frames):
        return False
    if asyncio._get_running_loop() is None:
        return False
    return any(_has_an_idle_loop(frame.f_locals.get("self")) for frame in frames)


def _has_an_idle_loop(owner: Any) -> bool:
    try:
        loop = owner if isinstance(owner, asyncio.AbstractEventLoop) else owner._loop
        return isinstance(loop, asyncio.AbstractEventLoop) and not loop.is_running()
    except BaseException:  # it has none, or is of a class of the user's
        return False


def _limit() -> str:
    try:
        import resource
    except ImportError:  # Windows
        return ""
    return f" (ulimit -n: {resource.getrlimit(resource.RLIMIT_NOFILE)[0]})"
