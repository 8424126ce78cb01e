"""The line about a task in its log."""

from __future__ import annotations

from .._text.figures import number, rate, seconds, share, things
from .._text.safe import one_line, which_errors
from .function_metrics import FIGURES, FunctionMetrics

LEAST_SHARE = 0.05  # share of the time that is worth a word


def task_line(name: str, totals: FunctionMetrics) -> str:
    """What a function did in a task, in plain characters whatever its name is.

    >>> task_line("weather", FunctionMetrics(rows=3, calls=3, attempts=4, seconds=1.5))
    'weather: 3 rows in 1.5 s (2/s), 3 calls, 1 retry'
    """
    words = [f"{one_line(name)}: {things(totals.rows, 'row')} in {seconds(totals.seconds)}"]
    if totals.rows and totals.seconds:
        words[0] += f" ({rate(totals.rows / totals.seconds)})"
    if totals.calls:
        words.append(things(totals.calls, "call"))
    if totals.latency.count:
        half, most = totals.latency.quantile(0.5), totals.latency.quantile(0.95)
        words[-1] += f" (p50 {seconds(half)}, p95 {seconds(most)})"
        words.append(f"{number(totals.in_flight)} in flight on average")
    if errors := sum(totals.errors.values()):
        which = "" if totals.last_error is None else f" ({which_errors(totals.errors, totals.last_error)})"
        words.append(f"{things(errors, 'error')}{which}")
    words += [things(value, *one.noun) for one in FIGURES if one.in_log and (value := getattr(totals, one.name))]
    words += [
        f"{share(spent / totals.seconds)} {state.value}"
        for state, spent in sorted(totals.time.items(), key=lambda item: -item[1])
        if spent > LEAST_SHARE * totals.seconds
    ]
    return ", ".join(words)
