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

if TYPE_CHECKING:
    from ..gate import Gate
    from ..limited_task import Beginning, LimitedTask


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
        if positive_int(self.maximum, "maximum") < positive_int(self.minimum, "minimum"):
            raise OptionError(f"maximum must be at least minimum ({self.minimum}), not {self.maximum}")

    @classmethod
    def of(cls, value: Any, name: str = "capacity") -> int | AdaptiveCapacity:
        """What the option `capacity=` accepts: a number of calls, "auto", or a range."""
        if value == "auto":
            return cls()
        if isinstance(value, KeyCapacity):
            raise OptionError(f"{name} bounds all calls of a task; give {value.label} as job_capacity=")
        return value if isinstance(value, cls) else positive_int(value, name)

    is_of_job = False
    counted = ()

    async def gates(self, task: LimitedTask, first: int) -> Sequence[Gate]:
        from .adaptive import AdaptiveGate, CapacityPolicy

        return [AdaptiveGate(CapacityPolicy(self), task.slots, task.shared_clock)]

    def beginnings(self, function: str) -> Iterable[Beginning]:
        return ()


class JobCapacity(int):
    """So many calls may be in flight in the whole job."""

    is_of_job = True
    counted = ()

    @classmethod
    def of(cls, value: Any, name: str) -> JobCapacity:
        """What the option `job_capacity=` accepts."""
        return cls(positive_int(value, name))

    def named(self, function: str) -> str:
        """The name under which tasks share it."""
        return f"{function}:{int(self)}"

    async def gates(self, task: LimitedTask, first: int) -> Sequence[Gate]:
        from .task import gates

        return gates(self, task)

    def beginnings(self, function: str) -> Iterable[Beginning]:
        from .job import prepare_shares

        name = self.named(function)
        return [(name, partial(prepare_shares, names=[name]))]


@public("asyncudf")
@dataclasses.dataclass(frozen=True)
class KeyCapacity:
    """At most `calls` of each key in flight at once, in the whole job.

    Rows of a key that has as many are set aside, and rows of others are called. With a `RateLimit` too, a permit is
    taken only for a row whose key has a call free. What a task that dies had in flight is free again within 5 s.

    Args:
        calls: in flight at once, of each key.
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
        positive_int(self.calls, "calls")
        if (names := key_names(self.by)) is None:
            raise OptionError("by must be the name of a parameter of the function; for calls of all rows give a number")
        object.__setattr__(self, "by", names)

    is_of_job = True
    asks = False

    @property
    def counted(self) -> Sequence[KeyCapacity]:
        return (self,)

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

    async def gates(self, task: LimitedTask, first: int) -> Sequence[Gate]:
        from .keyed import gates

        return gates(self, task, first)

    def beginnings(self, function: str) -> Iterable[Beginning]:
        from .keyed import prepare_key_shares

        name = self.named(function)
        return [(name, partial(prepare_key_shares, name=name))]


def job_capacity(value: Any, name: str) -> JobCapacity | KeyCapacity:
    """What the option `job_capacity=` accepts."""
    if isinstance(value, KeyCapacity):
        return value
    if not isinstance(value, int):
        raise OptionError(
            f'{name} must be a whole number, or one KeyCapacity(4, by="tenant") for calls of each key, not '
            f"{safe_repr(value)}"
        )
    return JobCapacity.of(value, name)
