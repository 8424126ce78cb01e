"""Where the tasks of a job find each other."""

from __future__ import annotations

import dataclasses
import uuid

__all__ = ("Meeting", "Place")


@dataclasses.dataclass(frozen=True)
class Meeting:
    """The coordinator of a function, and under which names its tasks meet there; travels to the executors.

    Args:
        url: with the password.
        space: what this application has there, beside others.
        function: its limits are those of all its tasks, in all queries of the application.
        application: Spark's name of it; another one of the same process numbers its queries from the first again.
    """

    url: str = dataclasses.field(repr=False)
    space: str
    function: str
    application: str = ""

    def share(self, total: int) -> str:
        """The name under which tasks share so many calls in flight."""
        return f"{self.function}:{total}"

    def of_task(self, query: str) -> Place:
        """The same for a task.

        Args:
            query: what is counted for one query alone is counted under this name.
        """
        return Place(self, f"{self.function}:{self.application}:{query}", uuid.uuid4().hex)


@dataclasses.dataclass(frozen=True)
class Place:
    """The place of a task at the meeting.

    Args:
        query: of what is counted for one query alone.
        task: which no other task has.
    """

    meeting: Meeting
    query: str
    task: str
