"""A run as a page to look at and to send to others: one HTML file that needs nothing else.

A chart is plain figures in, and positions in percent of its area out.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial, reduce
from importlib import resources
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple, cast

from ..._errors import figures
from ..._errors.exceptions import OptionError
from ..._errors.safe import presentable
from ..function_metrics import SinkRows, counted
from ..time_account import State
from .function_figures import FunctionFigures, paid
from .summary import budgets_text, learned_text, unsettled_text

BUCKET = math.log(1.01 / 0.99)  # of the sketch; bars of whole buckets, or they would beat against each other
SHORTEST_SHOWN = 1e-8  # seconds; what took no time has no logarithm
BARS = 48
NARROWEST = 36  # buckets: a factor of two, so that equal calls are one slim bar, and not all there is
POINTS = 48
TICK_SPACE = 20.0  # percent, or labels would touch on a phone

ROUND = (1, 3, 2, 5, 7, 1.5, 4, 2.5, 6, 8, 9, 1.2)  # times a power of ten, of seconds; the roundest first
MINUTES = tuple(unit * number for number in (1, 10, 3, 30, 2, 5, 20) for unit in (60, 3600))
EXACT = 1 - 1e-9  # sums of parts are not
STEPS = (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)

Point = tuple[float, float, float]  # the end of a stretch, its rows in a second, its calls in flight


class Bar(NamedTuple):
    """Calls that took about as long as each other."""

    at: float
    width: float
    height: float
    calls: int
    shortest: float
    longest: float


class Mark(NamedTuple):
    """A value on an axis."""

    name: str
    at: float
    value: float


class Histogram(NamedTuple):
    """How many calls took how long; the axis of time is logarithmic."""

    bars: list[Bar]
    ticks: list[Mark]
    quantiles: list[Mark]
    highest: int


class Curves(NamedTuple):
    """What tasks did over time, each from its own start, all on one scale."""

    rates: list[str]  # a line for each task, as SVG paths that enclose the area below
    calls: list[str]
    seconds: float  # where the axes end
    rate: float
    in_flight: float


def histogram_of(latency: Mapping[str, Any], quantiles: Sequence[str]) -> Histogram | None:
    """The figures of `latency`, and these quantiles of it; nothing without calls."""
    buckets = [(math.floor(_log(max(seconds, SHORTEST_SHOWN))), count) for seconds, count in latency["histogram"]]
    if not buckets:
        return None
    first, last = buckets[0][0], max(number for number, _ in buckets) + 1
    spare = max(0, NARROWEST - (last - first)) // 2
    first, last = first - spare, last + spare
    step = math.ceil((last - first) / BARS)
    width = 100 / (last - first)
    counts: dict[int, int] = {}
    for number, count in buckets:
        group = (number - first) // step
        counts[group] = counts.get(group, 0) + count
    highest = max(counts.values())
    bars = [
        Bar(
            group * step * width,
            min(step, last - first - group * step) * width,
            100 * count / highest,
            count,
            math.exp((first + group * step) * BUCKET),
            math.exp(min(first + (group + 1) * step, last) * BUCKET),
        )
        for group, count in counts.items()
    ]

    def at(seconds: float) -> float:
        return min(100.0, max(0.0, (_log(seconds) - first) * width))

    marks = [Mark(name, at(max(latency[name], SHORTEST_SHOWN)), latency[name]) for name in quantiles]
    shortest, longest = math.exp(first * BUCKET), math.exp(last * BUCKET)
    return Histogram(bars, [Mark("", at(time), time) for time in _ticks(shortest, longest)], marks, highest)


def _log(seconds: float) -> float:
    return math.log(seconds) / BUCKET


def _ticks(shortest: float, longest: float) -> list[float]:
    """The roundest times between these, as many as there is space for."""
    least = math.log(longest / shortest) * TICK_SPACE / 100
    exponents = range(math.floor(math.log10(shortest)), 2)
    found: list[float] = []
    seconds = [number * 10.0**exponent for number in ROUND for exponent in exponents]
    for time in (*(time for time in seconds if time < 60), *MINUTES):
        if shortest < time < longest and all(abs(math.log(time / other)) >= least for other in found):
            found.append(time)
    return sorted(found)


def curves_of(timelines: Iterable[Sequence[Sequence[float]]], capacity: float | None) -> Curves:
    """What these tasks did: of each its stretches, [end in seconds, rows, calls in flight, rows queued]."""
    timelines = [[*timeline] for timeline in timelines]
    seconds = max((timeline[-1][0] for timeline in timelines if timeline), default=0.0)
    tasks = [_resampled(timeline, seconds / POINTS) for timeline in timelines]
    rate = _round_up(max((point[1] for task in tasks for point in task), default=0.0))
    peak = max((point[2] for task in tasks for point in task), default=0.0)
    in_flight = capacity if capacity is not None and capacity >= peak * EXACT else _round_up(peak)
    return Curves(
        [_area([(end, rows) for end, rows, _ in task], seconds, rate) for task in tasks],
        [_area([(end, calls) for end, _, calls in task], seconds, in_flight) for task in tasks],
        seconds,
        rate,
        in_flight,
    )


def _resampled(timeline: Sequence[Sequence[float]], width: float) -> list[Point]:
    """In stretches of at least this length: a very short one with a few rows would be a spike."""
    joined: list[tuple[float, float, float, float]] = []  # its begin and end, its rows, seconds of its calls
    last = 0.0
    for end, rows, in_flight, _ in timeline:
        begin, until, done, calls = joined.pop() if joined else (0.0, 0.0, 0.0, 0.0)
        if until - begin >= width and timeline[-1][0] - until >= width:
            joined.append((begin, until, done, calls))
            begin, done, calls = until, 0.0, 0.0
        joined.append((begin, end, done + rows, calls + in_flight * (end - last)))
        last = end
    return [(end, rows / (end - begin), calls / (end - begin)) for begin, end, rows, calls in joined if end > begin]


def _area(points: Sequence[tuple[float, float]], longest: float, highest: float) -> str:
    """A line of steps, down to the axis at both ends."""
    if not points or highest <= 0:
        return ""
    steps = "".join(f"V{100 - 100 * value / highest:.2f}H{100 * end / longest:.2f}" for end, value in points)
    return f"M0,100{steps}V100Z"


def _round_up(value: float) -> float:
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((step * power for step in STEPS if step * power >= value * EXACT), 10 * power)


CURVES = 12  # tasks whose course is drawn
LABELLED = 24  # tasks whose account of time is drawn
LONGEST_TEXT = 1000  # characters of a message or an option
OPTION = re.compile(r'\b([a-z_]+=(?:"[^"]*"|\w+(?:\.\d+)?))')
# Control characters but tab and line break, and those that set a direction for what follows.
HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
QUANTILES = ("p50", "p95", "p99")

MEANINGS = {
    State.CALLS_BUSY: "all slots had a call: the service, or capacity, sets the pace",
    State.HEAD_OF_LINE: "slots were free, but the queue was full behind a row that was not done",
    State.INPUT: "slots were free, and Spark brought no rows",
    State.OUTPUT: "held back by Spark, or by the next operator",
    State.LIMIT: "waited for a permit, for a share of the job's calls, or for a pause that the service asked for",
    State.BREAKER: "the circuit breaker was open: the service gave no answers",
    State.STORE: "waited for stored results",
    State.BLOCKED_LOOP: "code that does not await kept all calls from going on",
    State.START_AND_END: "fewer rows were left than slots; also opening and closing",
}

SURENESS = {
    "sure": "The figures are clear about this.",
    "likely": "This is likely; the figures leave another cause.",
    "not clear": "The figures do not show it clearly.",
}

Keys = Sequence[str | int]  # keys that lead to a value in `run.metrics`


def run_report(metrics: Mapping[str, Any], path: str | Path) -> None:
    """Write a page about a run to an HTML file; OptionError without Jinja2, or if the file cannot be written."""
    _write(_page(metrics), path)


def rehearsal_report(rehearsal: Any, path: str | Path) -> None:
    """As `run_report`, about a `Rehearsal`, with the same errors."""
    _write(_environment().get_template("rehearsal.html").render(told=rehearsal), path)


def _write(page: str, path: str | Path) -> None:
    try:
        Path(os.path.expanduser(path)).write_text(page, encoding="utf-8", newline="\n")
    except (OSError, ValueError) as cause:  # a path with a NUL is no path
        reason = getattr(cause, "strerror", None) or cause
        raise OptionError(f"the report cannot be written to {str(path)!r}: {reason}") from cause


def _page(metrics: Mapping[str, Any]) -> str:
    environment = _environment()
    environment.globals.update(
        figure=partial(_figure, metrics),
        derived=lambda form, value, *keys: _tagged("derived", keys, form, value),
        curves_of=curves_of,
        histogram_of=histogram_of,
        rate_of=lambda function: FunctionFigures(function).rate,
        sureness=SURENESS,
        quantiles=QUANTILES,
        curves=CURVES,
        labelled=LABELLED,
        counted=counted,
        sink_rows=lambda function: SinkRows.of(function).parts if function["entry_point"] == "sink" else [],
        spent=lambda function: paid(function, "spent"),
        unsettled=unsettled_text,
        learned=learned_text,
        budgets=budgets_text,
    )
    page: str = environment.get_template("page.html").render(metrics=metrics)
    return page


def _environment() -> Any:
    """Where templates are found, and what all pages may use."""
    try:
        import jinja2
    except ImportError as cause:
        raise OptionError('a report needs Jinja2: pip install "asyncudf[report]"') from cause
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: _visible(value) if type(value) is str else value,
    )
    states = {state.name.lower(): (state.value, MEANINGS[state]) for state in State}
    environment.globals.update(words=figures, short=_short, states=states)
    environment.filters.update(utc=_utc, with_options=_with_options, longest_first=_longest_first)
    return environment


def _template(name: str) -> str:
    return resources.files(__name__.rpartition(".")[0]).joinpath("templates", name).read_text(encoding="utf-8")


def _figure(metrics: Mapping[str, Any], form: str, *path: Keys | str | int) -> Any:
    """Shows the value that is found in the metrics under this path, and says where it is from."""
    keys = [key for part in path for key in ([part] if isinstance(part, (str, int)) else part)]
    return _tagged("metric", keys, form, reduce(lambda value, key: value[key], keys, cast(Any, metrics)))


def _tagged(kind: str, keys: Keys, form: str, value: float | None) -> Any:
    """Shows a value of the metrics, or one that is derived from them."""
    from markupsafe import Markup

    # As in a JSON pointer, as the name of an error may have points in it.
    name = ".".join(str(key).replace("~", "~0").replace(".", "~1") for key in keys)
    exact = json.dumps(value if value is None or isfinite(value) else None)
    shown = getattr(figures, form)(value)
    return Markup('<span data-{}="{}" data-value="{}">{}</span>').format(kind, _visible(name), exact, shown)


def _short(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]}… ({len(text):,} characters)"


def _visible(text: str) -> str:
    """The text without what a page must not hold, or what turns the words around it about."""
    return re.sub(HIDDEN, lambda found: ascii(found[0])[1:-1], presentable(text))


def _with_options(text: str) -> Any:
    """What a user may copy looks like code: capacity=40."""
    from markupsafe import Markup, escape

    parts = re.split(OPTION, _visible(_short(text)))  # each second one is what was found
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part) for number, part in enumerate(parts)
    )


def _utc(seconds: float, form: str = "") -> str:
    then = datetime.fromtimestamp(seconds, UTC)
    return then.isoformat(timespec="seconds") if form == "iso" else f"{then.day} {then:%B %Y, %H:%M:%S} UTC"


def _longest_first(tasks: Sequence[Mapping[str, Any]]) -> list[tuple[int, Mapping[str, Any]]]:
    return sorted(enumerate(tasks), key=lambda numbered: -numbered[1]["seconds"])
