"""What the tasks of a job know together about their service: its circuit breaker, its pause, its last accepted call."""

from __future__ import annotations

import enum
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping

from ..._errors.call_outcome import CallOutcome
from ..coordinator.client import LEASE
from ..coordinator.link import KEEP_QUERY, PACE_SCRIPT, REFRESH, REPORT_EVERY, PeriodicTask, TaskLink
from .option import (
    BY_CHANCE,
    CALLS_BEFORE,
    DOUBTED,
    EXAMPLES,
    LEAST_SHARE,
    MORE,
    RARE_BY_CHANCE,
    WINDOWS_KEPT,
    CircuitBreaker,
    ErrorBudget,
    Failures,
)

NEWS_EVERY = 0.25  # seconds between two exchanges
PROBE = -1  # the ticket of a probe
ENDS = ("s", "f", "n")  # of a probe
LETTERS = {CallOutcome.ANSWERED: "s", CallOutcome.DOWN: "f"}


# The breaker and the pause of a function, and when a call of it was accepted: takes what one task reports, answers what
# all have reported. Nothing is kept until there is something to report.
#
# keys: a hash, the pace. Arguments: time, task, window, failure_rate, open_for, lease of a probe, ticket, outcomes of
# that ticket ("sff"), probe ("", "ask", "hold", or its end "s", "f" or "n"), seconds to pause, seconds since a call was
# accepted or "". When the lease is over and the prober has not reported another task may probe.
# Answers how far the coordinator is behind, the time, the ticket, since when it is open or "", when the next probe may
# begin, whether this task may make it, until when calls pause, when a call was accepted, and the last outcomes.
HEALTH = (
    PACE_SCRIPT
    + f"""
local key, me, window, rate = KEYS[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local open_for, lease, ticket, outcomes = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7], ARGV[8]
local probe, pause, since_accepted = ARGV[9], tonumber(ARGV[10]), tonumber(ARGV[11])
local stored = redis.call('HGETALL', key)
local is = {{ticket = '0', seen = '', since = ''}}
is.probe_at, is.prober, is.probe_until, is.pause, is.accepted = '0', '', '0', '0', '0'
for i = 1, #stored, 2 do is[stored[i]] = stored[i + 1] end
local function failures_in(outcomes) return select(2, string.gsub(outcomes, 'f', '')) end
local function exceeds_chance(counts_before)  -- as CircuitBreaker has it
  local newest_first, total = string.reverse(is.seen), failures_in(is.seen)
  local in_a_row, half, failures = #string.match(newest_first, '^f*'), math.max(1, math.floor(window / 2)), 0
  local function exceeds(calls, failures)
    local found, known, share = failures / calls, #is.seen - calls, {BY_CHANCE!r} * rate
    if counts_before and known >= {CALLS_BEFORE} then
      share = math.min(share, math.max({LEAST_SHARE}, {MORE} * (total - failures) / known))
    end
    local rest = found < 1 and (1 - found) * math.log((1 - found) / (1 - share)) or 0
    return found > share and calls * (found * math.log(found / share) + rest) >= {RARE_BY_CHANCE!r}
  end
  if in_a_row >= window then return true end
  for calls = 1, counts_before and in_a_row or 0 do
    if exceeds(calls, calls) then return true end
  end
  for calls = half, #is.seen, half do
    failures = failures + failures_in(string.sub(newest_first, calls - half + 1, calls))
    if exceeds(calls, failures) then return true end
  end
  return false
end
local function note(outcome) is.seen = string.sub(is.seen .. outcome, -{WINDOWS_KEPT} * window) end
local function try_later() is.probe_at = text(now + (exceeds_chance(false) and open_for or 0)) end
if is.since == '' then
  for outcome in string.gmatch(ticket == is.ticket and outcomes or '', '.') do
    note(outcome)
    if #is.seen >= window and failures_in(string.sub(is.seen, -window)) >= rate * window and exceeds_chance(true) then
      is.since = text(now)
      is.ticket = text(tonumber(is.ticket) + 1)
      try_later()
      break
    end
  end
elseif is.prober == me and probe ~= '' then
  if probe == 's' then
    is.since, is.prober, is.seen = '', '', ''
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
if pause > 0 then is.pause = text(math.max(tonumber(is.pause), now + pause)) end
if since_accepted then is.accepted = text(math.max(tonumber(is.accepted), now - since_accepted)) end
if #stored > 0 or outcomes ~= '' or pause > 0 or since_accepted then
  local changed = {{}}
  for name, value in pairs(is) do changed[#changed + 1] = name; changed[#changed + 1] = value end
  redis.call('HSET', key, unpack(changed))
  redis.call('PEXPIRE', key, text({KEEP_QUERY} + math.max(0, math.ceil(1000 * (tonumber(is.pause) - now)))))
end
return {{
  behind(), text(now), is.ticket, is.since, is.probe_at, is.prober == me and 1 or 0, is.pause, is.accepted,
  string.sub(is.seen, -{DOUBTED} * window)
}}
"""
)


class Probe(enum.Enum):
    """The call that probes the service while the breaker is open."""

    NONE = "none"  # this task may not make it
    GRANTED = "granted"  # it may
    UNDER_WAY = "under way"


class SharedHealth(PeriodicTask):
    """The circuit breaker of the job, with the methods of a `Breaker`; also the job's pause and last accepted call.

    Outcomes of all tasks go into one window. When the breaker opens, tasks learn of it within a quarter of a second, or
    at two thousand tasks a second where there are more. Then one call of the whole job probes the service. Without a
    `breaker` there are only refusals to share.
    """

    # accepted: when a call of this task was accepted for the last time, which the refusal gate sets
    # accepted_elsewhere: when a call of any task was accepted for the last time, as far as it is known
    # is_in_doubt: as in `Breaker`, as of the last answer
    # replied: called when the coordinator has answered
    # paused_until: None before the first answer: a task that begins during an outage or a pause must learn of it first
    # _ticket: of the calls that begin while the breaker is closed; it changes when the breaker opens or closes
    # _outcomes: of calls under that ticket, not yet reported
    # _probe_end: how the probe has ended, not yet reported
    # _wants_to_try: a call had to wait while the breaker is open, so there is one to probe with

    def __init__(self, link: TaskLink, name: str, breaker: CircuitBreaker | None) -> None:
        super().__init__(link, [link.coordinator.key("health", name)])
        self._has_breaker = breaker is not None
        self._options = breaker or CircuitBreaker()
        self._ticket = 0
        self._outcomes = self._probe_end = ""
        self._probe = Probe.NONE
        self._wants_to_try = self.is_in_doubt = False
        self._probe_at = 0.0
        self.open_since: float | None = None
        self.paused_until: float | None = None
        self.replied: Callable[[], None] = lambda: None
        self._unreported_pause = -math.inf
        self.accepted = self._reported_accepted = self.accepted_elsewhere = -math.inf

    def admit(self, now: float) -> int | None:
        if self.open_since is None:
            return self._ticket
        if self._probe is not Probe.GRANTED:
            return None
        self._probe, self._wants_to_try = Probe.UNDER_WAY, False
        return PROBE

    def wait(self, now: float) -> float | None:
        """0.0 if a call may begin now; None until the task is woken."""
        if self.open_since is None or self._probe is Probe.GRANTED:
            return 0.0
        if not self._wants_to_try:
            self._wants_to_try = True
            self._poke()
        return None

    def ended(self, ticket: int, outcome: CallOutcome, now: float) -> None:
        if ticket == PROBE:
            answered = outcome in (CallOutcome.ANSWERED, CallOutcome.THROTTLED)
            self._probe_end = "s" if answered else LETTERS.get(outcome, "n")
            self._probe = Probe.NONE
            self._poke()
        elif self._has_breaker and ticket == self._ticket and outcome in LETTERS:
            self._outcomes = (self._outcomes + LETTERS[outcome])[-self._options.window :]
            if outcome is CallOutcome.DOWN:
                self._poke()

    def pause(self, until: float) -> None:
        """The service has asked all callers to wait until then."""
        if self.paused_until is None or until > self.paused_until:
            self.paused_until = self._unreported_pause = until
            self._poke()

    def _last_message(self) -> Awaitable[object] | None:
        if self._probe is not Probe.NONE:
            self._probe_end, self._probe = "n", Probe.NONE
        news = self._outcomes or self._probe_end or self._unreported_pause > self._clock()
        return self._exchange() if news or self.accepted > self._reported_accepted else None

    async def _exchange(self) -> float:
        sent = self._clock()
        outcomes, probe, until, accepted = self._outcomes, self._probe_end, self._unreported_pause, self.accepted
        self._outcomes = self._probe_end = ""
        self._unreported_pause = -math.inf
        if probe:
            pass
        elif self._probe is Probe.UNDER_WAY:
            probe = "hold"
        elif self._probe is Probe.GRANTED:  # the task was woken and has no call to make: let another one probe
            probe, self._probe = "n", Probe.NONE
        elif self.open_since is not None and self._wants_to_try and sent >= self._probe_at:
            probe = "ask"
        of, pause = self._options, max(0.0, until - sent)
        try:
            own = (self._link.task, of.window, of.failure_rate, of.open_for, LEASE)
            ago = sent - accepted if accepted > self._reported_accepted else ""
            answer = await self._ask(HEALTH, *own, self._ticket, outcomes, probe, pause, ago)
            self._reported_accepted = accepted
        except BaseException:  # perhaps it did not arrive: the next exchange reports it again
            self._outcomes = (outcomes + self._outcomes)[-of.window :]
            self._probe_end = self._probe_end or (probe if probe in ENDS else "")
            self._unreported_pause = max(self._unreported_pause, until)
            raise
        self._update(answer, sent)
        until_probe = self._probe_at - self._clock()
        if self.open_since is None or self._probe is not Probe.NONE or until_probe <= 0.0:  # another task probes
            return NEWS_EVERY
        return min(NEWS_EVERY, max(0.01, until_probe))

    def _update(self, answer: list[str], sent: float) -> None:
        said, ticket, since, probe_at, may_probe, pause, accepted, seen = answer
        time = self._coordinator.time
        time.update(sent, float(said), self._clock())
        if int(ticket) != self._ticket:
            self._ticket, self._outcomes = int(ticket), ""
        self.open_since = time.ours(float(since)) if since else None
        self._probe_at = time.ours(float(probe_at))
        if not self._probe_end:  # else it has ended meanwhile, which the answer does not know
            if not int(may_probe) or self.open_since is None:
                self._probe = Probe.NONE
            elif self._probe is Probe.NONE:
                self._probe = Probe.GRANTED
        asked = time.ours(float(pause)) if float(pause) > float(said) else -math.inf
        self.paused_until = max(self.paused_until or -math.inf, asked)
        self.accepted_elsewhere = time.ours(float(accepted))
        self.is_in_doubt = self._options.doubts([outcome == "f" for outcome in reversed(seen)])
        self.replied()
        self._link.wake()


EXAMPLE_CHARACTERS = 200  # characters of an example: each micro-batch of a stream leaves some on the server for a while


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
  if redis.call('LLEN', KEYS[2]) < {EXAMPLES} then redis.call('RPUSH', KEYS[2], ARGV[i]) end
end
for i = 1, 3 do redis.call('PEXPIRE', KEYS[i], {KEEP_QUERY}) end
return {{behind(), redis.call('HGETALL', KEYS[1]), redis.call('LRANGE', KEYS[2], 0, -1)}}
"""
)


class SharedFailures(PeriodicTask):
    """Adds the failed rows of this task to the count of the job; of one event loop.

    Rows that Spark runs again, in another attempt of the task, count once: their `part` has the same name. `spent` is
    called with the counts of the job when the budget is spent.
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
        super().__init__(link, [link.coordinator.key(kind, name) for kind in ("failures", "examples", "parts")])
        self._part, self._budget, self._spent = part, budget, spent
        self._own, self._reported = Failures(), 0
        self._refreshed = self._clock()

    def add(self, rows: int, types: Mapping[str, int] | None = None, examples: Iterable[str] = ()) -> None:
        longest = EXAMPLE_CHARACTERS - 1
        short = [one if len(one) <= longest else f"{one[:longest]}\N{HORIZONTAL ELLIPSIS}" for one in examples]
        self._own.add(rows, types, short)
        if types:
            self._poke()

    async def close(self) -> None:
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


def _failures(counts: list[str], examples: list[str]) -> Failures:
    found = {name: int(count) for name, count in zip(counts[::2], counts[1::2], strict=True)}
    rows, failed = found.pop("rows", 0), found.pop("failed", 0)
    return Failures(
        rows, failed, Counter({name.removeprefix("type:"): count for name, count in found.items()}), examples
    )
