"""How many rows a function did in a second, and how many it could have done with all its slots in use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ("ideal_of",)


class Ideal(NamedTuple):
    """What was, beside what might have been.

    Attributes:
        achieved: rows in a second, from the first task's start to the last one's end; None if no time passed.
        parallel: tasks that ran at a time, in the mean.
        slots: that a task could use: `capacity`, or the calls that it had to make; None where neither is known.
        in_slot: seconds for which a call had its slot, in the mean; without the back-off between attempts.
        possible: rows in a second, if these slots of all tasks had a call all the time, and calls took no longer.
            None where the figures do not tell.
    """

    achieved: float | None
    parallel: float | None
    slots: float | None
    in_slot: float | None
    possible: float | None


def ideal_of(function: Mapping[str, Any]) -> Ideal:
    """The figures of one function.

    By Little's law slots x tasks / (seconds in a slot) calls end in a second. Rows that need no call of their own, as
    in micro-batches, are as many for each call as they were.

    A task of 100 rows has no use for more than 100 slots, whatever the capacity is.

    Calls of which never two were in flight tell nothing of what more at once would do: those that never wait run one
    after another, whatever the capacity is.
    """
    wall = function["ended"] - function["began"]
    if not 0 < wall < float("inf"):
        return Ideal(None, None, None, None, None)
    achieved, parallel = function["rows"] / wall, function["seconds"] / wall
    calls, in_flight = function["latency"]["count"], function["in_flight"]
    in_slot = in_flight["mean"] * function["seconds"] / calls if calls else None
    capacity = function["options"].get("capacity")
    slots = possible = None
    if in_slot and isinstance(capacity, (int, float)) and (in_flight["peak"] > 1 or capacity == 1):
        # The peak: tasks are not alike, and slots that were in use at the same time could be used.
        slots = min(capacity, max(in_flight["peak"], calls / max(1, _counted(function["tasks"]))))
        possible = slots * parallel / in_slot * function["rows"] / calls
    return Ideal(achieved, parallel, slots, in_slot, possible)


def _counted(tasks: Mapping[str, int]) -> int:
    """Those that the figures are of."""
    return sum(tasks.get(status, 0) for status in ("succeeded", "stopped", "running"))
