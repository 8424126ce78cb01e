"""What tasks do for a submission, in plain Python: make requests and divide them into parts, send a part, settle it."""

from __future__ import annotations

import dataclasses
import json
import math
import pickle
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from asyncudf.queues import StreamRecord

from .._chain.function_plan import FunctionPlan
from .._engine.calls.arguments import copied, of_row, settlement_call
from .._errors.answers import answer_of
from .._errors.call_outcome import CallOutcome
from .._errors.checks import discard, given_number
from .._errors.exceptions import FatalError, ResultError
from .._errors.failure import Failure
from .._errors.records import error_record, error_text, is_fatal, task_error
from .._errors.safe import one_line, safe_repr
from .._errors.type_mismatch import check_awaited
from .._functions.async_function import CURRENT_CALL, AttemptState, RuntimeContext
from .._functions.signature import FunctionSpec, bound, parameters_of
from .._limits.budgets.option import Budget
from .journal import UNMADE, Event
from .service import BatchRequest, BatchService, JobState, NotAnsweredError

SHARE_OF_BUDGET = 10  # a part reserves at most this part of a budget, so that what is left of one can be used

Key = str
Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Work:
    """A submission as it travels to the executors: the plan makes requests, and `parse` results of answers."""

    plan: FunctionPlan
    parse: Callable[[Any], Any]
    service: BatchService
    budgets: tuple[Budget, ...]
    id: str
    attempts: int

    @property
    def name(self) -> str:
        return self.plan.spec.name

    @property
    def redacted(self) -> bool:
        return self.plan.options.redacted

    def reservations(self) -> list[Callable[..., float]]:
        """For each budget, a function of a row's arguments that gives the most that its request may cost."""
        return [_reservation(budget, self.plan.spec) for budget in self.budgets]

    def job_key(self, attempt: int, part: str, turn: int) -> str:
        """The key of a job: the same in each process that sends the job."""
        return f"{self.id}-{attempt}-{part}-{turn}"


def _reservation(budget: Budget, spec: FunctionSpec) -> Callable[..., float]:
    if not callable(budget.reserve):
        amount = budget.cost_of(())
        return lambda *arguments: amount
    reserve = of_row(budget.reserve, spec)
    return lambda *arguments: given_number(reserve(*copied(arguments)), "reserve of a budget")


# Making requests.


class PartRow(NamedTuple):
    """A request and its part; `error` says why the request could not be made."""

    part: str
    body: str | None
    weight: float
    costs: Sequence[float]
    error: Record | None


class Requests:
    """Makes the requests of one task, and divides them into parts within the service's bounds."""

    def __init__(self, work: Work, attempt: int, partition: int) -> None:
        spec = work.plan.spec
        self._work, self._attempt, self._partition = work, attempt, partition
        context = RuntimeContext(spec.name, time.monotonic, partition=partition, keys=work.plan.result_keys)
        given = {} if spec.context_parameter is None else {spec.context_parameter: context}
        self._request = bound(spec.function, parameters_of(spec.function), spec.parameters, given)
        most = (work.service.max_requests, work.service.max_bytes or math.inf, work.service.max_queued or math.inf)
        self._most = [*most, *(budget.amount / SHARE_OF_BUDGET for budget in work.budgets)]
        self._filled: list[float] = [0] * len(self._most)  # of the part with this number
        self._number = 0
        self._reservations = work.reservations()

    def row(self, arguments: Sequence[Any], before: Record | None) -> PartRow:
        """The request for a row's arguments, or why there is none; AsyncUDFError for an error of the task.

        `before`: the error of the attempt before.
        """
        work = self._work
        try:
            body, size, weight = self._made(arguments, before)
            costs = [reserved(*arguments) for reserved in self._reservations]
        except BaseException as error:
            if is_fatal(error):
                raise task_error(error, f"{work.name} cannot make requests", redacted=work.redacted) from error
            failed = dead_letter(work, error, self._attempt - 1)
            return PartRow(UNMADE, None, 0.0, [0.0] * len(work.budgets), failed)
        filled = [have + more for have, more in zip(self._filled, (1, size, weight, *costs), strict=True)]
        if self._filled[0] and any(have > most for have, most in zip(filled, self._most, strict=True)):
            filled, self._number = [1, size, weight, *costs], self._number + 1
        self._filled = filled
        return PartRow(f"{self._partition:05d}-{self._number:05d}", body, weight, costs, None)

    def _made(self, arguments: Sequence[Any], before: Record | None) -> tuple[str, int, float]:
        work, name = self._work, self._work.name
        state = AttemptState(StreamRecord(tuple(arguments)), self._attempt)
        state.last_error = None if before is None else ResultError(before["message"])
        token = CURRENT_CALL.set(state)
        try:
            request = check_awaited(name, self._request(*copied(arguments)))
        finally:
            CURRENT_CALL.reset(token)
        if request is None:  # most services reject a whole job with such a request
            raise ResultError(f"{name} returned None, and no request")
        try:
            body = json.dumps(request, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            size = len(body.encode())
        except (TypeError, ValueError) as error:  # also for NaN and half a pair of surrogates
            raise ResultError(f"{name} gave a request that is no JSON: {error_text(error)}") from None
        service = work.service
        weight = 0.0 if service.max_queued is None else given_number(service.weight(request), "weight of a service")
        for what, value, most in (("bytes", size, service.max_bytes), ("weight", weight, service.max_queued)):
            if most is not None and value > most:
                raise ResultError(f"the request has {value:,} {what}, and the service takes at most {most:,} in a job")
        return body, size, weight


# Sending.


def sent(
    work: Work,
    attempt: int,
    part: str,
    turn: int,
    requests: Sequence[BatchRequest],
    *,
    may_be_there: bool,
    reruns: int,
) -> Event:
    """Send a part as a job; returns an event with the outcome.

    The event is "sent", "refused" (the service has not taken the job), or "unclear". Its `weight` has the seconds after
    which to try again. If waiting does not help, `weight` is 0, and the error is in `text`.

    Args:
        may_be_there: whether a process may have sent the job before.
        reruns: how often Spark has begun this task before.
    """
    event = Event(time.time(), "", "sent", attempt, part, turn, reruns=reruns)
    key, service = work.job_key(attempt, part, turn), work.service
    try:
        job = found_job(service, key) if service.can_find and (may_be_there or reruns) else None
        if job is None:
            job = service.submit(requests, key)
        if not isinstance(job, str) or not job:
            raise ResultError(f"submit of {type(service).__name__} must return the id of the job, a text")
    except BaseException as error:
        return dataclasses.replace(event, **_not_sent(error))
    return dataclasses.replace(event, job=job, at=time.time())


def found_job(service: BatchService, key: str) -> str | None:
    """What `find` says; ResultError if it is no id of a job."""
    job: Any = service.find(key)
    if job is None or (isinstance(job, str) and job):
        return job
    raise ResultError(
        f"find of {type(service).__name__} must return the id of the job, a text, or None, not {safe_repr(job)}"
    )


def _not_sent(error: BaseException) -> dict[str, Any]:
    failure, text = Failure(error), error_text(error)
    refusal, status = failure.answer.refusal, failure.answer.status
    if failure.is_no_rows_fault:
        raise error
    if failure.answer.quota is not None:
        return {"kind": "refused", "text": f"a quota of the service is used up: {text}"}
    if refusal is not None and refusal.may_retry:
        return {"kind": "refused", "weight": refusal.seconds}
    if status is not None and status < 500:
        return {"kind": "refused", "text": text}
    is_down = failure.outcome is CallOutcome.DOWN
    return {"kind": "unclear", "text": text, "weight": float(is_down)}


# Settling.


class Result(NamedTuple):
    """The outcome of a request in one attempt.

    Attributes:
        kind: "ok", "failed" for good, "again" (in the next attempt), "apart" (in a smaller job of this attempt), or
            "trouble": this is no request, but says why the job was not fetched.
        answer: as JSON, where it has such a form.
        unsettled: what `settle` has raised; `costs` are the reserved costs then.
    """

    kind: str
    value: Any
    error: Record | None
    unparsed: bool
    costs: Sequence[float]
    answer: str | None
    unsettled: str | None = None


@dataclasses.dataclass(frozen=True)
class OverJob:
    """A job that is over, or a part that is never sent.

    Attributes:
        is_last: its requests are not asked again.
        left: the kind of a `Result` of a request without an answer.
        is_gone: the service does not know the job any more, so there is nothing to fetch.
    """

    attempt: int
    part: str
    job: str
    state: JobState
    answers: int | None
    error: str
    is_last: bool
    left: str
    is_gone: bool = False

    @property
    def next(self) -> str:
        """The kind of a request that was asked and may be asked again."""
        return "failed" if self.is_last else "again"


def settled(
    work: Work, over: OverJob, requests: Mapping[Key, tuple[Sequence[Any], Record | None]]
) -> Iterator[tuple[Key, Result]]:
    """The outcome of each request of a part, exactly once; or one "trouble" under the key ""."""
    costs = _Costs(work)
    with tempfile.TemporaryFile() as spool:
        # Nothing is given before everything is fetched: a file of results is either that of a whole job, or not there.
        try:
            places = _fetched(work, over, requests, costs, spool) if over.job and not over.is_gone else {}
        except BaseException as error:
            failure = Failure(error)
            if failure.is_no_rows_fault:
                raise
            if failure.answer.refusal is None or failure.answer.quota is not None:  # others: the next round tries again
                yield "", Result("trouble", None, dead_letter(work, error, over.attempt), False, (), None)
            return
        validate = work.plan.result_validator()
        for key, place in places.items():
            spool.seek(place)
            try:
                answer = pickle.load(spool)
            except Exception as error:  # an object of a class of the user's
                answer = _unread(work, over, costs.reserved(requests[key][0]), error)
            is_result = isinstance(answer, Result)
            yield key, answer if is_result else _result(work, over, validate, requests[key][0], costs, answer)
    for key, (_, unmade) in requests.items():
        if key not in places:
            yield key, _unanswered(work, over, unmade, len(requests))


def _fetched(work: Work, over: OverJob, requests: Mapping[Key, Any], costs: _Costs, spool: Any) -> dict[Key, int]:
    """Write answers, and results in place of exceptions, to a file; returns the position for each request."""
    places, answered, strangers = dict[Key, int](), set[Key](), list[Any]()
    for key, answer in _pairs(work.service, over.job):
        if not isinstance(key, str) or key not in requests:  # the service may have keys of other jobs
            strangers = strangers or [key]
            continue
        is_error = isinstance(answer, BaseException)
        # The service may repeat some. An answer was paid for: it counts, whatever else is said about its request.
        if key in answered or (is_error and key in places):
            continue
        if is_error:
            if getattr(answer, "is_damaged", False) is True and over.answers is not None:
                continue  # as if it had not come: what is not complete is fetched again
            answer = _failed(work, over, requests[key][0], costs, answer, len(requests))
        else:
            answered.add(key)
        places[key] = spool.tell()
        try:
            data = pickle.dumps(answer)
        except Exception as error:  # an object that cannot be kept
            data = pickle.dumps(_unread(work, over, costs.reserved(requests[key][0]), error))
        spool.write(data)
    if over.answers is not None and len(places) < min(over.answers, len(requests)):
        raise NotAnsweredError(f"the service has {over.answers:,} answers in job {over.job} and gave {len(places):,}")
    if strangers and not places and over.answers != 0:
        raise ResultError(
            f"fetch of {type(work.service).__name__} gave answers under keys that the job {over.job} does not have, "
            f"such as {safe_repr(strangers[0])}, and none under those of its requests"
        )
    return places


def _pairs(service: BatchService, job: str) -> Iterator[tuple[Any, Any]]:
    """The pairs that `fetch` gives; ResultError for anything else."""
    found: Any = service.fetch(job)
    must = f"fetch of {type(service).__name__} must give pairs of a request's key and its answer"
    if not isinstance(found, Iterable):
        discard(found)
        raise ResultError(f"{must}, not {safe_repr(found)}; it is a plain function or generator")
    for pair in found:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ResultError(f"{must}, and gave {safe_repr(pair)}")
        yield pair[0], pair[1]


def _failed(
    work: Work, over: OverJob, arguments: Sequence[Any], costs: _Costs, error: BaseException, number: int
) -> Result:
    """The outcome of a request for which the service has an error; its job has `number` requests."""
    failure = Failure(error)
    # A quota that is used up is the account's: the job of the next attempt is not taken, and `wait` says why.
    is_unanswered = issubclass(type(error), NotAnsweredError) or failure.answer.quota is not None
    may_be_mended = is_unanswered or failure.outcome in (CallOutcome.THROTTLED, CallOutcome.DOWN)
    if over.state is JobState.FAILED:
        if may_be_mended:
            return _unanswered(work, over, None, number)
        return Result("failed", None, dead_letter(work, error, over.attempt), False, costs.nothing, None)
    was_asked = not is_unanswered and failure.outcome is not CallOutcome.THROTTLED
    spent, unsettled = costs.of(arguments, error) if was_asked else (costs.nothing, None)
    kind = over.next if may_be_mended else "failed"
    return Result(kind, None, dead_letter(work, error, over.attempt), False, spent, None, unsettled)


def _result(
    work: Work,
    over: OverJob,
    validate: Callable[[Any], Any],
    arguments: Sequence[Any],
    costs: _Costs,
    answer: Any,
) -> Result:
    (spent, unsettled), text = costs.of(arguments, answer), _as_json(answer)
    try:
        value = validate(work.parse(answer))
    except BaseException as error:
        if is_fatal(error):
            raise task_error(error, f"parse of {work.name} has failed", redacted=work.redacted) from error
        return Result(over.next, None, dead_letter(work, error, over.attempt), True, spent, text, unsettled)
    return Result("ok", value, None, False, spent, text, unsettled)


def _unread(work: Work, over: OverJob, costs: Sequence[float], error: Exception) -> Result:
    """The outcome of a request with an answer that is no JSON, and so cannot be kept until the job is fetched."""
    unread = ResultError(f"fetch of {type(work.service).__name__} gave an answer that is no JSON: {error_text(error)}")
    return Result(over.next, None, dead_letter(work, unread, over.attempt), True, costs, None)


class _Costs:
    """The costs of requests, by budget; the reserved costs if no `settle` tells them."""

    def __init__(self, work: Work) -> None:
        self._reservations, self._work = work.reservations(), work
        self._budgets, self._ask = work.budgets, settlement_call(work.plan.spec)
        self.nothing: list[float] = [0.0] * len(work.budgets)

    def reserved(self, arguments: Sequence[Any]) -> list[float]:
        return [reserved(*arguments) for reserved in self._reservations]

    def of(self, arguments: Sequence[Any], outcome: Any) -> tuple[list[float], str | None]:
        """The costs, and what `settle` has raised for a result; FatalError if `settle` returns no cost."""
        costs, unsettled, work = self.reserved(arguments), None, self._work
        for place, budget in enumerate(self._budgets):
            if budget.settle is None:
                continue
            try:
                cost = self._ask(budget.settle, tuple(arguments), outcome)
            except BaseException as error:
                if is_fatal(error):
                    raise task_error(error, f"settle of {work.name} has failed", redacted=work.redacted) from error
                if isinstance(outcome, BaseException):  # it does not take exceptions: such a request costs nothing
                    costs[place] = 0.0
                else:
                    unsettled = one_line(error_text(error, redacted=work.redacted))
                continue
            try:
                costs[place] = given_number(cost, "settle")
            except FatalError as error:
                where = f"a budget of {work.name} in {budget.unit}"
                raise task_error(error, where, redacted=work.redacted) from error
        return costs, unsettled


def _unanswered(work: Work, over: OverJob, unmade: Record | None, number: int) -> Result:
    nothing = [0.0] * len(work.budgets)
    if unmade is not None:
        return Result("failed", None, unmade, False, nothing, None)
    failed = "its job has failed" if number == 1 else f"its job of {number:,} requests has failed"
    why = {
        JobState.EXPIRED: "its job expired before",
        JobState.CANCELLED: "it was cancelled" if over.job else "the submission was cancelled before it was sent",
        JobState.FAILED: f"{failed}{over.error and ': '}{over.error}",
    }.get(over.state, "the service has left it out of the answers")
    error = NotAnsweredError(f"the request has no answer: {why}")
    attempts = over.attempt if over.job else over.attempt - 1
    return Result(over.left, None, dead_letter(work, error, attempts), False, nothing, None)


def dead_letter(work: Work, error: BaseException, attempts: int) -> Record:
    """The error as a dead letter has it."""
    record = error_record(error, answer_of(error).status, attempts, 0.0, redacted=work.redacted)
    return {**record, "elapsed": None, "function": work.name, "partition": None}


def _as_json(answer: Any) -> str | None:
    try:
        return json.dumps(answer, ensure_ascii=True)
    except (TypeError, ValueError, RecursionError):
        return None
