"""`KeyCapacity`: the gate, the calls of each key in one task, and the shares that all tasks have of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import islice
from typing import Any

from ..._errors.call_outcome import CallOutcome
from ..._errors.failure import Failure
from ..coordinator.client import LEASE, LEASE_MARGIN, RUN, Coordinator
from ..coordinator.link import HURRY_EVERY, KEEP_LIMIT, MOST_KEYS, PACE_SCRIPT, PeriodicTask, TaskLink
from ..gate import Aside, AskingAttempt, Gate, Key
from ..limited_task import LimitedTask
from .option import KeyCapacity

IDLE_AFTER = 0.25  # seconds after its last call for which a task keeps what it has of a key
LOOK_AGAIN = 1.0  # seconds: a row that may begin, and never does as it is late elsewhere, tells nobody
RENEW_EVERY = 0.6 * LEASE  # seconds
ASK_EVERY = 0.1 * LEASE  # seconds, at most: leases do not run out in a silence of all tasks of LEASE / 8


def gates(limit: KeyCapacity, task: LimitedTask, place: int) -> list[Gate]:
    wake, name = partial(task.ask_again, place), limit.named(task.function)
    waiting: Callable[[Key], int] = lambda key: task.waiting((place, key))  # noqa: E731
    if task.link is None:
        return [KeyCallsGate(limit, place, OwnKeyCalls(limit, task.own.shared(CallsByName, name), wake))]
    return [KeyCallsGate(limit, place, task.owned(SharedKeyCalls(task.link, name, limit, waiting, wake)))]


class KeyCallsGate(Gate):
    """Of each key so many calls are in flight, whatever other keys do.

    A row that another limit holds back then has the place of a call. Else all rows of its key would go on to that
    limit, which would reserve for all of them what only a few can use.
    """

    def __init__(self, limit: KeyCapacity, place: int, calls: OwnKeyCalls | SharedKeyCalls) -> None:
        self.limit, self.place, self._calls = limit.label, place, calls
        self.limits = [self.limit]

    def wait(self, attempt: AskingAttempt, now: float) -> float | Aside:
        key, (row,) = self._key(attempt), attempt.rows
        if self._calls.may_begin(key, row, now):
            return 0.0
        return Aside((self.place, key), LOOK_AGAIN if self._calls.lets(key) else None)

    def awaits_calls(self, key: Key | None) -> bool:
        return key is not None and self._calls.flying(key) > 0

    def began(self, attempt: AskingAttempt, now: float) -> None:
        (row,) = attempt.rows
        self._calls.began(self._key(attempt), row)

    def withdrawn(self, attempt: AskingAttempt) -> None:
        (row,) = attempt.rows
        self._calls.withdrawn(self._key(attempt), row)

    def ended(self, attempt: AskingAttempt, outcome: CallOutcome, failure: Failure | None, now: float) -> None:
        self._calls.ended(self._key(attempt), now)

    def _key(self, attempt: AskingAttempt) -> Key:
        key = attempt.keys[self.place]
        assert key is not None
        return key


class KeyCalls:
    """The calls of one key, of one function in a task.

    Attributes:
        in_flight: calls that have begun.
        let: rows that may begin and have not.
    """

    __slots__ = ("in_flight", "let")

    def __init__(self) -> None:
        self.in_flight = 0
        self.let: dict[Any, None] = {}

    @property
    def taken(self) -> int:
        return self.in_flight + len(self.let)


class CallsByName:
    """What the functions of a task have of the calls that they share.

    Attributes:
        calls: of each function that of each key, none of a key without a call.
        wakes: of each function: called with a key of which calls may begin.
    """

    def __init__(self) -> None:
        self.calls: list[dict[Key, KeyCalls]] = []
        self.wakes: list[Callable[[Key], None]] = []


class OwnKeyCalls:
    """The calls of each key in a task that shares them with no other."""

    def __init__(self, limit: KeyCapacity, shared: CallsByName, wake: Callable[[Key], None]) -> None:
        self._most, self._shared, self._wake = limit.calls, shared, wake
        self._calls: dict[Key, KeyCalls] = {}
        shared.calls.append(self._calls)
        shared.wakes.append(wake)

    def may_begin(self, key: Key, row: Any, now: float) -> bool:
        if (own := self._calls.get(key)) is not None and row in own.let:
            return True
        if sum(calls[key].taken for calls in self._shared.calls if key in calls) >= self._most:
            return False
        self._calls.setdefault(key, KeyCalls()).let[row] = None
        return True

    def lets(self, key: Key) -> bool:
        """Whether some calls of the key may begin and have not."""
        return any(calls[key].let for calls in self._shared.calls if key in calls)

    def flying(self, key: Key) -> int:
        """Calls of the key in flight, of all functions that share them."""
        return sum(calls[key].in_flight for calls in self._shared.calls if key in calls)

    def began(self, key: Key, row: Any) -> None:
        calls = self._calls[key]
        del calls.let[row]
        calls.in_flight += 1

    def withdrawn(self, key: Key, row: Any) -> None:
        if (calls := self._calls.get(key)) is not None and row in calls.let:
            del calls.let[row]
            self._has_less(key, calls)

    def ended(self, key: Key, now: float) -> None:
        calls = self._calls[key]
        calls.in_flight -= 1
        self._has_less(key, calls)

    def _has_less(self, key: Key, calls: KeyCalls) -> None:
        if not calls.taken:
            del self._calls[key]
        for wake in self._shared.wakes:  # the task's own calls of the key ask again anyway
            if wake is not self._wake:
                asyncio.get_running_loop().call_soon(wake, key)


# Before a job the driver makes the hash: no task has calls in flight. A task that finds none knows that the server has
# lost its memory.
PREPARE = (
    PACE_SCRIPT
    + RUN
    + f"""
if redis.call('HSETNX', KEYS[1], '@begin', text(now)) == 1 then redis.call('HSET', KEYS[1], '@run', run) end
redis.call('PEXPIRE', KEYS[1], {KEEP_LIMIT})
return {{behind()}}
"""
)


# Of many keys how many calls a task may have in flight. It says what it keeps of those that it has, always in all, so
# that a question that is repeated, or whose answer is lost, counts once. Together tasks have at most `total` of a key.
# While others wait for a key a task gets a share of it, and is told this share: it gives back what it has more as its
# calls end. The shares are equal but for tasks that want less, whose rest the others get; where they do not come out
# even, some tasks get one call more.
#
# The entry of a key has the tasks that have calls of it, or wait for one, each with the end of its lease; without any
# there is no entry. Leases do not run out while no task asks: the server was away, and the first that comes back is not
# alone. After a loss of memory each task keeps what it says that it has, and gets no more for the length of a lease.
#
# keys: a hash, the pace. Arguments: time, task, total, lease, and for each key its name, how many calls the task keeps,
# and how many it wants.
# Answers how far the coordinator is behind, the name of its memory, and for each key how many calls the task may have,
# and its share, or 0 if no other task waits.
KEY_SHARES = (
    PACE_SCRIPT
    + RUN
    + f"""
local hash, me, total, lease = KEYS[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local memory, begin, asked, away = unpack(redis.call('HMGET', hash, '@run', '@begin', '@asked', '@away'))
if memory ~= run then begin = text(now + lease) end
away = tonumber(away or 0) + math.max(0, now - tonumber(asked or now) - lease / 8)
redis.call('HSET', hash, '@run', run, '@begin', begin, '@asked', text(now), '@away', text(away))
local function share_of(rest, wishes, others)
  table.sort(wishes)
  local tasks, level = #wishes, 0
  for _, wish in ipairs(wishes) do
    level = math.floor(rest / tasks)
    if wish > level then break end
    rest, tasks = rest - wish, tasks - 1
  end
  local spare = rest - level * tasks
  for _, has in ipairs(others) do
    if has > level then spare = spare - 1 end
  end
  return math.max(1, spare > 0 and level + 1 or level)
end
local answer = {{behind(), run .. '@' .. begin}}
for i = 5, #ARGV, 3 do
  local name, keeps, want = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  local entry, held, others, wishes, awaited = {{}}, 0, {{}}, {{want}}, false
  for task, has, wants, till in string.gmatch(redis.call('HGET', hash, name) or '', '(%S+) (%S+) (%S+) (%S+)') do
    if task ~= me and tonumber(till) >= now - away then
      held = held + has
      others[#others + 1], wishes[#wishes + 1] = tonumber(has), tonumber(wants)
      awaited = awaited or tonumber(wants) > tonumber(has)
      entry[#entry + 1] = table.concat({{task, has, wants, till}}, ' ')
    end
  end
  local share, may = share_of(total, wishes, others), keeps
  if now >= tonumber(begin) then may = math.max(keeps, math.min(want, total - held, awaited and share or total)) end
  if may > 0 or want > 0 then entry[#entry + 1] = table.concat({{me, may, want, text(now - away + lease)}}, ' ') end
  if #entry > 0 then redis.call('HSET', hash, name, table.concat(entry, ' ')) else redis.call('HDEL', hash, name) end
  answer[#answer + 1] = may
  answer[#answer + 1] = awaited and share or 0
end
redis.call('PEXPIRE', hash, {KEEP_LIMIT})
return answer
"""
)


async def prepare_key_shares(coordinator: Coordinator, name: str) -> None:
    """Make the shares of a job before it begins; without this its first calls wait for the length of a lease."""
    await coordinator.run(PREPARE, [coordinator.key("key_capacity", name), coordinator.key("pace", "all")])


class KeyShare(KeyCalls):
    """What a task has of the calls of one key."""

    # taken <= granted, but for calls that began before a lease ran out
    # share: how many it should have, as others wait; inf: none does
    # wanted: for how many it has asked last
    # used: when a row has last asked, or a call has ended
    # ends: of its lease, by the task's clock

    __slots__ = ("ends", "granted", "share", "used", "wanted")

    def __init__(self) -> None:
        super().__init__()
        self.granted = self.wanted = 0
        self.share, self.used, self.ends = math.inf, 0.0, -math.inf


class SharedKeyCalls(PeriodicTask):
    """The calls of each key, which all tasks share; of one event loop.

    What a task has of a key it uses for one call after another. It gives it back when it has had no call of the key for
    a moment, or has more than its share while others wait. What a task had that is killed is free within 5 s.

    Args:
        name: under which tasks share them.
        waiting: how many calls of a key wait.
        wake: called with a key of which calls may begin.
    """

    # _changed: keys that the next question is about
    # _memory: the coordinator's name for it; another name means that it restarted empty
    # _look_at, _renew_at: when what is kept is looked at, and said again
    # _ask_at: when it asks though there is nothing to say, so that the leases of dead tasks run out

    def __init__(
        self,
        link: TaskLink,
        name: str,
        limit: KeyCapacity,
        waiting: Callable[[Key], int],
        wake: Callable[[Key], None],
    ) -> None:
        super().__init__(link, [link.coordinator.key("key_capacity", name)], longest=RENEW_EVERY)
        self._most, self._waiting, self._wake = limit.calls, waiting, wake
        self._shares: dict[Key, KeyShare] = {}
        self._changed: dict[Key, None] = {}
        self._memory = ""
        self._look_at = self._renew_at = self._ask_at = 0.0

    def may_begin(self, key: Key, row: Any, now: float) -> bool:
        if (one := self._shares.get(key)) is None:
            one = self._shares[key] = KeyShare()
        one.used = now
        if has_lease := now < one.ends:
            if row in one.let:
                return True
            if one.taken < min(one.granted, one.share):
                one.let[row] = None
                return True
        if not has_lease or min(self._most, self._needed(key, one) + 1) > one.wanted:
            self._ask_for(key)
        return False

    def lets(self, key: Key) -> bool:
        return bool(self._shares[key].let)

    def flying(self, key: Key) -> int:
        return self._shares[key].in_flight if key in self._shares else 0

    def began(self, key: Key, row: Any) -> None:
        one = self._shares[key]
        del one.let[row]
        one.in_flight += 1

    def withdrawn(self, key: Key, row: Any) -> None:
        if (one := self._shares.get(key)) is not None:
            one.let.pop(row, None)

    def ended(self, key: Key, now: float) -> None:
        one = self._shares[key]
        one.in_flight -= 1
        one.used = now
        if one.granted > one.share:  # others wait for what it has more
            self._ask_for(key)

    def _needed(self, key: Key, one: KeyShare) -> int:
        return min(self._most, one.taken + self._waiting(key))

    def _ask_for(self, key: Key) -> None:
        self._changed[key] = None
        self._poke()

    def _last_message(self) -> Awaitable[object] | None:
        return self._leave() if self._shares else None

    async def _leave(self) -> None:
        keys = [*self._shares]
        for first in range(0, len(keys), MOST_KEYS):
            numbers = [one for key in keys[first : first + MOST_KEYS] for one in (key, 0, 0)]
            await self._ask(KEY_SHARES, self._link.task, self._most, LEASE, *numbers)

    async def _exchange(self) -> float:
        now = self._clock()
        if now >= self._renew_at:
            self._renew_at = now + RENEW_EVERY
            # One question is about some keys: if there are very many, a lease must not run out under a call.
            in_use = [key for key, one in self._shares.items() if one.taken]
            self._changed = dict.fromkeys([*in_use, *self._changed, *self._shares])
        if now >= self._look_at:
            self._look_at = now + HURRY_EVERY
            for key, one in self._shares.items():
                if one.wanted > one.granted or self._kept(key, one, now) < one.granted:
                    self._changed[key] = None
        if self._changed or now >= self._ask_at:
            self._ask_at = now + ASK_EVERY
            await self._say(now)
        if self._changed:
            return 0.0
        return HURRY_EVERY if self._shares else ASK_EVERY

    def _kept(self, key: Key, one: KeyShare, now: float) -> int:
        """How many calls it keeps of those that it has: those in flight, and what calls will need in a moment."""
        most = min(one.granted, one.share)
        if now >= one.used + IDLE_AFTER:
            most = min(most, self._needed(key, one))
        return max(one.taken, int(most))

    async def _say(self, now: float) -> None:
        asked = [*islice(self._changed, MOST_KEYS)]
        numbers: list[object] = []
        for key in asked:
            del self._changed[key]
            one = self._shares[key]
            one.granted = self._kept(key, one, now)
            one.wanted = max(one.granted, self._needed(key, one))
            numbers += [key, one.granted, one.wanted]
        memory, *answers = await self._ask(KEY_SHARES, self._link.task, self._most, LEASE, *numbers)
        if memory != self._memory:
            if self._memory:
                self._changed.update(dict.fromkeys(self._shares))  # it knows of none of them
            self._memory = memory
        self._note(asked, [int(one) for one in answers], now + LEASE_MARGIN * LEASE)

    def _note(self, asked: Sequence[Key], answers: Sequence[int], ends: float) -> None:
        for key, granted, share in zip(asked, answers[::2], answers[1::2], strict=True):
            one = self._shares[key]
            one.granted, one.share, one.ends = granted, share or math.inf, ends
            self._wake(key)
            if not (one.granted or one.wanted or one.taken or self._waiting(key)):
                del self._shares[key]
                self._changed.pop(key, None)
