"""`job_capacity`: a task's share of the calls that the whole job may have in flight."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

from ..coordinator.client import LEASE, LEASE_MARGIN, RUN, Coordinator
from ..coordinator.link import HURRY_EVERY, KEEP_LIMIT, PACE_SCRIPT, PeriodicTask, TaskLink

EXCHANGE_EVERY = 0.5  # seconds between two questions
LEASE_RENEWED = 0.6  # of the lease: it is renewed by then


# Before a job the driver makes the hash: no task has a share yet. A task that finds none knows that the server has lost
# its memory.
PREPARE = (
    RUN
    + f"""
for _, key in ipairs(KEYS) do
  if redis.call('HSETNX', key, 'frozen', '0') == 1 then redis.call('HSET', key, 'run', run) end
  redis.call('PEXPIRE', key, {KEEP_LIMIT})
end
"""
)


# A task's share of the calls in flight; the task has to ask again before its lease is over. Shares never add up to more
# than `total`. A task whose share shrinks keeps the calls that are in flight, and others get them as they end. After a
# loss of memory, or of a part of it, each task gets no more than it has in flight, for the length of a lease. Leases do
# not run out while no task asks: the server was away, and the first task that comes back is not alone.
#
# No question reads all tasks. The sums are kept beside the entries of the tasks. Wishes are kept in a Fenwick tree: for
# each number of calls, how many tasks want it, and how many calls these are. In log2(total) steps it gives the level up
# to which every wish can be met. The rest above the level is less than one call each: so many tasks get one call more.
#
# keys: a hash, of each task "granted wanted extra", and the sums; the tasks by the ends of their leases; the pace.
# Arguments: time, task, total, in flight, wanted (-1: the task leaves), lease.
# Answers how far the coordinator is behind, and how many calls the task may have in flight.
SHARE = (
    PACE_SCRIPT
    + RUN
    + f"""
local key, leases, me, total = KEYS[1], KEYS[2], 't:' .. ARGV[2], tonumber(ARGV[3])
local flying, lease = tonumber(ARGV[4]), tonumber(ARGV[6])
local want = math.min(tonumber(ARGV[5]), total)
local SUMS, is = {{'granted', 'wishers', 'extras', 'members', 'away'}}, {{}}
local frozen, asked, server = unpack(redis.call('HMGET', key, 'frozen', 'asked', 'run'))
local function load()
  local stored = redis.call('HMGET', key, unpack(SUMS))
  for i, name in ipairs(SUMS) do is[name] = tonumber(stored[i] or 0) end
end
load()
local silence = now - (tonumber(asked) or now)
if not frozen or redis.call('ZCARD', leases) ~= is.members then  -- a part of it is lost
  frozen = nil
  redis.call('DEL', key, leases)
  load()
end
local is_unsure = run == '' and silence > lease and is.members > 0  -- a task has not left
if not frozen or server ~= run or is_unsure then frozen = text(now + lease) end
is.away = is.away + math.max(0, silence - lease / 8)
local function wish(number, sign)
  if number > 0 then is.wishers = is.wishers + sign end
  local node = number
  while node > 0 and node <= total do
    redis.call('HINCRBY', key, 'tasks:' .. node, sign)
    redis.call('HINCRBY', key, 'calls:' .. node, sign * number)
    node = node + bit.band(node, -node)
  end
end
local function count(granted, extra, sign)
  is.granted, is.extras, is.members = is.granted + sign * granted, is.extras + sign * extra, is.members + sign
end
local function forget(task)
  local granted, wanted, extra = string.match(redis.call('HGET', key, task) or '', '(%S+) (%S+) (%S+)')
  if granted then
    count(tonumber(granted), tonumber(extra), -1)
    wish(tonumber(wanted), -1)
  end
  redis.call('HDEL', key, task)
  redis.call('ZREM', leases, task)
end
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', '(' .. text(now - is.away), 'LIMIT', 0, 100)) do
  forget(gone)
end
forget(me)
local may = 0
if want >= 0 then
  wish(want, 1)
  local level, calls, met, step = 0, 0, 0, 1
  while 2 * step <= total do step = 2 * step end
  while step >= 1 do
    local node = level + step
    if node <= total then
      local found = redis.call('HMGET', key, 'tasks:' .. node, 'calls:' .. node)
      local tasks, all = met + tonumber(found[1] or 0), calls + tonumber(found[2] or 0)
      if all + node * (is.wishers - tasks) <= total then level, met, calls = node, tasks, all end
    end
    step = step / 2
  end
  local spare = total - calls - level * (is.wishers - met)
  local extra = (is.extras < spare and math.min(want, total - is.granted) > level) and 1 or 0
  may = math.max(0, math.min(want, level + extra, total - is.granted))
  if now < tonumber(frozen) then may = flying end
  local granted = math.max(may, flying)
  count(granted, extra, 1)
  redis.call('HSET', key, me, table.concat({{granted, want, extra}}, ' '))
  redis.call('ZADD', leases, text(now - is.away + lease), me)
end
local kept = {{'frozen', frozen, 'run', run, 'asked', text(now)}}
for _, name in ipairs(SUMS) do kept[#kept + 1] = name; kept[#kept + 1] = text(is[name]) end
redis.call('HSET', key, unpack(kept))
for i = 1, 2 do redis.call('PEXPIRE', KEYS[i], {KEEP_LIMIT}) end
return {{behind(), may}}
"""
)


async def prepare_shares(coordinator: Coordinator, names: list[str]) -> None:
    """Make the shares of a job before it begins; without this its first calls wait for the length of a lease."""
    await coordinator.run(PREPARE, [coordinator.key("capacity", name) for name in names])


class CapacityShare(PeriodicTask):
    """How many calls this task may have in flight, of `total` for all tasks; of one event loop.

    Shares follow what tasks can use: what one task does not need, the others get. They add up to at most `total`, also
    when tasks are killed, when the coordinator is away, and when it has lost its memory. The share of a task that is
    killed is free within 5 s.

    Args:
        name: the name under which tasks share the calls.
        demand: returns the calls in flight, and how many would be with a share that is large enough.
    """

    # _share: calls that may be in flight until the lease `_ends`
    # _reported: calls in flight in the question that is under way; no call begins beyond, for the answer counts on them
    # _wanted: calls that the last question asked for

    def __init__(self, link: TaskLink, name: str, total: int, demand: Callable[[], tuple[int, int]]) -> None:
        keys = [link.coordinator.key(kind, name) for kind in ("capacity", "leases")]
        super().__init__(link, keys, longest=LEASE_RENEWED * LEASE)
        self._total, self._demand = total, demand
        self._share = self._wanted = 0
        self._ends = -math.inf
        self._reported = math.inf

    @property
    def limit(self) -> int:
        """How many calls may be in flight now; no call begins while as many or more are."""
        if self._clock() >= self._ends:
            return 0
        return int(min(self._share, self._reported))

    def poke(self) -> None:
        """More could be in flight than the share allows: ask at once, unless the last question asked for as much."""
        if self._demand()[1] > self._wanted:
            self._poke()

    def _last_message(self) -> Awaitable[object]:
        self._ends = -math.inf
        return self._ask(SHARE, self._link.task, self._total, 0, -1, LEASE)

    async def _exchange(self) -> float:
        in_flight, wanted = self._demand()
        self._reported, self._wanted, sent = in_flight, wanted, self._clock()
        try:
            (share,) = await self._ask(SHARE, self._link.task, self._total, in_flight, max(in_flight, wanted), LEASE)
        finally:
            self._reported = math.inf
        self._share, self._ends = int(share), sent + LEASE_MARGIN * LEASE
        self._link.wake()  # the share may be larger, and calls were held back while the question was under way
        in_flight, wanted = self._demand()
        if in_flight > self._share:  # others wait for these: the coordinator must learn soon that they have ended
            self._behind = 0.0
            return HURRY_EVERY
        return HURRY_EVERY if self._share < min(wanted, self._total) else EXCHANGE_EVERY
