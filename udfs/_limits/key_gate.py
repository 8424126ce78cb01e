"""A rate limit by key: the gate, and the permits of all keys in one place."""

from __future__ import annotations

from collections.abc import Callable

from .by_key import Key
from .gate import Aside, AskingAttempt, Gate, LimitKey
from .rate_limit import Bucket, LimitTime, RateLimit, limit_label
from .shared_keys import SharedKeys

FEW = 1_000  # keys: whether fewer are still in use is not looked at


class KeyGate(Gate):
    """A `RateLimit` with `by`: of each key calls begin as the limit lets them, whatever other keys do.

    `wait` takes nothing, so a call begins with the permits of all its limits, or has none.

    Args:
        place: of the limit among those of the function.
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

    def settle(self, attempt: AskingAttempt, reserved: float, used: float, now: float) -> None:
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

    A key whose permits are all there again is as one that was never used, and is forgotten.
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
        """A limit of these permits uses it."""
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
    """The permits of each key in a task that shares them with no other: a `Bucket` for each; else `SharedKeys`.

    `is_full`: no other key may be asked for now; the task is woken when one may.
    """

    is_full = False

    def __init__(self, limit: RateLimit, times: KeyTimes) -> None:
        self._limit, self._times = limit, times
        times.use_for(limit)

    def due(self, key: Key, cost: float, now: float, calls: int) -> float | None:
        """When a call of this cost may begin; None if that is not known yet: its key is woken then.

        Args:
            calls: of the key that wait, with this one.
        """
        return self._bucket(key, now).due(cost, now)

    def use(self, key: Key, cost: float, now: float) -> None:
        """Take them, now that they are due."""
        self._bucket(key, now).use(cost, now)

    def give_back(self, key: Key, permits: float, now: float) -> None:
        """A call has not used so many of those that it took; less than 0 if it has used more."""
        self._bucket(key, now).use(-permits, now)

    def _bucket(self, key: Key, now: float) -> Bucket:
        return Bucket(self._limit, self._times.of(key, now))
