"""How many calls are claimed ahead of their beginning."""

from __future__ import annotations

import math


class ClaimPace:
    """As many as begin before a claim of now is old, by how many have begun since the claims before."""

    # ahead: how many may wait to begin, whatever slots are free; at most twice as many as before
    # _claimed: attempts so far. Those that do not wait to begin have begun, needed no call in the end, or are held: as
    # many others may be claimed. A retry that waits counts like a new call.
    # _last: when the claims before began, and how many attempts did not wait any more then

    def __init__(self) -> None:
        self.ahead, self._claimed, self._last = 1, 0, (0.0, 0)

    def claimed(self, attempts: int, *, began: float, ready: int, seconds: float, most: int) -> None:
        """So many attempts were claimed, from `began` on, when others were `ready` to begin.

        So many seconds after that a claim is old; at most so many may wait.
        """
        (last, before), gone = self._last, self._claimed - ready
        soon = math.ceil(seconds * (gone - before) / max(began - last, 1e-6))
        self.ahead = max(1, min(soon, 2 * self.ahead, most))
        self._last, self._claimed = (began, gone), self._claimed + attempts
