"""A service that is called under limits, on a virtual clock; and what is seen of calls from outside, on any clock."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from asyncudf import RateLimit

__all__ = ("Service", "ThrottledError", "ahead_of", "most_within", "now")


def now() -> float:
    return asyncio.get_running_loop().time()


class ThrottledError(Exception):
    """What a client raises for a 429."""

    def __init__(self, retry_after: float | str | None = None, status: int = 429) -> None:
        super().__init__("too many requests")
        self.status = status
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}


class Service:
    """Notes each call with its time, answers with when it began; fails while it is down.

    Args:
        seconds: how long a call takes.
        down: from when to when each call fails.
        error: with what.
        bad: rows that fail at any time.
    """

    def __init__(
        self,
        seconds: float = 1.0,
        *,
        down: tuple[float, float] = (0.0, 0.0),
        error: BaseException | None = None,
        bad: Sequence[Any] = (),
    ) -> None:
        self.seconds, self.down, self.bad = seconds, down, bad
        self.error = error or ConnectionError("down")
        self.calls: list[tuple[Any, float]] = []
        self.in_flight = self.peak = 0

    async def __call__(self, x: Any) -> float:
        began = now()
        self.calls.append((x, began))
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.in_flight -= 1
        if self.down[0] <= began < self.down[1] or x in self.bad:
            raise self.error
        return began

    @property
    def rows(self) -> list[Any]:
        return [row for row, _ in self.calls]

    @property
    def times(self) -> list[float]:
        return [time for _, time in self.calls]

    def of(self, row: Any) -> list[float]:
        """When a row was called."""
        return [time for one, time in self.calls if one == row]


def most_within(seconds: float, times: Sequence[float]) -> int:
    """The most calls that began in any such time."""
    return max(sum(begin <= one < begin + seconds - 1e-9 for one in times) for begin in times)


def ahead_of(limit: RateLimit, times: Iterable[float], since: float) -> float:
    """The most permits that calls have used before the limit, without its burst, had given them.

    What holds up a process makes its calls later, and so this less: unlike the calls of the worst second, it is the
    same on a busy machine.

    Args:
        limit: what the calls keep.
        times: when they began.
        since: some time before the first of them was permitted.
    """
    return max(used - (at - since) / limit.interval for used, at in enumerate(sorted(times), 1))
