"""Between Spark's thread, which pulls, and the event loop of the calls, which has a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from ._errors import AsyncUDFError
from ._threads import CallThreads
from ._watch import watched
from ._workers import GRACE, end_tasks

__all__ = ("Bridge", "Stage", "run_to_end")

In = TypeVar("In")
In_contra = TypeVar("In_contra", contravariant=True)
Out = TypeVar("Out")


class Stage(Protocol[In_contra]):
    """What runs on the loop: fed with batches, until it has ended."""

    def feed(self, batch: In_contra, /) -> None: ...
    def end_of_input(self) -> None: ...
    async def run(self) -> None: ...


class Bridge(Generic[In, Out]):
    """Runs a stage on an event loop in a thread of its own, and carries batches both ways.

    Two mailboxes and no lock: the loop's own thread-safe calls lead in, one queue leads out. Spark's thread
    gives a batch only when the stage has asked for one, so a Spark that stops reading stops the calls after the
    batches that were already handed over.

    Args:
        build: makes the stage, on the loop's thread, from the loop, `want` (ask for a batch) and `emit`.
        threads: how many calls may want a thread at the same time.
        loop: the event loop; the bridge closes it.
    """

    def __init__(
        self,
        build: Callable[[asyncio.AbstractEventLoop, Callable[[], None], Callable[[Out], None]], Stage[In]],
        threads: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._build = build
        self._threads = threads
        self._outbox: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._loop = loop
        self._stage: Stage[In]
        self._main: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._thread = threading.Thread(target=self._serve, name="asyncudf-loop", daemon=True)
        self._thread.start()

    def pipe(self, batches: Iterable[In]) -> Iterator[Out]:
        """All of it: feed every batch, yield what comes out, close on every path."""
        try:
            source = iter(batches)
            while True:
                yield from self._until("want")
                batch = next(source, None)
                if batch is None:
                    break
                self._feed(batch)
            yield from self.finish()
        finally:
            self.close()

    def push(self, batch: In) -> Iterator[Out]:
        """Feed one batch when the stage asks for it; yields what came out until then.

        Raises:
            AsyncUDFError: a row failed, or the function could not be opened.
        """
        yield from self._until("want")
        self._feed(batch)

    def finish(self) -> Iterator[Out]:
        """Say that nothing follows, and yield all that comes out until the stage has closed."""
        self._send(lambda: self._stage.end_of_input())
        yield from self._until("done")

    def close(self) -> None:
        """Cancel what is still running and wait for the thread, in bounded time; harmless when all is over."""
        self._send(self._stop)
        self._thread.join(timeout=10 * GRACE)

    def _feed(self, batch: In) -> None:
        self._send(lambda: self._stage.feed(batch))

    def _until(self, last: str) -> Iterator[Out]:
        while True:
            kind, content = self._outbox.get()
            if kind == "batch":
                yield content
            elif kind == "error":
                raise content
            elif kind == last:
                return

    def _send(self, action: Callable[[], Any]) -> None:
        # A loop that is closed takes nothing: the outbox holds the reason, and whoever reads it next sees that.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(action)

    def _stop(self) -> None:
        self._is_stopped = True
        if self._main is not None:
            self._main.cancel()

    def _serve(self) -> None:
        try:
            with watched(self._loop) as self.blocked:
                run_to_end(self._loop, self._run(), self._threads)
        except BaseException as error:  # whatever it was, Spark's thread must hear of it
            self._outbox.put(("error", error))
        else:
            self._outbox.put(("done", None))

    async def _run(self) -> None:
        if self._is_stopped:  # before it has begun
            return
        self._main = asyncio.current_task()
        self._stage = self._build(
            self._loop,
            lambda: self._outbox.put(("want", None)),
            lambda batch: self._outbox.put(("batch", batch)),
        )
        try:
            await self._stage.run()
        except asyncio.CancelledError:
            if self._is_stopped:
                raise AsyncUDFError("the task was cancelled") from None
            raise


def run_to_end(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, None], threads: int) -> None:
    """Run a coroutine on a fresh loop, then leave nothing behind: no task, no generator, no thread, no loop.

    Raises:
        AsyncUDFError: the coroutine was cancelled.
    """
    pool = CallThreads(threads)
    loop.set_default_executor(pool)
    asyncio.set_event_loop(loop)
    try:
        try:
            loop.run_until_complete(main)
        except asyncio.CancelledError:
            raise AsyncUDFError(
                "code that runs in the task has cancelled it: something that was opened, or a background task of its "
                "own, called cancel() on the task in which open and close run"
            ) from None
        finally:
            loop.run_until_complete(_wind_up(loop))
    finally:
        asyncio.set_event_loop(None)
        pool.shutdown(cancel_futures=True)
        pool.join(GRACE)
        loop.close()


async def _wind_up(loop: asyncio.AbstractEventLoop) -> None:
    own = {asyncio.current_task()}
    await end_tasks(asyncio.all_tasks() - own)
    closing = asyncio.ensure_future(loop.shutdown_asyncgens())
    await asyncio.wait({closing}, timeout=GRACE)
    await end_tasks(asyncio.all_tasks() - own)  # generators that do not end, and tasks that others have started late
