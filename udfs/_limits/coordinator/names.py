"""The coordinator of a function, and what its tasks are called there."""

from __future__ import annotations

import dataclasses
import uuid


@dataclasses.dataclass(frozen=True)
class CoordinatorConfig:
    """The coordinator of a function, and the names of what its tasks share there; travels to the executors."""

    url: str = dataclasses.field(repr=False)  # with the password
    namespace: str  # of this application, on a server that others use too
    function: str  # a name for the function's limits, which all its tasks share, in all queries of the application
    application: str = ""  # Spark's id; another application of the same process numbers its queries from 0 again

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
