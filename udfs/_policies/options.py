"""Every option, its default, its check and its message, in one frozen object."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any, Literal

from .._errors.exceptions import OptionError
from .._errors.records import Redact
from .checks import anything, choice, flag, optional, positive_int, redaction, seconds, unknown_name
from .retry import RetryStrategy

__all__ = (
    "DEFAULT_BATCH_SIZE",
    "EventLoop",
    "EventLoopLiteral",
    "ExtraFields",
    "ExtraFieldsLiteral",
    "OnError",
    "OnErrorLiteral",
    "Options",
    "OutputMode",
    "OutputModeLiteral",
)

QUEUE_ROWS_PER_CALL = 100  # see docs/performance.md: what one slow row at the head may hold up
DEFAULT_BATCH_SIZE = 100


class OutputMode(enum.Enum):
    """In which order results leave.

    ORDERED: the order of the rows. UNORDERED: the order in which calls finish, but never across a watermark.
    """

    ORDERED = "ordered"
    UNORDERED = "unordered"


class OnError(enum.Enum):
    """What becomes of a row whose call failed for good."""

    RAISE = "raise"
    NULL = "null"
    CAPTURE = "capture"
    DEAD_LETTER = "dead_letter"


class ExtraFields(enum.Enum):
    """What becomes of the fields of a struct that a function returns but has not declared."""

    ERROR = "error"
    DROP = "drop"


class EventLoop(enum.Enum):
    """Which event loop calls run on. AUTO: uvloop where it is installed."""

    AUTO = "auto"
    ASYNCIO = "asyncio"
    UVLOOP = "uvloop"


@dataclasses.dataclass(frozen=True)
class Options:
    """How the calls of one function are run; see `async_pandas_udf` for what each option means."""

    output_mode: OutputMode = OutputMode.ORDERED
    capacity: int = 100
    queue_size: int | None = None
    max_buffered_bytes: int | None = 256 * 2**20
    timeout: float | None = 180.0
    attempt_timeout: float | None = None
    on_timeout: Any = None
    retry: RetryStrategy | None = None
    on_error: OnError = OnError.RAISE
    extra_fields: ExtraFields = ExtraFields.ERROR
    redact: Redact | None = None
    batch_size: int | None = None
    batch_linger: float | None = None
    resources: Callable[..., Any] | Mapping[str, Callable[..., Any]] | None = None
    deterministic: bool = False
    loop: EventLoop = EventLoop.AUTO

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """The defaults with the given options over them, checked."""
        return cls().replace(given)

    def replace(self, given: Mapping[str, Any]) -> Options:
        """A copy with other options.

        Raises:
            OptionError: an unknown option, or a value that cannot work.
        """
        known = [field.name for field in dataclasses.fields(self)]
        for name in given:
            if name not in known:
                raise OptionError(unknown_name("option", name, known))
        changed = {name: _CHECKS[name](value, name) for name, value in given.items()}
        options = dataclasses.replace(self, **changed)
        options._check_combinations()
        return options

    @property
    def queue_rows(self) -> int:
        """How many rows the queue may hold; unless given, enough for every call slot to have a full batch."""
        if self.queue_size is not None:
            return self.queue_size
        return self.capacity * max(QUEUE_ROWS_PER_CALL, self.batch_size or 1)

    def _check_combinations(self) -> None:
        if self.queue_rows < self.capacity:
            raise OptionError(
                f"queue_size must be at least capacity ({self.capacity}), not {self.queue_size}: "
                "every call in progress has its row in the queue"
            )
        if self.retry is not None and self.timeout is None:
            raise OptionError(
                "retry needs a timeout: without one a row could be retried for ever; give timeout=<seconds> "
                "(it covers all attempts) or leave it out for 180 seconds"
            )
        if self.on_timeout is not None and self.timeout is None:
            raise OptionError("on_timeout is never used without a timeout; give timeout=<seconds>")


_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "output_mode": choice(OutputMode),
    "capacity": positive_int,
    "queue_size": optional(positive_int),
    "max_buffered_bytes": optional(positive_int),
    "timeout": optional(seconds),
    "attempt_timeout": optional(seconds),
    "on_timeout": anything,
    "retry": lambda value, name: RetryStrategy.of(value),
    "on_error": choice(OnError),
    "extra_fields": choice(ExtraFields),
    "redact": redaction,
    "batch_size": optional(positive_int),
    "batch_linger": optional(seconds),
    "resources": anything,  # read together with the function's parameters
    "deterministic": flag,
    "loop": choice(EventLoop),
}

OnErrorLiteral = Literal["raise", "null", "capture", "dead_letter"]
ExtraFieldsLiteral = Literal["error", "drop"]
EventLoopLiteral = Literal["auto", "asyncio", "uvloop"]
OutputModeLiteral = Literal["ordered", "unordered"]
