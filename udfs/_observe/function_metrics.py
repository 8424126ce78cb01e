"""The figures of a function: how each adds up over tasks, and where people see it."""

from __future__ import annotations

import dataclasses
import inspect
import operator
from collections import Counter
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple, ParamSpec, TypeVar

from .._errors.figures import count, things
from .latency_sketch import LatencySketch
from .time_account import State

KINDS_APART = 50  # of errors, that are counted apart; a program may make a class for each error
OTHERS = "others"


class Kind(NamedTuple):
    """How the values of a figure add up."""

    new: Callable[[], Any]  # the value at the start
    add: Callable[[Any, Any], Any]  # what two tasks have together; may change the first value, and not the second
    to_plain: Callable[[Any], Any] = lambda value: value  # for JSON
    from_plain: Callable[[Any], Any] = lambda plain: plain


def counted_as(kind: str, counted: Mapping[str, Any]) -> str:
    """What a kind of error is counted as."""
    return kind if kind in counted or len(counted) < KINDS_APART else OTHERS


def _add_counts(mine: Counter[str], more: Mapping[str, int]) -> Counter[str]:
    for kind, times in more.items():
        mine[counted_as(kind, mine)] += times
    return mine


def _add_examples(mine: dict[str, str], more: Mapping[str, str]) -> dict[str, str]:
    for kind, message in more.items():
        mine.setdefault(counted_as(kind, mine), message)
    return mine


def _add_amounts(mine: dict[Any, float], more: Mapping[Any, float]) -> dict[Any, float]:
    for key, amount in more.items():
        mine[key] = mine.get(key, 0.0) + amount
    return mine


def _add_newest(mine: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    for key, one in more.items():
        mine[key] = max(mine.get(key, one), one)
    return mine


SUM = Kind(int, operator.add)
PEAK = Kind(int, max)
# By the kind of an error, the commonest first.
COUNTS = Kind(Counter, _add_counts, lambda counts: dict(counts.most_common()), Counter)
EXAMPLES = Kind(dict, _add_examples, dict, dict)  # by the same kinds
AMOUNTS = Kind(dict, _add_amounts, dict, dict)
LAST = Kind(lambda: None, lambda mine, more: more or mine, from_plain=lambda plain: plain and tuple(plain))
SKETCH = Kind(LatencySketch, LatencySketch.merge, LatencySketch.to_plain, LatencySketch.from_plain)
NEWEST = Kind(
    dict,
    _add_newest,
    lambda newest: {key: [*one] for key, one in newest.items()},
    lambda plain: {key: tuple(one) for key, one in plain.items()},
)
TIME = Kind(
    lambda: dict.fromkeys(State, 0.0),
    _add_amounts,
    lambda time: {state.name.lower(): seconds for state, seconds in time.items()},
    lambda plain: {State[name.upper()]: seconds for name, seconds in plain.items()},
)


@dataclasses.dataclass(eq=False)
class Figure:
    """A figure of a function, as an attribute of its metrics."""

    text: str  # what it is, in a sentence
    kind: Kind | None  # how it adds up; None if it follows from others
    _: dataclasses.KW_ONLY
    unit: str = ""  # of one, for OpenTelemetry; "s" if it is seconds
    noun: tuple[str, ...] = ()  # what people read after the number: its singular, and its plural if that is irregular
    is_shown: bool = True  # in `run.metrics`
    in_frame: bool = False  # is a column of `run.to_df()`
    in_log: bool = False  # where a view leaves out what is 0: in the line about a task
    in_summary: int = 0  # the place there; 0: not at all
    on_page: int = 0  # the same, in the report
    is_bad: bool = False  # is marked there
    export: str = ""  # its name in OpenTelemetry, without "asyncudf."
    outcome: str = ""  # there, of the lookup in a store that it counts

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @property
    def phrase(self) -> str:
        return self.text[0].lower() + self.text[1:-1]


EXAMPLE = 500  # characters of a message

P = ParamSpec("P")
T = TypeVar("T")


def _figure(text: str, kind: Kind | None = SUM, **views: Any) -> Any:
    return Figure(text, kind, **views)


class FunctionMetrics:
    """What a function did.

    Each figure is declared here, once. From here `run.metrics` and its documentation, `run.to_df()`, the summary, the
    report, the log and OpenTelemetry have it, in this order where it has no other place.
    """

    # What is a mean is kept as a sum, and divided when it is asked for.

    tasks: int = _figure("How many these figures are of.", is_shown=False)
    seconds: float = _figure("Of all tasks together, from when the function was opened.", unit="s", in_frame=True)
    waited: float = _figure("Seconds that calls spent in back-off between attempts; part of their latency.", unit="s")
    refused_seconds: float = _figure("For which calls were held back as the service had refused others.", unit="s")
    processor_seconds: float = _figure("Of processor time of the tasks' processes.", unit="s")
    starved_seconds: float = _figure(
        "For which event loops could have worked, and the machine had no processor for them; on Linux.", unit="s"
    )
    following_seconds: float = _figure(
        "For which slots were free while rows waited for the calls of equal rows.", unit="s"
    )
    repeated_seconds: float = _figure(
        "That calls took which failed and were made again at once for an equal row.", unit="s"
    )
    joint_seconds: float = _figure(
        "Of attempts of rows from several calls, together, less what latencies have of them.", unit="s", is_shown=False
    )
    rows: int = _figure("Rows taken from the input.", unit="row", in_frame=True, export="rows")
    results: int = _figure("Results given.", unit="result", in_frame=True, export="results")
    calls: int = _figure("Calls begun.", unit="call", in_frame=True, export="calls")
    attempts: int = _figure("Attempts of calls, retries included.", unit="attempt", in_frame=True, export="attempts")
    retries: int = _figure(
        "Attempts after the first of their call.", None, noun=("retry", "retries"), in_frame=True, in_log=True,
        in_summary=1, on_page=4,
    )  # fmt: skip
    retried_rows: int = _figure(
        "Rows that were in more than one attempt.", unit="row", noun=("row sent again", "rows sent again"),
        in_frame=True, in_summary=1, on_page=4, export="retried_rows",
    )  # fmt: skip
    abandoned: int = _figure(
        "Calls that had not ended when their task did.", unit="call", noun=("abandoned call",),
        in_frame=True, in_summary=6, on_page=6, export="abandoned_calls",
    )  # fmt: skip
    abandoned_seconds: float = _figure("That these had taken by then, all together.", unit="s", is_shown=False)
    open_seconds: float = _figure("That calls have taken which are not done yet.", unit="s", is_shown=False)
    timeouts: int = _figure(
        "Attempts, and calls, that did not end in time.", unit="timeout", noun=("timeout",),
        in_frame=True, in_log=True, in_summary=2, on_page=3, is_bad=True, export="timeouts",
    )  # fmt: skip
    throttled: int = _figure(
        "Attempts that the service answered with a time to wait, and that used up none.", unit="attempt",
        noun=("throttled attempt",), in_frame=True, in_log=True, in_summary=3, on_page=5, export="throttled_attempts",
    )  # fmt: skip
    failures: int = _figure(
        "Rows that ended with an error under on_error.", unit="row", noun=("failed row",),
        in_frame=True, in_log=True, in_summary=4, on_page=1, is_bad=True, export="failed_rows",
    )  # fmt: skip
    dead_letters: int = _figure(
        "Rows that went to the side output of those that failed.", unit="row", noun=("dead letter",),
        in_frame=True, in_log=True, in_summary=5, on_page=2, is_bad=True, export="dead_letters",
    )  # fmt: skip
    unpaid: int = _figure(
        "Rows that were not called because a budget was spent; they are failed rows too.", unit="row",
        noun=("row not called, as a budget was spent", "rows not called, as a budget was spent"),
        in_frame=True, in_log=True, in_summary=10, on_page=7, is_bad=True, export="unpaid_rows",
    )  # fmt: skip
    spent_keys: int = _figure(
        "Keys that had a row not called because a budget with `by` was spent.", unit="key",
        noun=("key whose budget is spent", "keys whose budget is spent"), in_frame=True, in_summary=12, on_page=8,
        export="spent_keys",
    )  # fmt: skip
    store_hits: int = _figure(
        "Rows answered from the store.", noun=("store hit",), in_frame=True, in_log=True, in_summary=7, outcome="hit"
    )
    store_misses: int = _figure(
        "Rows that the store did not have.", noun=("store miss", "store misses"), in_frame=True, in_summary=8,
        outcome="miss",
    )  # fmt: skip
    shared_flights: int = _figure(
        "Rows answered by another row\N{RIGHT SINGLE QUOTATION MARK}s call.",
        noun=("row answered by another row's call", "rows answered by another row's call"),
        in_frame=True, in_summary=9, outcome="shared",
    )  # fmt: skip
    stored_failures: int = _figure(
        "Rows that failed with the error of an equal row; they are store hits or shared too."
    )
    null_rows: int = _figure(
        "Rows that made no call because an argument is NULL.", unit="row",
        noun=("row with a NULL argument", "rows with a NULL argument"),
        in_frame=True, in_summary=11, export="null_rows",
    )  # fmt: skip
    unkept_failures: int = _figure("Rows whose call ended with an error that a store with error_ttl keeps.")
    queued_seconds: float = _figure("That rows were in the queue, all together.", unit="s", is_shown=False)
    in_flight_peak: int = _figure("Calls, in the task that had most.", PEAK, is_shown=False)
    queued_peak: int = _figure("Rows in the queue, in the task that had most.", PEAK, is_shown=False)
    bytes_peak: int = _figure("Bytes that rows take, in the task that had most.", PEAK, in_frame=True)

    # What is no number has a form of its own where it is shown.

    spent: dict[str, float] = _figure("What calls did cost, by the unit of budgets and of `context.spend`.", AMOUNTS)
    spent_squares: dict[str, float] = _figure("The squares of these costs.", AMOUNTS)  # tell how much costs differ
    unsettled: Counter[str] = _figure(
        "Attempts that count with what they had reserved, by the error that `settle` raised for them.", COUNTS
    )
    senseless_answers: int = _figure("Answers with headers of a rate limit that made no sense.", unit="answer")
    learned: dict[str, tuple[float, float, float, str]] = _figure(
        "What the service told last of a limit: when, permits, in how many seconds, and their unit.", NEWEST
    )
    budgets: dict[str, tuple[str, float, float, float, str]] = _figure(
        "Of each budget with a name: the window, when the coordinator told what all runs spent in it, that, of how "
        "much, and the unit.",
        NEWEST,
    )
    limit_seconds: dict[str, float] = _figure("For which calls waited, by the limit as people are shown it.", AMOUNTS)
    ended_by: Counter[str] = _figure("Tasks that ended with an error, by the option that says so, or its text.", COUNTS)
    errors: Counter[str] = _figure(
        "Attempts that ended with an error, by its type; of several rows by that of most.", COUNTS
    )
    examples: dict[str, str] = _figure("A message for each of these types.", EXAMPLES)
    last_error: tuple[str, int | None] | None = _figure("The type and HTTP status of the last, or None.", LAST)
    latency: LatencySketch = _figure("Of calls, from the first attempt to the result.", SKETCH)
    first: LatencySketch = _figure("Of those that ended first in a task, as many as were in flight at most.", SKETCH)
    last: LatencySketch = _figure("Of those that ended last in a task, as many.", SKETCH)
    time: dict[State, float] = _figure("Seconds in each state, which add up to `seconds`.", TIME)

    def __init__(self, **counts: float) -> None:
        vars(self).update({**_ZEROS, **{name: kind.new() for name, kind in _OTHERS}, **counts})

    @property
    def in_flight(self) -> float:
        """Calls in progress, in the mean over the time of all tasks: by Little's law, their time in it."""
        in_calls = self.latency.seconds + self.abandoned_seconds + self.open_seconds + self.joint_seconds - self.waited
        return in_calls / self.seconds if self.seconds else 0.0

    @property
    def queued(self) -> float:
        """Rows in the queue, in the mean over the time of all tasks."""
        return self.queued_seconds / self.seconds if self.seconds else 0.0

    def note_error(self, kind: str, message: Callable[[], str], status: int | None = None) -> None:
        """Count an attempt that ended with an error; of the first of its kind the message is kept."""
        self.last_error = kind, status
        kind = counted_as(kind, self.errors)
        self.errors[kind] += 1
        if kind not in self.examples:
            self.examples[kind] = message()[:EXAMPLE]

    def note_unsettled(self, error: str) -> None:
        """Count an attempt for which `settle` raised, by the error."""
        self.unsettled[counted_as(error, self.unsettled)] += 1

    def merge(self, other: FunctionMetrics) -> None:
        mine, more = vars(self), vars(other)
        for name, kind in _STORED:
            mine[name] = kind.add(mine[name], more[name])

    def __copy__(self) -> FunctionMetrics:
        other = FunctionMetrics()
        other.merge(self)
        return other

    def to_plain(self) -> dict[str, Any]:
        """As plain values, for JSON; `from_plain` makes the same of them."""
        values = vars(self)
        return {name: kind.to_plain(values[name]) for name, kind in _STORED}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> FunctionMetrics:
        return cls(**{name: kind.from_plain(plain[name]) for name, kind in _STORED})


FIGURES: tuple[Figure, ...] = tuple(figure for figure in vars(FunctionMetrics).values() if isinstance(figure, Figure))
_STORED = tuple((figure.name, figure.kind) for figure in FIGURES if figure.kind is not None)
_ZEROS = {name: 0 for name, kind in _STORED if kind in (SUM, PEAK)}
_OTHERS = tuple((name, kind) for name, kind in _STORED if name not in _ZEROS)
TOTALS = tuple(figure for figure in FIGURES if figure.kind in (None, SUM) and figure.is_shown)
PEAKS = tuple(figure for figure in FIGURES if figure.kind is PEAK and figure.is_shown)
MAPS = tuple((name, kind) for name, kind in _STORED if kind in (AMOUNTS, COUNTS, EXAMPLES, TIME))

for _name, _ in _STORED:
    delattr(FunctionMetrics, _name)  # the values are attributes of the instances, which are read faster so
FunctionMetrics.retries = property(lambda metrics: metrics.attempts - metrics.calls)  # type: ignore[assignment]


def counted(function: Mapping[str, Any], view: str) -> list[Figure]:
    """The figures of a view that are not 0, of a function of `run.metrics`, sorted by what they have for the view."""
    found = [one for one in FIGURES if getattr(one, view) and function.get(one.name)]
    return sorted(found, key=attrgetter(view))


class SinkRows(NamedTuple):
    """What became of the rows of a sink: each is in one of these counts."""

    written: int
    failed: int  # for good
    reused: int  # they were not sent, as the store has them as acknowledged, or an equal row was
    skipped: int  # they were not sent, as an argument is NULL

    @classmethod
    def of(cls, function: Mapping[str, Any]) -> SinkRows:
        names = ("rows", "failures", "null_rows", "store_hits", "shared_flights", "stored_failures")
        rows, failed, skipped, found, shared, stored = (function.get(name) or 0 for name in names)
        reused = found + shared - stored
        return cls(max(0, rows - failed - skipped - reused), failed, reused, skipped)

    @property
    def parts(self) -> list[tuple[str, int]]:
        """The counts to show, each with its name: those that are not 0, and `written`."""
        named = zip(("written", "failed", "acknowledged before", "with a NULL argument"), self, strict=True)
        return [(name, rows) for name, rows in named if rows or name == "written"]

    @property
    def words(self) -> str:
        return ", ".join(f"{count(rows)} {name}" for name, rows in self.parts)

    def __str__(self) -> str:
        return f"{things(sum(self), 'row')}: {self.words}"


def described(text: str) -> str:
    """The text with a line for each number in place of its line NUMBERS."""
    return text.replace("- NUMBERS", "\n".join(f"- `{one.name}`: {one.phrase}." for one in (*TOTALS, *PEAKS)))


def with_numbers(function: Callable[P, T]) -> Callable[P, T]:
    """Name all numbers in its docstring."""
    if function.__doc__ is not None:  # python -OO leaves none
        function.__doc__ = described(inspect.cleandoc(function.__doc__))
    return function
