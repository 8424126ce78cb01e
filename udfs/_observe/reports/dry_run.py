"""The result of a dry run: plain data, and its text."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Iterator

from ..._errors.figures import NOTHING, count, number, seconds, things
from ..._errors.safe import one_line
from ..planned_calls import Bounds, Reason, RowCosts

WIDTH = 100

WHY: dict[Reason, str] = {
    "copied": "the plan has this mention several times: the optimizer has copied it, which deterministic=True allows, "
    "or the query uses the DataFrame more than once",
    "sorted": "Spark evaluates what is below a sort twice, as it samples it first to find the ranges, and partitions "
    "far larger than the mean a third time",
    "multiplied": "a join without a key evaluates this side again for each partition of the other side",
    "reread": "an outer join without an equality reads the side that is not broadcast twice; persist() that side first",
    "replanned": "adaptive execution plans joins again after the first stages have run: then a sort, a LIMIT or a "
    "second use of the rows may evaluate this mention more often than planned, or end it early",
    "limited": "a LIMIT ends the query early; calls that are in flight at that moment have been made",
    "dropped": "Spark does not read this side of a join to its end if the other side has no matching rows",
    "unknown": "above this mention is an operator or a function that is not asyncudf's: it may read its rows in part, "
    "or several times",
    "operators": "earlier operators of the chain decide how many rows reach this one",
    "results": "how many rows reach this mention depends on results of other async functions, or cannot be counted "
    "without calling them",
    "uncounted": "Spark does not know how many rows reach this mention",
    "cached": "persist() is above this mention: only the first action calls it, while Spark keeps the rows",
    "loaded": "Spark has the rows in its cache: calls are made only for rows that it has lost since",
    "batched": "a call takes many rows: at least as few calls as full batches make, at most one for each row",
    "nulls": "rows with a NULL argument make no call (on_null_input); they are not counted apart",
    "stored": "a stored result needs no call. While the store is empty, each distinct argument makes about one call: "
    "in each executor, if the executors do not share the store. At most, each row makes one call per evaluation, as "
    "two tasks may miss the same result at the same moment, and a store may fail or forget",
}
PERSIST = "; persist() before the sort, or a store, avoids the repeated calls"


@dataclasses.dataclass(frozen=True)
class Mention:
    """One place in Spark's plan that calls a function; `help(asyncudf.DryRun)` describes the fields."""

    function: str
    entry_point: str
    columns: tuple[str, ...]
    rows: Bounds[int]
    evaluations: Bounds[int]
    calls: Bounds[int]
    distinct: int | None
    has_store: bool
    rows_per_call: int
    capacity: int | None
    job_capacity: int | None
    has_rate_limit: bool
    tasks: int
    waves: Bounds[float] | None
    seconds: Bounds[float] | None
    cost: Bounds[float] | None
    reasons: tuple[Reason, ...]
    costs: RowCosts | None = None


@dataclasses.dataclass(frozen=True)
class DryRun:
    """The calls that a query would make; `print` shows them as text.

    `calls`, `seconds` and `cost` of the query and of each mention are bounds. `at_least` is the fewest, `at_most` the
    most, or None where only a run of the query can show it. `expected` is set for functions with a store: narrower
    bounds of what to expect while the store is empty. It is None if the distinct arguments are not known.

    Attributes:
        mentions: each place in the plan that calls a function. The place that runs last comes first.
        latency: seconds for a call, as given.
        price: the price of a call, as given.
        counting: how rows were counted: "exact", "approximate" or "estimate".
        ambiguous: names that several functions of the query share.
        is_hidden: whether the query has rows that may call functions out of sight: of `df.rdd`, of a checkpoint that
            is not written yet, or of a recursive query. Then `calls` is without these.

    Attributes of a mention:
        function: the function's name, with its module or a number if several functions of the query share the name.
        entry_point: "column", "operator", "table function"; "unknown" if the function could not be unpickled.
        columns: the names of the columns that the function reads; "..." for an expression.
        rows: bounds of the rows that reach the function in one evaluation.
        evaluations: bounds of how often Spark runs the plan below.
        calls: bounds of the calls that all evaluations make.
        distinct: how many distinct arguments reach the function; None if unknown.
        has_store: whether the function has a `store=`; then equal arguments need fewer calls.
        rows_per_call: how many rows a call takes at most.
        capacity: calls in flight in each task; None if the function could not be unpickled.
        job_capacity: calls in flight in the whole job; None if the option is not given.
        has_rate_limit: whether the function has a `rate_limit=`. `seconds` includes it, `waves` does not.
        costs: of a `rate_limit=` with a `cost` function, if `latency=` is given: the `permits` that all `rows` take of
            each limit, how many rows `failed` in the function, and the first `error`; or why it is `left_out`.
        tasks: how many tasks run at a time.
        waves: bounds of how many latencies pass until all calls are done, if all tasks have equal shares.
        seconds: bounds of how long the calls take; None without `latency=`.
        cost: bounds of what the calls cost; None without `price=`.
        reasons: what made the bounds: "copied", "sorted", "multiplied", "reread", "replanned", "limited", "dropped",
            "unknown", "operators", "results", "uncounted", "cached", "loaded", "batched", "nulls", "stored". `print`
            explains each.
    """

    mentions: tuple[Mention, ...]
    latency: float | None
    price: float | None
    counting: str
    ambiguous: tuple[str, ...]
    is_hidden: bool

    @property
    def calls(self) -> Bounds[int]:
        """How many calls all functions make."""
        total = sum((mention.calls for mention in self.mentions), Bounds(0, 0))
        return Bounds(total.at_least, None) if self.is_hidden else total

    @property
    def seconds(self) -> Bounds[float] | None:
        """At least as long as the slowest mention, at most all mentions one after another; None without `latency=`."""
        every = [mention.seconds for mention in self.mentions if mention.seconds is not None]
        if self.latency is None or len(every) < len(self.mentions):
            return None
        total = sum(every, Bounds(0.0, 0.0))
        at_least = max((one.at_least for one in every), default=0.0)
        if self.is_hidden:
            return Bounds(at_least, None)
        if total.expected is None:
            return Bounds(at_least, total.at_most)
        slowest = max((one.expected or one).at_least for one in every)
        return Bounds(at_least, total.at_most, Bounds(slowest, total.expected.at_most))

    @property
    def cost(self) -> Bounds[float] | None:
        """What all calls cost; None without `price=`."""
        return None if self.price is None else scaled(self.calls, self.price)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def scaled(bounds: Bounds[int] | Bounds[float], factor: float) -> Bounds[float]:
    """Both bounds times a factor."""
    expected = None if bounds.expected is None else scaled(bounds.expected, factor)
    return Bounds(bounds.at_least * factor, None if bounds.at_most is None else bounds.at_most * factor, expected)


def _lines(run: DryRun) -> Iterator[str]:
    mentions = things(len(run.mentions), "mention")
    head = f"{_calls(run.calls)}, in {mentions} of async functions; nothing was called"
    if run.seconds is not None:
        head += f"; {_bounds(run.seconds, seconds)} at {seconds(run.latency)} a call"
    if run.cost is not None:
        head += f"; costs {_bounds(run.cost, _money)}"
    yield from textwrap.wrap(head, WIDTH)
    if run.counting == "estimate" and run.mentions:
        yield "rows are Spark's estimate: nothing was counted"
    for mention in run.mentions:
        yield ""
        title = f"{one_line(mention.function)}({', '.join(map(one_line, mention.columns))}), {mention.entry_point}"
        yield from textwrap.wrap(f"{title}: {_calls(mention.calls)}", WIDTH)
        for name, text in _facts(run, mention):
            first = f"  {name:<10}"
            yield from textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=" " * 12)
    for name in run.ambiguous:
        yield ""
        yield f"Several functions are called {one_line(name)}: their module, or a number, tells them apart."
    if run.is_hidden:
        yield ""
        yield from textwrap.wrap(
            "At least: the query reads rows of df.rdd, of a checkpoint that is not written yet, or of a recursive "
            "query. What they call cannot be seen: write these rows to a table, or checkpoint them at once.",
            WIDTH,
        )


def _facts(run: DryRun, mention: Mention) -> Iterator[tuple[str, str]]:
    times = "" if mention.evaluations.at_most == 1 else f", evaluated {_bounds(mention.evaluations)} times"
    estimated = "about " if run.counting == "estimate" else ""
    yield "rows", f"{estimated}{_bounds(mention.rows)}{times}"
    if mention.distinct is not None:
        about = "about " if run.counting == "approximate" else ""
        yield "arguments", f"{about}{count(mention.distinct)} distinct{_saving(mention)}"
    if mention.capacity is None:
        yield "function", "could not be unpickled on the driver, so its options are not known"
    elif mention.waves is not None and mention.waves.at_most != 0 and mention.waves != Bounds(0.0, None):
        in_flight = f"{things(mention.tasks, 'task')} at a time, {things(mention.capacity, 'call')} in flight in each"
        if mention.job_capacity is not None and mention.job_capacity < mention.tasks * mention.capacity:
            in_flight = f"{things(mention.job_capacity, 'call')} in flight in the whole job"
        if mention.seconds is None:
            latencies = f"{_bounds(mention.waves, number)} x the latency of a call ({in_flight})"
            limited = ", or longer under rate_limit=" if mention.has_rate_limit else ""
            yield "time", f"{latencies}{limited}; latency= gives seconds"
        else:
            yield "time", f"{_bounds(mention.seconds, seconds)} ({in_flight}{_limited(mention)})"
    if mention.cost is not None:
        yield "cost", _bounds(mention.cost, _money)
    for key in mention.reasons:
        yield "why", WHY[key] + (PERSIST if key == "sorted" and not mention.has_store else "")


def _limited(mention: Mention) -> str:
    costs = mention.costs or RowCosts()
    if not mention.has_rate_limit:
        return ""
    if costs.left_out is not None:
        return f"; a rate_limit= is not included: {costs.left_out}"
    failed = f", without {things(costs.failed, 'row')} whose cost failed: {one_line(costs.error)}"
    return f"; rate_limit= included{failed if costs.failed else ''}"


def _saving(mention: Mention) -> str:
    saved = mention.calls.at_least - (mention.distinct or 0)
    if mention.has_store or mention.rows_per_call > 1 or saved <= 0:
        return ""
    return f": a store would save about {count(saved)} of the calls{'' if mention.calls.is_exact else ', or more'}"


def _calls(bounds: Bounds[int]) -> str:
    return (
        f"{_bounds(bounds)} calls" if bounds.expected is None else _bounds(bounds, of=" calls while the store is empty")
    )


def _bounds(bounds: Bounds[int] | Bounds[float], figure: Callable[[float | None], str] = count, *, of: str = "") -> str:
    least, most = figure(bounds.at_least), figure(bounds.at_most)
    if bounds.expected is not None:
        about = "" if bounds.expected.at_most is None else "about "
        at_least = f", at least {least}" if bounds.at_least else ""
        at_most = ", with no upper bound" if bounds.at_most is None else f", at most {most}"
        return f"{about}{_bounds(bounds.expected, figure)}{of}{at_least}{at_most}"
    if bounds.at_most is None:
        return f"at least {least}" if bounds.at_least else "an unknown number of" if figure is count else NOTHING
    return least if least == most else f"{least} to {most}"


def _money(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.2f}" if value >= 1 or value == 0 else f"{value:.2g}"
