"""Between Spark's thread, which pulls, and the event loop of the calls, which has a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from .._errors.exceptions import AsyncUDFError
from .._errors.records import as_exception
from .._metrics.time_account import SparkThread
from . import shutdown
from .event_loops import run_to_end
from .watchdog import watched

__all__ = ("Bridge", "Reader", "pipe")


In = TypeVar("In")
In_contra = TypeVar("In_contra", contravariant=True)
Out = TypeVar("Out")

WATCH = 0.05  # seconds between two looks at whether anybody still reads
SILENCE = 1.0  # seconds after which a reader gets a sign of life


class LoopTask(Protocol[In_contra]):
    """What runs on the loop: fed with batches, until it has ended."""

    def feed(self, batch: In_contra, /) -> None: ...
    def end_of_input(self) -> None: ...
    async def run(self) -> None: ...


@dataclasses.dataclass(frozen=True)
class Reader(Generic[Out]):
    """Who reads what a bridge gives.

    Args:
        settle: brings it what has been handed over so far; raises OSError if it reads no more.
        nothing: makes an empty batch, for one that is told to stop only when it next gets something. None: it waits.
        spark_thread: told when Spark's thread is away with a batch, or waits for the loop.
        ended: told once how it ended: "succeeded", "failed", or "stopped" by the reader.
    """

    settle: Callable[[], None] = lambda: None
    nothing: Callable[[], Out] | None = None
    spark_thread: SparkThread = dataclasses.field(default_factory=lambda: SparkThread(time.monotonic))
    ended: Callable[[str], None] = lambda how: None


class Bridge(Generic[In, Out]):
    """Runs a loop task on an event loop in a thread of its own, and carries batches both ways.

    Two mailboxes and no lock: the loop's own thread-safe calls lead in, one queue leads out. Spark's thread
    gives a batch only when the loop task has asked for one, so a Spark that stops reading stops the calls after the
    batches that were already handed over. Whenever Spark's thread has to wait, all that it has handed over is
    settled first. It looks at the reader itself: were it blocked in a read or a write instead, that would fail.

    Args:
        build: makes the loop task, on the loop's thread, from the loop, `request_batch` (ask for a batch) and `emit`.
        threads: how many calls may want a thread at the same time.
        loop: the event loop; the bridge closes it.
        reader: who gets what comes out.
    """

    # Two threads, because both want to be the one that waits: Spark pulls results from a generator and hands out input
    # from an iterator, the loop must go on meanwhile. Not `run_until_complete` for each batch in Spark's thread: calls
    # would stand still whenever Spark computes, and no deadline would be seen.
    #
    # _outbox: "batch", "request_batch", and at last "done" or "error", which stays in for whoever asks again
    # _loop_task, _main: of the loop's thread; _heard: of Spark's; _is_stopped is only ever set on the loop's thread

    def __init__(
        self,
        build: Callable[[asyncio.AbstractEventLoop, Callable[[], None], Callable[[Out], None]], LoopTask[In]],
        threads: int,
        loop: asyncio.AbstractEventLoop,
        reader: Reader[Out] | None = None,
    ) -> None:
        self._build = build
        self._threads = threads
        self._outbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._loop = loop
        self._reader = reader or Reader()
        self._heard = time.monotonic()  # when something came out last
        self._how: str | None = "stopped"  # it ends, unless it is said otherwise; None: it has been told
        self._loop_task: LoopTask[In]
        self._main: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._thread = threading.Thread(target=self._serve, name="asyncudf-loop", daemon=True)
        self._thread.start()

    def pipe(self, batches: Iterable[In]) -> Iterator[Out]:
        """All of it: feed every batch, yield what comes out, close on every path."""
        try:
            source = iter(batches)
            while True:
                yield from self.until_wanted()
                self._reader.settle()
                batch = next(source, None)
                if batch is None:
                    break
                self.feed(batch)
            yield from self.finish()
        finally:
            self.close()

    def until_wanted(self) -> Iterator[Out]:
        """Yields what comes out until the loop task asks for a batch; may be left before that, and called again.

        Raises:
            AsyncUDFError: a row failed, or the function could not be opened.
            OSError: nobody reads any more.
        """
        yield from self._until("request_batch")

    def feed(self, batch: In) -> None:
        """Give the batch that was asked for."""
        self._send(lambda: self._loop_task.feed(batch))

    def finish(self) -> Iterator[Out]:
        """Say that nothing follows, and yield all that comes out until the loop task has closed."""
        self._send(lambda: self._loop_task.end_of_input())
        yield from self._until("done")

    def close(self) -> None:
        """Cancel what is still running and wait for the thread, in bounded time; harmless when all is over."""
        # Bounded, since a call may hang in C code that nothing can end: then the daemon thread is left behind, and
        # Spark's worker goes on. Winding up has several graces of its own, one after another.
        self._send(self._stop)
        self._thread.join(timeout=10 * shutdown.GRACE)
        how, self._how = self._how, None
        if how is not None:
            self._reader.ended(how)

    def _until(self, last: str) -> Iterator[Out]:
        """Batches, up to what is waited for, or to the end of all."""
        while True:
            what, content = self._next()
            if what == "batch":
                self._heard = time.monotonic()
                self._reader.spark_thread.leave()
                try:
                    yield content
                finally:
                    self._reader.spark_thread.come_back()
            elif what == "request_batch":
                if last == "request_batch":
                    return
            else:  # it is over; whoever asks again hears it again
                self._outbox.put((what, content))
                if what == "error":
                    self._how = self._how and "failed"
                    raise content
                self._how = self._how and "succeeded"
                return

    def _next(self) -> tuple[str, Any]:
        """What comes out next, or an empty batch after a silence."""
        with contextlib.suppress(queue.Empty):
            return self._outbox.get_nowait()
        nothing = self._reader.nothing
        self._reader.spark_thread.wait()
        try:
            while True:
                self._reader.settle()
                if nothing is not None and time.monotonic() - self._heard >= SILENCE:
                    return "batch", nothing()
                with contextlib.suppress(queue.Empty):
                    return self._outbox.get(timeout=WATCH)
        finally:
            self._reader.spark_thread.go_on()

    def _send(self, action: Callable[[], Any]) -> None:
        # A loop that is closed takes nothing: the outbox holds the reason, and whoever reads it next sees that.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(action)

    def _stop(self) -> None:
        self._is_stopped = True
        if self._main is not None:
            self._main.cancel()

    def _serve(self) -> None:
        """The life of the loop's thread; its last word is "done" or "error", whatever happens."""
        try:
            with watched(self._loop) as self.blocked:
                run_to_end(self._loop, self._run(), self._threads)
        except BaseException as error:  # whatever it was, Spark's thread must hear of it
            self._outbox.put(("error", as_exception(error)))  # a SystemExit would end Spark's worker
        else:
            self._outbox.put(("done", None))

    async def _run(self) -> None:
        self._main = asyncio.current_task()
        try:
            if self._is_stopped:  # before it has begun
                raise asyncio.CancelledError
            self._loop_task = self._build(
                self._loop,
                lambda: self._outbox.put(("request_batch", None)),
                lambda batch: self._outbox.put(("batch", batch)),
            )
            await self._loop_task.run()
        except asyncio.CancelledError:
            if self._is_stopped:
                raise AsyncUDFError("the task was cancelled") from None
            raise


def pipe(
    batches: Iterator[Any], start: Callable[[Any, float], Bridge[Any, Out]], read: Callable[[Any], Any]
) -> Iterator[Out]:
    """Run a task over Spark's batches; a partition without rows opens nothing.

    Args:
        start: makes the bridge, knowing the first batch and how many seconds that was waited for.
        read: makes the elements of one batch.
    """
    began = time.monotonic()
    first = next(batches, None)
    if first is not None:
        yield from start(first, time.monotonic() - began).pipe(map(read, itertools.chain((first,), batches)))
