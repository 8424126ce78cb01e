"""The gate of the rate limits of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..gate import AskingAttempt, Gate
from .bucket import Credit, Permits, take, tightest
from .job import SharedPermits
from .option import RateLimit, limit_label


class PermitGate(Gate):
    """`rate_limit`: `wait` takes the permits of an attempt that all other gates let begin.

    The limits that are not by key are named by their places in `rate_limit`: of each the permits are the task's own, or
    `shared` by all.
    """

    def __init__(
        self,
        limits: Mapping[int, RateLimit],
        own: Sequence[tuple[int, Permits]],
        shared: tuple[Sequence[int], SharedPermits] | None,
    ) -> None:
        self._labels = {place: limit_label(limit) for place, limit in limits.items()}
        self.limits = [*self._labels.values()]
        self.limit = limit_label(max(limits.values(), key=lambda limit: limit.interval))  # until it is known
        self._credits = [(place, Credit(limit)) for place, limit in limits.items()]
        self._credit_of = dict(self._credits)
        self.follows_calls = any(limit.settle is not None for limit in limits.values())
        self._own, self._places = [permits for _, permits in own], [place for place, _ in own]
        self._shared = shared

    def wait(self, attempt: AskingAttempt, now: float) -> float | None:
        given = attempt.costs
        assert given is not None
        costs = {place: max(0.0, given[place] - credit.left(now)) for place, credit in self._credits}
        own, own_costs = self._own, [costs[place] for place in self._places]
        if self._shared is None:
            wait = take(own, own_costs, now)
        else:
            dues = (permits.due(cost, now) or now for permits, cost in zip(own, own_costs, strict=True))
            wait = max(dues, default=now) - now
        if wait != 0.0:
            self._turns_away(tightest(own, own_costs, now), self._places)
        elif self._shared is not None:
            places, shared = self._shared
            shared_costs = [costs[place] for place in places]
            if (taken := shared.take(shared_costs, [given[place] for place in places])) is None:
                self._turns_away(shared.tightest(shared_costs), places)
                return None
            costs.update(zip(places, taken, strict=True))
            take(own, own_costs, now)
        if wait == 0.0:
            for place, credit in self._credits:
                credit.use(given[place] - costs[place], now)
        return wait

    def follow(self, place: int, limit: RateLimit) -> None:
        """From now on the permits of the limit at this place come as this one says."""
        self._credit_of[place].follow(limit)
        if place in self._places:
            self._own[self._places.index(place)].follow(limit)
        elif self._shared is not None:
            places, shared = self._shared
            shared.follow(places.index(place), limit)

    def settle(self, place: int, reserved: float, used: float, now: float) -> None:
        """A call that was thought to cost so many permits of a limit has used other ones: later calls get the rest."""
        self._credit_of[place].add(reserved - used, now)

    def _turns_away(self, number: int | None, places: Sequence[int]) -> None:
        """Note which limit a call waits for; while permits are asked for it is the one that calls waited for before."""
        for _, credit in self._credits:
            credit.is_wanted = True
        if number is not None:
            self.limit = self._labels[places[number]]
