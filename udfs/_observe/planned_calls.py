"""What a dry run says about a query: bounds of its calls, the reasons for them, and how long the calls take."""

from __future__ import annotations

import dataclasses
from typing import Generic, Literal, TypeVar

N = TypeVar("N", int, float)

Reason = Literal[
    "copied", "sorted", "multiplied", "reread", "replanned", "limited", "dropped", "unknown", "operators", "results",
    "uncounted", "cached", "loaded", "batched", "nulls", "stored",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Bounds(Generic[N]):
    """At least and at most so many.

    Attributes:
        at_least: the fewest.
        at_most: the most; None where only a run of the query can show it.
        expected: narrower bounds of what to expect while the stores are empty; None without a store, or where the
            distinct arguments are not known.
    """

    at_least: N
    at_most: N | None
    expected: Bounds[N] | None = None

    @property
    def is_exact(self) -> bool:
        """Whether both bounds are the same number."""
        return self.at_least == self.at_most

    def __add__(self, other: Bounds[N]) -> Bounds[N]:
        at_most = None if self.at_most is None or other.at_most is None else self.at_most + other.at_most
        is_expected = self.expected is not None or other.expected is not None
        expected = (self.expected or self) + (other.expected or other) if is_expected else None
        return Bounds(self.at_least + other.at_least, at_most, expected)

    def __mul__(self, other: Bounds[N]) -> Bounds[N]:
        most = (self.at_most, other.at_most)
        at_most = 0 if 0 in most else None if None in most else self.at_most * other.at_most  # type: ignore[operator]
        return Bounds(self.at_least * other.at_least, at_most)

    def __or__(self, other: Bounds[N]) -> Bounds[N]:
        """The bounds if it is not known which of the two holds."""
        most = [one.at_most for one in (self, other) if one.at_most is not None]
        return Bounds(min(self.at_least, other.at_least), max(most) if len(most) == 2 else None)


@dataclasses.dataclass(frozen=True)
class RowCosts:
    """What the `cost` functions of rate limits say of the rows of one evaluation.

    Attributes:
        permits: of all rows together, for each rate limit; only those of a `cost` function mean something.
        rows: whose costs these are.
        failed: rows for which a function has failed; they fail without a call.
        error: of the first of them.
        left_out: why the costs are not known; None if they are.
    """

    permits: tuple[float, ...] = ()
    rows: int = 0
    failed: int = 0
    error: str | None = None
    left_out: str | None = None

    def of_a_call(self, limit: int, calls: float, rows_per_call: int) -> float:
        """The permits of a call in the mean, if so many calls of at most so many rows are made."""
        rows = min(self.rows, calls * rows_per_call)
        return self.permits[limit] / self.rows * rows / calls if calls and self.rows else 0.0


def expected_seconds(calls: float, latency: float, capacity: float, tasks: int, *, until_begun: float = 0.0) -> float:
    """How long so many calls take, if all tasks make equally many.

    Args:
        latency: seconds for a call.
        capacity: calls in flight in a task.
        tasks: that run at a time.
        until_begun: seconds before which the last of them does not begin, where rate limits hold it back.

    >>> expected_seconds(10_000, latency=0.05, capacity=100, tasks=4)
    1.25
    >>> expected_seconds(10_000, latency=0.05, capacity=100, tasks=4, until_begun=99.98)
    100.03
    """
    if not calls:
        return 0.0
    in_flight = max(1.0, calls / (capacity * tasks)) * latency
    return max(in_flight, until_begun + latency)
