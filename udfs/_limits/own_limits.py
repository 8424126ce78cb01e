"""What the functions of a task share of limits where no other task does: limits of one name are one."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Shared = TypeVar("Shared")


class OwnLimits:
    """What the functions of a task share of limits and budgets, by names, whatever their numbers.

    Over the coordinator tasks share the same by the same names.
    """

    # _functions: each function that has a limit; equal ones are one, as for the coordinator

    def __init__(self) -> None:
        self._shared: dict[tuple[Any, Hashable], Any] = {}
        self._functions: dict[Any, int] = {}

    def name_of(self, function: Any) -> str:
        """A name for a function's limits, as it has one at a coordinator."""
        try:
            name = str(self._functions.setdefault(function, len(self._functions)))
        except TypeError:  # an object without a hash
            name = type(function).__qualname__
        return f"function {name}"

    def shared(self, make: Callable[[], Shared], name: Hashable | None) -> Shared:
        """What `make` has made for this name. Without a name each call makes a new one, for one use of a function."""
        if name is None:
            return make()
        if (key := (make, name)) not in self._shared:
            self._shared[key] = make()
        found: Shared = self._shared[key]
        return found
