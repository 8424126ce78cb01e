"""What one call may take, and what its attempts cost, where the options say so by functions of a row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..._errors.checks import given_number
from ..._functions.options import Options
from ..._functions.signature import FunctionSpec, group_rows
from ..._limits.gate import Key
from ..._limits.keys import key_of
from ..._limits.limited_task import Place
from .arguments import arguments_of, copied, of_row


class GroupBounds:
    """The bounds of one call: `size` rows of `most_weight` together; a heavier row has a call of its own."""

    def __init__(self, spec: FunctionSpec, options: Options) -> None:
        self.size = group_rows(spec, options)
        self.is_many = spec.vectorized
        self._weight = None if options.batch_weight is None else of_row(options.batch_weight, spec)
        self.weighs = self._weight is not None
        self.most_weight = math.inf if options.max_batch_weight is None else options.max_batch_weight

    def weight_of(self, value: Any) -> float:
        """The weight of a row; raises what `batch_weight` raises, and FatalError if it is no number of 0 or more."""
        assert self._weight is not None
        return given_number(self._weight(*copied(arguments_of(value))), "batch_weight")


class Costs:
    """The costs of attempts: permits of each rate limit, then the amount that each budget reserves.

    `of_each`: the costs of every attempt if they do not depend on its rows, else None.
    """

    def __init__(self, places: Sequence[Place], spec: FunctionSpec) -> None:
        # For each, whether its cost is a function of the row, and the function that tells the cost.
        self._asked = [(place.asks, place.asking(lambda asked: of_row(asked, spec)).cost_of) for place in places]
        if (takes := None if spec.takes_mapping else spec.parameters) is not None:
            spec.check_keys(takes)
        self._keys = [None if place.by is None else key_of(place.by, takes) for place in places]
        has_own = any(asks for asks, _ in self._asked) or any(self._keys)
        self.of_each = None if has_own else [cost_of(()) for _, cost_of in self._asked]

    def of(self, values: Sequence[Any]) -> Sequence[float]:
        """The costs of one attempt of these rows: a number counts once, a function for each row; raises its errors."""
        return [
            sum(cost_of(copied(arguments_of(value))) for value in values) if asks else cost_of(())
            for asks, cost_of in self._asked
        ]

    def keys_of(self, values: Sequence[Any]) -> Sequence[Key | None]:
        """The key of a call for each limit and budget, None if not by key; AsyncUDFError if a value makes no key."""
        if not any(self._keys):
            return ()
        (row,) = values  # as the declaration has checked
        return [None if key is None else key(row) for key in self._keys]
