"""What a sample of calls says of the whole job, by arithmetic: a sample in, a range for each figure out."""

from __future__ import annotations

import dataclasses
import functools
import heapq
import itertools
import math
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from asyncudf.queues._public import public

from .._engine.calls.recorder import AttemptRecord
from .._errors.figures import amount_, count, seconds, things
from .._errors.safe import one_line
from .._functions.options import Options, OutputMode, limits_of
from .._limits.capacity.option import AdaptiveCapacity
from .._limits.limited_task import Pace

# Standard errors on each side. That is 19 of 20 for a normal distribution; costs have longer tails, of which a sample
# shows too little, and then 9 of 10 are left.
Z = 1.96
MISSED = 0.1  # how probable it is at most that a sample has none of calls of which there are that many
UNSURE = 0.04  # of the time: what the job does beside its calls
START, PER_TASK = 1.0, 0.1  # seconds at most, for the job and for each of its tasks beside the first
LONGER = 1.12  # so much longer per call is the sample as a whole than its calls: they wait for each other
LEAST_KEPT = 30  # calls, beside those that opened the connections
LATE_PERMITS = 1.1  # times as long as a limit says
LEAST_TAKEN = 3  # calls, or the sample as a whole says more
PAUSES = 1.3  # times as long as by what a service that refuses calls takes at least
CALLS_OF_A_TASK = 20  # of a sample, at least, or there are fewer tasks
ROUNDS = 2  # of calls in flight, in a task of the sample

Call = tuple[AttemptRecord, ...]  # its attempts


@public("asyncudf")
class Estimate(NamedTuple):
    """A figure of the job: the likely value, and the range in which 9 of 10 jobs end."""

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
    """The whole job.

    Attributes:
        seconds: that it takes, its start included.
        calls: that it makes.
        attempts: of these, with retries and refused ones.
        refused: attempts that the service refuses.
        failures: rows that fail for good.
        spent: by unit, what its calls cost.
        limited_by: what its time depends on.
    """

    seconds: Estimate
    calls: int
    attempts: Estimate
    refused: Estimate
    failures: Estimate
    spent: Mapping[str, Estimate]
    limited_by: str

    @property
    def _figures(self) -> list[str]:
        """The figures as people read them, the time first."""
        found = [self.seconds.shown(seconds)]
        found += [f"{one.shown(amount_)} {one_line(unit)}" for unit, one in self.spent.items()]
        for one, what in ((self.failures, "failed rows"), (self.refused, "refused attempts")):
            if one.likely >= 0.5:
                found.append(f"{one.shown(count)} {what}")
            elif one.high >= 0.5:
                found.append(f"up to {count(one.high)} {what}")
        return found

    def __str__(self) -> str:
        return ", ".join(self._figures)

    @property
    def name(self) -> str:
        """Always "as it is", and deprecated: a rehearsal forecasts the options that it was given, and no others."""
        warn_of_one_forecast("Forecast.name")
        return "as it is"

    @property
    def options(self) -> Mapping[str, Any]:
        """Always empty, and deprecated, as `name` is."""
        warn_of_one_forecast("Forecast.options")
        return {}

    @property
    def others(self) -> list[str]:
        """The figures beside the time, as people read them; deprecated: `str` of a forecast has them all."""
        warnings.warn("Forecast.others: str(forecast) has all figures", DeprecationWarning, stacklevel=2)
        return self._figures[1:]


def warn_of_one_forecast(name: str) -> None:
    """Warn where a program reads what told the settings that a rehearsal proposed before 0.4."""
    warnings.warn(
        f"{name} tells nothing now: a rehearsal forecasts the options as they are; to compare settings, call "
        "rehearse(..., capacity=40) with each",
        DeprecationWarning,
        stacklevel=3,
    )


class TaskSample(NamedTuple):
    """What one task of the sample did."""

    records: Sequence[AttemptRecord]
    rows: int  # that it read
    answered: int  # of these without a call, by the store
    failed: int  # of these for good
    errors: Mapping[str, int] = {}  # attempts that failed, by the type of the error
    examples: Mapping[str, str] = {}  # a message for each of these
    spent: Mapping[str, float] = {}  # of each budget with a name, by all runs and this one


class SampleSize(NamedTuple):
    """How a sample is called: in so many tasks, so many calls in each, so many of them in flight."""

    tasks: int
    calls: int
    in_flight: int

    @classmethod
    def of(cls, options: Options, calls: int, slots: int) -> SampleSize:
        """Of so many calls where so many tasks run at a time: as many in flight as they can keep busy for a while."""
        tasks = max(1, min(slots, calls // CALLS_OF_A_TASK))
        per_task = max(1, calls // tasks)
        in_flight = min(options.slots, per_task // ROUNDS, options.calls_of_job // tasks)
        return cls(tasks, per_task, max(1, int(in_flight)))

    @staticmethod
    def calls_for(in_flight: int, tasks: int) -> int:
        """Of how many calls a sample has so many in flight, in so many tasks."""
        return tasks * max(CALLS_OF_A_TASK, ROUNDS * math.ceil(in_flight / tasks))


class Job(NamedTuple):
    """The job that is rehearsed."""

    partitions: Sequence[int]  # rows that make a call, of each
    slots: int  # tasks that run at a time
    called: float  # calls for each of these rows
    startup: float  # seconds, beside the calls
    unsure: tuple[float, float] = (1.0, 1.0)  # times `called`, at least and at most
    commonest: Mapping[int, float] = {}  # by the places of limits by key, the share of the key that has most calls

    @property
    def calls(self) -> float:
        return sum(self.partitions) * self.called

    @property
    def running(self) -> int:
        """Tasks that run at a time, as there are partitions for them."""
        return max(1, min(self.slots, len(self.partitions)))

    @property
    def longest(self) -> list[float]:
        """The partitions of the slot that has most to do, in calls: Spark gives each free slot the next one."""
        free = [(0.0, number, list[float]()) for number in range(max(1, self.slots))]
        for rows in self.partitions:
            load, number, own = free[0]
            own.append(rows * self.called)
            heapq.heapreplace(free, (load + rows, number, own))
        return max(free)[2]

    def in_flight(self, options: Options) -> int:
        """Calls in flight, in all tasks: `capacity` x tasks, or `job_capacity`, or all calls there are."""
        most = min(options.slots * self.running, options.calls_of_job, math.ceil(self.calls))
        return max(1, int(most))


class Sample:
    """The calls of a sample, in tasks with so many in flight.

    Attributes:
        calls: in the order in which they began.
        in_flight: how many were in flight, in all tasks.
    """

    def __init__(self, tasks: Sequence[TaskSample], in_flight: int) -> None:
        self._tasks = tasks
        self._of_tasks = [_calls(task) for task in tasks]
        self.calls = sorted(itertools.chain(*self._of_tasks), key=lambda call: call[0].began)
        self.in_flight = in_flight * max(1, sum(bool(calls) for calls in self._of_tasks))

    @property
    def steady(self) -> list[Call]:
        """Calls that began after another one of their task had ended, if they are many: the first ones connect."""
        found = []
        for calls in self._of_tasks:
            first = min((_end(call) for call in calls), default=math.inf)
            found += [call for call in calls if call[0].began >= first]
        return found if len(found) >= LEAST_KEPT else self.calls

    @property
    def latencies(self) -> list[float]:
        """Of the attempts, in seconds, sorted."""
        return sorted(one.seconds for call in self.steady for one in call)

    @property
    def work(self) -> list[float]:
        """Seconds for which each call has a slot."""
        return [math.fsum(one.seconds for one in call) for call in self.steady]

    @property
    def lives(self) -> list[float]:
        """Seconds from the begin of each call to its end, the times between its attempts included; sorted."""
        return sorted(_end(call) - call[0].began for call in self.steady)

    @property
    def slot_seconds(self) -> tuple[float, int]:
        """Seconds of a slot for each call, while none was free, and of how many calls: longer if calls wait for others.

        By Little's law: what was in flight, by the calls that ended in a second.
        """
        slots, ended = 0.0, 0
        for calls in self._of_tasks:
            if calls:
                begin, end = min(map(_end, calls)), max(call[0].began for call in calls)
                some = sum(begin < _end(call) <= end for call in calls)
                slots += max(one.in_flight for call in calls for one in call) * (end - begin) * (some > 0)
                ended += some
        return (slots / ended, ended) if ended else (0.0, 0)

    @property
    def failed(self) -> list[Call]:
        """Calls that no attempt was left for."""
        return [call for call in self.calls if call[-1].has_failed]

    def failures(self, calls: float, rows: float, known: int, again: int) -> Estimate:
        """Rows that fail for good; so many calls of the sample are among those of the job, which makes some again."""
        # The rows of one call may all fail together, so they count as one.
        read, n = sum(task.rows for task in self._tasks), len(self.calls)
        seen = sum(task.failed for task in self._tasks) / max(1, read)
        shares, rest, each = share_of(seen * n, n), max(0.0, calls - known), rows / calls
        low, high = (
            share * rest + errors * math.sqrt(share * (1 - share) * rest)
            for share, errors in ((shares.low, -Z), (shares.high, Z))
        )
        least = max(0.0, shares.low * again - Z * math.sqrt(seen * (1 - seen) * again)) if again else seen * known
        return Estimate(each * (least + max(0.0, low)), seen * rows, each * (seen * known + min(rest, high)))

    @property
    def taken_by_the_service(self) -> float | None:
        """Calls in a second that a service takes for long, at least; None if it has refused none.

        Whenever it refuses a call it has nothing saved up: so this is what it has taken between two refusals.
        """
        attempts = [one for call in self.calls for one in call]
        refused = [one.began for one in attempts if one.is_refused]
        if not refused:
            return None
        first, last = min(refused), max(refused)
        taken = sum(first < one.began < last for one in attempts if not one.is_refused)
        if taken < LEAST_TAKEN:
            return len(self.calls) / max(1e-3, max(map(_end, self.calls)) - attempts[0].began)
        return taken / (last - first)


def _calls(task: TaskSample) -> list[Call]:
    found: dict[int, list[AttemptRecord]] = {}
    for record in sorted(task.records, key=lambda record: record.began):
        found.setdefault(record.call, []).append(record)
    return [tuple(attempts) for attempts in found.values()]


def _end(call: Call) -> float:
    return call[-1].began + call[-1].seconds


# Ranges.


def total(values: Sequence[float], number: float, known: int = 0, unseen: float = 0.0) -> Estimate:
    """The sum of so many values that are like these.

    Args:
        known: how many of them are these.
        unseen: what a value may be, at most, that is as none of these; the largest one unless given.
    """
    n, rest = len(values), max(0.0, number - known)
    mean, deviation = statistics.fmean(values), statistics.stdev(values) if n > 1 else 0.0
    error = Z * deviation * math.sqrt(rest + rest * rest / n)
    # A few values much larger than the others: a sample has more often too few of them than too many (Hall).
    skew = statistics.fmean([((one - mean) / deviation) ** 3 for one in values]) if deviation else 0.0
    shift = deviation * rest * skew * (2 * Z * Z + 1) / (6 * n)
    # Values that a sample has none of may be among the others, so equal ones have a range too.
    missed = (1 - MISSED ** (1 / n)) * rest
    low = rest * mean - max(error - shift, missed * mean)
    high = rest * mean + max(error + shift, missed * max(unseen, *values))
    return Estimate(known * mean + max(0.0, low), number * mean, known * mean + high)


def share_of(found: float, n: int) -> Estimate:
    """The share of something of which a sample has so many (Wilson)."""
    square = Z * Z
    middle, half = (found + square / 2), Z * math.sqrt(max(0.0, found * (n - found) / n) + square / 4)
    low, high = (middle - half) / (n + square), (middle + half) / (n + square)
    return Estimate(max(0.0, low) if found else 0.0, found / n, min(1.0, high) if found < n else 1.0)


def quantile(ordered: Sequence[float], at: float) -> Estimate:
    """A quantile of all values, by a sample in its order; at most the largest one of it."""
    n = len(ordered)
    spread = Z * math.sqrt(n * at * (1 - at))
    places = (at * n - spread - 0.5, at * (n - 1), at * n + spread + 0.5)
    return Estimate(*(ordered[max(0, min(n - 1, int(place)))] for place in places))


def longest_of(ordered: Sequence[float], number: float) -> float:
    """The largest of so many values that are like these, which are in their order: the mean of it."""
    n = len(ordered)
    return math.fsum(one * ((i / n) ** number - ((i - 1) / n) ** number) for i, one in enumerate(ordered, 1))


# The job.


def forecast(options: Options, sample: Sample, job: Job) -> Forecast:
    """The whole job with these options."""
    fewest, most = job.unsure
    told = _forecast(options, sample, job)
    if fewest == most:
        return told
    least, worst = (_forecast(options, sample, job._replace(called=job.called * one)) for one in job.unsure)
    none = Estimate(0.0, 0.0, 0.0)

    def spanned(figure: Callable[[Forecast], Estimate]) -> Estimate:
        few, likely, many = map(figure, (least, told, worst))
        return Estimate(min(few.low, likely.low), likely.likely, max(likely.high, many.high))

    return Forecast(
        spanned(lambda one: one.seconds),
        told.calls,
        spanned(lambda one: one.attempts),
        spanned(lambda one: one.refused),
        spanned(lambda one: one.failures),
        {unit: spanned(lambda one, unit=unit: one.spent.get(unit, none)) for unit in told.spent},  # type: ignore[misc]
        told.limited_by,
    )


def _forecast(options: Options, sample: Sample, job: Job) -> Forecast:
    calls, rows = job.calls, sum(job.partitions)
    nothing = Estimate(0.0, 0.0, 0.0)
    if not (calls and sample.calls):
        start = Estimate(0.0, job.startup, 2 * job.startup + START)
        who = "no row of the sample needs a call" if rows else "no row needs a call"
        return Forecast(start, 0, nothing, nothing, nothing, {}, who)
    bounds = [_flow(options, sample, job), *_limits(options, sample, job)]
    if (taken := sample.taken_by_the_service) is not None:
        # It may take more: while refused calls wait, it may have saved up as much as it can.
        slowest, fastest = calls / taken, max(one.seconds.likely for one in bounds)
        likely = math.sqrt(slowest * fastest)
        bounds.append(_Bound(Estimate(0.0, likely, PAUSES * slowest), "what the service takes before it refuses calls"))
    # With a store the job makes the calls of the sample no more.
    known = 0 if options.store is None else min(len(sample.calls), int(calls))
    again = sample.failed if options.store is not None and options.store.error_ttl is None else []

    def of_all(figure: Callable[[Call], float], unseen: float = 0.0) -> Estimate:
        found = total([figure(call) for call in sample.calls], calls, known, unseen)
        return found._replace(high=found.high + math.fsum(map(figure, again)))

    attempts, refused = of_all(len), of_all(lambda call: sum(one.is_refused for one in call), 1.0)
    units = dict.fromkeys(unit for call in sample.calls for one in call for unit in one.spent)
    return Forecast(
        Estimate(
            max(one.seconds.low for one in bounds) * (1 - UNSURE) + 0.5 * job.startup,
            max(one.seconds.likely for one in bounds) + job.startup,
            max(one.seconds.high for one in bounds) * (1 + UNSURE) + 1.5 * job.startup + START,
        ),
        round(calls),
        attempts._replace(low=max(calls, attempts.low)),
        refused,
        sample.failures(calls, rows, known, len(again)),
        {unit: of_all(functools.partial(cost_of, unit=unit)) for unit in units},
        max(bounds, key=lambda one: one.seconds.likely).what,
    )


class _Bound(NamedTuple):
    seconds: Estimate
    what: str


def _flow(options: Options, sample: Sample, job: Job) -> _Bound:
    """As long as the calls take, with so many in flight."""
    parts, lives = job.longest, sample.lives
    in_flight = job.in_flight(options)
    each = max(1, in_flight // job.running)  # of a task
    low, likely, high = (one / job.calls for one in total(sample.work, job.calls))
    # Where something else keeps calls from beginning, its bound says how long that takes.
    is_free = sample.taken_by_the_service is None and not paces_of(options)
    slot_seconds, ended = sample.slot_seconds if is_free else (0.0, 0)
    if slot_seconds > LONGER * likely:
        likely = slot_seconds
    high = max(high, likely, slot_seconds * (1 + Z * variation(sample.work) / math.sqrt(max(1, ended))))
    # With more in flight than the sample had, the service may take no more calls in a second than it did.
    high *= max(1.0, in_flight / max(1, sample.in_flight))
    least = each
    if isinstance(options.capacity, AdaptiveCapacity):  # it may find that half is better
        least = max(options.capacity.minimum, each // 2)

    def spent(work: float, slots: int, wait: float) -> float:
        return math.fsum(max(1.0, calls / slots) * work + wait for calls in parts)

    waits = [max(0.0, longest_of(lives, min(each, calls)) - likely) for calls in parts]
    lower = max(spent(low, each, 0.0), low * job.calls / in_flight)
    upper = spent(high, least, lives[-1] + PER_TASK)
    if options.output_mode is OutputMode.ORDERED and options.queue_size is not None:
        # A slow row holds up the others: at worst all of a full queue end before the next one begins.
        held = max(1, options.queue_size // (options.batch_size or 1))
        upper = max(upper, math.fsum(max(1.0, calls / held) * (high * held / each + lives[-1]) for calls in parts))
    what = f"{things(in_flight, 'call')} in flight"
    if all(calls <= each for calls in parts):
        what += ", all of a task"
    elif options.slots * job.running <= options.calls_of_job:
        what += f": capacity x tasks = {options.slots} x {job.running}"
    return _Bound(Estimate(lower, spent(likely, each, statistics.fmean(waits)), upper), what)


def variation(values: Sequence[float]) -> float:
    mean = statistics.fmean(values)
    return statistics.pstdev(values) / mean if mean else 0.0


def _limits(options: Options, sample: Sample, job: Job) -> Iterator[_Bound]:
    """As long as each limit takes until all attempts have begun."""
    for place, pace in paces_of(options):
        costs = [
            math.fsum(one.costs[place] * (one.seconds if pace.is_held else 1.0) for one in call)
            for call in (sample.steady if pace.is_held else sample.calls)
        ]
        share = job.commonest.get(place, 1.0)
        if pace.is_of_task:
            share *= sum(job.longest) / job.calls
        needed = zip(total(costs, job.calls), pace.seconds, strict=True)
        low, likely, high = (max(0.0, share * cost - pace.saved) * each for cost, each in needed)
        if pace.is_settled:  # what is given back is not known
            low = 0.0
        yield _Bound(Estimate(low, likely, high * LATE_PERMITS + sample.lives[-1]), pace.label)


def paces_of(options: Options) -> list[tuple[int, Pace]]:
    """How fast limits let calls begin, each with the place of what a call costs there."""
    return [(first + pace.place, pace) for limit, first in limits_of(options) for pace in limit.paces]


def cost_of(call: Call, unit: str) -> float:
    """What a call did cost, with all its attempts."""
    return math.fsum(one.spent.get(unit, 0.0) for one in call)
