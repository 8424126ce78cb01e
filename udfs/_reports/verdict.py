"""The verdict on a function: where its time went, and the one change that would help most."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from .._text.figures import seconds, share, things
from .reading import Reading
from .rules import Finding, failed_attempts, finding, skew

__all__ = ("verdict",)


FEW_CALLS = 50
SHORT = 1.0  # seconds
LONG = 10  # times the longest call: few calls tell as much then
MOST = 0.6  # of the time: one state alone is the answer
LITTLE = 0.35  # of the time: no state is
CLOSE = 0.8  # of what cost most: is named too


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What limits a function.

    Attributes:
        state: of the account of time the one that cost most, by its key in `time`; None if nothing ran.
        share: of the tasks' time that went to it.
        sureness: how far the figures tell the cause.
        text: both, and the one change, in a line.
    """

    state: str | None
    share: float
    sureness: Literal["sure", "likely", "not clear"]
    text: str

    def to_plain(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return dataclasses.asdict(self)


def verdict(function: Mapping[str, Any]) -> Verdict:
    """The verdict on one function of `run.metrics`.

    What a change would save is reckoned from the figures alone, with the condition that they cannot tell:

    - "about": with twice the slots, where calls took as long at all times, `time * (1 - busy / 2)`; without failures
      `time * (1 - busy * retried)`; with half as many partitions half of the time in which tasks start and end.
    - "at most": all of a state's time; never more than would leave the calls all slots busy all the time,
      `calls in flight / slots`, and where slow calls are the cause never more than would leave the longest call.
    - tasks of equal length: what the longest takes beyond the mean, of the time from the first to the last.

    No number is given where the run does not tell: how many calls a service takes, and what blocked code would save.
    """
    reading = Reading(function)
    failed = failed_attempts(reading)
    if not reading.seconds:
        if failed is None:
            told = "nothing ran: no task had a row for it, or none has told of itself yet"
            return Verdict(None, 0.0, "not clear", told)
        return Verdict(None, 0.0, "sure", f"nothing was completed: {failed.seen}; {failed.change}")
    first, second = reading.ranking[:2]
    key, cost = first.name.lower(), reading.share(first)
    is_short = _is_too_short(reading)
    if is_short and failed is not None and failed.gain >= LITTLE:
        return Verdict(key, cost, "likely", f"{failed.seen}; {failed.change}")
    if is_short:
        calls = things(reading.calls_ended, "call")
        told = f"too short to tell: {calls} in {seconds(reading.seconds)}, {share(cost)} of it {first.value}"
        return Verdict(key, cost, "not clear", told)
    found = finding(reading)
    is_close = reading.share(second) >= CLOSE * cost
    sureness: Literal["sure", "likely", "not clear"] = "likely"
    if cost < LITTLE:
        sureness = "not clear"
    elif cost >= MOST and found.is_sure and not is_close:
        sureness = "sure"
    others = (other for other in (failed, skew(reading)) if other is not None)
    best: Finding = max(others, key=lambda other: other.gain, default=found)
    of_all = share(cost).removeprefix(">")  # a line that begins with it would be a quotation
    if best.gain > (found.gain or LITTLE):
        text = f"{of_all} of the time went to {first.value}, but {best.seen}; {best.change}"
    else:
        text = f"{of_all} of the time {found.seen}; {found.change}"
    return Verdict(
        key, cost, sureness, text + (f"; {second.value} took {share(reading.share(second))}" if is_close else "")
    )


def _is_too_short(reading: Reading) -> bool:
    few = reading.calls_ended < FEW_CALLS and reading.seconds < LONG * reading.latency("max")
    return few or reading.seconds < SHORT
