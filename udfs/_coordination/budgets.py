"""The budgets of a whole job: `max_failures`, of rows that may fail, and `max_calls`, of calls that may be made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping

from .._policies.error_budget import ErrorBudget, Failures
from .periodic import KEEP_QUERY, PACE_SCRIPT, PeriodicTask, TaskLink

REPORT_EVERY = 0.5  # seconds between two questions
HURRY_EVERY = 0.1  # the same where a task waits for calls that another holds
REFRESH = 60.0  # seconds after which a task with nothing to report asks anyway, so that the counts stay
EXAMPLE_CHARACTERS = 200  # characters of an example: each micro-batch of a stream leaves some on the server for a while
CALLS_AT_ONCE = 64  # calls that are asked for at once
LEASE = 60.0  # seconds after which a task that is silent is gone, and has perhaps made the calls that it held
QUESTION_GAP = 0.001  # seconds between two questions of a task that uses up its calls
KEEP_CALLS = 3_600_000  # milliseconds that counts of calls outlive their last use; they are money, so they stay


# Adds the failures of a task to those of the job. A task reports all that it has counted so far. So a report that is
# repeated, or made by another attempt at the same rows, counts once: only what exceeds the reports before is added.
#
# keys: a hash of counts, a list of examples, a hash of what each part of the rows has reported, the pace. Arguments:
# time, part, number of counts, name and count of each, examples.
# Answers how far the coordinator is behind, the counts, and the examples.
TALLY = (
    PACE_SCRIPT
    + f"""
local reported, ends = cjson.decode(redis.call('HGET', KEYS[3], ARGV[2]) or '{{}}'), 3 + 2 * tonumber(ARGV[3])
for i = 4, ends, 2 do
  local name, count = ARGV[i], tonumber(ARGV[i + 1])
  if count > (reported[name] or 0) then
    redis.call('HINCRBY', KEYS[1], name, count - (reported[name] or 0))
    reported[name] = count
  end
end
if next(reported) then redis.call('HSET', KEYS[3], ARGV[2], cjson.encode(reported)) end
for i = ends + 1, #ARGV do
  if redis.call('LLEN', KEYS[2]) < 3 then redis.call('RPUSH', KEYS[2], ARGV[i]) end
end
for i = 1, 3 do redis.call('PEXPIRE', KEYS[i], {KEEP_QUERY}) end
return {{behind(), redis.call('HGETALL', KEYS[1]), redis.call('LRANGE', KEYS[2], 0, -1)}}
"""
)


# Gives calls of a budget, each only once. A task reports how many calls it has made and how many it holds, always in
# all, so that a question that is repeated, or whose answer is lost, counts once. A task gets at most an eighth of what
# is left, and at least one. Calls that other tasks hold are waited for, and their holders learn that a task waits. When
# a task has been silent for its lease, the calls that it held count as made, for they may have been.
#
# keys: a hash, of each task "number made held short lost", and the sums; the tasks by the ends of their leases; the
# pace. Arguments: time, task, total, number of the question, made, held, wanted (-1: the task leaves), lease.
# Answers how far the coordinator is behind, how many calls the task gets, whether all are made, whether others wait for
# calls that this task holds.
SPEND = (
    PACE_SCRIPT
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
    got = math.max(0, mine[3] - held)  -- repeated: the answer was lost
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
for i = 1, 2 do redis.call('PEXPIRE', KEYS[i], {KEEP_CALLS}) end
local is_over = got == 0 and held == 0 and out == 0 and spent + made >= total
return {{behind(), got, is_over and 1 or 0, waits and 1 or 0}}
"""
)


class SharedFailures(PeriodicTask):
    """Adds the failed rows of this task to those of the job; of one event loop.

    Rows that Spark runs again, in another attempt of the task, count once.

    Args:
        name: of the query.
        part: the rows that this task works on.
        spent: called with the counts of the job when the budget is spent.
    """

    # A report has all counts since the task began, so a report that is repeated because its answer was lost counts
    # once. Each answer has the counts of the job, so the task that reports last sees those of all.
    #
    # _own: counts since the task began, with the examples that were not reported
    # _reported: the rows that were
    # _refreshed: when the last report was made

    def __init__(
        self, link: TaskLink, name: str, part: str, budget: ErrorBudget, spent: Callable[[Failures], None]
    ) -> None:
        super().__init__(link, [link.key(kind, name) for kind in ("failures", "examples", "parts")])
        self._part, self._budget, self._spent = part, budget, spent
        self._own, self._reported = Failures(), 0
        self._refreshed = self._clock()

    def add(self, rows: int, types: Mapping[str, int] | None = None, examples: Iterable[str] = ()) -> None:
        """Count rows that are done; `types` counts the errors of those that failed."""
        self._own.add(rows, types, [_shortened(example) for example in examples])
        if types:
            self._poke()

    async def close(self) -> None:
        """Report the last counts."""
        await super().close()
        if not self._has_failed:  # else the task has failed already, and there is no answer
            await self._exchange()

    async def _exchange(self) -> float:
        own, now = self._own, self._clock()
        if own.rows > self._reported or now >= self._refreshed + REFRESH:
            rows, examples = own.rows, [*own.examples]
            counts = {
                "rows": rows,
                "failed": own.failed,
                **{f"type:{name}": count for name, count in own.types.items()},
            }
            pairs = [part for pair in counts.items() for part in pair]
            answer = await self._ask(TALLY, self._part, len(counts), *pairs, *examples)
            self._reported, self._refreshed = rows, now
            del own.examples[: len(examples)]
            job = _failures(*answer)
            if self._budget.is_spent(job):
                self._spent(job)
        return REPORT_EVERY


def _shortened(example: str) -> str:
    return (
        example if len(example) <= EXAMPLE_CHARACTERS else f"{example[: EXAMPLE_CHARACTERS - 1]}\N{HORIZONTAL ELLIPSIS}"
    )


def _failures(counts: list[str], examples: list[str]) -> Failures:
    found = {name: int(count) for name, count in zip(counts[::2], counts[1::2], strict=True)}
    rows, failed = found.pop("rows", 0), found.pop("failed", 0)
    return Failures(
        rows, failed, Counter({name.removeprefix("type:"): count for name, count in found.items()}), examples
    )


class SharedSpending(PeriodicTask):
    """Exactly `total` calls for all tasks together; of one event loop.

    A task gives back what it holds and does not use: while others wait for it, and when it ends. A task that is killed
    cannot: after a minute what it held counts as used, for it may have been.

    Args:
        name: of the query.
    """

    # Calls come in blocks, which double as they are used up.
    #
    # _made, _held: calls that were made, and that may be made without a question
    # _is_wanted: a call asks for one, so one of those held is not given back
    # _is_awaited: other tasks wait for what this one holds
    # _number: of the last question; 0: there was none

    def __init__(self, link: TaskLink, name: str, total: int) -> None:
        super().__init__(link, [link.key("calls", name), link.key("holders", name)], gap=QUESTION_GAP)
        self._total = total
        self._made = self._held = self._number = 0
        self._block = 1
        self._is_wanted = self._is_awaited = self._is_spent = False

    def has_call(self) -> bool:
        """Whether a call may be made now; if not, and they are not spent, `wake` is called."""
        if not self._is_wanted:
            self._is_wanted = True
            if self._held == 0:
                self._poke()
        return self._held > 0

    def is_spent(self) -> bool:
        """Whether all calls of all tasks are made."""
        return self._is_spent

    def use(self) -> None:
        """A call is made."""
        self._held -= 1
        self._made += 1
        self._is_wanted = False

    def _last_message(self) -> Awaitable[object] | None:
        return self._question(-1) if self._number else None

    async def _exchange(self) -> float:
        if not self._number and not self._is_wanted:
            return REFRESH
        if self._is_awaited:
            self._held = min(self._held, int(self._is_wanted))
        want = self._block if self._is_wanted and not self._held else 0
        got, is_spent, is_awaited = await self._question(want)
        self._held += got
        self._is_awaited, self._is_spent = bool(is_awaited), bool(is_spent)
        if got:
            self._block = min(CALLS_AT_ONCE, 2 * self._block)
        if want:
            self._link.wake()
        if self._is_awaited and self._held:
            self._is_wanted = False  # the call that asked may need none by now; else it asks again
            self._link.wake()
            return HURRY_EVERY
        if self._is_wanted and not self._held:
            return HURRY_EVERY
        return REPORT_EVERY if self._held else REFRESH

    async def _question(self, want: int) -> tuple[int, int, int]:
        self._number += 1
        own = (self._link.task, self._total, self._number, self._made, self._held, want, LEASE)
        got, is_spent, is_awaited = map(int, await self._ask(SPEND, *own))
        return got, is_spent, is_awaited
