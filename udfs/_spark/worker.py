"""What each form runs in Spark's Python worker: the start of a chain, the connection to Spark, reports of errors."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import io
import os
import random
import select
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any

import pyarrow as pa

from .._arrow.objects import stored_type
from .._arrow.rows import warm_up
from .._arrow.sizes import estimated_size
from .._chain.chain import Chain, ResultOutputs
from .._chain.environment import TaskEnvironment
from .._chain.function_plan import FunctionPlan
from .._chain.plan import ChainPlan
from .._chain.results import SingleOutput
from .._engine.loop.bridge import Bridge, SparkSide
from .._engine.loop.event_loops import new_event_loop
from .._engine.operators.input import InputElement
from .._engine.operators.outputs import OUTPUT_BYTES, OUTPUT_LINGER, RecordWriterOutput
from .._errors.exceptions import AsyncUDFError, FatalError
from .._errors.traces import trace_of
from .._functions.side_outputs import SideTypes
from .._observe.time_account import SparkThread, seconds_without_processor
from .monitoring.task_report import TaskReport, TaskReportSpec
from .running_task import RunningTask, is_for_want_of_a_context
from .second_evaluations import Evaluation

Emit = Callable[[Any], None]

# Linux reports that the other end is closed while ours is open. Other systems report it to a writer.
_IS_CLOSED = getattr(select, "POLLRDHUP", 0)


def start_bridge(
    plan: ChainPlan,
    outputs_of: Callable[[asyncio.AbstractEventLoop, Emit], ResultOutputs],
    nothing: Callable[[], Any],
    report_spec: TaskReportSpec,
    side_types: SideTypes = lambda tag: None,
    waited: float = 0.0,
    built: Callable[[Chain], None] = lambda chain: None,
    first: pa.RecordBatch | None = None,
    task: RunningTask | None = None,
) -> Bridge[Iterable[InputElement], Any]:
    """Start a chain in a task, by default the task of this thread, on a loop of its own; `built` gets the chain there.

    `outputs_of` makes the outputs of the results, which call `emit` with each batch for Spark; `nothing` makes a batch
    without rows. The task has `waited` so many seconds for its `first` rows; without `first`, a second evaluation of
    the rows is not noticed.
    """
    # Warm up on Spark's thread, before the loop runs: it would block all calls. The random numbers have no seed: with
    # equal ones all tasks would retry at the same moments.
    warm_up(
        map(stored_type, plan.written),
        takes_vectors=any(one.spec.vectorized for one in plan.functions),
        moves_rows=plan.moves_rows,
        is_worker=_frame_of_spark() is not None,
    )
    task = RunningTask.now() if task is None else task
    if task.query is None:
        _check_needs_no_query(plan)
    evaluation = None if first is None else Evaluation.of(task, _local_folder(), report_spec, plan, first)
    if evaluation is not None:
        evaluation.warn()
    own_loop = new_event_loop(plan.loop)
    report, spark_thread = TaskReport(report_spec, plan, task, waited), SparkThread(time.monotonic)

    def build(loop: asyncio.AbstractEventLoop, request_batch: Callable[[], None], emit: Emit) -> Chain:
        environment = TaskEnvironment(
            loop,
            random.Random(),
            task.partition,
            task.attempt,
            side_types,
            request_batch,
            sampled=report.sampled,
            folder=_local_folder(),
            own_clock=time.monotonic,  # uvloop's own counts milliseconds
            shared_clock=time.time,
            query=task.query or f"of {task.rows}",
            rows=task.rows,
            uses=task.uses(),
            spark_thread=spark_thread,
            waited=waited,
            processor=time.process_time,
            starved=seconds_without_processor,
        )

        def emit_counted(batch: Any) -> None:
            chain.emitted(batch.nbytes if hasattr(batch, "nbytes") else estimated_size(batch))
            emit(batch)

        chain = Chain(plan, environment, outputs_of(loop, emit_counted))
        report.watch(chain)
        built(chain)
        return chain

    def ended(how: str) -> None:
        report.end(how)
        if evaluation is not None and how == "succeeded":
            evaluation.ended()

    spark = SparkSide(flusher(), nothing, spark_thread, ended)
    return Bridge(build, plan.threads, own_loop, spark)


def _check_needs_no_query(plan: ChainPlan) -> None:
    """Raises FatalError for a limit of one query: in a task that knows none it would be one of the task."""
    for one in plan.functions:
        if one.coordinator is not None and any(budget.name is None for budget in one.options.budgets):
            raise FatalError(
                f"{one.spec.name} has a budget without a name, or max_calls, which is for one query, and nothing says "
                "in which query this task is: the column was made while a session of another engine was the active "
                f"one. Use the operator: asyncudf.ordered_wait(df, {one.spec.name}, ...)"
            )


def _local_folder() -> str | None:
    """A folder in Spark's temporary folder of this executor; None if Spark does not name one."""
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
    first: pa.RecordBatch | None = None,
    task: RunningTask | None = None,
) -> Bridge[Iterable[InputElement], Any]:
    """Start the function of a column or a table function in the current Spark task.

    `write` makes a batch for Spark of results and their origins, of so many `rows` at most: about as many as Spark's
    input batches have. Large results are bounded in bytes as well.
    """

    def outputs_of(loop: asyncio.AbstractEventLoop, emit: Emit) -> ResultOutputs:
        def emit_results(values: Sequence[Any], origins: Sequence[Any]) -> None:
            emit(write(values, origins))

        return SingleOutput(
            RecordWriterOutput(emit_results, rows, OUTPUT_LINGER, loop, max_bytes=OUTPUT_BYTES, size_of=plan.weigh)
        )

    chain = ChainPlan.of_function(plan, names, arrow_types)
    return start_bridge(chain, outputs_of, lambda: write([], []), report_spec, waited=waited, first=first, task=task)


def flusher() -> Callable[[], None]:
    """A function that flushes the results that Spark's thread has yielded, which a buffer of 64 KB would keep.

    It raises an OSError once Spark has closed its end: after a LIMIT, a cancelled job, a failed neighbour. Make and
    call it in Spark's thread. PySpark does not publish its connection, so we search the frames of our callers for it.
    If none has it, the function does nothing: Spark then gets rows when the buffer is full, and its end shows in a
    failed write.
    """
    stream = _stream_to_spark()
    if stream is None:
        return lambda: None
    has_closed = _watch(stream)

    def flush() -> None:
        try:
            stream.flush()
            if has_closed():
                text = "Spark has closed its end: it needs no more rows, or the job has ended"
                raise BrokenPipeError(errno.EPIPE, text)
        except OSError:
            _discard(stream)
            raise

    return flush


def _discard(stream: io.BufferedIOBase) -> None:
    """Let PySpark flush output that is not read any more: else it prints a traceback when the worker ends."""
    if isinstance(getattr(stream, "raw", None), io.FileIO):  # as PySpark's daemon makes it
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _stream_to_spark() -> io.BufferedIOBase | None:
    """The stream that PySpark's worker writes to; None if there is none."""
    frame = _frame_of_spark()
    found = None if frame is None else frame.f_locals.get("outfile")
    return found if isinstance(found, io.BufferedIOBase) else None


def _frame_of_spark() -> FrameType | None:
    """The frame of PySpark's worker among our callers; None in another engine, or outside of a task."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        # pyspark.worker, pyspark.daemon or pyspark.sql.worker's, also where it runs as __main__
        package = str(frame.f_globals.get("__package__")).partition(".")[0]
        if package == "pyspark" and "outfile" in frame.f_code.co_varnames:
            return frame
    return None


def _watch(stream: io.BufferedIOBase) -> Callable[[], Any]:
    """A function that says whether the other end is closed; it never does where the system or the stream cannot say."""
    if not hasattr(select, "poll"):  # Windows
        return lambda: False
    poll = select.poll()
    try:
        poll.register(stream.fileno(), _IS_CLOSED)
    except OSError:  # without its daemon Spark gives a pair of streams, which has no file number
        return lambda: False
    return lambda: poll.poll(0)


def _is_full() -> bool:
    return os.environ.get("ASYNCUDF_FULL_TRACEBACK", "") not in ("", "0")


@dataclasses.dataclass(frozen=True)
class ErrorReporting:
    """A context for code in Spark's Python workers, which makes errors readable: the message, then the user's frames.

    With `full` all frames: `ASYNCUDF_FULL_TRACEBACK=1` in the driver's environment sets it, when a query is planned.
    """

    full: bool = dataclasses.field(default_factory=_is_full)

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Add the traceback of the user's exception to errors of this library; other errors stay as they are."""
        if not isinstance(error, AsyncUDFError):
            return
        cause = error.__cause__
        if cause is not None and (text := trace_of(cause, full=self.full, redacted=error.is_redacted)):
            error.add_note(f"\n{text.rstrip()}")
        if is_for_want_of_a_context(cause):
            error.add_note(
                "\nThis engine runs functions without a TaskContext; a parameter `context: asyncudf.RuntimeContext` "
                "has the partition and the attempt"
            )
        error.__cause__ = None  # otherwise Spark may show it as well, with all frames
        if self.full:
            return
        if _frame_of_spark() is not None:
            # Spark's exception handler in the worker reads this switch. A worker ends after an error, so the switch has
            # no effect on other tasks.
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        else:  # the process goes on, and may start a Spark itself: what it shows is the error's own traceback
            error.__traceback__ = None
