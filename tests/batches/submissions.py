"""Submissions in memory: a function, a service without sockets that bills by itself, and processes that are killed."""

from __future__ import annotations

import contextlib
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from asyncudf import Budget, RuntimeContext, batch_function
from asyncudf._batches import owner as owners
from asyncudf._batches.journal import SubmissionProgress
from asyncudf._batches.owner import Owner
from asyncudf._batches.work import Work
from asyncudf._batches.writer import Submitted, Writer
from asyncudf._spark.planner import plan_function_offline
from asyncudf.batches import BatchRequest, BatchService, JobStatus
from tests.kit.batch_folders import Disk, DriverKilled, MemoryFolder, WorkerKilled

Step = Callable[[str], None]


def read(answer: Any) -> int:
    return answer["value"]  # type: ignore[no-any-return]


@batch_function(parse=read)
def double(n: int, context: RuntimeContext) -> dict[str, Any]:
    return {"n": n, "attempt": context.attempt_number, "why": str(context.last_error or "")}


class Service(BatchService):
    """Jobs in this process. `answer` gives a value, an exception, or None; `ends` how a job ends.

    `step` is called before and after each request; if it raises after one, the service has done what was asked.
    """

    poll_every = 1e-9

    def __init__(self, max_requests: int = 3, **bounds: Any) -> None:
        self.max_requests = max_requests
        vars(self).update(bounds)
        self.step: Step = lambda name: None
        self.answer: Callable[[Any], Any] = lambda body: {"value": 2 * body["n"]}
        self.ends: Callable[[str], str] = lambda job: "ended"
        self.lines: Callable[[str, list[Any]], list[Any]] = lambda job, lines: lines
        self.jobs: dict[str, tuple[str, list[BatchRequest]]] = {}
        self.states: dict[str, str] = {}
        self.answers: dict[str, dict[str, Any]] = {}
        self.billed: Counter[str] = Counter()
        self.fetched: Counter[str] = Counter()

    def __deepcopy__(self, _: Any) -> Service:
        return self

    def submit(self, requests: Sequence[BatchRequest], key: str) -> str:
        self.step("submit before")
        job = f"job-{len(self.jobs)}"
        self.jobs[job] = (key, list(requests))
        self.step("submit after")
        return job

    def poll(self, job: str) -> JobStatus:
        self.step("poll")
        if job not in self.states and (state := self.ends(job)) != "working":
            self._end(job, state)
        return JobStatus(self.states.get(job, "working"), len(self.answers.get(job, ())))

    def _end(self, job: str, state: str) -> None:
        self.states[job], self.answers[job] = state, {}
        for number, request in enumerate(self.jobs[job][1]):
            is_late = state in ("failed", "cancelled", "refused") or (state == "expired" and number % 2)
            if not is_late and (answer := self.answer(request.body)) is not None:
                self.billed[json.dumps(request.body, sort_keys=True)] += not isinstance(answer, Exception)
                self.answers[job][request.key] = answer

    def fetch(self, job: str) -> Iterator[tuple[str, Any]]:
        self.step("fetch before")
        self.fetched[job] += 1
        yield from self.lines(job, list(self.answers[job].items()))
        self.step("fetch after")

    def cancel(self, job: str) -> None:
        self.step("cancel")
        if job not in self.states:
            self._end(job, "cancelled")

    @property
    def twice(self) -> int:
        """Jobs that were accepted once more than there are keys."""
        return len(self.jobs) - len({key for key, _ in self.jobs.values()})


class Finding(Service):
    """The same for a service that can tell whether it has a job."""

    def find(self, key: str) -> str | None:
        self.step("find")
        return next((job for job, (own, _) in self.jobs.items() if own == key), None)


class Process:
    """A process that goes on with a submission, on one disk."""

    def __init__(
        self,
        disk: Disk,
        service: Service,
        step: Step = lambda name: None,
        *,
        function: Any = double,
        budgets: Sequence[Budget] = (),
        attempts: int = 3,
        store: Any = None,
        reparses: bool = False,
    ) -> None:
        plan = plan_function_offline(function.spec, function.options.replace({"store": store}), function.returns)
        self.folder = MemoryFolder(disk, [pa.int64()], step)
        self.work = Work(plan, function.parse, service, tuple(budgets), "id", attempts)
        self.submitted = Submitted(self.folder, self.work, (pa.int64(),), len(disk.rows))  # type: ignore[arg-type]
        self.store, self.reparses = store, reparses

    @contextlib.contextmanager
    def writer(self) -> Iterator[Writer]:
        # A process that is killed releases nothing; that it has ended is seen by its id.
        owners._PROCESS = uuid.uuid4().hex
        owner = Owner(self.folder)
        owner.__enter__()
        try:
            yield Writer(self.submitted, owner, self.store, reparses=self.reparses)
        except (DriverKilled, WorkerKilled):
            owner._ended.set()
            raise
        except BaseException:
            owner.__exit__()
            raise
        owner.__exit__()

    def rounds(self, most: int = 200) -> SubmissionProgress:
        """Rounds until it is done."""
        with self.writer() as writer:
            for _ in range(most):
                writer._send_at = 0.0  # nobody waits here
                writer.round()
                if writer.progress.is_done:
                    break
            return writer.progress


def disk_of(numbers: Sequence[int]) -> Disk:
    """Rows with these numbers."""
    plan = plan_function_offline(double.spec, double.options, double.returns)
    keys = plan.result_keys()
    return Disk([(keys.of((number,)).hex(), (number,)) for number in numbers])


def values(disk: Disk) -> dict[int, int]:
    """The result of each number that has one."""
    return {n: end["value"] for n, end in _ends(disk).items() if end["kind"] == "ok"}


def errors(disk: Disk) -> dict[int, dict[str, Any]]:
    """The error of each number that is a dead letter."""
    return {n: end["error"] for n, end in _ends(disk).items() if end["kind"] == "failed"}


def _ends(disk: Disk) -> dict[int, dict[str, Any]]:
    ends = disk.final()
    return {row[0]: ends[key] for key, row in disk.rows if key in ends}
