"""monitor: what the async functions of a block do, live and afterwards."""

from __future__ import annotations

import contextlib
import datetime
import html
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from asyncudf.queues._public import public

from ..._errors.exceptions import AsyncUDFError, OptionError
from ..._errors.safe import safe_repr
from ..._observe.function_metrics import PEAKS, TOTALS, Figure, with_numbers
from ..._observe.run_metrics import RunMetrics
from ..._observe.time_account import State
from ..monitoring.job_watch import JobWatch

if TYPE_CHECKING:
    from types import TracebackType

    from pyspark.sql import DataFrame, SparkSession

    from ..._observe.reports.progress import Snapshot

REDRAW_EVERY = 0.5  # seconds between two updates of the progress display
REFRESH_LOGS = 5.0  # the same where each update needs a query
IDLE_FACTOR = 100  # the display waits at least so many times the processor time of its last update: 1% of a core
LAST_REPORTS_WITHIN = 1.0  # seconds for tasks to report how they were stopped


@public("asyncudf")
class Run:
    """What all async functions did whose jobs ran in a `with monitor(spark) as run:` block.

    You may ask for everything at any time. Before the block has ended you get the state so far.
    """

    # Messages come in other threads, for which a task or Spark's scheduler waits. Such a thread puts a message into a
    # queue, and adds what is there unless another thread has the lock; that one, or the next message, does it then.
    # What makes reports is imported when it is used: Spark's workers import this module too.
    #
    # _began, _ended: None before

    def __init__(self, spark: SparkSession, progress: bool) -> None:
        self._spark = spark
        self._watch = JobWatch(spark, lambda: self._add_new(blocking=False))
        self._metrics = RunMetrics()
        self._lock = threading.Lock()
        self._began: float | None = None
        self._since = 0.0
        self._ended: float | None = None
        self._error = ""
        self._progress = progress
        self._shown: _DisplayThread | None = None

    def __enter__(self) -> Self:
        if self._began is not None:
            raise AsyncUDFError("a run is for one block; call monitor(spark) again for the next")
        self._began, self._since = time.time(), time.monotonic()
        self._watch.open()
        if self._progress and not _DisplayThread.is_shown:  # two displays in one terminal would overwrite each other
            with contextlib.suppress(RuntimeError):  # no thread can be started: nothing is shown
                shown = _DisplayThread(self)
                shown.start()
                _DisplayThread.is_shown, self._shown = True, shown
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._began is not None
        self._ended = time.monotonic()
        self._error = "" if exc_type is None else exc_type.__name__
        try:
            self._add_last()
        finally:
            try:
                self._watch.close()
                self._add_new()
                self._mark_failed()
            finally:
                if self._shown is not None:
                    self._shown.end()

    @property
    @with_numbers
    def metrics(self) -> dict[str, Any]:
        """The figures, as plain values that JSON can hold; a copy.

        `began` (seconds since 1970), `seconds`, `is_over`, and `functions`, for each:

        - `function`, a label that no other has; `name`, `entry_point`, `options`; the `stages` that it ran in; when its
          tasks `began` and `ended`.
        - `tasks`: how many `succeeded`, were `stopped` (no more rows were needed, or the job was cancelled), are
          `running`, have `failed`, or were `lost`, with their executor for example. A task whose rows were all done has
          `succeeded`, even if a LIMIT made Spark drop some of the results.
        - `running`: the `rows` of tasks that run, so far, and their calls `in_flight` now.
        - `waits`: what running tasks have waited for, for 30 s or longer (10 s to open), the longest wait first: the
          `kind`, `what` it is, in how many `tasks`, for how many `seconds`, `at_most` (None without a limit), and the
          `option` that changes it.
        - NUMBERS
        - `errors` of attempts by type, with `examples`, and `last_error`, the `type` and the HTTP `status` of the last
          one (or None).
        - `in_flight` and `queued` (calls; rows in the queue) with `mean` and `peak` per task.
        - `latency` of calls in seconds: `count`, `mean`, `min`, `p50`, `p90`, `p95`, `p99`, `max` (quantiles with an
          error of 1%), and a `histogram`; `first` and `last`, that of those that ended first and last in their tasks.
        - `spent`: what the calls did cost, by unit: of budgets that are settled, and by `context.spend`. Of two budgets
          of one unit each has its own, such as `USD of "month"`;
          `spent_squares`, the squares of these costs together.
        - `budgets`: of each budget with a name that is not by key, what all runs have `spent` of its `amount`, in which
          `unit` and `window` (empty without `per=`), as far as the tasks knew when they ended.
        - `unsettled`: how many attempts count with what they had reserved, by the error that `settle` raised for them.
        - `learned`: what the service told last of each limit that is `RateLimit.from_headers`: `permits` of a `unit` in
          `per` seconds, and when (`told`, in seconds since 1970).
        - `limit_seconds`: for each limit that is given, such as "job_capacity" or "RateLimit(20)", how long calls were
          held back by it.
        - `time`: where the `seconds` of its tasks went: nine states that add up to them.
        - `verdict`: what was the limit, how sure that is, and what to change.
        - `failed_attempts`: the same figures of tasks that failed or were lost; they are not in the others. Its
          `ended_by` counts what ended them: "budget", "max_calls", "max_failures", "breaker", "quota", "on_error", or
          an error.
        - `given_up`: how many partitions failed that no other attempt has done, in the last of the stages.
        - `per_task`: the same figures of each task, of the 200 longest; `per_task_left_out` is how many more there are.
        """
        from ..._observe.reports.verdict import verdict

        self._add_new()
        with self._lock:
            functions = self._metrics.to_plain()
        began = self._began or 0.0
        seconds = 0.0 if self._began is None else (self._ended or time.monotonic()) - self._since
        for function in functions:
            function["verdict"] = verdict(function, seconds)._asdict()
        return {"began": began, "seconds": seconds, "is_over": self._ended is not None, "functions": functions}

    def summary(self) -> str:
        """A few lines of text for each function, with the verdict."""
        from ..._observe.reports.summary import summary

        return summary(self.metrics)

    def __repr__(self) -> str:
        return f"<asyncudf.Run: {self.summary().partition(chr(10))[0]}>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.summary())}</pre>"

    def report(self, path: str | os.PathLike[str]) -> None:
        """Write everything into one HTML file, which needs nothing else to be looked at.

        Raises:
            OptionError: Jinja2 is missing (`pip install "asyncudf[report]"`), or the file cannot be written.
        """
        from ..._observe.reports.run_report import run_report

        run_report(self.metrics, Path(path))

    def manifest(self) -> dict[str, Any]:
        """What an orchestrator has to know of the run, as plain values that JSON can hold.

        - `asyncudf`, its version; `began` (in UTC, by ISO 8601); `seconds`.
        - `complete`: whether the block has ended without an error, and every row was called or needed no call. Rows
          that failed under `on_error` are done too, and are in `failures`; rows that `on_spent` left out are not.
        - `reason`: None for a run that is complete; else what ended it: "budget", "max_calls", "max_failures",
          "breaker", "quota", "on_error", "running", or an error, by its type or the beginning of its message.
        - `exit_code`: 0 if it is complete; 75 (which says "try again later") if a budget, a limit or a quota has ended
          it; 1 for all else. `sys.exit(run.manifest()["exit_code"])` tells it to what has started the program.
        - `rows`, `failures`, `unpaid`, `calls`, `attempts` (retries included), `spent` (by unit), `unsettled` (attempts
          charged with what they had reserved, as `settle` raised): of all functions together. What task attempts did
          that failed counts in the last four only.
        - `functions`, each with its label as `function`, its `name`, the same figures and `reason`, and
          `settle_errors`: what `settle` raised, with how many attempts it did.

        >>> import asyncudf
        >>> def load(spark, df):
        ...     with asyncudf.monitor(spark) as run:
        ...         df.write.parquet("out")
        ...     return run.manifest()
        """
        from ..._observe.reports.manifest import manifest

        return manifest(self.metrics, self._error)

    def to_df(self) -> DataFrame:
        """A row for each function and task, of the 200 longest of each function."""
        rows = [_row(function, task) for function in self.metrics["functions"] for task in function["per_task"]]
        return self._spark.createDataFrame(rows, SCHEMA)

    def _snapshot(self) -> Snapshot:
        from ..._observe.reports.progress import Snapshot

        self._add_new()
        with self._lock:
            functions, ended = self._metrics.to_plain(with_tasks=False), self._metrics.ended
        tasks = {one["function"]: self._watch.task_count(one["stages"]) for one in functions}
        done, total = self._watch.task_count({stage for one in functions for stage in one["stages"]})
        return Snapshot(functions, ended if total is None else done, total, time.monotonic() - self._since, tasks)

    def _add_new(self, blocking: bool = True) -> None:
        if self._lock.acquire(blocking):
            try:
                self._add(self._watch.messages())
            finally:
                self._lock.release()

    # What asks Spark is not done under the lock: meanwhile the figures can be read.

    def _add_logged(self) -> None:
        with contextlib.suppress(Exception):  # a query failed: the figures stay as they are
            logged = [*self._watch.logged()]
            with self._lock:
                self._add(logged)

    def _mark_failed(self) -> None:
        with self._lock:
            stages = self._metrics.unproven_stages
        failed = self._watch.failed_tasks(stages)
        with self._lock:
            self._metrics.mark_failed(failed)

    def _add_last(self) -> None:
        """Add the last messages; waits up to `LAST_REPORTS_WITHIN` seconds for tasks that are being stopped."""
        end = time.monotonic() + LAST_REPORTS_WITHIN
        self._add_new()
        while self._metrics.is_running and (left := end - time.monotonic()) > 0:
            with self._lock:
                self._add(self._watch.messages(left))
        self._add_logged()

    def _add(self, messages: Iterable[Any]) -> None:
        for message in messages:
            if message.get("is_lost"):
                self._metrics.lose(message["id"])
            else:
                self._metrics.add(message)


def _columns(figures: Iterable[Figure]) -> Iterator[str]:
    return (f"{one.name} {'double' if one.unit == 's' else 'bigint'}" for one in figures if one.in_frame)


def _values(figures: Iterable[Figure], task: Mapping[str, Any]) -> Iterator[float]:
    return (float(task[one.name]) if one.unit == "s" else task[one.name] for one in figures if one.in_frame)


QUANTILES = ("mean", "p50", "p90", "p95", "p99", "max")
SCHEMA = ", ".join(
    [
        "function string, entry_point string, stage int, partition int, attempt int, batch bigint, status string",
        "host string, began timestamp",
        *_columns(TOTALS),
        "in_flight_mean double, in_flight_peak bigint, queued_mean double, queued_peak bigint",
        *_columns(PEAKS),
        *(f"latency_{name} double" for name in QUANTILES),
        *(f"{state.name.lower()}_seconds double" for state in State),
        "errors map<string, bigint>",
    ]
)


def _row(function: Mapping[str, Any], task: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        function["function"],
        function["entry_point"],
        *(task[name] for name in ("stage", "partition", "attempt", "batch", "status", "host")),
        datetime.datetime.fromtimestamp(task["began"], datetime.UTC),
        *_values(TOTALS, task),
        float(task["in_flight"]["mean"]),
        task["in_flight"]["peak"],
        float(task["queued"]["mean"]),
        task["queued"]["peak"],
        *_values(PEAKS, task),
        *(task["latency"][name] for name in QUANTILES),
        *(float(task["time"][state.name.lower()]) for state in State),
        task["errors"],
    )


class _DisplayThread(threading.Thread):
    is_shown = False  # whether a run has a display

    def __init__(self, run: Run) -> None:
        from ..._observe.reports.displays import progress_display

        super().__init__(name="asyncudf-progress", daemon=True)
        self._run = run
        self._over = threading.Event()
        self._display = progress_display()

    def run(self) -> None:
        logs_due = time.monotonic() + REFRESH_LOGS
        with contextlib.suppress(Exception):  # a display never fails a job
            wait = REDRAW_EVERY
            while not self._over.wait(wait):
                if time.monotonic() >= logs_due:
                    self._run._add_logged()
                    logs_due = time.monotonic() + REFRESH_LOGS
                began = time.thread_time()
                self._display.show(self._run._snapshot())
                wait = max(REDRAW_EVERY, IDLE_FACTOR * (time.thread_time() - began))

    def end(self) -> None:
        self._over.set()
        _DisplayThread.is_shown = False
        self.join(timeout=REFRESH_LOGS)  # it may be in a query for logs
        with contextlib.suppress(Exception):
            self._display.close(self._run._snapshot())


@public("asyncudf")
def monitor(spark: SparkSession, progress: bool = False) -> Run:
    """Watch the async functions of the jobs that run in a block: live, and afterwards.

        with asyncudf.monitor(spark, progress=True) as run:
            df.withColumn("w", weather("city")).write.parquet("out")
        print(run.summary())

    The monitor counts the jobs of its thread, and of threads in the same session that have no monitor of their own.
    Streaming queries that begin in the block are counted until the block ends. Monitors may be nested, or run in
    several threads: each sees the jobs of its own block. If the block ends with an error, the figures up to then stay.
    Functions count in any case; a monitor adds a message per second and task.

    In classic Spark tasks send their figures over an authenticated connection to the driver: each second, and less
    often where more than 40 run, up to every 13 seconds. A task that cannot reach the driver sends its figures when it
    ends. So does a task beyond the first 500 that run at once; then the driver warns that live figures are those of a
    sample. With Spark Connect tasks send their figures when they end, through the logs of Python workers, which the
    monitor turns on. On Sail, which has no such logs, tasks send live figures as in classic Spark, to a client on the
    server's machine, and of all Sail sessions of this process. Where none of these works (Spark before 4.1, a session
    that refuses the setting, Sail elsewhere) a warning says so at once, and there are no figures.

    Args:
        spark: the session.
        progress: show the progress live: in a terminal (with `pip install "asyncudf[progress]"`), in a notebook, or as
            lines of text.

    Raises:
        OptionError: not a session, or `progress` is not a bool.
    """
    if not hasattr(spark, "createDataFrame") or not hasattr(spark, "conf") or isinstance(spark, type):
        raise OptionError(f"monitor takes the Spark session, as in monitor(spark), not {safe_repr(spark)}")
    if not isinstance(progress, bool):
        raise OptionError(f"progress must be True or False, not {safe_repr(progress)}")
    return Run(spark, progress)
