"""The limits of a task that shares them with no other task: those of one name are one, over the functions of the task.

Over the coordinator they are `SharedPermits`, `SharedKeys`, `CapacityShare` and `shared_amounts`, by the same names.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Any

from .budgets.amount import SpentByName, TaskAmounts
from .budgets.option import Budget
from .capacity.job import OwnShareGate
from .coordinator.names import CoordinatorConfig
from .gate import Key, Slots
from .rates.bucket import Bucket, LimitTime
from .rates.keyed import KeyTimes, OwnKeys
from .rates.option import RateLimit


class OwnLimits:
    """What the functions of a task share of limits and budgets, by names, whatever their numbers.

    A limit whose name is None is of one use of a function alone.
    """

    # _functions: each function that has a limit; equal ones are one, as for the coordinator

    def __init__(self) -> None:
        self._times = defaultdict[Hashable, LimitTime](LimitTime)
        self._keys = defaultdict[Hashable, KeyTimes](KeyTimes)
        self._spent = defaultdict[str, SpentByName](SpentByName)
        self._gates = defaultdict[str, list[OwnShareGate]](list)
        self._functions: dict[Any, int] = {}

    def names(self, function: Any) -> CoordinatorConfig:
        """The names under which a function's limits are shared, which are those at a coordinator."""
        try:
            name = str(self._functions.setdefault(function, len(self._functions)))
        except TypeError:  # an object without a hash
            name = type(function).__qualname__
        return CoordinatorConfig("", "", f"function {name}")

    def bucket(self, name: Hashable | None, limit: RateLimit) -> Bucket:
        """The permits of a limit."""
        return Bucket(limit, None if name is None else self._times[name])

    def keys(self, name: Hashable | None, limit: RateLimit) -> OwnKeys:
        """The permits of each key of a limit by key."""
        return OwnKeys(limit, KeyTimes() if name is None else self._keys[name])

    def amounts(self, name: str, budget: Budget, time: Callable[[], float], wake: Callable[[Key], None]) -> TaskAmounts:
        """The amounts of a budget; `wake` is called with a key when calls of another function have left some of it."""
        return TaskAmounts(budget, time, self._spent[f"{name}:{budget.per or ''}:{budget.by is not None}"], wake)

    def share(self, name: str, total: int, slots: Slots, wake: Callable[[], None]) -> OwnShareGate:
        """The gate of `job_capacity`; `wake` is called when a call of another function has ended."""
        return OwnShareGate(total, slots, wake, self._gates[name])
