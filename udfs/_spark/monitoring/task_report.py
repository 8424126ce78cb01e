"""What a task tells of itself, and on which channels: the worker's side of `asyncudf.monitor`."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import logging
import secrets
import socket
import time
import uuid
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext, cloudpickle
from pyspark.accumulators import AccumulatorParam

from ..._chain.chain import Chain
from ..._chain.plan import ChainPlan
from ..._metrics.export import Exporter
from ..._metrics.log_line import task_line
from .._compat import active_context
from .live import Address, LiveReporter

if TYPE_CHECKING:
    from pyspark import SparkContext

__all__ = (
    "METRICS_LOGGER",
    "REGISTRY",
    "SESSION_CONF",
    "THREAD_PROPERTY",
    "MonitorRequest",
    "TaskReport",
    "TaskReportSpec",
)


# Which monitors want to know of a job, and where they listen: said for the thread that runs it, else for its session.
THREAD_PROPERTY = "asyncudf.monitor"
SESSION_CONF = "spark.asyncudf.monitor"  # the prefix makes Spark tell its tasks
METRICS_LOGGER = "asyncudf.metrics"  # to which tasks of Spark Connect tell their figures
INTERVAL = 1.0  # seconds between two messages of a task

logger = logging.getLogger("asyncudf")

_dumps: Callable[[Any], bytes] = cloudpickle.dumps


class _Messages(AccumulatorParam[list[Any]]):
    """Gathers the messages of a task; on the driver each is delivered when it comes, and nothing is kept."""

    def __init__(self, deliver: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        self._deliver = deliver

    def zero(self, value: list[Any]) -> list[Any]:
        return []

    def addInPlace(self, value1: list[Any], value2: list[Any]) -> list[Any]:  # noqa: N802 - Spark's name
        if self._deliver is None:
            return value1 + value2
        for message in value2:
            self._deliver(message)
        return value1

    def __reduce__(self) -> Any:
        return _Messages, ()  # who gets them is the driver's business


class MonitorRegistry:
    """The driver's end of all channels: hands each message to the monitors that it is for.

    There is one, since a function is planned before anybody knows which monitor its job will run in.
    """

    def __init__(self) -> None:
        self.secret = secrets.token_bytes(32)
        self._monitors: dict[str, Callable[[Mapping[str, Any]], None]] = {}
        self._accumulators: weakref.WeakKeyDictionary[SparkContext, bytes] = weakref.WeakKeyDictionary()

    def open(self, run: str, take: Callable[[Mapping[str, Any]], None]) -> None:
        """From now on `take` is called with the messages for this monitor, in any thread."""
        self._monitors[run] = take

    def close(self, run: str) -> None:
        self._monitors.pop(run, None)

    def deliver(self, message: Mapping[str, Any]) -> None:
        """Hand a message on; one for monitors that are closed goes nowhere."""
        for run in message["runs"]:
            take = self._monitors.get(run)
            if take is not None:
                take(message)

    def lose(self, message: Mapping[str, Any]) -> None:
        """The task that has sent this message is not heard of any more."""
        self.deliver({**message, "is_lost": True})

    def accumulator(self, context: SparkContext) -> bytes:
        """The accumulator by which ended tasks tell their figures, pickled."""
        if context not in self._accumulators:
            accumulator = context.accumulator([], _Messages(self.deliver))
            self._accumulators[context] = _dumps(accumulator)
        return self._accumulators[context]


REGISTRY = MonitorRegistry()


@dataclasses.dataclass(frozen=True)
class Channels:
    """How a task may tell the driver of itself; travels with what the task runs, and with nothing that is shown."""

    accumulator: bytes
    secret: bytes


@dataclasses.dataclass(frozen=True)
class TaskReportSpec:
    """Goes with what runs in one of Spark's Python workers, and has it tell what it did.

    Args:
        entry_point: "column", "table function" or "operator".
        use: counts what was planned, so that two uses of one function are told apart.
        mention: of a table function, whose plan all queries share, which mention in a query it is.
    """

    entry_point: str
    use: int = dataclasses.field(default_factory=itertools.count(1).__next__)
    mention: str = ""
    channels: Channels | None = dataclasses.field(default=None, repr=False, compare=False)

    # The channels are found when Spark pickles a function, not when it is planned: it may be planned without a session.
    # The accumulator is unpickled only where a monitor wants to know: Spark would send it back with every task.

    def __reduce__(self) -> Any:
        channels, context = self.channels, active_context()
        if channels is None and context is not None:
            with contextlib.suppress(Exception):  # a context that is just being stopped: no job fails for it
                channels = Channels(REGISTRY.accumulator(context), REGISTRY.secret)
        return TaskReportSpec, (self.entry_point, self.use, self.mention, channels)


class TaskReport:
    """Tells what the functions of a task do, now and then and in the end, to whoever wants to know.

    Monitors name themselves in a property of the job. While a task runs its messages go straight to the driver; the
    last one also with Spark's own accumulators, or with Spark Connect as a record of Python's logging. Without a
    monitor it is one line for the logger `asyncudf`.
    """

    # Nothing here may fail a task or hold it up: what cannot be told is left out.
    #
    # Spark's thread makes, begins and ends it; `looked` is called on the loop's thread between `watch` and the end.

    def __init__(self, report_spec: TaskReportSpec, plan: ChainPlan, waited: float) -> None:
        self._report_spec = report_spec
        self._plan = plan
        self._chain: Chain | None = None
        self._id = uuid.uuid4().hex
        self._told = -INTERVAL
        self._exporters: list[Exporter] = []
        self._task: dict[str, Any] = {}
        self._request = MonitorRequest()
        self._reporter: LiveReporter | None = None
        with contextlib.suppress(Exception):
            self._exporters = [Exporter(one.spec.full_name, report_spec.entry_point) for one in plan.functions]
            self._task, self._request = _task(waited), _request()
            if self._request.address is not None and report_spec.channels is not None:
                self._reporter = LiveReporter(self._request.address, report_spec.channels.secret)

    def watch(self, chain: Chain) -> None:
        """Tell of this chain."""
        self._chain = chain
        self.sampled()

    def sampled(self) -> None:
        """The figures of the chain are up to date: send them, if a message is due."""
        now = time.monotonic()
        if now - self._told >= INTERVAL:
            self._told = now
            with contextlib.suppress(Exception):
                self._export(is_over=False)
                if self._reporter is not None:
                    self._reporter.send(self._message("running"))

    def _export(self, *, is_over: bool) -> None:
        operators = () if self._chain is None else self._chain.counted.values()
        for exporter, operator in zip(self._exporters, operators, strict=True):
            now = (0, 0) if is_over else operator.in_progress
            exporter.export(operator.counters.totals, *now)

    def end(self, status: str) -> None:
        """Tell for the last time: the task has "succeeded", "failed", or was "stopped"."""
        with contextlib.suppress(Exception):
            if self._chain is not None:
                self._tell_last(status, self._chain)
        if self._reporter is not None:
            self._reporter.drop()

    def _tell_last(self, status: str, chain: Chain) -> None:
        self._export(is_over=True)
        if not self._request.runs:
            if logger.isEnabledFor(logging.INFO):
                for name, operator in chain.counted.items():
                    logger.info("%s", task_line(name, operator.counters.totals))
            return
        message = self._message(status)
        is_proven = self._report_spec.channels is not None and not self._request.is_logged and status == "succeeded"
        if self._reporter is not None:
            self._reporter.close({**message, "awaits_proof": is_proven})
        if self._request.is_logged:
            told = logging.getLogger(METRICS_LOGGER)
            told.setLevel(logging.INFO)
            told.info("%s", json.dumps(message))
        elif (
            is_proven and self._report_spec.channels is not None
        ):  # else Spark drops it, as it does if the task fails yet
            cloudpickle.loads(self._report_spec.channels.accumulator).add([message])

    def _message(self, status: str) -> dict[str, Any]:
        assert self._chain is not None
        functions = {}
        if status == "running":
            for operator in self._chain.counted.values():
                operator.count_open()
        counted = zip(self._plan.functions, self._chain.counted.items(), strict=True)
        for position, (plan, (name, operator)) in enumerate(counted):
            order = [self._report_spec.use, self._report_spec.mention, position]
            functions[":".join(map(str, order))] = {
                "about": {
                    "name": name,
                    "entry_point": self._report_spec.entry_point,
                    "order": order,
                    "options": plan.public_options(),
                },
                "metrics": operator.counters.totals.to_plain(),
                "timeline": operator.counters.timeline,
            }
        task = {**self._task, "status": status}
        return {"id": self._id, "runs": self._request.runs, "task": task, "functions": functions}


def _task(waited: float) -> dict[str, Any]:
    """Where this runs, and since when: for so many seconds it has waited for its first rows."""
    context = TaskContext.get()
    where = {"stage": 0, "partition": 0, "attempt": 0, "batch": None}
    if context is not None:
        batch = context.getLocalProperty("streaming.sql.batchId")
        where = {
            "stage": context.stageId(),
            "partition": context.partitionId(),
            "attempt": context.attemptNumber(),
            "batch": int(batch) if batch else None,
        }
    return {**where, "host": socket.gethostname(), "began": time.time() - waited}


@dataclasses.dataclass(frozen=True)
class MonitorRequest:
    """Which monitors want to know of a job, and how.

    Args:
        runs: what the monitors are called; none if nobody wants to know.
        address: where the driver listens for figures of running tasks, if it does.
        is_logged: whether ended tasks tell theirs to the logger `METRICS_LOGGER`.
    """

    runs: list[str] = dataclasses.field(default_factory=list)
    address: Address | None = None
    is_logged: bool = False

    def dumped(self) -> str:
        """As the value of a property; it has no secret."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def loaded(cls, text: str | None) -> MonitorRequest:
        """Of the value of a property; nobody wants to know if it is none of ours."""
        with contextlib.suppress(ValueError, TypeError, KeyError, IndexError):
            found = json.loads(text or "")
            address = found["address"] and (str(found["address"][0]), int(found["address"][1]))
            return cls([str(run) for run in found["runs"]], address, bool(found["is_logged"]))
        return cls()


def _request() -> MonitorRequest:
    context = TaskContext.get()
    if context is None:
        return MonitorRequest()
    own = MonitorRequest.loaded(context.getLocalProperty(THREAD_PROPERTY))
    return own if own.runs else MonitorRequest.loaded(context.getLocalProperty(SESSION_CONF))
