"""The coordinator of a function, and the names under which its tasks share limits there."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence

from ..budgets.option import Budget
from ..rates.option import RateLimit, Scope


@dataclasses.dataclass(frozen=True)
class CoordinatorConfig:
    """The coordinator of a function and the names that its tasks use there; travels to the executors."""

    url: str = dataclasses.field(repr=False)  # with the password
    namespace: str  # of this application, on a server that others use too
    function: str  # a name for the function's limits, which all its tasks share, in all queries of the application
    application: str = ""  # Spark's id; another application of the same process numbers its queries from 0 again

    def share(self, total: int) -> str:
        """The name under which tasks share `total` calls in flight."""
        return f"{self.function}:{total}"

    def rates(self, limits: Sequence[RateLimit]) -> list[tuple[str, RateLimit]]:
        """The limits of the job, each with the name under which tasks share it; no two have one name.

        A limit with the same numbers in another list of the same function, as `with_options` makes them, has the same
        name and is the same limit.
        """
        named: list[tuple[str, RateLimit]] = []
        for limit in limits:
            if limit.scope is Scope.JOB:
                by = "".join(f":{name}" for name in limit.by or ())
                numbers = f"{self.function}{by}:{float(limit.permits)!r}/{limit.period!r}:{limit.saved!r}"
                equal = sum(name.startswith(f"{numbers}:") for name, _ in named)
                named.append((limit.name or f"{numbers}:{equal}", limit))
        return named

    def own_rates(self, limits: Sequence[RateLimit]) -> list[tuple[Scope, str] | None]:
        """Of each limit the name under which the functions of one task share it; None: they do not."""
        of_job = iter(self.rates(limits))
        names = [next(of_job)[0] if limit.scope is Scope.JOB else limit.name for limit in limits]
        return [None if name is None else (Scope(limit.scope), name) for limit, name in zip(limits, names, strict=True)]

    def amounts(self, budgets: Sequence[Budget], query: str) -> list[str]:
        """The names under which tasks share the budgets of a function; no two of a function have one name.

        A budget without a name is that of the query, with one of the same numbers in another use of the function.
        """
        names: list[str] = []
        for budget in budgets:
            of_query = f"{query}:{budget.unit}:{float(budget.amount)!r}"
            equal = sum(name.startswith(f"{of_query}:") for name in names)
            names.append(f"{of_query}:{equal}" if budget.name is None else f"{budget.name}:{budget.unit}")
        return names

    def of_task(self, query: str, part: str) -> TaskIdentity:
        """The identity of a task that runs now; every attempt at one part of the query's rows names that alike."""
        return TaskIdentity(self, f"{self.function}:{self.application}:{query}", uuid.uuid4().hex, part)


@dataclasses.dataclass(frozen=True)
class TaskIdentity:
    """A task among those that share the limits of a function."""

    config: CoordinatorConfig
    query: str  # the name of what is counted for one query
    task: str  # a name that no other task has, nor another attempt of this one
    part: str  # the rows that it works on; another attempt at them has the same name
