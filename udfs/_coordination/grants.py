"""Which permits the coordinator grants to whom, in Lua: stretches of each limit's time, by the server's clock alone."""

from __future__ import annotations

__all__ = ("GIVE_BACK", "GRANT", "NOW", "OPEN", "RUN")


# Redis keeps numbers as texts: 17 digits bring back the same one. The first argument is the time, given by tests only.
NOW = """
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end
local function text(number) return string.format('%.17g', number) end
"""


# Another server, or the same one begun anew, has other data than tasks know of: old ones, or those of a replica.
RUN = """
local info = redis.pcall('INFO', 'server')  -- not everybody may ask for it
local run = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
"""


# A limit is what is free of its time: stretches from a start to an end, the last of which has none. GCRA would keep the
# start of that alone. But a call of several limits takes of each the permits of the time when it begins, and what is
# before them must stay there for others: where two limits are both wanted by others, who asks for both would take so
# much of the one, or get them at such different times, that he or the others get nothing.
#
# Where a limit is missing, or comes from before the server began, nobody knows what was granted. So it begins when all
# of that has run out, after a lease, and has another epoch, which tells tasks that what they hold counts no more.
_LINE = (
    NOW
    + RUN
    + """
local CLOSE = 0.000002  -- seconds: the same time after some arithmetic
local STRETCHES = 64  -- at most; the oldest are given up
local KEEP = 86400  -- seconds that a limit outlives its last grant; a missing one costs a wait
local function line_of(key, wait)
  local epoch, made, numbers = string.match(redis.call('GET', key) or '', '((%w*)@%S+) (.*)')
  local free = {}
  for number in string.gmatch(numbers or '', '%S+') do free[#free + 1] = tonumber(number) end
  if made == run then return {epoch = epoch, free = free} end
  return {epoch = run .. '@' .. text(now), free = {math.max(now + wait, free[#free - 1] or -math.huge), math.huge}}
end
local function keep(key, line, earliest)
  local free = line.free
  while free[2] <= earliest or #free > 2 * STRETCHES do
    table.remove(free, 1)
    table.remove(free, 1)
  end
  local seconds, kept = math.max(0, free[#free - 1] - now) + KEEP, {line.epoch}
  for i, time in ipairs(free) do kept[i + 1] = text(time) end
  redis.call('SET', key, table.concat(kept, ' '), 'PX', text(math.ceil(1000 * seconds)))
end
"""
)


# Before a job: without this its first calls wait for the length of a lease, as after a loss of memory. A limit that is
# missing was not used since the server began, if that has evicted nothing.
#
# keys: the limits; for each the seconds before its first permits if the server began just now.
OPEN = (
    _LINE
    + """
local stats, up = redis.pcall('INFO', 'stats'), 0
if type(stats) == 'string' and string.match(stats, 'evicted_keys:0%s') and run ~= '' then
  up = tonumber(string.match(info, 'uptime_in_seconds:(%d+)'))
end
for i, key in ipairs(KEYS) do keep(key, line_of(key, tonumber(ARGV[i + 1]) - up), -math.huge) end
"""
)


# Permits for the calls of a task, of all its limits at once: a stretch of each, which may lie ahead. So who waits knows
# for how long, and asks once. Where one limit makes calls wait, the permits of the others are those of that time, for
# earlier ones would be stale by then.
#
# keys: the limits; for each of them, in seconds of its time: saved permits, those of the next call, those wanted for
# more (both 0: the task has some); the lease; when the call may begin as far as it has permits.
# Answers the time, and of each limit the epoch, and the start and the end of the stretch.
GRANT = (
    _LINE
    + """
local SPAN = 0.1  -- seconds that are granted at most, beside what is there at once
local lines, asked, lease, due = {}, {}, tonumber(ARGV[#ARGV - 1]), math.max(now, tonumber(ARGV[#ARGV]))
for i, key in ipairs(KEYS) do
  local saved, length, most = unpack(ARGV, 3 * i - 1, 3 * i + 1)
  saved, length, most = tonumber(saved), tonumber(length), tonumber(most)
  lines[i] = line_of(key, math.max(lease, length - saved))
  lines[i].saved, lines[i].length, lines[i].most, lines[i].start, lines[i].last = saved, length, most, 0, 0
  if most > 0 then asked[#asked + 1] = lines[i] end
end
local settled
repeat
  settled = true
  for _, one in ipairs(asked) do
    one.at = -1
    repeat
      one.at = one.at + 2
      one.start, one.last = math.max(one.free[one.at], due - one.saved), one.free[one.at + 1]
    until one.start + one.length <= one.last + CLOSE
    local own = one.start + math.min(one.length, one.saved)  -- so long after their start the call may begin
    if own > due + CLOSE then due, settled = own, false end
  end
until settled
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
for i, one in ipairs(lines) do
  keep(KEYS[i], one, now - one.saved)
  for _, said in ipairs({one.epoch, text(one.start), text(one.last)}) do answer[#answer + 1] = said end
end
return answer
"""
)


# A task ends: what it has not used of its last stretches is free again, if nobody has had a later one.
#
# keys: the limits; per limit: its epoch, the start and the end of what is left.
GIVE_BACK = (
    _LINE
    + """
for i, key in ipairs(KEYS) do
  local line, epoch, first, last = line_of(key, 0), unpack(ARGV, 3 * i - 1, 3 * i + 1)
  if line.epoch == epoch and math.abs(line.free[#line.free - 1] - tonumber(last)) < CLOSE then
    line.free[#line.free - 1] = tonumber(first)
    keep(key, line, -math.huge)
  end
end
"""
)
