"""The permits of a rate limit that all tasks share: those that the coordinator grants, and those that a task holds."""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Awaitable, Sequence

from ..._errors.checks import LONGEST
from ..coordinator.client import LEASE, NOW_SCRIPT, RUN, UPTIME, Coordinator
from ..coordinator.link import KEEP_LIMIT, PeriodicTask, TaskLink
from .bucket import BlockSize, GrantedPermits, nap_of, take, tightest
from .learned import Knowledge, Learner
from .option import TIME_ROUNDING, RateLimit, limit_label

IDLE_FOR = 3600.0  # seconds: without a call that needs permits nothing is asked
GIVEN_BACK_AFTER = 1.5 * LEASE  # seconds after an answer in which permits that no call needs are given back
ROUND_TRIPS = 2.0  # round trips that permits should last for
LOST = 0.5  # of a call's permits: when less becomes stale, nothing was lost
OUTDATED = 1.5  # times the interval of permits that a task has: parts that are too short for a call would become stale
RENEWED = LEASE / 2  # seconds before a call begins with permits whose lease would be over by then
NEWS = 0.1  # of a limit; of less other tasks learn with the next question that is asked anyway
LONG = 1.0  # seconds without permits that other tasks should know of at once, and in which one that waits asks again
NEVER_USED = -LONGEST  # seconds: so long ago that any burst is saved up


# The state of a limit is the free stretches of its time, each from a start to an end; the last one has no end. GCRA
# would keep the start of the last one alone. But a call with several limits takes from each the permits of the time at
# which it begins, and earlier permits must stay free for others. Otherwise, of two limits that others want too, a call
# of both would take too much of one, or get them at such different times, that it or the others get nothing.
#
# Where the server has no entry of a limit, or one from before its restart, what was granted is unknown. Then the
# limit begins when all of that has run out, after a lease, in a new epoch, which tells tasks that theirs are void.
_STATE = (
    NOW_SCRIPT
    + RUN
    + f"""
local CLOSE = {2 * TIME_ROUNDING!r}  -- seconds: the same time after some arithmetic, here and in the task
local STRETCHES = 64  -- at most; the oldest are given up
local KEEP_LIMIT = {KEEP_LIMIT}  -- milliseconds
"""
    + """
local function state_of(key, wait)
  local epoch, made, numbers = string.match(redis.call('GET', key) or '', '((%w*)@%S+) (.*)')
  local free = {}
  for number in string.gmatch(numbers or '', '%S+') do free[#free + 1] = tonumber(number) end
  if made == run then return {epoch = epoch, free = free} end
  return {epoch = run .. '@' .. text(now), free = {math.max(now + wait, free[#free - 1] or -math.huge), math.huge}}
end
local function keep(key, state, earliest)
  local free = state.free
  while free[2] <= earliest or #free > 2 * STRETCHES do
    table.remove(free, 1)
    table.remove(free, 1)
  end
  local seconds, kept = math.max(0, free[#free - 1] - now), {state.epoch}
  for i, time in ipairs(free) do kept[i + 1] = text(time) end
  redis.call('SET', key, table.concat(kept, ' '), 'PX', text(math.ceil(1000 * seconds) + KEEP_LIMIT))
end
"""
)


# What a task gives back is free again, also between stretches that others have. A question whose answer was lost comes
# again, and by then another task may have what was given back.
_GIVE_BACK = """
local AGAIN = 60000  -- milliseconds in which a question may come again
local function give_back(free, from, to)
  local at = 1
  while at < #free and free[at] < from do at = at + 2 end
  from, to = math.max(from, free[at - 1] or -math.huge), math.min(to, free[at] or -math.huge)
  if to - from <= CLOSE then return end
  table.insert(free, at, to)
  table.insert(free, at, from)
  for _, gap in ipairs({at + 1, at - 1}) do
    if gap > 0 and free[gap + 1] - free[gap] <= CLOSE then
      table.remove(free, gap)
      table.remove(free, gap)
    end
  end
end
"""


# Begins the limits of a job; without this its first calls wait for a lease, as after a loss of memory. A limit without
# an entry has not been used since the server began, unless the server has evicted keys.
#
# keys: the limits. Arguments: time; for each limit the seconds before its first permits if the server began just now.
OPEN = (
    _STATE
    + UPTIME
    + """
for i, key in ipairs(KEYS) do keep(key, state_of(key, tonumber(ARGV[i + 1]) - kept), -math.huge) end
"""
)


# Takes back what a task does not use, and grants permits for its calls, of all its limits at once: of each a stretch,
# which may lie ahead. So a task that has to wait knows for how long; if it gives that back and asks again, it gets the
# same, or what has become free before it. Where one limit makes the call wait, the permits of the others are those of
# that later time, for earlier ones would be stale by then.
#
# keys: the limits, and a name of the question. Arguments: time; for each limit, in seconds of its time: saved permits,
# permits of the next call, permits wanted in all (both 0: the task has some, or needs none); the lease; when the call
# may begin as far as it has permits; for each stretch that is given back its limit's number, epoch, start and end.
# Answers the time, and for each limit the epoch, and the start and the end of the stretch.
GRANT = (
    _STATE
    + _GIVE_BACK
    + """
local SPAN = 0.1  -- seconds that are granted at most, beside what is there at once
local question, numbers = KEYS[#KEYS], 3 * (#KEYS - 1) + 1
local states, asked, lease, due = {}, {}, tonumber(ARGV[numbers + 1]), math.max(now, tonumber(ARGV[numbers + 2]))
for i = 1, #KEYS - 1 do
  local saved, length, most = unpack(ARGV, 3 * i - 1, 3 * i + 1)
  saved, length, most = tonumber(saved), tonumber(length), tonumber(most)
  states[i] = state_of(KEYS[i], math.max(lease, length - saved))
  states[i].saved, states[i].length, states[i].most, states[i].start, states[i].last = saved, length, most, 0, 0
  if most > 0 then asked[#asked + 1] = states[i] end
end
if #ARGV > numbers + 2 and not redis.call('GET', question) then
  redis.call('SET', question, '', 'PX', AGAIN)
  for at = numbers + 3, #ARGV, 4 do
    local state = states[tonumber(ARGV[at])]
    if state.epoch == ARGV[at + 1] then give_back(state.free, tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])) end
  end
end
local is_final
repeat
  is_final = true
  for _, one in ipairs(asked) do
    one.at = -1
    repeat
      one.at = one.at + 2
      one.start, one.last = math.max(one.free[one.at], due - one.saved), one.free[one.at + 1]
    until one.start + one.length <= one.last + CLOSE
    local own = one.start + math.min(one.length, one.saved)  -- so long after their start the call may begin
    if own > due + CLOSE then due, is_final = own, false end
  end
until is_final
local part = 1
for _, one in ipairs(asked) do
  part = math.min(part, (math.min(one.last, math.max(now, one.start + SPAN)) - one.start) / one.most)
end
for _, one in ipairs(asked) do
  local free, from, to = one.free, one.free[one.at], one.last
  local calls = math.max(1, math.floor(part * one.most / one.length + CLOSE))
  one.last = math.min(to, one.start + calls * one.length)
  table.remove(free, one.at)
  table.remove(free, one.at)
  for _, rest in ipairs({{one.last, to}, {from, one.start}}) do
    if rest[2] > rest[1] + CLOSE then
      table.insert(free, one.at, rest[2])
      table.insert(free, one.at, rest[1])
    end
  end
end
local answer = {text(now)}
for i, one in ipairs(states) do
  keep(KEYS[i], one, now - one.saved)
  for _, said in ipairs({one.epoch, text(one.start), text(one.last)}) do answer[#answer + 1] = said end
end
return answer
"""
)


async def open_limits(coordinator: Coordinator, limits: Sequence[tuple[str, RateLimit]]) -> None:
    """Begin the limits of a job: no task has permits yet, but other jobs may have some of a limit with a name."""
    begin = [NEVER_USED if limit.name is None else LEASE - limit.saved * limit.interval for _, limit in limits]
    await coordinator.run(OPEN, _keys(coordinator, limits), *begin)


def _keys(coordinator: Coordinator, limits: Sequence[tuple[str, RateLimit]]) -> list[str]:
    return [coordinator.key("permits", name, for_all=limit.name is not None) for name, limit in limits]


class SharedPermits(PeriodicTask):
    """Permits of one or more limits that all tasks share, leased in blocks; of one event loop.

    Each limit has a name under which it is shared: by the tasks of this namespace, or by all jobs if the user gave the
    name.
    """

    # At most one question is under way, and one timer set. The next permits are asked for a round trip before those at
    # hand are used up, so that no call waits for the coordinator.
    #
    # When the lease is over a task gives back the permits that it has: another may wait for those that it does not use.
    # If a call waits it asks again in the same question. So it gets the same permits, or what has become free before
    # them.
    #
    # A call that needs more permits than there are asks for all that it needs: what is left of an older lease may be
    # stale when the newer one comes due. Not so of a limit that is settled. There each call needs another number, as
    # calls that have ended give back another one, so of each lease a part of a call would be left and become stale:
    # most of a lease for one call, so that its block was too long, and the next ones had to be for one call again. So
    # that part is kept for a call that waits, which asks for the rest alone; and as it begins it takes what is due
    # first, and what was given back, which does not become stale meanwhile, last.
    #
    # Permits count for a lease after the last answer: by then a coordinator that has lost its memory grants new ones.
    #
    # _epochs: of each limit, under which its permits were granted
    # _ends: the end of the lease
    # _waits_for: the costs of the call that the timer is for
    # _costs: of the call for which permits are asked, or will be; None: no call needs any
    # _whole: what the last call costs that has looked, whatever was given back
    # _is_waiting: a call waits since the task has last looked
    # _wakes_at: when it should look again, by the timer or an answer
    # _granted_for: of each limit the interval when permits were last asked for
    # _is_outdated: a limit is much slower or faster since; then they are given back, and asked for anew
    # _is_late: it has looked later than that since the last question, so permits became stale whatever the block

    def __init__(self, link: TaskLink, limits: Sequence[tuple[str, RateLimit]]) -> None:
        super().__init__(link, (), gap=0.0)
        self._names = _keys(link.coordinator, limits)
        self._limits = [limit for _, limit in limits]
        self._leased = [GrantedPermits(limit) for limit in self._limits]
        self._epochs = [""] * len(limits)
        self._ends = 0.0
        self._granted_for = [limit.interval for limit in self._limits]
        self._size = BlockSize(self._limits)
        self._nap = nap_of(self._limits)
        self._costs: Sequence[float] | None = None
        self._wakes_at = math.inf
        self._is_waiting = self._is_late = self._is_outdated = False
        self._timer: asyncio.TimerHandle | None = None
        self._waits_for: Sequence[float] = ()
        self._whole: Sequence[float] = [0.0] * len(limits)

    def take(self, costs: Sequence[float], whole: Sequence[float] = ()) -> Sequence[float] | None:
        """Take a call's permits, of all limits or of none; if None, the task is woken when there may be some.

        Args:
            costs: the permits that the call needs of each limit.
            whole: the full costs of the call, if it needs less because earlier calls left permits unused. A call that
                has waited takes as many of these as are due: they would only become stale.

        Returns:
            The permits that the call has taken of each limit.
        """
        if self._timer is not None:
            if costs == self._waits_for:
                return None
            self._forget_timer()  # it may need fewer by now, as a call has given back what it did not use
        now = self._clock()
        self._is_late = self._is_late or now > self._wakes_at + self._nap
        self._wakes_at = math.inf
        wait = take(self._leased, costs, now) if now < self._ends else None
        taken: Sequence[float] | None = costs if wait == 0.0 else None
        self._whole = whole or costs
        if self._is_waiting and taken is not None:
            taken = self._with_what_is_due(costs, now)
        if self._is_waiting or taken is None:
            for leased, cost in zip(self._leased, costs, strict=True):
                leased.awaited = cost if taken is None else 0.0
        self._is_waiting = taken is None
        is_asked = wait is None or self._is_outdated or any(self._few(costs, now))
        if wait == 0.0:
            self._size.began()
        elif wait is not None:
            self._size.waited()
            nap = wait
            if now + wait >= self._ends:  # they no longer count by then, unless the lease is renewed
                is_asked = is_asked or wait <= RENEWED
                nap = min(wait - RENEWED, self._ends - now)
            self._waits_for = costs
            nap = max(nap, self._nap)
            self._wakes_at = now + nap
            self._timer = asyncio.get_running_loop().call_later(nap, self._look_again)
        if is_asked and self._costs is None:
            self._costs = costs
            self._poke()
        return taken

    def _with_what_is_due(self, costs: Sequence[float], now: float) -> Sequence[float]:
        """Take what is due of the full costs, beyond `costs`; returns `costs` and what was taken."""
        permits = zip(self._leased, costs, self._whole, strict=True)
        return [cost + leased.use_due(whole - cost, now) for leased, cost, whole in permits]

    def follow(self, number: int, limit: RateLimit) -> None:
        """From now on the permits of a limit come as this one says, and a call that waits asks again."""
        self._limits[number] = limit
        self._leased[number].follow(limit)
        self._size.follow(self._limits)
        self._nap = nap_of(self._limits)
        self._is_outdated = (
            self._is_outdated or not 1 / OUTDATED < limit.interval / self._granted_for[number] < OUTDATED
        )
        self._forget_timer()

    def tightest(self, costs: Sequence[float]) -> int | None:
        """Which of the limits lets a call begin last; None while permits are asked for."""
        return tightest(self._leased, costs, self._clock())

    async def close(self) -> None:
        await super().close()
        self._forget_timer()

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _last_message(self) -> Awaitable[object] | None:
        nothing = [one for limit in self._limits for one in (limit.saved * limit.interval, 0.0, 0.0)]
        given_back = self._give_back()
        return self._ask_for(nothing, 0.0, given_back) if given_back else None

    def _give_back(self) -> list[object]:
        """Give up all stretches that are not used; returns the number of the limit, epoch, start and end of each."""
        return [
            one
            for number, (leased, epoch) in enumerate(zip(self._leased, self._epochs, strict=True), 1)
            for start, end in leased.give_back()
            for one in (number, epoch, start, end)
        ]

    def _ask_for(self, asked: Sequence[float], begin: float, given_back: Sequence[object]) -> Awaitable[list[str]]:
        return self._coordinator.run(GRANT, [*self._names, self._question()], *asked, LEASE, begin, *given_back)

    def _question(self) -> str:
        """A name for the next question."""
        return self._coordinator.key("question", uuid.uuid4().hex)

    @property
    def _lead(self) -> float:
        """Seconds before the next permits are here, and a little more."""
        return ROUND_TRIPS * self._coordinator.trip + self._nap

    def _look_again(self) -> None:
        self._timer = None
        self._link.wake()

    def _few(self, costs: Sequence[float], now: float) -> list[bool]:
        """For each limit, whether its permits are too few for the calls of the next round trips."""
        soon = self._size.soon(now, self._lead)
        return [leased.held(now) < soon * cost for leased, cost in zip(self._leased, costs, strict=True)]

    def _was_too_long(self, costs: Sequence[float]) -> bool:
        """Whether a limit has lost as much as a call since the last question, because it was granted too much."""
        lost = any(leased.stale > LOST * max(cost, 1.0) for leased, cost in zip(self._leased, self._whole, strict=True))
        for leased in self._leased:
            leased.stale = 0.0
        is_late, self._is_late = self._is_late, False
        return lost and not is_late

    async def _exchange(self) -> float:
        if self._costs is None and self._has_permits:
            self._costs = [0.0] * len(self._limits)
        if self._costs is not None:
            await self._lease(self._costs)
            self._costs = None
            if self._is_waiting and self._timer is None:
                self._wakes_at = self._clock()
            self._link.wake()
        return GIVEN_BACK_AFTER if self._has_permits else IDLE_FOR

    @property
    def _has_permits(self) -> bool:
        now = self._clock()
        return any(leased.held(now) for leased in self._leased)

    async def _lease(self, costs: Sequence[float]) -> None:
        sent, time = self._clock(), self._coordinator.time
        dues = [leased.due(cost, sent) for leased, cost in zip(self._leased, costs, strict=True)]
        is_late = self._is_outdated or any(due >= self._ends for due in [sent, *dues] if due is not None)
        if self._is_outdated:
            self._forget_timer()  # which is for permits that are given back
        self._granted_for, self._is_outdated = [limit.interval for limit in self._limits], False
        given_back = self._give_back() if is_late else []
        few = self._few(costs, sent)
        calls = self._size.next(sent, self._lead, was_too_long=self._was_too_long(costs))
        asked: list[float] = []
        begin = 0.0
        for limit, leased, cost, are_few in zip(self._limits, self._leased, costs, few, strict=True):
            due = leased.due(cost, sent)
            need = most = 0.0
            if due is None or are_few:
                # The costs of the next calls are not known: assume that each costs as much as this one.
                held = leased.held(sent) if due is None else 0.0
                need = cost - min(held, leased.kept)
                most = max(need, calls * cost - held)
            elif due > sent:
                begin = max(begin, time.theirs(due))
            asked += [one * limit.interval for one in (limit.saved, need, most)]
        said, *granted = await self._ask_for(asked, begin, given_back)
        time.update(sent, float(said), self._clock())
        for number, (epoch, start, end) in enumerate(zip(*[iter(granted)] * 3, strict=True)):
            self._add(number, epoch, float(start), float(end))
        self._ends = sent + LEASE

    def _add(self, number: int, epoch: str, start: float, end: float) -> None:
        if epoch != self._epochs[number]:
            if self._epochs[number]:
                self._coordinator.has_forgotten()
                self._leased[number] = GrantedPermits(self._limits[number])
            self._epochs[number] = epoch
        if end > start:
            ours = self._coordinator.time.ours
            self._leased[number].add(ours(start), ours(end), start - ours(start))


# A question for permits that also says what this task has learned, and answers what any task has: of each learned limit
# the newest, by when its call began. The keys and arguments of GRANT come first.
#
# more keys: the learned limits. More arguments: for each when the call began, "" if nothing is known, and what its
# answer told; how many there are. Answers what is known of each, "" for nothing, and then as GRANT.
GRANT_AND_LEARN = (
    f"""
local KEEP_LIMIT = {KEEP_LIMIT}  -- milliseconds
local known = {{}}
for i = tonumber(table.remove(ARGV)), 1, -1 do
  local told, began, key = table.remove(ARGV), table.remove(ARGV), table.remove(KEYS)
  known[i] = redis.call('GET', key) or ''
  if began ~= '' and tonumber(began) >= (tonumber(string.match(known[i], '^%S+') or '') or -math.huge) then
    known[i] = told
    redis.call('SET', key, told, 'PX', KEEP_LIMIT)
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


class LearningPermits(SharedPermits):
    """Permits that all tasks share, where answers of the service tell the numbers of some limits.

    A task tells what it has learned with its next question for permits, or at once if the limit has changed. The answer
    has what other tasks know. A task that waits asks again meanwhile, as its calls may now be due earlier.
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
        learner.listeners.append(self.heard)

    def heard(self) -> None:
        """The task has learned something."""
        if self._has_news:
            self._poke()

    @property
    def _has_news(self) -> bool:
        return any(abs(own - said) > NEWS * said for own, said in zip(self._pacing(), self._said, strict=True))

    def _pacing(self) -> list[float]:
        """The permits of each limit in a period; 0 while there are none for long."""
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
