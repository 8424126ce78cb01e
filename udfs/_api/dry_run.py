"""dry_run: the calls that a query would make, without making them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, get_args

from .._errors.exceptions import OptionError
from .._functions.signature import batch_rows
from .._policies.checks import is_number, optional, seconds
from .._policies.options import OnNullInput, Options
from .._policies.planned_calls import Bounds, Reason, expected_seconds
from .._reports.dry_run import DryRun, Mention, scaled
from .._spark.dry_run.functions import PlannedFunction
from .._spark.dry_run.plan import CallSite, Counting, QueryPlan
from .._text.safe import safe_repr
from .stream import AsyncStream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ("dry_run",)


def dry_run(
    df: DataFrame | AsyncStream,
    *,
    latency: float | timedelta | None = None,
    price: float | None = None,
    counting: Counting = "exact",
) -> DryRun:
    """What the next action on a DataFrame would call, and why; no async function is called for it.

    Spark plans the query as for `df.collect()` or `df.write`. The plan shows each site at which a function is called,
    after the optimizer has copied or dropped some, and how often it is evaluated. The rows that reach a site are
    counted by running what is below it: scans, joins, filters, other UDFs. (What was marked with `persist()` is kept
    from then on.) Where another async function is below, nothing is run, and calls have a lower and an upper bound.

    The bounds hold for a query that runs to its end, whose calls succeed at once and whose rows are the same each time
    that it is run, while Spark keeps what was persisted. Retries, hedges and tasks that run again come on top.
    `at_most` is None where the plan does not say; the reasons tell why.

    An action that does not read all of `df` may make fewer calls: `df.count()` drops results that nothing reads (give
    `df.groupBy().count()`); `df.show()`, `df.first()`, `df.take(n)` and `df.tail(n)` stop early.

    Args:
        df: the query; classic Spark, not streaming.
        latency: seconds that a call takes, to say how long the calls take. Without it the report has a formula.
        price: of a call, in any currency.
        counting: "exact" counts rows, and distinct arguments in a shuffle of their own; "approximate" counts rows,
            and distinct arguments with `approx_count_distinct`, an error of about 5%; "estimate" runs nothing:
            rows are Spark's estimate, and distinct arguments unknown.

    Returns:
        Plain data; `print` shows it as text.

    Raises:
        OptionError: a streaming DataFrame, one of Spark Connect, or a value that cannot work.
    """
    waits = optional(seconds)(latency, "latency")
    if price is not None and not (is_number(price) and price >= 0):
        raise OptionError(f"price must be a number of at least 0, what one call costs, not {safe_repr(price)}")
    if counting not in get_args(Counting):
        raise OptionError(f"counting must be one of {str(get_args(Counting))[1:-1]}, not {safe_repr(counting)}")
    frame: Any = df.to_df() if isinstance(df, AsyncStream) else df
    if not hasattr(type(frame), "mapInArrow"):
        raise OptionError(f"dry_run takes a DataFrame or an AsyncStream, not {safe_repr(df)}")
    sites = QueryPlan(frame, counting).call_sites()
    seen = [site for site in sites if site.function.entry_point != "hidden"]
    labels = _labels([site.function for site in seen])
    uses = Counter(site.use for site in seen)
    return DryRun(
        mentions=tuple(
            _mention(site, label, uses[site.use] > 1, waits, price) for site, label in zip(seen, labels, strict=True)
        ),
        latency=waits,
        price=price,
        counting=counting,
        ambiguous=tuple(sorted({site.function.name for site, label in zip(seen, labels, strict=True)} - {*labels})),
        is_hidden=len(seen) < len(sites),
    )


def _mention(site: CallSite, label: str, is_copied: bool, latency: float | None, price: float | None) -> Mention:
    plan = site.function.function_plan
    options = None if plan is None else plan.options
    calls = site.rows * site.evaluations
    batch = 1 if plan is None else batch_rows(plan.spec, plan.options)
    if batch > 1:
        calls = Bounds(math.ceil(calls.at_least / batch), calls.at_most)
    fewer: dict[Reason, bool] = {
        "batched": batch > 1,
        "nulls": options is not None and options.on_null_input is OnNullInput.NULL,
        "stored": options is not None and options.store is not None,
    }
    reasons: list[Reason] = [*site.reasons, *(reason for reason, is_so in fewer.items() if is_so)]
    if fewer["nulls"] or fewer["stored"]:
        calls = Bounds(0, calls.at_most)

    return Mention(
        function=label,
        entry_point=site.function.entry_point,
        columns=site.columns,
        rows=site.rows,
        evaluations=site.evaluations,
        calls=calls,
        distinct=site.distinct,
        has_store=fewer["stored"],
        rows_per_call=batch,
        capacity=None if options is None else options.slots,
        tasks=site.tasks,
        waves=_duration(calls, site, 1.0, options, is_limited=False),
        seconds=_duration(calls, site, latency, options),
        cost=None if price is None else scaled(calls, price),
        reasons=("copied", *reasons) if is_copied else tuple(reasons),
    )


def _duration(
    calls: Bounds[int], site: CallSite, latency: float | None, options: Options | None, *, is_limited: bool = True
) -> Bounds[float] | None:
    """How long the calls of all evaluations take, one evaluation after the other; with the limits of the options."""
    if latency is None or options is None:
        return None
    limits = options.rate_limit if is_limited else ()
    in_all = (is_limited and options.job_capacity) or math.inf
    capacity = min(options.slots, in_all / site.tasks)

    def takes(number: int | None, times: int | None) -> float | None:
        if not number or not times:
            return None if number is None or times is None else 0.0
        begun = max((limit.seconds_for(number / times, site.tasks) for limit in limits), default=0.0)
        return times * expected_seconds(number / times, latency, capacity, site.tasks, until_begun=begun)

    at_least = takes(calls.at_least, site.evaluations.at_least) or 0.0
    return Bounds(at_least, takes(calls.at_most, site.evaluations.at_most))


def _labels(functions: Sequence[PlannedFunction]) -> list[str]:
    """A name for each function that no other one of the query has: with its module, or a number."""
    specs = [None if one.function_plan is None else one.function_plan.spec for one in functions]
    names = [
        (one.name, one.name if spec is None else spec.full_name, spec and getattr(spec.function, "__code__", None))
        for one, spec in zip(functions, specs, strict=True)
    ]
    labels = []
    for name in names:
        same = [one for one in dict.fromkeys(names) if one[0] == name[0]]
        same_module = [one for one in same if one[1] == name[1]]
        label = name[0] if len(same) == 1 else name[1]
        labels.append(label if len(same_module) == 1 else f"{label} [{same_module.index(name) + 1}]")
    return labels
