"""Rate limits whose numbers the service tells: what is known of them, and how tasks learn it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ..._errors.answers import headers_of
from ..._errors.call_outcome import CallOutcome
from ..._errors.failure import Failure
from ..._errors.safe import tried
from ..coordinator.client import LEASE
from ..coordinator.link import TaskLink
from ..gate import AskingAttempt, CallingTask
from .bucket import Permits
from .dialects import Headers, Told, lowered
from .job import GRANT, SharedPermits
from .option import LearnedLimit, RateLimit, limit_label
from .task import PermitGate

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

CHANGED = 0.02  # of a pace; less is not worth a new timer
NEWS = 0.1  # of a limit; of less other tasks learn with the next question that is asked anyway
LONG = 1.0  # seconds without permits that other tasks should know of at once, and in which one that waits asks again
WAIT_NAMED = 60.0  # seconds; of a longer wait the log tells
UNHEARD = 20  # calls that were answered without a word of the limit

# A question for permits that also says what this task has learned, and answers what any task has: of each learned limit
# the newest, by when its call began. The keys and arguments of GRANT come first.
#
# more keys: the learned limits. More arguments: for each when the call began, "" if nothing is known, and what its
# answer told; how many there are. Answers what is known of each, "" for nothing, and then as GRANT.
GRANT_AND_LEARN = (
    """
local KEEP_TOLD = 86400000  -- milliseconds
local known = {}
for i = tonumber(table.remove(ARGV)), 1, -1 do
  local told, began, key = table.remove(ARGV), table.remove(ARGV), table.remove(KEYS)
  known[i] = redis.call('GET', key) or ''
  if began ~= '' and tonumber(began) >= (tonumber(string.match(known[i], '^%S+') or '') or -math.huge) then
    known[i] = told
    redis.call('SET', key, told, 'PX', KEEP_TOLD)
  end
end
local function granted()
"""
    + GRANT
    + """
end
for _, one in ipairs(granted()) do known[#known + 1] = one end
return known
"""
)


class Learner:
    """Takes in the headers of answers, for the limits of a function that are learned.

    Args:
        shared_clock: seconds, of a clock that all tasks share.
        heard: called when something newer is known.

    Attributes:
        learned: what is known of each, by its place in `rate_limit`.
    """

    # _silent: answered calls without a word of a limit; -1: there was one, or it was warned of
    # _senseless: when the last call began whose answer was counted; its error may have the same headers

    def __init__(
        self, task: CallingTask, limits: Sequence[RateLimit], loop: asyncio.AbstractEventLoop,
        shared_clock: Callable[[], float], heard: Callable[[], None],
    ) -> None:  # fmt: skip
        self._task, self._loop, self._shared_clock, self._heard = task, loop, shared_clock, heard
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
            self._heard()

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


class LearningGate(PermitGate):
    """`rate_limit` with limits that are learned."""

    # _paces: of each the permits that it has been given last

    def __init__(
        self,
        limits: Mapping[int, RateLimit],
        own: Sequence[tuple[int, Permits]],
        shared: tuple[Sequence[int], SharedPermits] | None,
        learner: Learner,
    ) -> None:
        super().__init__(limits, own, shared)
        self._learner = learner
        self._paces = {place: one.limit.permits for place, one in learner.learned.items()}

    def wait(self, attempt: AskingAttempt, now: float) -> float | None:
        assert attempt.costs is not None
        opens = now
        for place, learned in self._learner.learned.items():
            cost = attempt.costs[place]
            self._set_pace(place, learned, cost, now)
            if cost and (own := learned.opens(cost, now)) > opens:
                opens, self.limit = own, self._labels[place]
                self._learner.waits(learned, own - now)
        return opens - now if opens > now else super().wait(attempt, now)

    def ended(self, attempt: AskingAttempt, outcome: CallOutcome, failure: Failure | None, now: float) -> None:
        self._learner.ended(attempt, failure)

    def _set_pace(self, place: int, learned: Learned, cost: float, now: float) -> None:
        pace, before = learned.pace(cost, now), self._paces[place]
        if abs(pace - before) > CHANGED * before:
            self._paces[place] = pace
            self.follow(place, learned.limit.with_permits(pace))


class LearningPermits(SharedPermits):
    """Permits that all tasks share, of which some are of limits that are learned.

    What a task learns it says with the next question for permits, and at once if the limit is another one. It learns
    what others know with the answer; a task that waits asks again meanwhile, for calls may be due earlier by then.
    """

    # _learned: with the keys of the coordinator, in one order
    # _said: `_pacing`, by what was last said or learned

    def __init__(self, link: TaskLink, limits: Sequence[tuple[str, RateLimit]], learner: Learner) -> None:
        by_limit = {id(one.limit): one for one in learner.learned.values()}
        named = [(name, by_limit[id(limit)]) for name, limit in limits if id(limit) in by_limit]
        self._learner, self._learned = learner, [one for _, one in named]
        self._told = [
            link.coordinator.key("told", f"{name}:{limit_label(one.limit)}", for_all=one.limit.name is not None)
            for name, one in named
        ]
        self._said = [one.limit.permits for one in self._learned]
        self._answers: Sequence[str] = ()
        super().__init__(link, limits)

    def heard(self) -> None:
        """The task has learned something."""
        if self._has_news:
            self._poke()

    @property
    def _has_news(self) -> bool:
        return any(abs(own - said) > NEWS * said for own, said in zip(self._pacing(), self._said, strict=True))

    def _pacing(self) -> list[float]:
        """Of each limit the permits in a period, 0 while there are none for long."""
        soon = self._clock() + LONG
        return [one.permits if one.opens(1.0, soon) <= soon else 0.0 for one in self._learned]

    async def _ask_for(self, asked: Sequence[float], begin: float, given_back: Sequence[object]) -> list[str]:
        time, told = self._coordinator.time, list[object]()
        for one in self._learned:
            known = one.known.moved(time.theirs)
            told += (known.began, " ".join(map(repr, known))) if one.is_told and time.is_known else ("", "")
        self._said = self._pacing()
        keys, more = [*self._names, self._question(), *self._told], (*told, len(self._learned))
        answer: list[str] = await self._coordinator.run(GRANT_AND_LEARN, keys, *asked, LEASE, begin, *given_back, *more)
        self._answers, rest = answer[: len(self._learned)], answer[len(self._learned) :]
        return rest

    async def _lease(self, costs: Sequence[float]) -> None:
        await super()._lease(costs)
        for one, answer in zip(self._learned, self._answers, strict=True):
            if len(numbers := answer.split()) == len(Knowledge._fields):  # a task of another version may have others
                known = Knowledge(*map(float, numbers)).moved(self._coordinator.time.ours)
                if known.began > one.known.began and one.adopt(known):
                    self._learner.note(one)
        self._said = self._pacing()

    async def _exchange(self) -> float:
        if self._costs is None and self._has_news:
            self._costs = [0.0] * len(self._limits)
        pause = await super()._exchange()
        return min(pause, max(LONG, (self._wakes_at - self._clock()) / 4)) if self._is_waiting else pause
