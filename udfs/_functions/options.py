"""Every option with its type, default and check, in one frozen object."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar

from asyncudf.queues._public import public

from .._errors.checks import (
    Seconds,
    amount,
    anything,
    choice,
    flag,
    instance,
    optional,
    plain_function,
    positive_int,
    redaction,
    seconds,
    server_url,
    text,
    unknown_name,
)
from .._errors.exceptions import OptionError
from .._errors.records import Redact
from .._limits.budgets.option import Budget, Budgets, MaxCalls, budgets_label, max_calls
from .._limits.capacity.option import AdaptiveCapacity, KeyCapacity, capacity_label, capacity_limits, job_capacity
from .._limits.health.option import CircuitBreaker, ErrorBudget
from .._limits.rates.option import RateLimit, RateLimits, limits_label
from .._stores.base import ResultStore, result_store, store_label
from .attempts import MAX_RETRY_AFTER

if TYPE_CHECKING:
    from .._limits.limited_task import Limit, Place
    from .retry import BaseRetrying, RetryStrategy

# Seconds for which a service may refuse all calls: a quota is often one of a minute, however short a timeout is.
SHORTEST_PATIENCE, LONGEST_PATIENCE = 120.0, 600.0
QUEUE_ROWS_PER_CALL = 100  # where neither rows nor bytes are bounded by the user
DEFAULT_BATCH_SIZE = 100
OPEN_TIMEOUT = 60.0  # seconds; a client that is not open by then is taken for dead

Resources = Callable[..., Any] | Mapping[str, Callable[..., Any]]
F = TypeVar("F", bound=Callable[..., Any])


@public("asyncudf")
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


class OnSpent(enum.Enum):
    """What becomes of rows for which no budget is left: the job ends, they are NULL, or dead letters."""

    RAISE = "raise"
    NULL = "null"
    DEAD_LETTER = "dead_letter"


class ExtraFields(enum.Enum):
    """What becomes of the fields of a struct that a function returns but has not declared."""

    ERROR = "error"
    DROP = "drop"


class OnNullInput(enum.Enum):
    """What becomes of a row with a NULL argument: it is called like others, or its result is NULL."""

    CALL = "call"
    NULL = "null"


class OnStoreError(enum.Enum):
    """What becomes of rows whose store fails: they are called, or the task ends."""

    CALL = "call"
    FAIL = "fail"


class EventLoop(enum.Enum):
    """Which event loop calls run on. AUTO: uvloop where it is installed."""

    AUTO = "auto"
    ASYNCIO = "asyncio"
    UVLOOP = "uvloop"


PLAIN = (type(None), bool, int, float, str)  # types of options that are shown to people


class CallOptions(TypedDict, total=False):
    """The options that every entry point takes, with the types that users may give; `Options` has the checked values.

    See `async_pandas_udf` for what each means.
    """

    capacity: int | AdaptiveCapacity | Literal["auto"]
    timeout: Seconds | None
    attempt_timeout: Seconds | None
    retry: RetryStrategy | BaseRetrying | None
    on_error: OnError | Literal["raise", "null", "capture", "dead_letter"]
    rate_limit: RateLimit | Sequence[RateLimit] | None
    store: ResultStore | None
    resources: Resources | None
    queue_size: int | None
    max_buffered_bytes: int | None
    on_timeout: Any
    on_null_input: OnNullInput | Literal["call", "null"]
    extra_fields: ExtraFields | Literal["error", "drop"]
    redact: bool | Redact | None
    batch_size: int | None
    batch_linger: Seconds | None
    batch_weight: Callable[..., float] | None
    max_batch_weight: float | None
    split_failed: bool
    open_timeout: Seconds | None
    deterministic: bool
    loop: EventLoop | Literal["auto", "asyncio", "uvloop"]
    version: str | None
    on_store_error: OnStoreError | Literal["call", "fail"]
    store_timeout: Seconds
    job_capacity: int | KeyCapacity | None
    max_calls: int | None
    budget: Budget | Sequence[Budget] | None
    on_spent: OnSpent | Literal["raise", "null", "dead_letter"]
    coordinator: str | None
    breaker: CircuitBreaker | None
    max_failures: float | None


class FunctionOptions(CallOptions, total=False):
    """The options of a function: the options of every entry point, and `output_mode`."""

    output_mode: OutputMode | Literal["ordered", "unordered"]


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, enum.Enum) else value


def _by(
    check: Callable[[Any, str], Any], *, is_shown: bool = True, shown: Callable[[Any], Any] = _plain
) -> dict[str, Any]:
    """The check of a field of `Options`: it takes the user's value and the field's name, and returns the checked value.

    `shown` makes of that what people are shown: a plain value, where it has such a form. Values that are not shown may
    be the user's data, such as a result for late rows, or a URL with a password.
    """
    return {"check": check, "is_shown": is_shown, "shown": shown}


def _shown(option: dataclasses.Field[Any], value: Any) -> Any:
    """The value of an option as a plain value, where it has such a form."""
    return value if value is None or value == () else option.metadata["shown"](value)


def _retry(value: Any, name: str) -> RetryStrategy | None:
    from .retry import RetryStrategy  # it imports tenacity

    return RetryStrategy.of(value)


@dataclasses.dataclass(frozen=True)
class Options:
    """The checked options of one function."""

    # Each option once: name, type, default and check in one line. Values are checked on the driver, where they are
    # given; no other code checks them again. The options that most people need come first, as they do in `help()`.

    capacity: int | AdaptiveCapacity = field(default=100, metadata=_by(AdaptiveCapacity.of, shown=capacity_label))
    timeout: float | None = field(default=180.0, metadata=_by(optional(seconds)))
    attempt_timeout: float | None = field(default=None, metadata=_by(optional(seconds)))
    retry: RetryStrategy | None = field(default=None, metadata=_by(optional(_retry)))
    on_error: OnError = field(default=OnError.RAISE, metadata=_by(choice(OnError)))
    rate_limit: tuple[RateLimit, ...] = field(default=(), metadata=_by(RateLimit.all_of, shown=limits_label))
    store: ResultStore | None = field(default=None, metadata=_by(optional(result_store), shown=store_label))
    # What `on_timeout` and `resources` may be depends on the function; they are checked together with it.
    resources: Resources | None = field(default=None, metadata=_by(anything, is_shown=False))
    output_mode: OutputMode = field(default=OutputMode.ORDERED, metadata=_by(choice(OutputMode)))
    queue_size: int | None = field(default=None, metadata=_by(optional(positive_int)))
    max_buffered_bytes: int | None = field(default=256 * 2**20, metadata=_by(optional(positive_int)))
    on_timeout: Any = field(default=None, metadata=_by(anything, is_shown=False))
    on_null_input: OnNullInput = field(default=OnNullInput.CALL, metadata=_by(choice(OnNullInput)))
    extra_fields: ExtraFields = field(default=ExtraFields.DROP, metadata=_by(choice(ExtraFields)))
    redact: Redact | None = field(default=None, metadata=_by(redaction))
    batch_size: int | None = field(default=None, metadata=_by(optional(positive_int)))
    batch_linger: float | None = field(default=None, metadata=_by(optional(seconds)))
    batch_weight: Callable[..., Any] | None = field(default=None, metadata=_by(optional(plain_function)))
    max_batch_weight: float | None = field(default=None, metadata=_by(optional(amount)))
    split_failed: bool = field(default=False, metadata=_by(flag))
    open_timeout: float | None = field(default=OPEN_TIMEOUT, metadata=_by(optional(seconds)))
    deterministic: bool = field(default=False, metadata=_by(flag))
    loop: EventLoop = field(default=EventLoop.AUTO, metadata=_by(choice(EventLoop)))
    version: str | None = field(default=None, metadata=_by(optional(text)))
    on_store_error: OnStoreError = field(default=OnStoreError.CALL, metadata=_by(choice(OnStoreError)))
    store_timeout: float = field(default=1.0, metadata=_by(seconds))
    job_capacity: int | KeyCapacity | None = field(
        default=None, metadata=_by(optional(job_capacity), shown=capacity_label)
    )
    max_calls: int | None = field(default=None, metadata=_by(optional(max_calls)))
    budget: tuple[Budget, ...] = field(default=(), metadata=_by(Budget.all_of, shown=budgets_label))
    on_spent: OnSpent = field(default=OnSpent.RAISE, metadata=_by(choice(OnSpent)))
    coordinator: str | None = field(default=None, metadata=_by(optional(server_url), is_shown=False))
    breaker: CircuitBreaker | None = field(default=None, metadata=_by(optional(instance(CircuitBreaker))))
    max_failures: ErrorBudget | None = field(
        default=None, metadata=_by(optional(ErrorBudget.of), shown=attrgetter("most"))
    )

    @classmethod
    def names(cls) -> set[str]:
        return {one.name for one in dataclasses.fields(cls)}

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """The defaults with the given options over them, checked."""
        return cls().replace(given)

    @classmethod
    def checked(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """These options, each checked alone; OptionError for an unknown one, or a value that cannot work."""
        checks = {one.name: one.metadata["check"] for one in dataclasses.fields(cls)}
        for name in given:
            if name not in checks:
                raise OptionError(unknown_name("option", name, checks))
        return {name: checks[name](value, name) for name, value in given.items()}

    def replace(self, given: Mapping[str, Any]) -> Options:
        """A copy with other options; OptionError as `checked`, or for options that cannot work together."""
        options = dataclasses.replace(self, **self.checked(given))
        options._check_combinations()
        return options

    @property
    def slots(self) -> int:
        return self.capacity if isinstance(self.capacity, int) else self.capacity.maximum

    @property
    def redacted(self) -> bool:
        return self.redact is not None

    @property
    def hides_failures(self) -> bool:
        """Whether failed rows cannot be told from the results."""
        return self.on_error is OnError.NULL

    @property
    def longest_wait(self) -> float:
        """Seconds that a refused row waits at most, whatever the service asks for; 0: refusals are plain errors."""
        return MAX_RETRY_AFTER if self.retry is None else self.retry.max_retry_after

    @property
    def patience(self) -> float:
        """Seconds for which a service may refuse all calls before the job ends."""
        longest = LONGEST_PATIENCE if self.timeout is None else min(self.timeout, LONGEST_PATIENCE)
        return max(longest, SHORTEST_PATIENCE)

    @property
    def needs_coordinator(self) -> bool:
        return any(limit.of_job for limit, _ in limits_of(self))

    @property
    def calls_of_job(self) -> float:
        """Calls that the whole job may have in flight; inf where tasks alone bound them, or keys."""
        return min((limit.calls_of_job for limit, _ in limits_of(self)), default=math.inf)

    @property
    def counted(self) -> list[Place]:
        """What has a place among the costs of an attempt: rate limits, budgets, limits of calls in flight by key."""
        return [place for limit, _ in reversed(limits_of(self)) for place in limit.counted]

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """All budgets; `max_calls` is the last one."""
        return self.budget if self.max_calls is None else (*self.budget, MaxCalls(self.max_calls))

    @property
    def writes_dead_letters(self) -> bool:
        """Whether a row may become a dead letter."""
        is_spent = bool(self.budgets) and self.on_spent is OnSpent.DEAD_LETTER
        return self.on_error is OnError.DEAD_LETTER or is_spent

    @property
    def queue_rows(self) -> int:
        """How many rows the queue may hold, whatever memory they take; without end where memory alone is the bound."""
        if self.queue_size is not None:
            return self.queue_size
        if self.max_buffered_bytes is not None:
            return sys.maxsize
        return self.open_calls * max(QUEUE_ROWS_PER_CALL, self.batch_size or 1)

    @property
    def open_calls(self) -> int:
        """Calls whose rows need a place in the queue: in flight, or failed and waiting for the circuit breaker."""
        return self.slots + (0 if self.breaker is None else self.breaker.window)

    def to_plain(self) -> dict[str, Any]:
        """The options as they are shown to people: plain values, and "given" for what is no plain value.

        `queue_size` is the rows that the queue may hold, and None where memory is their bound.
        """
        plain: dict[str, Any] = {}
        for one in dataclasses.fields(self):
            value = _shown(one, getattr(self, one.name))
            is_shown = type(value) in PLAIN and one.metadata["is_shown"]
            plain[one.name] = value if is_shown or value is None else (None if value is one.default else "given")
        if self.max_buffered_bytes is None:
            plain["queue_size"] = self.queue_rows
        return plain

    def _check_combinations(self) -> None:
        if self.queue_rows < self.slots:
            raise OptionError(
                f"queue_size must be at least capacity ({self.slots}), not {self.queue_size}: "
                "every call in progress has its row in the queue"
            )
        calls, batch = self.open_calls, self.batch_size or 1
        if self.breaker is not None and self.queue_rows < calls * batch:
            each = "" if batch == 1 else f", each of {batch} rows"
            raise OptionError(
                f"queue_size must be at least {calls * batch}, not {self.queue_size}: capacity and the breaker's "
                f"window are {calls} calls{each}, and those that failed wait in the queue until it is known whether "
                "the service is dead"
            )
        if self.retry is not None and self.timeout is None:
            raise OptionError(
                "retry needs a timeout: without one a row could be retried for ever; give timeout=<seconds> "
                "(it covers all attempts) or leave it out for 180 seconds"
            )
        if self.max_failures is not None and self.on_error is OnError.RAISE:
            raise OptionError(
                "max_failures is never used with on_error='raise', where the first failed row ends the job; "
                "give on_error='null', 'capture' or 'dead_letter'"
            )
        if (self.batch_weight is None) is not (self.max_batch_weight is None):
            given, other = "batch_weight", "max_batch_weight"
            if self.batch_weight is None:
                given, other = other, given
            raise OptionError(
                f"{given} needs {other}: for example batch_weight=len, max_batch_weight=64_000 for calls of at most "
                "64,000 characters"
            )
        if self.on_spent is not OnSpent.RAISE and not self.budgets:
            raise OptionError(f"on_spent={self.on_spent.value!r} is never used without a budget or max_calls")
        if self.on_timeout is not None and self.timeout is None:
            raise OptionError("on_timeout is never used without a timeout; give timeout=<seconds>")


def shows_options(options: type[Any], **defaults: Any) -> Callable[[F], F]:
    """A decorator: at run time the signature of a function names each option that its `**options` takes.

    `Unpack` shows the options to type checkers only; `help()`, notebooks and `inspect.signature` read the signature.

    Args:
        options: the TypedDict of `**options`.
        defaults: those that are not the defaults of `Options`, as users write them.
    """
    types = options.__annotations__
    named = [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(one.name, None if one.default == () else _shown(one, one.default)),
            annotation=types[one.name].__forward_arg__,
        )
        for one in dataclasses.fields(Options)
        if one.name in types
    ]

    def showing(function: F) -> F:
        own = inspect.signature(function)
        *others, last = own.parameters.values()
        assert last.kind is inspect.Parameter.VAR_KEYWORD
        function.__signature__ = own.replace(parameters=[*others, *named])  # type: ignore[attr-defined]
        return function

    return showing


def limits_of(options: Options) -> list[tuple[Limit, int]]:
    """The limits in the order in which they are asked, each with its first place among the costs of an attempt."""
    found: list[tuple[Limit, int]] = []
    first = 0
    # The last one first. Budgets have their places behind those of rates (`Spending`).
    limits: list[Limit] = [
        RateLimits(options.rate_limit),
        Budgets(options.budgets),
        *capacity_limits(options.capacity, options.job_capacity),
    ]
    for limit in limits:
        if limit:
            found.append((limit, first))
            first += len(limit.counted)
    return found[::-1]
