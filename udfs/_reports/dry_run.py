"""What a dry run has found: plain data, and the same in words."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable, Iterator

from .._policies.planned_calls import Bounds, Reason
from .._text.figures import NOTHING, count, number, seconds, things
from .._text.safe import one_line

__all__ = ("DryRun", "Mention", "scaled")

WIDTH = 100

WHY: dict[Reason, str] = {
    "copied": "one mention is in several places of the plan: the optimizer has copied it, as it may with "
    "deterministic=True, or the query uses the DataFrame more than once",
    "sorted": "what is below a sort is evaluated twice, as Spark samples it first to find the ranges, and partitions "
    "far larger than the mean a third time; persist() before the sort, or a store, makes it once",
    "multiplied": "a product without a join key reads it again for each partition of the other side",
    "reread": "an outer join without an equality reads the side that is not broadcast twice; persist() it before",
    "replanned": "Spark plans the rest of the query anew when it has seen the rows of its first stages (adaptive "
    "execution): a sort, a LIMIT or a second use above it may evaluate it once more, or end it early, or not",
    "limited": "a LIMIT ends the query early: calls that are in flight by then have been made",
    "dropped": "fewer if the other side of a join lacks rows: Spark then does not read this side to its end",
    "unknown": "behind it is an operator or a function of others: nobody can say how often it reads its rows, or "
    "whether all of them",
    "operators": "operators before it in the chain decide how many rows come to it",
    "results": "how many rows reach it depends on what other async functions return, or cannot be counted "
    "without calling them",
    "uncounted": "Spark does not know how many rows reach it",
    "cached": "persist() is above it: called by the first action only, while Spark keeps the rows",
    "loaded": "Spark has kept the rows: it is called only for those that were lost since",
    "batched": "a call takes many rows: at least as few calls as full batches make, at most one for each row",
    "nulls": "rows with a NULL among its arguments make no call (on_null_input), and are not counted apart",
    "stored": "it has a store: no call for results that are there, and about one for each of the distinct arguments "
    "that are not; at most one for each row, as two tasks may ask for the same at the same moment, and a "
    "store may fail or forget",
}


@dataclasses.dataclass(frozen=True)
class Mention:
    """A function at one place of the plan that Spark would run.

    Attributes:
        function: its name; where several functions have it, with its module or a number.
        entry_point: "column", "operator", "table function"; "unknown" if it could not be read.
        columns: the names of those that it reads; "..." for what is not a column as it is.
        rows: that reach it in one evaluation.
        evaluations: how often the plan below it is run.
        calls: of the function, in all evaluations.
        distinct: how many different arguments reach it; None if that is not known.
        has_store: whether it has a `store=`; there are fewer calls then where arguments are equal.
        rows_per_call: at most.
        capacity: calls in flight in each task; None if the function could not be read.
        tasks: that run at a time.
        waves: how often the latency of a call passes until all are done, if all tasks have equal shares.
        seconds: with `latency=`; None without.
        cost: with `price=`; None without.
        reasons: why it is as it is: "copied", "sorted", "multiplied", "reread", "replanned", "limited", "dropped",
            "unknown", "operators", "results", "uncounted", "cached", "loaded", "batched", "nulls", "stored".
    """

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
    tasks: int
    waves: Bounds[float] | None
    seconds: Bounds[float] | None
    cost: Bounds[float] | None
    reasons: tuple[Reason, ...]


@dataclasses.dataclass(frozen=True)
class DryRun:
    """What a query would call; `print` shows it as text.

    Attributes:
        mentions: each place of the plan at which a function is called, the last one to be called first.
        latency: seconds for a call, as given.
        price: of a call, as given.
        counting: how rows were counted: "exact", "approximate" or "estimate".
        ambiguous: names that several functions of the query have.
        is_hidden: whether the query has rows that may call functions out of sight: of `df.rdd`, of a checkpoint that
            is not written yet, or of a recursive query. Then `calls` is without these.
    """

    mentions: tuple[Mention, ...]
    latency: float | None
    price: float | None
    counting: str
    ambiguous: tuple[str, ...]
    is_hidden: bool

    @property
    def calls(self) -> Bounds[int]:
        """Of all functions."""
        total = sum((mention.calls for mention in self.mentions), Bounds(0, 0))
        return Bounds(total.at_least, None) if self.is_hidden else total

    @property
    def seconds(self) -> Bounds[float] | None:
        """At least what the slowest mention takes, at most all one after the other; None without `latency=`."""
        every = [mention.seconds for mention in self.mentions if mention.seconds is not None]
        if self.latency is None or len(every) < len(self.mentions):
            return None
        at_most = None if self.is_hidden else sum(every, Bounds(0.0, 0.0)).at_most
        return Bounds(max((one.at_least for one in every), default=0.0), at_most)

    @property
    def cost(self) -> Bounds[float] | None:
        """Of all calls; None without `price=`."""
        return None if self.price is None else scaled(self.calls, self.price)

    def __str__(self) -> str:
        return "\n".join(_lines(self))


def scaled(bounds: Bounds[int] | Bounds[float], factor: float) -> Bounds[float]:
    """Both bounds times a factor."""
    return Bounds(bounds.at_least * factor, None if bounds.at_most is None else bounds.at_most * factor)


def _lines(run: DryRun) -> Iterator[str]:
    mentions = things(len(run.mentions), "mention")
    head = f"{_told(run.calls)} calls, in {mentions} of async functions; nothing was called"
    if run.seconds is not None:
        head += f"; {_told(run.seconds, seconds)} at {seconds(run.latency)} a call"
    if run.cost is not None:
        head += f"; costs {_told(run.cost, _money)}"
    yield from textwrap.wrap(head, WIDTH)
    if run.counting == "estimate" and run.mentions:
        yield "rows are Spark's estimate: nothing was counted"
    for mention in run.mentions:
        yield ""
        title = f"{one_line(mention.function)}({', '.join(map(one_line, mention.columns))}), {mention.entry_point}"
        yield from textwrap.wrap(f"{title}: {_told(mention.calls)} calls", WIDTH)
        for name, text in _facts(run, mention):
            first = f"  {name:<10}"
            yield from textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=" " * 12)
    for name in run.ambiguous:
        yield ""
        yield f"Several functions are called {one_line(name)}: they are told apart by their module, or by a number."
    if run.is_hidden:
        yield ""
        yield from textwrap.wrap(
            "At least: the query reads rows of df.rdd, of a checkpoint that is not written yet, or of a recursive "
            "query. What they call cannot be seen: write these rows to a table, or checkpoint them at once.",
            WIDTH,
        )


def _facts(run: DryRun, mention: Mention) -> Iterator[tuple[str, str]]:
    times = "" if mention.evaluations.at_most == 1 else f", evaluated {_told(mention.evaluations)} times"
    estimated = "about " if run.counting == "estimate" else ""
    yield "rows", f"{estimated}{_told(mention.rows)}{times}"
    if mention.distinct is not None:
        about = "about " if run.counting == "approximate" else ""
        yield "arguments", f"{about}{count(mention.distinct)} distinct{_saving(mention)}"
    if mention.capacity is None:
        yield "function", "could not be read here, so its options are not known"
    elif mention.waves is not None and mention.waves.at_most != 0 and mention.waves != Bounds(0.0, None):
        in_flight = f"{things(mention.tasks, 'task')} at a time, {count(mention.capacity)} calls in flight in each"
        if mention.seconds is None:
            yield (
                "time",
                f"{_told(mention.waves, number)} x the latency of a call ({in_flight}); latency= gives seconds",
            )
        else:
            yield "time", f"{_told(mention.seconds, seconds)} ({in_flight})"
    if mention.cost is not None:
        yield "cost", _told(mention.cost, _money)
    for key in mention.reasons:
        yield "why", WHY[key]


def _saving(mention: Mention) -> str:
    if mention.has_store:
        return ": about as many calls while the store is empty"
    saved = mention.calls.at_least - (mention.distinct or 0)
    if mention.rows_per_call > 1 or saved <= 0:
        return ""
    return f": a store would save about {count(saved)} of the calls{'' if mention.calls.is_exact else ', or more'}"


def _told(bounds: Bounds[int] | Bounds[float], figure: Callable[[float | None], str] = count) -> str:
    least, most = figure(bounds.at_least), figure(bounds.at_most)
    if bounds.at_most is None:
        return f"at least {least}" if bounds.at_least else "an unknown number of" if figure is count else NOTHING
    return least if least == most else f"{least} to {most}"


def _money(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.2f}" if value >= 1 or value == 0 else f"{value:.2g}"
