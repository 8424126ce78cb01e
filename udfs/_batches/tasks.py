"""The worker's side of a submission: each class is what one of its Spark jobs runs in `mapInArrow`."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import enum
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from .._arrow.building import array
from .._arrow.rows import ResultArrays, error_type, rows_of
from .._errors.call_outcome import CallOutcome
from .._errors.exceptions import AsyncUDFError
from .._errors.failure import Failure
from .._errors.records import LETTER_FIELDS, error_text
from .._errors.safe import safe_repr
from .._spark.pickling import Travelling
from .._spark.running_task import RunningTask, unmarked
from .._spark.worker import ErrorReporting
from .._stores.base import ResultStore
from .journal import REUSED
from .service import BatchRequest, JobState, JobStatus
from .work import OverJob, Requests, Result, Work, found_job, sent, settled

logger = logging.getLogger("asyncudf")

ROWS_AT_ONCE, BYTES_AT_ONCE = 2_000, 8 * 2**20  # of an Arrow batch that a task gives
KEYS_AT_ONCE = 500  # of a store

ERROR = error_type(LETTER_FIELDS)
COSTS = pa.list_(pa.float64())
LINES = pa.schema({"value": pa.string()})  # of a journal
STATES = pa.schema({"number": pa.int64(), "state": pa.string(), "answers": pa.int64(), "error": pa.string()})

Batches = Iterator[pa.RecordBatch]


@dataclasses.dataclass(frozen=True)
class Task(Travelling):
    """The base of all tasks; `declared`: the Arrow types of the arguments."""

    work: Work
    declared: tuple[Any, ...]
    error_reporting: ErrorReporting = dataclasses.field(default_factory=ErrorReporting, kw_only=True)

    def __call__(self, arrow_batches: Batches) -> Batches:
        with self.error_reporting:
            yield from self.run(arrow_batch for arrow_batch in arrow_batches if arrow_batch.num_rows)

    def run(self, arrow_batches: Batches) -> Batches:
        raise NotImplementedError

    def arguments(self, column: pa.Array) -> list[tuple[Any, ...]]:
        return self.rows(column.flatten())

    def rows(self, columns: Sequence[pa.Array]) -> list[tuple[Any, ...]]:
        """The arguments in these columns, row by row; UnreadableError if no key can be made of some."""
        rows, errors = rows_of(self.work.name, columns, None, self.declared)
        for error in errors.values():
            raise error
        return list(rows)

    def results(self, attempt: int, part: str, results: Iterable[tuple[str, Result]]) -> Batches:
        """Batches of results of a part."""
        plan = self.work.plan
        values = ResultArrays(plan.spec.name, plan.declared)
        rest = iter(results)
        while rows := list(_some(rest, lambda row: len(row[1].answer or ""))):
            keys = [key for key, _ in rows]
            kinds, found, errors, unparsed, costs, answers, unsettled = zip(*(one for _, one in rows), strict=True)
            arrays = [
                pa.array([attempt] * len(rows), pa.int32()), pa.array([part] * len(rows), pa.string()),
                pa.array(keys, pa.string()), pa.array(kinds, pa.string()), values.array(found),
                array(errors, ERROR), pa.array(unparsed, pa.bool_()), pa.array(costs, COSTS),
                pa.array(answers, pa.string()), pa.array(unsettled, pa.string()),
            ]  # fmt: skip
            yield pa.RecordBatch.from_arrays(arrays, list(RESULTS))


RESULTS = ("attempt", "part", "key", "kind", "value", "error", "unparsed", "costs", "answer", "unsettled")


def _some(rows: Iterator[Any], weigh: Callable[[Any], int]) -> Iterator[Any]:
    """The next rows, as many as fit into one Arrow batch."""
    size = 0
    for row in islice(rows, ROWS_AT_ONCE):
        yield row
        if (size := size + weigh(row)) >= BYTES_AT_ONCE:
            return


@dataclasses.dataclass(frozen=True)
class KeyTask(Task):
    """Adds to each row the key of its arguments: the columns at these positions."""

    positions: tuple[int, ...] = ()

    def run(self, arrow_batches: Batches) -> Batches:
        keys = self.work.plan.result_keys()
        for arrow_batch in arrow_batches:
            rows = self.rows([arrow_batch.column(i) for i in self.positions])
            made = pa.array([key.hex() for key in keys.of_many(rows)], pa.string())
            yield pa.RecordBatch.from_arrays([*arrow_batch.columns, made], [*arrow_batch.schema.names, "key"])


@dataclasses.dataclass(frozen=True)
class LookupTask(Task):
    """Gives the results that a store has for requests; columns `key` and `arguments`."""

    store: ResultStore | None = None

    def run(self, arrow_batches: Batches) -> Batches:
        codec = self.work.plan.result_codec()
        for arrow_batch in arrow_batches:
            keys = arrow_batch.column("key").to_pylist()
            stored = [bytes.fromhex(key) for key in keys]
            found = codec.decode_many(stored, asyncio.run(_looked_up(self.store, stored)))
            nothing = [0.0] * len(self.work.budgets)
            there = [(key, value[0]) for key, value in zip(keys, found, strict=True) if type(value) is list]
            results = ((key, Result("ok", value, None, False, nothing, None)) for key, value in there)
            yield from self.results(0, REUSED, results)


async def _looked_up(store: Any, keys: Sequence[bytes]) -> list[bytes | None]:
    async with copy.copy(store) as opened:
        found: list[bytes | None] = []
        for start in range(0, len(keys), KEYS_AT_ONCE):
            found += await opened.get_many(keys[start : start + KEYS_AT_ONCE])
        return found


async def _stored(store: Any, items: Mapping[bytes, bytes]) -> None:
    async with copy.copy(store) as opened:
        await opened.put_many(items, store.ttl)


@dataclasses.dataclass(frozen=True)
class FormTask(Task):
    """Makes the requests of an attempt; columns `key`, `arguments`, and the `error` of the attempt before."""

    attempt: int = 1

    def run(self, arrow_batches: Batches) -> Batches:
        requests: Requests | None = None
        for given in arrow_batches:
            if requests is None:
                requests = Requests(self.work, self.attempt, RunningTask.of_rows(given).partition)
            arrow_batch = unmarked(given)
            arguments, errors = self.arguments(arrow_batch.column("arguments")), arrow_batch.column("error").to_pylist()
            made = (requests.row(row, error) for row, error in zip(arguments, errors, strict=True))
            start = 0
            while rows := list(_some(made, lambda row: len(row.body or ""))):
                parts, bodies, weights, costs, failed = zip(*rows, strict=True)
                source = arrow_batch.slice(start, len(rows))
                start += len(rows)
                arrays = [
                    pa.array(parts, pa.string()), source.column("key"), source.column("arguments"),
                    pa.array(bodies, pa.string()), pa.array(weights, pa.float64()), pa.array(costs, COSTS),
                    array(failed, ERROR),
                ]  # fmt: skip
                yield pa.RecordBatch.from_arrays(arrays, list(PARTS))


PARTS = ("part", "key", "arguments", "body", "weight", "costs", "error")


@dataclasses.dataclass(frozen=True)
class SendTask(Task):
    """Sends a part as a job, and gives an event; columns `part`, `key` and `body`."""

    owner: str = ""
    attempt: int = 1
    turns: Mapping[str, tuple[int, bool]] = dataclasses.field(default_factory=dict)

    def run(self, arrow_batches: Batches) -> Batches:
        reruns = RunningTask.now().attempt
        parts: dict[str, list[tuple[str, str]]] = {}  # the rows of one part are all in one task
        for arrow_batch in arrow_batches:
            for row in arrow_batch.select(["part", "key", "body"]).to_pylist():
                parts.setdefault(row["part"], []).append((row["key"], row["body"]))
        for part, rows in parts.items():
            turn, may_be_there = self.turns[part]
            event = sent(self.work, self.attempt, part, turn, _Requests(rows), may_be_there=may_be_there, reruns=reruns)
            line = dataclasses.replace(event, owner=self.owner).to_json()
            yield pa.RecordBatch.from_pylist([{"value": line}], LINES)


class _Requests(Sequence[BatchRequest]):
    """The requests of a job. Bodies are decoded when they are read: as text they take a fraction of the memory."""

    def __init__(self, rows: Sequence[tuple[str, str]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return _Requests(self._rows[place])
        key, body = self._rows[place]
        return BatchRequest(key, json.loads(body))


class Ask(enum.Enum):
    STATE = "state"
    CANCEL = "cancel"
    FIND = "find"


@dataclasses.dataclass(frozen=True)
class PollTask(Task):
    """Asks about jobs; the column `id` has their numbers.

    The answer is a state, or in its place one of `NO_STATES`; for `Ask.FIND`, where `job` is the key, the id of the
    job in `error`.
    """

    ask: Ask = Ask.STATE
    jobs: Sequence[str] = ()

    def run(self, arrow_batches: Batches) -> Batches:
        for arrow_batch in arrow_batches:
            told = []
            numbers: list[int] = arrow_batch.column("id").to_pylist()
            for number in numbers:
                state, answers, error = self._asked(self.jobs[number])
                told.append({"number": number, "state": state, "answers": answers, "error": error})
            yield pa.RecordBatch.from_pylist(told, STATES)

    def _asked(self, job: str) -> tuple[str, int | None, str]:
        service = self.work.service
        try:
            if self.ask is Ask.CANCEL:
                service.cancel(job)
                return JobState.WORKING.value, None, ""
            if self.ask is Ask.FIND:
                return JobState.WORKING.value, None, found_job(service, job) or ""
            status = service.poll(job)
            if not isinstance(status, JobStatus):
                raise AsyncUDFError(
                    f"poll of {type(service).__name__} must return a JobStatus, not {safe_repr(status)}"
                )
            return JobState(status.state).value, status.answers, status.error
        except BaseException as error:
            failure = Failure(error)
            if failure.is_no_rows_fault:
                raise
            may_be_mended = failure.outcome in (CallOutcome.THROTTLED, CallOutcome.DOWN)
            is_unknown = failure.answer.status == NOT_FOUND and failure.answer.quota is None
            return SILENT if may_be_mended else UNKNOWN if is_unknown else BROKEN, None, error_text(error)


# In the place of a state: the service does not answer now; does not know the job, as it may be for minutes after it has
# taken it; or says no.
SILENT, UNKNOWN, BROKEN = NO_STATES = "silent", "unknown", "broken"
NOT_FOUND = 404


@dataclasses.dataclass(frozen=True)
class SettleTask(Task):
    """Fetches what became of the requests of parts; columns `part`, `key`, `arguments` and `error`."""

    over: Mapping[str, OverJob] = dataclasses.field(default_factory=dict)
    store: ResultStore | None = None

    def run(self, arrow_batches: Batches) -> Batches:
        parts: dict[str, dict[str, Any]] = {}
        for arrow_batch in arrow_batches:
            keys, errors = arrow_batch.column("key").to_pylist(), arrow_batch.column("error").to_pylist()
            # Only costs are about arguments, which may be large.
            arguments = self.arguments(arrow_batch.column("arguments")) if self.work.budgets else [()] * len(keys)
            names = arrow_batch.column("part").to_pylist()
            for part, key, row, error in zip(names, keys, arguments, errors, strict=True):
                parts.setdefault(part, {})[key] = (row, error)
        for part, requests in parts.items():
            over = self.over[part]
            results = self._kept(settled(self.work, over, requests))
            yield from self.results(over.attempt, part, results)

    def _kept(self, results: Iterator[tuple[str, Result]]) -> Iterator[tuple[str, Result]]:
        """Pass on all results, and put the good ones into the store."""
        if self.store is None:
            yield from results
            return
        codec = self.work.plan.result_codec()
        while some := list(islice(results, KEYS_AT_ONCE)):
            items = {}
            for key, result in some:
                stored = bytes.fromhex(key)
                if result.kind == "ok" and (kept := codec.kept(stored, [result.value])) is not None:
                    items[stored] = kept[0]
            try:
                asyncio.run(_stored(self.store, items))
            except Exception as error:  # the state has the results
                logger.warning("results of %s are not in the store: %s", self.work.name, error_text(error))
            yield from some


@dataclasses.dataclass(frozen=True)
class ReparseTask(Task):
    """Reads answers again that could not be read; columns as in the table of results. Gives those that can be now."""

    def run(self, arrow_batches: Batches) -> Batches:
        validate = self.work.plan.result_validator()
        for arrow_batch in arrow_batches:
            for row in arrow_batch.select(["attempt", "part", "key", "costs", "answer", "unsettled"]).to_pylist():
                try:
                    value = validate(self.work.parse(json.loads(row["answer"])))
                except Exception:  # as before
                    continue
                result = Result("ok", value, None, False, row["costs"], row["answer"], row["unsettled"])
                yield from self.results(row["attempt"], row["part"], [(row["key"], result)])
