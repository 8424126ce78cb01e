"""Latencies in few numbers: quantiles with a relative error of 1%, over calls, tasks and jobs."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

RELATIVE_ERROR = 0.01  # of each quantile
# Between the bounds of a bucket, as in DDSketch (Masson, Rim, Lee, 2019).
_RATIO = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_PER_LOG = 1 / math.log2(_RATIO)  # of 2: to ask for that logarithm costs a third of asking for the natural one
_LEAST = 1e-8  # seconds, added to each: the logarithm of none is none; of a microsecond it is the 1%
PLACED_TOGETHER = 10_000  # latencies that have gathered


class LatencySketch:
    """How many calls took how long, in buckets that grow by 2%.

    Sketches of parts add up to the sketch of the whole, in any order, however calls were spread over the parts.

    >>> sketch = LatencySketch()
    >>> sketch.add([0.1] * 98 + [2.0, 3.0])
    >>> round(sketch.quantile(0.5), 2), round(sketch.quantile(0.99), 1), sketch.count
    (0.1, 2.0, 100)
    """

    # Twenty buckets from 10 to 15 ms, 2,000 from a nanosecond to a year: so no bound on their number is needed.
    #
    # Many latencies are put into buckets together: sorted, those of a bucket stand side by side, and one logarithm and
    # one search do for all of them. To sort floats costs less than the logarithm of each.
    #
    # _new: latencies that are not in the rest yet; fewer than PLACED_TOGETHER between two calls
    # _count == sum of _buckets; _shortest <= _longest, both exact

    __slots__ = ("_buckets", "_count", "_longest", "_new", "_seconds", "_shortest")

    def __init__(self) -> None:
        self._new: list[float] = []
        self._buckets: defaultdict[int, int] = defaultdict(int)
        self._count = 0
        self._seconds = 0.0
        self._shortest = math.inf
        self._longest = 0.0

    def add(self, latencies: Sequence[float]) -> None:
        """Count calls that took so many seconds each; less than none, by the rounding of a clock, is none."""
        self._new += latencies
        if len(self._new) >= PLACED_TOGETHER:
            self._placed()

    def _placed(self) -> LatencySketch:
        """This sketch, with all latencies in their buckets."""
        if not self._new:
            return self
        ordered, self._new = self._new, []
        ordered.sort()
        if ordered[0] < 0:
            ordered = [max(0.0, latency) for latency in ordered]
        self._count += (count := len(ordered))
        self._seconds += sum(ordered)
        self._shortest = min(self._shortest, ordered[0])
        self._longest = max(self._longest, ordered[-1])
        buckets, log, power, ceil, start = self._buckets, math.log2, math.exp2, math.ceil, 0
        while start < count:
            bucket = ceil(log(ordered[start] + _LEAST) * _PER_LOG)
            longest, end = power(bucket / _PER_LOG) - _LEAST, start + 1
            if end < count and ordered[end] <= longest:
                end = bisect_right(ordered, longest, end)
            buckets[bucket] += end - start
            start = end
        return self

    def merge(self, other: LatencySketch) -> LatencySketch:
        """Add what another sketch has seen; gives this one."""
        self._placed()
        for bucket, count in other._placed()._buckets.items():
            self._buckets[bucket] += count
        self._count += other._count
        self._seconds += other._seconds
        self._shortest = min(self._shortest, other._shortest)
        self._longest = max(self._longest, other._longest)
        return self

    @property
    def count(self) -> int:
        return self._placed()._count

    @property
    def seconds(self) -> float:
        """The seconds of all calls together."""
        return self._placed()._seconds

    @property
    def shortest(self) -> float:
        return self._placed()._shortest

    @property
    def longest(self) -> float:
        return self._placed()._longest

    @property
    def mean(self) -> float | None:
        """Seconds, exact; None without calls."""
        return self.seconds / self.count if self.count else None

    def quantile(self, share: float) -> float | None:
        """The latency that this share of the calls did not exceed, in seconds; None without calls."""
        rank, seen = share * (self.count - 1), 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen > rank:
                return self._middle(bucket)
        return None

    def histogram(self) -> list[tuple[float, int]]:
        """The buckets, from short to long: a latency that stands for all in it, and how many calls."""
        return [(self._middle(bucket), count) for bucket, count in sorted(self._placed()._buckets.items())]

    def _middle(self, bucket: int) -> float:
        """What is at most `RELATIVE_ERROR` away from everything in the bucket, and never outside of what was seen."""
        middle = 2 * 2 ** (bucket / _PER_LOG) / (_RATIO + 1) - _LEAST
        return min(max(middle, self._shortest), self._longest)

    def to_plain(self) -> dict[str, Any]:
        """As plain values, for JSON; `from_plain` makes the same sketch of them."""
        extremes = [self.shortest, self.longest] if self.count else []
        buckets = {str(bucket): count for bucket, count in sorted(self._buckets.items())}
        return {"buckets": buckets, "seconds": self.seconds, "extremes": extremes}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> LatencySketch:
        sketch = cls()
        sketch._buckets.update({int(bucket): count for bucket, count in plain["buckets"].items()})
        sketch._count = sum(sketch._buckets.values())
        sketch._seconds = plain["seconds"]
        if sketch._count:
            sketch._shortest, sketch._longest = plain["extremes"]
        return sketch
