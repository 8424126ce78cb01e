"""Carries batches between Spark's thread, which pulls results, and the event loop of the calls in another thread."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from ..._errors.exceptions import AsyncUDFError
from ..._errors.records import as_exception
from ..._errors.task_faults import THREAD_LIMITS
from ..._observe.time_account import SparkThread
from ..._observe.waits import LONG, TaskWaits, Wait, Waiting
from . import event_loops
from .collector import collecting_by_time
from .event_loops import run_to_end
from .stacks import Listener
from .watchdog import watched

In = TypeVar("In")
In_contra = TypeVar("In_contra", contravariant=True)
Out = TypeVar("Out")

logger = logging.getLogger("asyncudf")

WATCH = 0.05  # seconds between two flushes while Spark's thread waits; a flush finds out whether Spark still reads
SILENCE = 1.0  # seconds without output after which Spark gets an empty batch


class SignsOfLife:
    """Tells a task that gives rows only at its end when to give a row without content.

    Sail drops batches without rows, and ends the task of a cancelled query only when the task gives a row.
    """

    def __init__(self) -> None:
        self._last = time.monotonic()

    def are_due(self) -> bool:
        """Whether such a row is due; if it is, the next one is due half of `SILENCE` later."""
        now = time.monotonic()
        is_due = now - self._last >= SILENCE / 2
        if is_due:
            self._last = now
        return is_due


class LoopTask(Protocol[In_contra]):
    """What runs on the loop: it is fed with batches until it has ended."""

    def feed(self, batch: In_contra, /) -> None: ...
    def end_of_input(self) -> None: ...
    def taken(self) -> None: ...  # Spark has taken the oldest batch that was emitted
    def look(self) -> None: ...  # see what it waits for, and tell of what lasts
    def waiting(self) -> Sequence[str]: ...  # what that is, in lines; any thread asks
    async def run(self) -> None: ...


@dataclasses.dataclass(frozen=True)
class SparkSide(Generic[Out]):
    """Spark as the bridge sees it: it takes batches, and hears how the task ended.

    Args:
        flush: writes out what the bridge has yielded so far; raises OSError once Spark reads no more.
        empty_batch: makes a batch without rows. Spark gets one after a silence: it may need a batch to notice that it
            is to stop. None: Spark gets none.
        spark_thread: notes when Spark's thread is away with a batch, or waits for the loop.
        ended: called once with how the task ended: "succeeded", "failed", or "stopped" by Spark.
    """

    flush: Callable[[], None] = lambda: None
    empty_batch: Callable[[], Out] | None = None
    spark_thread: SparkThread = dataclasses.field(default_factory=lambda: SparkThread(time.monotonic))
    ended: Callable[[str], None] = lambda how: None


class Bridge(Generic[In, Out]):
    """Runs a loop task on an event loop in a thread of its own, and carries batches both ways.

    Two mailboxes and no lock: the loop's own thread-safe calls lead in, one queue leads out. Spark's thread feeds a
    batch only when the loop task has asked for one. So when Spark stops reading, calls stop after the batches that were
    already fed. Before Spark's thread waits, for the loop or for Spark's next batch, it flushes what it has yielded.

    Args:
        build: makes the loop task, on the loop's thread, from the loop, `request_batch` (ask for a batch) and `emit`.
        threads: how many calls may need a thread at the same time.
        loop: the event loop; the bridge closes it.
        spark: takes the batches; unless given, the caller of `pipe` does.
    """

    # Two threads, because both sides want to wait: Spark pulls results from a generator and pushes input
    # through an iterator, and the loop must go on meanwhile. With `run_until_complete` for each batch in Spark's
    # thread, calls would stand still whenever Spark computes, and no deadline would be seen.
    # Spark's thread polls: a blocking read or write of the connection would not notice that Spark has closed it.

    def __init__(
        self,
        build: Callable[[asyncio.AbstractEventLoop, Callable[[], None], Callable[[Out], None]], LoopTask[In]],
        threads: int,
        loop: asyncio.AbstractEventLoop,
        spark: SparkSide[Out] | None = None,
    ) -> None:
        self._build = build
        self._threads = threads
        # "batch", "request_batch", and at last "done" or "error", which stays in for each later reader
        self._outbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._loop = loop
        self._spark = spark or SparkSide()
        self._last_output = time.monotonic()  # of Spark's thread
        self._outcome, self._is_reported = "stopped", False  # how the task ends, as `SparkSide.ended` gets it once
        # Of the loop's thread.
        self._loop_task: LoopTask[In] | None = None
        self._main: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._thread = threading.Thread(target=self._serve, name="asyncudf-loop", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise AsyncUDFError(f"the worker may start no thread for its event loop; raise {THREAD_LIMITS}") from error
        self._listener = Listener(self._waiting, loop, self._thread)
        self._listener.open()

    def pipe(self, batches: Iterable[In]) -> Iterator[Out]:
        """Feed every batch, yield what comes out, and close on every path."""
        try:
            source = iter(batches)
            while True:
                yield from self.until_requested()
                self._spark.flush()
                batch = next(source, None)
                if batch is None:
                    break
                self.feed(batch)
            yield from self.finish()
        finally:
            self.close()

    def until_requested(self) -> Iterator[Out]:
        """Yield what comes out until the loop task asks for a batch, or raise its error; may be called again."""
        yield from self._until("request_batch")

    def feed(self, batch: In) -> None:
        self._send(lambda: self._running.feed(batch))

    def finish(self) -> Iterator[Out]:
        """Say that no batch follows, and yield what comes out until the loop task has closed."""
        self._send(lambda: self._running.end_of_input())
        yield from self._until("done")

    def close(self) -> None:
        """Cancel what is still running and wait for the thread, in bounded time; harmless when all is over."""
        # Bounded, since a call may hang in C code that nothing can end: then the daemon thread is left behind, and
        # Spark's worker goes on. `run_to_end` waits for several grace periods, one after another.
        self._send(self._stop)
        self._thread.join(timeout=10 * event_loops.GRACE)
        self._listener.close()
        if not self._is_reported:
            self._is_reported = True
            self._spark.ended(self._outcome)

    def _until(self, last: str) -> Iterator[Out]:
        """Batches, up to the message that is waited for or to the end of all."""
        while True:
            what, content = self._next()
            if what in ("batch", "sign of life"):
                self._last_output = time.monotonic()
                self._spark.spark_thread.away.start()
                try:
                    yield content
                finally:
                    self._spark.spark_thread.away.stop()
                    if what == "batch":
                        self._send(lambda: self._running.taken())
            elif what == "request_batch":
                if last == "request_batch":
                    return
            else:  # it is over, and a later reader is to see that too
                self._outbox.put((what, content))
                if what == "error":
                    self._outcome = "failed"
                    raise content
                self._outcome = "succeeded"
                return

    def _next(self) -> tuple[str, Any]:
        """The next message, or an empty batch after a silence."""
        with contextlib.suppress(queue.Empty):
            return self._outbox.get_nowait()
        empty_batch = self._spark.empty_batch
        self._spark.spark_thread.waiting.start()
        try:
            while True:
                self._spark.flush()
                if empty_batch is not None and time.monotonic() - self._last_output >= SILENCE:
                    return "sign of life", empty_batch()
                with contextlib.suppress(queue.Empty):
                    return self._outbox.get(timeout=WATCH)
        finally:
            self._spark.spark_thread.waiting.stop()

    def _send(self, action: Callable[[], Any]) -> None:
        # A closed loop takes nothing: the outbox has the reason, for its next reader.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(action)

    @property
    def _running(self) -> LoopTask[In]:
        assert self._loop_task is not None
        return self._loop_task

    def _waiting(self) -> Sequence[str]:
        return () if self._loop_task is None else self._loop_task.waiting()

    def _look(self) -> None:
        if self._loop_task is not None:
            self._loop_task.look()

    def _stop(self) -> None:
        self._is_stopped = True
        if self._main is not None:
            self._main.cancel()

    def _serve(self) -> None:
        """The life of the loop's thread; its last message is "done" or "error", whatever happens."""
        try:
            with watched(self._loop, self._look) as self.blocked, collecting_by_time(self._loop):
                run_to_end(self._loop, self._run(), self._threads)
        except BaseException as error:  # whatever it was, Spark's thread must raise it
            self._outbox.put(("error", as_exception(error)))  # a SystemExit would end Spark's worker
        else:
            self._outbox.put(("done", None))

    async def _run(self) -> None:
        self._main = asyncio.current_task()
        try:
            if self._is_stopped:  # before it has begun
                raise asyncio.CancelledError
            self._loop_task = running = self._build(
                self._loop,
                lambda: self._outbox.put(("request_batch", None)),
                lambda batch: self._outbox.put(("batch", batch)),
            )
            await running.run()
        except asyncio.CancelledError:
            if self._is_stopped:
                raise AsyncUDFError("the task was cancelled") from None
            raise


class WaitReport(Protocol):
    """Says what a task waits for that has not begun."""

    def send(self, wait: Mapping[str, Any], /) -> None: ...
    def close(self) -> None: ...


@contextlib.contextmanager
def _awaited(wait: Wait, waits: TaskWaits, report: Callable[[], WaitReport] | None) -> Iterator[None]:
    """A block of Spark's thread that waits for something; there is no loop yet, so a thread says if that lasts long."""
    over = threading.Event()

    def watch() -> None:
        with contextlib.ExitStack() as stack:
            to: WaitReport | None = None
            while not over.wait(LONG):
                waits.look([wait])
                with contextlib.suppress(Exception):  # a report never fails a task
                    if to is None and report is not None:
                        to = report()
                        stack.callback(to.close)
                    if to is not None:
                        to.send(wait.to_plain(waits.clock()))

    waits.look([wait])
    thread = threading.Thread(target=watch, name="asyncudf-input", daemon=True)
    with contextlib.suppress(RuntimeError):  # no thread can be started: nobody says it
        thread.start()
    try:
        yield
    finally:
        over.set()
        if thread.is_alive():
            thread.join(timeout=10 * event_loops.GRACE)
        waits.look(())


def pipe(
    batches: Iterator[Any],
    start: Callable[[Any, float], Bridge[Any, Out]],
    read: Callable[[Any], Any],
    name: str = "the task",
    report: Callable[[], WaitReport] | None = None,
) -> Iterator[Out]:
    """Run a task over Spark's batches, from the first one and the seconds until it came; without rows nothing opens.

    If the first batch does not come for long, the log says so with this `name`, and so does a `report`.
    """
    began, waits = time.monotonic(), TaskWaits(time.monotonic, partial(logger.warning, "%s"))
    listener = Listener(waits.lines)
    listener.open()
    try:
        with _awaited(Wait(Waiting.INPUT, name, began), waits, report):
            first = next(batches, None)
        if first is not None:
            yield from start(first, time.monotonic() - began).pipe(map(read, itertools.chain((first,), batches)))
    finally:
        listener.close()
