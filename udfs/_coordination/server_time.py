"""The coordinator's clock and the task's: one told in the other's seconds."""

from __future__ import annotations

import math

__all__ = ("ServerTime",)


DRIFT = 1e-4  # of the time since an answer: by how much two clocks may part


class ServerTime:
    """How far the server's clock is ahead of ours, as far as its answers tell.

    An answer was made between the sending of its question and its coming: so each one bounds the difference, and that
    which came fastest bounds it best.
    """

    # _most: ours is at most so far ahead of the server's. It is what is used: a time that comes late keeps limits.

    def __init__(self) -> None:
        self._least, self._most = -math.inf, math.inf
        self._since = 0.0

    def heard(self, sent: float, said: float, received: float) -> None:
        """The server said its time, in an answer to what was sent then."""
        apart = DRIFT * (received - self._since)
        self._least, self._most = self._least - apart, self._most + apart
        self._since = received
        if received - said < self._least or sent - said > self._most:  # one of the clocks was set
            self._least, self._most = -math.inf, math.inf
        self._least = max(self._least, sent - said)
        self._most = min(self._most, received - said)

    def ours(self, time: float) -> float:
        """The server's time on our clock; it is there by then, and was so not long before."""
        return time + self._most

    def theirs(self, time: float) -> float:
        """Our time on the server's clock."""
        return time - self._most
