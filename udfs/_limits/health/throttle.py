"""When calls may begin while a service refuses some, when it refuses for good, and the gate of refusals."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..._errors.answers import Refusal
from ..._errors.call_outcome import CallOutcome
from ..._errors.exceptions import FatalError
from ..._errors.failure import Failure
from ..._errors.records import error_text
from ..._observe.waits import Waiting
from ..gate import AskingAttempt, Gate, HostTask, Slots
from .chance import is_unlikely

if TYPE_CHECKING:
    from .job import SharedHealth

ENOUGH_REFUSALS = 10  # refusals among the last 2 * ENOUGH_REFUSALS answers are evidence of a limit for all calls
FEW_REFUSALS, LAST_ANSWERS = 5, 100  # refusals among the last answers that correct a pace, without a pause
CORRECTION_GAP = 1.0  # seconds between two corrections, at least, and so long as a call takes
FIRST_GROWTH, SLOWEST_GROWTH = 5.0, 20.0  # seconds in which a pace doubles: at first, and at most after corrections
FREE_AFTER = 4.0  # times the growth, after which the pace is lifted
# Such waits are those of a quota, of a minute for example. While calls are paced half of ENOUGH_REFUSALS show that it
# is used up: if more had to come, the pace would be lowered before, and the next quota used late.
LONG_WAIT = 8.0  # seconds
GROWN, MOST_IN_VAIN = 1.05, 3  # so many corrections in a row, of paces that had grown less than this, have not helped
# Nor has a correction to such a part of the first pace that was corrected, if such a part of its share is refused.
SLOWER, AS_MANY = 0.5, 0.75
BEGIN_TOGETHER = 0.01  # seconds within which due calls begin together, because timers come late
FIRST_CALLS, DEAR = 2, 2  # calls in flight in a slow start, and how many fewer for each refusal
FEW_REFUSED = 0.02  # share of refusals that says nothing of the pace: calls go on as they did before the pause
CROWDED = 0.25  # share of refusals in a slow start that is evidence of a service that takes few calls at once
NEEDED_CALLS = 1.25  # times the calls in flight that a pace needs by Little's law, for such a service
NEWEST_LATENCY_WEIGHT = 0.05  # the weight of the newest latency in their mean
PROBE_AGAIN = 1.0  # seconds after which another call may probe: one that hangs must not stop all
MOST_PAUSED = 300.0  # seconds by which pauses without an accepted call move deadlines, at most: rows must end
SHORTEST_MEASURED = 1e-3  # seconds over which a pace is measured, at least
# Chance explains a share of refusals of up to 5%, or a quarter more than were seen before. What exceeds that pauses all
# calls if chance gives it once in a million answers, and corrects a pace if once in a thousand.
LEAST_REFUSED, MORE_REFUSED, KNOWN = 0.05, 1.25, 50
RARE_REFUSALS, VERY_RARE_REFUSALS = math.log(1e3), math.log(1e6)


class Phase(enum.Enum):
    """How calls may begin."""

    FREE = "free"  # at once
    PAUSED = "paused"  # not before a given time, and then one call probes
    STARTING = "starting"  # few in flight, and one more for each that is accepted
    PACED = "paced"  # at the pace that the service has shown


@dataclasses.dataclass
class _Count:
    accepted: int = 0
    refused: int = 0


class _Refusal(NamedTuple):
    until: float  # when the refused call may be made again
    accepted: int  # that had ended before it since the phase began
    refused: int  # the same


class Throttle:
    """Decides when calls may begin while a service refuses some.

    A refusal concerns its own row. All calls pause only if at least 10 of the last 20 answers were refusals, or 5 of 10
    that ask for `LONG_WAIT` while calls are paced, and chance does not explain it. After the pause one call probes.
    Then calls begin at the pace that the service has shown: accepted calls divided by the time between the ends of the
    last two pauses, without the last pause if few were refused; or, where the accepted calls are too few to measure, in
    a slow start. The pace grows, is lowered while calls are refused, and is lifted after a time without refusals.

    A service that refuses many even in a slow start takes few calls at once, however slowly they come. Then the calls
    in flight are bounded too, by the pace times the latency (Little's law).

    Only answers to calls that began at `since` or later, the last change, count.
    """

    # A service may refuse a share of its calls at random, however few come: a bad node, tenants with limits of their
    # own. That share, `_background`, is what it refused in FREE before; or in PACED, if lower paces did not change it.
    #
    # _in_phase: of the calls that began since the phase began
    # _begun: when the last of these began
    # _refusals: of these, the newest last, no more than a pause or a correction needs
    # _since_pause: of the calls that ended since `_measured_since`, the end of the last pause
    # _worked: the seconds from then until calls paused again
    # _first: the first pace that was corrected since calls were free, and the share that it refused
    # _in_vain: corrections in a row that have not helped; _as_before: those of slower paces that refused as many
    # _ends: the end of the last pause; _until: when the next call may begin in one
    # _refuses_since: when the first pause began of the last ones without an accepted call between them
    # _latency: mean seconds of accepted calls
    # _takes_few: calls in flight are bounded, until calls are free again
    # _pace: in PACED calls per second at `since`

    def __init__(self, now: float) -> None:
        self._phase = Phase.FREE
        self.since = self._measured_since = self._refuses_since = now
        self._since_pause, self._in_vain = _Count(), 0
        self._first: tuple[float, float] | None
        self._until = self._ends = self._next = self._pace = self._background = 0.0
        self._paused = self._latency = self._worked = 0.0
        self._enter(Phase.FREE, now)

    @property
    def until(self) -> float:
        """The end of the pause of all calls; -inf without one."""
        return self._ends if self._phase is Phase.PAUSED else -math.inf

    @property
    def refuses_since(self) -> float | None:
        """When the first of the pauses began between which no call was accepted; None while calls are not paused."""
        return self._refuses_since if self._phase is Phase.PAUSED else None

    def is_free(self, now: float) -> bool:
        """Whether calls begin at once, and need not be reported to `began`."""
        return self._phase is Phase.FREE or (self._phase is not Phase.PAUSED and now >= self._free_at)

    def _lift(self, now: float) -> None:
        if self._phase is not Phase.FREE and self.is_free(now):
            self._enter(Phase.FREE, self._free_at)

    @property
    def _free_at(self) -> float:
        return self.since + FREE_AFTER * self._growth

    def paused_seconds(self, now: float) -> float:
        """Seconds that calls were paused; pauses without an accepted call between them count `MOST_PAUSED` at most."""
        return self._paused + (min(MOST_PAUSED, now - self._refuses_since) if self._phase is Phase.PAUSED else 0.0)

    def wait(self, in_flight: int, now: float) -> float:
        """Seconds until a call may begin; ask again when another call has ended."""
        if self.is_free(now):
            return 0.0
        if self._phase is Phase.PAUSED:
            return max(0.0, self._until - now)
        if in_flight >= self._most_in_flight(now):
            return self._free_at - now
        return max(0.0, min(self._next, self._free_at) - now) if self._phase is Phase.PACED else 0.0

    def _most_in_flight(self, now: float) -> float:
        """How many calls may be in flight while calls start slowly or are paced."""
        if self._phase is Phase.STARTING:
            return max(1, FIRST_CALLS + self._in_phase.accepted - DEAR * self._in_phase.refused)
        return max(1, int(NEEDED_CALLS * self._latency * self._pace_at(now))) if self._takes_few else math.inf

    def began(self, now: float) -> None:
        self._begun.append(now)
        if self._phase is Phase.PAUSED:
            self._is_probing = True
            self._until = now + PROBE_AGAIN
        elif self._phase is Phase.PACED:
            self._next = max(self._next, now - BEGIN_TOGETHER) + 1.0 / self._pace_at(now)

    def gave_up(self, began: float) -> None:
        """A call that began then has ended, and says nothing about the service."""
        if began >= self.since and self._is_probing:
            self._is_probing, self._until = False, self._ends

    def answered(self, calls: int, began: float, now: float) -> None:
        """Calls have ended that were not refused; the first of them began at `began`."""
        self._lift(now)
        self._since_pause.accepted += calls
        if began < now:
            self._latency += (NEWEST_LATENCY_WEIGHT if self._latency else 1.0) * (now - began - self._latency)
        if began < self.since:
            return
        if self._phase is not Phase.PAUSED:
            self._in_phase.accepted += calls
        elif self._is_probing:
            self._resume(now)

    def _resume(self, now: float) -> None:
        """A probe was accepted: end the pause."""
        seen, self._since_pause = self._since_pause, _Count()
        # Measured up to the end of the pause: after it there may have been no call to probe with.
        few = seen.refused <= FEW_REFUSED * seen.accepted
        seconds = max(SHORTEST_MEASURED, self._worked if few else self._ends - self._measured_since)
        self._measured_since, self._pace = now, seen.accepted / seconds
        self._enter(Phase.PACED if seen.accepted >= FEW_REFUSALS else Phase.STARTING, now)

    def refused(self, until: float, began: float, now: float) -> None:
        """A call that began then was refused, and may be made again at `until`."""
        self._lift(now)
        self._since_pause.refused += 1
        if began < self.since:
            return
        if self._phase is Phase.PAUSED:
            self._measured_since += now - self.since  # a service that was away for long has not become slower
            # One answer may be wrong: the next pause is at most twice as long.
            self.pause(min(until, now + max(PROBE_AGAIN, 2.0 * (self._ends - self.since))), now)
            return
        seen, phase = self._in_phase, self._phase
        self._refusals.append(_Refusal(until, seen.accepted, seen.refused))
        seen.refused += 1
        in_vain = self._in_vain + 1 if phase is Phase.PACED and self._pace_at(now) < GROWN * self._pace else 0
        if self._is_refusing(until - now):
            self._in_vain = in_vain
            # The median of their waits, not the longest: one server of many may be wrong.
            waits = sorted(one.until for one in list(self._refusals)[-ENOUGH_REFUSALS:])
            self.pause(waits[len(waits) // 2], now)
        elif phase is not Phase.FREE and now - self.since >= max(CORRECTION_GAP, self._latency):
            self._correct(in_vain, began, now)

    def pause(self, until: float, now: float) -> None:
        """All calls wait until then, for a reason that this task or another has seen."""
        self._lift(now)
        if self._phase is not Phase.PAUSED:
            self._worked = now - self._measured_since
        self._until = self._ends = max(until, self.until, now)  # the longer wait of two tasks counts
        self._enter(Phase.PAUSED, now)

    def _enter(self, phase: Phase, now: float) -> None:
        if phase is not self._phase or phase is not Phase.PAUSED:
            self._paused, self._refuses_since = self.paused_seconds(now), now
        if phase is Phase.FREE:
            self._growth, self._takes_few = FIRST_GROWTH, False
            self._first, self._as_before = None, 0
        self._phase, self.since, self._next = phase, now, now
        self._is_probing = False
        self._in_phase = _Count()
        self._begun: deque[float] = deque(maxlen=LAST_ANSWERS)
        self._refusals: deque[_Refusal] = deque(maxlen=LAST_ANSWERS)

    def _pace_at(self, now: float) -> float:
        """The pace now: it grows as CUBIC's window, slowly near what was accepted, and fast beyond."""
        return self._pace * (1.0 + ((now - self.since) / self._growth) ** 3)

    def _is_refusing(self, wait: float) -> bool:
        """Whether the service refuses half of the last calls or more, and not by chance."""
        free = self._phase is Phase.FREE
        enough = ENOUGH_REFUSALS if free or wait < LONG_WAIT else ENOUGH_REFUSALS // 2
        if len(self._refused_of(2 * enough)) < enough:
            return False
        for count, refusal in enumerate(reversed(self._refusals), 1):
            calls, before = self._calls_since(refusal, count), refusal.accepted + refusal.refused
            if count < enough or 2 * count < calls:
                continue
            seen = refusal.refused / before if free and before >= KNOWN else 0.0
            background = max(self._background, seen)
            if is_unlikely(count, calls, max(LEAST_REFUSED, MORE_REFUSED * background), VERY_RARE_REFUSALS):
                self._background = background
                return True
        return False

    def _correct(self, in_vain: int, began: float, now: float) -> None:
        """Lower the pace by the share refused, or lift it if that has not helped; give a crowded slow start a pace."""
        seen = self._in_phase
        refused = len(self._refused_of(LAST_ANSWERS))
        # Calls in flight that began before a refused one count as accepted: refusals may be quicker than results.
        begun = sum(one <= began for one in self._begun)
        calls = min(LAST_ANSWERS, max(begun, seen.accepted + seen.refused))
        if refused < FEW_REFUSALS or not is_unlikely(refused, calls, MORE_REFUSED * self._background, RARE_REFUSALS):
            return
        if self._phase is Phase.STARTING and (seen.accepted < FEW_REFUSALS or refused < CROWDED * calls):
            return
        self._in_vain, share = in_vain, refused / calls
        if self._phase is Phase.PACED:
            pace, first = self._pace_at(now), self._first or (math.inf, share)
            self._as_before += pace <= SLOWER * first[0] and share >= AS_MANY * first[1] and self._first is not None
            self._first = self._first or (pace, share)
        if max(in_vain, self._as_before) >= MOST_IN_VAIN:
            self._background, self._in_vain = share, 0
            self._enter(Phase.FREE, now)
            return
        if self._phase is Phase.PACED:
            self._pace = self._pace_at(now) * (1 - share)
        else:
            self._pace, self._takes_few = seen.accepted / (now - self.since), True
        self._growth = min(SLOWEST_GROWTH, 2 * self._growth)
        self._enter(Phase.PACED if self._pace else Phase.STARTING, now)  # without a pace if all were refused

    def _refused_of(self, last: int) -> list[_Refusal]:
        return [one for count, one in enumerate(reversed(self._refusals), 1) if self._calls_since(one, count) <= last]

    def _calls_since(self, refusal: _Refusal, count: int) -> int:
        """How many calls have ended from this refusal on, the `count`-th from the end."""
        return count + self._in_phase.accepted - refusal.accepted


class RefusedForGood:
    """Whether calls are refused, and none was accepted for `patience` seconds.

    The time runs from the first refusal since the last accepted call until a call begins that is refused as well. All
    calls between must have ended: a call that takes long was perhaps accepted. A time without calls shows nothing,
    unless the service has asked for it.
    """

    # _since: when the first refusal came since the last accepted call; inf: there is none
    # _answers: how many calls had been accepted at the last refusal
    # _again: when the service was to be called again, at the latest

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._since = math.inf
        self._answers = 0
        self._again = -math.inf

    @property
    def is_counting(self) -> bool:
        """Whether a call was refused, and none was accepted since, as far as `accepted` was told."""
        return self._since < math.inf

    def accepted(self) -> None:
        self._since = math.inf

    def refused(self, until: float, began: float, now: float, *, answers: int, elsewhere: float) -> None:
        """A call that began then was refused, and may be made again at `until`; so many were accepted so far.

        Another task had an accepted call `elsewhere`, at that time.
        """
        nobody_called = began >= self._again + self._patience
        if answers > self._answers or elsewhere > self._since or nobody_called or not self.is_counting:
            self._since = now
        self._answers, self._again = answers, max(self._again, until)

    def is_for_good(self, oldest: float) -> bool:
        """Whether the service refuses for good; `oldest`: the begin of the last refused call or of a call in flight."""
        return oldest - self._since >= self._patience


CLOCKS_APART = 0.1  # seconds by which the clocks of two tasks may differ
NEWS_WITHIN = 5.0  # seconds after which a task knows at the latest that calls of another were accepted


@dataclasses.dataclass(eq=False, repr=False)
class RefusalGate(Gate):
    """Refusals: all calls pause, or begin at a pace, when there is evidence that the service needs it.

    If the service refuses for good, for `patience` seconds, the task ends, with one error for all its rows. Waits are
    capped at the `longest_wait`; with 0 refusals are errors like others.
    """

    # shared: what the other tasks know; None: this task has no coordinator
    # _refused: the rows of the first call that was refused since one was accepted, as far as `accepted` was told

    task: HostTask
    slots: Slots
    _: dataclasses.KW_ONLY
    longest_wait: float
    patience: float
    timeout: float | None
    redacted: bool
    shared: SharedHealth | None = dataclasses.field(default=None, init=False)
    _refused: Sequence[Any] = dataclasses.field(default=(), init=False)

    def __post_init__(self) -> None:
        self.throttle = Throttle(self.task.counters.clock())
        self.for_good = RefusedForGood(self.patience)

    def share(self, shared: SharedHealth) -> None:
        """From now on the tasks of the job share what they know."""
        self.shared = shared
        self.for_good = RefusedForGood(self.patience + NEWS_WITHIN)

    def wait(self, attempt: AskingAttempt, now: float) -> float | None:
        if self.shared is not None:
            if (until := self.shared.paused_until) is None:
                return None
            if until > now + CLOCKS_APART and until > self.throttle.until + CLOCKS_APART:
                self.throttle.pause(until, now)
        return self.throttle.wait(self.slots.in_flight, now)

    waiting = Waiting.REFUSAL

    @property
    def closed_since(self) -> float | None:
        return self.throttle.refuses_since

    @property
    def longest(self) -> float:
        return self.patience

    def began(self, attempt: AskingAttempt, now: float) -> None:
        self.throttle.began(now)

    def ended(self, attempt: AskingAttempt, outcome: CallOutcome, failure: Failure | None, now: float) -> None:
        # A call that did not have to ask has begun while calls were free.
        began = attempt.began if attempt.has_asked else now
        if outcome is CallOutcome.NOTHING:
            self.throttle.gave_up(began)
        elif failure is None or (refusal := self.refusal_of(failure)) is None:
            self.throttle.answered(1, began, now)
            if outcome is CallOutcome.ANSWERED:
                self.accepted(now)
        else:
            self.throttle.refused(now + refusal.seconds, began, now)
            if self.shared is not None and self.throttle.until > now:
                self.shared.pause(self.throttle.until)
            self._refused = self._refused or attempt.rows
            is_one = len(attempt.rows) == 1 and self._refused[0] is attempt.rows[0]
            self._may_end(refusal, began, now, failure, is_one=is_one)

    def accepted(self, now: float) -> None:
        """A call was not refused, whatever its answer was."""
        self._refused = ()
        self.for_good.accepted()
        if self.shared is not None:
            self.shared.accepted = now

    def _may_end(self, refusal: Refusal, began: float, now: float, failure: Failure, *, is_one: bool) -> None:
        """A call was refused: end the task if the service refuses for good.

        `is_one`: no other row was refused since a call was accepted. If the deadline of this row comes before the
        patience is over, the row fails at its deadline, and the task goes on.
        """
        for_good, elsewhere = self.for_good, -math.inf if self.shared is None else self.shared.accepted_elsewhere
        answers = self.task.counters.calls_answered
        for_good.refused(now + refusal.seconds, began, now, answers=answers, elsewhere=elsewhere)
        if is_one and self.timeout is not None and self.timeout < self.patience:
            return
        if for_good.is_for_good(began) and for_good.is_for_good(self.slots.oldest):
            self.task.fail(FatalError(self._given_up(failure)))

    def _given_up(self, failure: Failure) -> str:
        status, wait = failure.answer.status, failure.answer.wait
        takes = "as long as a row may take" if self.patience == self.timeout else "as long as it may"
        said = [] if status is None else [f"status {status}"]
        said.append("no wait asked" if wait is None else f"asks to wait {wait:g} s")
        return (
            f"the service of {self.task.name} has refused all calls for {self.patience:g} s, {takes}; the last "
            f"with {error_text(failure.error, redacted=self.redacted)} ({', '.join(said)}). Results in a store= are "
            "kept: run the job again when the service accepts calls"
        )

    def refusal_of(self, failure: Failure | None) -> Refusal | None:
        """The refusal in a failure, with its wait capped; None if there is none."""
        return None if failure is None else failure.refusal(self.longest_wait)
