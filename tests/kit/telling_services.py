"""Services that count calls by rules of their own, and tell them in the headers of each answer; on a given clock.

Each has a limit that changes in mid-run, and may have another client that uses a share of it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import email.utils
import math
import random
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from asyncudf import FatalError, RateLimit, http
from tests.kit.coordinators import Server
from tests.kit.engines import run_tasks
from tests.kit.limited import now

__all__ = ("JOBS", "Job", "Outcome", "run_job")

EPOCH = 1.75e9  # seconds since 1970, when the clock is 0
Limit = Callable[[float], float]  # permits in a period, by the time


class ThrottledError(Exception):
    """What a client raises for a 429, with the headers of the answer."""

    status = 429

    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__("too many requests")
        self.headers = headers


class Service:
    """One that takes what its rule allows.

    Args:
        limit: permits in a period.
        per: seconds of it.
        others: the share that another client uses, if it gets it; it calls at random times.
        telling: makes headers of the limit, of what is left, and of the seconds until the reset.
    """

    def __init__(
        self, limit: Limit, per: float, telling: Callable[[float, float, float], dict[str, str]], *,
        others: float = 0.0, cost: float = 1.0, seed: int = 0,
    ) -> None:  # fmt: skip
        self.limit, self.per, self._telling, self._others, self._cost = limit, per, telling, others, cost
        self._rng = random.Random(seed)
        self._next_other = self._gap(0.0) if others else math.inf
        self.served = self.refused = self.by_others = 0.0

    def _gap(self, now: float) -> float:
        return self._rng.expovariate(self._others * self.limit(now) / self._cost / self.per)

    def call(self, cost: float, time: float) -> dict[str, str]:
        """A call comes; returns the headers of its answer, or raises the error of a refusal."""
        while self._next_other <= time:
            at = self._next_other
            self.by_others += self._cost if self._takes(self._cost, at) else 0.0
            self._next_other = at + self._gap(at)
        is_taken = self._takes(cost, time)
        left, reset = self._state(time)
        headers = {"date": email.utils.formatdate(EPOCH + math.floor(time), usegmt=True)}
        headers |= self._telling(self.limit(time), math.floor(left), reset)
        if is_taken:
            self.served += cost
            return headers
        self.refused += cost
        raise ThrottledError({**headers, "retry-after": str(max(1, math.ceil(min(reset, 2.0))))})

    def allowed(self, end: float) -> float:
        """Permits for this client until a time, beside what another one has got."""
        steps = 1000
        return sum(self.limit((i + 0.5) * end / steps) for i in range(steps)) / steps * end / self.per - self.by_others

    def _takes(self, cost: float, now: float) -> bool:
        raise NotImplementedError

    def _state(self, now: float) -> tuple[float, float]:
        """What is left, and the seconds until all of it is there again."""
        raise NotImplementedError


class Bucket(Service):
    """Refills bit by bit, holds what comes in a period, and is empty at first."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._tokens = self._at = 0.0

    def _takes(self, cost: float, now: float) -> bool:
        rate = self.limit(now) / self.per
        self._tokens = min(self.limit(now), self._tokens + (now - self._at) * rate)
        self._at = now
        is_taken = self._tokens >= cost
        self._tokens -= cost * is_taken
        return is_taken

    def _state(self, now: float) -> tuple[float, float]:
        return self._tokens, max(0.0, self.limit(now) - self._tokens) * self.per / self.limit(now)


class Window(Service):
    """So many in each period from a given time on."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._window, self._used = 0, 0.0

    def _takes(self, cost: float, now: float) -> bool:
        if (window := math.floor(now / self.per)) != self._window:
            self._window, self._used = window, 0.0
        is_taken = self._used + cost <= self.limit(now)
        self._used += cost * is_taken
        return is_taken

    def _state(self, now: float) -> tuple[float, float]:
        return max(0.0, self.limit(now) - self._used), (math.floor(now / self.per) + 1) * self.per - now


class Sliding(Service):
    """So many in any period."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._taken: deque[tuple[float, float]] = deque()
        self._used = 0.0
        self._all: list[tuple[float, float]] = []

    def allowed(self, end: float) -> float:
        """Without the time in which calls of before are more than a limit that has fallen: it takes nothing then."""
        closed, used, first = 0.0, 0.0, 0
        last = iter([*self._all, (math.inf, 0.0)])
        at, cost = next(last)
        for step in range(int(10 * end)):
            now = step / 10
            while at <= now:
                used += cost
                at, cost = next(last)
            while first < len(self._all) and self._all[first][0] <= now - self.per:
                used -= self._all[first][1]
                first += 1
            closed += 0.1 * self.limit(now) / self.per if used > self.limit(now) else 0.0
        return super().allowed(end) - closed

    def _takes(self, cost: float, now: float) -> bool:
        while self._taken and self._taken[0][0] <= now - self.per:
            self._used -= self._taken.popleft()[1]
        is_taken = self._used + cost <= self.limit(now)
        if is_taken:
            self._taken.append((now, cost))
            self._all.append((now, cost))
            self._used += cost
        return is_taken

    def _state(self, now: float) -> tuple[float, float]:
        oldest = self._taken[0][0] + self.per - now if self._taken else self.per
        return max(0.0, self.limit(now) - self._used), oldest


# How they tell it.


def duration(seconds: float) -> str:
    """As OpenAI writes it: 6m0s, 1.5s, 120ms."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:.0f}m{rest:.3g}s" if minutes else f"{rest:.3g}s"


def openai(unit: str) -> Callable[[float, float, float], dict[str, str]]:
    return lambda limit, left, reset: {
        f"x-ratelimit-limit-{unit}": f"{limit:.0f}",
        f"x-ratelimit-remaining-{unit}": f"{left:.0f}",
        f"x-ratelimit-reset-{unit}": duration(reset),
    }


def anthropic(limit: float, left: float, reset: float) -> dict[str, str]:
    at = datetime.fromtimestamp(math.ceil(EPOCH + now() + reset), UTC)
    told = {"limit": f"{limit:.0f}", "remaining": f"{left:.0f}", "reset": at.strftime("%Y-%m-%dT%H:%M:%SZ")}
    return {f"anthropic-ratelimit-requests-{part}": value for part, value in told.items()}


def github(limit: float, left: float, reset: float) -> dict[str, str]:
    told = {"limit": limit, "remaining": left, "reset": math.ceil(EPOCH + now() + reset)}
    return {f"x-ratelimit-{part}": f"{value:.0f}" for part, value in told.items()}


def ietf(limit: float, left: float, reset: float) -> dict[str, str]:
    policy, state = f'"default";q={limit:.0f};w=60', f'"default";r={left:.0f};t={math.ceil(reset)}'
    return {"ratelimit-policy": policy, "ratelimit": state}


# Jobs of eight tasks that meet them.

TASKS, CAPACITY, SECONDS = 8, 20, 240.0
LATENCY = 0.5  # seconds of a call, in the median
CHANGES_AT = 110.0  # seconds: within a window


@dataclasses.dataclass(frozen=True)
class Job:
    """A service and a job that meets it.

    Args:
        rule: of the service.
        limit: permits in a minute, at first.
        becomes: times as many, from CHANGES_AT on.
        others: share that another client uses.
    """

    rule: type[Service]
    telling: Callable[[float, float, float], dict[str, str]]
    dialect: str
    limit: float = 240.0
    becomes: float = 1.0
    others: float = 0.0
    unit: str = "requests"
    cost: float = 1.0

    def learned(self) -> RateLimit:
        cost = None if self.cost == 1 else self.cost
        start, most = 60.0 * self.cost, 5_000.0 * self.cost
        return RateLimit.from_headers(self.dialect, self.unit, start=start, at_most=most, per="minute", cost=cost)

    def service(self, seed: int) -> Service:
        limit = lambda at: self.limit * (self.becomes if at >= CHANGES_AT else 1.0)  # noqa: E731
        return self.rule(limit, 60.0, self.telling, others=self.others, cost=self.cost, seed=seed)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What share of what it allowed a service has served, and what share of the calls it refused, in percent."""

    served: float
    refused: float


def run_job(server: Server | None, job: Job, seed: int = 0, seconds: float = SECONDS, **options: Any) -> Outcome:
    """Run it in virtual time, and end it then."""
    service, rng = job.service(seed), random.Random(1000 + seed)

    async def call(row: int) -> int:
        if now() >= seconds:
            raise FatalError("it is over")
        await asyncio.sleep(0.1 * LATENCY)  # the way there
        headers = service.call(job.cost, now())
        await asyncio.sleep(LATENCY * rng.lognormvariate(0.0, 0.5))
        http.tell_limits(headers)
        return row

    rows = range(int(2 * service.allowed(seconds) / job.cost))
    tasks = TASKS if server is not None else 1
    given = {"capacity": CAPACITY, "output_mode": "unordered", "timeout": 3600.0, **options}
    ended = run_tasks(server, [call] * tasks, rows, rate_limit=job.learned(), **given)
    for one in ended:
        if not isinstance(one, FatalError):
            raise AssertionError(f"it has ended too early: {one!r:.200}")
    calls = service.served + service.refused
    return Outcome(100 * service.served / service.allowed(seconds), 100 * service.refused / calls)


BUCKET, TOKENS = (Bucket, openai("requests"), "openai"), (Bucket, openai("tokens"), "openai")
JOBS = {
    "OpenAI's, limit doubles": Job(*BUCKET, becomes=2.0),
    "OpenAI's, another client uses 40%": Job(*BUCKET, others=0.4),
    "tokens, another client uses 40%": Job(*TOKENS, 96_000.0, others=0.4, unit="tokens", cost=400.0),
    "Anthropic's, limit halves": Job(Bucket, anthropic, "anthropic", becomes=0.5),
    "GitHub's window, limit halves": Job(Window, github, "github", becomes=0.5),
    "GitHub's window, another client uses 40%": Job(Window, github, "github", others=0.4),
    "IETF's, sliding, limit doubles": Job(Sliding, ietf, "ietf", becomes=2.0),
    "IETF's, sliding, limit halves": Job(Sliding, ietf, "ietf", becomes=0.5),
    "IETF's, sliding, another client uses 40%": Job(Sliding, ietf, "ietf", others=0.4),
}
