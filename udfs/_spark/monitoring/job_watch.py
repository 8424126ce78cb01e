"""The driver's side of a monitor: which jobs report to it, and what they report."""

from __future__ import annotations

import contextlib
import datetime
import json
import queue
import uuid
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from ..._errors.exceptions import OptionError
from ..._errors.records import error_text
from ..._metrics.run_metrics import COUNTS, TaskAttempt
from ..._metrics.time_account import State
from ..coordinators import driver_host
from .live import Address, LiveServer
from .task_report import METRICS_LOGGER, REGISTRY, SESSION_CONF, THREAD_PROPERTY, MonitorRequest

__all__ = (
    "JobWatch",
    "run_frame",
)


WORKER_LOGS = "spark.sql.pyspark.worker.logging.enabled"

LISTENER_PATIENCE = 1000  # milliseconds
MOST_FAILED = 1000  # task attempts of a stage that are asked for: a job ends long before

TaskCount = tuple[int, int | None]  # how many tasks have ended, of how many


class JobWatch:
    """Takes the messages of all tasks of jobs that begin while it is open.

    Of the thread that opens it, and of threads without a monitor of their own in the same session. Classic Spark: while
    the tasks run and when they end. Spark Connect: when they end.
    """

    # A job says by a property which monitors it belongs to. Properties go with the thread, and the configuration of the
    # session with each query of whatever thread: a thread's own word counts more, so two monitors in two threads do not
    # see each other's jobs.
    #
    # _open: the monitors that are open, the last one opened last
    # _logs_before: of sessions of Spark Connect with a monitor, what they said about logs

    _open: list[JobWatch] = []
    _logs_before: dict[int, str | None] = {}

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self.run = uuid.uuid4().hex
        self._messages: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
        self._is_classic = hasattr(spark, "_jsparkSession")
        self._server: LiveServer | None = None
        self._address: Address | None = None
        self._ended_stages: dict[int, int] = {}  # with how many tasks they had

    def open(self) -> None:
        """From now on jobs tell what they do.

        Raises:
            OptionError: the session cannot be asked; it has been stopped.
        """
        self._open.append(self)
        REGISTRY.open(self.run, self._messages.put)
        try:
            if self._is_classic:
                self._listen()
                self._tell_thread([*self._told_thread(), self.run])
            elif id(self._spark) not in self._logs_before:
                self._logs_before[id(self._spark)] = self._spark.conf.get(WORKER_LOGS, None)
                self._spark.conf.set(WORKER_LOGS, "true")
            self._tell_session()
        except BaseException as error:
            self.close()
            if isinstance(error, Exception):
                raise OptionError(
                    f"monitor takes a session that runs: this one fails with {error_text(error)}"
                ) from error
            raise

    def close(self) -> None:
        """Jobs that begin from now on tell nothing; those that run go on without."""
        self._open.remove(self)
        REGISTRY.close(self.run)
        with contextlib.suppress(Exception):  # the session has ended
            self._tell_session()
            if self._is_classic:
                self._tell_thread(self._told_thread())
            elif not self._of_session():
                _set(self._spark, WORKER_LOGS, self._logs_before.pop(id(self._spark)))
        if self._server is not None:
            self._server.close()

    def _listen(self) -> None:
        host = driver_host(self._spark.sparkContext)
        with contextlib.suppress(OSError, RuntimeError):  # no port, no thread: without figures of running tasks, then
            self._server = LiveServer(host, REGISTRY.secret, REGISTRY.deliver, REGISTRY.lose)
            self._address = (host, self._server.port)

    def _told_thread(self) -> list[str]:
        """The monitors that this thread's jobs tell, without those that were closed, perhaps in another thread."""
        told = MonitorRequest.loaded(self._spark.sparkContext.getLocalProperty(THREAD_PROPERTY)).runs
        return [run for run in told if run in {watch.run for watch in self._open}]

    def _tell_thread(self, runs: list[str]) -> None:
        last = next((watch for watch in self._open if runs and watch.run == runs[-1]), None)
        told = None if last is None else MonitorRequest(runs, last._address).dumped()
        self._spark.sparkContext.setLocalProperty(THREAD_PROPERTY, told)  # type: ignore[arg-type]

    def _of_session(self) -> list[JobWatch]:
        return [watch for watch in self._open if watch._spark is self._spark]

    def _tell_session(self) -> None:
        watches = self._of_session()
        runs = [watch.run for watch in watches]
        told = MonitorRequest(runs, watches[-1]._address, not self._is_classic).dumped() if watches else None
        _set(self._spark, SESSION_CONF, told)

    def messages(self, timeout: float | None = None) -> Iterator[Mapping[str, Any]]:
        """What has been told since the last time; with `timeout` it waits so many seconds for the first."""
        with contextlib.suppress(queue.Empty):
            while True:
                yield self._messages.get(timeout is not None, timeout)
                timeout = None

    def logged(self) -> Iterator[Mapping[str, Any]]:
        """What ended tasks have told to their log: all of it, each time."""
        if self._is_classic:
            return
        logs = self._spark.tvf.python_worker_logs().where(sf.col("logger") == METRICS_LOGGER)
        for row in logs.where(sf.col("msg").contains(self.run)).select("msg").collect():
            with contextlib.suppress(ValueError):
                yield json.loads(row.msg)

    def task_count(self, stages: Collection[int]) -> TaskCount:
        """How many tasks of these stages have ended, of how many; (0, None) where it cannot be told."""
        counts = [count for stage in stages if (count := self._tasks_of(stage)) is not None]
        return (sum(done for done, _ in counts), sum(total for _, total in counts)) if counts else (0, None)

    def failed_tasks(self, stages: Collection[int]) -> set[TaskAttempt]:
        """The task attempts of these stages that have failed; none where Spark cannot be asked."""
        found: set[TaskAttempt] = set()
        with contextlib.suppress(Exception):  # the session has ended, or another Spark has other names for this
            if stages:
                context: Any = self._spark.sparkContext
                # Not the status tracker: it has how many have failed, and not which.
                java, jvm = context._jsc.sc(), context._jvm
                java.listenerBus().waitUntilEmpty(LISTENER_PATIENCE)  # by which the store hears of tasks
                store, v1 = java.statusStore(), jvm.org.apache.spark.status.api.v1
                failed = jvm.java.util.List.of(v1.TaskStatus.FAILED)
                for stage in stages:
                    for attempt in range(store.lastStageAttempt(stage).attemptId() + 1):
                        tasks = store.taskList(stage, attempt, 0, MOST_FAILED, v1.TaskSorting.ID, failed)
                        each = map(tasks.apply, range(tasks.size()))
                        found.update((stage, task.partitionId(), task.attempt()) for task in each)
        return found

    def _tasks_of(self, stage: int) -> tuple[int, int] | None:
        """Asked of Spark until the stage has ended: a stream has one for each micro-batch."""
        if stage not in self._ended_stages:
            found = None
            with contextlib.suppress(Exception):  # with Spark Connect there is nobody to ask
                found = self._spark.sparkContext.statusTracker().getStageInfo(stage)
            if found is None:
                return None
            if found.numCompletedTasks < found.numTasks:
                return found.numCompletedTasks, found.numTasks
            self._ended_stages[stage] = found.numTasks
        return self._ended_stages[stage], self._ended_stages[stage]


def _set(spark: SparkSession, name: str, value: str | None) -> None:
    if value is None:
        spark.conf.unset(name)
    else:
        spark.conf.set(name, value)


QUANTILES = ("mean", "p50", "p90", "p95", "p99", "max")
SCHEMA = ", ".join(
    [
        "function string, entry_point string, stage int, partition int, attempt int, batch bigint, status string",
        "host string, began timestamp, seconds double",
        *(f"{name} bigint" for name in COUNTS),
        "in_flight_mean double, in_flight_peak bigint, queued_mean double, queued_peak bigint, bytes_peak bigint",
        *(f"latency_{name} double" for name in QUANTILES),
        *(f"{state.name.lower()}_seconds double" for state in State),
        "errors map<string, bigint>",
    ]
)


def run_frame(spark: SparkSession, metrics: Mapping[str, Any]) -> DataFrame:
    """A row for each function and task."""
    rows = [_row(function, task) for function in metrics["functions"] for task in function["per_task"]]
    return spark.createDataFrame(rows, SCHEMA)


def _row(function: Mapping[str, Any], task: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        function["function"],
        function["entry_point"],
        *(task[name] for name in ("stage", "partition", "attempt", "batch", "status", "host")),
        datetime.datetime.fromtimestamp(task["began"], datetime.UTC),
        float(task["seconds"]),
        *(task[name] for name in COUNTS),
        float(task["in_flight"]["mean"]),
        task["in_flight"]["peak"],
        float(task["queued"]["mean"]),
        task["queued"]["peak"],
        task["bytes_peak"],
        *(task["latency"][name] for name in QUANTILES),
        *(float(task["time"][state.name.lower()]) for state in State),
        task["errors"],
    )
