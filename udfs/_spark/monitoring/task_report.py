"""Reports of tasks to `asyncudf.monitor`: what a task sends, when, and how it reaches the driver."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import logging
import os
import secrets
import socket
import tempfile
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.accumulators import AccumulatorParam

from ..._chain.chain import Chain
from ..._chain.function_plan import FunctionPlan
from ..._chain.plan import ChainPlan
from ..._observe.export import Exporter, task_line
from ..._observe.function_metrics import FunctionMetrics
from .._compat import active_context
from ..pickling import dumps
from ..running_task import RunningTask
from .live import Address, LiveReporter

if TYPE_CHECKING:
    from pyspark import SparkContext


# The `MonitorRequest` of a job: a property of the thread that runs it, else of its session. An engine without
# TaskContext has no properties: there it is in a file, which the plan names.
THREAD_PROPERTY = "asyncudf.monitor"
SESSION_CONF = "spark.asyncudf.monitor"  # Spark passes properties with this prefix to its tasks
METRICS_LOGGER = "asyncudf.metrics"  # tasks of Spark Connect log their last message to it
WORKER_LOGS = "spark.sql.pyspark.worker.logging.enabled"  # over Spark Connect a monitor needs it
REPORT_INTERVAL = 1.0  # seconds between two reports of a task; the driver may ask for longer ones

logger = logging.getLogger("asyncudf")


class _Messages(AccumulatorParam[list[Any]]):
    """Collects the messages of a task; on the driver each is delivered when it comes, and nothing is kept."""

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
        return _Messages, ()  # the driver alone delivers


class MonitorRegistry:
    """The driver's end of all channels: delivers each message to the monitors that it names.

    There is one for all monitors: when Spark pickles a function, the monitor of its job is not known yet.
    """

    def __init__(self) -> None:
        self.secret = secrets.token_bytes(32)
        self._monitors: dict[str, Callable[[Mapping[str, Any]], None]] = {}
        self._accumulators: weakref.WeakKeyDictionary[SparkContext, bytes] = weakref.WeakKeyDictionary()

    @functools.cached_property
    def notice(self) -> str | None:
        """The file for `post`; None if this machine has no temporary folder."""
        with contextlib.suppress(OSError):
            return os.path.join(tempfile.gettempdir(), f"asyncudf-monitors-{uuid.uuid4().hex}.json")
        return None

    def open(self, run: str, take: Callable[[Mapping[str, Any]], None]) -> None:
        """Call `take` with each message for this monitor from now on, in any thread."""
        self._monitors[run] = take

    def close(self, run: str) -> None:
        self._monitors.pop(run, None)

    def post(self, request: MonitorRequest | None) -> None:
        """Have tasks that start on this machine from now on find this request, if they have no TaskContext."""
        if self.notice is None:
            return
        if request is None:
            with contextlib.suppress(FileNotFoundError):
                os.remove(self.notice)
            return
        new = f"{self.notice}.{uuid.uuid4().hex}"
        with open(new, "x", encoding="utf-8") as file:
            file.write(request.to_property())
        os.replace(new, self.notice)  # no task reads half of it

    def deliver(self, message: Mapping[str, Any]) -> None:
        """Pass a message to its monitors; those that are closed get none."""
        for run in message["runs"]:
            take = self._monitors.get(run)
            if take is not None:
                take(message)

    def lose(self, message: Mapping[str, Any]) -> None:
        """Say that the connection ended after this message."""
        self.deliver({**message, "is_lost": True})

    def channels(self) -> Channels:
        """What a function takes along to a task."""
        accumulator, context = None, active_context()
        with contextlib.suppress(Exception):  # a context that is being stopped: no job fails for it
            accumulator = None if context is None else self._accumulator(context)
        return Channels(accumulator, self.secret, self.notice)

    def _accumulator(self, context: SparkContext) -> bytes:
        """The pickled accumulator through which ended tasks send their last message."""
        if context not in self._accumulators:
            accumulator = context.accumulator([], _Messages(self.deliver))
            self._accumulators[context] = dumps(accumulator)
        return self._accumulators[context]


REGISTRY = MonitorRegistry()


@dataclasses.dataclass(frozen=True)
class Channels:
    """How a task reaches the driver. It travels with the function, and is in no text that Spark shows."""

    accumulator: bytes | None  # None where the driver has no SparkContext
    secret: bytes
    notice: str | None  # a file on the driver's machine with what its monitors ask of tasks without a TaskContext


@dataclasses.dataclass(frozen=True)
class TaskReportSpec:
    """Travels with a function to Spark's Python worker: what a `TaskReport` there says of its origin, and to whom."""

    entry_point: str  # "column", "table function", "operator", "sink" or "handler"
    use: int = dataclasses.field(default_factory=itertools.count(1).__next__)  # tells two uses of one function apart
    mention: str = ""  # in a query, for a table function, whose plan all queries share
    place: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)  # as `use`, in all drivers of a cluster
    channels: Channels | None = dataclasses.field(default=None, repr=False, compare=False)

    # Spark pickles a function when a query needs it. The channels are made then, as there may be no session before.
    # The worker unpickles the accumulator only for a monitor: Spark would send it back with every task.

    def about(self, plan: FunctionPlan, name: str, position: int) -> tuple[str, dict[str, Any]]:
        """The key of one use of a function in messages, and its description; `position` in the chain."""
        order = [self.use, self.mention, position]
        options = plan.public_options()
        about = {"name": name, "entry_point": self.entry_point, "order": order, "options": options}
        return ":".join(map(str, order)), about

    def __reduce__(self) -> Any:
        channels = self.channels or REGISTRY.channels()
        return TaskReportSpec, (self.entry_point, self.use, self.mention, self.place, channels)


class WaitingReport:
    """Says to the monitors of a job what a task waits for that has no rows yet, until it is closed."""

    # A message of its own: the task's report begins with its first rows. Made in a thread that watches Spark's.

    def __init__(self, report_spec: TaskReportSpec, plan: FunctionPlan) -> None:
        now = RunningTask.now()
        self._id, self._task = uuid.uuid4().hex, {**_told(now, 0.0), "status": "waiting"}
        self._request = _request(now, report_spec.channels)
        self._use, self._about = report_spec.about(plan, plan.spec.name, 0)
        self._reporter = _reporter(self._request, report_spec.channels)

    def send(self, wait: Mapping[str, Any]) -> None:
        if self._reporter is not None:
            metrics = FunctionMetrics().to_plain()
            functions = {self._use: {"about": self._about, "metrics": metrics, "timeline": [], "waits": [wait]}}
            message = {"id": self._id, "runs": self._request.runs, "task": self._task, "functions": functions}
            self._reporter.send(message)

    def close(self) -> None:
        if self._reporter is not None:
            self._reporter.drop()


class TaskReport:
    """Reports what the functions of a task do, at intervals and at the end, to the monitors of its job.

    Messages of a running task go straight to the driver. The last one also goes through a Spark accumulator, or with
    Spark Connect as a record of Python's logging; where a task has no TaskContext there is no other way. Without
    a monitor the task writes one line to the logger `asyncudf`.
    """

    # A report never fails or delays a task: what cannot be sent is left out.
    #
    # Spark's thread makes, begins and ends it; between `watch` and `end` the loop's thread calls `sampled`.

    def __init__(self, report_spec: TaskReportSpec, plan: ChainPlan, task: RunningTask, waited: float) -> None:
        self._report_spec = report_spec
        self._plan = plan
        self._chain: Chain | None = None
        self._id = uuid.uuid4().hex
        self._due = 0.0
        self._exporters: list[Exporter] = []
        self._task: dict[str, Any] = {}
        self._request = MonitorRequest()
        self._reporter: LiveReporter | None = None
        self._is_live_alone = False  # there is no accumulator, and no log that can be read
        with contextlib.suppress(Exception):
            self._exporters = [Exporter(one.spec.full_name, report_spec.entry_point) for one in plan.functions]
            self._is_live_alone = task.stage is None
            self._task, self._request = _told(task, waited), _request(task, report_spec.channels)
            self._reporter = _reporter(self._request, report_spec.channels)

    def watch(self, chain: Chain) -> None:
        self._chain = chain
        self.sampled()

    def sampled(self) -> None:
        """The figures of the chain are up to date: send them, if a message is due."""
        chain, now = self._chain, time.monotonic()
        if chain is not None and now >= self._due:
            self._due = now + (REPORT_INTERVAL if self._reporter is None else self._reporter.interval)
            with contextlib.suppress(Exception):
                self._export(chain, is_over=False)
                if self._reporter is not None:
                    self._reporter.send(self._message(chain, "running"))

    def _export(self, chain: Chain, *, is_over: bool) -> None:
        for exporter, operator in zip(self._exporters, chain.counted.values(), strict=True):
            now = (0, 0) if is_over else operator.in_progress
            exporter.export(operator.counters.totals, *now)

    def end(self, status: str) -> None:
        """Send the last message: the task has "succeeded", "failed", or was "stopped"."""
        with contextlib.suppress(Exception):
            if self._chain is not None:
                self._send_last(self._chain, status)
        if self._reporter is not None:
            self._reporter.drop()

    def _send_last(self, chain: Chain, status: str) -> None:
        self._export(chain, is_over=True)
        if not self._request.runs:
            if logger.isEnabledFor(logging.INFO):
                for name, operator in chain.counted.items():
                    logger.info("%s", task_line(name, operator.counters.totals))
            return
        message = self._message(chain, status)
        # Spark drops the accumulator of a task that fails after this. So a message that comes through it is a proof.
        channels = self._report_spec.channels if status == "succeeded" and not self._request.is_logged else None
        accumulator = None if channels is None or self._is_live_alone else channels.accumulator
        if self._reporter is not None:
            self._reporter.close({**message, "awaits_proof": accumulator is not None})
        if self._request.is_logged:
            log = logging.getLogger(METRICS_LOGGER)
            log.setLevel(logging.INFO)
            log.info("%s", json.dumps(message))
        elif accumulator is not None:
            cloudpickle.loads(accumulator).add([message])

    def _message(self, chain: Chain, status: str) -> dict[str, Any]:
        functions = {}
        is_running = status == "running"
        if is_running:
            for operator in chain.counted.values():
                operator.count_open()
        counted = zip(self._plan.functions, chain.counted.items(), strict=True)
        for position, (plan, (name, operator)) in enumerate(counted):
            use, about = self._report_spec.about(plan, name, position)
            functions[use] = {
                "about": about,
                "metrics": operator.counters.totals.to_plain(),
                "timeline": operator.counters.timeline,
                "waits": [wait for waiting, wait in chain.waits.long() if is_running and waiting == name],
            }
        task = {**self._task, "status": status}
        return {"id": self._id, "runs": self._request.runs, "task": task, "functions": functions}


_unnumbered = itertools.count()  # tasks without a stage: each is a partition of its own, also of two queries


def _told(task: RunningTask, waited: float) -> dict[str, Any]:
    """Where a task runs, and when it began: it has waited for its first rows for so many seconds."""
    micro_batch = task.property_of("streaming.sql.batchId")
    stage, partition = (0, next(_unnumbered)) if task.stage is None else (task.stage, task.partition)
    where = stage, partition, task.attempt, int(micro_batch) if micro_batch else None
    named = dict(zip(("stage", "partition", "attempt", "batch"), where, strict=True))
    return {**named, "host": socket.gethostname(), "began": time.time() - waited}


@dataclasses.dataclass(frozen=True)
class MonitorRequest:
    """The monitors that a job reports to, and how."""

    runs: list[str] = dataclasses.field(default_factory=list)  # the names of the monitors
    address: Address | None = None  # where the driver takes figures of running tasks; None if it takes none
    is_logged: bool = False  # whether ended tasks log their last message to `METRICS_LOGGER`

    def to_property(self) -> str:
        """The value of a property; it contains no secret."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_property(cls, text: str | None) -> MonitorRequest:
        """Read the value of a property; without monitors if the value is not one of ours."""
        with contextlib.suppress(ValueError, TypeError, KeyError, IndexError):
            found = json.loads(text or "")
            address = found["address"] and (str(found["address"][0]), int(found["address"][1]))
            return cls([str(run) for run in found["runs"]], address, bool(found["is_logged"]))
        return cls()


def _request(task: RunningTask, channels: Channels | None) -> MonitorRequest:
    if task.stage is not None:
        own = MonitorRequest.from_property(task.property_of(THREAD_PROPERTY))
        return own if own.runs else MonitorRequest.from_property(task.property_of(SESSION_CONF))
    with contextlib.suppress(OSError):
        if channels is not None and channels.notice is not None:
            return MonitorRequest.from_property(Path(channels.notice).read_text("utf-8"))
    return MonitorRequest()


def _reporter(request: MonitorRequest, channels: Channels | None) -> LiveReporter | None:
    return None if request.address is None or channels is None else LiveReporter(request.address, channels.secret)


@dataclasses.dataclass(frozen=True)
class Reach:
    """Asks from a task, in `mapInArrow`, whether it reaches the driver's monitors."""

    channels: Channels

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            reporter = _reporter(_request(RunningTask.now(), self.channels), self.channels)
            yield pa.RecordBatch.from_pydict({"reached": [reporter is not None and reporter.is_connected]})
            if reporter is not None:
                reporter.drop()
