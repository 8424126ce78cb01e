"""A run in short: a few lines of text for people."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from ..._errors.figures import (
    amount_,
    amounts,
    bytes_,
    commonest,
    count,
    number,
    per_period,
    rate,
    seconds,
    share,
    things,
)
from ..._errors.safe import named_error, one_line, presentable
from ..function_metrics import SinkRows, counted
from .function_figures import FunctionFigures, paid
from .verdict import verdict

WIDTH = 100
MUCH_MEMORY = 2**20  # bytes; less is not named
NAMED = 0.03  # of the time; states that took less are left out
ERRORS = 5  # types that are named
UNIT = re.compile(r"(?<=\d) (?=(µs|ms|s|min|h|d|[KMGT]?i?B)\b)")


def summary(metrics: Mapping[str, Any]) -> str:
    """What `run.metrics` holds, in a few lines for each function; each at most 100 characters wide."""
    functions = metrics.get("functions") or ()
    so_far = "" if metrics.get("is_over") else ", so far"
    names = {0: "no function with rows", 1: "1 function"}.get(len(functions), f"{count(len(functions))} functions")
    lines = [f"{names} in {seconds(metrics.get('seconds'))}{so_far}"]
    for function in functions:
        head = f"{one_line(function.get('function'))} ({function.get('entry_point')}): {_tasks(function)}"
        lines += ["", *_wrapped("", head)]
        for title, text in _facts(function):
            lines += _wrapped(f"  {title:<10}", text)
    return "\n".join(lines)


def _wrapped(title: str, text: str) -> list[str]:
    whole = UNIT.sub("\N{NO-BREAK SPACE}", text)  # a number stays with its unit
    lines = textwrap.wrap(whole, WIDTH, initial_indent=title, subsequent_indent=" " * 12, break_on_hyphens=False)
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _tasks(function: Mapping[str, Any]) -> str:
    tasks = [f"{count(number)} {status}" for status, number in (function.get("tasks") or {}).items() if number]
    return f"tasks: {', '.join(tasks)}" if tasks else "no tasks"


def _facts(function: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Titles with their texts; a title without a text is left out."""
    figures = FunctionFigures(function)
    if figures.tasks:
        speed = "" if figures.rate is None else f", {rate(figures.rate)}"
        yield "rows", f"{count(figures.count('rows'))} in, {_given(figures)}{speed}"
    if figures.count("calls") or (figures.tasks and figures.peak):
        yield "calls", _calls(figures)
        yield "in flight", _in_flight(figures)
    if figures.queued_peak:
        mean = number((function.get("queued") or {}).get("mean"))
        held = figures.count("bytes_peak")
        size = f"; rows take {bytes_(held)} at most" if held >= MUCH_MEMORY else ""
        yield "queued", f"{things(mean, 'row')} per task on average, {count(figures.queued_peak)} at most{size}"
    if extras := [things(function[one.name], *one.noun) for one in counted(function, "in_summary")]:
        yield "also", ", ".join(extras)
    if spent := paid(function, "spent"):
        yield "spent", amounts(spent)
    if budgets := budgets_text(function):
        yield "budget", budgets
    if unsettled := unsettled_text(function):
        yield "settle", unsettled
    if learned := learned_text(function):
        yield "learned", learned
    if figures.errors:
        last = function.get("last_error")
        named = "" if last is None else f"; the last: {named_error(last['type'], last['status'])}"
        yield "errors", f"{_errors(figures.errors)}{named}"
    if failed := _failed(function):
        yield "failed", failed
    if figures.seconds:
        yield "time", _time(figures)
    found = function.get("verdict") or verdict(function)._asdict()
    yield "verdict", f"{presentable(found['text'])} ({found['sureness']})"


def _given(figures: FunctionFigures) -> str:
    if figures.plain.get("entry_point") != "sink":
        return f"{count(figures.count('results'))} out"
    return SinkRows.of(figures.plain).words


def _calls(figures: FunctionFigures) -> str:
    calls = count(figures.count("calls"))
    if not figures.calls_ended:
        return f"{calls}: none has returned" if figures.count("calls") else "none has returned"
    quantiles = [f"{name} {seconds(figures.latency(name))}" for name in ("p50", "p95", "p99")]
    return f"{calls}: {', '.join(quantiles)}, longest {seconds(figures.latency('max'))}"


def _in_flight(figures: FunctionFigures) -> str:
    of = "" if figures.capacity is None else f" of {count(figures.capacity)}"
    now = f"{number(figures.flying)} now, " if figures.flying else ""
    if not figures.calls_ended:  # calls count in the mean when they have come back
        return f"{now}{count(figures.peak)}{of} calls at most in a task"
    text = f"{now}{number(figures.in_flight)}{of} calls per task on average, {count(figures.peak)} at most"
    if 0 < figures.wall < figures.seconds and figures.tasks > 1:
        text += f"; {number(figures.in_flight * figures.seconds / figures.wall)} in the whole job on average"
    return text


def unsettled_text(function: Mapping[str, Any]) -> str:
    """That costs of calls are not known, as `settle` has raised; empty where it has not."""
    unsettled = paid(function, "unsettled")
    if not unsettled:
        return ""
    attempts = things(sum(unsettled.values()), "attempt")
    errors = ", ".join(f"{count(times)} x {one_line(error)}" for error, times in unsettled.items())
    return f"raised for {attempts}, charged with what they had reserved: {errors}"


def budgets_text(function: Mapping[str, Any]) -> str:
    """What all runs have spent of the budgets with names; empty without any."""
    texts = []
    for name, one in (function.get("budgets") or {}).items():
        amount = f"{amount_(one['spent'])} of {amount_(one['amount'])} {one_line(one['unit'])}"
        window = f" in {one['window']}" if one["window"] else ""
        texts.append(f'{amount} of "{one_line(name)}" spent by all runs{window}')
    return "; ".join(texts)


def learned_text(function: Mapping[str, Any]) -> str:
    """The limits that the service has told; empty where none is learned."""
    learned, senseless = function.get("learned") or {}, function.get("senseless_answers") or 0
    rates: dict[float, list[str]] = {}
    for told in learned.values():
        unit = told["unit"].replace("_", " ")
        rates.setdefault(told["per"], []).append(things(amount_(float(f"{told['permits']:.3g}")), unit, unit))
    text = ", ".join(f"{' and '.join(limits)} {per_period(per)}" for per, limits in rates.items())
    if learned:
        ago = (function.get("ended") or 0.0) - max(told["told"] for told in learned.values())
        text += f", last told {seconds(max(0.0, ago))} before the end"
    ignored = f"{things(senseless, 'answer')} made no sense" if senseless else ""
    return "; ".join(filter(None, (text, ignored)))


def _errors(errors: Mapping[str, int]) -> str:
    most = commonest(errors, ERRORS)
    return ", ".join(f"{things(times, 'attempt')} with {one_line(kind)}" for kind, times in most)


def _failed(function: Mapping[str, Any]) -> str:
    tasks, failed = function.get("tasks") or {}, function.get("failed_attempts") or {}
    number_of = (tasks.get("failed") or 0) + (tasks.get("lost") or 0)
    if not number_of:
        return ""
    attempts = "1 task attempt" if number_of == 1 else f"{count(number_of)} task attempts"
    calls = things(failed.get("calls") or 0, "call")
    text = f"{attempts}, which made {calls} in {seconds(failed.get('seconds'))}"
    return f"{text} ({_errors(failed['errors'])})" if failed.get("errors") else text


def _time(figures: FunctionFigures) -> str:
    shown = [state for state in figures.ranking if figures.share(state) >= NAMED]
    return ", ".join(f"{state.value} {share(figures.share(state))}" for state in shown)
