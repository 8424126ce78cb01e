"""What the coordinator decides, in Lua: each script runs there as one, by the server's clock alone."""

from __future__ import annotations

from .grants import NOW as _NOW

__all__ = ("HEALTH", "PREPARE", "SHARE", "SPEND", "TALLY")


_KEEP = "86400000"  # milliseconds that keys of a job outlive their last use
# The same for those of one query, of which each micro-batch of a stream has its own: the memory of the server must not
# fill up with them. All tasks of a query that use them refresh them, so this is for its stages without any, and for a
# task whose event loop computes and lets nothing be told. What was paid for is kept for longer than what has failed.
_KEEP_QUERY = "900000"
_KEEP_CALLS = "3600000"


# Another server, or the same one begun anew, has other data than tasks know of: old ones, or those of a replica.
_RUN = """
local info = redis.pcall('INFO', 'server')  -- not everybody may ask for it
local run = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
"""


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
# key: a hash, of each task "granted wanted until joined"; time, task, total, in flight, wanted (-1: leaves), lease.
# Answers how many calls the task may have in flight.
SHARE = (
    _NOW
    + _RUN
    + f"""
local key, me, total = KEYS[1], 't:' .. ARGV[2], tonumber(ARGV[3])
local flying, want, lease = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local others, tasks, joined = 0, {{}}, now
local frozen, asked, server = unpack(redis.call('HMGET', key, 'frozen', 'asked', 'run'))
local silence = now - (tonumber(asked) or now)
local is_unsure = run == '' and silence > lease and redis.call('HLEN', key) > 3  -- somebody has not said good-bye
if not frozen or server ~= run or is_unsure then
  frozen = text(now + lease)
  redis.call('HSET', key, 'frozen', frozen, 'run', run)
end
redis.call('HSET', key, 'asked', text(now))
local away = math.max(0, silence - lease / 8)
local stored = redis.call('HGETALL', key)
for i = 1, #stored, 2 do
  local name, value = stored[i], stored[i + 1]
  local granted, wanted, ends, since = string.match(value, '(%S+) (%S+) (%S+) (%S+)')
  if name == me then
    joined = tonumber(since)
  elseif ends then
    ends = tonumber(ends) + away
    if ends < now then
      redis.call('HDEL', key, name)
    else
      others = others + tonumber(granted)
      tasks[#tasks + 1] = {{name, tonumber(wanted), tonumber(since)}}
      if away > 0 then redis.call('HSET', key, name, table.concat({{granted, wanted, text(ends), since}}, ' ')) end
    end
  end
end
if want < 0 then
  redis.call('HDEL', key, me)
  return 0
end
tasks[#tasks + 1] = {{me, want, joined}}
-- The smallest wishes first, so that what they leave is shared by the others; the oldest last, who get the remainder.
table.sort(tasks, function(a, b)
  if a[2] ~= b[2] then return a[2] < b[2] end
  if a[3] ~= b[3] then return a[3] > b[3] end
  return a[1] < b[1]
end)
local left, fair = total, 0
for i, task in ipairs(tasks) do
  local part = math.min(task[2], math.floor(left / (#tasks - i + 1)))
  left = left - part
  if task[1] == me then fair = part end
end
local may = math.max(0, math.min(fair, total - others))
if now < tonumber(frozen) then may = flying end
redis.call('HSET', key, me, table.concat({{math.max(may, flying), want, text(now + lease), text(joined)}}, ' '))
redis.call('PEXPIRE', key, {_KEEP})
return may
"""
)


# The breaker and the pause of a function, as one task tells of and hears about them. Until there is something to tell
# nothing is kept.
#
# key: a hash; time, task, window, failure_rate, open_for, lease of a probe, ticket, outcomes under that ticket ("sff"),
# probe ("", "ask", "hold", and of its end "s", "f" or "n"), seconds to pause.
# Answers the time, the ticket, since when it is open or "", when the next probe may begin, whether it is this task's,
# until when calls pause.
HEALTH = (
    _NOW
    + f"""
local key, me, window, rate = KEYS[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local open_for, lease, outcomes, probe = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[8], ARGV[9]
local stored = redis.call('HGETALL', key)
local is = {{ticket = '0', seen = '', since = '', probe_at = '0', prober = '', probe_until = '0', pause = '0'}}
for i = 1, #stored, 2 do is[stored[i]] = stored[i + 1] end
if is.since == '' then
  if outcomes ~= '' and ARGV[7] == is.ticket then
    is.seen = string.sub(is.seen .. outcomes, -window)
    local _, failures = string.gsub(is.seen, 'f', '')
    if #is.seen >= window and failures >= rate * #is.seen then
      is.since, is.probe_at, is.seen = text(now), text(now + open_for), ''
      is.ticket = text(tonumber(is.ticket) + 1)
    end
  end
elseif is.prober == me and probe ~= '' then
  if probe == 's' then
    is.since, is.prober = '', ''
    is.ticket = text(tonumber(is.ticket) + 1)
  elseif probe == 'f' then
    is.prober, is.probe_at = '', text(now + open_for)
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
return {{text(now), is.ticket, is.since, is.probe_at, is.prober == me and 1 or 0, is.pause}}
"""
)


# Failures of a task are added to those of the job; without rows they are only asked for, and not forgotten.
#
# keys: a hash of counts, a list of examples; time, rows, number of types, name and count of each, examples.
# Answers the counts, and the examples.
TALLY = f"""
if tonumber(ARGV[2]) > 0 then redis.call('HINCRBY', KEYS[1], 'rows', ARGV[2]) end
local ends = 3 + 2 * tonumber(ARGV[3])
for i = 4, ends, 2 do redis.call('HINCRBY', KEYS[1], 'type:' .. ARGV[i], ARGV[i + 1]) end
for i = ends + 1, #ARGV do
  if redis.call('LLEN', KEYS[2]) < 3 then redis.call('RPUSH', KEYS[2], ARGV[i]) end
end
redis.call('PEXPIRE', KEYS[1], {_KEEP_QUERY})
redis.call('PEXPIRE', KEYS[2], {_KEEP_QUERY})
return {{redis.call('HGETALL', KEYS[1]), redis.call('LRANGE', KEYS[2], 0, -1)}}
"""


# Calls of a budget, of which there are so many for good. Each task tells how many it has made and how many it holds to
# make them, always in all, so that a question which is told twice, or whose answer is lost, counts once. A task gets at
# most an eighth of what is left, and at least one. What others hold is waited for, and they are told that somebody
# waits; but calls of a task that has said nothing for as long as its lease may all have been made, and count so.
#
# key: a hash, of each task "number made held wanted lease", and the calls of those that have left; time, task, total,
# number of the question, made, held, wanted (-1: leaves), lease.
# Answers how many the task gets, whether all calls are made, whether somebody waits for what this task holds.
SPEND = (
    _NOW
    + f"""
local key, me, total = KEYS[1], 't:' .. ARGV[2], tonumber(ARGV[3])
local number, made, held, want = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local spent, out, waits, mine = 0, 0, false, nil  -- out: held by others, who may give them back
local stored = redis.call('HGETALL', key)
for i = 1, #stored, 2 do
  if stored[i] == 'left' then
    spent = spent + tonumber(stored[i + 1])
  else
    local asked, its, holds, wants, ends = string.match(stored[i + 1], '(%S+) (%S+) (%S+) (%S+) (%S+)')
    if stored[i] == me then
      mine = {{asked = tonumber(asked), held = tonumber(holds)}}
    else
      spent = spent + tonumber(its)
      if tonumber(ends) < now then
        spent = spent + tonumber(holds)
      else
        out = out + tonumber(holds)
        waits = waits or tonumber(wants) > 0
      end
    end
  end
end
if want < 0 then
  if mine then
    redis.call('HINCRBY', key, 'left', made)
    redis.call('HDEL', key, me)
    redis.call('PEXPIRE', key, {_KEEP_CALLS})
  end
  return {{0, 0, 0}}
end
local got = 0
if mine and number <= mine.asked then
  got = math.max(0, mine.held - held)  -- told before: the answer was lost
else
  local left = math.max(0, total - spent - out - made - held)
  if want > 0 then got = math.min(want, left, math.max(1, math.floor(left / 8))) end
  local short = (want > 0 and got == 0) and 1 or 0
  redis.call('HSET', key, me, table.concat({{number, made, held + got, short, text(now + tonumber(ARGV[8]))}}, ' '))
end
redis.call('PEXPIRE', key, {_KEEP_CALLS})
local is_over = got == 0 and held == 0 and out == 0 and spent + made >= total
return {{got, is_over and 1 or 0, waits and 1 or 0}}
"""
)
