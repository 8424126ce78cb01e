"""What must hold after each job: the rows, the limits, what was paid, what is left, and what the monitor says."""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import pandas as pd

from tests.chaos.services import Call
from tests.chaos.shapes import BESIDE_ROWS, DEAREST, Shape, price_of, result_of

__all__ = ("CHECKS", "Event", "Job", "Run", "faults_of", "it_failed_with_reason")

DRIVERS = ("driver", "driver alone", "server")  # accidents that end a job as a whole
WRITTEN = 0.5  # seconds: an answer that came less than this before a kill may not have reached the store
ON_ITS_WAY = 0.05  # seconds that an answer may take from the service to the task
LATE = 0.99  # of the calls reach the service sooner than what a busy machine adds to each of these times
STOPPED = 3.0  # seconds after its end in which a job's calls may still begin
LOOKED_UP = 1.0  # seconds from an answer until no call begins that was looked up before it
RECOVERED = 8.0  # seconds from the failure of a store until results are in it again: it is asked each 5 s


class Event(NamedTuple):
    """Something that was done to a job; `pids` are the processes that were killed."""

    time: float
    kind: str
    pids: frozenset[int] = frozenset()


class Beside(NamedTuple):
    """What became of a query beside the job's own; `kind` is one of `BESIDE`, and it has its own function."""

    kind: str
    run: int
    began: float
    ended: float
    error: str
    rows: list[tuple[int, int]]


@dataclass
class Run:
    """One run of the query. Without `rows` it has failed, or its driver was killed."""

    number: int
    began: float
    ended: float
    error: str | None
    figures: dict[str, int]
    rows: pd.DataFrame | None = None
    letters: pd.DataFrame | None = None
    beside: list[Beside] = field(default_factory=list)


@dataclass
class Job:
    """A job that is over, and all that was seen of it."""

    shape: Shape
    calls: list[Call]
    events: list[Event]
    runs: list[Run]
    left: list[str]
    broken: str = ""  # it hung, or its driver ended without having been killed
    drives: list[float] = field(default_factory=list)  # when each driver began
    beside: dict[str, list[Call]] = field(default_factory=dict)  # calls of each kind of query beside it

    def happened(self, *kinds: str) -> list[Event]:
        return [event for event in self.events if event.kind in kinds]

    @property
    def kills(self) -> list[Event]:
        return [event for event in self.events if event.pids]

    def calls_of(self, run: Run) -> list[Call]:
        return [call for call in self.requests if run.began <= call.began and call.run == run.number]

    @property
    def requests(self) -> list[Call]:
        return [call for call in self.calls if call.leads]

    def bill(self, *runs: Run) -> int:
        """Credits for all that the service has answered, in these runs."""
        return sum(price_of(n) for call in self._in(runs) if call.outcome == "ok" for n in call.ns)

    def unanswered(self, *runs: Run) -> int:
        """Arguments whose caller has heard nothing: each counts as one of the dearest."""
        return sum(len(call.ns) for call in self._in(runs) if call.outcome in ("gone", "drop"))

    def _in(self, runs: Sequence[Run]) -> list[Call]:
        numbers = {run.number for run in runs}
        return [call for call in self.calls if call.run in numbers]

    @property
    def delay(self) -> float:
        """Seconds that the machine takes for what takes no time on an idle one."""
        delays = sorted(call.arrived - call.began for call in self.calls)
        return delays[int(LATE * len(delays))] if delays else 0.0

    @property
    def is_predictable(self) -> bool:
        """Whether the rows that fail are exactly those that the service never answers."""
        shape = self.shape
        shared = shape.store == "redis" or (shape.store == "executor" and shape.cluster)  # two tasks may call for one n
        concurrent = shared and shape.distinct < shape.rows
        return not concurrent and not self.happened("connections", "outage", "redis", "redis stops", "disk")


def it_ended(job: Job) -> Iterator[str]:
    """The job ended, and so did its driver."""
    if job.broken:
        yield job.broken


def it_failed_with_reason(job: Job) -> Iterator[str]:
    """It failed if it had to, with an error that says why, and did not fail otherwise."""
    shape = job.shape
    least = math.ceil(len(shape.asked) / shape.options.get("batch_size", 1))
    failing = sum(shape.asked[n] for n in shape.hopeless)
    whole = not (shape.limit or shape.streaming or shape.restarts)
    allowed, required = [], ""
    if shape.options["on_error"] == "raise":
        if shape.hopeless or not job.is_predictable:
            allowed.append(r"failed in attempt \d+, partition|failed after its deadline|timed out")
        if shape.hopeless and not shape.limit:
            required = "a row that fails for good"
    if shape.options.get("max_calls", math.inf) < 2 * shape.rows + 1000:
        allowed.append(r"max_calls")
        _, on_spent = shape.options.get("budget", (None, "raise"))
        if shape.options["max_calls"] < least and whole and on_spent == "raise":
            required = required or f"max_calls={shape.options['max_calls']}"
    if "max_failures" in shape.options and (failing > shape.options["max_failures"] or not job.is_predictable):
        allowed.append(r"more than max_failures= allows")
        # Without a coordinator each task counts for itself, and a column may have several.
        if job.is_predictable and shape.partitions == 1 and whole and not shape.is_copied:
            required = required or f"max_failures={shape.options['max_failures']}"
    if shape.is_short:
        allowed.append(r"of its budget of")
    if shape.entry == "sink" and (shape.is_short or failing > 0.4 * shape.rows or not job.is_predictable):
        allowed.append(r"SinkError|more than max_failures= allows")
    if job.happened("cancel"):
        allowed.append(r"(?i)cancel|operation not found")
        required = ""
    if allowed and job.happened("worker", "workers"):  # Spark tells how the last of a task's attempts has ended
        allowed.append(r"Python worker exited unexpectedly")
    for run in job.runs[:1] if shape.store else job.runs:
        if run.error is None and required and run.rows is not None and not job.happened("cancel"):
            yield f"run {run.number} has not failed, in spite of {required}"
    for run in job.runs:
        if run.error is not None and not any(re.search(pattern, run.error) for pattern in allowed):
            yield f"run {run.number} failed without a reason, or the error does not say it: {run.error[:3000]}"


def each_row_is_there_once(job: Job) -> Iterator[str]:
    """Each row is once in the output, with its own result, or once among those that failed; in order where promised."""
    for run in job.runs:
        if run.rows is not None:
            yield from (f"run {run.number}: {fault}" for fault in _rows(job, run.rows, run.letters, run))


def _rows(job: Job, rows: pd.DataFrame, letters: pd.DataFrame | None, run: Run) -> Iterator[str]:
    shape = job.shape
    asked, unasked = rows[rows["n"].notna()], rows[rows["n"].isna()]
    good = asked[asked["value"].notna()]
    bad = asked[asked["value"].isna()]
    if letters is not None:
        if len(bad):
            yield f"rows without a result beside dead letters: {_some(bad['id'])}"
        bad = letters
    if shape.options["on_error"] == "capture" and bad["error"].isna().any():
        yield f"neither value nor error: {_some(bad[bad['error'].isna()]['id'])}"
    every = pd.concat([good[["id", "n"]], bad[["id", "n"]]])
    if wrong := [
        *every[every["n"] != every["id"] % shape.distinct]["id"],
        *good[good["value"] != result_of(good["n"])]["id"],
    ]:
        yield f"rows with another row's result: {_some(wrong)}"
    counts = good["id"].value_counts()
    if doubled := [*counts[counts > shape.copies].index, *bad["id"][bad["id"].duplicated()]]:
        yield f"more than once: {_some(doubled)}"
    if both := set(good["id"]) & set(bad["id"]):
        yield f"with a result and failed: {_some(both)}"
    has_more = unasked["value"].notna() | unasked["error"].notna() | ~unasked["id"].isin(shape.null_rows)
    if others := {*unasked[has_more]["id"], *(set(every["id"]) & shape.null_rows)}:
        yield f"not NULL for NULL alone: {_some(others)}"
    if again := [*unasked["id"][unasked["id"].duplicated()]]:
        yield f"NULL more than once: {_some(again)}"
    if shape.limit:
        there = shape.asked.total() * shape.copies + len(shape.null_rows)
        if len(rows) != min(shape.limit, there):
            yield f"{len(rows)} rows of LIMIT {shape.limit}"
    else:
        if missing := set(range(shape.rows)) - set(every["id"]) - set(unasked["id"]):
            yield f"lost: {_some(missing)}"
        if halves := counts[counts < shape.copies].index.tolist():
            yield f"fewer than {shape.copies} results: {_some(halves)}"
    ends = [shape.rows]
    if shape.is_on_sail:  # a collected result has the rows of its partitions mixed, and those of a column have no order
        ends = [(index + 1) * shape.rows // shape.partitions for index in range(shape.partitions)]
    has_order = shape.is_ordered and not shape.streaming and not shape.is_copied
    # Sail may deal the rows to other partitions, unless there is one.
    if has_order and not (shape.is_on_sail and shape.parallelism != 1):
        parts = rows["id"].map(lambda row: bisect_right(ends, row))
        if mixed := [part for part, those in rows["id"].groupby(parts) if not those.is_monotonic_increasing]:
            yield f"the rows are not in the order of the input, in parts {mixed} of {len(ends)}"
    if shape.entry == "sink":
        acknowledged = {n for call in job.calls if call.outcome == "ok" for n in call.ns}
        if unwritten := set(good["n"]) - acknowledged:
            yield f"written, though the service has not acknowledged them: {_some(unwritten)}"
    if shape.is_short:  # rows that were not called are among those without a result
        return
    failed = set(bad["n"]) - shape.hopeless
    if shape.form == "postgres" and job.is_predictable:
        answered = failed
    else:
        timely = shape.options["attempt_timeout"] / 2  # a later answer may have been too late
        begins = sorted(call.began for call in job.calls)
        # Where none began for as long, a busy machine has stopped the process that waited for the answer.
        still = {end for end, begin in pairwise([-math.inf, *begins]) if begin - end > timely}
        good_calls = [call for call in job.calls if call.outcome == "ok" and call.ended - call.began < timely]
        good_calls = [call for call in good_calls if begins[bisect_left(begins, call.ended) - 1] not in still]
        answered = failed & {n for call in good_calls for n in call.ns}
    if answered and job.is_predictable:
        yield f"failed, though the service has answered one of their calls in time: {_some(answered)}"
    groundless = failed - {n for call in job.calls for n in call.ns}
    if groundless and not job.happened("connections"):  # a request that is sent as its connection ends is not seen
        yield f"failed without a call: {_some(groundless)}"
    if results := set(good["n"]) & shape.hopeless:
        yield f"a result of what the service never answers: {_some(results)}"


def no_limit_is_passed(job: Job) -> Iterator[str]:
    """By the service's count: rate, calls in flight in each task and in the job, calls in all."""
    options = job.shape.options
    slots = 400 if options["capacity"] == "auto" else options["capacity"]
    intervals = [_interval(call, job) for call in job.requests] if job.shape.form != "postgres" else []
    of_worker: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for call, interval in zip(job.requests, intervals, strict=False):
        of_worker[call.worker].append(interval)
    for worker, those in of_worker.items() if job.shape.form != "thread" else ():
        if (peak := _peak(those)) > slots:
            yield f"{peak} calls at a time in worker {worker}, with capacity={slots}"
    if (bound := options.get("job_capacity")) is not None and (peak := _peak(intervals)) > bound:
        yield f"{peak} calls at a time, with job_capacity={bound}"
    if "rate_limit" in options:
        permits, burst = job.shape.rate
        share = 0.1 if job.shape.form == "thread" else 0.02
        bound = permits + (max(1, 0.02 * permits) if burst is None else burst) + max(1, math.ceil(share * permits))
        times = sorted(call.began for call in job.requests)
        most = max((index + 1 - bisect_left(times, time - 1.0) for index, time in enumerate(times)), default=0)
        if most > bound and not job.shape.restarts:
            yield f"{most} calls in a second, with RateLimit({permits}, burst={burst}), which allows {bound:g}"
    if "max_calls" in options and not job.shape.streaming and not job.happened("coordinator"):
        for run in job.runs:
            if (count := len(job.calls_of(run))) > options["max_calls"]:
                yield f"{count} calls in run {run.number}, with max_calls={options['max_calls']}"


def no_budget_is_passed(job: Job) -> Iterator[str]:
    """By the service's bill; and where rows were left out, no call could have been paid for."""
    if "budget" not in job.shape.options or job.happened("coordinator", "redis", "redis stops", "disk"):
        return
    amount, on_spent = job.shape.options["budget"]
    is_kept = job.shape.store in ("disk", "redis")
    if job.shape.restarts and not is_kept:  # each driver has a budget of its own
        return
    for runs in [job.runs] if is_kept else [[run] for run in job.runs]:
        bill = job.bill(*runs)
        if bill > amount and not job.shape.streaming:
            yield f"run {runs[-1].number}: {bill} credits are billed, of {amount}"
        run = runs[-1]
        unpaid = run.figures.get("unpaid", 0)
        dearest = DEAREST * (job.shape.options["batch_size"] if job.shape.form == "bulk" else 1)
        left = amount - bill - DEAREST * job.unanswered(*runs)
        if len(job.calls_of(run)) >= job.shape.options.get("max_calls", math.inf):
            left = 0  # the calls are spent
        if unpaid and on_spent != "raise" and not job.events and left >= dearest:
            yield f"run {run.number}: {unpaid} rows were not called, though {left} credits are left"


def _interval(call: Call, job: Job) -> tuple[float, float]:
    """From when to when a call was in flight for certain."""
    longest = job.shape.options["attempt_timeout"]
    end = min(call.ended, call.began + longest)
    if call.outcome == "gone":  # the service learns late that a caller has gone: at its deadline, or at any time
        end = call.began if job.happened("connections") else min(end, call.began + longest / 2)
    for kill in job.kills:
        if call.pid in kill.pids:
            end = min(end, kill.time)
    return call.began, max(call.began, end)


def _peak(intervals: Iterable[tuple[float, float]]) -> int:
    """The most at a time; what ends at the moment when another begins is not beside it."""
    steps = sorted(step for begin, end in intervals for step in ((begin, 1), (end, -1)))
    flying = most = 0
    for _, step in steps:
        flying += step
        most = max(most, flying)
    return most


def what_is_paid_is_not_called_again(job: Job) -> Iterator[str]:
    """With a store: no call for an argument whose result was there before, but for what docs/once.md says."""
    if not job.shape.store:
        return
    excuses = [*_excuses(job)]
    looked_up = LOOKED_UP + 2 * job.delay
    timely = 0.9 * job.shape.options["attempt_timeout"]  # nobody may have waited for a later answer
    paid: dict[int, Call] = {}
    first_attempts: dict[tuple[str, int], float] = {}  # a row is not looked up between its attempts
    repeated: Counter[int] = Counter()
    for call in sorted(job.calls, key=lambda call: call.began):
        for n in call.ns:
            before = paid.get(n)
            began = first_attempts.setdefault((call.worker, n), call.began)
            if call.outcome in ("ok", "hopeless"):
                del first_attempts[call.worker, n]
            is_excused = before is not None and any(one.covers(before, call) for one in excuses)
            is_first = call.began == began
            if before is not None and is_first and began > before.ended + looked_up and not is_excused:
                repeated[n] += 1
            if call.outcome == "ok" and call.ended - call.began < timely and (before is None or is_excused):
                paid[n] = call
    # Each executor has a store of its own, and may call once.
    allowed = 1 if job.shape.store == "executor" and job.shape.cluster else 0
    # Equal rows of two micro-batches are two for a sink; there are three.
    allowed += 2 if job.shape.entry == "sink" and job.shape.streaming else 0
    if again := {n for n, count in repeated.items() if count > allowed}:
        yield f"called again, though the result was in the store: {_some(again)}"


class _Excuse(NamedTuple):
    """Answers of these times, and of these workers if any are named, may be missing for calls of those times."""

    answered: tuple[float, float]
    called: tuple[float, float]
    pids: frozenset[int] = frozenset()

    def covers(self, before: Call, call: Call) -> bool:
        is_one = not self.pids or before.pid in self.pids
        in_time = (
            self.answered[0] <= before.ended <= self.answered[1] and self.called[0] <= call.began <= self.called[1]
        )
        return is_one and in_time


def _excuses(job: Job) -> Iterator[_Excuse]:
    """What may have cost results that were paid for."""
    always, later = (-math.inf, math.inf), math.inf
    written = WRITTEN + 2 * job.delay
    for time, kind, pids in job.events:
        recovered = time + RECOVERED + 2 * job.delay
        if kind == "redis":  # it has forgotten everything
            yield _Excuse((-math.inf, recovered), (time, later))
        elif kind == "redis stops":
            yield _Excuse((time - written, recovered), (time, later))
            yield _Excuse(always, (time, recovered))
        elif kind == "disk":
            yield _Excuse(always, (time, later))
        elif kind in ("executor", *DRIVERS) and job.shape.store == "executor":
            yield _Excuse((-math.inf, time + STOPPED), (time, later))
        elif kind in (*DRIVERS, "cancel"):
            yield _Excuse((time - written, time + STOPPED), (time, later))
        elif pids:
            yield _Excuse((time - written, later), (time, later), pids)
    if job.shape.options["on_error"] == "raise" or "max_failures" in job.shape.options:
        # The task has failed: it did not see answers on their way, and a plain def went on in its thread.
        for call in job.calls:
            if call.outcome == "hopeless":
                yield _Excuse((call.ended - ON_ITS_WAY - 2 * job.delay, later), always, frozenset({call.pid}))
    for run in job.runs:
        if run.error is not None or job.shape.limit:
            yield _Excuse((run.ended - STOPPED, later), always)


def it_stopped(job: Job) -> Iterator[str]:
    """No call begins once the job is cancelled, has failed or is done, or its driver is dead."""
    shape = job.shape
    fatal = {*DRIVERS} - ({"driver alone"} if shape.server_outlives else set())  # its server goes on with the query
    if shape.is_copied:  # and a column ends with its partition, whatever becomes of its query
        return
    # Sail ends the task of an operator as its next row leaves, and that may wait for all attempts of the first row.
    waits = shape.is_on_sail and shape.is_ordered and shape.entry in ("operator", "chain")
    stopped = STOPPED + (shape.options["retry"] * shape.options["attempt_timeout"] if waits else 0.0)
    ends = [(event.time, event.kind) for event in job.happened("cancel", *fatal)]
    ends += [(run.ended, f"the end of run {run.number}") for run in job.runs]
    begins = [*job.drives, *(run.began for run in job.runs)]
    for end, why in ends:
        following = min((begin for begin in begins if begin > end), default=math.inf)
        if late := [call for call in job.calls if end + stopped < call.began < following]:
            yield f"{len(late)} calls later than {stopped:g} s after {why}"


def the_figures_are_right(job: Job) -> Iterator[str]:
    """The monitor has counted the calls that the service has, and the rows."""
    shape = job.shape
    for run in job.runs:
        calls, attempts = len(job.calls_of(run)), run.figures["attempts"]
        unsent = run.figures["timeouts"] + run.figures["abandoned"]
        if job.happened("connections"):
            unsent += 400 if shape.options["capacity"] == "auto" else 8 * shape.options["capacity"]
        # Spark kills workers that do not end soon after a cancel, with their last figures.
        kills = [event for event in job.events if event.pids or event.kind == "cancel"]
        kills = [event for event in kills if run.began <= event.time <= run.ended]
        # When it fails, Spark kills the tasks that still run, and a worker that does not end soon with them.
        is_whole = run.error is None and not kills
        if attempts > calls + unsent or (attempts < calls and is_whole):
            yield f"run {run.number}: {attempts} attempts ({unsent} of them perhaps unsent), but {calls} calls"
        if run.rows is None or shape.limit or job.happened("executor") or (shape.streaming and shape.restarts):
            continue
        # A column of Sail is called up to twice for a row.
        if not shape.rows <= run.figures["rows"] <= shape.rows * (2 if shape.is_copied else 1):
            yield f"run {run.number}: the monitor says {run.figures['rows']} rows of {shape.rows}"
        if run.letters is not None and run.figures["dead_letters"] != len(run.letters):
            yield f"run {run.number}: the monitor says {run.figures['dead_letters']} dead letters of {len(run.letters)}"


def nothing_is_left(job: Job) -> Iterator[str]:
    """No process, thread, task, socket, file or shared memory of the job."""
    if job.left:
        yield f"left over: {'; '.join(map(str, job.left[:10]))}"


def queries_beside_it_are_apart(job: Job) -> Iterator[str]:
    """They end, fail, are cancelled or stop by themselves, whatever becomes of the job, and so do their calls."""
    for one in [one for run in job.runs for one in run.beside]:
        if one.error and job.happened("cancel"):  # all queries of the session are
            continue
        what = f"the query beside run {one.run} that {one.kind}"
        if wrong := [row for row in one.rows if row[1] != result_of(row[0])]:
            yield f"{what} has rows with another row's result: {wrong[:10]}"
        if twice := [n for n, count in Counter(n for n, _ in one.rows).items() if count > 1]:
            yield f"{what} has rows more than once: {_some(twice)}"
        wanted = {"fails": "the neighbour fails", "is cancelled": "(?i)cancel|operation not found"}.get(one.kind, "^$")
        if not re.search(wanted, one.error):
            yield f"{what}: {one.error[:3000] or 'no error'}"
        rows = {"ends": BESIDE_ROWS, "stops": 5}.get(one.kind)
        if rows is not None and not one.error and len(one.rows) != rows:
            yield f"{what}: {len(one.rows)} rows of {rows}"
        following = min((other.began for other in job.runs if other.began > one.ended), default=math.inf)
        if late := [call for call in job.beside[one.kind] if one.ended + STOPPED < call.began < following]:
            yield f"{what}: {len(late)} calls later than {STOPPED:g} s after its end"


CHECKS: tuple[Callable[[Job], Iterator[str]], ...] = (
    it_ended,
    it_failed_with_reason,
    each_row_is_there_once,
    no_limit_is_passed,
    no_budget_is_passed,
    what_is_paid_is_not_called_again,
    it_stopped,
    the_figures_are_right,
    queries_beside_it_are_apart,
    nothing_is_left,
)


def faults_of(job: Job) -> list[tuple[str, str]]:
    """What did not hold, each with the name of its check."""
    return [(check.__name__, fault) for check in CHECKS for fault in check(job)]


def _some(values: Iterable[Any]) -> str:
    found: Sequence[Any] = sorted({int(value) for value in values})
    return f"{', '.join(map(str, found[:10]))}{f' and {len(found) - 10} more' if len(found) > 10 else ''}"
