"""What an attempt of a call costs, in permits of each rate limit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from .._functions.signature import FunctionSpec
from .._policies.rate_limit import RateLimit
from .call import Call
from .copies import copied
from .invokers import of_row

__all__ = ("Costs",)


class Costs:
    """The costs of a function's attempts.

    Attributes:
        of_each: of every attempt alike; None: each call has its own.
    """

    def __init__(self, limits: Sequence[RateLimit], spec: FunctionSpec) -> None:
        self._limits = [
            dataclasses.replace(limit, cost=of_row(limit.cost, spec)) if callable(limit.cost) else limit
            for limit in limits
        ]
        has_own = any(callable(limit.cost) for limit in limits)
        self.of_each = None if has_own else [limit.cost_of(()) for limit in limits]

    def of(self, call: Call) -> Sequence[float]:
        """Of one attempt: a number counts once, a function for each row of a micro-batch.

        Raises:
            BaseException: what a cost function of the user's raises.
        """
        if self.of_each is not None:
            return self.of_each
        return [
            sum(limit.cost_of(copied(_arguments(record.value))) for record in call.records)
            if callable(limit.cost)
            else limit.cost_of(())
            for limit in self._limits
        ]


def _arguments(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple) else (value,)
