"""A state in memory, whose tasks run here: with it a submission goes through thousands of accidents in seconds.

What is written survives a process that is killed, a task's file from the task's end on, as with Spark.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from asyncudf._batches import tasks
from asyncudf._batches.journal import HALVES, REST, REUSED, Event
from asyncudf._batches.state import KINDS, counted_events
from asyncudf._spark import running_task

__all__ = ("Disk", "DriverKilled", "MemoryFolder", "WorkerKilled", "killable")


class DriverKilled(BaseException):
    """The process that goes on with the submission is gone."""


class WorkerKilled(BaseException):
    """The process of a task is gone; Spark begins the task again."""


class Disk:
    """What is written.

    Args:
        rows: the key and the arguments of each row.
    """

    def __init__(self, rows: Sequence[tuple[str, tuple[Any, ...]]]) -> None:
        self.rows = list(rows)
        self.journal: list[Event] = []
        self.parts: dict[int, dict[str, list[dict[str, Any]]]] = {}
        self.results: list[tuple[str, dict[str, Any]]] = []
        self.waves = 0
        self.random = random.Random(0)  # in which order tasks run

    def final(self) -> dict[str, dict[str, Any]]:
        """What came of each request that is done, by its key; as `StateFolder.final`."""
        ended = [(wave, row) for wave, row in self.results if row["kind"] in ("ok", "failed")]
        ended.sort(key=lambda one: (KINDS.index(one[1]["kind"]), one[1]["attempt"], one[0]))
        found: dict[str, dict[str, Any]] = {}
        for _, row in ended:
            found.setdefault(row["key"], row)
        return found


class MemoryFolder:
    """A `StateFolder`; `step` is called before and after each thing that is done, and may raise `DriverKilled`."""

    path = "/state"
    slots = 3
    sends_one_by_one = False

    def __init__(
        self, disk: Disk, argument_types: Sequence[pa.DataType], step: Callable[[str], None] = lambda name: None
    ) -> None:
        self.disk, self._step = disk, step
        self._arguments = pa.struct([(f"a{place}", kind) for place, kind in enumerate(argument_types)])

    def events(self) -> list[Event]:
        return list(self.disk.journal)

    def add(self, events: Sequence[Event]) -> None:
        kinds = "+".join(sorted({event.kind for event in events}))
        self._step(f"{kinds} before")
        self.disk.journal += [Event.from_json(event.to_json()) for event in events]
        self._step(f"{kinds} after")

    def checkpoint(self) -> None:
        """Nothing has to be read faster here."""

    def result_waves(self) -> set[str]:
        return {wave for wave, _ in self.disk.results}

    def look_up(self, task: tasks.LookupTask) -> list[Event]:
        found = self._run(task, self._requests([(key, row, None) for key, row in dict(self.disk.rows).items()]))
        self.disk.results = [(wave, row) for wave, row in self.disk.results if wave != REUSED]
        self._write_results(REUSED, found)
        return self.recount()

    def form(self, task: tasks.FormTask, number: int, *, but_results: bool) -> list[Event]:
        done = {row["key"] for _, row in self.disk.results if row["kind"] == "ok"} if but_results else set()
        if task.attempt == 1:
            asked = {key: (row, None) for key, row in self.disk.rows}
        else:
            before = {row["key"]: row for rows in self.disk.parts[task.attempt - 1].values() for row in rows}
            asked = {
                row["key"]: (tuple(before[row["key"]]["arguments"].values()), row["error"])
                for _, row in self.disk.results
                if (row["kind"], row["attempt"]) == ("again", task.attempt - 1)
            }
        requests = [(key, row, error) for key, (row, error) in asked.items() if key not in done]
        self._step("form before")
        parts: dict[str, list[dict[str, Any]]] = {}
        for row in self._run(task, self._requests(requests)):
            parts.setdefault(row["part"], []).append(row)
        self.disk.parts[task.attempt] = parts
        self._step("form after")
        return self._planned(task.attempt, parts)

    def divide(self, attempt: int, part: str, *, in_halves: bool) -> list[Event]:
        self._step("divide before")
        ended = {
            row["key"]
            for _, row in self.disk.results
            if (row["attempt"], row["part"]) == (attempt, part) and row["kind"] not in ("apart", "trouble")
        }
        rows = sorted(self.disk.parts[attempt][part], key=lambda row: str(row["key"]))
        rows = [row for row in rows if row["key"] not in ended]
        half = (len(rows) + 1) // 2
        pieces = {part + HALVES[0]: rows[:half], part + HALVES[1]: rows[half:]} if in_halves else {part + REST: rows}
        pieces = {name: rows for name, rows in pieces.items() if rows}
        self.disk.parts[attempt] |= {name: [{**row, "part": name} for row in rows] for name, rows in pieces.items()}
        self._step("divide after")
        return self._planned(attempt, pieces)

    @staticmethod
    def _planned(attempt: int, parts: Mapping[str, list[dict[str, Any]]]) -> list[Event]:
        return [
            Event(
                0.0, "", "planned", attempt, part, requests=len(rows), weight=sum(row["weight"] for row in rows),
                costs=[sum(costs) for costs in zip(*(row["costs"] for row in rows), strict=True)],
            )
            for part, rows in parts.items()
        ]  # fmt: skip

    def send(self, parts: Sequence[str], task: tasks.SendTask) -> list[Event]:
        sent: list[Event] = []
        for part in self.disk.random.sample(parts, len(parts)):
            rows = [
                {name: row[name] for name in ("part", "key", "body")} for row in self.disk.parts[task.attempt][part]
            ]
            self._step("send task before")
            found = [Event.from_json(row["value"]) for row in self._run(task, pa.RecordBatch.from_pylist(rows))]
            self._step("send task done")
            self.disk.journal += found
            sent += found
            self._step("send task written")
        return sent

    def poll(self, task: tasks.PollTask) -> list[Any]:
        self._step("poll before")
        return self._run(task, pa.RecordBatch.from_pydict({"id": list(range(len(task.jobs)))}))

    def settle(self, attempt: int, task: tasks.SettleTask) -> tuple[list[Event], list[tuple[str, str]]]:
        wave, troubles = self._wave(), []
        for part in task.over:
            rows = self.disk.parts[attempt][part]
            asked = self._requests([(row["key"], tuple(row["arguments"].values()), row["error"]) for row in rows])
            columns, names = [*asked.columns, pa.array([part] * len(rows))], [*asked.schema.names, "part"]
            batch = pa.RecordBatch.from_arrays(columns, names=names)
            self._step("settle task before")
            found = self._run(task, batch)
            self._step("settle task done")
            self._write_results(wave, found)
            self._step("settle task written")
            errors = [(row["part"], row["error"]) for row in found if row["kind"] == "trouble"]
            troubles += [(name, f"{error['type']}: {error['message']}") for name, error in errors]
        counts = self._counts([row for name, row in self.disk.results if name == wave])
        return [*counts, *counted_events([wave])], troubles

    def recount(self) -> list[Event]:
        best: dict[Any, dict[str, Any]] = {}
        for _, row in self.disk.results:
            id_ = (row["attempt"], row["part"], row["key"])
            if row["kind"] != "trouble" and (
                id_ not in best or KINDS.index(row["kind"]) < KINDS.index(best[id_]["kind"])
            ):
                best[id_] = row
        return self._counts(list(best.values()))

    def reparse(self, task: tasks.ReparseTask) -> None:
        done = {row["key"] for _, row in self.disk.results if row["kind"] == "ok"}
        unread = [row for _, row in self.disk.results if row["unparsed"] and row["answer"] and row["key"] not in done]
        found = self._run(task, pa.RecordBatch.from_pylist(unread)) if unread else []
        self._write_results(self._wave(), found)
        self._step("reparse written")

    def example_of_unread(self) -> str:
        error = next(row["error"] for _, row in self.disk.results if row["unparsed"])
        return f"{error['type']}: {error['message']}"

    def _requests(self, rows: Sequence[tuple[str, tuple[Any, ...], Any]]) -> pa.RecordBatch:
        names = [field.name for field in self._arguments]
        arguments = [dict(zip(names, row, strict=True)) for _, row, _ in rows]
        columns = [
            pa.array([key for key, _, _ in rows], pa.string()),
            pa.array(arguments, self._arguments),
            pa.array([error for _, _, error in rows], tasks.ERROR),
        ]
        return pa.RecordBatch.from_arrays(columns, ["key", "arguments", "error"])

    def _run(self, task: Any, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        """What a task gives; it is begun again if its worker was killed."""
        half = batch.num_rows // 2
        for attempt in range(4):
            TaskContext.attempt = attempt
            with contextlib.suppress(WorkerKilled):
                return [row for part in task(iter([batch[:half], batch[half:]])) for row in part.to_pylist()]
        raise DriverKilled("a task has failed four times, and with it the job")

    def _write_results(self, wave: str, rows: Sequence[dict[str, Any]]) -> None:
        self.disk.results += [(wave, row) for row in rows]

    def _wave(self) -> str:
        self.disk.waves += 1
        return f"{self.disk.waves:06d}"

    @staticmethod
    def _counts(rows: Sequence[dict[str, Any]]) -> list[Event]:
        parts: dict[tuple[int, str], list[dict[str, Any]]] = {}
        for row in rows:
            if row["kind"] != "trouble":
                parts.setdefault((row["attempt"], row["part"]), []).append(row)
        events = []
        for (attempt, part), found in parts.items():
            kinds = Counter(row["kind"] for row in found)
            costs = [sum(costs) for costs in zip(*(row["costs"] for row in found), strict=True)]
            unparsed = sum(bool(row["unparsed"]) for row in found)
            ends = {kind: kinds[kind] for kind in KINDS}
            raised = [row["unsettled"] for row in found if row["unsettled"]]
            counted = Event(
                0.0, "", "settled", attempt, part, requests=len(found), costs=costs, unparsed=unparsed,
                unsettled=len(raised), text=max(raised, default=""),
            )  # fmt: skip
            events.append(dataclasses.replace(counted, **ends))  # type: ignore[arg-type]
        return events


class TaskContext:
    """Spark's, as far as tasks ask it."""

    attempt = 0

    @classmethod
    def get(cls) -> TaskContext:
        return cls()

    def partitionId(self) -> int:  # noqa: N802
        return 0

    def attemptNumber(self) -> int:  # noqa: N802
        return self.attempt

    def stageId(self) -> int:  # noqa: N802
        return 0

    def taskAttemptId(self) -> int:  # noqa: N802
        return self.attempt

    def getLocalProperty(self, name: str) -> None: ...  # noqa: N802


@contextlib.contextmanager
def killable() -> Iterator[None]:
    """Tasks of this process hear of their attempts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running_task, "TaskContext", TaskContext)
        yield
