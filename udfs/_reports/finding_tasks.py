"""Findings for tasks as such: their start and end, one that is longer, those that failed, and those that hang."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from .._metrics.time_account import State
from .._text.figures import count, number, seconds, share
from .finding import MUCH_WAITING, SLOW, Finding, mostly, of_slow_calls, saves, saves_at_most
from .reading import Reading

__all__ = ("failed_attempts", "no_answers", "skew", "winding_down")


LONG_SILENCE = 10  # times as long as the longest call
AWAITING = (State.CALLS_BUSY, State.HEAD_OF_LINE, State.INPUT, State.WINDING_DOWN)  # the others have their own reason


def winding_down(reading: Reading) -> Finding:
    """Each task winds down once: half as many tasks, half of that; after stragglers, or before the first call, too."""
    state, slots = State.WINDING_DOWN, reading.slots
    down = reading.share(state)
    half, longest = reading.latency("p50"), reading.latency("max")
    if down and reading.opening >= down / 2:
        each = seconds(reading.opening * reading.seconds / max(1, reading.tasks))
        return _fewer_tasks(reading, f"resources were opened and closed, {each} in a task", reading.opening / 2)
    if reading.waited >= MUCH_WAITING:
        gain = reading.at_most(state) * reading.waited
        seen = f"the last rows of a task waited to be tried again{mostly(reading.errors)}"
        return Finding(seen, f"shorter delays of retry= would {saves_at_most(gain)}", gain, is_sure=False)
    if half and longest >= SLOW * half:
        seen = f"tasks waited for their last calls: half of all took {seconds(half)}, the longest {seconds(longest)}"
        return of_slow_calls(reading, seen, down)
    if slots is not None and 0 < reading.rows_per_task < slots * reading.batch_rows:
        rows = f"a task had {number(reading.rows_per_task)} rows for {count(slots)} slots"
        return _fewer_tasks(reading, f"free slots had nothing to start: {rows}", down / 2)
    return _fewer_tasks(reading, "fewer rows were left than slots: tasks are short for their calls", down / 2)


def _fewer_tasks(reading: Reading, seen: str, gain: float) -> Finding:
    if reading.tasks <= 1:
        return Finding(seen, "there is only one task: more rows in it, or faster calls, would use the slots better")
    if reading.ran_together:
        return Finding(seen, "all tasks ran at the same time: fewer of them would free cores, but not end earlier")
    return Finding(seen, f"half as many partitions would {saves(gain)}", gain)


def skew(reading: Reading) -> Finding | None:
    """One task that goes on alone: in tasks of equal length the run would save what it takes beyond the mean."""
    tasks = sorted(reading.per_task, key=_seconds)
    if len(tasks) < 3 or not reading.wall:
        return None
    last, mean = tasks[-1], reading.seconds / max(1, reading.tasks)
    usual = statistics.median(map(_seconds, tasks))
    if _seconds(last) < max(3 * usual, reading.wall / 2):
        return None
    gain = min(1.0, (_seconds(last) - mean) / reading.wall)
    seen = f"one task of {count(reading.tasks)} took {seconds(_seconds(last))}, half of them at most {seconds(usual)}"
    if (last.get("rows") or 0) >= 2 * statistics.median(task.get("rows") or 0 for task in tasks):
        seen += f", as it had {count(last.get('rows'))} of {count(reading.count('rows'))} rows"
        return Finding(seen, f"partitions of equal size would {saves_at_most(gain)}", gain)
    seen += f", with no more rows than others (partition {last.get('partition')})"
    return Finding(seen, f"if it were as fast as others that would {saves_at_most(gain)}", gain)


def _seconds(task: Mapping[str, Any]) -> float:
    return task.get("seconds") or 0.0


def failed_attempts(reading: Reading) -> Finding | None:
    """What Spark has started again was done in vain."""
    failed = reading.plain.get("failed_attempts") or {}
    tasks = reading.plain.get("tasks") or {}
    number_of, spent = (tasks.get("failed") or 0) + (tasks.get("lost") or 0), failed.get("seconds") or 0.0
    if not number_of or not spent:
        return None
    gain = spent / (spent + reading.seconds)
    attempts = "1 task attempt" if number_of == 1 else f"{count(number_of)} task attempts"
    errors = failed.get("errors") or {}
    calls = f"{count(failed.get('calls'))} calls were made in vain{mostly(errors)}"
    seen = f"{attempts} failed and took {share(gain)} of all time: {calls}"
    if not tasks.get("failed"):
        return Finding(seen, "their executors were lost: Spark's log tells why", gain)
    if not errors or reading.options.get("on_error", "raise") != "raise":  # no row's error ended them
        return Finding(seen, "Spark's log tells why", gain)
    return Finding(seen, 'on_error="null" or "dead_letter" keeps a task going when a row fails', gain)


def no_answers(reading: Reading, state: State) -> Finding | None:
    """Calls that do not come back: they are in no latency, so that the figures of the others tell nothing of them."""
    silence, flying = reading.silence, reading.flying
    if state not in AWAITING:
        return None
    if not reading.calls_ended:
        if not reading.peak and state is not State.CALLS_BUSY:
            return None
        silence = silence or reading.wall or reading.seconds
        seen = f"no call has come back in {seconds(silence)}"
    elif reading.silent >= 0.5 and silence >= LONG_SILENCE * reading.latency("max"):
        seen = f"no call has come back for {seconds(silence)}, where the longest took {seconds(reading.latency('max'))}"
    else:
        return None
    if flying:
        seen += f", {number(flying)} {'is' if flying == 1 else 'are'} in flight"
    shorter = "a shorter attempt_timeout=" if reading.options.get("attempt_timeout") else "attempt_timeout="
    return Finding(seen, f"{shorter} tells which", is_sure=False)
