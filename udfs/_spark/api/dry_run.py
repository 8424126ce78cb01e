"""dry_run: the calls that a query would make, without making them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, get_args

from ..._errors.checks import is_number, optional, seconds
from ..._errors.exceptions import OptionError
from ..._errors.safe import safe_repr
from ..._observe.planned_calls import Bounds, Reason, RowCosts, expected_seconds
from ..._observe.reports.dry_run import DryRun, Mention, scaled
from ..._stores.local import LocalFolder
from ..dry_run.functions import PlannedFunction
from ..dry_run.plan import CallSite, Counting, QueryPlan
from .stream import AsyncStream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


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
    that it is run, while Spark keeps what was persisted. Retries and tasks that run again come on top.
    `at_most` is None where the plan does not say; the reasons tell why. With a store, `calls.expected` says how many
    calls to expect while the store is empty, and `at_most` is a call for each row.

    An action that does not read all of `df` may make fewer calls: `df.count()` drops results that nothing reads (give
    `df.groupBy().count()`); `df.show()`, `df.first()`, `df.take(n)` and `df.tail(n)` stop early.

    Args:
        df: the query; classic Spark, not streaming.
        latency: seconds that a call takes, to say how long the calls take. Without it the report has a formula. Where
            the `cost` of a rate limit is a function, it is evaluated over the rows, which are read once more for it.
        price: of a call, in any currency.
        counting: "exact" counts rows, and distinct arguments in a shuffle of their own; "approximate" counts rows,
            and distinct arguments with `approx_count_distinct`, an error of about 5%; "estimate" runs nothing:
            rows are Spark's estimate, and distinct arguments unknown.

    Returns:
        Plain data; `print` shows it as text. `help(asyncudf.DryRun)` describes the fields.

    Raises:
        OptionError: a streaming DataFrame, one of Spark Connect, or a value that cannot work.
    """
    waits = optional(seconds)(latency, "latency")
    if price is not None and not (is_number(price) and price >= 0):
        raise OptionError(f"price must be a number of at least 0, what one call costs, not {safe_repr(price)}")
    price = None if price is None else float(price)
    if counting not in get_args(Counting):
        raise OptionError(f"counting must be one of {str(get_args(Counting))[1:-1]}, not {safe_repr(counting)}")
    frame: Any = df.to_df() if isinstance(df, AsyncStream) else df
    if not hasattr(type(frame), "mapInArrow"):
        raise OptionError(f"dry_run takes a DataFrame or an AsyncStream, not {safe_repr(df)}")
    plan = QueryPlan(frame, counting, with_costs=waits is not None)
    sites = plan.call_sites()
    seen = [site for site in sites if site.function.entry_point != "hidden"]
    labels = _labels([site.function for site in seen])
    uses = Counter(site.use for site in seen)
    earlier: dict[str, int] = {}  # how many distinct arguments the mentions before have passed to each function
    mentions = []
    for site, label in zip(seen, labels, strict=True):
        calls = _calls(site, earlier.get(label, 0), plan.executors)
        mentions.append(_mention(site, label, calls, uses[site.use] > 1, waits, price))
        earlier[label] = max(earlier.get(label, 0), site.distinct or 0)
    return DryRun(
        mentions=tuple(mentions),
        latency=waits,
        price=price,
        counting=counting,
        ambiguous=tuple(sorted({site.function.name for site, label in zip(seen, labels, strict=True)} - {*labels})),
        is_hidden=len(seen) < len(sites),
    )


def _calls(site: CallSite, earlier: int, executors: int) -> Bounds[int]:
    """How many calls a site makes.

    Args:
        earlier: how many distinct arguments another site passes to the function. They may be the same ones, whose
            results the store then has.
        executors: among which the tasks run. Each may have a store of its own.
    """
    function, calls = site.function, site.rows * site.evaluations
    store = None if function.options is None else function.options.store
    if store is None and not function.skips_nulls:
        return Bounds(math.ceil(calls.at_least / function.rows_per_call), calls.at_most)
    if store is None or site.distinct is None or calls.at_most == 0:
        return Bounds(0, calls.at_most)
    is_local = isinstance(getattr(store, "location", None), LocalFolder)
    most = site.distinct * (executors if is_local else 1)
    most = most if calls.at_most is None else min(most, calls.at_most)
    # With `key=` several arguments may have one result. Of rows with several arguments, many may have a NULL.
    may_be_fewer = store.key is not None or (function.skips_nulls and len(site.columns) > 1)
    new = 0 if may_be_fewer or site.evaluations.at_least == 0 else max(0, site.distinct - earlier)
    return Bounds(0, calls.at_most, Bounds(min(math.ceil(new / function.rows_per_call), most), most))


def _mention(
    site: CallSite, label: str, calls: Bounds[int], is_copied: bool, latency: float | None, price: float | None
) -> Mention:
    function, options = site.function, site.function.options
    has_store = options is not None and options.store is not None
    fewer: dict[Reason, bool] = {
        "batched": function.rows_per_call > 1,
        "nulls": function.skips_nulls,
        "stored": has_store,
    }
    reasons: list[Reason] = [*site.reasons, *(reason for reason, is_so in fewer.items() if is_so)]

    return Mention(
        function=label,
        entry_point=function.entry_point,
        columns=site.columns,
        rows=site.rows,
        evaluations=site.evaluations,
        calls=calls,
        distinct=site.distinct,
        has_store=has_store,
        rows_per_call=function.rows_per_call,
        capacity=None if options is None else options.slots,
        job_capacity=None if options is None else options.job_capacity,
        has_rate_limit=options is not None and bool(options.rate_limit),
        costs=site.costs,
        tasks=site.tasks,
        waves=_duration(calls, site, 1.0, with_rate_limit=False),
        seconds=_duration(calls, site, latency),
        cost=None if price is None else scaled(calls, price),
        reasons=("copied", *reasons) if is_copied else tuple(reasons),
    )


def _duration(
    calls: Bounds[int], site: CallSite, latency: float | None, *, with_rate_limit: bool = True
) -> Bounds[float] | None:
    """How long the calls of all evaluations take, one evaluation after the other; None if a figure is missing."""
    options = site.function.options
    if latency is None or options is None:
        return None
    limits, costs = options.rate_limit if with_rate_limit else (), site.costs or RowCosts()
    capacity, batch = min(options.slots, (options.job_capacity or math.inf) / site.tasks), site.function.rows_per_call

    def takes(number: int | None, times: int | None) -> float | None:
        if not number or not times:
            return None if number is None or times is None else 0.0
        each = number / times
        begun = max(
            (limit.seconds_for(each, site.tasks, costs.of_a_call(n, each, batch)) for n, limit in enumerate(limits)),
            default=0.0,
        )
        return times * expected_seconds(each, latency, capacity, site.tasks, until_begun=begun)

    def takes_at_most(number: int | None, times: int | None) -> float | None:
        is_unknown = limits and costs.left_out is not None and number != 0  # a limit may take any time
        return None if is_unknown else takes(number, times)

    at_least = takes(calls.at_least, site.evaluations.at_least) or 0.0
    at_most, expected = takes_at_most(calls.at_most, site.evaluations.at_most), calls.expected
    if expected is None:
        return Bounds(at_least, at_most)
    # After the first evaluation the store has the results.
    return Bounds(at_least, at_most, Bounds(takes(expected.at_least, 1) or 0.0, takes_at_most(expected.at_most, 1)))


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
