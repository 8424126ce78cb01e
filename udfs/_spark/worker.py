"""What each form runs in Spark's Python worker: the start of a chain, the connection to Spark, reports of errors."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import io
import os
import random
import select
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from .._arrow.rows import warm_up
from .._chain.chain import Chain, Sinks
from .._chain.environment import TaskEnvironment
from .._chain.function_plan import FunctionPlan
from .._chain.plan import ChainPlan
from .._chain.sinks import OutputSink
from .._errors.exceptions import AsyncUDFError
from .._errors.traces import trace_of
from .._functions.side_outputs import SideTypes
from .._loop.bridge import Bridge, Reader
from .._loop.event_loops import new_event_loop
from .._metrics.time_account import SparkThread
from .._operators.intake import InputElement
from .._operators.outputs import OUTPUT_BYTES, OUTPUT_LINGER, RecordWriterOutput
from .monitoring.task_report import TaskReport, TaskReportSpec

__all__ = (
    "ErrorReporting",
    "flusher",
    "start_bridge",
    "start_function",
)


Emit = Callable[[Any], None]


def start_bridge(
    plan: ChainPlan,
    sinks_of: Callable[[asyncio.AbstractEventLoop, Emit], Sinks],
    nothing: Callable[[], Any],
    report_spec: TaskReportSpec,
    side_types: SideTypes = lambda tag: None,
    waited: float = 0.0,
) -> Bridge[Iterable[InputElement], Any]:
    """The chain of the Spark task that this runs in, on a loop of its own.

    Args:
        sinks_of: makes what writes the results; its `emit` takes what Spark gets.
        nothing: makes what Spark gets of no rows.
        report_spec: tells what is done.
        side_types: as in `TaskEnvironment`.
        waited: seconds for which the task has waited for its first rows.
    """
    # On Spark's thread, before there is another: warming up would block the loop, and all calls with it. No seed: with
    # the same random numbers all tasks would retry at the same moments, which is what jitter is to prevent.
    warm_up()
    task = TaskContext.get()
    partition, attempt = (0, 0) if task is None else (task.partitionId(), task.attemptNumber())

    own_loop = new_event_loop(plan.loop)
    report, spark_thread = TaskReport(report_spec, plan, waited), SparkThread(time.monotonic)

    def build(loop: asyncio.AbstractEventLoop, request_batch: Callable[[], None], emit: Emit) -> Chain:
        environment = TaskEnvironment(
            loop,
            random.Random(),
            partition,
            attempt,
            side_types,
            request_batch,
            sampled=report.sampled,
            folder=_local_folder(),
            own_clock=time.monotonic,  # uvloop's own counts milliseconds
            shared_clock=time.time,
            query=_query_of(task),
            stage=0 if task is None else task.stageId(),
            uses=_uses_of(task),
            spark_thread=spark_thread,
            waited=waited,
            processor=time.process_time,
        )
        chain = Chain(plan, environment, sinks_of(loop, emit))
        report.watch(chain)
        return chain

    reader = Reader(flusher(), nothing, spark_thread, report.end)
    return Bridge(build, plan.threads, own_loop, reader)


def _query_of(task: TaskContext | None) -> str:
    """The name of the query that a task works for; those of a job without one have a stage."""
    if task is None:
        return "no task"
    query = task.getLocalProperty("spark.sql.execution.id")
    return f"query {query}" if query is not None else f"stage {task.stageId()}"


# A worker may run several functions of one task side by side, each in a chain of its own.
_uses: dict[int, Counter[str]] = {}


def _uses_of(task: TaskContext | None) -> Counter[str]:
    """How often operators of the task have each function so far."""
    attempt = -1 if task is None else task.taskAttemptId()
    if attempt not in _uses:
        _uses.clear()
        _uses[attempt] = Counter()
    return _uses[attempt]


def _local_folder() -> str | None:
    """Spark's temporary folder of this executor, where it has told of one."""
    folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    return os.path.join(folder, "asyncudf") if folder else None


def start_function(
    plan: FunctionPlan,
    write: Callable[..., Any],
    names: Sequence[str],
    arrow_types: Sequence[pa.DataType],
    rows: int,
    report_spec: TaskReportSpec,
    waited: float = 0.0,
) -> Bridge[Iterable[InputElement], Any]:
    """The function of a column or of a table in the Spark task that this runs in.

    Args:
        write: makes what Spark gets of results and their origins, of at most `rows` together: as many as Spark's input
            batches have, or a few more. Large results are bounded in bytes as well.
        names: of the columns that it reads.
        arrow_types: theirs.
    """

    def sinks_of(loop: asyncio.AbstractEventLoop, emit: Emit) -> Sinks:
        writer = RecordWriterOutput(
            lambda *results: emit(write(*results)),
            rows,
            OUTPUT_LINGER,
            loop,
            weigh=_weigher(plan),
            max_bytes=OUTPUT_BYTES,
        )
        return OutputSink(writer)

    chain = ChainPlan.of_function(plan, names, arrow_types)
    return start_bridge(chain, sinks_of, lambda: write([], []), report_spec, waited=waited)


def _weigher(plan: FunctionPlan) -> Callable[[Any, Any], int] | None:
    weigh = plan.weigh
    if weigh is None:
        return None
    return lambda value, origin: weigh(value)


# Linux tells that the other end is closed while ours is open; the other systems tell a writer.
_IS_CLOSED = getattr(select, "POLLRDHUP", 0)


def flusher() -> Callable[[], None]:
    """A function that writes what Spark's thread has yielded to Spark, out of the buffer of 64 KB on the way.

    It raises an OSError once Spark has closed its end: after a LIMIT, a cancelled job, a failed neighbour. Make and
    call it in Spark's thread. PySpark tells nobody its connection, so it is looked for in the frames that called us;
    if none has it, the function does nothing: then Spark gets rows when the buffer is full, and a write that fails
    is what tells of its end.
    """
    stream = _stream_to_spark()
    if stream is None:
        return lambda: None
    has_closed = _watch(stream)

    def flush() -> None:
        stream.flush()
        if has_closed():
            raise BrokenPipeError(errno.EPIPE, "Spark has closed its end: it needs no more rows, or the job has ended")

    return flush


def _stream_to_spark() -> io.BufferedIOBase | None:
    """The stream that PySpark's worker writes to, from the frame that has it; None if none has."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        # pyspark.worker or pyspark.daemon, also where it runs as __main__
        if frame.f_globals.get("__package__") == "pyspark" and "outfile" in frame.f_code.co_varnames:
            found = frame.f_locals.get("outfile")
            return found if isinstance(found, io.BufferedIOBase) else None
    return None


def _watch(stream: io.BufferedIOBase) -> Callable[[], Any]:
    """Tells whether the other end is closed; always no, where the system or the stream cannot say."""
    if not hasattr(select, "poll"):  # Windows
        return lambda: False
    poll = select.poll()
    try:
        poll.register(stream.fileno(), _IS_CLOSED)
    except OSError:  # a pair of streams has no number: Spark without its daemon
        return lambda: False
    return lambda: poll.poll(0)


def _is_full() -> bool:
    return os.environ.get("ASYNCUDF_FULL_TRACEBACK", "") not in ("", "0")


@dataclasses.dataclass(frozen=True)
class ErrorReporting:
    """Goes around what runs in one of Spark's Python workers, and travels there.

    Args:
        full: show all frames; said on the driver, when the query is planned, by `ASYNCUDF_FULL_TRACEBACK=1` in the
            environment.
    """

    full: bool = dataclasses.field(default_factory=_is_full)

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Errors of this library get the traceback of the user's exception; others stay what they are."""
        try:
            yield
        except AsyncUDFError as error:
            cause = error.__cause__
            if cause is not None and (trace := trace_of(cause, full=self.full, redacted=error.is_redacted)):
                error.add_note(f"\n{trace.rstrip()}")
            error.__cause__ = None  # or Spark may show it as well, with all of its frames
            if not self.full:
                # Spark's own switch, which its handler of exceptions reads in the worker. A worker ends after an
                # error, so no other task meets it.
                os.environ["SPARK_HIDE_TRACEBACK"] = "1"
            raise
