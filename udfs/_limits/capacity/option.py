"""The option `capacity` where it is no number: how many calls a service takes is found out."""

from __future__ import annotations

import dataclasses
from typing import Any

from asyncudf.queues._public import public

from ..._errors.checks import positive_int
from ..._errors.exceptions import OptionError


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
