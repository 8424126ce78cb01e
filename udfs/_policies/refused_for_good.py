"""When a service has refused all calls for so long that the job is to end."""

from __future__ import annotations

import math


class RefusedForGood:
    """Whether calls are refused, and none was accepted for `patience` seconds.

    The time runs from the first refusal since the last accepted call until a call begins that is refused as well. All
    calls between must have ended: one that takes long was perhaps accepted. A time in which nobody calls, though the
    service has not asked for it, shows nothing.
    """

    # _since: when the first refusal came since the last accepted call; inf: there is none
    # _answers: how many calls had been accepted at the last refusal
    # _again: when the service was to be called again, at the latest

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._since = math.inf
        self._answers = 0
        self._again = -math.inf

    @property
    def is_counting(self) -> bool:
        """Whether a call was refused, and none was accepted since, as far as `accepted` was told."""
        return self._since < math.inf

    def accepted(self) -> None:
        """A call was not refused."""
        self._since = math.inf

    def refused(self, until: float, began: float, now: float, *, answers: int, elsewhere: float) -> None:
        """A call that began then was refused, and may be made again at `until`.

        Args:
            answers: how many calls have been accepted so far.
            elsewhere: when another task had an accepted call for the last time.
        """
        nobody_called = began >= self._again + self._patience
        if answers > self._answers or elsewhere > self._since or nobody_called or not self.is_counting:
            self._since = now
        self._answers, self._again = answers, max(self._again, until)

    def is_for_good(self, oldest: float) -> bool:
        """Whether the service refuses for good.

        Args:
            oldest: when the oldest of these calls began: the one that was refused last, and those in flight.
        """
        return oldest - self._since >= self._patience
