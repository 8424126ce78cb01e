"""What all functions of a run did: the messages of its tasks, added up in bounded memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import count
from math import inf
from typing import Any, NamedTuple

from .function_metrics import MAPS, PEAKS, TOTALS, FunctionMetrics
from .latency_sketch import LatencySketch

DETAILED = 200  # tasks of a function that are shown one by one
UNSURE = 1000  # tasks that are lost, or unproven; beyond these the first ones stay as they are
QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
TaskAttempt = tuple[int, int, int]  # its stage, its partition, and which attempt it was
LIVE = ("running", "waiting")  # a task that waits for its first rows has no figures
IN_VAIN = ("failed", "lost")  # ends of a task whose results Spark does not use


class _FunctionInTask(NamedTuple):
    """What one function did in one task."""

    task: Mapping[str, Any]
    metrics: FunctionMetrics
    timeline: list[list[float]]
    waits: Sequence[Mapping[str, Any]]  # what it waits for now, as `Wait.to_plain` gives it


class _Report(NamedTuple):
    """A message of a task, with the figures of each of its functions; read once, when it comes."""

    task: Mapping[str, Any]
    awaits_proof: bool
    figures: Mapping[str, tuple[FunctionMetrics, list[list[float]], Sequence[Mapping[str, Any]]]]

    @classmethod
    def of(cls, message: Mapping[str, Any]) -> _Report:
        figures = {
            use: (FunctionMetrics.from_plain(told["metrics"]), told["timeline"], told.get("waits", ()))
            for use, told in message["functions"].items()
        }
        return cls(message["task"], bool(message.get("awaits_proof")), figures)

    def with_status(self, status: str) -> _Report:
        return self._replace(task={**self.task, "status": status})

    def part(self, use: str) -> _FunctionInTask:
        return _FunctionInTask(self.task, *self.figures[use])


class _Function:
    """What is known of one use of a function."""

    # A part is in `totals` or `in_vain` once its task has ended, and in `details` as long as it is among the longest.
    # failed, done: for partitions of the last stage when the last attempt began that has failed, and when the last one
    # ended that has not. One that was begun after that has failed for good; with speculation, and when Spark repeats a
    # stage, the number of an attempt does not tell.

    def __init__(self, about: Mapping[str, Any]) -> None:
        self.about = about
        self.totals = FunctionMetrics()
        self.in_vain = FunctionMetrics()
        self.states: Counter[str] = Counter()
        self.stages: set[int] = set()
        self.last_stage = -1
        self.failed: dict[int, float] = {}
        self.done: dict[int, float] = {}
        self.details: list[_FunctionInTask] = []
        self.left_out = 0
        self.running_rows, self.running_calls = 0, 0.0
        self.waits: dict[tuple[str, str], dict[str, Any]] = {}
        self.began, self.ended = inf, 0.0

    def add(self, part: _FunctionInTask) -> None:
        self._note(part)
        (self.in_vain if part.task["status"] in IN_VAIN else self.totals).merge(part.metrics)
        self.details.append(part)
        if len(self.details) > 2 * DETAILED:
            self.details.sort(key=lambda part: -part.metrics.seconds)
            self.left_out += len(self.details) - DETAILED
            del self.details[DETAILED:]

    def _note(self, part: _FunctionInTask) -> None:
        stage, partition, status = (part.task[name] for name in ("stage", "partition", "status"))
        self.states[status] += 1
        self.stages.add(stage)
        if stage > self.last_stage:
            self.last_stage, self.failed, self.done = stage, {}, {}
        began = part.task["began"]
        ended = began + part.metrics.seconds
        if stage == self.last_stage and status == "failed":
            self.failed[partition] = max(began, self.failed.get(partition, began))
        elif stage == self.last_stage and status != "lost":
            self.done[partition] = max(inf if status == "running" else ended, self.done.get(partition, ended))
        self.began = min(self.began, began)
        self.ended = max(self.ended, ended)

    def with_running(self, parts: list[_FunctionInTask]) -> _Function:
        """A copy that also counts the tasks that still run, as they are now."""
        both = _Function(self.about)
        vars(both).update({name: copy(value) for name, value in vars(self).items()})
        for part in parts:
            both.add(part)
            if part.task["status"] in LIVE:
                both.running_rows += part.metrics.rows
                both.running_calls += part.timeline[-1][2] if part.timeline else 0
                both._add_waits(part.waits)
        return both

    def _add_waits(self, waits: Iterable[Mapping[str, Any]]) -> None:
        """Count the waits of one task; if several tasks wait for the same, the longest wait is shown."""
        for wait in waits:
            key = wait["kind"], wait["what"]
            before = self.waits.get(key, {**wait, "tasks": 0})
            longest = max(before, wait, key=lambda one: one["seconds"])
            self.waits[key] = {**longest, "tasks": before["tasks"] + 1}

    def to_plain(self, label: str, *, with_tasks: bool) -> dict[str, Any]:
        details = sorted(self.details, key=lambda part: -part.metrics.seconds) if with_tasks else []
        shown = sorted(details[:DETAILED], key=lambda part: (part.task["began"], part.task["partition"]))
        return {
            "function": label,
            "name": self.about["name"],
            "entry_point": self.about["entry_point"],
            "options": dict(self.about["options"]),
            "tasks": {status: self.states[status] for status in ("succeeded", "stopped", "running", *IN_VAIN)},
            "given_up": sum(began > self.done.get(partition, -inf) for partition, began in self.failed.items()),
            "waits": sorted(self.waits.values(), key=lambda wait: -wait["seconds"]),
            "running": {"rows": self.running_rows, "in_flight": round(self.running_calls)},
            "stages": sorted(self.stages),
            "began": self.began,
            "ended": self.ended,
            **_plain(self.totals),
            "failed_attempts": _plain(self.in_vain),
            "per_task": [{**part.task, **_plain(part.metrics), "timeline": part.timeline} for part in shown],
            "per_task_left_out": self.left_out + len(details) - len(shown),
        }


class RunMetrics:
    """Adds up the messages of tasks; they may come in any order, and more than once.

    A message has an `id`, the `status` of its task ("waiting" for its first rows, "running", "succeeded", "stopped" by
    a reader that needed no more, "failed", or "lost": no further message came), where and when the task ran, and what
    each function did so far.
    A message that `awaits_proof` says that the functions ended well. If Spark reads the task to its end, a second
    message confirms it. Spark may stop reading before, and what follows the functions in the task may fail. So without
    a second message the task has succeeded, unless Spark names it among the failed ones.
    """

    # Memory and the time of a look: an ended task leaves its id and its part of the sums; the longest also their
    # details. 40,000 tasks: 13 MB. Tasks that run, or whose end is unsure, are added anew at each look.
    #
    # an id is in _running, in _unsure (lost or unproven) or in _ended; each function of a report is in _functions

    def __init__(self) -> None:
        self._functions: dict[str, _Function] = {}
        self._running: dict[str, _Report] = {}
        self._unsure: dict[str, _Report] = {}
        self._ended: set[str] = set()

    def add(self, message: Mapping[str, Any]) -> None:
        number = message["id"]
        if number in self._ended:
            return
        for use, function in message["functions"].items():
            if use not in self._functions:
                self._functions[use] = _Function(function["about"])
        report = _Report.of(message)
        self._running.pop(number, None)
        self._unsure.pop(number, None)
        if report.awaits_proof:
            self._doubt(number, report)
        elif report.task["status"] in LIVE:
            self._running[number] = report
        else:
            self._end(number, report)

    def _doubt(self, number: str, report: _Report) -> None:
        self._unsure[number] = report
        if len(self._unsure) > UNSURE:  # no message of the first one is to be expected
            first = next(iter(self._unsure))
            self._end(first, self._unsure.pop(first))

    def _end(self, number: str, report: _Report) -> None:
        self._ended.add(number)
        for use in report.figures:
            self._functions[use].add(report.part(use))

    def lose(self, number: str) -> None:
        """Count the task of this message as lost; its last message may still come another way."""
        if number in self._running:
            report = self._running.pop(number)
            if report.task["status"] != "waiting":  # it has rows now, and reports anew, or it has ended without any
                self._doubt(number, report.with_status("lost"))

    @property
    def unproven_stages(self) -> set[int]:
        """The stages of tasks that ended well, as far as they know, and that Spark has not confirmed."""
        return {report.task["stage"] for report in self._unsure.values() if report.awaits_proof}

    def mark_failed(self, failed: Collection[TaskAttempt]) -> None:
        """Say at the end of the run which of the tasks failed that Spark has not confirmed."""
        for number, report in self._unsure.items():
            task = report.task
            if report.awaits_proof and (task["stage"], task["partition"], task["attempt"]) in failed:
                self._unsure[number] = report.with_status("failed")

    @property
    def ended(self) -> int:
        """How many tasks have ended, as far as their messages say."""
        return len(self._ended) + len(self._unsure)

    @property
    def is_running(self) -> bool:
        """Whether tasks run, as far as their messages say."""
        return bool(self._running)

    def to_plain(self, *, with_tasks: bool = True) -> list[dict[str, Any]]:
        """What each function did until now, in the order in which they were planned."""
        plain, labels, numbers = [], set[str](), dict[str, Iterator[int]]()
        for use in sorted(self._functions, key=lambda use: self._functions[use].about["order"]):
            reports = (*self._running.values(), *self._unsure.values())
            function = self._functions[use].with_running([one.part(use) for one in reports if use in one.figures])
            name = function.about["name"]
            label = name
            while label in labels:
                label = f"{name} #{next(numbers.setdefault(name, count(2)))}"
            labels.add(label)
            plain.append(function.to_plain(label, with_tasks=with_tasks))
        return plain


def _plain(metrics: FunctionMetrics) -> dict[str, Any]:
    sketch = metrics.latency
    return {
        **{figure.name: getattr(metrics, figure.name) for figure in TOTALS},
        **{name: kind.to_plain(getattr(metrics, name)) for name, kind in MAPS},
        "learned": {
            limit: dict(zip(("told", "permits", "per", "unit"), newest, strict=True))
            for limit, newest in metrics.learned.items()
        },
        "budgets": {
            name: {"window": window, "spent": spent, "amount": amount, "unit": unit}
            for name, (window, _, spent, amount, unit) in metrics.budgets.items()
        },
        "last_error": metrics.last_error and dict(zip(("type", "status"), metrics.last_error, strict=True)),
        "in_flight": {"mean": metrics.in_flight, "peak": metrics.in_flight_peak},
        "queued": {"mean": metrics.queued, "peak": metrics.queued_peak},
        **{figure.name: getattr(metrics, figure.name) for figure in PEAKS},
        "latency": {
            "count": sketch.count,
            "mean": sketch.mean,
            "min": sketch.shortest if sketch.count else None,
            **{name: sketch.quantile(share) for name, share in QUANTILES.items()},
            "max": sketch.longest if sketch.count else None,
            "histogram": _histogram(sketch),
            "first": _histogram(metrics.first),
            "last": _histogram(metrics.last),
        },
    }


def _histogram(sketch: LatencySketch) -> list[list[float]]:
    return [[seconds, count] for seconds, count in sketch.histogram()]
