"""A budget that all tasks of a job share: what its calls may cost."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ..._errors.exceptions import FatalError
from ..._errors.safe import type_name, without_secrets
from ..._stores.ledgers import Ledger
from ..coordinator.client import ANSWER, FIRST_PAUSE, LONGEST_PAUSE, MOST_AWAY
from ..coordinator.link import HURRY_EVERY, PACE_SCRIPT, REFRESH, REPORT_EVERY, PeriodicTask, TaskLink
from ..gate import Key
from .amount import CALLS_AT_ONCE, COST_ROUNDING, LOW
from .option import ROUNDING, Budget
from .windows import WHOLE_TIME

BUDGET_LEASE = 60.0  # seconds after which a task that is silent is gone, and has perhaps spent what it held
BUDGET_GAP = 0.001  # seconds between two questions of a task that uses up what it has
KEEP_CALLS = 3_600_000  # milliseconds that the budget of a query outlives its last use
KEEP_NAMED = 400 * 86_400_000  # the same of a budget with a name: it is money, and the next run may come in a year

T = TypeVar("T")


SUMS = f"""
local ROUNDING = {ROUNDING!r}  -- of an amount
local PARTS = 8  -- of what is left: a task gets one of them at most, or what its next call needs
"""


# Gives parts of a budget, each only once. A task reports what it has spent, what it has reserved for attempts in flight
# and what it holds, always in all, so that a question that is repeated, or whose answer is lost, counts once. A task
# gets at most an eighth of what is left, and at least what its next call needs. What other tasks have reserved or hold
# is waited for, for it may come back, and holders learn that a task waits. When a task has been silent for its lease,
# what it had reserved and held counts as spent, for it may have been.
#
# keys: a hash, of each task "number spent reserved held waits lost", of which the last two are flags, and the sums of
# all tasks: spent, out (reserved or held), and how many wait; the tasks by the ends of their leases; the pace.
# Arguments: time, task, total, number of the question, spent, reserved, held, what the next call needs, wanted (-1: the
# task leaves), lease, the run of the budget that the task knows, what was spent before that run, milliseconds to keep
# the keys.
# Answers how far the coordinator is behind, how much the task gets, whether what it needs will never be there, whether
# others wait for what this task holds, what all have spent and what is out, the name of the run, the number of the
# answer, what was spent before, and the time. To a task that knows another run it says only which one it is.
SPEND = (
    PACE_SCRIPT
    + SUMS
    + """
local key, leases, me, total = KEYS[1], KEYS[2], 't:' .. ARGV[2], tonumber(ARGV[3])
local number, spent, reserved, held = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local need, want, lease, known_run, keep_for = tonumber(ARGV[8]), tonumber(ARGV[9]), ARGV[10], ARGV[11], ARGV[13]
local SUM_ROUNDING = ROUNDING * total
local stored = redis.call('HMGET', key, 'spent', 'out', 'waiting', 'run', 'before')
local all = {spent = tonumber(stored[1] or 0), out = tonumber(stored[2] or 0), waiting = tonumber(stored[3] or 0)}
local run = stored[4] or ARGV[2] .. '@' .. text(now)
local before = math.max(tonumber(stored[5] or 0), tonumber(ARGV[12]))
if known_run ~= '' and known_run ~= run then
  redis.call('HSET', key, 'run', run)
  redis.call('PEXPIRE', key, keep_for)
  return {behind(), '0', 0, 0, text(all.spent), text(all.out), run, 0, text(before), text(now)}
end
local function entry(task)
  local found = {}
  for one in string.gmatch(redis.call('HGET', key, task) or '', '%S+') do found[#found + 1] = tonumber(one) end
  return found[1] and found
end
local function count(one, sign)
  local out, lost = one[3] + one[4], one[6]
  all.spent = all.spent + sign * (one[2] + lost * out)
  all.out = all.out + sign * (1 - lost) * out
  all.waiting = all.waiting + sign * one[5]
end
local function keep(task, one)
  count(one, 1)
  for i, value in ipairs(one) do one[i] = text(value) end
  redis.call('HSET', key, task, table.concat(one, ' '))
end
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', '(' .. text(now), 'LIMIT', 0, 100)) do
  redis.call('ZREM', leases, gone)
  local its = entry(gone)
  if its then
    count(its, -1)
    keep(gone, {its[1], its[2], its[3], its[4], 0, 1})
  end
end
local mine, got = entry(me), 0
if mine then count(mine, -1) end
local others = {spent = all.spent, out = all.out, wait = all.waiting > 0}
if want < 0 then
  if mine then all.spent = all.spent + spent end
  redis.call('HDEL', key, me)
  redis.call('ZREM', leases, me)
else
  if mine and number <= mine[1] then
    got = math.max(0, mine[4] - held)  -- repeated: the answer was lost
    mine[6] = 0
  else
    local left = total - before - others.spent - others.out - spent - reserved - held
    if want > 0 and left + SUM_ROUNDING >= need then
      got = math.max(need, need * math.floor(math.min(want, left, left / PARTS) / need))
    end
    mine = {number, spent, reserved, held + got, (want > 0 and got == 0) and 1 or 0, 0}
  end
  keep(me, mine)
  redis.call('ZADD', leases, text(now + tonumber(lease)), me)
end
local answers = redis.call('HINCRBY', key, 'answers', 1)
redis.call('HSET', key, 'spent', text(all.spent), 'out', text(all.out), 'waiting', all.waiting)
redis.call('HSET', key, 'run', run, 'before', text(before))
for i = 1, 2 do redis.call('PEXPIRE', KEYS[i], keep_for) end
local never = total - before - others.spent - spent + SUM_ROUNDING < need
local is_over = got == 0 and others.out <= SUM_ROUNDING and reserved <= SUM_ROUNDING and never
local over, awaited = is_over and 1 or 0, others.wait and 1 or 0
local known = {text(all.spent), text(all.out), run, answers, text(before), text(now)}
return {behind(), text(got), over, awaited, unpack(known)}
"""
)


class SharedBudget(PeriodicTask):
    """A budget that all tasks share; of one event loop.

    A task gives back what it holds and does not need: while other tasks wait for it, and when it ends. A task that is
    killed gives nothing back: after a minute, all that it had reserved and held counts as spent, as it may have been.

    Args:
        name: the name under which tasks share the budget.
        ledger: is written before calls begin, so that nothing that was spent is missing in it.
        waiting: how many calls would begin now if their costs were there.
    """

    is_newly_spent = False  # only keys are counted
    window = during = WHOLE_TIME
    seconds_left = None

    # What a task holds comes in blocks, which double as they are used up. A budget that is settled is money, and a task
    # that is killed loses what it holds: there a block is no more than what is reserved for calls in flight, or what
    # calls that wait need. While calls are in flight the task asks for the next block when half of one is left.
    #
    # _spent, _reserved, _available: by attempts that are over, for those in flight, and what may be reserved unasked
    # _need: what the next call needs, so that it is not given back; 0: none asks
    # _usual: what the last call has needed
    # _is_scarce: the last block was not whole, so nothing is asked for before a call needs it
    # _is_awaited: other tasks wait for what this one holds
    # _over: the smallest need that was refused for good
    # _number: of the last question; 0: there was none
    # _run: the coordinator's name for this budget; another name means that it restarted empty
    # _before: what runs before this one have spent; None: not known yet
    # _known: what all have spent, reserved or held at the last answer

    def __init__(
        self,
        link: TaskLink,
        name: str,
        budget: Budget,
        ledger: Ledger | None = None,
        waiting: Callable[[Key], int] = lambda _: 1,
    ) -> None:
        is_named = budget.name is not None
        keys = [link.coordinator.key(kind, name, for_all=is_named) for kind in ("budget", "holders")]
        super().__init__(link, keys, gap=BUDGET_GAP)
        self._total, self.is_settled, self._ledger = budget.amount, budget.is_settled, ledger
        self._keep = KEEP_NAMED if is_named else KEEP_CALLS
        self._waiting = waiting
        self._spent = self._reserved = self._available = self._need = self._usual = 0.0
        self._run, self._known = "", 0.0
        self._number, self._block = 0, 1
        self._is_awaited = self._is_scarce = False
        self._over = math.inf
        self._before: float | None = None if ledger is not None else 0.0
        self._spent_by_all = self.told = 0.0

    def of(self, key: str) -> SharedBudget:
        """The amount, which is the same for all keys."""
        return self

    def ask(self, need: float) -> bool:
        """Whether so much may be reserved now; if not, it is asked for, and `wake` is called when there may be more."""
        if need <= 0:
            return True
        is_there = self._holds(need)
        if self._need != need:
            self._need = need
            if not is_there:
                self._poke()
        return is_there

    def _holds(self, need: float) -> bool:
        return need * (1 - COST_ROUNDING) <= self._available

    def is_spent(self, need: float) -> bool:
        return need >= self._over

    def reserve(self, need: float) -> None:
        self._available = max(0.0, self._available - need)
        if self.is_settled:
            self._reserved += need
        else:
            self._spent += need
        self._need, self._usual = 0.0, need
        if self._is_low:
            self._poke()

    @property
    def _ahead(self) -> float:
        """How much to hold before a call needs it."""
        if self._is_scarce or self._is_awaited:
            return 0.0
        block = self._block * self._usual
        return min(block, self._reserved) if self.is_settled else block

    @property
    def _is_low(self) -> bool:
        ahead, available = self._ahead, self._available
        return available < LOW * ahead and available + self._usual <= ahead

    def settle(self, reserved: float, cost: float) -> None:
        self._reserved = max(0.0, self._reserved - reserved)
        self._spent += cost
        self._available += max(0.0, reserved - cost)
        if self._is_awaited or self._need > self._available:
            self._poke()

    @property
    def spent_by_all(self) -> float:
        return max(self._spent_by_all, self._spent + (self._before or 0.0))

    def _last_message(self) -> Awaitable[object] | None:
        return self._leave() if self._number else None

    async def _leave(self) -> None:
        self._spent, self._reserved, self._available = self._spent + self._reserved, 0.0, 0.0
        await self._question(0.0, -1.0)

    async def _exchange(self) -> float:
        if not self._number and not self._need:
            return REFRESH
        if self._before is None:
            await self._question(0.0, 0.0)
        spare = self._need if self._is_awaited else max(self._need, self._reserved)
        if self._is_awaited or self.is_settled:
            self._available = min(self._available, spare)
        need, want = self._need, 0.0
        if not self._holds(need):
            self._available = 0.0  # too little for a call, and together with what others hold it may be enough
            want = self._block * need
            if self.is_settled:
                want = min(want, max(need * max(1, self._waiting("")), self._reserved))
        elif self._is_low:
            need, want = self._usual, self._ahead - self._available
        got, is_over = await self._question(need, want)
        self._available += got
        if got:
            self._block = min(CALLS_AT_ONCE, 2 * self._block)
        if is_over and need:
            self._over = min(self._over, need)
        if want:
            self._is_scarce = got + need <= want
            self._link.wake()
        if self._is_awaited and self._available:
            self._need = 0.0  # the call that asked may need none by now; else it asks again
            self._link.wake()
            return HURRY_EVERY
        if not self._holds(self._need):
            return HURRY_EVERY
        return REPORT_EVERY if self._available or self._reserved else REFRESH

    async def _question(self, need: float, want: float) -> tuple[float, bool]:
        self._number += 1
        amounts = (self._spent, self._reserved, self._available, need, want)
        known = (self._run, self._before or 0.0, self._keep)
        answer = await self._ask(SPEND, self._link.task, self._total, self._number, *amounts, BUDGET_LEASE, *known)
        got, is_over, is_awaited, spent, out = map(float, answer[:5])
        run, number, before, self.told = str(answer[5]), int(answer[6]), float(answer[7]), float(answer[8])
        if self._run not in ("", run):
            # The coordinator has lost its memory: all that was known counts as spent, and a new run begins with that.
            self._run, self._before = run, self._known
            self._spent = self._reserved = self._available = 0.0
            return await self._question(need, want)
        self._run, self._is_awaited = run, bool(is_awaited)
        self._spent_by_all, self._known = before + spent, before + spent + out
        if (ledger := self._ledger) is not None:
            if self._before is None:
                self._before = await kept(lambda: ledger.spent_before(run), self._clock)
            await kept(lambda: ledger.write(run, number, spent + out), self._clock)
        return got, bool(is_over)


async def kept(ask: Callable[[], Awaitable[T]], clock: Callable[[], float]) -> T:
    """Read or write a ledger; raises FatalError if it is away for longer than the coordinator may be."""
    begun, pause = clock(), FIRST_PAUSE
    while True:
        try:
            async with asyncio.timeout(ANSWER):
                return await ask()
        except Exception as error:
            if clock() - begun + pause > MOST_AWAY:
                raise FatalError(
                    f"what is spent of a budget could not be kept in the store= for {MOST_AWAY:g} s, and the next "
                    f"run would spend it again ({type_name(error)}: {without_secrets(str(error))})"
                ) from error
        await asyncio.sleep(pause)
        pause = min(LONGEST_PAUSE, 2 * pause)
