"""The verdict on a function: where its time went, and the one change that would help most."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

from .._metrics.time_account import State
from .._text.figures import count, seconds, share
from .finding import Finding
from .finding_calls import blocked_loop, calls_busy, head_of_line
from .finding_tasks import failed_attempts, no_answers, skew, winding_down
from .finding_waits import held_back, open_breaker, permits, waiting_for_input, waiting_for_store
from .reading import Reading

__all__ = ("verdict",)


FEW_CALLS = 50
SHORT = 1.0  # seconds
LONG = 10  # times the longest call: few calls tell as much then
MOST = 0.6  # of the time: one state alone is the answer
LITTLE = 0.35  # of the time: no state is
CLOSE = 0.8  # of what cost most: is named too

FINDINGS: Mapping[State, Callable[[Reading], Finding]] = {
    State.CALLS_BUSY: calls_busy,
    State.HEAD_OF_LINE: head_of_line,
    State.INPUT: waiting_for_input,
    State.OUTPUT: held_back,
    State.LIMIT: permits,
    State.BREAKER: open_breaker,
    State.STORE: waiting_for_store,
    State.BLOCKED_LOOP: blocked_loop,
    State.WINDING_DOWN: winding_down,
}


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

    What a change would save is reckoned from the figures alone, and said with what they cannot tell ("if the service
    can take it"):

    - "about": with twice the slots `time * (1 - busy / 2)`, if Spark keeps up: rows that come just in time look as
      those that come at once; without retries `time * (1 - busy * retried)`.
    - "at most": all of a state's time; never more than would leave the calls all slots busy all the time,
      `calls in flight / slots`, and where slow calls are the cause never more than would leave the longest call.
    - half as many partitions: half of the time in which tasks start and end; nothing if all ran at the same time.
    - tasks of equal length: what the longest takes beyond the mean, of the time from the first to the last.
    """
    reading = Reading(function)
    if not reading.seconds:
        return _without_tasks(reading)
    first, second = reading.ranking[:2]
    cost = reading.share(first)
    if _is_too_short(reading):
        failed = failed_attempts(reading)
        if failed is not None and failed.gain >= LITTLE:
            return Verdict(first.name.lower(), cost, "likely", f"{failed.seen}; {failed.change}")
        calls = "1 call" if reading.calls_ended == 1 else f"{count(reading.calls_ended)} calls"
        told = f"too short to tell: {calls} in {seconds(reading.seconds)}, {share(cost)} of it {first.value}"
        return Verdict(first.name.lower(), cost, "not clear", told)
    finding, silence = FINDINGS[first](reading), no_answers(reading, first)
    is_close = reading.share(second) >= CLOSE * cost
    sureness: Literal["sure", "likely", "not clear"] = "likely"
    if cost < LITTLE:
        sureness = "not clear"
    elif cost >= MOST and finding.is_sure and silence is None and not is_close:
        sureness = "sure"
    text = _text(reading, first, finding, silence)
    if is_close:
        text += f"; {second.value} took {share(reading.share(second))}"
    return Verdict(first.name.lower(), cost, sureness, text)


def _is_too_short(reading: Reading) -> bool:
    few = reading.calls_ended < FEW_CALLS and reading.seconds < LONG * reading.latency("max")
    return few or reading.seconds < SHORT


def _text(reading: Reading, state: State, finding: Finding, silence: Finding | None) -> str:
    """The state and its change, or another change that would save more."""
    found = (silence,) if silence is not None else (skew(reading), failed_attempts(reading))
    others = [other for other in found if other is not None]
    best = max(others, key=lambda other: other.gain, default=finding)
    cost = share(reading.share(state)).removeprefix(">")  # a line that begins with it would be a quotation
    if best is silence or best.gain > finding.gain:
        return f"{cost} of the time went to {state.value}, but {best.seen}; {best.change}"
    return f"{cost} of the time {finding.seen}; {finding.change}"


def _without_tasks(reading: Reading) -> Verdict:
    failed = failed_attempts(reading)
    if failed is None:
        return Verdict(None, 0.0, "not clear", "nothing ran: no task had a row for it, or none has told of itself yet")
    return Verdict(None, 0.0, "sure", f"nothing was completed: {failed.seen}; {failed.change}")
