"""How far the functions of a run have come, how fast they go, how long is left; and the words for it."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..._errors.figures import amount_, noun, seconds, things
from ..._errors.safe import which_errors
from ..function_metrics import SinkRows
from ..waits import told
from .function_figures import FunctionFigures, paid

RATE_SECONDS = 5.0  # seconds; rows/s are those of the last few
NOT_ALL = 0.99  # of the work at most, while some is left
SOME_ROWS = 20  # the costs of so many rows say something about others
WHOLE = 100  # the amount from which an estimate has no cents
ESTIMATE_SECONDS = 30.0  # seconds; the time left is estimated from these, as it would jump about with the others


@dataclass(frozen=True)
class Snapshot:
    """What is known of a run at one moment."""

    functions: Sequence[Mapping[str, Any]]  # what each did until now, as `RunMetrics.to_plain` gives it
    tasks_done: int  # of the stages in which the functions run
    tasks_total: int | None  # None where Spark does not say
    seconds: float  # since the start of the run, by a clock that is never set back
    tasks_of: Mapping[str, tuple[int, int | None]] = field(default_factory=dict)  # both for each function, by its label

    def tasks(self, function: Mapping[str, Any]) -> tuple[int, int | None]:
        """How many tasks of the function's stages are done, of how many."""
        return self.tasks_of.get(function["function"], (self.tasks_done, self.tasks_total))


@dataclass(frozen=True)
class FunctionProgress:
    """How far one function is; None is what is not known yet."""

    label: str
    rows: int
    expected: int | None  # rows in the end
    is_estimated: bool  # whether that is an estimate
    share: float | None  # of the work that is done, from 0 to 1
    rate: float | None  # rows in a second, lately, or of a run that is over in the mean
    in_flight: int  # calls, now
    errors: int  # of all attempts, also in tasks that failed
    retries: int  # the same
    failed_tasks: int  # that Spark runs again, or gave up
    p50: float | None  # seconds that calls took
    p95: float | None
    left: float | None  # seconds, an estimate
    took: float | None  # seconds, of a run that is over
    which_errors: str = ""  # the commonest and the last of the errors in a few words
    sink: SinkRows | None = None  # what became of the rows of a sink
    spent: str = ""  # what calls have cost, and what they may cost in the end
    waits: Sequence[str] = ()  # what its tasks have waited for, each in a line


class ProgressTracker:
    """Makes `FunctionProgress` of the snapshots of one run, which come in their order."""

    # Rows of tasks that failed count as work: their number only grows, and what they cost is time too.

    def __init__(self) -> None:
        self._worked: dict[str, deque[tuple[float, int]]] = {}
        self._live: set[str] = set()  # functions whose tasks report while they run; of others only the mean is known

    def track(self, snapshot: Snapshot, *, is_over: bool = False) -> list[FunctionProgress]:
        return [self._progress(function, snapshot, is_over) for function in snapshot.functions]

    def _progress(self, function: Mapping[str, Any], snapshot: Snapshot, is_over: bool) -> FunctionProgress:
        rows, expected, is_estimated = _expected(function, snapshot)
        if is_over:
            expected, is_estimated = rows, False
        in_vain, latency, tasks = function["failed_attempts"], function["latency"], function["tasks"]
        errors = Counter(function["errors"]) + Counter(in_vain["errors"])
        last = function.get("last_error") or in_vain.get("last_error")
        rate, lately = self._rates(function, snapshot.seconds)
        figures = FunctionFigures(function)
        return FunctionProgress(
            label=function["function"],
            rows=rows,
            expected=expected,
            is_estimated=is_estimated,
            share=1.0 if is_over else _share(function, rows, expected, snapshot.tasks(function)),
            rate=figures.rate if is_over else rate,
            in_flight=0 if is_over else function["running"]["in_flight"],
            errors=sum(errors.values()),
            which_errors="" if last is None else which_errors(errors, (last["type"], last["status"])),
            retries=function["retries"] + in_vain["retries"],
            failed_tasks=tasks["failed"] + tasks["lost"],
            spent=_spent(function, rows, expected),
            p50=latency["p50"],
            p95=latency["p95"],
            left=None if is_over else _left(function, rows, expected, lately, snapshot.tasks(function)),
            took=figures.wall if is_over else None,
            sink=SinkRows.of(function) if function.get("entry_point") == "sink" else None,
            waits=() if is_over else [told(function["function"], wait) for wait in function.get("waits") or ()],
        )

    def _rates(self, function: Mapping[str, Any], now: float) -> tuple[float | None, float | None]:
        """Rows in a second, of the last few seconds and of some more."""
        label, worked = function["function"], function["rows"] + function["failed_attempts"]["rows"]
        if label not in self._worked:
            self._worked[label] = deque([(max(0.0, now - FunctionFigures(function).wall), 0)])
        samples = self._worked[label]
        samples.append((now, worked))
        if function["tasks"]["running"]:
            self._live.add(label)
        if label not in self._live:
            while len(samples) > 2:  # the first and the last are enough
                del samples[1]
            return (mean := _rate(samples[0], samples[-1])), mean
        while len(samples) > 2 and samples[1][0] <= now - ESTIMATE_SECONDS:
            samples.popleft()
        since = next((sample for sample in reversed(samples) if sample[0] <= now - RATE_SECONDS), samples[0])
        return _rate(since, samples[-1]), _rate(samples[0], samples[-1])


def _rate(first: tuple[float, int], last: tuple[float, int]) -> float | None:
    return max(0.0, (last[1] - first[1]) / (last[0] - first[0])) if last[0] > first[0] else None


def _expected(function: Mapping[str, Any], snapshot: Snapshot) -> tuple[int, int | None, bool]:
    """Rows that are done, rows in the end, and whether that is an estimate."""
    rows, tasks = function["rows"], function["tasks"]
    counted, total = snapshot.tasks(function)
    # Empty partitions report nothing: Spark's number of tasks that are done may be the higher one.
    done = max(counted, tasks["succeeded"])
    ended = rows - function["running"]["rows"]
    if total is not None and done >= total and not tasks["running"]:
        return rows, rows, False
    if not total or not done or ended <= 0 or tasks["stopped"]:  # a reader that stops early may do so at any time
        return rows, None, False
    estimate = ended * total / done
    digit = 10 ** max(0, math.floor(math.log10(estimate)) - 2)  # three digits: more would pretend to know more
    return rows, max(math.ceil(estimate / digit) * digit, rows), True


def _goes_on(function: Mapping[str, Any], counted: tuple[int, int | None]) -> bool:
    """Whether calls or tasks run, or tasks are to come."""
    done, total = counted
    running = function["running"]["in_flight"] or function["tasks"]["running"]
    return bool(running or (total is not None and done < total))


def _left(
    function: Mapping[str, Any], rows: int, expected: int | None, rate: float | None, counted: tuple[int, int | None]
) -> float | None:
    """Seconds until the last row, at this rate; None if that cannot be told, or is over though the function goes on."""
    left = (expected - rows) / rate if expected is not None and rate else None
    return None if left is not None and _clock(left) == _clock(0.0) and _goes_on(function, counted) else left


def _spent(function: Mapping[str, Any], rows: int, expected: int | None) -> str:
    """What calls have cost, and what all may cost in the end, if the rows to come are like those that are done."""
    words = []
    for unit, spent in paid(function, "spent").items():
        text = f"{amount_(spent)} {unit}"
        if expected is not None and expected > rows >= SOME_ROWS:
            mean, left = spent / rows, expected - rows
            deviation = math.sqrt(max(0.0, function["spent_squares"].get(unit, 0.0) / rows - mean * mean))
            # Of the rows to come, and of the mean, which the rows so far tell but roughly.
            doubt = 2 * deviation * (math.sqrt(left) + left / math.sqrt(rows))
            ends = (spent + max(0.0, mean * left + off) for off in (-doubt, doubt))
            least, most = (amount_(round(end) if end >= WHOLE else end) for end in ends)
            text += f" of {least} to {most}"
        words.append(text)
    return ", ".join(words)


def _share(
    function: Mapping[str, Any], rows: int, expected: int | None, counted: tuple[int, int | None]
) -> float | None:
    done, total = counted
    most = NOT_ALL if _goes_on(function, counted) else 1.0  # there may be more rows than expected
    if expected:
        return min(most, rows / expected)
    return min(most, done / total) if total and done else None  # not 0: nobody knows how long the first tasks are


def line(one: FunctionProgress) -> str:
    """All in one line."""
    words = [] if one.share is None or one.took is not None else [f"{int(one.share * 100)}%"]
    of = f" of ~{one.expected:,}" if one.is_estimated else ""
    words.append(f"{one.rows:,}{of} {noun(one.expected if one.is_estimated else one.rows, 'row')}")
    words.append("? rows/s" if one.rate is None else f"{one.rate:,.{0 if one.rate >= 10 else 1}f} rows/s")
    words.append(f"{_clock(one.left)} left" if one.took is None else f"in {_clock(one.took)}")
    if one.sink is not None:
        words.append(one.sink.words)
    if one.took is None:
        words.append(f"{things(one.in_flight, 'call')} in flight")
    which = f" ({one.which_errors})" if one.which_errors else ""
    words += [f"{things(one.errors, 'error')}{which}", things(one.retries, "retry", "retries")]
    if one.p50 is not None and one.p95 is not None:
        words += [f"p50 {seconds(one.p50)}", f"p95 {seconds(one.p95)}"]
    if one.spent:
        words.append(f"spent {one.spent}")
    if one.failed_tasks:
        words.append(things(one.failed_tasks, "failed task"))
    return f"{one.label}: {', '.join(words)}"


def lines(one: FunctionProgress) -> list[str]:
    """The line of a function, and behind it one for each thing that its tasks have waited for."""
    return [line(one), *(f"  {wait}" for wait in one.waits)]


def tasks(snapshot: Snapshot) -> str:
    """How many tasks are done, and how long the run has taken."""
    total = "" if snapshot.tasks_total is None else f" of {snapshot.tasks_total:,}"
    named = noun(snapshot.tasks_done if snapshot.tasks_total is None else snapshot.tasks_total, "task")
    return f"{snapshot.tasks_done:,}{total} {named}, {_clock(snapshot.seconds)}"


def _clock(span: float | None) -> str:
    """`0:09`, `1:02:33`, and `?` if it is not known."""
    if span is None or span > 1e7:
        return "?"
    minutes, rest = divmod(round(max(0.0, span)), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
