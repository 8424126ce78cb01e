"""The options `capacity`, where it is no number, and `job_capacity`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from asyncudf.queues._public import public

from ..._errors.checks import positive_int
from ..._errors.exceptions import OptionError
from ..._errors.safe import safe_repr
from ..keys import by_label, key_names
from ..limited_task import Limit, OfJob, Pace

if TYPE_CHECKING:
    from ..gate import Gate
    from ..limited_task import Beginning, LimitedTask

MOST_CALLS = 10**9  # in flight: scripts of the coordinator count with 32 bits


@public("asyncudf")
@dataclasses.dataclass(frozen=True)
class AdaptiveCapacity:
    """As many calls in flight as the service can use, between `minimum` and `maximum` in each task.

    It doubles until calls begin to wait in the service. Then it goes up by a twentieth, at least 1, per round of good
    calls; down by a tenth when calls take clearly longer than the best did, or some are throttled or time out; down by
    half when most of the time goes to such calls. Once a minute, for some hundred calls, it goes down to a quarter, to
    measure how long calls take that do not wait for others.

    Raises:
        OptionError: values that cannot work.
    """

    minimum: int = 1
    maximum: int = 400

    def __post_init__(self) -> None:
        if calls_at_once(self.maximum, "maximum") < calls_at_once(self.minimum, "minimum"):
            raise OptionError(f"maximum must be at least minimum ({self.minimum}), not {self.maximum}")

    @classmethod
    def of(cls, value: Any, name: str = "capacity") -> int | AdaptiveCapacity:
        """What the option `capacity=` accepts: a number of calls, "auto", or a range."""
        if isinstance(value, str) and value == "auto":
            return cls()
        if isinstance(value, KeyCapacity):
            raise OptionError(f"{name} bounds all calls of a task; give {value.label} as job_capacity=")
        return value if isinstance(value, cls) else calls_at_once(value, name)


@public("asyncudf")
@dataclasses.dataclass(frozen=True)
class KeyCapacity:
    """At most `calls` of each key in flight at once, in the whole job.

    Rows of a key with as many calls in flight are set aside, and rows of other keys are called. With a `RateLimit` too,
    a permit is taken only for a row whose key has a call free. The calls of a task that dies are free within 5 s.

    Args:
        calls: how many calls of each key may be in flight at once.
        by: the name of a parameter of the function, such as "tenant", or several: their values are the key, NULL too. A
            column fills each of the parameters, and the function takes one row a call. Values are compared as in a
            store, which needs the extra `store`.

    Raises:
        OptionError: a value that cannot work.

    >>> from asyncudf.testing import run_rows
    >>> async def ask(tenant: str, question: str) -> str:
    ...     return f"{tenant}: {question}"
    >>> run_rows(ask, [("a", "why"), ("b", "how")], job_capacity=KeyCapacity(4, by="tenant"))
    ['a: why', 'b: how']
    """

    calls: int
    by: str | Sequence[str] = dataclasses.field(kw_only=True)

    def __post_init__(self) -> None:
        calls_at_once(self.calls, "calls")
        if (names := key_names(self.by)) is None:
            raise OptionError("by must be the name of a parameter of the function; for calls of all rows give a number")
        object.__setattr__(self, "by", names)

    @property
    def asks(self) -> bool:
        """Whether a function of the row's arguments says what a call costs."""
        return False

    @property
    def label(self) -> str:
        """As people are shown it."""
        return f"KeyCapacity({self.calls}, by={by_label(self.by)})"

    def cost_of(self, arguments: Sequence[Any]) -> float:
        return 1.0

    def asking(self, of_row: Callable[[Callable[..., Any]], Callable[..., Any]]) -> KeyCapacity:
        return self

    def named(self, function: str) -> str:
        """The name under which tasks share it."""
        return f"{function}:{':'.join(self.by)}:{self.calls}"


def job_capacity(value: Any, name: str) -> int | KeyCapacity:
    """What the option `job_capacity=` accepts."""
    if isinstance(value, KeyCapacity):
        return value
    if not isinstance(value, int):
        raise OptionError(
            f'{name} must be a whole number, or one KeyCapacity(4, by="tenant") for calls of each key, not '
            f"{safe_repr(value)}"
        )
    return calls_at_once(value, name)


def calls_at_once(value: Any, name: str) -> int:
    """A number of calls in flight."""
    return positive_int(value, name, most=MOST_CALLS)


def capacity_label(value: Any) -> Any:
    """The options `capacity` and `job_capacity` as people are shown them."""
    if isinstance(value, AdaptiveCapacity):
        return "auto" if value == AdaptiveCapacity() else f"{value.minimum} to {value.maximum}"
    return value.label if isinstance(value, KeyCapacity) else value


class AdaptiveCalls(Limit):
    """`capacity="auto"` as a limit."""

    holds_back = False  # it makes slots fewer, which then are not free

    def __init__(self, capacity: AdaptiveCapacity) -> None:
        self._capacity = capacity

    async def gates(self, task: LimitedTask, first: int) -> Sequence[Gate]:
        from .adaptive import AdaptiveGate, CapacityPolicy

        return [AdaptiveGate(CapacityPolicy(self._capacity), task.slots, task.shared_clock)]


OF_QUERY = OfJob("job_capacity", None, takes_name=False)


class CallsOfJob(Limit):
    """A number as `job_capacity=`, as a limit."""

    def __init__(self, calls: int) -> None:
        self.calls = calls

    @property
    def of_job(self) -> Sequence[OfJob]:
        return (OF_QUERY,)

    @property
    def calls_of_job(self) -> float:
        return self.calls

    def named(self, function: str) -> str:
        """The name under which tasks share it."""
        return f"{function}:{self.calls}"

    async def gates(self, task: LimitedTask, first: int) -> Sequence[Gate]:
        from .task import gates

        return gates(self, task)

    def beginnings(self, function: str) -> Iterable[Beginning]:
        from .job import prepare_shares

        name = self.named(function)
        return [(name, partial(prepare_shares, names=[name]))]


class CallsOfKeys(Limit):
    """`KeyCapacity` as a limit."""

    def __init__(self, capacity: KeyCapacity) -> None:
        self._capacity = capacity

    @property
    def of_job(self) -> Sequence[OfJob]:
        return (OF_QUERY,)

    @property
    def counted(self) -> Sequence[KeyCapacity]:
        return (self._capacity,)

    @property
    def paces(self) -> Sequence[Pace]:
        each = 1 / self._capacity.calls
        return [Pace(self._capacity.label, 0, (each, each, each), is_held=True)]

    async def gates(self, task: LimitedTask, first: int) -> Sequence[Gate]:
        from .keyed import gates

        return gates(self._capacity, task, first)

    def beginnings(self, function: str) -> Iterable[Beginning]:
        from .keyed import prepare_key_shares

        name = self._capacity.named(function)
        return [(name, partial(prepare_key_shares, name=name))]


def capacity_limits(capacity: int | AdaptiveCapacity, of_job: int | KeyCapacity | None) -> list[Limit]:
    """The limits of calls in flight, the limit of the job first. A number as `capacity=` is the slot count alone."""
    limits: list[Limit] = []
    if of_job is not None:
        limits.append(CallsOfKeys(of_job) if isinstance(of_job, KeyCapacity) else CallsOfJob(of_job))
    if isinstance(capacity, AdaptiveCapacity):
        limits.append(AdaptiveCalls(capacity))
    return limits
