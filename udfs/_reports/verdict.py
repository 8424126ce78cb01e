"""The verdict on a function: where its time went, why, and the one change that would help most."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping
from typing import Any, Literal

from .._text.figures import count, seconds, share, things
from .._text.safe import one_line
from .function_figures import FunctionFigures, seconds_of
from .rules import Diagnosis, at_most, diagnosis, mostly

FEW_CALLS = 50
SHORT = 1.0  # seconds
LONG = 10  # times the longest call: few calls tell as much then
DOMINANT_SHARE = 0.6  # of the time: one state alone is the answer
LITTLE = 0.35  # of the time: no state is
NEARLY_AS_MUCH = 0.8  # of what cost most: is named too
IN_ALL = 0.5  # of the run's time: the function's own is named beside it

Sureness = Literal["sure", "likely", "not clear"]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What limits a function.

    Attributes:
        state: of the account of time the one that cost most, by its key in `time`; None if nothing ran.
        share: of the tasks' time that went to it.
        sureness: how far the figures show the cause.
        text: both, and the one change, in a line.
    """

    state: str | None
    share: float
    sureness: Sureness
    text: str

    def to_plain(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return dataclasses.asdict(self)


def verdict(function: Mapping[str, Any], run_seconds: float = 0.0) -> Verdict:
    """The verdict on one function of `run.metrics`.

    The figures alone show what a change would save, under the condition that they cannot show:

    - "about": with twice the slots, where calls took as long at all times, `time * (1 - busy / 2)`; with half as many
      partitions half of the time in which tasks start and end; without failures the time of attempts in vain, and of
      the back-off that nothing else filled.
    - "at most": all of a state's time. Where calls become shorter, their part of the time of full slots, and all of the
      time that waited for the longest call.
    - Never more than would leave the calls all slots busy all the time: `calls in flight / slots`.
    - Tasks of equal length: what the longest takes beyond the mean, of the time from the first to the last.

    No number is given where the run does not show it: how many calls a service takes, and what blocked code would save.

    Args:
        function: of the `functions`.
        run_seconds: of the whole run. If the function's tasks were a small part of it, the text says so.
    """
    f = FunctionFigures(function)
    name, cost = (f.top.name.lower(), f.share(f.top)) if f.seconds else (None, 0.0)
    end, failed = end_of_job(f), failed_attempts(f)
    if end is not None:
        return Verdict(name, cost, "sure", f"{end.seen}; {end.change}")
    if not f.seconds and not f.count("rows"):
        if failed is None:
            text = "nothing ran: no task had a row for it, or none has reported anything yet"
            return Verdict(None, 0.0, "not clear", text)
        return Verdict(None, 0.0, "sure", f"nothing was completed: {failed.seen}; {failed.change}")
    if (f.calls_ended < FEW_CALLS and f.seconds < LONG * f.latency("max")) or f.seconds < SHORT:
        if failed is not None and failed.gain >= LITTLE:
            return Verdict(name, cost, "likely", f"{failed.seen}; {failed.change}")
        if f.came_from_store:
            text = f"all {things(f.count('rows'), 'row')} came from the store: no option of the calls changes that"
            return Verdict(name, cost, "sure", text)
        spent = f", {share(cost)} of it {f.top.value}" if name else ""
        text = f"too short to tell: {things(f.calls_ended, 'call')} in {seconds(f.seconds)}{spent}"
        return Verdict(name, cost, "not clear", text)
    found = diagnosis(f)
    text = f"{share(cost).removeprefix('>')} of the time "  # a line that begins with it would be a quotation
    others = [other for other in (failed, skew(f)) if other is not None and other.gain > (found.gain or LITTLE)]
    if others:
        found = max(others, key=lambda other: other.gain)
        text += f"went to {f.top.value}, but "
    text += f"{found.seen}; {found.change}"
    second = f.ranking[1]
    is_close = f.share(second) >= NEARLY_AS_MUCH * cost
    sureness: Sureness = "likely"
    if cost < LITTLE:
        sureness = "not clear"
    elif cost >= DOMINANT_SHARE and found.is_sure and not is_close:
        sureness = "sure"
    if is_close:
        text += f"; {second.value} took {share(f.share(second))}"
    if 0 < f.wall < IN_ALL * run_seconds:
        text += f"; the tasks that call it ran for {seconds(f.wall)} of the run's {seconds(run_seconds)}"
    return Verdict(name, cost, sureness, text)


def skew(f: FunctionFigures) -> Diagnosis | None:
    """One task that runs on alone: in tasks of equal length the run would save what it takes beyond the mean."""
    tasks = sorted(f.per_task, key=seconds_of)
    if len(tasks) < 3 or not f.wall:
        return None
    longest, usual = seconds_of(tasks[-1]), statistics.median(map(seconds_of, tasks))
    if longest < max(3 * usual, f.wall / 2):
        return None
    # As many at a time as ran when most did: with fewer cores than tasks they run in rounds.
    at_once = max(sum(_runs_at(other, task.get("began") or 0.0) for other in tasks) for task in tasks)
    rounds = math.ceil(f.tasks / max(1, at_once))
    gain = min(1.0, max(0.0, longest - rounds * f.seconds / max(1, f.tasks)) / f.wall)
    seen = f"one task of {count(f.tasks)} took {seconds(longest)}, half of them at most {seconds(usual)}"
    rows = tasks[-1].get("rows") or 0
    if rows >= 2 * statistics.median(task.get("rows") or 0 for task in tasks):
        seen += f", as it had {count(rows)} of {things(f.count('rows'), 'row')}"
        return Diagnosis(seen, f"partitions of equal size {at_most(gain)}", gain)
    seen += f", with no more rows than others (partition {tasks[-1].get('partition')})"
    return Diagnosis(seen, f"if it were as fast as others that {at_most(gain)}", gain)


def _runs_at(task: Mapping[str, Any], moment: float) -> bool:
    began = task.get("began") or 0.0
    return bool(began <= moment < began + seconds_of(task))


def end_of_job(f: FunctionFigures) -> Diagnosis | None:
    """What ended the job, where Spark has given up a partition: then nothing else matters."""
    if not f.count("given_up"):
        return None
    end = end_of(f, "the job")
    if end is None:
        end = Diagnosis("an error outside of the calls ended the job", "Spark's log tells why")
    kept = "; the store keeps the results of calls that have ended" if f.options.get("store") else ""
    return end._replace(change=f"{end.change}{kept}")


def end_of(f: FunctionFigures, what: str) -> Diagnosis | None:
    """The error that ended most of the tasks that failed; None if no function has raised one."""
    ends = f.in_vain.get("ended_by") or {}
    if not ends:
        return None
    cause, often = max(ends, key=lambda cause: ends[cause]), mostly(f.in_vain.get("errors") or {})
    value = f.options.get(cause)
    ended = f"{cause}={f'{value:_}' if isinstance(value, (int, float)) else ''} ended {what}"
    match cause:
        case "max_failures":
            change = "first look why they fail (run.metrics has examples)"
            return Diagnosis(f"{ended}: more rows failed than it allows{often}", change)
        case "max_calls":
            return Diagnosis(f"{ended}: all these calls were made, and rows are left", "a higher one goes further")
        case "breaker":
            seen = f"{ended}: the service gave no answer for its max_open{often}"
            return Diagnosis(seen, "run it again when the service works")
        case "on_error":
            change = 'on_error="null" or "dead_letter" keeps a task going when a row fails'
            return Diagnosis(f"a row that failed ended {what}{often}", change)
    return Diagnosis(f"an error ended {what}: {one_line(cause)}", "Spark's log tells more")


def failed_attempts(f: FunctionFigures) -> Diagnosis | None:
    """The task attempts that failed: their calls were made in vain."""
    tasks = f.plain.get("tasks") or {}
    attempts, spent = (tasks.get("failed") or 0) + (tasks.get("lost") or 0), f.in_vain.get("seconds") or 0.0
    if not attempts or not spent:
        return None
    gain = spent / (spent + f.seconds)
    done = "made, and the store keeps their results" if f.options.get("store") else "made in vain"
    calls = f"{count(f.in_vain.get('calls') or 0)} calls were {done}"
    seen = f"{things(attempts, 'task attempt')} failed and took {share(gain)} of all time: {calls}"
    if (end := end_of(f, "them")) is not None:
        return Diagnosis(seen, f"{end.seen}; {end.change}", gain)
    seen += mostly(f.in_vain.get("errors") or {})
    whose = "" if tasks.get("failed") else "their executors were lost: "
    return Diagnosis(seen, f"{whose}Spark's log tells why", gain)
