"""Which coordinator the tasks of a function use, under which names, and how one task is named there."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence

from .._policies.rate_limit import RateLimit, Scope


@dataclasses.dataclass(frozen=True)
class CoordinatorConfig:
    """The coordinator of a function and the names that its tasks use there; travels to the executors.

    Args:
        url: with the password.
        namespace: of this application, on a server that others use too.
        function: a name for the function's limits, which all its tasks share, in all queries of the application.
        application: Spark's id of it; another application of the same process numbers its queries from 0 again.
    """

    url: str = dataclasses.field(repr=False)
    namespace: str
    function: str
    application: str = ""

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
                numbers = f"{self.function}:{float(limit.permits)!r}/{limit.period!r}:{limit.saved!r}"
                equal = sum(name.startswith(f"{numbers}:") for name, _ in named)
                named.append((limit.name or f"{numbers}:{equal}", limit))
        return named

    def of_task(self, query: str, part: str) -> TaskIdentity:
        """The identity of a task that runs now.

        Args:
            query: its name; some counts are of one query.
            part: of the query's rows, named alike by every attempt at them.
        """
        return TaskIdentity(self, f"{self.function}:{self.application}:{query}", uuid.uuid4().hex, part)


@dataclasses.dataclass(frozen=True)
class TaskIdentity:
    """A task among those that share the limits of a function.

    Args:
        query: the name of what is counted for one query.
        task: a name that no other task has, nor another attempt of this one.
        part: the rows that it works on; another attempt at them has the same name.
    """

    config: CoordinatorConfig
    query: str
    task: str
    part: str
