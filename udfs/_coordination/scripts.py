"""What the coordinator decides, in Lua: each script runs there as one, by the server's clock alone."""

from __future__ import annotations

from .._policies.circuit_breaker import BY_CHANCE, KNOWN, RARE
from .grants import NOW as _NOW
from .grants import RUN as _RUN

__all__ = ("HEALTH", "PREPARE", "SHARE", "SPEND", "TALLY")


_KEEP = "86400000"  # milliseconds that keys of a job outlive their last use
# The same for those of one query, of which each micro-batch of a stream has its own: the memory of the server must not
# fill up with them. All tasks of a query that use them refresh them, so this is for its stages without any, and for a
# task whose event loop computes and lets nothing be told. What was paid for is kept for longer than what has failed.
_KEEP_QUERY = "900000"
_KEEP_CALLS = "3600000"


# How far the coordinator is behind the questions that tasks ask it again and again: a time line on which each takes its
# place. So there are at most RATE of them in a second, however many tasks there are, and tasks need not be counted.
_PACE = (
    _NOW
    + """
local RATE, LONGEST = 2000, 4  -- questions in a second; seconds
local function behind()
  local key = KEYS[#KEYS]
  local line = math.max(now, math.min(now + LONGEST, tonumber(redis.call('GET', key) or '0'))) + 1 / RATE
  redis.call('SET', key, text(line), 'PX', 1000 * LONGEST)
  return text(line - now)
end
"""
)


# The driver has seen that nobody has a share yet. Where that is missing the server has lost its memory.
PREPARE = (
    _RUN
    + f"""
for _, key in ipairs(KEYS) do
  if redis.call('HSETNX', key, 'frozen', '0') == 1 then redis.call('HSET', key, 'run', run) end
  redis.call('PEXPIRE', key, {_KEEP})
end
"""
)


# A task's share of the calls in flight; it has to ask again before its lease is over. Shares never add up to more than
# `total`: a task whose share becomes smaller keeps what is in flight, and others get it when that has ended. After a
# loss of memory, or of a part of it, tasks get no more than what they say to have in flight for as long as a lease.
# While nobody asks leases do not run out, for nobody could: the server was away, and who comes first is not alone.
#
# No question reads all tasks. Sums are kept beside the entries of the tasks, and wishes in a Fenwick tree (of each
# number of calls how many tasks want it, and how many calls these are), which tells in log2(total) steps the level up
# to which every wish can be met. What is left above the level is too little for all: so many tasks get one call more.
#
# keys: a hash, of each task "granted wanted extra", and the sums; its tasks by the ends of their leases; the pace;
# time, task, total, in flight, wanted (-1: leaves), lease.
# Answers how far the coordinator is behind, and how many calls the task may have in flight.
SHARE = (
    _PACE
    + _RUN
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
local is_unsure = run == '' and silence > lease and is.members > 0  -- somebody has not said good-bye
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
for i = 1, 2 do redis.call('PEXPIRE', KEYS[i], {_KEEP}) end
return {{behind(), may}}
"""
)


# The breaker and the pause of a function, as one task tells of and hears about them. Until there is something to tell
# nothing is kept.
#
# keys: a hash, the pace; time, task, window, failure_rate, open_for, lease of a probe, ticket, outcomes under that
# ticket ("sff"), probe ("", "ask", "hold", and of its end "s", "f" or "n"), seconds to pause.
# Answers how far the coordinator is behind, the time, the ticket, since when it is open or "", when the next probe may
# begin, whether it is this task's, until when calls pause.
HEALTH = (
    _PACE
    + f"""
local key, me, window, rate = KEYS[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local chance, rare, known = {BY_CHANCE!r}, {RARE!r}, {KNOWN}
local open_for, lease, outcomes, probe = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[8], ARGV[9]
local stored = redis.call('HGETALL', key)
local is = {{ticket = '0', seen = '', known = '', since = ''}}
is.probe_at, is.prober, is.probe_until, is.pause = '0', '', '0', '0'
for i = 1, #stored, 2 do is[stored[i]] = stored[i + 1] end
local function try_later()  -- as CircuitBreaker.is_dead has it
  local share, half, dead = chance * rate, math.max(1, math.floor(window / 2)), false
  for calls = half, #is.known, half do
    local _, failures = string.gsub(string.sub(is.known, -calls), 'f', '')
    local found = failures / calls
    local rest = found < 1 and (1 - found) * math.log((1 - found) / (1 - share)) or 0
    dead = dead or (failures == calls and calls >= window)
      or (found > share and calls * (found * math.log(found / share) + rest) >= rare)
  end
  if dead then is.seen = '' end
  is.probe_at = text(now + (dead and open_for or 0))
end
local function note(outcomes) is.known = string.sub(is.known .. outcomes, -known * window) end
if is.since == '' then
  if outcomes ~= '' and ARGV[7] == is.ticket then
    note(outcomes)
    is.seen = string.sub(is.seen .. outcomes, -window)
    local _, failures = string.gsub(is.seen, 'f', '')
    if #is.seen >= window and failures >= rate * #is.seen then
      is.since = text(now)
      try_later()
      is.ticket = text(tonumber(is.ticket) + 1)
    end
  end
elseif is.prober == me and probe ~= '' then
  if probe == 's' then
    is.since, is.prober = '', ''
    note('s')
    is.ticket = text(tonumber(is.ticket) + 1)
  elseif probe == 'f' then
    is.prober = ''
    note('f')
    try_later()
  elseif probe == 'n' then
    is.prober = ''
  else
    is.probe_until = text(now + lease)
  end
elseif probe == 'ask' and now >= tonumber(is.probe_at) and (is.prober == '' or now >= tonumber(is.probe_until)) then
  is.prober, is.probe_until = me, text(now + lease)
end
local pause = tonumber(ARGV[10])
if pause > 0 then is.pause = text(math.max(tonumber(is.pause), now + pause)) end
if #stored > 0 or outcomes ~= '' or pause > 0 then
  local changed = {{}}
  for name, value in pairs(is) do changed[#changed + 1] = name; changed[#changed + 1] = value end
  redis.call('HSET', key, unpack(changed))
  redis.call('PEXPIRE', key, text({_KEEP_QUERY} + math.max(0, math.ceil(1000 * (tonumber(is.pause) - now)))))
end
return {{behind(), text(now), is.ticket, is.since, is.probe_at, is.prober == me and 1 or 0, is.pause}}
"""
)


# Failures of a task are added to those of the job. A task tells all that it has counted so far: what is told twice, or
# by another attempt at the same rows, counts once, as far as one attempt has come farther than the others.
#
# keys: a hash of counts, a list of examples, a hash of what each part of the rows has told, the pace; time, part,
# number of counts, name and count of each, examples.
# Answers how far the coordinator is behind, the counts, and the examples.
TALLY = (
    _PACE
    + f"""
local told, ends = cjson.decode(redis.call('HGET', KEYS[3], ARGV[2]) or '{{}}'), 3 + 2 * tonumber(ARGV[3])
for i = 4, ends, 2 do
  local name, count = ARGV[i], tonumber(ARGV[i + 1])
  if count > (told[name] or 0) then
    redis.call('HINCRBY', KEYS[1], name, count - (told[name] or 0))
    told[name] = count
  end
end
if next(told) then redis.call('HSET', KEYS[3], ARGV[2], cjson.encode(told)) end
for i = ends + 1, #ARGV do
  if redis.call('LLEN', KEYS[2]) < 3 then redis.call('RPUSH', KEYS[2], ARGV[i]) end
end
for i = 1, 3 do redis.call('PEXPIRE', KEYS[i], {_KEEP_QUERY}) end
return {{behind(), redis.call('HGETALL', KEYS[1]), redis.call('LRANGE', KEYS[2], 0, -1)}}
"""
)


# Calls of a budget, of which there are so many for good. Each task tells how many it has made and how many it holds to
# make them, always in all, so that a question which is told twice, or whose answer is lost, counts once. A task gets at
# most an eighth of what is left, and at least one. What others hold is waited for, and they are told that somebody
# waits; but calls of a task that has said nothing for as long as its lease may all have been made, and count so.
#
# keys: a hash, of each task "number made held short lost", and the sums; its tasks by the ends of their leases; the
# pace; time, task, total, number of the question, made, held, wanted (-1: leaves), lease.
# Answers how far the coordinator is behind, how many calls the task gets, whether all are made, whether somebody waits
# for what this task holds.
SPEND = (
    _PACE
    + f"""
local key, leases, me, total = KEYS[1], KEYS[2], 't:' .. ARGV[2], tonumber(ARGV[3])
local number, made, held, want = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local sums = redis.call('HMGET', key, 'made', 'held', 'short')
for i = 1, 3 do sums[i] = tonumber(sums[i] or 0) end
local function entry(task)
  local found = {{}}
  for one in string.gmatch(redis.call('HGET', key, task) or '', '%S+') do found[#found + 1] = tonumber(one) end
  return found[1] and found
end
local function count(one, sign)
  local lost = one[5] * one[3]
  sums[1] = sums[1] + sign * (one[2] + lost)
  sums[2] = sums[2] + sign * (one[3] - lost)
  sums[3] = sums[3] + sign * one[4]
end
local function keep(task, one)
  count(one, 1)
  redis.call('HSET', key, task, table.concat(one, ' '))
end
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', '(' .. text(now), 'LIMIT', 0, 100)) do
  redis.call('ZREM', leases, gone)
  local its = entry(gone)
  if its then
    count(its, -1)
    keep(gone, {{its[1], its[2], its[3], 0, 1}})
  end
end
local mine, got = entry(me), 0
if mine then count(mine, -1) end
local spent, out, waits = sums[1], sums[2], sums[3] > 0
if want < 0 then
  if mine then sums[1] = sums[1] + made end
  redis.call('HDEL', key, me)
  redis.call('ZREM', leases, me)
else
  if mine and number <= mine[1] then
    got = math.max(0, mine[3] - held)  -- told before: the answer was lost
    mine[5] = 0
  else
    local left = math.max(0, total - spent - out - made - held)
    if want > 0 then got = math.min(want, left, math.max(1, math.floor(left / 8))) end
    mine = {{number, made, held + got, (want > 0 and got == 0) and 1 or 0, 0}}
  end
  keep(me, mine)
  redis.call('ZADD', leases, text(now + tonumber(ARGV[8])), me)
end
redis.call('HSET', key, 'made', sums[1], 'held', sums[2], 'short', sums[3])
for i = 1, 2 do redis.call('PEXPIRE', KEYS[i], {_KEEP_CALLS}) end
local is_over = got == 0 and held == 0 and out == 0 and spent + made >= total
return {{behind(), got, is_over and 1 or 0, waits and 1 or 0}}
"""
)
