"""What a rehearsal gives: forecasts of the whole job, each figure with an interval, for several settings."""

from __future__ import annotations

import dataclasses
import heapq
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from asyncudf.queues._public import public

from .._errors.figures import amount_, count, seconds, share, things
from .._errors.safe import one_line
from .._functions.options import Options, OutputMode
from .._limits.rates.option import RateLimit
from .._observe.time_account import State
from .service_model import Call, ServiceModel, cost
from .simulation import Outcome, simulate

SAMPLES = 12  # other samples that might have been seen, for the intervals
LEAST_SAMPLES, LONGEST_WORK = 3, 3.0  # no more than three are run after so many seconds
Z = 1.645  # of an interval with 9 of 10
UNSURE = 0.04  # of the time: what the job does beside its calls
SPARE = 1.2  # calls in flight beside those that a service works on
BELOW = 0.95  # of the rate that a service takes
MUCH = 0.1  # of the time
FEW_DUPLICATES = 0.9  # distinct arguments of all: a store spares little then


@public("asyncudf")
class Estimate(NamedTuple):
    """A figure of the job: the likely value, and the interval in which 9 of 10 jobs end."""

    low: float
    likely: float
    high: float

    def shown(self, form: Callable[[float], str]) -> str:
        # Sums of equal costs differ in their last digits.
        low, likely, high = (form(float(f"{one:.9g}")) for one in self)
        return likely if low == high else f"{likely} ({low} to {high})"


@public("asyncudf")
@dataclasses.dataclass(frozen=True)
class Forecast:
    """The whole job with some settings.

    Attributes:
        name: what differs from the options as they are.
        options: the same, for `with_options`; empty for a change that is none of these, such as a store.
        seconds: of the job, its start included.
        calls: that it makes.
        attempts: of these, with retries and refused ones.
        refused: attempts that the service refuses.
        failures: rows that fail for good.
        spent: by unit, what its calls cost.
        limited_by: what most of its time goes to.
    """

    name: str
    options: Mapping[str, Any]
    seconds: Estimate
    calls: int
    attempts: Estimate
    refused: Estimate
    failures: Estimate
    spent: Mapping[str, Estimate]
    limited_by: str

    @property
    def _others(self) -> list[str]:
        """The figures beside the time, as people read them."""
        parts = [f"{one.shown(amount_)} {one_line(unit)}" for unit, one in self.spent.items()]
        for one, what in ((self.failures, "failed rows"), (self.refused, "refused attempts")):
            if one.likely >= 0.5:
                parts.append(f"{one.shown(count)} {what}")
            elif one.high >= 0.5:
                parts.append(f"up to {count(one.high)} {what}")
        return parts

    def __str__(self) -> str:
        return ", ".join([self.seconds.shown(seconds), *self._others])


@public("asyncudf")
@dataclasses.dataclass(frozen=True)
class Rehearsal:
    """What a sample of real calls says of the whole job; `print` shows it as text, `report` writes it as a page.

    Attributes:
        function: the function's name.
        columns: the names of the columns that it reads.
        rows: of the DataFrame.
        sample: calls that were made.
        sample_seconds: that they took, with the counting of the rows.
        sample_spent: what they did cost, by unit.
        latencies: of their attempts, in seconds, sorted.
        as_is: the job with the options as they are.
        proposals: with other settings, two of them.
        notes: what the sample did not show.
    """

    function: str
    columns: tuple[str, ...]
    rows: int
    sample: int
    sample_seconds: float
    sample_spent: Mapping[str, float]
    latencies: tuple[float, ...]
    as_is: Forecast
    proposals: tuple[Forecast, ...]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        name, columns = one_line(self.function), ", ".join(map(one_line, self.columns))
        spent = "".join(f", {amount_(cost)} {one_line(unit)}" for unit, cost in self.sample_spent.items())
        took = seconds(self.sample_seconds)
        lines = [f"{name}({columns}): {things(self.sample, 'call')} made of {things(self.rows, 'row')} ({took}{spent})"]
        if self.latencies:
            half, most = (self.latencies[int(at * (len(self.latencies) - 1))] for at in (0.5, 0.99))
            lines.append(f"  a call: {seconds(half)} (p50), {seconds(most)} (p99)")
        lines += [f"  {one.name}: {one}; {one.limited_by}" for one in (self.as_is, *self.proposals)]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def report(self, path: str | Path) -> None:
        """Write a page with a picture of the forecasts to an HTML file, in place of one that is there.

        Raises:
            OptionError: Jinja2 is not installed, or the file cannot be written.
        """
        from .._observe.reports.run_report import rehearsal_report

        rehearsal_report(self, path)


class Job(NamedTuple):
    """The job that is rehearsed."""

    partitions: Sequence[int]  # rows that make a call, of each
    slots: int  # tasks that run at a time
    called: float  # calls for each of these rows
    startup: float  # seconds, beside the calls
    distinct: float | None  # arguments that differ, for each row; None: not known

    @property
    def longest(self) -> list[float]:
        """The partitions of the slot that has most to do, in calls: Spark gives each free slot the next one."""
        free = [(0.0, number, list[float]()) for number in range(max(1, self.slots))]
        for rows in self.partitions:
            load, number, own = free[0]
            own.append(rows * self.called)
            heapq.heapreplace(free, (load + rows, number, own))
        return max(free)[2]


def forecast(name: str, changed: Mapping[str, Any], options: Options, model: ServiceModel, job: Job) -> Forecast:
    """The job with these options; `changed` are those that differ."""
    parts = job.longest
    rows, calls = sum(job.partitions), sum(job.partitions) * job.called
    if not (calls and model.calls):
        nothing, start = Estimate(0.0, 0.0, 0.0), Estimate(0.0, job.startup, 2 * job.startup + 1)
        return Forecast(name, changed, start, 0, nothing, nothing, nothing, {}, "no row needs a call")
    task, part = max(parts), sum(parts) / calls
    likely = simulate(options, model, calls=task, share=part, seed=0)
    rng = random.Random(0)
    others, end = list[Outcome](), time.monotonic() + LONGEST_WORK
    while len(others) < SAMPLES and (len(others) < LEAST_SAMPLES or time.monotonic() < end):
        others.append(
            simulate(options, model.resampled(rng, len(others)), calls=task, share=part, seed=len(others) + 1)
        )
    times = sorted(one.seconds_for(parts) for one in others)
    slowest = max(times[-1], 0.0 if model.shown is None else calls / model.shown)
    return Forecast(
        name,
        changed,
        Estimate(
            times[0] * (1 - UNSURE) + 0.5 * job.startup,
            min(max(likely.seconds_for(parts), times[0]), times[-1]) + job.startup,
            slowest * (1 + UNSURE) + 1.5 * job.startup + 1.0,
        ),
        round(calls),
        _scaled(likely, others, calls, lambda one: one.attempts),
        _scaled(likely, others, calls, lambda one: one.refused),
        _failures(model.failures, len(model.calls), rows),
        _spent(model.paid or model.calls, calls),
        _limit(likely, options),
    )


def _scaled(likely: Outcome, others: Sequence[Outcome], calls: float, figure: Callable[[Outcome], float]) -> Estimate:
    found = sorted(calls * figure(one) / one.calls for one in (likely, *others))
    return Estimate(found[0], calls * figure(likely) / likely.calls, found[-1])


def _failures(seen: float, n: int, rows: float) -> Estimate:
    """Rows that fail for good: Wilson's interval of the share that was seen, and that of a job with this share."""
    bad, square = seen * n, Z * Z
    middle = (bad + square / 2) / (n + square)
    half = Z * math.sqrt(bad * (n - bad) / n + square / 4) / (n + square)
    low, high = max(0.0, middle - half) if bad else 0.0, min(1.0, middle + half) if bad < n else 1.0
    own = [Z * math.sqrt(max(0.0, share * (1 - share)) * rows) for share in (low, high)]
    return Estimate(max(0.0, low * rows - own[0]), seen * rows, min(rows, high * rows + own[1]))


def _spent(calls: Sequence[Call], number: float) -> dict[str, Estimate]:
    """What so many calls cost, by unit."""
    found = {}
    for unit in dict.fromkeys(unit for call in calls for one in call for unit in one.spent):
        costs = [cost(call, unit) for call in calls]
        n, mean, deviation = len(costs), statistics.fmean(costs), statistics.pstdev(costs)
        error = Z * deviation * math.sqrt(number * number / n + number)
        # A few calls that cost much more than others: a sample has more often too few of them than too many (Hall).
        skew = statistics.fmean([((one - mean) / deviation) ** 3 for one in costs]) if deviation else 0.0
        shift = deviation * number * skew * (2 * Z * Z + 1) / (6 * n)
        found[unit] = Estimate(max(0.0, number * mean - error + shift), number * mean, number * mean + error + shift)
    return found


def _limit(outcome: Outcome, options: Options) -> str:
    if outcome.is_refused:
        return "the service would refuse all calls for so long that the job ends"
    total = sum(outcome.time.values()) or 1.0
    state = max(outcome.time, key=lambda state: outcome.time[state])
    why = LIMITS.get(state, f"was spent on: {state.value}").format(calls=things(options.slots, "call"))
    return f"{share(outcome.time[state] / total)} of the time {why}"


LIMITS = {
    State.CALLS_BUSY: "all {calls} of a task were in flight",
    State.HEAD_OF_LINE: "the queue was full behind a slow row",
    State.LIMIT: "calls waited for a limit, or because the service had refused some",
    State.BLOCKED_LOOP: "a call that does not await, or a machine with too few cores, kept all others waiting",
    State.START_AND_END: "fewer rows were left than calls could be in flight",
}


def proposals(options: Options, model: ServiceModel, job: Job, as_is: Forecast) -> list[Forecast]:
    """The job with other settings: the two that promise most."""
    found: list[Forecast] = []
    for name, changed, other, own_job in _candidates(options, model, job):
        if len(found) == 2:
            break
        is_set = own_job is job and other.to_plain() == options.to_plain()
        if not is_set and name not in [one.name for one in found]:
            found.append(forecast(name, changed, other, model, own_job))
    return found


def _candidates(options: Options, model: ServiceModel, job: Job) -> Any:
    parts = job.longest
    part = sum(parts) / (sum(job.partitions) * job.called)
    seen = simulate(options, model, calls=max(parts), share=part, seed=0)
    total = sum(seen.time.values()) or 1.0

    def with_(**changed: Any) -> tuple[str, Mapping[str, Any], Options, Job]:
        shown = options.replace(changed).to_plain()
        name = ", ".join(f"{one}={_value(shown[one])}" for one in changed)
        return name, changed, options.replace(changed), job

    def capacity(calls: float) -> tuple[str, Mapping[str, Any], Options, Job]:
        wanted = max(1, round(calls))
        queue = options.queue_size
        more = {} if queue is None or queue >= wanted else {"queue_size": wanted * max(1, queue // options.slots)}
        return with_(capacity=wanted, **more)

    if options.store is None and job.distinct is not None and job.distinct < FEW_DUPLICATES:
        yield "with a store=", {}, options, job._replace(called=job.called * job.distinct)
    if (bucket := model.bucket) is not None:
        limit = float(f"{BELOW * bucket.rate:.3g}")
        yield with_(rate_limit=[*options.rate_limit, RateLimit(limit)])
    if model.concurrency is not None:
        yield capacity(SPARE * model.concurrency / max(1, min(job.slots, len(job.partitions))))
    if seen.time[State.HEAD_OF_LINE] > MUCH * total and options.output_mode is OutputMode.ORDERED:
        yield with_(output_mode="unordered")
    yield capacity(2 * options.slots)
    yield capacity(options.slots / 2)
    yield capacity(4 * options.slots)


def _value(shown: Any) -> str:
    return f"{shown:_}" if type(shown) is int else str(shown)
