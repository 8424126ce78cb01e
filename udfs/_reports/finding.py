"""What the figures tell of one cause, and the words that findings share."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from .._text.figures import share
from .._text.safe import one_line
from .reading import Reading, rounded_up

__all__ = (
    "MANY_TIMEOUTS",
    "MUCH_WAITING",
    "SLOW",
    "Finding",
    "mostly",
    "of_slow_calls",
    "of_timeouts",
    "saves",
    "saves_at_most",
)


# Shares of the calls' time from which on a cause is named.
MANY_TIMEOUTS = 0.3
MUCH_WAITING = 0.5  # in back-off

SLOW = 5  # times as long as half of the calls


@dataclasses.dataclass(frozen=True)
class Finding:
    """What the figures tell.

    Attributes:
        seen: what was seen, and what it means.
        change: the change, and what it would save.
        gain: which part of the time that is.
        is_sure: whether the figures leave no other cause.
    """

    seen: str
    change: str
    gain: float = 0.0
    is_sure: bool = True


def saves(gain: float) -> str:
    """What would be saved if all else stays as it is."""
    if gain < 0.03:
        return "change little"
    return "about halve the time" if 0.45 <= gain <= 0.55 else f"save about {share(gain)} of the time"


def saves_at_most(gain: float) -> str:
    """What could be saved."""
    if gain > 0.99:
        return "save nearly all of the time"
    return "change little" if gain < 0.03 else f"save at most {share(gain)} of the time"


def mostly(errors: Mapping[str, int]) -> str:
    """The commonest error, in brackets; nothing if there is none."""
    kind = max(errors, key=lambda kind: errors[kind]) if errors else None
    return "" if kind is None else f" (mostly {one_line(kind)})"


def of_timeouts(reading: Reading, seen: str, part: float) -> Finding:
    """Of the time that went to calls which end at their limit (1 - new / old) is saved, with a shorter one."""
    name, limit = reading.time_limit or ("timeout", 0.0)
    shorter = rounded_up(2 * reading.latency_below(0.9 * limit))
    if not 0 < shorter < limit / 2:
        return Finding(seen, f"a service that answers in time would {saves_at_most(part)}", part)
    gain = part * (1 - shorter / limit)
    change = f"{name}={shorter:g}, twice what 99% of the others took, would {saves_at_most(gain)}"
    return Finding(seen, change, gain)


def of_slow_calls(reading: Reading, seen: str, part: float) -> Finding:
    """Of the time that was waited for the slowest calls (1 - new / longest) is saved at most, with shorter ones."""
    half, longest, enough = reading.latency("p50"), reading.latency("max"), rounded_up(3 * reading.latency("p99"))
    if reading.timed_out >= MANY_TIMEOUTS:
        return of_timeouts(reading, seen, part)
    if enough < min(longest / 2, reading.options.get("attempt_timeout") or longest):
        gain = part * (1 - enough / longest)
        return Finding(seen, f"attempt_timeout={enough:g} with retry= would {saves_at_most(gain)}", gain)
    gain = part * (1 - half / longest) if longest else 0.0
    return Finding(
        seen, f"calls that all take as long as half of them would {saves_at_most(gain)}", gain, is_sure=False
    )
