"""A rate limit by key: the gate, the permits of all keys in one place, and those that all tasks share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import islice

from ..coordinator.client import LEASE, RUN, UPTIME, Coordinator
from ..coordinator.link import KEEP_LIMIT, PACE_SCRIPT, QUESTION_GAP, PeriodicTask, TaskLink
from ..gate import Aside, AskingAttempt, Gate, Key, LimitKey
from .bucket import Bucket, Credit, GrantedPermits, LimitTime
from .job import IDLE_FOR, NEVER_USED, ROUND_TRIPS
from .option import RateLimit, limit_label

FEW = 1_000  # keys: whether fewer are still in use is not looked at


class KeyGate(Gate):
    """A `RateLimit` with `by`: the limit holds for each key on its own, whatever other keys do.

    `wait` takes nothing, so a call begins with the permits of all its limits, or has none.

    Args:
        place: the place of the limit among the limits of the function.
        waiting: how many attempts of a key are aside.
    """

    def __init__(
        self, limit: RateLimit, place: int, permits: OwnKeys | SharedKeys, waiting: Callable[[LimitKey], int]
    ) -> None:
        self.limit = limit_label(limit)
        self.limits = [self.limit]
        self.place = place
        self._permits, self._waiting = permits, waiting

    def wait(self, attempt: AskingAttempt, now: float) -> float | Aside | None:
        if self._permits.is_full:
            return None
        key, cost = self._asked(attempt)
        place_and_key = self.place, key
        due = self._permits.due(key, cost, now, 1 + self._waiting(place_and_key))
        if due is None:
            return Aside(place_and_key, None)
        return Aside(place_and_key, due - now) if due > now else 0.0

    def began(self, attempt: AskingAttempt, now: float) -> None:
        self._permits.use(*self._asked(attempt), now)

    def settle(self, attempt: AskingAttempt, place: int, reserved: float, used: float, now: float) -> None:
        """A call that was thought to cost so many permits has used other ones: later calls of its key get the rest."""
        key, _ = self._asked(attempt)
        self._permits.give_back(key, reserved - used, now)

    def _asked(self, attempt: AskingAttempt) -> tuple[Key, float]:
        key = attempt.keys[self.place]
        costs = attempt.costs
        assert key is not None
        assert costs is not None
        return key, costs[self.place]


class KeyTimes:
    """The time of a limit, or of all limits of one name, for each key that was used lately.

    A key whose permits are all there again is like an unused key, and is forgotten.
    """

    # _lasts: seconds since there was no permit left, after which all are there
    # _most: keys; when there are more, those that are not in use are forgotten

    def __init__(self) -> None:
        self._times: dict[Key, LimitTime] = {}
        self._lasts = 0.0
        self._most = FEW

    def __len__(self) -> int:
        return len(self._times)

    def use_for(self, limit: RateLimit) -> None:
        """Keep the times of keys for as long as this limit needs them."""
        self._lasts = max(self._lasts, limit.saved * limit.interval + limit.period)

    def of(self, key: Key, now: float) -> LimitTime:
        time = self._times.get(key)
        if time is None:
            if len(self._times) >= self._most:
                used = now - self._lasts
                self._times = {k: one for k, one in self._times.items() if max(one.empty_at, one.awaited) > used}
                self._most = FEW + 2 * len(self._times)
            time = self._times[key] = LimitTime()
        return time


class OwnKeys:
    """The permits of each key where one task is the whole job: a `Bucket` for each key. See `SharedKeys` for a job.

    `is_full`: no other key may be asked for now; the task is woken when one may.
    """

    is_full = False

    def __init__(self, limit: RateLimit, times: KeyTimes) -> None:
        self._limit, self._times = limit, times
        times.use_for(limit)

    def due(self, key: Key, cost: float, now: float, calls: int) -> float | None:
        """When a call of this cost may begin; None if that is not known yet: its key is woken then.

        Args:
            calls: how many calls of the key wait, with this one.
        """
        return self._bucket(key, now).due(cost, now)

    def use(self, key: Key, cost: float, now: float) -> None:
        """Take them, now that they are due."""
        self._bucket(key, now).use(cost, now)

    def give_back(self, key: Key, permits: float, now: float) -> None:
        """A call has used fewer permits than it took, by this number; less than 0 if it has used more."""
        self._bucket(key, now).use(-permits, now)

    def _bucket(self, key: Key, now: float) -> Bucket:
        return Bucket(self._limit, self._times.of(key, now))


ASKED_AT_ONCE = 500  # keys
AHEAD = 0.25  # seconds of a key's time for which its calls reserve permits at once
_NOTHING = 0.0, 0.0
RENEWED = LEASE / 2  # seconds after which a task that has permits makes sure that the coordinator still knows of them


# The state of a key is one number, the time until which its permits are reserved: the arithmetic of GCRA. When its
# permits are all there again the entry expires: it would say no more than that there is none.
#
# So a server without a memory would grant to each key what others have. That is why a limit has an entry of its own,
# with the run of the server and the time from which on keys have permits. Where it is missing, or of another run, this
# time is when all that was granted has run out, after a lease; it is a new epoch, in which permits of others are void.
_EPOCH = (
    PACE_SCRIPT
    + RUN
    + f"local KEEP_LIMIT = {KEEP_LIMIT}  -- milliseconds"
    + """
local function epoch_of(key, wait)
  local epoch = redis.call('GET', key) or ''
  local made, begin = string.match(epoch, '^(%w*) (%S+)$')
  if made ~= run then
    begin = text(now + wait)
    epoch = run .. ' ' .. begin
  end
  redis.call('SET', key, epoch, 'PX', KEEP_LIMIT)
  return epoch, tonumber(begin)
end
"""
)


# Begins a limit; without this its first calls wait for a lease, as after a loss of memory.
#
# keys: the limit, the pace. Arguments: time, the seconds before its first permits if the server began just now.
OPEN_KEYS = (
    _EPOCH
    + UPTIME
    + """
epoch_of(KEYS[1], tonumber(ARGV[2]) - kept)
"""
)


# Reserves the next free permits of many keys at once; those that lie ahead are nobody else's.
#
# keys: the limit, each of the keys, the pace. Arguments: time, saved permits and the period in seconds, the lease, and
# for each key the seconds of its time that are given back, and those that are wanted.
# Answers how far the coordinator is behind, the time, the epoch, and for each key the start of what it gets.
RESERVE = (
    _EPOCH
    + """
local saved, period = tonumber(ARGV[2]), tonumber(ARGV[3])
local epoch, begin = epoch_of(KEYS[1], tonumber(ARGV[4]))
local answer, earliest = {behind(), text(now), epoch}, math.max(begin, now - saved)
for i = 2, #KEYS - 1 do
  local free = math.max(earliest, tonumber(redis.call('GET', KEYS[i]) or '-inf') or earliest)
  local start = math.max(earliest, free - tonumber(ARGV[2 * i + 1]))
  local last = start + tonumber(ARGV[2 * i + 2])
  local seconds = last - now + math.max(saved, period)
  redis.call('SET', KEYS[i], text(last), 'PX', text(math.max(1, math.ceil(1000 * seconds))))
  answer[#answer + 1] = text(start)
end
return answer
"""
)


async def open_keys(coordinator: Coordinator, limits: Sequence[tuple[str, RateLimit]]) -> None:
    """Begin the limits of a job: no task has permits yet, but other jobs may have some of a limit with a name."""
    for name, limit in limits:
        wait = NEVER_USED if limit.name is None else LEASE - limit.saved * limit.interval
        await coordinator.run(OPEN_KEYS, [_key(coordinator, name, limit), coordinator.key("pace", "all")], wait)


def _key(coordinator: Coordinator, name: str, limit: RateLimit) -> str:
    return coordinator.key("keys", name, for_all=limit.name is not None)


class SharedKeys(PeriodicTask):
    """The permits of each key of one limit, which all tasks share; of one event loop.

    A call reserves the next permits of its key, so the task knows when it may begin. Permits of a task that dies are
    lost, for these keys alone.

    Args:
        name: the name under which the limit is shared: by the tasks of this namespace, or, if the user gave it, by all
            jobs.
        wake: called with a key about which more is known.
    """

    # One question asks for all keys of which calls wait, so it costs the same for one as for many; while it is full
    # the task asks for no other keys, and so it has few permits for calls that do not begin yet.
    #
    # Permits count for a lease after the last answer: by then a coordinator that has lost its memory grants new ones.
    #
    # _leased: of each key, permits that were reserved and not used
    # _asked: what the next question asks for: of each key seconds that are given back, and those that are wanted
    # _open: what the question under way asks for
    # _credits: of each key, what calls of this task have taken and not used. Its next calls take that first: the
    # coordinator could only hand it out once more after what the task has reserved, when most of it would be stale
    # _unknown: the keys of calls that wait for an answer

    def __init__(self, link: TaskLink, name: str, limit: RateLimit, wake: Callable[[Key], None]) -> None:
        super().__init__(link, [_key(link.coordinator, name, limit)])
        self._limit, self._interval, self._wake = limit, limit.interval, wake
        self._leased: dict[Key, GrantedPermits] = {}
        self._asked: dict[Key, tuple[float, float]] = {}
        self._open: dict[Key, tuple[float, float]] = {}
        self._credits: dict[Key, Credit] = {}
        self._unknown: dict[Key, None] = {}
        self._ends = 0.0
        self._epoch = ""

    @property
    def is_full(self) -> bool:
        return len(self._asked) >= ASKED_AT_ONCE

    def due(self, key: Key, cost: float, now: float, calls: int) -> float | None:
        missing = cost
        if (credit := self._credits.get(key)) is not None:
            missing -= min(cost, credit.left(now))
            credit.is_wanted = True
        if not missing:
            return now
        leased, length = self._leased.get(key), cost * self._interval
        due = None if leased is None else leased.due(missing, now)
        is_short = leased is not None and calls > 1 and leased.held(now) * self._interval < self._lead
        if (due is None or is_short) and not self._open.get(key, _NOTHING)[1]:
            self._ask_for(key, 0.0, length * max(1, min(calls, int(AHEAD / length))))
        elif now >= self._ends:
            self._poke()
        if due is None or now >= self._ends:
            self._unknown[key] = None
            return None
        return due

    def use(self, key: Key, cost: float, now: float) -> None:
        if (credit := self._credits.get(key)) is not None:
            given = min(cost, credit.left(now))
            credit.use(given, now)
            cost -= given
        if cost:
            leased = self._leased[key]
            leased.use(cost, now)
            if not leased.held(now):
                del self._leased[key]

    def give_back(self, key: Key, permits: float, now: float) -> None:
        if permits > 0 and (key in self._leased or key in self._unknown):
            self._credits.setdefault(key, Credit(self._limit)).add(permits, now)
        else:
            self._ask_for(key, permits * self._interval, 0.0)

    @property
    def _lead(self) -> float:
        """Seconds before the next permits are here."""
        return ROUND_TRIPS * self._coordinator.trip + QUESTION_GAP

    def _ask_for(self, key: Key, back: float, wanted: float) -> None:
        given, before = self._asked.get(key, _NOTHING)
        self._asked[key] = given + back, max(before, wanted)
        self._poke()

    async def _exchange(self) -> float:
        asked = self._open = {key: self._asked.pop(key) for key in [*islice(self._asked, ASKED_AT_ONCE)]}
        if asked or self._leased or self._unknown:
            await self._reserve(asked)
            self._open = {}
            for key in [key for key in self._unknown if key in asked or key not in self._asked]:
                del self._unknown[key]
                self._wake(key)
            self._link.wake()
        if self._asked:
            return QUESTION_GAP
        return RENEWED if self._leased else IDLE_FOR

    def _last_message(self) -> Awaitable[object] | None:
        back = {key: (back, 0.0) for key, (back, _) in self._asked.items() if back}
        return self._question(back) if back else None

    def _question(self, asked: dict[Key, tuple[float, float]]) -> Awaitable[list[str]]:
        limit = self._keys[0]
        self._keys = [limit, *(f"{limit}:{key}" for key in asked)]
        numbers = [number for one in asked.values() for number in one]
        return self._ask(RESERVE, self._limit.saved * self._interval, self._limit.period, LEASE, *numbers)

    async def _reserve(self, asked: dict[Key, tuple[float, float]]) -> None:
        sent, time = self._clock(), self._coordinator.time
        said, epoch, *starts = await self._question(asked)
        now = self._clock()
        time.update(sent, float(said), now)
        if epoch != self._epoch:
            lost, self._epoch = [*self._leased] if self._epoch else [], epoch
            self._leased.clear()
            if lost:
                self._coordinator.has_forgotten()
                self._unknown.update(dict.fromkeys(lost))
        self._leased = {key: leased for key, leased in self._leased.items() if leased.held(now)}
        self._credits = {key: credit for key, credit in self._credits.items() if credit.left(now)}
        for (key, (_, wanted)), start in zip(asked.items(), map(float, starts), strict=True):
            if wanted:
                leased = self._leased.setdefault(key, GrantedPermits(self._limit))
                leased.add(time.ours(start), time.ours(start + wanted))
        self._ends = sent + LEASE
