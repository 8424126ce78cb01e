"""The driver's side of a monitor: which jobs report to it, and what they report."""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from ..._errors.exceptions import OptionError
from ..._errors.records import error_text
from ..._observe.run_metrics import TaskAttempt
from .._compat import change_setting, engine_of
from ..coordinators import driver_host
from ..loopback import LOCAL
from .live import Address, LiveServer
from .task_report import METRICS_LOGGER, REGISTRY, SESSION_CONF, THREAD_PROPERTY, WORKER_LOGS, MonitorRequest, Reach

LISTENER_TIMEOUT = 1000  # milliseconds
MAX_FAILED = 1000  # task attempts of a stage to ask for: a job ends long before

logger = logging.getLogger("asyncudf")

TaskCount = tuple[int, int | None]  # how many tasks have ended, of how many


class JobWatch:
    """Collects the messages of the tasks of all jobs that begin while it is open.

    These are the jobs of the thread that opens it, and of threads of the same session that have no monitor of their
    own. In classic Spark messages come while a task runs and when it ends, with Spark Connect when it ends. An engine
    that keeps no logs of its workers sends them as classic Spark does, from its tasks on this machine.
    """

    # A property of a job names its monitors. Properties of a thread hold for the jobs of that thread, the configuration
    # of the session for the queries of all its threads. A thread's own property wins, so two monitors in two threads do
    # not see each other's jobs.
    #
    # _open: the monitors that are open, the last one opened last
    # _logs_before: of each Spark Connect session in which a monitor has set `WORKER_LOGS`, what it was before
    # _retired: the servers of monitors that are closed. Where tasks find monitors in a file, one that runs may report
    # through the server of any of them, to all that are open: these servers close with the last.
    # _has_warned: whether a monitor of this process has said that it has no live figures

    _open: list[JobWatch] = []
    _logs_before: dict[SparkSession, str | None] = {}
    _retired: list[LiveServer] = []
    _has_warned = False

    def __init__(self, spark: SparkSession, arrived: Callable[[], None]) -> None:
        self._spark = spark
        self._arrived = arrived  # called after each message, in the thread that brings it
        self.run = uuid.uuid4().hex
        self._messages: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
        self._is_classic = hasattr(spark, "_jsparkSession")
        self._has_logs = False  # whether ended tasks log their figures
        self._is_posted = False  # whether tasks find it in the file of the registry
        self._server: LiveServer | None = None
        self._address: Address | None = None
        self._ended_stages: dict[int, int] = {}  # by stage its tasks; a stream has a stage for each micro-batch

    def open(self) -> None:
        """Have jobs report from now on; OptionError if the session does not answer, such as a stopped one."""
        self._open.append(self)
        REGISTRY.open(self.run, self.take)
        try:
            engine = engine_of(self._spark)
            if self._is_classic:
                self._listen(driver_host(self._spark.sparkContext))
                self._set_thread_runs([*self._thread_runs(), self.run])
                self._set_session_runs()
            elif not engine.logs_workers:
                if not self._take_reports():
                    logger.warning(
                        "asyncudf.monitor gets no figures from this session, and its jobs run without it: %s keeps no "
                        "logs of its workers, and its tasks do not reach this process, as those of a server on this "
                        "machine do that has asyncudf. Elsewhere, export the figures to OpenTelemetry, or read the "
                        "line of each task in the server's log",
                        engine.name,
                    )
            elif not self._take_logs():
                logger.warning(
                    "asyncudf.monitor gets no figures from this session, and its jobs run without it: over Spark "
                    "Connect it needs Spark 4.1 or newer, and a session that lets it set %s. Tasks can still export "
                    "their figures to OpenTelemetry",
                    WORKER_LOGS,
                )
        except BaseException as error:
            self.close()
            if isinstance(error, Exception):
                raise OptionError(
                    f"monitor takes a session that runs: this one fails with {error_text(error)}"
                ) from error
            raise

    def close(self) -> None:
        """Jobs that begin from now on do not report; those that run go on."""
        self._open.remove(self)
        REGISTRY.close(self.run)
        # It is forgotten first: all else fails in a session that has ended.
        is_to_restore = self._spark in self._logs_before and not self._session_watches()
        logs_before = self._logs_before.pop(self._spark) if is_to_restore else None
        with contextlib.suppress(Exception):
            if self._is_posted:
                self._is_posted = False
                self._post()
            else:
                if is_to_restore:
                    change_setting(self._spark, WORKER_LOGS, logs_before)
                self._set_session_runs()
                if self._is_classic:
                    self._set_thread_runs(self._thread_runs())
        if self._server is not None:
            # Before the look: the monitor that closes at this moment may be the last.
            self._retired.append(self._server)
        if not any(watch._is_posted for watch in self._open):
            with contextlib.suppress(IndexError):
                while True:
                    self._retired.pop().close()

    def take(self, message: Mapping[str, Any]) -> None:
        self._messages.put(message)
        self._arrived()

    def _listen(self, host: str) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # no port, or no thread: no figures of running tasks
            self._server = LiveServer(host, REGISTRY.secret, REGISTRY.deliver, REGISTRY.lose)
            self._address = (host, self._server.port)

    def _take_logs(self) -> bool:
        """Have the tasks of a Spark Connect session log their figures; False if Spark cannot, or does not let us."""
        with contextlib.suppress(AnalysisException):
            if self._spark.conf.isModifiable(WORKER_LOGS):
                if self._spark not in self._logs_before:
                    # Before it is changed: another monitor would take the change for what there was.
                    self._logs_before[self._spark] = self._spark.conf.get(WORKER_LOGS, None)
                    self._spark.conf.set(WORKER_LOGS, "true")
                self._set_session_runs()
                self._has_logs = True
        return self._has_logs

    def _take_reports(self) -> bool:
        """Have the tasks of an engine without TaskContext report to this process; False if they do not reach it."""
        self._listen(LOCAL)
        self._is_posted = True
        self._post()
        try:
            (row,) = self._spark.range(1).mapInArrow(Reach(REGISTRY.channels()), "reached boolean").collect()
            self._is_posted = bool(row.reached)
        except Exception:
            self._is_posted = False
            self._spark.sql("SELECT 1").collect()  # raises if the session has ended: then nobody is to be told of ways
        finally:
            self._post()
        return self._is_posted

    def _post(self) -> None:
        # Other threads may post at the same time: the last one posts what is true then.
        posted: object = ()
        while (request := self._posted_request()) != posted:
            REGISTRY.post(request)
            posted = request

    def _posted_request(self) -> MonitorRequest | None:
        watches = [watch for watch in self._open if watch._is_posted]
        return MonitorRequest([watch.run for watch in watches], watches[0]._address) if watches else None

    def _thread_runs(self) -> list[str]:
        """The monitors that this thread's jobs report to, without closed ones, which another thread may have closed."""
        runs = MonitorRequest.from_property(self._spark.sparkContext.getLocalProperty(THREAD_PROPERTY)).runs
        return [run for run in runs if run in {watch.run for watch in self._open}]

    def _set_thread_runs(self, runs: list[str]) -> None:
        last = next((watch for watch in self._open if runs and watch.run == runs[-1]), None)
        request = None if last is None else MonitorRequest(runs, last._address).to_property()
        self._spark.sparkContext.setLocalProperty(THREAD_PROPERTY, request)  # type: ignore[arg-type]

    def _session_watches(self) -> list[JobWatch]:
        return [watch for watch in self._open if watch._spark is self._spark]

    def _set_session_runs(self) -> None:
        watches = self._session_watches()
        runs = [watch.run for watch in watches]
        request = MonitorRequest(runs, watches[-1]._address, not self._is_classic).to_property() if watches else None
        change_setting(self._spark, SESSION_CONF, request)

    def messages(self, timeout: float | None = None) -> Iterator[Mapping[str, Any]]:
        """The messages since the last call; waits at most `timeout` seconds for the first."""
        with contextlib.suppress(queue.Empty):
            while True:
                message = self._messages.get(timeout is not None, timeout)
                if self._server is not None and not LiveServer.was_reached and not self._has_warned:
                    JobWatch._has_warned = True
                    logger.warning(
                        "asyncudf.monitor has no live figures: no task could connect to %s, spark.driver.host, at a "
                        "port that the system chooses. Figures come when tasks end",
                        self._address[0] if self._address else "",
                    )
                yield message
                timeout = None

    def logged(self) -> Iterator[Mapping[str, Any]]:
        """The messages in the logs of ended tasks, all of them at each call."""
        if not self._has_logs:
            return  # nor is the server asked: one that has ended would be waited for
        logs = self._spark.tvf.python_worker_logs().where(sf.col("logger") == METRICS_LOGGER)
        for row in logs.where(sf.col("msg").contains(self.run)).select("msg").collect():
            with contextlib.suppress(ValueError):
                yield json.loads(row.msg)

    def task_count(self, stages: Collection[int]) -> TaskCount:
        """How many tasks of these stages have ended, of how many; (0, None) where Spark does not say."""
        counts = [count for stage in stages if (count := self._tasks_of(stage)) is not None]
        return (sum(done for done, _ in counts), sum(total for _, total in counts)) if counts else (0, None)

    def failed_tasks(self, stages: Collection[int]) -> set[TaskAttempt]:
        """The task attempts of these stages that have failed; none where Spark does not say."""
        found: set[TaskAttempt] = set()
        with contextlib.suppress(Exception):  # the session has ended, or this Spark has other names
            if stages:
                context: Any = self._spark.sparkContext
                # Not the status tracker: it counts failed tasks and does not name them.
                java, jvm = context._jsc.sc(), context._jvm
                java.listenerBus().waitUntilEmpty(LISTENER_TIMEOUT)  # the bus brings the ends of tasks to the store
                store, v1 = java.statusStore(), jvm.org.apache.spark.status.api.v1
                failed = jvm.java.util.List.of(v1.TaskStatus.FAILED)
                for stage in stages:
                    for attempt in range(store.lastStageAttempt(stage).attemptId() + 1):
                        tasks = store.taskList(stage, attempt, 0, MAX_FAILED, v1.TaskSorting.ID, failed)
                        each = map(tasks.apply, range(tasks.size()))
                        found.update((stage, task.partitionId(), task.attempt()) for task in each)
        return found

    def _tasks_of(self, stage: int) -> tuple[int, int] | None:
        """How many tasks of a stage have ended, of how many; None where Spark does not say."""
        if stage not in self._ended_stages:
            found = None
            with contextlib.suppress(Exception):  # Spark Connect has no status tracker
                found = self._spark.sparkContext.statusTracker().getStageInfo(stage)
            if found is None:
                return None
            if found.numCompletedTasks < found.numTasks:
                return found.numCompletedTasks, found.numTasks
            self._ended_stages[stage] = found.numTasks
        return self._ended_stages[stage], self._ended_stages[stage]
