"""A budget of windows or keys that all tasks of a job share: an amount for each key in each window."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence

from ..._errors.exceptions import FatalError
from ..._stores.ledgers import Ledger, Window
from ..coordinator.client import LONGEST_PAUSE
from ..coordinator.link import HURRY_EVERY, MOST_KEYS, PACE_SCRIPT, REFRESH, PeriodicTask, TaskLink
from ..gate import Key
from .amount import KeyAmount, OpenWindow, Question, Reply
from .job import BUDGET_GAP, BUDGET_LEASE, KEEP_CALLS, KEEP_NAMED, SUMS, kept
from .option import Budget, budget_label
from .windows import Windows

RENEW_EVERY = BUDGET_LEASE / 3
KEEP_OVER = 120_000  # milliseconds that a window outlives its end: a task may be late to learn of it
LOST = "lost"  # the run of a window whose amounts nobody knows any more

# Amounts of many keys in one question. What a task gets counts as spent at once, and what it gives back is taken off
# again; so what a task that dies had reserved is spent without anybody's doing, and no task has an entry of its own.
# How many tasks hold something of a key tells whether it may come back; they renew that with each question, and when
# none of them has done so for a lease, nothing comes back. A question that is repeated as its answer was lost has the
# number of the one before, and gets the same answer.
#
# keys: a hash of the window, of each key "spent", or "spent holders until flag" while tasks hold something of it or
# once it has turned a row away, and the name of its run; the time of the budget, which never goes back; the task's last
# answer; the pace.
# Arguments: time, number of the question, task, amount of each key, lease, the run that the task knows, the time of the
# ledger, whether there is one, milliseconds to keep the hash and the time; then of each key: its name, what the ledger
# has of it (empty: not asked), what is to be added, what the next call needs, wanted, whether the task held something,
# and whether it does so whatever it gets.
# Answers how far the coordinator is behind, the time, the run, and of each key how much the task gets, a verdict, and
# what is spent. The verdict: 1: what the call needs will never be there; 2: and it is the first that is turned away; ?:
# the ledger has to be asked; else 0.
SPEND_KEYS = (
    PACE_SCRIPT
    + SUMS
    + """
local amounts, clock, reply, number, me = KEYS[1], KEYS[2], KEYS[3], ARGV[2], ARGV[3]
local total, lease, known, has_ledger = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6], ARGV[8] == '1'
local time = math.max(now, tonumber(ARGV[7]), tonumber(redis.call('GET', clock) or '0'))
redis.call('SET', clock, text(time), 'PX', ARGV[10])
local last = redis.call('GET', reply)
local before = last and string.match(last, '^(%S+) ')
if before == number then return {behind(), text(time), string.match(last, '^%S+ (%S+) (.*)$')} end
local run = redis.call('HGET', amounts, 'run')
if known ~= '' and known ~= run and not has_ledger then run = 'lost' end
run = run or (me .. '@' .. text(now))
if #ARGV > 10 then
  redis.call('HSET', amounts, 'run', run)
end
redis.call('PEXPIRE', amounts, run == 'lost' and 3600000 or ARGV[9])
if run == 'lost' or (known ~= '' and known ~= run) then return {behind(), text(time), run, ''} end
local said = {}
for i = 11, #ARGV, 7 do
  local key, stored, found = ARGV[i], ARGV[i + 1], redis.call('HGET', amounts, ARGV[i])
  if not found and stored == '' then
    said[#said + 1] = '0 ? 0'
  else
    local one = {}
    for part in string.gmatch(found or stored, '%S+') do one[#one + 1] = tonumber(part) end
    local spent, holders, till, flag = one[1] + tonumber(ARGV[i + 2]), one[2] or 0, one[3] or 0, one[4] or 0
    local need, want, keeps = tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4]), ARGV[i + 6] == '1'
    if till < now then holders = 0 end
    holders = math.max(0, holders - tonumber(ARGV[i + 5]))
    local left, got, verdict = total - spent, 0, 0
    if want > 0 and left + ROUNDING * total >= need then
      got = math.max(need, need * math.floor(math.min(want, left / PARTS) / need))
    elseif want > 0 and holders == 0 and not keeps then
      verdict = 2 - flag
      flag = 1
    end
    if keeps or got > 0 then holders, till = holders + 1, now + lease end
    spent = text(spent + got)
    local rest = holders + flag > 0 and string.format(' %d %.0f %d', holders, till, flag) or ''
    redis.call('HSET', amounts, key, spent .. rest)
    said[#said + 1] = text(got) .. ' ' .. verdict .. ' ' .. spent
  end
end
local answer = table.concat(said, ' ')
redis.call('SET', reply, number .. ' ' .. run .. ' ' .. answer, 'PX', 1000 * lease)
return {behind(), text(time), run, answer}
"""
)


class KeyedBudget(PeriodicTask):
    """The amounts of a budget for each window and key, which all tasks share; of one event loop.

    Windows begin by the coordinator's clock. Once the job or the ledger has seen a window begin, no earlier window is
    used again, even if a clock is set back.

    Args:
        name: the name under which tasks share the budget.
        ledger: is written before calls begin, so that nothing that was spent is missing in it.
        wake: is called with a key when an answer may let calls of it begin that had to wait.
        waiting: how many calls of a key would begin now if their costs were there.
    """

    # _ahead: seconds that the budget's time is ahead of the task's clock; None: not known yet
    # _ended: keys that were in use when a window ended: calls that waited there ask again
    # _ledger_time: of the newest window in the ledger
    # _look_at, _renew_at, _refresh_at: when `look_again` is due, all that is held is said again, and the time is asked
    # _told: the coordinator's time in its last answer
    # _number: of the last question; 0: there was none

    def __init__(
        self,
        link: TaskLink,
        name: str,
        budget: Budget,
        ledger: Ledger | None,
        wake: Callable[[Key], None],
        waiting: Callable[[Key], int] = lambda _: 1,
    ) -> None:
        self._wake, self._waiting = wake, waiting
        self._name, self._budget, self._ledger, self.is_settled = name, budget, ledger, budget.is_settled
        self._windows = Windows(budget.per)
        self._ahead = None if budget.per else 0.0
        self._open = self._opened(Window(-math.inf, -math.inf, ""))
        self._ended = set[Key]()
        self._ledger_time, self._told, self._number = 0.0, 0.0, 0
        self._look_at = self._renew_at = self._refresh_at = 0.0
        super().__init__(link, (), gap=BUDGET_GAP)

    def _opened(self, window: Window) -> OpenWindow:
        return OpenWindow(window, self._poke, self._waiting, is_settled=self.is_settled)

    def of(self, key: Key) -> KeyAmount:
        """The amount of a key in the current window."""
        return self._of_now().of(key)

    def _of_now(self) -> OpenWindow:
        """The current window; the first question in a new window ends the window before."""
        before = self._open
        if self._ahead is not None and (now := self._windows.at(self._time())) is not before.window:
            self._open = self._opened(now)
            self._ended.update(amount.key for amount in (*before.changed, *before.waiting, *before.held))
            self._poke()
        return self._open

    @property
    def window(self) -> Window:
        return self._open.window

    @property
    def seconds_left(self) -> float | None:
        return self._open.window.left(self._time())

    def _time(self) -> float:
        return self._clock() + (self._ahead or 0.0)

    def _last_message(self) -> Awaitable[object] | None:
        return self._leave() if self._number else None

    async def _leave(self) -> None:
        window = self._open
        window.changed.update(dict.fromkeys(window.held))
        while asked := window.take(MOST_KEYS):
            await self._say(window, [amount.question(is_last=True) for amount in asked])

    async def _exchange(self) -> float:
        if self._ahead is None and not self._open.changed:
            return REFRESH
        if self._ahead is None or (self._number and self._clock() >= self._refresh_at):
            await self._refresh()
        now, window = self._clock(), self._of_now()
        ended, self._ended = self._ended, set()
        for key in ended:
            self._wake(key)
        if now >= self._renew_at:
            self._renew_at = now + RENEW_EVERY
            window.changed.update(dict.fromkeys(window.held))
        if now >= self._look_at:
            self._look_at = now + HURRY_EVERY
            for amount in window.look_again():
                self._wake(amount.key)
        if asked := window.take(MOST_KEYS):
            questions = [amount.question(is_last=False) for amount in asked]
            await self._say(window, questions)
            for question in questions:
                if question.want:
                    self._wake(question.of.key)
        if window.changed:
            return 0.0
        return HURRY_EVERY if window.held or window.waiting else REFRESH

    async def _refresh(self) -> None:
        """Ask what the time is."""
        if self._ahead is None and self._ledger is not None:
            self._ledger_time = await kept(self._ledger.newest, self._clock)
        self._refresh_at = self._clock() + REFRESH
        await self._asked(self._open, (), {})

    async def _say(self, window: OpenWindow, questions: Sequence[Question]) -> None:
        """Ask the coordinator, and write to the ledger what is spent by its answers."""
        answers = await self._answers(window, questions, {})
        if (ledger := self._ledger) is not None:
            if unknown := [one for one in questions if answers[one.of].verdict == "?"]:
                keys = [one.of.key for one in unknown]
                found = await kept(lambda: ledger.spent(window.window, keys), self._clock)
                answers |= await self._answers(window, unknown, found)
            added = {one.of.key: one.added + answers[one.of].got for one in questions}
            if any(added.values()):
                number = self._number
                await kept(lambda: ledger.add(window.window, self._link.task, number, added), self._clock)
        for one in questions:
            window.note(one, answers[one.of])
            window.told = self._told

    async def _answers(
        self, window: OpenWindow, questions: Sequence[Question], found: Mapping[Key, float]
    ) -> dict[KeyAmount, Reply]:
        """The coordinator's answers; `found`: what the ledger has of the keys, where it was asked."""
        while True:
            run, text = await self._asked(window, questions, found)
            if run == window.run or not window.run or self._ledger is None:
                break
            window.run = run  # the coordinator has lost its memory, and the ledger has it
            await asyncio.sleep(LONGEST_PAUSE)  # others write to it what they had got before
        if run == LOST:
            raise FatalError(
                f"the coordinator has lost what was spent of the budget of {budget_label(self._budget)}, and nobody "
                "else knows it: it was started anew, or evicts keys. A budget with a name= keeps it in a disk or Redis "
                "store of the function"
            )
        window.run = run
        parts = iter(text.split())
        return {
            one.of: Reply(float(got), verdict, float(spent))
            for one, (got, verdict, spent) in zip(questions, zip(parts, parts, parts, strict=True), strict=True)
        }

    async def _asked(
        self, window: OpenWindow, questions: Sequence[Question], found: Mapping[Key, float]
    ) -> tuple[str, str]:
        """Ask once; returns the run and the text of the answer."""
        self._number += 1
        budget, coordinator, task = self._budget, self._link.coordinator, self._link.task
        is_named, has_ledger = budget.name is not None, self._ledger is not None
        self._keys = [
            coordinator.key("amounts", f"{self._name}:{window.window.key}", for_all=is_named),
            coordinator.key("clock", self._name, for_all=is_named),
            coordinator.key("answers", f"{self._name}:{task}", for_all=is_named),
        ]
        longest = KEEP_NAMED if is_named else KEEP_CALLS
        left = 1000 * max(0.0, window.window.end - self._time()) + KEEP_OVER
        arguments: list[object] = [self._number, task, budget.amount, BUDGET_LEASE, window.run, self._ledger_time]
        arguments += [int(has_ledger), int(min(longest, left)), longest]
        for one in questions:
            stored = found.get(one.of.key, "" if has_ledger else 0.0)
            arguments += [one.of.key, stored, one.added, one.need, one.want, int(one.of.is_held), int(one.keeps)]
        time, run, text = await self._ask(SPEND_KEYS, *arguments)
        self._told = float(time)
        self._ahead = self._told - self._clock()
        return str(run), str(text)
