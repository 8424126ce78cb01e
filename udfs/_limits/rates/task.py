"""The gates of the rate limits of a task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ..._errors.call_outcome import CallOutcome
from ..._errors.failure import Failure
from ..gate import AskingAttempt, Gate
from ..limited_task import LimitedTask
from .bucket import Bucket, Credit, LimitTime, Permits, take, tightest
from .learned import Learned, Learner
from .option import RateLimit, RateLimits, Scope, limit_label

if TYPE_CHECKING:
    from .job import SharedPermits
    from .keyed import SharedKeys

CHANGED = 0.02  # of a pace; less is not worth a new timer


def gates(limits: RateLimits, task: LimitedTask) -> list[Gate]:
    """A gate for each limit by key, and a last gate for all other limits: its `wait` takes permits."""
    names, own = limits.own_names(task.own_function), task.own
    of_job = [] if task.link is None else [place for place, one in enumerate(limits) if one.scope is Scope.JOB]
    named = dict(zip(of_job, limits.named(task.function), strict=True)) if of_job else {}
    found: list[Gate] = []
    for place, limit in enumerate(limits):
        if limit.by:
            from .keyed import KeyGate, KeyTimes, OwnKeys, SharedKeys

            keys: OwnKeys | SharedKeys
            if place in named:
                assert task.link is not None
                keys = task.owned(SharedKeys(task.link, *named[place], partial(task.ask_again, place)))
            else:
                keys = OwnKeys(limit, own.shared(KeyTimes, names[place]))
            gate = KeyGate(limit, place, keys, task.waiting)
            task.spending.settled_by[place] = gate
            found.append(gate)
    if others := {place: limit for place, limit in enumerate(limits) if not limit.by}:
        places = [place for place in others if place in named]
        buckets = [
            (place, Bucket(limit, own.shared(LimitTime, names[place])))
            for place, limit in others.items()
            if place not in places
        ]
        shared = (places, _shared_permits(task, [named[place] for place in places])) if places else None
        permits = (
            PermitGate(others, buckets, shared)
            if (learner := _learner(task)) is None
            else LearningGate(others, buckets, shared, learner)
        )
        task.spending.settled_by.update(dict.fromkeys(others, permits))
        found.append(permits)
    return found


def _shared_permits(task: LimitedTask, limits: Sequence[tuple[str, RateLimit]]) -> SharedPermits:
    from .job import LearningPermits, SharedPermits

    assert task.link is not None
    if (learner := _learner(task)) is None:
        return task.owned(SharedPermits(task.link, limits))
    return task.owned(LearningPermits(task.link, limits, learner))


def _learner(task: LimitedTask) -> Learner | None:
    assert task.learner is None or isinstance(task.learner, Learner)
    return task.learner


class PermitGate(Gate):
    """`rate_limit`: `wait` takes the permits of an attempt that all other gates let begin.

    The limits that are not by key are named by their places in `rate_limit`. The permits of a limit are the task's own,
    or `shared` by all tasks.
    """

    takes_permits = True

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

    def settle(self, attempt: AskingAttempt, place: int, reserved: float, used: float, now: float) -> None:
        """A call that was thought to cost so many permits of a limit has used other ones: later calls get the rest."""
        self._credit_of[place].add(reserved - used, now)

    def _turns_away(self, number: int | None, places: Sequence[int]) -> None:
        """Note which limit a call waits for; while permits are asked for, the limit that was noted before stays."""
        for _, credit in self._credits:
            credit.is_wanted = True
        if number is not None:
            self.limit = self._labels[places[number]]


class LearningGate(PermitGate):
    """`rate_limit` with limits that are learned."""

    # _paces: the permits in a period that each limit was given last

    def __init__(
        self,
        limits: Mapping[int, RateLimit],
        own: Sequence[tuple[int, Permits]],
        shared: tuple[Sequence[int], SharedPermits] | None,
        learner: Learner,
    ) -> None:
        super().__init__(limits, own, shared)
        self._learner = learner
        self._paces = {place: one.limit.permits for place, one in learner.learned.items()}

    def wait(self, attempt: AskingAttempt, now: float) -> float | None:
        assert attempt.costs is not None
        opens = now
        for place, learned in self._learner.learned.items():
            cost = attempt.costs[place]
            self._set_pace(place, learned, cost, now)
            if cost and (own := learned.opens(cost, now)) > opens:
                opens, self.limit = own, self._labels[place]
                self._learner.waits(learned, own - now)
        return opens - now if opens > now else super().wait(attempt, now)

    def ended(self, attempt: AskingAttempt, outcome: CallOutcome, failure: Failure | None, now: float) -> None:
        self._learner.ended(attempt, failure)

    def _set_pace(self, place: int, learned: Learned, cost: float, now: float) -> None:
        pace, before = learned.pace(cost, now), self._paces[place]
        if abs(pace - before) > CHANGED * before:
            self._paces[place] = pace
            self.follow(place, learned.limit.with_permits(pace))
