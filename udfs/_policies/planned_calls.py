"""How often a query would call its functions, worked out from its plan: rows that reach them, and how often each."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

__all__ = (
    "RESAMPLED",
    "Bounds",
    "Flow",
    "PlanNode",
    "PlannedCalls",
    "Reason",
    "expected_seconds",
    "planned_calls",
)

N = TypeVar("N", int, float)


@dataclasses.dataclass(frozen=True)
class Bounds(Generic[N]):
    """At least so many, and at most; `at_most` is None where nobody can say before the query has run."""

    at_least: N
    at_most: N | None

    @property
    def is_exact(self) -> bool:
        """Whether both are one number."""
        return self.at_least == self.at_most


def _plus(one: Bounds[int], other: Bounds[int]) -> Bounds[int]:
    unknown = one.at_most is None or other.at_most is None
    return Bounds(one.at_least + other.at_least, None if unknown else (one.at_most or 0) + (other.at_most or 0))


def _times(one: Bounds[int], other: Bounds[int]) -> Bounds[int]:
    at_most = None if one.at_most is None or other.at_most is None else one.at_most * other.at_most
    return Bounds(one.at_least * other.at_least, 0 if 0 in (one.at_most, other.at_most) else at_most)


NONE, ONCE, UNKNOWN = Bounds[int](0, 0), Bounds[int](1, 1), Bounds[int](0, None)
RESAMPLED = 3  # times the mean: of larger partitions Spark's range partitioner takes a second sample


class Flow(enum.Enum):
    """How many rows a node of a plan gives for those that it gets."""

    SAME = "same"
    FEWER = "fewer"
    SUM = "sum"  # of all its children
    UNKNOWN = "unknown"


class Reason(enum.Enum):
    """Why a function is called as often as it is, or why that cannot be told."""

    COPIED = "copied"
    SORTED = "sorted"
    SKEWED = "skewed"
    MULTIPLIED = "multiplied"
    LIMITED = "limited"
    OPERATORS = "operators"
    RESULTS = "results"
    UNCOUNTED = "uncounted"
    CACHED = "cached"
    LOADED = "loaded"
    DROPPED = "dropped"
    BATCHED = "batched"
    NULLS = "nulls"
    STORED = "stored"


@dataclasses.dataclass(frozen=True, eq=False)
class PlanNode:
    """An operator of a physical plan, with what matters for the number of calls.

    Args:
        flow: how its rows follow from those of its children.
        calls: the functions that it calls with the rows of its only child; plain data of the reader of plans.
        subqueries: plans that are run once for it.
        limit: how many rows it lets pass at most; then what is below it need not go on.
        exchange: what is told apart by this key is evaluated once, and kept until the query has ended: a shuffle, a
            broadcast. None for what is evaluated as often as it is read.
        samples: an exchange that reads a sample of what is below it first, by evaluating it.
        crosses: each partition of one child is read with each partition of the other.
        may_drop: Spark may end a child early when it sees, as the query runs, that another one has no rows.
        is_cache: what Spark was asked to keep.
        known_rows: of a cache that is there.
        is_hidden: it may call functions that cannot be seen.
        partitions: of its rows; 0 if Spark does not say.
        handle: leads the one who counts rows back to the plan.
    """

    flow: Flow
    children: tuple[PlanNode, ...] = ()
    calls: tuple[Any, ...] = ()
    subqueries: tuple[PlanNode, ...] = ()
    limit: int | None = None
    exchange: Any = None
    samples: bool = False
    crosses: bool = False
    may_drop: bool = False
    is_cache: bool = False
    known_rows: int | None = None
    is_hidden: bool = False
    partitions: int = 0
    handle: Any = None

    @property
    def inner(self) -> tuple[PlanNode, ...]:
        """The plans that it is made of."""
        return (*self.children, *self.subqueries)

    def line(self) -> Iterator[PlanNode]:
        """The nodes below it, as long as each has one child: their rows come from nowhere else."""
        node = self
        while len(node.children) == 1:
            (node,) = node.children
            yield node

    @property
    def may_call(self) -> bool:
        """Whether running it may call a function."""
        return bool(self.calls) or self.is_hidden or any(node.may_call for node in self.inner)

    @property
    def hides(self) -> bool:
        """Whether it may call functions that cannot be seen."""
        return self.is_hidden or any(node.hides for node in self.inner)


@dataclasses.dataclass(frozen=True, eq=False)
class PlannedCalls:
    """A function at one place of a plan.

    Args:
        rows: that reach it when it is evaluated once.
        evaluations: how often that is done.
        rows_in_all: the rows of all evaluations.
    """

    node: PlanNode
    call: Any
    rows: Bounds[int]
    evaluations: Bounds[int]
    rows_in_all: Bounds[int]
    reasons: tuple[Reason, ...]


@dataclasses.dataclass(frozen=True)
class _State:
    """What the nodes above say: how often a node is evaluated, and how many rows they need of it (None: all)."""

    times: Bounds[int] = ONCE
    needed: int | None = None
    may_be_skewed: bool = False  # the partitions above a node may be larger than its own
    reasons: tuple[Reason, ...] = ()

    def then(self, reason: Reason, **changes: Any) -> _State:
        return dataclasses.replace(self, reasons=(*self.reasons, reason), **changes)


def planned_calls(
    root: PlanNode, count: Callable[[PlanNode], int | None], is_even: Callable[[PlanNode], bool] = lambda node: False
) -> Iterator[PlannedCalls]:
    """Every place of a plan at which a function is called, from the top down.

    Args:
        count: the rows of a node that calls nothing; None if nobody knows.
        is_even: whether no partition of a node's rows has more than three times as many rows as the mean.
    """
    yield from _Walk(count, is_even).visit(root, _State())


class _Walk:
    def __init__(self, count: Callable[[PlanNode], int | None], is_even: Callable[[PlanNode], bool]) -> None:
        self._count = count
        self._is_even = is_even
        self._rows: dict[PlanNode, Bounds[int]] = {}
        self._seen: set[Any] = set()

    def visit(self, node: PlanNode, state: _State) -> Iterator[PlannedCalls]:
        for subquery in node.subqueries:
            yield from self.visit(subquery, _State())
        if node.exchange is not None:
            if node.exchange in self._seen:
                return
            self._seen.add(node.exchange)
            is_dropped = Reason.DROPPED in state.reasons
            state = self._behind_exchange(node, state)
            state = state.then(Reason.DROPPED) if is_dropped else state
        if node.limit is not None:
            needed = node.limit if state.needed is None else min(node.limit, state.needed)
            state = state.then(Reason.LIMITED, needed=needed)
        elif state.needed is not None and node.flow not in (Flow.SAME, Flow.FEWER):
            state = dataclasses.replace(state, needed=0)  # a row that is needed may come from any row, or another child
        if node.flow is not Flow.SAME:
            state = dataclasses.replace(state, may_be_skewed=True)
        for call in node.calls:
            yield self._planned(node, call, state)
        for number, child in enumerate(node.children):
            inner = state.then(Reason.DROPPED) if node.may_drop else state
            if node.crosses:
                others = node.children[1 - number].partitions
                times = _times(state.times, Bounds(others or 1, others or None))
                inner = inner.then(Reason.MULTIPLIED, times=times)
            yield from self.visit(child, inner)

    def _behind_exchange(self, node: PlanNode, state: _State) -> _State:
        if node.is_cache:
            if node.known_rows is not None:
                return _State(NONE, reasons=(Reason.LOADED,))
            # A limit above it ends its evaluation as well, but never in the middle of a partition.
            needed = None if state.needed is None else 0
            reasons = (Reason.CACHED, *((Reason.LIMITED,) if needed is not None else ()))
            return _State(needed=needed, reasons=reasons)
        if not node.samples or node.partitions == 1:  # one range needs no borders
            return _State()
        parts = node.children[0].partitions if node.children else 0
        # Three partitions cannot have one of more than three times their mean.
        return _State(Bounds(2, 2 if 0 < parts <= RESAMPLED else 3), reasons=(Reason.SORTED,))

    def _planned(self, node: PlanNode, call: Any, state: _State) -> PlannedCalls:
        child, times, reasons = node.children[0], state.times, [*state.reasons]
        rows = self.rows(child, node)
        if Reason.SORTED in reasons and times == Bounds(2, 3):
            if not state.may_be_skewed and not child.may_call and self._is_even(node):
                times = Bounds(2, 2)
            else:
                reasons.append(Reason.SKEWED)
        in_all = _times(rows, times)
        if state.needed is not None:
            in_all = dataclasses.replace(in_all, at_least=min(in_all.at_least, state.needed))
        if not rows.is_exact:
            reasons.append(Reason.RESULTS if child.may_call else Reason.UNCOUNTED)
        return PlannedCalls(node, call, rows, times, in_all, tuple(dict.fromkeys(reasons)))

    def rows(self, node: PlanNode, reader: PlanNode | None = None) -> Bounds[int]:
        """How many rows a node gives; of one that calls nothing what has been counted for `reader`, or for itself."""
        if node not in self._rows:
            self._rows[node] = self._rows_of(node, reader)
        return self._rows[node]

    def _rows_of(self, node: PlanNode, reader: PlanNode | None) -> Bounds[int]:
        if node.known_rows is not None:
            return Bounds(node.known_rows, node.known_rows)
        if not node.may_call:
            counted = self._count(reader or node)
            return UNKNOWN if counted is None else Bounds(counted, counted)
        if node.flow is Flow.SUM:
            total = NONE
            for child in node.children:
                total = _plus(total, self.rows(child))
            return total
        if node.flow is Flow.UNKNOWN or len(node.children) != 1:
            return UNKNOWN
        below = self.rows(node.children[0], node if node.calls else None)
        if node.limit is not None:
            at_most = node.limit if below.at_most is None else min(node.limit, below.at_most)
            return Bounds(min(node.limit, below.at_least), at_most)
        # An aggregate of nothing is a row.
        return below if node.flow is Flow.SAME else Bounds(0, None if below.at_most is None else max(1, below.at_most))


def expected_seconds(calls: float, latency: float, capacity: float, tasks: int, *, until_begun: float = 0.0) -> float:
    """How long so many calls take, if all tasks have as many of them.

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
