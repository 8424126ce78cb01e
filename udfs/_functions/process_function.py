"""Plain functions of one row in a chain: ProcessFunction, and the functions of map, flat_map and filter."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from asyncudf.queues import StreamRecord
from asyncudf.queues._public import public

from .._errors.checks import Seconds, optional, seconds
from .._errors.exceptions import FunctionError
from .._errors.safe import safe_repr
from .._errors.type_mismatch import result_error
from .options import OPEN_TIMEOUT
from .side_outputs import OutputTag, SideTypes, check_own_tag
from .signature import called, is_coroutine_function


@public("asyncudf")
class Collector(ABC):
    """Takes the rows that a `ProcessFunction` makes; inside the library it takes records."""

    @abstractmethod
    def collect(self, record: Any) -> None:
        """Take one row: in a `ProcessFunction` a mapping of the declared columns.

        Raises:
            ResultError: the row does not fit the declared columns.
        """

    def close(self) -> None:
        """End: pass on what is still held."""


class WatermarkGauge:
    """The last watermark that an output has emitted: its timestamp, None before the first."""

    __slots__ = ("timestamp",)

    def __init__(self) -> None:
        self.timestamp: int | None = None


NOT_AWAITABLE = frozenset((bool, dict, type(None)))  # the types that nearly every plain function returns


@public("asyncudf")
class ProcessContext:
    """What a `ProcessFunction` can ask about its task and the current row, and its way to side outputs."""

    # One for the task, and the operator sets the row: here no two rows are worked on at once, so that, unlike
    # `RuntimeContext`, it needs no context variable.

    def __init__(
        self,
        collect_tagged: Callable[[OutputTag, StreamRecord], None],
        gauge: WatermarkGauge,
        side_types: SideTypes,
        partition: int,
    ) -> None:
        self._collect_tagged = collect_tagged
        self._gauge = gauge
        self._side_types = side_types
        self._partition = partition
        self._timestamp: int | None = None

    @property
    def partition(self) -> int:
        """The Spark partition of this task, from 0."""
        return self._partition

    @property
    def timestamp(self) -> int | None:
        """The row's event time in microseconds since the epoch; None unless a watermark strategy gave it one."""
        return self._timestamp

    @property
    def watermark(self) -> int | None:
        """The watermark in force at the row, in microseconds since the epoch; None before the first."""
        return self._gauge.timestamp

    def output(self, tag: OutputTag, value: Any) -> None:
        """Write a row to a side output, which `AsyncStream.side_output(tag)` reads; dropped if the tag is not read.

        Raises:
            ResultError: the value does not fit the tag's schema.
            OptionError: not a tag, or one that the library fills.
        """
        validate = self._side_types(check_own_tag(tag))
        if validate is not None:
            self._collect_tagged(tag, StreamRecord(validate(value), self._timestamp))

    def at(self, record: StreamRecord) -> None:
        """Make this record the current row (for the operator)."""
        self._timestamp = record.timestamp


@public("asyncudf")
class ProcessFunction(ABC):
    """Makes 0..n rows of each row, and rows for side outputs, without waiting for anything.

    `open` and `close` are called once per task, on the event loop of the chain; each may be `async def`. One
    instance per task. After Flink's class of that name, without its timers and its state.

    Attributes:
        open_timeout: seconds for `open`, or a timedelta, or None for no limit; then the task fails.

    >>> class Checked(ProcessFunction):
    ...     def process_element(self, value, context, collector):
    ...         if value["city"]:
    ...             collector.collect(value)
    """

    open_timeout: Seconds | None = OPEN_TIMEOUT

    def open(self, context: ProcessContext) -> Any:
        """Called once before the first row."""

    @abstractmethod
    def process_element(self, value: dict[str, Any], context: ProcessContext, collector: Collector) -> None:
        """Handle one row.

        Args:
            value: a dict of all columns.
            context: writes to side outputs, and says what is known of the row.
            collector: takes the rows that go on, each a mapping of the declared columns.
        """

    def close(self) -> Any:
        """Called once after the last row, also after a failure or a cancellation."""


class MapFunction(ProcessFunction):
    """One row for each row."""

    def __init__(self, function: Callable[[dict[str, Any]], Any]) -> None:
        self._function = function

    def process_element(self, value: dict[str, Any], context: ProcessContext, collector: Collector) -> None:
        collector.collect(checked_result(self._function(value)))


class FlatMapFunction(ProcessFunction):
    """0..n rows for each row."""

    def __init__(self, function: Callable[[dict[str, Any]], Iterable[Any]]) -> None:
        self._function = function

    def process_element(self, value: dict[str, Any], context: ProcessContext, collector: Collector) -> None:
        rows = checked_result(self._function(value))
        if isinstance(rows, (str, bytes, dict)) or not isinstance(rows, Iterable):
            raise result_error("a flat_map gives an iterable of rows, such as a list or with yield, not", rows, "")
        for row in rows:
            collector.collect(row)


def checked_result(result: Any) -> Any:
    """What a plain function has returned; ResultError for what would have to be awaited."""
    # A coroutine is true: a filter without its await would keep every row, and call nothing.
    if type(result) in NOT_AWAITABLE:
        return result
    if inspect.isawaitable(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()  # or Python warns that nothing awaited it
        raise result_error(
            "it returned",
            result,
            ", which has not run: nothing waits in a plain function of a chain; call an async def with ordered_wait or "
            "unordered_wait, and go on with its column",
        )
    return result


def name_of_plain(function: Any, method: str) -> str:
    """The name of a function that `method` can take; FunctionError for any other."""
    if not callable(function) or inspect.isclass(function):
        raise FunctionError(f"{method} takes a function of one row (a dict of its columns), not {safe_repr(function)}")
    target = called(function)
    is_udf = hasattr(type(function), "evalType")  # ours, which needs the driver, or one of Spark's
    if is_udf or is_coroutine_function(function) or inspect.isasyncgenfunction(target):
        raise FunctionError(f"{method} takes a plain def; for an async def use ordered_wait or unordered_wait")
    if method != "flat_map" and inspect.isgeneratorfunction(target):
        raise FunctionError(f"{method} takes a function that returns one value; for one that yields rows use flat_map")
    name = getattr(function, "__name__", None) or type(function).__name__
    return method if name == "<lambda>" else str(name)


def name_of_process(function: Any) -> str:
    """The name of a function that `process` can take; FunctionError for any other."""
    if not isinstance(function, ProcessFunction):
        raise FunctionError(f"process takes a ProcessFunction, such as YourFunction(), not {safe_repr(function)}")
    name, method = type(function).__name__, function.process_element
    optional(seconds)(function.open_timeout, f"open_timeout of {name}")
    if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
        raise FunctionError(f"{name}.process_element must be a plain def; for calls use ordered_wait or unordered_wait")
    if inspect.isgeneratorfunction(method):
        raise FunctionError(f"{name}.process_element must not yield; it gives its rows by collector.collect(row)")
    return name
