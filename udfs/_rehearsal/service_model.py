"""What a sample of calls shows of their service: how long they take, how they fail, and how many it takes."""

from __future__ import annotations

import dataclasses
import math
import random
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from .._engine.calls.recorder import AttemptRecord

LEAST_CALLS = 8  # to compare calls of two kinds
LONGER, SURE = 1.12, 3.0  # so much longer are calls of a busy service, by so many standard errors
MISTAKEN = 0.2  # of the refusals
SHORT = 0.5  # seconds of calls, which do not show what a service takes for long
MOST_FITTED = 1_000  # attempts, which are enough to see a limit
LEAST_KEPT = 30  # calls, beside those that opened the connections


class TaskSample(NamedTuple):
    """What one task of the sample did."""

    records: Sequence[AttemptRecord]
    rows: int  # that it read
    answered: int  # of these without a call, by the store
    failed: int  # of these for good
    size: int  # bytes of the results
    processor: float  # seconds, from the first attempt to the last
    errors: Mapping[str, int] = {}  # attempts that failed, by the type of the error
    examples: Mapping[str, str] = {}  # a message for each of these
    spent: Mapping[str, float] = {}  # of each budget with a name, by all runs and this one


Call = tuple[AttemptRecord, ...]  # its attempts


class TokenBucket(NamedTuple):
    """A limit of a service: calls in a second, and how many may begin at once."""

    rate: float
    saved: float

    def mistakes(self, attempts: Iterable[tuple[float, bool]]) -> int:
        """How many of these it would have refused or not, other than it was: when each began, and whether it was."""
        left, looked, found = self.saved, -math.inf, 0
        for began, was_refused in attempts:
            left, looked = min(self.saved, left + (began - looked) * self.rate), began
            found += (left < 1) != was_refused
            left -= left >= 1
        return found


@dataclasses.dataclass(frozen=True)
class ServiceModel:
    """A service that does to calls what the sample has seen."""

    calls: tuple[Call, ...]  # a call of the job is like one of these
    failures: float  # share of the rows that failed for good
    concurrency: float | None  # calls that it works on at a time, while others wait; None: on as many as came
    unsure: float  # the standard error of that, as a share of it
    # Limits that would have refused what it refused, one as likely as another; empty if it refused no call, or any.
    buckets: tuple[TokenBucket, ...]
    asked: float | None  # seconds for which a refused call is asked to wait; None: not said
    processor: float  # seconds of processor time for a call
    size: int  # bytes of the result of a call
    most: int  # calls that were in flight at a time, in all tasks
    shown: float | None = None  # calls in a second of a sample that was over too soon to know how many more it takes
    paid: tuple[Call, ...] = ()  # all calls of the sample, by which the costs of the job are told

    @classmethod
    def of(cls, light: Sequence[TaskSample], full: Sequence[TaskSample]) -> ServiceModel:
        """Of two parts of a sample: one with few calls in flight, and one with many."""
        few, many, samples = _settled(light), _settled(full), (*light, *full)
        everything = [call for sample in samples for call in _calls(sample)]
        calls = [*few, *many] if len(few) + len(many) >= LEAST_KEPT else everything
        concurrency = _concurrency(few, many, [one for sample in full for one in sample.records])
        if concurrency is not None:
            stretch = statistics.median(_served(few)) / statistics.median(_served(many))
            calls = [*few, *(tuple(one._replace(seconds=one.seconds * stretch) for one in call) for call in many)]
        buckets = _buckets(light, full)
        if buckets:
            taken = [kept for call in calls if (kept := tuple(one for one in call if not one.is_refused))]
            calls, buckets = (taken, buckets) if taken else (calls, ())
        made = sum(len(sample.records) for sample in full)
        busy = sum(sample.processor for sample in full)
        read = sum(sample.rows for sample in samples)
        rows = read - sum(sample.answered for sample in samples)
        failures = sum(sample.failed for sample in samples) / max(1, read)
        size = sum(sample.size for sample in samples)
        asked = [one.asked for sample in samples for one in sample.records if one.is_refused and one.asked]
        return cls(
            tuple(calls), failures, concurrency, 0.5 / math.sqrt(max(1, len(many))), buckets,
            statistics.median(asked) if asked else None,
            busy / made if made else 0.0, round(size / rows) if rows else 0, _most(full) or _most(light),
            _shown(full), tuple(everything),
        )  # fmt: skip

    def resampled(self, rng: random.Random, number: int) -> ServiceModel:
        """The same, as another sample of the same service might have shown it; `number`: how many there were before."""
        calls = tuple(rng.choices(self.calls, k=len(self.calls)))
        # The highest, the lowest, and then what is between.
        place = 1.0 - number if number < 2 else _spread(number - 1)
        buckets = (self.buckets[round(place * (len(self.buckets) - 1))],) if self.buckets else ()
        concurrency = self.concurrency and self.concurrency * max(0.5, rng.gauss(1.0, self.unsure))
        return dataclasses.replace(self, calls=calls, buckets=buckets, concurrency=concurrency)

    @property
    def bucket(self) -> TokenBucket | None:
        """The limit of the service; None if it refused no call, or any."""
        return self.buckets[len(self.buckets) // 2] if self.buckets else None

    @property
    def latencies(self) -> list[float]:
        """Of the attempts, in seconds, sorted."""
        return sorted(one.seconds for call in self.calls for one in call)


def cost(call: Call, unit: str) -> float:
    """What a call did cost, with all its attempts."""
    return math.fsum(one.spent.get(unit, 0.0) for one in call)


def _calls(sample: TaskSample) -> list[Call]:
    """The calls of a task, in the order in which they began."""
    found: dict[int, list[AttemptRecord]] = {}
    for record in sorted(sample.records, key=lambda record: record.began):
        found.setdefault(record.call, []).append(record)
    return [tuple(attempts) for attempts in found.values()]


def _settled(samples: Iterable[TaskSample]) -> list[Call]:
    """The calls that began after another one of their task had ended: the first ones open the connections."""
    found = []
    for sample in samples:
        ends = min((one.began + one.seconds for one in sample.records), default=math.inf)
        found += [call for call in _calls(sample) if call[0].began >= ends]
    return found


def _served(calls: Iterable[Call]) -> list[float]:
    """The seconds of attempts with a result, sorted."""
    return sorted(one.seconds for call in calls for one in call if one.error is None)


def _concurrency(few: Sequence[Call], many: Sequence[Call], attempts: Sequence[AttemptRecord]) -> float | None:
    """How many calls the service works on at a time, if those that had more beside them took longer.

    By Little's law: the attempts that it ends in a second, times what one takes alone.
    """
    alone, beside = _served(few), _served(many)
    if min(len(alone), len(beside)) < LEAST_CALLS:
        return None
    if statistics.median(beside) < LONGER * statistics.median(alone) or _rank_score(alone, beside) < SURE:
        return None
    begin, end = min(call[0].began for call in many), max(call[0].began for call in many)
    ended = sum(begin < one.began + one.seconds <= end for one in attempts)
    return max(1.0, ended / (end - begin) * statistics.fmean(alone)) if ended and end > begin else None


def _rank_score(few: Sequence[float], many: Sequence[float]) -> float:
    """By how many standard errors the second values, sorted as the first, are larger (Mann and Whitney)."""
    less = sum(bisect_left(few, other) + bisect_right(few, other) for other in many) / 2
    n, m = len(few), len(many)
    return (less - n * m / 2) / math.sqrt(n * m * (n + m + 1) / 12)


def _buckets(light: Sequence[TaskSample], full: Sequence[TaskSample]) -> tuple[TokenBucket, ...]:
    """The limits that would have refused the same calls, or nearly, by their rates."""
    few = [one for sample in light for one in sample.records]
    many = [one for sample in full for one in sample.records]
    shares = [sum(one.is_refused for one in part) / max(1, len(part)) for part in (few, many)]
    if not any(shares) or (shares[1] and shares[0] > shares[1] / 2):
        return ()  # none, or as the service pleases: then refusals are attempts like others
    attempts = sorted((one.began, one.is_refused) for one in (many if shares[1] else few))[:MOST_FITTED]
    taken = sum(not is_refused for _, is_refused in attempts)
    least = max(taken, 1) / max(attempts[-1][0] - attempts[0][0], 1e-3) / 4
    first = next((number for number, (_, is_refused) in enumerate(attempts) if is_refused), len(attempts))
    saves = sorted({1.0, *(max(1.0, (first + 1) * part / 20) for part in range(1, 21))})
    fits = [
        (bucket.mistakes(attempts), bucket)
        for bucket in (TokenBucket(least * 1.1**step, saved) for step in range(60) for saved in saves)
    ]
    # Its clock is not ours, and calls may overtake each other on their way.
    most = min(mistakes for mistakes, _ in fits) + max(2, MISTAKEN * sum(is_refused for _, is_refused in attempts))
    return tuple(sorted(bucket for mistakes, bucket in fits if mistakes <= most))


def _spread(number: int) -> float:
    """Places from 0 to 1 that are far from those before: 1/2, 1/4, 3/4, 1/8, ... (van der Corput)."""
    digits = f"{number:b}"
    return int(digits[::-1], 2) / float(2 ** len(digits))


def _shown(samples: Sequence[TaskSample]) -> float | None:
    """How many calls these made in a second, if they were over before it is known whether that lasts."""
    spans = []
    for sample in samples:
        if sample.records:
            ends = [one.began + one.seconds for one in sample.records]
            spans.append((len(ends), max(ends) - min(one.began for one in sample.records)))
    if not spans or max(seconds for _, seconds in spans) > SHORT:
        return None
    return sum(calls / max(seconds, 1e-4) for calls, seconds in spans)


def _most(samples: Iterable[TaskSample]) -> int:
    return sum(max((one.in_flight for one in sample.records), default=0) for sample in samples)
