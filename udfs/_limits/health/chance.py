"""Whether so many failures are more than chance."""

from __future__ import annotations

import math


def is_unlikely(count: int, calls: int, share: float, rare: float) -> bool:
    """Whether a random share of failures is unlikely to give `count` of so many calls, by Chernoff's bound.

    `rare` is how unlikely: log(n) for once in n times.
    """
    found = count / calls
    if found <= share:
        return False
    rest = (1 - found) * math.log((1 - found) / (1 - share)) if found < 1 else 0.0
    return not share or calls * (found * math.log(found / share) + rest) >= rare
