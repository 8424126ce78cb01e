"""Numbers: checks of amounts and shares, as `checks.py` does for other options; and what chance explains."""

from __future__ import annotations

import math
from typing import Any

from .._errors.exceptions import OptionError
from .._text.safe import safe_repr

__all__ = ("amount", "is_number", "is_unlikely", "share")


def is_number(value: Any) -> bool:
    """Whether it is a finite number, and no bool."""
    try:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an int with hundreds of digits
        return False


def amount(value: Any, name: str) -> float:
    """A number of more than 0."""
    if not (is_number(value) and value > 0):
        raise OptionError(f"{name} must be a number of more than 0, not {safe_repr(value)}")
    return float(value)


def share(value: Any, name: str) -> float:
    """A part of a whole: more than 0, at most 1."""
    if not (is_number(value) and 0 < value <= 1):
        raise OptionError(f"{name} must be a share, more than 0 and at most 1, not {safe_repr(value)}")
    return float(value)


def is_unlikely(count: int, calls: int, share: float, rare: float) -> bool:
    """Whether so many of the calls are more than a share that is random would give, by Chernoff's bound.

    Args:
        rare: how unlikely: the logarithm of one in so many.
    """
    found = count / calls
    if found <= share:
        return False
    rest = (1 - found) * math.log((1 - found) / (1 - share)) if found < 1 else 0.0
    return not share or calls * (found * math.log(found / share) + rest) >= rare
