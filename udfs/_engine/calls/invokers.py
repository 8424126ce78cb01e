"""How each kind of function is called: an invoker for each kind, copies of arguments, costs of attempts."""

from __future__ import annotations

import asyncio
import contextvars
import datetime
import decimal
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from inspect import Parameter
from typing import Any, Protocol

from ..._errors.checks import given_number
from ..._errors.exceptions import ResultError
from ..._errors.type_mismatch import TypeMismatchError
from ..._functions.async_function import (
    AsyncFunction,
    Deliver,
    ResultFuture,
    Results,
    RuntimeContext,
)
from ..._functions.options import Options
from ..._functions.signature import (
    BY_POSITION,
    FunctionKind,
    FunctionSpec,
    bound,
    group_rows,
    parameters_of,
)
from ..._limits.gate import Key
from ..._limits.keys import key_of
from ..._limits.limited_task import Place


class GroupCodec(Protocol):
    """Turns the rows of a group into vectors, and what the function answers into values and errors of rows."""

    def encode(self, rows: Sequence[Any]) -> Sequence[Any]: ...
    def decode(self, result: Any, rows: Sequence[Any]) -> Sequence[Any]: ...


class Invoker(ABC):
    """A function bound to the open resources and the context of its task."""

    # An `async def` of one row and one result, which returns the coroutine itself: it may be called without an invoker.
    direct: Callable[..., Coroutine[Any, Any, Any]] | None = None

    def __init__(self, name: str, on_timeout: Any, function: Any) -> None:
        self.name = name
        self._on_timeout = on_timeout
        self._function = function

    @abstractmethod
    async def invoke(self, rows: Sequence[Any], deliver: Deliver) -> Sequence[Results | BaseException] | None:
        """Call the function for the rows of one call; returns None if `deliver` was called with the results.

        Of a vectorized function an exception is the outcome of a row.
        """

    def timed_out(self, row: Any, error: BaseException) -> Results:
        """The results of a row whose deadline has passed; raises `error` if the function has no answer for it."""
        if self._on_timeout is None:
            raise error
        return ((self._on_timeout(*row) if callable(self._on_timeout) else self._on_timeout),)

    def seen_by_retry(self, results: Sequence[Any]) -> Any:
        """The argument of a result predicate: the value of a plain function, or the list of results."""
        return self.seen_by_settle(results[0])

    def seen_by_settle(self, results: Any) -> Any:
        """What `settle` gets of a row: the value of a function of one result, a list of results, or an exception."""
        return results


class _Scalar(Invoker):
    """One result: of an `async def`, or of a plain `def`, whose coroutine waits for a thread."""

    async def invoke(self, rows: Sequence[Any], deliver: Deliver) -> Sequence[Results]:
        return [(await self._function(*rows[0]),)]

    def seen_by_settle(self, results: Any) -> Any:
        return results[0]


class _Generator(Invoker):
    """An `async def` with `yield`: 0..n results, which leave together when it has ended."""

    async def invoke(self, rows: Sequence[Any], deliver: Deliver) -> Sequence[Results]:
        return [[result async for result in self._function(*rows[0])]]


class _Vectorized(Invoker):
    def __init__(self, name: str, on_timeout: Any, function: Callable[..., Any], codec: GroupCodec) -> None:
        super().__init__(name, on_timeout, function)
        self._codec = codec

    async def invoke(self, rows: Sequence[Any], deliver: Deliver) -> Sequence[Results | BaseException]:
        result = await self._function(*self._codec.encode(rows))
        values = self._codec.decode(result, rows)
        return [value if _is_error(value) else (value,) for value in values]

    def seen_by_retry(self, results: Sequence[Any]) -> Any:
        return [*map(self.seen_by_settle, results)]

    def seen_by_settle(self, results: Any) -> Any:
        return results if isinstance(results, BaseException) else results[0]


def _is_error(value: Any) -> bool:
    """Whether an answer for a row is its error; a mismatch is told by the validator, which knows the function."""
    return isinstance(value, BaseException) and not isinstance(value, TypeMismatchError)


class _AsyncFunctionInvoker(Invoker):
    # The row is done when the future is, before or after `async_invoke` returns. So results come by `deliver`, and the
    # slot stays taken until both are over.

    async def invoke(self, rows: Sequence[Any], deliver: Deliver) -> None:
        future = ResultFuture(self.name, asyncio.get_running_loop(), deliver)
        await self._function.async_invoke(rows[0], future)
        await future.wait()

    def timed_out(self, row: Any, error: BaseException) -> Results:
        if self._on_timeout is not None:
            return super().timed_out((row,), error)
        answers: list[tuple[Results | None, BaseException | None]] = [(None, error)]
        future = ResultFuture(self.name, asyncio.get_running_loop(), lambda *answer: answers.append(answer))
        if type(self._function).timeout is not AsyncFunction.timeout:
            self._function.timeout(row, future)
        results, own = answers[-1]  # the first answer wins, so there are two at most
        if results is None:
            raise error if own is None else own
        return results

    def seen_by_retry(self, results: Sequence[Results]) -> Any:
        return list(results[0])


def invoker_of(
    spec: FunctionSpec,
    options: Options,
    resources: Mapping[str, Any],
    context: RuntimeContext,
    codec: GroupCodec | None,
) -> Invoker:
    if spec.kind is FunctionKind.ASYNC_FUNCTION:
        return _AsyncFunctionInvoker(spec.name, options.on_timeout, spec.function)
    given, parameters = dict(resources), parameters_of(spec.function)
    if spec.context_parameter is not None:
        given[spec.context_parameter] = context
    function = bound(spec.function, parameters, spec.parameters, given)
    on_timeout = of_row(options.on_timeout, spec) if callable(options.on_timeout) else options.on_timeout
    if spec.kind is FunctionKind.THREAD:
        function = _in_thread(function, spec.name)
    if spec.vectorized:
        assert codec is not None
        return _Vectorized(spec.name, on_timeout, function, codec)
    if spec.kind is FunctionKind.GENERATOR:
        return _Generator(spec.name, on_timeout, function)
    invoker = _Scalar(spec.name, on_timeout, function)
    if spec.kind is FunctionKind.COROUTINE:
        invoker.direct = function
    return invoker


def of_row(asked: Callable[..., Any], spec: FunctionSpec) -> Callable[..., Any]:
    """Makes a function of an option, such as `cost` or `on_timeout`, that is called with the columns of a row.

    It gets by position what the function itself takes of the row: where there is no column, the function's default. Of
    those behind the last column it gets what it cannot do without, or calls by the same name: it may have others.
    """
    if spec.takes_mapping:
        return asked
    own = {*spec.resources, spec.context_parameter}
    placed = [p for p in parameters_of(spec.function) if p.kind in BY_POSITION and p.name not in own]
    ends = [place + 1 for place, p in enumerate(placed) if p.name in spec.parameters]  # of the columns
    try:
        takes = [p for p in parameters_of(asked) if p.kind in BY_POSITION]
    except (ValueError, TypeError):  # some functions made in C have no signature
        takes = []

    def called(*row: Any) -> Any:
        rest = iter(row)
        values = [next(rest, p.default) if p.name in spec.parameters else p.default for p in placed]
        end = ends[min(len(row), len(ends)) - 1] if ends and row else 0
        for given, taken in zip(placed[end:], takes[end:], strict=False):
            if taken.default is not Parameter.empty and taken.name != given.name:
                break
            end += 1
        return asked(*values[:end], *rest)

    return called


def _in_thread(function: Callable[..., Any], name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    """The function as a coroutine that runs in the loop's thread pool, with the caller's context variables."""

    def guarded(*args: Any) -> Any:
        try:
            result = function(*args)
        except StopIteration as error:  # a future cannot have it: the row would wait for ever
            raise RuntimeError(f"{name} raised StopIteration") from error
        if asyncio.iscoroutine(result):
            result.close()
            raise ResultError(
                f"{name} is a plain def that returned a coroutine; declare it async def, or if a decorator hides its "
                "async def, make the decorator's wrapper async"
            )
        return result

    async def call(*args: Any) -> Any:
        run = functools.partial(contextvars.copy_context().run, guarded, *args)
        return await asyncio.get_running_loop().run_in_executor(None, run)

    return call


# Classes whose values cannot be edited. A tuple cannot either, but what is in it can.
_FIXED = frozenset((type(None), bool, int, float, str, bytes, decimal.Decimal)) | frozenset(
    (datetime.date, datetime.datetime, datetime.time, datetime.timedelta)
)


# Not copy.deepcopy of all: it takes many times as long, and remembers what it has seen, which values of a column do not
# need.
def copied(value: Any) -> Any:
    """A copy of the value, with its own lists, dicts and objects of user-defined types; others are in no column."""
    cls = type(value)
    if cls is list or cls is tuple:
        if _FIXED.issuperset(map(type, value)):  # such as an embedding: no value needs a copy
            return value[:]
        return cls([copied(item) for item in value])
    if cls is dict:
        return {key: copied(item) for key, item in value.items()}
    if cls is bytearray or cls is set:
        return value.copy()
    udt = getattr(cls, "__UDT__", None)  # of a user-defined type of Spark's; deepcopy makes an array of an ML vector
    return value if udt is None else udt.fromInternal(udt.toInternal(value))


def with_own_arguments(function: Callable[..., Any]) -> Callable[..., Any]:

    def call(*args: Any) -> Any:
        return function(*(args if _FIXED.issuperset(map(type, args)) else copied(args)))

    return call


class GroupBounds:
    """What one call of a function may take: `size` rows of `most_weight`; one that is heavier has a call of its own."""

    def __init__(self, spec: FunctionSpec, options: Options) -> None:
        self.size = group_rows(spec, options)
        self.is_many = spec.vectorized
        self._weight = None if options.batch_weight is None else of_row(options.batch_weight, spec)
        self.weighs = self._weight is not None
        self.most_weight = math.inf if options.max_batch_weight is None else options.max_batch_weight

    def weight_of(self, value: Any) -> float:
        """The weight of a row; raises what `batch_weight` raises, and FatalError if it is no number of 0 or more."""
        assert self._weight is not None
        return given_number(self._weight(*copied(_arguments(value))), "batch_weight")


class Costs:
    """Costs of attempts: permits of each rate limit, then what each budget reserves; `of_each`: if all are alike."""

    def __init__(self, places: Sequence[Place], spec: FunctionSpec) -> None:
        # With each, whether it is asked for each row, and what it asks.
        self._asked = [(place.asks, place.asking(lambda asked: of_row(asked, spec)).cost_of) for place in places]
        if (takes := None if spec.takes_mapping else spec.parameters) is not None:
            spec.check_keys(takes)
        self._keys = [None if place.by is None else key_of(place.by, takes) for place in places]
        has_own = any(asks for asks, _ in self._asked) or any(self._keys)
        self.of_each = None if has_own else [cost_of(()) for _, cost_of in self._asked]

    def of(self, values: Sequence[Any]) -> Sequence[float]:
        """The costs of one attempt of these rows: a number counts once, a function for each row; raises its errors."""
        return [
            sum(cost_of(copied(_arguments(value))) for value in values) if asks else cost_of(())
            for asks, cost_of in self._asked
        ]

    def keys_of(self, values: Sequence[Any]) -> Sequence[Key | None]:
        """The key of a call for each limit and budget, None for one not by key; AsyncUDFError if there can be none."""
        if not any(self._keys):
            return ()
        (row,) = values  # as the declaration has checked
        return [None if key is None else key(row) for key in self._keys]


def settlement_call(spec: FunctionSpec) -> Callable[[Callable[..., float], Any, Any], float]:
    """Makes a function that calls a `settle` with copies of a row's arguments and of what it came to."""
    row = (lambda *row: row) if spec.takes_mapping else of_row(lambda *row: row, spec)
    return lambda settle, value, outcome: settle(*row(*copied(_arguments(value))), copied(outcome))


def _arguments(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple) else (value,)
