"""Somebody waits for the first row, or nobody waits any more. Real threads and sockets, no Spark."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import socket
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from asyncudf._engine.loop import bridge as bridge_module
from asyncudf._engine.loop.bridge import Bridge, SparkSide
from asyncudf._spark.worker import flusher
from tests.kit.bridges import batch, start
from tests.kit.errors import as_pyspark
from tests.kit.threads import loop_threads


class Worker:
    """PySpark's worker: it has a buffered file over a socket, and calls us in a frame that knows it."""

    def __init__(self) -> None:
        ours, self.spark = socket.socketpair()
        ours.settimeout(10)
        self.spark.settimeout(10)
        self.outfile = ours.makefile("wb")
        self.infile = ours.makefile("rb")
        ours.close()

    def run(self, function: Callable[..., Any], *args: Any, package: str = "pyspark") -> Any:
        return as_pyspark(package)(self.outfile, function, *args)

    def close(self) -> None:
        self.spark.close()
        self.infile.close()
        self.outfile.raw.close()


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.close()


def test_what_was_written_reaches_spark(worker: Worker) -> None:
    flush = worker.run(flusher)
    worker.outfile.write(b"rows")
    flush()
    assert worker.spark.recv(100) == b"rows"


@pytest.mark.parametrize("meanwhile", ["nothing", "unread input", "a subprocess holds our end"])
def test_an_end_that_spark_has_closed_is_seen_without_a_write(worker: Worker, meanwhile: str) -> None:
    flush = worker.run(flusher)
    if meanwhile == "unread input":
        worker.spark.sendall(b"input")
    with contextlib.ExitStack() as held:
        if meanwhile == "a subprocess holds our end":
            held.enter_context(socket.fromfd(worker.outfile.fileno(), socket.AF_UNIX, socket.SOCK_STREAM))
        flush()
        worker.spark.close()
        with pytest.raises(BrokenPipeError, match="Spark has closed its end"):
            flush()


@pytest.mark.parametrize("is_buffered", [False, True])
def test_what_pyspark_writes_after_that_goes_nowhere_and_prints_no_traceback(is_buffered: bool) -> None:
    """`show(5)` printed a BrokenPipeError, as PySpark flushes its file when a worker ends."""
    ours, spark = socket.socketpair()
    with ours, os.fdopen(os.dup(ours.fileno()), "wb") as outfile:  # as PySpark's daemon makes it
        flush = as_pyspark("pyspark")(outfile, flusher)
        spark.close()
        outfile.write(b"rows" if is_buffered else b"")
        with pytest.raises(BrokenPipeError):
            flush()
        outfile.write(b"the error, and the end")
        outfile.flush()


def test_the_frames_of_others_are_not_searched(worker: Worker) -> None:
    flush = worker.run(flusher, package="users_code")
    worker.outfile.write(b"rows")
    worker.spark.close()
    flush()
    worker.outfile.raw.close()  # its rows stay in the buffer
    with pytest.raises(ValueError, match="closed"):
        worker.outfile.flush()


@pytest.mark.parametrize("outfile", [None, 3, "a path", object()])
def test_a_worker_whose_outfile_is_something_else_runs_as_ever(outfile: Any) -> None:
    as_pyspark("pyspark")(outfile, flusher)()


def test_a_pair_of_streams_is_flushed_only() -> None:
    """Spark without its daemon has one file for both ways, which has no number."""
    written = io.BytesIO()
    pair = io.BufferedRWPair(io.BytesIO(), written)  # type: ignore[arg-type]
    flush = as_pyspark("pyspark")(pair, flusher)
    pair.write(b"rows")
    flush()
    assert written.getvalue() == b"rows"


def test_rows_are_settled_before_sparks_thread_waits_for_more_results() -> None:
    release = threading.Event()
    steps: list[Any] = []

    async def call(x: int) -> int:
        if x:
            await asyncio.to_thread(release.wait, 10)
        return x

    def flush() -> None:
        steps.append("flushed")
        if [0] in steps:
            release.set()

    steps.extend(start(call, flush=flush).pipe(iter([batch(0, 1)])))
    first = steps.index([0])
    assert steps[first + 1] == "flushed", "the second call ends only after that"
    assert [step for step in steps if step != "flushed"] == [[0], [1]]


class Writes:
    """A task that gives one batch, asks for one, and waits for ever."""

    def __init__(self, request_batch: Callable[[], None], emit: Callable[[Any], None]) -> None:
        self.request_batch = request_batch
        self.emit = emit
        self.has_asked = threading.Event()

    def feed(self, batch: Any) -> None: ...
    def end_of_input(self) -> None: ...
    def taken(self) -> None: ...

    async def run(self) -> None:
        self.emit(["row"])
        self.request_batch()
        self.has_asked.set()
        await asyncio.Event().wait()


def test_rows_are_settled_before_sparks_thread_reads() -> None:
    """Spark's source may be slow, and no result comes meanwhile."""
    steps: list[str] = []
    tasks: list[Writes] = []

    def build(loop: Any, *ways: Any) -> Writes:
        tasks.append(Writes(*ways))
        return tasks[0]

    spark: SparkSide[list[str]] = SparkSide(lambda: steps.append("flushed"))
    bridge: Bridge[Any, list[str]] = Bridge(build, 1, asyncio.new_event_loop(), spark)

    def source() -> Iterator[Any]:
        steps.append("read")
        raise EOFError
        yield

    out = bridge.pipe(source())
    assert next(out) == ["row"]
    tasks[0].has_asked.wait(10)
    steps.clear()
    with pytest.raises(EOFError):
        next(out)
    assert steps == ["flushed", "read"]


def test_results_that_are_ready_are_not_settled_one_by_one() -> None:
    """A flush for each of many small batches would cost more than the batches."""
    flushed = []

    async def call(x: int) -> int:
        return x

    others = loop_threads()
    bridge = start(call, flush=lambda: flushed.append(1))
    (thread,) = [thread for thread in loop_threads() if thread not in others]
    list(bridge.until_requested())
    bridge.feed(batch(*range(10_000)))
    out = bridge.finish()
    first = next(out)
    thread.join(10)  # the rest is ready
    flushed.clear()
    assert len([first, *out]) >= 100  # the first may leave before it is full
    assert not flushed
    bridge.close()


def test_the_calls_end_when_spark_leaves_while_its_thread_is_reading(worker: Worker) -> None:
    """Nobody looks at the connection then; the read itself ends, and an early end of the input is none."""
    ended = threading.Event()
    running = threading.Event()

    async def call(x: int) -> int:
        running.set()
        try:
            await asyncio.sleep(1000)
        finally:
            ended.set()
        return x

    def source() -> Iterator[Any]:
        yield batch(0)
        threading.Thread(target=leave).start()
        assert worker.infile.read(1) == b"", "blocked until Spark leaves"

    def leave() -> None:
        running.wait(10)
        worker.spark.close()

    def task() -> None:
        list(start(call, flush=flusher()).pipe(source()))

    with pytest.raises(BrokenPipeError, match="Spark has closed its end"):
        worker.run(task)
    assert ended.is_set()


def test_the_calls_end_when_spark_leaves_while_its_thread_is_writing(worker: Worker) -> None:
    ended = threading.Event()

    async def call(x: int) -> int:
        if x:
            try:
                await asyncio.sleep(1000)
            finally:
                ended.set()
        return x

    def task() -> None:
        out = start(call, flush=flusher()).pipe(iter([batch(0, 1)]))
        try:
            assert next(out) == [0]
            threading.Thread(target=leave).start()
            while True:  # blocked as soon as nobody reads what is on the way
                worker.outfile.write(bytes(2**16))
        finally:
            out.close()  # type: ignore[attr-defined]

    def leave() -> None:
        worker.spark.recv(1)
        worker.spark.close()

    with pytest.raises(OSError, match=r"Broken pipe|reset"):
        worker.run(task)
    assert ended.is_set()


def test_a_silence_is_filled_with_empty_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_module, "SILENCE", 0.0)
    monkeypatch.setattr(bridge_module, "WATCH", 0.001)
    release = threading.Event()

    async def call(x: int) -> int:
        await asyncio.to_thread(release.wait, 10)
        return x

    out = start(call, flush=lambda: None).pipe(iter([batch(7)]))
    assert [next(out) for _ in range(3)] == [[], [], []]
    release.set()
    assert [results for results in out if results] == [[7]]


def test_an_empty_batch_follows_a_second_without_any(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(bridge_module, "SILENCE", 1.0)
    monkeypatch.setattr(bridge_module, "time", types.SimpleNamespace(monotonic=lambda: now))

    def flush() -> None:
        nonlocal now
        now += 0.4
        if now == 0.8:
            tasks[0].emit(["late row"])

    tasks: list[Writes] = []

    def build(loop: Any, *ways: Any) -> Writes:
        tasks.append(Writes(*ways))
        return tasks[0]

    bridge: Bridge[Any, list[str]] = Bridge(build, 1, asyncio.new_event_loop(), SparkSide(flush, list))
    list(bridge.until_requested())
    now = 0.0
    out = bridge.until_requested()
    assert (next(out), now) == (["late row"], 0.8)
    assert (next(out), now) == ([], 2.0)
    bridge.close()
