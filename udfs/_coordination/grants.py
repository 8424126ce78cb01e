"""Which permits the coordinator grants to whom, in Lua: on the time line of each limit, by the server's clock alone."""

from __future__ import annotations

__all__ = ("GIVE_BACK", "GRANT", "NOW")


# Redis keeps numbers as texts: 17 digits bring back the same one. The first argument is the time, given by tests only.
NOW = """
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end
local function text(number) return string.format('%.17g', number) end
"""


# The time line of a limit is a text of numbers: how far it is given away, and the holes before that which nobody has.
_LINE = (
    NOW
    + """
local CLOSE = 0.000002  -- seconds: the same time after some arithmetic
local HOLES = 64  -- at most; the oldest are given up
local function line_of(key, earliest)
  local line = {earliest}
  local stored = redis.call('GET', key)
  if stored then
    for number in string.gmatch(stored, '%S+') do line[#line + 1] = tonumber(number) end
    line[1] = math.max(earliest, table.remove(line, 2))
    while line[2] and (line[3] <= earliest or #line > 2 * HOLES + 1) do
      table.remove(line, 2)
      table.remove(line, 2)
    end
    if line[2] then line[2] = math.max(earliest, line[2]) end
  end
  return line
end
local function keep(key, line, seconds)
  for i = 1, #line do line[i] = text(line[i]) end
  redis.call('SET', key, table.concat(line, ' '), 'PX', text(math.ceil(1000 * math.max(0, seconds)) + 1000))
end
"""
)


# Permits for the calls of a task, of all its limits at once. What is granted is a stretch of each limit's time line,
# which may lie ahead: who waits knows for how long, and asks once.
#
# Where one limit makes calls wait, the permits of the others are those of that time, for earlier ones would be stale by
# then. What is before them stays for all who share that limit, as a hole.
#
# keys: the limits; per limit: seconds of a permit, saved permits, needed for the next call, wanted for more (both 0:
# the task has some); when the call may begin as far as it has permits.
# Answers the time, and the start and the end of each stretch.
GRANT = (
    _LINE
    + """
local SPAN = 0.1  -- seconds of the time line that are granted at most, beside what is there at once
local asked, due = {}, math.max(now, tonumber(ARGV[#ARGV]))
for i, key in ipairs(KEYS) do
  local interval, saved, need, want = unpack(ARGV, 4 * i - 2, 4 * i + 1)
  interval, saved, need, want = tonumber(interval), tonumber(saved), tonumber(need), tonumber(want)
  local one = {key = key, length = need * interval, most = want * interval, saved = saved * interval}
  one.ahead = math.min(need, saved) * interval  -- so long after the start of its permits the call may begin
  if want > 0 then asked[#asked + 1] = one end
  one.line = line_of(key, now - one.saved)
  one.start = one.line[1]
  asked[key] = one
end
local settled
repeat
  settled = true
  for _, one in ipairs(asked) do
    local line, from = one.line, due - one.saved
    one.start, one.hole, one.free = math.max(line[1], from), nil, math.huge
    for i = 2, #line, 2 do
      local start = math.max(line[i], from)
      if start + one.length <= line[i + 1] + CLOSE then
        one.start, one.hole, one.free = start, i, line[i + 1]
        break
      end
    end
    if one.start + one.ahead > due + CLOSE then
      due, settled = one.start + one.ahead, false
    end
  end
until settled
local part = 1
for _, one in ipairs(asked) do
  part = math.min(part, (math.min(one.free, math.max(now, one.start + SPAN)) - one.start) / one.most)
end
local answer = {text(now)}
for i, key in ipairs(KEYS) do
  local one = asked[key]
  local length = part * (one.most or 0)
  if one.length > 0 then length = math.max(1, math.floor(length / one.length + CLOSE)) * one.length end  -- whole calls
  local line, start, last = one.line, one.start, one.start + length
  if last > start then
    local first, hole = line[1], one.hole
    if hole then
      first = line[hole]
      table.remove(line, hole)
      last = math.min(last, table.remove(line, hole))
      if one.free > last + CLOSE then
        table.insert(line, hole, one.free)
        table.insert(line, hole, last)
      end
    else
      hole = #line + 1
      line[1] = last
    end
    if start > first + CLOSE then
      table.insert(line, hole, start)
      table.insert(line, hole, first)
    end
    keep(key, line, line[1] - now + one.saved)
  end
  answer[2 * i], answer[2 * i + 1] = text(start), text(last)
end
return answer
"""
)


# A task ends: what it has not used of its last stretches is free again, if nobody has had a later one.
#
# keys: the limits; per limit: the start and the end of what is left.
GIVE_BACK = (
    _LINE
    + """
for i, key in ipairs(KEYS) do
  local first, last = tonumber(ARGV[2 * i]), tonumber(ARGV[2 * i + 1])
  local line, left = line_of(key, -math.huge), redis.call('PTTL', key)
  if math.abs(line[1] - last) < CLOSE and left > 0 then
    line[1] = first
    if line[2] and line[#line] > first - CLOSE then
      table.remove(line)
      line[1] = table.remove(line)
    end
    keep(key, line, left / 1000 - 1)
  end
end
"""
)
