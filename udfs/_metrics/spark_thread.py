"""The thread that Spark runs in, as seen from the loop's."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ("SparkThread",)


class SparkThread:
    """What Spark's thread is doing: it is away to hand over results, and can bring no input; or it waits for the loop.

    Written by Spark's thread, read by the loop's.
    """

    # _away: how long it was away before, and since when it is now (None: it is here); both in one step, so that whoever
    # reads it in between sees no moment twice or not at all

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._away: tuple[float, float | None] = (0.0, None)
        self._waits_since: float | None = None

    def leave(self) -> None:
        self._away = (self.seconds_away(), self._clock())

    def come_back(self) -> None:
        self._away = (self.seconds_away(), None)

    def seconds_away(self) -> float:
        """How long it has been away until now, in all."""
        before, since = self._away
        return before if since is None else before + self._clock() - since

    def wait(self) -> None:
        self._waits_since = self._clock()

    def go_on(self) -> None:
        self._waits_since = None

    def has_waited(self, since: float) -> bool:
        """Whether it has done nothing since then: it cannot be what kept the loop from running."""
        waits_since = self._waits_since
        return waits_since is not None and waits_since <= since
