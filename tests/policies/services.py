"""Services for simulations: workers with a queue before them, which may throttle, get slow, die and recover."""

from __future__ import annotations

import dataclasses
import heapq
import math
import random
from collections.abc import Callable, Sequence
from typing import Protocol

from asyncudf._errors.call_outcome import CallOutcome

__all__ = ("Fixed", "Phase", "Policy", "Run", "Service", "simulate", "simulate_tasks")


class Policy(Protocol):
    """What decides how many calls are in flight."""

    @property
    def limit(self) -> int: ...

    def ended(self, outcome: CallOutcome, latency: float, in_flight: int, now: float) -> None: ...


@dataclasses.dataclass
class Fixed:
    """Always the same."""

    limit: int

    def ended(self, *_: object) -> None: ...


@dataclasses.dataclass(frozen=True)
class Phase:
    """From a time on the service is `slower` by a factor, does not answer, or refuses all calls."""

    begins: float
    slower: float = 1.0
    is_dead: bool = False
    refuses: bool = False


@dataclasses.dataclass(frozen=True)
class Service:
    """`workers` calls at once, the others wait.

    Args:
        latency: seconds of a call that does not wait, on average.
        spread: 0 for calls that all take as long, 1 for those that vary as in life (log-normal).
        rate: calls per second, beyond which it throttles.
        thrash: share by which each call that waits makes all slower.
        timeout: seconds after which a call is given up by the caller.
    """

    workers: int
    latency: float = 0.1
    spread: float = 0.8
    rate: float = math.inf
    thrash: float = 0.0
    timeout: float = 10.0
    phases: tuple[Phase, ...] = ()


@dataclasses.dataclass
class Run:
    """What has happened: (time, latency) of answered calls, (time, limit) twice a second, the number of others."""

    answered: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    limits: list[tuple[float, int]] = dataclasses.field(default_factory=list)
    others: int = 0

    def rate(self, begin: float, end: float) -> float:
        """Answers per second."""
        return sum(begin <= time < end for time, _ in self.answered) / (end - begin)

    def limits_between(self, begin: float, end: float) -> list[int]:
        return [limit for time, limit in self.limits if begin <= time < end]

    def swing(self, begin: float, end: float) -> float:
        """How far the limit is from its mean, as a share of it, all but a twentieth of the time."""
        limits = self.limits_between(begin, end)
        mean = sum(limits) / len(limits)
        return sorted(abs(limit / mean - 1) for limit in limits)[int(0.95 * len(limits))]


class _State:
    """A service at work."""

    def __init__(self, service: Service, rng: random.Random) -> None:
        self._service, self._rng = service, rng
        self._free_at = [0.0] * service.workers  # a heap: when each worker is free
        self._tokens, self._since = 0.0, 0.0
        self._shift = -(service.spread**2) / 2  # of the logarithm, so that the mean is `latency`

    def call(self, now: float, in_flight: int) -> tuple[float, CallOutcome]:
        """When a call ends that begins now, and with what."""
        service = self._service
        phase = max(
            (one for one in service.phases if one.begins <= now), default=Phase(0.0), key=lambda one: one.begins
        )
        if phase.refuses:
            return now + 0.001, CallOutcome.DOWN
        if phase.is_dead:
            return now + service.timeout, CallOutcome.DOWN
        if not self._has_token(now):
            return now + 0.02, CallOutcome.THROTTLED
        seconds = service.latency * math.exp(self._rng.gauss(self._shift, service.spread)) * phase.slower
        seconds *= 1 + service.thrash * max(0, in_flight - service.workers)
        begins = max(now, self._free_at[0])
        if begins + seconds > now + service.timeout:
            return now + service.timeout, CallOutcome.DOWN
        heapq.heapreplace(self._free_at, begins + seconds)
        return begins + seconds, CallOutcome.ANSWERED

    def _has_token(self, now: float) -> bool:
        if self._service.rate == math.inf:
            return True
        self._tokens = min(0.1 * self._service.rate, self._tokens + (now - self._since) * self._service.rate)
        self._since = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


def simulate(
    service: Service, policy: Policy, seconds: float, seed: int, demand: Callable[[float], float] = lambda _: math.inf
) -> Run:
    """Keep as many calls in flight as the policy allows, and `demand` has."""
    return simulate_tasks(service, [(0.0, policy)], seconds, seed, demand)


def simulate_tasks(
    service: Service,
    tasks: Sequence[tuple[float, Policy]],
    seconds: float,
    seed: int,
    demand: Callable[[float], float] = lambda _: math.inf,
) -> Run:
    """Several tasks, each with a policy of its own and the time when it begins; limits are those of all together."""
    state, run = _State(service, random.Random(seed)), Run()
    now, number, next_look = 0.0, 0, 0.0
    flight: list[tuple[float, int, float, CallOutcome, int]] = []
    in_flight = [0] * len(tasks)
    while now < seconds:
        for task, (begins, policy) in enumerate(tasks):
            while begins <= now and in_flight[task] < min(policy.limit, demand(now)):
                number += 1
                end, outcome = state.call(now, len(flight))
                heapq.heappush(flight, (end, number, now, outcome, task))
                in_flight[task] += 1
        end, _, began, outcome, task = heapq.heappop(flight)
        while next_look <= end:
            run.limits.append((next_look, sum(policy.limit for begins, policy in tasks if begins <= next_look)))
            next_look += 0.5
        now = end
        tasks[task][1].ended(outcome, now - began, in_flight[task], now)
        in_flight[task] -= 1
        if outcome is CallOutcome.ANSWERED:
            run.answered.append((now, now - began))
        else:
            run.others += 1
    return run
