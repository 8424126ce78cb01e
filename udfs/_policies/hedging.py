"""Hedges: when a row whose call takes long gets a second one, and how many second calls there may be."""

from __future__ import annotations

import dataclasses
import re
from datetime import timedelta

from .._errors.exceptions import OptionError
from .._metrics.latency_sketch import LatencySketch
from .._text.safe import safe_repr
from .checks import seconds, share

__all__ = ("Hedge", "Hedging")


MEMORY = 1000  # calls whose latencies are remembered, at least
LEARNED = 20  # calls after which the quantile is computed again
HIGHEST = 99.9  # percent: for higher quantiles too few calls are remembered
SAVED = 10  # second calls that may be made at once, at most


@dataclasses.dataclass(frozen=True)
class Hedge:
    """A second call for a row whose first call takes long; the first answer counts, and the other call is cancelled.

    Only for functions whose calls may be made twice without harm.

    Args:
        after: when the second call is made: "p95" is when 95% of the calls are over, from "p10" to "p99.9"; or a
            number of seconds.
        budget: second calls, as a share of all.

    Raises:
        OptionError: a value that cannot work.
    """

    after: str | float | timedelta = "p95"
    budget: float = 0.05

    def __post_init__(self) -> None:
        share(self.budget, "budget")
        if isinstance(self.after, str):
            if not re.fullmatch(r"p[1-9]\d(\.\d+)?", self.after) or float(self.after[1:]) > HIGHEST:
                raise OptionError(
                    f"after must be a quantile from 'p10' to 'p99.9', or seconds, not {safe_repr(self.after)}"
                )
        else:
            object.__setattr__(self, "after", seconds(self.after, "after"))

    @property
    def quantile(self) -> float | None:
        """The share of calls that are over when the second one is made; None where it is a number of seconds."""
        return float(self.after[1:]) / 100 if isinstance(self.after, str) else None


class Hedging:
    """Decides about second calls in one task."""

    # Latencies are kept in two sketches; when the newer is full, it replaces the older. So the quantile is of the last
    # 1,000 to 2,000 calls, and follows a service that changes.
    #
    # 0 <= _saved <= SAVED: second calls that may be made now; each first call adds `budget`

    def __init__(self, options: Hedge) -> None:
        self._options = options
        self._newer, self._older = LatencySketch(), LatencySketch()
        self._delay = None if isinstance(options.after, str) else seconds(options.after, "after")
        self._unseen: list[float] = []
        self._saved = 0.0

    @property
    def delay(self) -> float | None:
        """Seconds after the beginning of a call when a second one is due; None while too few latencies are known."""
        return self._delay

    def began(self) -> None:
        """A first call has begun."""
        self._saved = min(float(SAVED), self._saved + self._options.budget)

    def may_hedge(self) -> bool:
        """Take a second call from the budget; False if there is none."""
        # Rounding of the sum of shares must not withhold a call.
        if self._saved < 1.0 - 1e-9:
            return False
        self._saved -= 1.0
        return True

    def ended(self, latency: float) -> None:
        """A row is done, this long after the first call of its last attempt began."""
        if self._options.quantile is None:
            return
        self._unseen.append(latency)
        if len(self._unseen) >= LEARNED:
            self._learn(self._options.quantile)

    def _learn(self, quantile: float) -> None:
        self._newer.add(self._unseen)
        self._unseen = []
        both = LatencySketch()
        both.merge(self._older)
        both.merge(self._newer)
        if both.count * (1 - quantile) >= 1:
            self._delay = both.quantile(quantile)
        if self._newer.count >= MEMORY:
            self._older, self._newer = self._newer, LatencySketch()
