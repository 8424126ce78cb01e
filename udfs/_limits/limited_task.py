"""What an option that limits calls brings, and the task that its gates are made for."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from .gate import Gate, HostTask, Key, LimitKey, Slots
from .own_limits import OwnLimits

if TYPE_CHECKING:
    import asyncio

    from .._stores.base import ResultStore
    from .coordinator.client import Coordinator
    from .coordinator.link import PeriodicTask, TaskLink

    Shared = TypeVar("Shared", bound=PeriodicTask)

Beginning = tuple[str, "Callable[[Coordinator], Awaitable[object]]"]  # a name, and what begins it at the coordinator


class Place(Protocol):
    """An option with a place among the costs of an attempt: a rate limit, a budget, or a limit by key."""

    @property
    def by(self) -> Any:
        """The names of the parameters that make its keys; None: it is not by key."""
        ...

    @property
    def asks(self) -> bool:
        """Whether a function of the row's arguments says what a call costs."""
        ...

    def cost_of(self, arguments: Sequence[Any], /) -> float:
        """What a call with these arguments costs."""
        ...

    def asking(self, of_row: Callable[[Callable[..., Any]], Callable[..., Any]], /) -> Place:
        """A copy that calls its function of a row, if it has one, through `of_row`."""
        ...


class SettledCosts(Protocol):
    """What settles the costs of attempts at their ends; see `Spending`."""

    ends_task: bool  # whether a budget that is spent ends the task
    settled_by: dict[int, Any]  # the gates of rate limits, by their places
    gates: list[Any]  # of budgets, in their order

    def error_of(self, budget: Any, place: int, /) -> Callable[..., Any]:
        """Makes the error of a call that a budget does not let begin."""
        ...


class OfJob(NamedTuple):
    """What the tasks of a job share of a limit."""

    what: str  # as people are told of it
    name: str | None  # under which other queries share it too; None: it is of one query
    takes_name: bool = True  # whether it can have one


class Pace(NamedTuple):
    """How fast calls begin under a limit: the arithmetic of a forecast."""

    label: str  # of the limit, as people are shown it
    place: int  # of what calls cost, among the limit's `counted`
    seconds: tuple[float, float, float]  # for one of that: at least, likely, at most
    saved: float = 0.0  # of that, what no call waits for
    is_held: bool = False  # a call has what it costs until it ends: each second of it counts
    is_settled: bool = False  # a call may cost less in the end
    is_of_task: bool = False  # each task has as much


class Limit:
    """An option that limits calls, and all that others ask about it; a new limit says where it is not as these."""

    __slots__ = ()

    holds_back = True  # whether calls wait for it while slots are free

    @property
    def of_job(self) -> Sequence[OfJob]:
        """The parts of the limit that the tasks of a job share, which needs a coordinator."""
        return ()

    @property
    def counted(self) -> Sequence[Place]:
        """The parts of the limit that have a place among the costs of an attempt."""
        return ()

    @property
    def calls_of_job(self) -> float:
        """Calls of the whole job that it lets be in flight at once; inf if it bounds something else."""
        return math.inf

    @property
    def paces(self) -> Sequence[Pace]:
        """How fast it lets calls of a job begin, beside `calls_of_job`."""
        return ()

    def seconds_for(self, calls: float, tasks: int, /) -> float:
        """How long it takes until so many calls of so many tasks have begun, at least, as far as that is known."""
        return 0.0

    def learner(self, task: HostTask, loop: asyncio.AbstractEventLoop, clock: Callable[[], float], /) -> Any:
        """The `Learner` of its numbers, if answers tell them."""
        return None

    async def gates(self, task: LimitedTask, first: int, /) -> Sequence[Gate]:
        """The gates of the limit, in the order in which they are asked.

        `first`: the first place of the limit among the places of all limits.
        """
        raise NotImplementedError

    def beginnings(self, function: str, /) -> Iterable[Beginning]:
        """What the driver does at the coordinator before a job, so that first calls of the function need not wait."""
        return ()


@dataclasses.dataclass(frozen=True)
class LimitedTask:
    """One use of a function in a task, for which the gates of its limits are made.

    Attributes:
        function: a name for the function's limits that its tasks share.
        own_function: a name for the function's limits that no other task shares.
        query: a name for what is counted for one query.
        link: the link to the coordinator; None: the task is the whole job.
        shared_clock: seconds, of a clock that all tasks share.
        wake: lets calls ask again.
        ask_again: lets calls of a key ask again that the limit at a place has held back.
        waiting: how many attempts of a key are aside.
        learner: the `Learner` of the rate limits, if answers tell their numbers.
        wanted_calls: how many calls would be in flight if no limit held them back.
        closing: closes what the gates have opened.
    """

    task: HostTask
    slots: Slots
    function: str
    own_function: str
    query: str
    own: OwnLimits
    link: TaskLink | None
    shared_clock: Callable[[], float]
    wake: Callable[[], None]
    ask_again: Callable[[int, Key | None], None]
    waiting: Callable[[LimitKey], int]
    wanted_calls: Callable[[], int]
    spending: SettledCosts
    learner: Any
    store: ResultStore | None
    closing: contextlib.AsyncExitStack

    def owned(self, shared: Shared) -> Shared:
        """Close it with the task."""
        self.closing.push_async_callback(shared.close)
        return shared
