"""A run as a page to look at and to send to others: one HTML file that needs nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from math import isfinite
from pathlib import Path
from typing import Any

from .._errors.exceptions import OptionError
from .._metrics.function_metrics import counted
from .._metrics.time_account import State
from .._text import figures
from .._text.safe import printable
from .charts import curves_of, histogram_of, segments_of
from .function_figures import spent_of, throughput_of

CURVES = 12  # tasks whose course is drawn
LABELLED = 24  # tasks that have a line of their own in the account of time
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
    State.WINDING_DOWN: "fewer rows were left than slots; also opening and closing",
}

SURENESS = {
    "sure": "The figures are clear about this.",
    "likely": "This is likely; the figures leave another cause.",
    "not clear": "The figures do not show it clearly.",
}

Keys = Sequence[str | int]  # keys that lead to a value in `run.metrics`


def run_report(metrics: Mapping[str, Any], path: str | Path) -> None:
    """Write a page about a run.

    Args:
        metrics: what `run.metrics` gives.
        path: of the HTML file; an existing file is replaced.

    Raises:
        OptionError: Jinja2 is not installed, or the file cannot be written.
    """
    page = _page(metrics)
    try:
        Path(path).write_text(page, encoding="utf-8", newline="\n")
    except (OSError, ValueError) as cause:  # a path with a NUL is no path
        reason = getattr(cause, "strerror", None) or cause
        raise OptionError(f"the report cannot be written to {str(path)!r}: {reason}") from cause


def _page(metrics: Mapping[str, Any]) -> str:
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
    environment.globals.update(
        figure=_figure_of(metrics),
        derived=_derived,
        curves_of=curves_of,
        histogram_of=histogram_of,
        segments_of=segments_of,
        throughput_of=throughput_of,
        words=figures,
        short=_short,
        states={state.name.lower(): (state.value, MEANINGS[state]) for state in State},
        sureness=SURENESS,
        quantiles=QUANTILES,
        curves=CURVES,
        labelled=LABELLED,
        counted=counted,
        spent=spent_of,
    )
    environment.filters.update(utc=_utc, with_options=_with_options, longest_first=_longest_first)
    return environment.get_template("page.html").render(metrics=metrics)


def _template(name: str) -> str:
    return resources.files(__name__.rpartition(".")[0]).joinpath("templates", name).read_text(encoding="utf-8")


def _figure_of(metrics: Mapping[str, Any]) -> Callable[..., Any]:
    """Shows the value that is found in the metrics under this path, and says where it is from."""

    def figure(form: str, *path: Keys | str | int) -> Any:
        keys = [key for part in path for key in ([part] if isinstance(part, (str, int)) else part)]
        value: Any = metrics
        for key in keys:
            value = value[key]
        return _tagged("metric", keys, form, value)

    return figure


def _derived(form: str, value: float | None, *keys: str | int) -> Any:
    """Shows a value that is derived from the metrics."""
    return _tagged("derived", keys, form, value)


def _tagged(kind: str, keys: Keys, form: str, value: float | None) -> Any:
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
    return re.sub(HIDDEN, lambda found: ascii(found[0])[1:-1], printable(text))


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
    """Each with its number."""
    return sorted(enumerate(tasks), key=lambda numbered: -numbered[1]["seconds"])
