"""A budget of windows or keys that all tasks of a job share: an amount for each key in each window."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from .._errors.exceptions import FatalError
from .._stores.key_ledgers import KeyLedger
from .budget import Budget, budget_label
from .by_key import Key
from .coordinator import HURRY_EVERY, LONGEST_PAUSE, PACE_SCRIPT, REFRESH, PeriodicTask, TaskLink
from .shared_budget import BUDGET_GAP, BUDGET_LEASE, CALLS_AT_ONCE, COST_ROUNDING, KEEP_CALLS, KEEP_NAMED, kept
from .windows import Window, Windows

MOST_KEYS = 256  # in one question: a script holds up the server for all others
MOST_SPENT = 10_000  # keys of which a task remembers that they are spent; of others it asks again
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
    local spent, holders, flag = one[1] + tonumber(ARGV[i + 2]), one[2] or 0, one[4] or 0
    local need, want, keeps = tonumber(ARGV[i + 3]), tonumber(ARGV[i + 4]), ARGV[i + 6] == '1'
    if holders > 0 and one[3] < now then holders = 0 end
    holders = math.max(0, holders - tonumber(ARGV[i + 5]))
    local left, got, verdict = total - spent, 0, 0
    if want > 0 and left + 1e-9 * total >= need then
      got = math.max(need, need * math.floor(math.min(want, left / 8) / need))
    elseif want > 0 and holders == 0 and not keeps then
      verdict = 2 - flag
      flag = 1
    end
    if keeps or got > 0 then holders = holders + 1 end
    spent = text(spent + got)
    local till, rest = holders > 0 and text(now + lease) or '0', ''
    if holders + flag > 0 then rest = string.format(' %d %s %d', holders, till, flag) end
    redis.call('HSET', amounts, key, spent .. rest)
    said[#said + 1] = text(got) .. ' ' .. verdict .. ' ' .. spent
  end
end
local answer = table.concat(said, ' ')
redis.call('SET', reply, number .. ' ' .. run .. ' ' .. answer, 'PX', 1000 * lease)
return {behind(), text(time), run, answer}
"""
)


class KeyAmount:
    """What the task has of the amount of one key in one window."""

    # available: granted, and not reserved
    # block: calls for which is asked at once
    # in_flight, reserved: attempts whose settlement may give something back, and what they have reserved
    # is_held: the coordinator counts this task among the holders
    # is_newly_spent: the next call that is turned away is the first of all tasks
    # is_used: something was reserved since the last question
    # need: what the next call needs; 0: none asks
    # over: the smallest need that was refused for good
    # unsaid: what is to be added to what the coordinator has as spent

    __slots__ = (
        "available", "block", "in_flight", "is_held", "is_newly_spent", "is_used", "key", "need", "over", "reserved",
        "spent_by_all", "unsaid", "window",
    )  # fmt: skip

    def __init__(self, window: OpenWindow, key: Key) -> None:
        self.window, self.key = window, key
        self.available = self.need = self.reserved = self.unsaid = self.spent_by_all = 0.0
        self.in_flight, self.block = 0, 1
        self.is_held = self.is_used = self.is_newly_spent = False
        self.over = math.inf

    @property
    def has_enough(self) -> bool:
        return self.need * (1 - COST_ROUNDING) <= self.available

    def ask(self, need: float) -> bool:
        if need <= 0:
            return True
        self.need = need
        if not self.has_enough and need < self.over:
            self.window.ask_for(self)
        return self.has_enough

    def is_spent(self, need: float) -> bool:
        return need >= self.over

    def reserve(self, need: float) -> None:
        self.available = max(0.0, self.available - need)
        self.need, self.is_used = 0.0, True
        if self.window.is_settled:
            self.in_flight += 1
            self.reserved += need

    def settle(self, reserved: float, cost: float) -> None:
        self.in_flight -= 1
        self.reserved = max(0.0, self.reserved - reserved) if self.in_flight else 0.0
        self.available += max(0.0, reserved - cost)
        self.unsaid += max(0.0, cost - reserved)
        self.window.changed[self] = None

    def question(self, *, is_last: bool) -> Question:
        """What is to be said and asked of it; what the task does not need is given back."""
        is_asking = bool(self.need) and not self.has_enough and not is_last
        want = 0.0
        if is_asking:
            want = self.block * self.need
            if self.window.is_settled:  # no more than is in flight: a task that is killed loses both
                want = min(want, max(self.need, self.reserved))
        spare = 0.0 if is_last or is_asking else max(self.need, self.reserved if self.is_used else 0.0)
        back = max(0.0, self.available - spare)
        self.available -= back
        added, self.unsaid, self.is_used = self.unsaid - back, 0.0, False
        keeps = not is_last and bool(self.in_flight or self.available)
        return Question(self, added, self.need if is_asking else 0.0, want, keeps)


class Question(NamedTuple):
    """What a task says and asks of the amount of a key."""

    of: KeyAmount
    added: float  # to what the coordinator has as spent
    need: float
    want: float
    keeps: bool  # whether the task has something of it in flight or available, whatever it gets


class Answer(NamedTuple):
    """What the coordinator says of it."""

    got: float
    verdict: str
    spent: float


class OpenWindow:
    """The amounts of a window, as far as the task uses them.

    Attributes:
        run: the coordinator's name for the window; another name means that it restarted empty.
        changed: what the next question is about.
        held: of what the task has something in flight or available.
        waiting: what others hold, which is asked for again after a moment.
    """

    # _amounts: those in use; _spent: those of which calls were turned away

    def __init__(self, window: Window, poke: Callable[[], None], *, is_settled: bool) -> None:
        self.window, self.is_settled, self._poke = window, is_settled, poke
        self.run = ""
        self._amounts: dict[Key, KeyAmount] = {}
        self._spent: dict[Key, KeyAmount] = {}
        self.changed: dict[KeyAmount, None] = {}
        self.held: set[KeyAmount] = set()
        self.waiting: set[KeyAmount] = set()

    def of(self, key: Key) -> KeyAmount:
        amount = self._amounts.get(key) or self._spent.get(key)
        if amount is None:
            amount = self._amounts[key] = KeyAmount(self, key)
        return amount

    def ask_for(self, amount: KeyAmount) -> None:
        """Ask for what the next call needs, unless that has just been done."""
        if amount not in self.waiting:
            self.changed[amount] = None
            self._poke()

    def look_again(self) -> list[KeyAmount]:
        """Ask again for what others hold, and give back what is not needed any more.

        Returns what has calls that are to be woken: one that still needs what it has got says so before the next look.
        """
        for amount in self.waiting:
            if amount.need:
                self.changed[amount] = None
            else:
                self._forget(amount)
        self.waiting.clear()
        held = [amount for amount in self.held if amount.available]
        self.changed.update((amount, None) for amount in held if not amount.need)
        needed = [amount for amount in held if amount.need]
        for amount in needed:
            amount.need = 0.0
        return needed

    def take(self, most: int) -> list[KeyAmount]:
        """The next of what is changed, as many as one question may have."""
        taken = [*islice(self.changed, most)]
        for amount in taken:
            del self.changed[amount]
        return taken

    def note(self, question: Question, answer: Answer) -> None:
        """The coordinator has answered; who still needs what it does not have asks again."""
        amount = question.of
        amount.available += answer.got
        amount.spent_by_all = answer.spent
        amount.is_held = question.keeps or answer.got > 0
        if answer.got:
            amount.block = min(CALLS_AT_ONCE, 2 * amount.block)
        elif answer.verdict in "12":
            amount.over = min(amount.over, question.need)
            amount.is_newly_spent |= answer.verdict == "2"
            self._spent[amount.key] = amount
            if len(self._spent) > MOST_SPENT:
                del self._spent[next(iter(self._spent))]
        elif question.want:
            self.waiting.add(amount)
        if question.want:
            amount.need = 0.0  # the call that asked may need none by now; else it asks again
        (self.held.add if amount.is_held else self.held.discard)(amount)
        if amount not in self.waiting:
            self._forget(amount)

    def _forget(self, amount: KeyAmount) -> None:
        """An amount of which the task has nothing, and has nothing to say, is the coordinator's alone."""
        if not (amount.is_held or amount in self.changed):
            self._amounts.pop(amount.key, None)


class KeyedBudget(PeriodicTask):
    """The amounts of a budget for each window and key, which all tasks share; of one event loop.

    Windows are those of the coordinator's clock. One that the job, or the ledger, has seen begin is not left for an
    earlier one, whatever a clock says.

    Args:
        name: under which tasks share it.
        ledger: is written before calls begin, so that nothing that was spent is missing in it.
        wake: is called with a key when an answer may let calls of it begin that had to wait.
    """

    # _ahead: seconds that the budget's time is ahead of the task's clock; None: not known yet
    # _ledger_time: of the newest window in the ledger
    # _look_at, _renew_at, _refresh_at: when `look_again` is due, all that is held is said again, and the time is asked
    # _number: of the last question; 0: there was none

    def __init__(
        self, link: TaskLink, name: str, budget: Budget, ledger: KeyLedger | None, wake: Callable[[Key], None]
    ) -> None:
        self._wake = wake
        self._name, self._budget, self._ledger, self.is_settled = name, budget, ledger, budget.is_settled
        self._windows = Windows(budget.per)
        self._ahead = None if budget.per else 0.0
        self._open = self._opened(Window(-math.inf, -math.inf, ""))
        self._ledger_time, self._number = 0.0, 0
        self._look_at = self._renew_at = self._refresh_at = 0.0
        super().__init__(link, (), gap=BUDGET_GAP)

    def _opened(self, window: Window) -> OpenWindow:
        return OpenWindow(window, self._poke, is_settled=self.is_settled)

    def of(self, key: Key) -> KeyAmount:
        """The amount of a key in the window of now."""
        if self._ahead is not None and (now := self._windows.at(self._time())) is not self._open.window:
            self._open = self._opened(now)
        return self._open.of(key)

    @property
    def window(self) -> Window:
        return self._open.window

    @property
    def seconds_left(self) -> float | None:
        """Until the window of now ends; None: it does not, or is not known yet."""
        end = self._open.window.end
        return None if math.isinf(end) else max(0.0, end - self._time())

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
        now, window = self._clock(), self._open
        is_first = self._ahead is None and bool(window.changed)
        if is_first or (self._number and now >= self._refresh_at):
            await self._refresh()
        if self._ahead is None or is_first:
            return REFRESH
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
        is_first = self._ahead is None
        if is_first and self._ledger is not None:
            self._ledger_time = await kept(self._ledger.newest, self._clock)
        self._refresh_at = self._clock() + REFRESH
        await self._asked(self._open, ())
        if is_first:  # in the first of its windows they ask anew
            for amount in self._open.changed:
                self._wake(amount.key)

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

    async def _answers(
        self, window: OpenWindow, questions: Sequence[Question], found: Mapping[Key, float]
    ) -> dict[KeyAmount, Answer]:
        """The coordinator's answers; `found`: what the ledger has of the keys, where it was asked."""
        while True:
            run, text = await self._asked(window, questions, found)
            if run == window.run or not window.run:
                break
            if self._ledger is None:
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
            one.of: Answer(float(got), verdict, float(spent))
            for one, (got, verdict, spent) in zip(questions, zip(parts, parts, parts, strict=True), strict=True)
        }

    async def _asked(
        self,
        window: OpenWindow,
        questions: Sequence[Question],
        found: Mapping[Key, float] = {},
    ) -> tuple[str, str]:
        """Ask once; returns the run and the text of the answer."""
        self._number += 1
        budget, coordinator, task = self._budget, self._link.coordinator, self._link.task
        is_named = budget.name is not None
        self._keys = [
            coordinator.key("amounts", f"{self._name}:{window.window.key}", for_all=is_named),
            coordinator.key("clock", self._name, for_all=is_named),
            coordinator.key("answers", f"{self._name}:{task}", for_all=is_named),
        ]
        longest = KEEP_NAMED if is_named else KEEP_CALLS
        left = math.inf if self.seconds_left is None else 1000 * self.seconds_left + KEEP_OVER
        arguments = [self._number, task, budget.amount, BUDGET_LEASE, window.run, self._ledger_time]
        arguments += [int(self._ledger is not None), int(min(longest, left)), longest]
        for one in questions:
            amount, stored = one.of, found.get(one.of.key, 0.0 if found or self._ledger is None else "")
            arguments += [amount.key, stored, one.added, one.need, one.want, int(amount.is_held), int(one.keeps)]
        time, run, text = await self._ask(SPEND_KEYS, *arguments)
        self._ahead = float(time) - self._clock()
        return str(run), str(text)
