"""dry_run: what a query would call, without calling it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .._errors.exceptions import OptionError
from .._functions.signature import batch_rows
from .._policies.checks import optional, seconds
from .._policies.numbers import is_number
from .._policies.options import OnNullInput, Options
from .._policies.planned_calls import Bounds, Flow, PlannedCalls, Reason, expected_seconds, planned_calls
from .._policies.rate_limit import RateLimit
from .._reports.dry_run import DryRun, Mention, scaled
from .._spark.planned_functions import PlannedFunction
from .._spark.query_plan import read_plan
from .._spark.row_counts import Counting, RowCounter
from .._text.safe import safe_repr
from .stream import AsyncStream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ("dry_run",)


COUNTINGS = ("exact", "approximate", "estimate")


def dry_run(
    df: DataFrame | AsyncStream,
    *,
    latency: float | timedelta | None = None,
    price: float | None = None,
    counting: Counting = "exact",
) -> DryRun:
    """What the next action on a DataFrame would call, and why; no async function is called for it.

    Spark plans the query as for `df.collect()` or `df.write`. The plan shows each place at which a function is called,
    after the optimizer has copied or dropped some, and what evaluates them twice. The rows that reach a place are
    counted by running what is below it: scans, joins, filters, other UDFs. (What was marked with `persist()` is kept
    from then on.) Where another async function is below, nothing is run, and calls have a lower and an upper bound.

    An action is planned anew and may need less: `df.count()` drops results that nobody reads, `df.show()` has a limit.
    For these give `df.groupBy().count()` and `df.limit(21)`.

    Args:
        df: the query; classic Spark, not streaming.
        latency: seconds that a call takes, to say how long the calls take. Without it the report has a formula.
        price: of a call, in any currency.
        counting: "exact" counts rows, and distinct arguments in a shuffle of their own; "approximate" counts rows,
            and distinct arguments with `approx_count_distinct`, an error of about 5%; "estimate" runs nothing:
            rows are Spark's estimate, and distinct arguments unknown.

    Returns:
        Plain data; `print` shows it as text. Calls are those that succeed at once: a retry, a task that is
        run again, a hedge come on top.

    Raises:
        OptionError: a streaming DataFrame, one of Spark Connect, or a value that cannot work.
    """
    waits = optional(seconds)(latency, "latency")
    if price is not None and not (is_number(price) and price >= 0):
        raise OptionError(f"price must be a number of at least 0, what one call costs, not {safe_repr(price)}")
    if counting not in COUNTINGS:
        raise OptionError(f"counting must be one of {', '.join(map(repr, COUNTINGS))}, not {safe_repr(counting)}")
    frame: Any = df.to_df() if isinstance(df, AsyncStream) else df
    if not hasattr(type(frame), "mapInArrow"):
        raise OptionError(f"dry_run takes a DataFrame or an AsyncStream, not {safe_repr(df)}")
    plan = read_plan(frame)
    counter = RowCounter(frame.sparkSession, counting)
    planned = list(planned_calls(plan, counter.rows, counter.is_even))
    labels = _labels([one.call for one in planned])
    uses = Counter(one.call.use for one in planned)
    groups: dict[tuple[str, Any], int] = {}
    mentions: list[Mention] = []
    distinct = _distinct(planned, counter)
    for one in planned:
        group = groups.setdefault((labels[one.call], one.call.over or one), len(groups))
        reasons = (Reason.COPIED, *one.reasons) if uses[one.call.use] > 1 else one.reasons
        mentions.append(
            _mention(
                one, labels[one.call], group, reasons, distinct[one], counter.tasks(one.node), waits, price, counting
            )
        )
    return DryRun(
        mentions=tuple(mentions),
        latency=waits,
        price=price,
        counting=counting,
        ambiguous=tuple(sorted({call.name for call, label in labels.items() if label != call.name})),
        is_hidden=plan.hides,
    )


def _mention(
    planned: PlannedCalls,
    label: str,
    group: int,
    reasons: tuple[Reason, ...],
    distinct: int | None,
    tasks: int,
    latency: float | None,
    price: float | None,
    counting: Counting,
) -> Mention:
    call, plan = planned.call, planned.call.function_plan
    rows = _through(call.gets, planned.rows)
    in_all = _through(call.gets, planned.rows_in_all)
    if rows != planned.rows:
        reasons = (*reasons, Reason.OPERATORS)
    has_store = plan is not None and plan.options.store is not None
    calls, batch = in_all, 1 if plan is None else batch_rows(plan.spec, plan.options)
    if batch > 1:
        calls, reasons = Bounds(math.ceil(in_all.at_least / batch), in_all.at_most), (*reasons, Reason.BATCHED)
    if plan is not None and plan.options.on_null_input is OnNullInput.NULL:
        calls, reasons = Bounds(0, calls.at_most), (*reasons, Reason.NULLS)
    if has_store:  # about so many distinct ones are no bound
        distinct_at_most = distinct if counting == "exact" else None
        at_most = min((most for most in (calls.at_most, distinct_at_most) if most is not None), default=None)
        calls, reasons = Bounds(0, at_most), (*reasons, Reason.STORED)
    capacity = None if plan is None else plan.options.slots

    def takes(latency: float | None, limits: Options | None = None) -> Bounds[float] | None:
        if latency is None or capacity is None:
            return None
        return _duration(calls, planned.evaluations, capacity, tasks, latency, limits)

    return Mention(
        function=label,
        entry_point=call.entry_point,
        columns=call.columns,
        rows=rows,
        evaluations=planned.evaluations,
        calls=calls,
        distinct=distinct,
        has_store=has_store,
        rows_per_call=batch,
        group=group,
        capacity=capacity,
        tasks=tasks,
        waves=takes(1.0),
        seconds=takes(latency, None if plan is None else plan.options),
        cost=None if price is None else scaled(calls, price),
        reasons=tuple(reason.value for reason in reasons),
    )


def _distinct(planned: Sequence[PlannedCalls], counter: RowCounter) -> dict[PlannedCalls, int | None]:
    """How many different arguments each gets, as far as that is known."""
    found: dict[PlannedCalls, int | None] = {}
    for one in reversed(planned):  # what is below first: those above it may ask for the same
        known = counter.distinct(one.node, one.call) if one.call.function_plan is not None else None
        if known is None and one.call.over is not None:
            below = set(one.node.line())
            same = [other for other in found if other.call.over == one.call.over and other.node in below]
            known = found[same[-1]] if same else None
        found[one] = known
    return found


def _through(flow: Flow, rows: Bounds[int]) -> Bounds[int]:
    """The rows that come through the operators of a chain that are before a function."""
    if flow is Flow.SAME:
        return rows
    return Bounds(0, rows.at_most if flow is Flow.FEWER else None)


def _duration(
    calls: Bounds[int], evaluations: Bounds[int], capacity: float, tasks: int, latency: float, options: Options | None
) -> Bounds[float]:
    """How long the calls of all evaluations take, one evaluation after the other; with the limits of the options."""
    limits: Sequence[RateLimit] = ()
    if options is not None:
        capacity, limits = min(capacity, (options.job_capacity or math.inf) / tasks), options.rate_limit

    def takes(number: int, times: int) -> float:
        if not times:
            return 0.0
        begun = max((limit.seconds_for(number / times, tasks) for limit in limits), default=0.0)
        return times * expected_seconds(number / times, latency, capacity, tasks, until_begun=begun)

    at_least = takes(calls.at_least, evaluations.at_least)
    if calls.at_most is None or evaluations.at_most is None:
        return Bounds(at_least, None)
    return Bounds(at_least, takes(calls.at_most, evaluations.at_most))


def _labels(calls: Sequence[PlannedFunction]) -> dict[PlannedFunction, str]:
    """A name for each function that no other one of the query has."""
    identities: dict[PlannedFunction, tuple[str, str, Any]] = {}
    for call in calls:
        spec = None if call.function_plan is None else call.function_plan.spec
        name = call.name if spec is None else spec.full_name
        identities[call] = (call.name, name, None if spec is None else getattr(spec.function, "__code__", None))
    different = list(dict.fromkeys(identities.values()))
    labels = {}
    for call, identity in identities.items():
        same_name = [one for one in different if one[0] == identity[0]]
        same_full_name = [one for one in same_name if one[1] == identity[1]]
        label = identity[0] if len(same_name) == 1 else identity[1]
        labels[call] = label if len(same_full_name) == 1 else f"{label} [{same_full_name.index(identity) + 1}]"
    return labels
