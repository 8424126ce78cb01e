"""What calls have taken of a rate limit and not used."""

from __future__ import annotations

import math

from .rate_limit import RateLimit, patience_of


class Credit:
    """Permits of one limit that calls have taken and not used, for later ones; less than 0 if they have used more.

    They become stale like permits that were leased, unless a call waits for permits. Else a quiet time would save up
    what all calls before it did not use, and a burst of any size could follow.

    >>> credit = Credit(RateLimit(100))
    >>> credit.add(8.0, 10.0)
    >>> credit.left(10.01), credit.left(11.0)
    (8.0, 0.0)
    """

    def __init__(self, limit: RateLimit) -> None:
        self.follow(limit)
        self._permits, self._since = 0.0, -math.inf
        self.is_wanted = False  # a call waits

    def follow(self, limit: RateLimit) -> None:
        """From now on permits become stale as those of this limit."""
        self._patience = patience_of(limit)

    def left(self, now: float) -> float:
        if self._permits > 0 and now > self._since + self._patience and not self.is_wanted:
            self._permits = 0.0
        return self._permits

    def add(self, permits: float, now: float) -> None:
        """A call has not used so many."""
        self._permits = self.left(now) + permits
        self._since = now

    def use(self, permits: float) -> None:
        self._permits -= permits
        self.is_wanted = False
