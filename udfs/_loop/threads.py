"""The threads in which the user's synchronous code runs: one that hangs is replaced, and holds up nobody's end."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

from .._errors.exceptions import FatalError

SPARE = 32  # threads for asyncio.to_thread in an async def, and for looking up names
MOST_HUNG = 10  # hung threads, and coroutines, for each call at a time


class CallThreads(ThreadPoolExecutor):
    """A loop's executor whose threads no longer count once the call that they run was cancelled.

    The threads are daemons of its own: the interpreter joins those of the standard library when it ends, and so never
    ends while one hangs. All but the threads themselves belongs to the loop's thread.

    Args:
        calls: how many calls may need a thread at the same time.
    """

    # A thread cannot be ended. Where its call has timed out it is counted as hung, and a new thread takes its place:
    # else a few calls without a time limit of their own would stop all others for good. `_most_hung` bounds that.
    #
    # _pending: the calls that wait in _calls or are in a thread
    # _hung: those that were cancelled while a thread runs them; some may have ended since they were counted last
    # len(_working) >= the number of pending calls, unless the threads are as many as they may be

    def __init__(self, calls: int) -> None:
        super().__init__(calls)  # asyncio asks for one of this class; its own threads are never made
        self._most = calls + SPARE
        self._most_hung = MOST_HUNG * calls
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._pending: set[_Call] = set()
        self._hung: set[_Call] = set()
        self._working: list[threading.Thread] = []
        self._is_shut = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function in a thread.

        Raises:
            FatalError: too many threads hang.
            RuntimeError: there is no thread, and none can be started.
        """
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
            thread.start()
            self._working.append(thread)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            finish: Callable[[], Any] = bool
            if call.set_running_or_notify_cancel():
                try:
                    finish = partial(call.set_result, call.function())
                except BaseException as error:
                    finish = partial(call.set_exception, error)
            self._pending.discard(call)  # before its result is seen, which may bring the next call
            finish()
            del call, finish  # or the result would live until then

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Start no further call, and let each thread end after the call that it runs. Never waits: see `join`."""
        self._is_shut = True
        with contextlib.suppress(queue.Empty):
            while cancel_futures and (call := self._calls.get_nowait()) is not None:
                call.cancel()
        for _ in self._working:
            self._calls.put(None)

    def join(self, timeout: float) -> None:
        """Wait for the threads, `timeout` seconds at most."""
        end = time.monotonic() + timeout
        for thread in self._working:
            thread.join(max(0.0, end - time.monotonic()))


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
