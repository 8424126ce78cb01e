"""Rate limits whose numbers the service tells: what is known of them, and how tasks learn it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from ..._errors.answers import headers_of
from ..._errors.failure import Failure
from ..._errors.safe import tried
from ..gate import AskingAttempt, HostTask
from .dialects import Headers, Told, lowered
from .option import LearnedLimit, RateLimit, limit_label

# When little is left, other clients of the same limit are faster than what is known of them. So the pace falls with
# what is left, from a share of the limit on: a larger one for calls that take long, as their answers tell of the past.
# In a sliding window a job that is alone uses less by that share; what refills bit by bit it uses in full.
FEW, FEW_OF_REFILLED, MOST_FEW = 0.04, 0.15, 0.25  # of the limit
LATE = 3.0  # times what others may take while a call lasts
FEW_CALLS = 2.0
LEAST_PACE = 0.1  # of the limit: who does not call learns nothing
UNTOLD = 0.95  # of a limit of which it is not told what is left: no answer shows that it is passed by a few calls
LONGER = 1.1  # of a period: what takes longer to come back is a limit of a longer period
LARGEST_CALL = 0.9  # of the limit: one that needs more would wait for ever
LONGEST_WAIT = 3600.0  # seconds for what headers say, or a period if that is longer; then a call shows whether it is so


class Knowledge(NamedTuple):
    """What the newest answer has told, at the pace of the limit's own period."""

    began: float = -math.inf  # when its call did
    at: float = -math.inf  # when it came
    permits: float = 0.0  # in a period
    capacity: float = math.inf  # of what `left` is a part
    left: float = math.inf  # inf: not told
    resets: float = -math.inf  # when the service says that more is left
    ends: float = -math.inf  # when nothing of this holds any more but the limit
    refill: float = 0.0  # permits in a second that come back, if they do so bit by bit
    few: float = FEW  # of the capacity, from which on the pace falls

    def moved(self, clock: Callable[[float], float]) -> Knowledge:
        """The same on another clock."""
        times = {name: clock(getattr(self, name)) for name in ("began", "at", "resets", "ends")}
        return self._replace(**times)


class Learned:
    """What is known of one limit; times are those of the task's clock.

    Answers are ordered by when their calls began: a later answer of an older call changes nothing.
    """

    def __init__(self, limit: LearnedLimit) -> None:
        self.limit = limit
        self.known = Knowledge(permits=limit.permits, capacity=limit.permits)

    @property
    def is_told(self) -> bool:
        return self.known.began > -math.inf

    def tell(self, told: Told, began: float, now: float) -> bool:
        """An answer tells this; returns whether it is the newest."""
        return self.adopt(self._knowledge(told, began, now))

    def adopt(self, known: Knowledge) -> bool:
        """Another task, or an answer, knows this; returns whether it is the newest."""
        is_newest = known.began >= self.known.began
        if is_newest:
            self.known = known
        return is_newest

    def _knowledge(self, told: Told, began: float, now: float) -> Knowledge:
        own, before, dialect = self.limit.period, self.known, self.limit.reads
        per, left, reset = told.per or own, told.remaining, told.reset
        permits, capacity = before.permits, before.capacity
        if told.limit is not None:
            capacity, permits = told.limit, told.limit * own / per * (UNTOLD if left is None else 1.0)
        refill = capacity / per if dialect.refills else 0.0
        if reset is not None and left is not None and left < capacity and reset > LONGER * per:
            refill = min(refill, (capacity - left) / reset)
        least = FEW_OF_REFILLED if dialect.refills else FEW
        few = min(MOST_FEW, max(least, LATE * (now - began) / per))
        resets = now + (per if reset is None else reset)
        # A sliding window has a little more left then, and a fixed one all: the next answers tell.
        ends = resets if dialect.spreads else max(resets, now + per)
        return Knowledge(began, now, permits, capacity, math.inf if left is None else left, resets, ends, refill, few)

    @property
    def permits(self) -> float:
        """In a period, if enough is left."""
        return min(self.known.permits, self.limit.at_most)

    def pace(self, cost: float, now: float) -> float:
        """The permits in a period that calls of this cost may use now."""
        known, permits = self.known, self.permits
        left = self._left(now)
        if left == math.inf:
            return permits
        if self.limit.reads.spreads:
            share = left * self.limit.period / max(known.resets - known.at, 1e-3) / permits
        else:
            share = left / max(known.few * known.capacity, min(FEW_CALLS * cost, MOST_FEW * known.capacity), 1e-9)
        return permits * min(1.0, max(share, LEAST_PACE))

    def opens(self, cost: float, now: float) -> float:
        """When as much as a call costs is left, as far as it is known; now or later."""
        known = self.known
        missing = min(cost, LARGEST_CALL * known.capacity) - self._left(now)
        if missing <= 0:
            return now
        opens = now + missing / known.refill if known.refill else known.resets
        return max(now, min(opens, known.at + max(LONGEST_WAIT, self.limit.period)))

    def _left(self, now: float) -> float:
        known = self.known
        if known.refill:
            return known.left + max(0.0, now - known.at) * known.refill
        return math.inf if now >= known.ends else known.left


logger = logging.getLogger("asyncudf")

WAIT_NAMED = 60.0  # seconds; of a longer wait the log tells
UNHEARD = 20  # calls that were answered without a word of the limit


class Learner:
    """Takes in the headers of answers, for the limits of a function that are learned.

    Args:
        shared_clock: seconds, of a clock that all tasks share.

    Attributes:
        listeners: called when something newer is known.
        learned: what is known of each, by its place in `rate_limit`.
    """

    # _silent: answered calls without a word of a limit; -1: there was one, or it was warned of
    # _senseless: when the last call began whose answer was counted; its error may have the same headers

    def __init__(
        self, task: HostTask, limits: Sequence[RateLimit], loop: asyncio.AbstractEventLoop,
        shared_clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._task, self._loop, self._shared_clock = task, loop, shared_clock
        self.listeners: list[Callable[[], None]] = []
        self.learned = {place: Learned(limit) for place, limit in enumerate(limits) if isinstance(limit, LearnedLimit)}
        self._warned: set[str] = set()
        self._silent = 0
        self._senseless = -math.inf

    def tell(self, headers: Headers, began: float) -> None:
        """An answer to a call that began then has these headers; any thread may say so."""
        if asyncio._get_running_loop() is self._loop:
            self._take(headers, began)
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: the task is over
            self._loop.call_soon_threadsafe(self._take, headers, began)

    def ended(self, attempt: AskingAttempt, failure: Failure | None) -> None:
        """An attempt is over; its error may have the headers of the answer."""
        if failure is not None:
            for headers in headers_of(failure.error):
                if (read := tried(partial(lowered, headers))) is not None:  # some of a closed answer raise
                    self._take(read, attempt.began)
        elif self._silent >= 0:
            self._silent += 1
            if self._silent == UNHEARD:
                self._silent = -1
                self._warn(
                    "%s has learned nothing of %s in %d answers: an http.session tells its headers by itself, "
                    "for other clients call http.tell_limits(headers)",
                    " and ".join(limit_label(one.limit) for one in self.learned.values()), UNHEARD,
                )  # fmt: skip

    def _take(self, headers: Headers, began: float) -> None:
        now, is_news, is_senseless = self._task.counters.clock(), False, False
        for learned in self.learned.values():
            limit = learned.limit
            told, senseless = limit.reads.read(headers, limit.unit, limit.period)
            if senseless:
                is_senseless = True
                self._warn(
                    "%s ignores headers that make no sense, in an answer for %s: %s", limit_label(limit), senseless
                )
            if not told.is_nothing:
                self._silent = -1
                is_news = learned.tell(told, began, now) or is_news
                self.note(learned)
        if is_senseless and began != self._senseless:
            self._senseless = began
            self._task.counters.totals.senseless_answers += 1
        if is_news:
            for heard in self.listeners:
                heard()

    def waits(self, learned: Learned, seconds: float) -> None:
        """Calls wait so long until something is left of a limit."""
        if seconds >= WAIT_NAMED:
            self._warn(
                "calls of %s wait for %.0f s, as the service tells that nothing is left of %s until then",
                seconds, limit_label(learned.limit),
            )  # fmt: skip

    def note(self, learned: Learned) -> None:
        """Let the figures show what is known."""
        limit = learned.limit
        self._task.counters.totals.learned[limit_label(limit)] = (
            self._shared_clock() - (self._task.counters.clock() - learned.known.at),
            learned.permits,
            limit.period,
            limit.unit,
        )

    def _warn(self, message: str, *values: Any) -> None:
        if message not in self._warned:
            self._warned.add(message)
            logger.warning(message, self._task.name, *values)
