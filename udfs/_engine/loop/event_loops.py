"""The event loop of a task and its threads: which kind it is, how it runs to its end, how tasks end in bounded time."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import importlib.util
import inspect
import math
import queue
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from ..._errors.exceptions import AsyncUDFError, FatalError
from ..._functions.options import EventLoop

Driver = TypeVar("Driver", bound=Awaitable[Any])


GRACE = 5.0  # seconds that a cancelled coroutine has to clean up


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> set[asyncio.Task[Any]]:
    """Cancel tasks and wait for them, at most `GRACE` seconds; returned are those that were discarded in the end."""
    # More than once: a task may swallow a cancellation, or be in a `finally` that awaits. `asyncio.wait` and not
    # `gather`, which would cancel nothing more and wait without end.
    left = set(tasks)
    for pause in pauses():
        if not left:
            break
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=pause)
    for task in left:
        discard(task)
    return left


def pauses() -> Sequence[float]:
    """Seconds after each cancellation of what shall end, `GRACE` in all.

    A long one first, so that a clean-up that waits is not disturbed; then more for a coroutine that swallows it.
    """
    return (GRACE / 2, *[GRACE / 20] * 10)


def discard(task: asyncio.Task[Any]) -> None:
    """Close the coroutine of a task that is not awaited any more, and forget both."""
    # What asyncio.gather does for tasks that nobody will wait for: no warning when it is collected, and none for
    # the error of a coroutine that was closed behind its task's back.
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    forget(task.get_coro())


def forget(coroutine: Any) -> None:
    """Close a coroutine that is not awaited any more; errors that it raises are dropped."""
    # close() alone raises GeneratorExit where the coroutine waits. One that catches it and awaits again is still alive,
    # and so are those around it that it was awaited in: each has to be looked at.
    chain = list(awaited(coroutine))
    with contextlib.suppress(BaseException):  # "coroutine ignored GeneratorExit"
        chain[0].close()
    for left in chain:
        if not _is_closed(left):
            # It catches everything. The collector would ask it to end once more, outside any loop, where
            # `while True: try: await ... except BaseException: ...` never returns: it must never be collected.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(left))


def awaited(coroutine: Any) -> Iterator[Any]:
    """A coroutine, and those that it waits in, from the outside in."""
    while coroutine is not None and (hasattr(coroutine, "close") or inspect.isasyncgen(coroutine)):
        yield coroutine
        coroutine = (
            getattr(coroutine, "cr_await", None)
            or getattr(coroutine, "gi_yieldfrom", None)
            or getattr(coroutine, "ag_await", None)
            or _driven_by(coroutine)
            or _stepped(coroutine)
        )


# The coroutine of each generator that drives one by `send`: Python does not show that the generator waits in it. Both
# sides are weak, as a coroutine leads back to its driver through its task.
_driven: weakref.WeakKeyDictionary[Any, weakref.ref[Coroutine[Any, Any, Any]]] = weakref.WeakKeyDictionary()


def driving(driver: Driver, coroutine: Coroutine[Any, Any, Any]) -> Driver:
    """Note that a generator drives a coroutine by `send`: `forget(driver)` then closes the coroutine too."""
    _driven[driver] = weakref.ref(coroutine)
    return driver


def _driven_by(coroutine: Any) -> Any:
    noted = _driven.get(coroutine) if inspect.isgenerator(coroutine) else None
    return None if noted is None else noted()


def _stepped(step: Any) -> Any:
    """The async generator of one of its steps; only the collector can tell."""
    if not type(step).__name__.startswith("async_generator_"):
        return None
    return next(filter(inspect.isasyncgen, gc.get_referents(step)), None)


def _is_closed(coroutine: Any) -> bool:
    """Whether it has run to its end: only then its frame is gone."""
    return all(getattr(coroutine, name, None) is None for name in ("cr_frame", "gi_frame", "ag_frame"))


ROUNDS = 3  # tasks that end may start new ones, or cancel the clean-up


def run_to_end(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, None], threads: int) -> None:
    """Run a coroutine on a fresh loop, then leave nothing behind: no task, no generator, no thread, no loop.

    Raises what has ended the coroutine, or the clean-up after it; AsyncUDFError if that was a cancellation.
    """
    # Not asyncio.run, nor a Runner: both wait without a limit for tasks and generators that do not end, and minutes for
    # threads, while Spark waits for the task.
    pool = _threads_of[loop] = CallThreads(threads)
    loop.set_default_executor(pool)
    asyncio.set_event_loop(loop)
    try:
        first = _error_of(loop, main)
        for _ in range(ROUNDS):
            if (error := _error_of(loop, _clean_up(loop))) is None:
                break
            first = first or error
        # Callbacks of the last tasks may have made new ones. Those that have begun need a running loop.
        for task in asyncio.all_tasks(loop):
            coroutine = task.get_coro()
            if inspect.iscoroutine(coroutine) and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                discard(task)
    finally:
        try:
            asyncio.set_event_loop(None)
            pool.shutdown(cancel_futures=True)
            pool.join(GRACE)
        finally:
            del _threads_of[loop]  # a call that hung has the loop in its context, which would keep both
            loop.close()
    if first is not None:
        raise first


def _error_of(loop: asyncio.AbstractEventLoop, running: Coroutine[Any, Any, None]) -> BaseException | None:
    """What has ended a coroutine; None if it was done."""
    reason = (
        "code that runs in the task has cancelled it: something that was opened, or a background task of its own, "
        "called cancel() on the task in which open and close run"
    )
    task = loop.create_task(running)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, also if another error comes first
    for _ in range(ROUNDS):
        try:
            loop.run_until_complete(task)
        except BaseException as error:
            if task.done():
                return AsyncUDFError(reason) if task.cancelled() else task.exception() or error
            if type(error) is not RuntimeError:
                return error
        else:
            return None
        reason = "code that runs in the task has stopped its event loop: it must not call loop.stop()"
        task.cancel()
    return AsyncUDFError(reason)


async def _clean_up(loop: asyncio.AbstractEventLoop) -> None:
    """End all tasks and generators of the loop, each in bounded time; those that do not end are discarded."""
    left = {asyncio.current_task()}
    for _ in range(ROUNDS):  # generators that do not end, and tasks that others have started late
        left |= await end_tasks(asyncio.all_tasks() - left)
        closing = asyncio.ensure_future(loop.shutdown_asyncgens())
        await asyncio.wait({closing}, timeout=GRACE)
    while tasks := asyncio.all_tasks() - left:  # those that end only to start another
        for task in tasks:
            discard(task)
        left |= tasks
    await asyncio.sleep(0)


SPARE = 32  # threads for asyncio.to_thread in an async def, and for looking up names
MOST_HUNG = 10  # hung threads, and coroutines, for each call at a time


class CallThreads(ThreadPoolExecutor):
    """A loop's executor for so many calls; its threads no longer count once the call that they run was cancelled.

    The threads are its own daemon threads: the interpreter joins the threads of the standard library's pool at its end,
    and so would never end while a thread hangs.
    """

    # A thread cannot be ended. Where its call has timed out it is counted as hung, and a new thread takes its place:
    # else a few calls without a time limit of their own would stop all others for good. `_most_hung` bounds that.
    #
    # Everything belongs to the loop's thread, but for two things that the threads do: they take from _calls, and remove
    # what they have run from _pending. Each is one atomic operation.
    #
    # len(_working) >= the number of pending calls, unless the threads are as many as they may be

    def __init__(self, calls: int) -> None:
        super().__init__(calls)  # asyncio asks for one of this class; its own threads are never made
        self._most = calls + SPARE
        self._most_hung = MOST_HUNG * calls
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._pending: set[_Call] = set()  # the calls that wait in _calls or are in a thread
        # Those that were cancelled while a thread runs them; some may have ended since they were counted last.
        self._hung: set[_Call] = set()
        self._working: list[threading.Thread] = []
        self._refusal: RuntimeError | None = None  # how the system has refused the thread that was started last
        self._is_shut = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function in a thread; FatalError if too many hang, RuntimeError if none can be started."""
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if self._hung and self._count_hung() >= self._most_hung:
            raise FatalError(
                f"{len(self._hung)} threads, {MOST_HUNG} for each call at a time, still work for calls that have timed "
                "out or were cancelled; a thread cannot be stopped, so give the client in the function a time limit "
                "of its own, shorter than the timeout: requests.get(url, timeout=10)"
            )
        call = _Call(partial(fn, *args, **kwargs), self._give_up)
        self._pending.add(call)
        self._calls.put(call)
        try:
            self._grow()
        except RuntimeError:
            if len(self._working) <= self._count_hung():  # or else it waits until one of them is free
                call.cancel()
                self._pending.discard(call)
                raise
        return call

    def _give_up(self, call: _Call) -> None:
        """Nobody waits for the call any more, but a thread runs it."""
        self._hung.add(call)
        with contextlib.suppress(RuntimeError):  # no thread can be started: tried again with the next call
            self._grow()

    def _count_hung(self) -> int:
        self._hung = {call for call in self._hung if not call.done()}
        return len(self._hung)

    def _grow(self) -> None:
        """Start a thread if there are more calls than threads; idle ones stay for the next calls."""
        if len(self._working) < len(self._pending) and len(self._working) < self._most + self._count_hung():
            name = f"asyncudf-call-{len(self._working)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                self._refusal = error
                raise
            self._refusal = None
            self._working.append(thread)

    @property
    def refusal(self) -> RuntimeError | None:
        return None if self._calls.empty() else self._refusal

    @property
    def working(self) -> Sequence[threading.Thread]:
        return tuple(self._working)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            if call.set_running_or_notify_cancel():
                finish: Callable[[], None]
                try:
                    finish = partial(call.set_result, call.function())
                except BaseException as error:
                    finish = partial(call.set_exception, error)
                self._pending.discard(call)  # before its result is seen, which may bring the next call
                finish()
                del finish  # or the result would live until then
            else:
                self._pending.discard(call)
            del call

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Start no further call, and let each thread end after the call that it runs. Never waits: see `join`."""
        self._is_shut = True
        with contextlib.suppress(queue.Empty):
            while cancel_futures and (call := self._calls.get_nowait()) is not None:
                call.cancel()
        for _ in self._working:
            self._calls.put(None)

    def join(self, timeout: float) -> None:
        end = time.monotonic() + timeout
        for thread in self._working:
            thread.join(max(0.0, end - time.monotonic()))


_threads_of: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, CallThreads] = weakref.WeakKeyDictionary()


def seconds_until(timer: asyncio.TimerHandle | None, loop: asyncio.AbstractEventLoop) -> float:
    """Seconds until a timer of the loop fires; inf without one."""
    return math.inf if timer is None else max(0.0, timer.when() - loop.time())


def call_threads(loop: asyncio.AbstractEventLoop) -> Sequence[threading.Thread]:
    """The threads that run calls of a loop, or are free for some."""
    threads = _threads_of.get(loop)  # none in the test kit's own loop
    return () if threads is None else threads.working


def refused_thread(loop: asyncio.AbstractEventLoop) -> RuntimeError | None:
    """Why calls of a loop wait for a thread, if the system has refused one to them."""
    threads = _threads_of.get(loop)  # none in the test kit's own loop
    return None if threads is None else threads.refusal


class _Call(Future[Any]):
    """A call, which reports that it was cancelled while a thread runs it."""

    def __init__(self, function: Callable[[], Any], given_up: Callable[[_Call], None]) -> None:
        super().__init__()
        self.function = function
        self._given_up = given_up

    def cancel(self) -> bool:
        is_cancelled = super().cancel()
        if not is_cancelled and not self.done():
            self._given_up(self)
        return is_cancelled


def new_event_loop(wanted: EventLoop) -> asyncio.AbstractEventLoop:
    """A loop of the kind that the option `loop` asks for; AsyncUDFError if that is uvloop and not installed here."""
    if wanted is not EventLoop.ASYNCIO:
        if importlib.util.find_spec("uvloop") is not None:
            # uvloop's own time stands still between two turns: a call that blocks the loop would take no time.
            uvloop = importlib.import_module("uvloop")
            # It is uvloop's to all who look, such as libraries that leave uvloop alone.
            members = {"time": staticmethod(time.monotonic), "__module__": uvloop.Loop.__module__}
            loop: asyncio.AbstractEventLoop = type("Loop", (uvloop.Loop,), members)()
            return loop
        if wanted is EventLoop.UVLOOP:
            raise AsyncUDFError(
                "loop='uvloop' needs uvloop on every executor: pip install 'asyncudf[fast]' (there is none for Windows)"
            )
    return asyncio.new_event_loop()
