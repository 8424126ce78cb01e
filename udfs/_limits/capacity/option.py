"""The options `capacity`, where it is no number, and `job_capacity`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from asyncudf.queues._public import public

from ..._errors.checks import positive_int
from ..._errors.exceptions import OptionError

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
