"""Which coordinator the tasks of a function use, and under which names."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Sequence

from .._policies.rate_limit import RateLimit, Scope

__all__ = ("CoordinatorConfig", "TaskIdentity")


@dataclasses.dataclass(frozen=True)
class CoordinatorConfig:
    """The coordinator of a function, and the names that its tasks use there; travels to the executors.

    Args:
        url: with the password.
        namespace: what this application has there, beside others.
        function: its limits are those of all its tasks, in all queries of the application.
        application: Spark's name of it; another one of the same process numbers its queries from the first again.
    """

    url: str = dataclasses.field(repr=False)
    namespace: str
    function: str
    application: str = ""

    def share(self, total: int) -> str:
        """The name under which tasks share so many calls in flight."""
        return f"{self.function}:{total}"

    def rates(self, limits: Sequence[RateLimit]) -> list[tuple[str, RateLimit]]:
        """Those of the job, and the names under which tasks share them, one each, also where their numbers are equal.

        A limit of the same numbers in another list of the same function, as `with_options` makes them, is the same.
        """
        named: list[tuple[str, RateLimit]] = []
        for limit in limits:
            if limit.scope is Scope.JOB:
                numbers = f"{self.function}:{float(limit.permits)!r}/{limit.period!r}:{limit.saved!r}"
                equal = sum(name.startswith(f"{numbers}:") for name, _ in named)
                named.append((limit.name or f"{numbers}:{equal}", limit))
        return named

    def of_task(self, query: str, part: str) -> TaskIdentity:
        """The same for a task.

        Args:
            query: what is counted for one query alone is counted under this name.
            part: of the query's rows, which every attempt at them names alike.
        """
        return TaskIdentity(self, f"{self.function}:{self.application}:{query}", uuid.uuid4().hex, part)


@dataclasses.dataclass(frozen=True)
class TaskIdentity:
    """A task among those that share the limits of a function.

    Args:
        query: of what is counted for one query alone.
        task: which no other task has, nor another attempt of this one.
        part: the rows that it works on, which another attempt has too.
    """

    config: CoordinatorConfig
    query: str
    task: str
    part: str
