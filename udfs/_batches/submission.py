"""`submit`, and `Submission`: the same object in this process and in one of another day."""

from __future__ import annotations

import base64
import dataclasses
import json
import logging
import math
import os
import re
import sys
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as spark

from asyncudf.queues._public import public

from .._arrow.result_codec import type_text
from .._chain.function_plan import FunctionPlan
from .._errors.checks import flag, optional, positive_int, seconds, text
from .._errors.exceptions import AsyncTimeoutError, AsyncUDFError, FunctionError, OptionError
from .._errors.figures import amounts, count, things
from .._errors.safe import safe_repr, type_name
from .._functions.key_names import key_name
from .._functions.signature import check_costs
from .._limits.budgets.option import Budget, spent_names
from .._spark._compat import engine_of
from .._spark.loopback import runs_here
from .._spark.pickling import check_function_picklable
from .._spark.planner import plan_function
from .._spark.schemas import (
    arguments,
    arrow_type_or_none,
    as_nullable,
    check_frame,
    check_source,
    column_names,
    joined_schema,
    result_fields,
)
from .._spark.types import active_session
from .._stores.base import ResultStore, need, result_store
from .._version import VERSION
from .files import HadoopFiles
from .function import BatchFunction, check_function
from .journal import REUSED, SUBMITTED, Event, SubmissionProgress
from .journal_files import JournalFiles
from .owner import Owner
from .service import BatchService, check_service
from .state import ERROR, StateFolder, differ
from .tasks import NO_STATES, SILENT, KeyTask
from .work import Work
from .writer import Submitted, Writer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger("asyncudf")

STILL_WORKING = 75  # exit code, as that of a run that is to be continued
_dumps: Any = cloudpickle.dumps
_loads: Any = cloudpickle.loads


@public("asyncudf")
@dataclasses.dataclass(frozen=True, repr=False)
class SubmissionStatus:
    """How far a submission is.

    Attributes:
        function: its name.
        rows: how many rows the input has.
        requests: how many distinct requests are in each state: "done" (with a result), "failed" (dead letters),
            "working" (in a job of the service), "over" (in a job that is over, to be fetched), "unsent" (among them
            those to be asked again). `reused` of those done came from the store.
        jobs: how many jobs are in each state: "unsent", "queued", "working", "over", "settled", or "unknown" where the
            service does not answer.
        attempt: the number of the current attempt.
        spent: what was charged, by unit; where two budgets have one unit, by a name such as `USD of "month"`.
        unsettled: how many answers were charged with what was reserved for them, as `settle` has raised; by an error
            of each job.
        may_be_twice: jobs that the service may have got twice because a process died: it cannot say.
        is_cancelled: whether `cancel` was called.
        is_done: whether each row has a result or is a dead letter.
    """

    function: str
    rows: int
    requests: Mapping[str, int]
    jobs: Mapping[str, int]
    reused: int
    attempt: int
    spent: Mapping[str, float]
    unsettled: Mapping[str, int]
    may_be_twice: int
    is_cancelled: bool
    is_done: bool

    @property
    def exit_code(self) -> int:
        """0 if it is done, 75 if there is something to wait for."""
        return 0 if self.is_done else STILL_WORKING

    def __repr__(self) -> str:
        shown = ", ".join(f"{count(number)} {state}" for state, number in self.requests.items() if number)
        jobs = ", ".join(f"{count(number)} {state}" for state, number in self.jobs.items() if number)
        more = [f"{things(self.rows, 'row')}", f"requests: {shown or 'none'}", f"jobs: {jobs or 'none'}"]
        if self.attempt > 1:
            more.append(f"attempt {self.attempt}")
        if any(self.spent.values()):
            more.append(f"spent {amounts(self.spent)}")
        for error, number in self.unsettled.items():
            more.append(f"settle raised for {things(number, 'answer')}, charged with what was reserved: {error}")
        if self.may_be_twice:
            more.append(f"{things(self.may_be_twice, 'job')} may have been sent twice")
        if self.is_cancelled:
            more.append("cancelled")
        return f"{self.function}: {'done' if self.is_done else 'not done'}; {'; '.join(more)}"


@public("asyncudf")
def submit(
    df: DataFrame,
    function: BatchFunction,
    *columns: Any,
    service: BatchService,
    state: str | os.PathLike[str],
    budget: Budget | Sequence[Budget] | None = None,
    store: ResultStore | None = None,
    attempts: int = 3,
    version: str | None = None,
    timeout: float | None = None,
) -> Submission:
    """Submit a request for each row to a service that answers later; return when all are in jobs that it has taken.

    Equal rows are one request. If the process is killed, the same call goes on with what is in `state`; the page
    docs/howto/half_price.md says what may be sent twice. A job is sent by a task, and no task waits for an answer.

    Args:
        df: a DataFrame, no stream. Its rows are written to `state`, so `collect` does not read it again.
        function: made by `batch_function`.
        columns: as in `ordered_wait`: those that the function reads, else those called like its parameters.
        service: a `BatchService`, such as `asyncudf.batches.OpenAIBatches()`.
        state: a folder that Spark can write, on any storage; one for each submission. A relative path of a local disk
            begins at the working directory of this process, and `~` is the home of its user; `Submission.state` is the
            whole path.
        budget: a `Budget`, or a list of them, with `reserve`: requests are only sent as far as what they may cost is
            left. `settle` gets the arguments and the answer, as the service gives it.
        store: a `ResultStore`: requests with a result in it are not sent, and new results are put into it.
        attempts: how often a request may be sent, if its job expires or is cancelled, if the service cannot answer it
            now, or if its answer is none that `parse` can read. Where the call goes on with a state, that of the first
            call counts.
        version: replaces the function's own version.
        timeout: seconds after which an `AsyncTimeoutError` says what was not taken yet.

    Raises:
        OptionError: a value that cannot work.
        FunctionError: a stream, unknown columns, or columns that the function cannot take; a state of other rows,
            another function, version or type. (Rows are compared by Spark's hash, which leaves out maps, Variants, and
            NULLs inside of arrays and structs.)
        AsyncTimeoutError: the service has not taken all in time; the same call goes on.
        AsyncUDFError: another process goes on with this state, or the service takes no jobs.
        FatalError: the budget is spent.

    >>> batch = submit(reviews, classify, "text", service=OpenAIBatches(), state="/data/june")  # doctest: +SKIP
    """
    check_frame(df, "submit")
    function = check_function(function).with_version(optional(text)(version, "version"))
    if df.isStreaming:
        raise FunctionError("submit takes a DataFrame that ends, and this one is streaming; submit each batch of it")
    need("submit", "store", "msgspec")
    names = column_names(columns, df.schema, df)
    attempts = positive_int(attempts, "attempts")
    made = _Declared(function, check_service(service), _budgets(budget, function), attempts)
    folder = _folder(df.sparkSession, state)
    span = optional(seconds)(timeout, "timeout")
    store = optional(result_store)(store, "store")
    made.submitted(folder, made.manifest(df.schema, names, uuid.uuid4().hex[:12]), store)  # plan errors before anything
    folder.check_free()
    with Owner(folder) as owner:
        found = _manifest(owner.events)
        manifest = found or made.manifest(df.schema, names, uuid.uuid4().hex[:12])
        if found is not None:
            made.check(manifest, folder.path, names, df.schema)
        typed, submitted = made.submitted(folder, manifest, store)
        keyed = typed.keyed(df, KeyTask(submitted.work, submitted.declared, positions=tuple(typed.positions)))
        if found is None:
            manifest |= typed.write_rows(keyed)
            submitted_with = json.dumps(manifest | {"pickled": made.pickled()})
            folder.add([Event(time.time(), owner.id, SUBMITTED, text=submitted_with)])
        elif differ(rows := typed.figures(keyed), manifest):
            raise FunctionError(
                f"the state {folder.path} is of other rows: it has {count(manifest['rows'])}, and this DataFrame has "
                f"{count(rows['rows'])}, or their values differ; take another state for them, or go on with "
                f"Submission.open({folder.path!r})"
            )
        submission = Submission(made, folder, manifest, store)
        submission._until(Writer(submission._submitted, owner, store, reparses=False), span, None, for_all=False)
    return submission


@public("asyncudf")
class Submission:
    """What was submitted with a state; made by `submit`, and by `open` in any process, on any day.

    Attributes:
        state: the folder.
    """

    def __init__(
        self,
        made: _Declared,
        folder: StateFolder,
        manifest: Mapping[str, Any],
        store: ResultStore | None,
        *,
        reparses: bool = False,
    ) -> None:
        self.state: str = folder.path
        self._folder, self._submitted = made.submitted(folder, manifest, store)
        self._function, self._manifest, self._store, self._reparses = made.function, manifest, store, reparses
        self._is_done = False  # as far as it is known; what is done stays so

    @classmethod
    def open(
        cls,
        state: str | os.PathLike[str],
        spark: SparkSession | None = None,
        *,
        function: BatchFunction | None = None,
        service: BatchService | None = None,
        budget: Budget | Sequence[Budget] | None = None,
        store: ResultStore | None = None,
    ) -> Submission:
        """The submission of a state, by default with the function, service and budgets that it was submitted with.

        Args:
            state: the folder.
            spark: the session; the active one, or a new one.
            function: in place of the one in the state, for example with a `parse` that was mended: answers that could
                not be read are read again, without a request. Name, version, columns and type must be the same.
            service: in place of the one in the state, for example with other settings of its client.
            budget: in place of those in the state, for example of a larger amount.
            store: gets the results that are fetched from now on; the state does not keep the store of `submit`.

        Raises:
            FunctionError: nothing was submitted with this state; the function is another one; or the one in the state
                cannot be loaded here.
        """
        session = spark or active_session()
        if session is None:
            os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # on one machine workers run this Python
            session = SparkSession.builder.getOrCreate()
        folder = _folder(session, state)
        found = _manifest(folder.events())
        if found is None:
            raise FunctionError(
                f"nothing was submitted with the state {folder.path}; submit(df, ..., state=...) does so"
            )
        parts: dict[str, Any] = {"function": function, "service": service, "budget": budget}
        parts |= _unpickled(found, folder.path, [name for name, part in parts.items() if part is None])
        kept = check_function(parts["function"])
        made = _Declared(kept, check_service(parts["service"]), _budgets(parts["budget"], kept), found["attempts"])
        made.check(found, folder.path)
        return cls(made, folder, found, optional(result_store)(store, "store"), reparses=function is not None)

    def status(self) -> SubmissionStatus:
        """How far it is; asks the service about its jobs, changes nothing, and may run beside `wait` elsewhere."""
        progress = self._submitted.progress()
        sent = progress.of("sent")
        told = {id_: row["state"] for id_, row in self._submitted.told(sent).items()}
        return self._status(progress, told)

    def wait(
        self, timeout: float | None = None, *, poll_every: float | None = None, progress: bool = False
    ) -> SubmissionStatus:
        """Fetch what is over and submit again what has to be, until each row has a result or is a dead letter.

        Args:
            timeout: seconds after which to look for the last time; 0 for one look; None for no limit.
            poll_every: seconds between two looks at the jobs; the service's `poll_every` unless given.
            progress: print a line to the error stream when something has changed.

        Returns:
            How far it is then.

        Raises:
            AsyncUDFError: another process goes on with it; or the service does not answer as it should.
            FatalError: the budget is spent.
        """
        flag(progress, "progress")
        span = timeout if timeout is None or timeout == 0 else seconds(timeout, "timeout")
        every = optional(seconds)(poll_every, "poll_every")
        with Owner(self._folder) as owner:
            writer = Writer(self._submitted, owner, self._store, reparses=self._reparses)
            status = self._until(writer, span, every, for_all=True, shows=progress)
            self._reparses = False
            return status

    def collect(self, partial: bool = False) -> DataFrame:
        """The columns of the input and the results, in no order; rows without a result are `dead_letters()`.

        Looks once whether more is over. Reading the DataFrame only reads the state.

        Args:
            partial: also if it is not done: rows that are not done are left out. What `wait` would raise is a warning
                in the log then.

        Raises:
            AsyncUDFError: it is not done, and `partial` is not given; or as `wait` raises.
        """
        self._look(partial)
        value, fields = sf.col("value"), result_fields(self._submitted.work.plan, self._folder.value)
        is_struct = isinstance(self._folder.value, spark.StructType)
        results = [value.getField(field.name) for field in fields] if is_struct else [value]
        return self._named("ok", results, [field.name for field in fields])

    def dead_letters(self, partial: bool = False) -> DataFrame:
        """The rows without a result, as `collect` has all others: the columns of the input, and `error`."""
        self._look(partial)
        return self._named("failed", [sf.col("error")], ["error"])

    def cancel(self) -> None:
        """Have all jobs cancelled. What is answered already can be collected; all other rows are dead letters.

        The service may take a while: `wait` returns when it is done.

        Raises:
            AsyncUDFError: another process goes on with it.
        """
        with Owner(self._folder) as owner:
            Writer(self._submitted, owner, self._store, reparses=False).cancel()

    def __repr__(self) -> str:
        return f"<Submission of {self._function.__name__} in {self.state}>"

    # Looking and waiting.

    def _look(self, partial: bool) -> None:
        if self._is_done or (not self._reparses and self._submitted.progress().is_done):
            self._is_done = True
            return
        flag(partial, "partial")
        try:
            status = self.wait(timeout=0)
        except AsyncUDFError as error:
            if not partial:
                raise
            logger.warning("%r does not go on; what is done can be collected: %s", self, error)
            return
        if not status.is_done and not partial:
            raise AsyncUDFError(
                f"the submission in {self.state} is not done: {status!r}. wait() returns when it is, and "
                "partial=True leaves out the rows that are not"
            )

    def _until(
        self, writer: Writer, span: float | None, every: float | None, *, for_all: bool, shows: bool = False
    ) -> SubmissionStatus:
        """Run rounds until all is done or, without `for_all`, until the service has taken all."""
        end, said = None if span is None else time.monotonic() + span, ""
        while True:
            if writer.round() and not for_all and not writer.is_accepted:
                writer.round()  # to hear of jobs that were sent just now
            told = {id_: one.value for id_, one in writer.states.items()}
            status = self._status(writer.progress, dict.fromkeys(writer.unheard, SILENT) | told)
            self._is_done = status.is_done
            if repr(status) != said:
                said = repr(status)
                logger.info("%s", said)
                if shows:
                    print(said, file=sys.stderr, flush=True)  # noqa: T201 - the progress of a program
            if writer.progress.is_done or (not for_all and writer.is_accepted):
                return status
            pause = writer.pause if every is None else min(every, writer.pause)
            left = math.inf if end is None else end - time.monotonic()
            if left <= 0 and not for_all:
                raise AsyncTimeoutError(f"not all requests were taken within {span:g} s: {status!r}")
            if left <= 0:
                return status
            time.sleep(min(pause, left))

    def _status(self, progress: SubmissionProgress, told: Mapping[Any, str]) -> SubmissionStatus:
        jobs, requests = Counter[str](), Counter[str]()
        for part in progress.parts:
            state, outcome = part.state, part.outcome
            if state == "settled":
                requests["done"] += outcome.ok
                requests["failed"] += outcome.failed
                if part.attempt == progress.attempt:
                    requests["unsent"] += outcome.again
                if part.is_to_divide:
                    requests["unsent"] += outcome.apart
            elif state == "sent":
                state = told.get(part.id, "queued")
                if state in NO_STATES:
                    state = "unknown"
                elif state not in ("queued", "working"):
                    state = "over"
                requests["over" if state == "over" else "working"] += part.requests
            else:
                state = "unsent"
                requests["unsent"] += part.requests
            if part.has_job:
                jobs[state] += 1
        if progress.attempt == 0:
            requests["unsent"] = self._manifest["requests"]
        budgets = self._submitted.work.budgets
        spent = dict(zip(spent_names(budgets), progress.spent(len(budgets)), strict=True))
        return SubmissionStatus(
            function=self._function.__name__,
            rows=self._manifest["rows"],
            requests={name: requests[name] for name in ("done", "failed", "working", "over", "unsent")},
            jobs={name: jobs[name] for name in ("unsent", "queued", "working", "unknown", "over", "settled")},
            reused=sum(part.outcome.ok for part in progress.parts if part.name == REUSED),
            attempt=progress.attempt,
            spent=spent,
            unsettled=progress.unsettled,
            may_be_twice=progress.may_be_twice,
            is_cancelled=progress.is_cancelled,
            is_done=progress.is_done,
        )

    def _named(self, kind: str, added: Sequence[Any], names: Sequence[str]) -> DataFrame:
        joined = self._folder.rows().join(self._folder.final(kind), "key")
        columns = [sf.col(f"c{i}") for i in range(len(self._folder.schema.fields))]
        named = [column.alias(f"r{i}") for i, column in enumerate(added)]
        return joined.select(*columns, *named).toDF(*self._folder.schema.names, *names)


@dataclasses.dataclass(frozen=True)
class _Declared:
    """What a user has declared: the function, the service, the budgets."""

    function: BatchFunction
    service: BatchService
    budgets: tuple[Budget, ...]
    attempts: int

    def manifest(self, schema: spark.StructType, columns: Sequence[str], id_: str) -> dict[str, Any]:
        """What the state says of a submission of rows with this schema."""
        check_source(schema, "the DataFrame")
        _, positions = arguments(self.function.spec, schema.fields, columns)
        return {
            "id": id_,
            "asyncudf": VERSION,
            "created": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
            "function": key_name(self.function.spec.function),
            "version": self.function.options.version or "1",
            "service": type_name(self.service),
            "schema": schema.json(),
            "positions": list(positions),
            "type": type_text(self._planned(schema, positions, None)[0].declared),
            "budget": ", ".join(budget.unit for budget in self.budgets) or "none",
            "attempts": self.attempts,
            "rows": 0,
            "requests": 0,
        }

    def submitted(self, folder: StateFolder, manifest: Mapping[str, Any], store: Any) -> tuple[StateFolder, Submitted]:
        """The submission that a manifest describes, and its folder; FunctionError for a type that Spark lacks."""
        schema, positions = _schema(manifest), manifest["positions"]
        plan, value = self._planned(schema, positions, store)
        check_function_picklable(f"parse of {plan.spec.name}", self.function.parse)
        joined_schema(schema.fields, result_fields(plan, value), plan.spec.name)
        joined_schema(schema.fields, [spark.StructField("error", ERROR)], f"a dead letter of {plan.spec.name}")
        typed = dataclasses.replace(folder, schema=schema, positions=positions, value=value, budgets=len(self.budgets))
        work = Work(plan, self.function.parse, self.service, self.budgets, manifest["id"], manifest["attempts"])
        declared = tuple(arrow_type_or_none(schema.fields[position]) for position in positions)
        return typed, Submitted(typed, work, declared, manifest["requests"])

    def _planned(self, schema: spark.StructType, positions: Sequence[int], store: Any) -> tuple[FunctionPlan, Any]:
        spec, _ = arguments(self.function.spec, schema.fields, [schema.names[position] for position in positions])
        return plan_function(spec, self.function.options.replace({"store": store}), self.function.returns)

    def check(
        self, manifest: Mapping[str, Any], path: str, columns: Sequence[str] | None = None, schema: Any = None
    ) -> None:
        """Raises FunctionError for a state of another function, version, type or budget, or of other columns."""
        kept = _schema(manifest)
        given = kept if schema is None else schema
        own = self.manifest(given, columns or [kept.names[position] for position in manifest["positions"]], "")
        for name in ("function", "version", "type", "service", "budget"):
            if own[name] != manifest[name]:
                raise FunctionError(
                    f"the state {path} is of {name} {manifest[name]!r}, and this is {name} {own[name]!r}: take another "
                    "state for it"
                )
        if as_nullable(given) != as_nullable(kept) or own["positions"] != manifest["positions"]:
            raise FunctionError(
                f"the state {path} is of rows with the columns {kept.simpleString()}, and these are of "
                f"{given.simpleString()}, or the function reads others of them: take another state for them"
            )

    def pickled(self) -> dict[str, str]:
        """Each object that `open` needs, pickled as a text. `open` does not load an object that it is given."""
        parts = {"function": self.function, "service": self.service, "budget": self.budgets}
        return {name: base64.b64encode(_dumps(part)).decode() for name, part in parts.items()}


def _manifest(events: Sequence[Event]) -> dict[str, Any] | None:
    """What was submitted; None if nothing was."""
    found = [event for event in events if event.kind == SUBMITTED]
    return json.loads(min(found, key=lambda event: event.at).text) if found else None


def _schema(manifest: Mapping[str, Any]) -> spark.StructType:
    return spark.StructType.fromJson(json.loads(manifest["schema"]))


def _unpickled(manifest: Mapping[str, Any], path: str, names: Sequence[str]) -> dict[str, Any]:
    parts, errors = dict[str, Any](), dict[str, Exception]()
    for name in names:
        try:
            parts[name] = _loads(base64.b64decode(manifest["pickled"][name]))
        except Exception as error:  # a module that is not here, or another version of Python or of the module
            errors[name] = error
    if not errors:
        return parts
    first = next(iter(errors.values()))
    what = " and ".join(f"the {name} {manifest[name]}" for name in errors)
    given = ", ".join(f"{name}=" for name in errors)
    raise FunctionError(
        f"{what} of the state {path} cannot be loaded here ({type_name(first)}: {first}): have the module here, or "
        f"give {given} to Submission.open. The state is of asyncudf {manifest['asyncudf']}, and this is {VERSION}"
    ) from first


def _budgets(budget: Any, function: BatchFunction) -> tuple[Budget, ...]:
    budgets = Budget.all_of(budget, "budget")
    for one in budgets:
        if one.learns:
            raise OptionError(
                f"a budget of {one.unit} for submit needs reserve=, what a request may cost at most: all requests are "
                "sent before the first cost is known"
            )
        if one.is_divided:
            raise OptionError("a budget of submit is that of one submission: leave out per= and by=")
        if one.name is not None:
            raise OptionError(f"a budget of submit is that of one submission: leave out name={safe_repr(one.name)}")
    check_costs(function.spec, dataclasses.replace(function.options, budget=budgets))
    return budgets


def _folder(session: SparkSession, state: Any) -> StateFolder:
    path = os.fspath(state) if isinstance(state, os.PathLike) else state
    path = re.sub("^file:/(?!/)", "file:///", text(path, "state"))  # which Sail takes for a relative one
    path = _absolute(session, os.path.expanduser(path).rstrip("/") or "/")
    return StateFolder(session, path, JournalFiles(session, path))


def _absolute(session: SparkSession, path: str) -> str:
    """An absolute path, so that the folder stays the same after `os.chdir`; as it is if another process resolves it."""
    if re.match(r"/|\\|[\w+.-]+:", path):
        return path
    if files := HadoopFiles.of(session, path):
        found = files.qualified(path)
        return os.path.abspath(path) if found.startswith("file:") else found
    if engine_of(session).runs_functions_itself and runs_here(session):
        return os.path.abspath(path)
    logger.warning(
        "state=%r is relative: the server looks for it in a working directory of its own; give a whole path", path
    )
    return path
