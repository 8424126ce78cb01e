"""How each kind of function is called: an invoker for each kind."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

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
    FunctionKind,
    FunctionSpec,
    bound,
    parameters_of,
)
from .arguments import of_row


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

        A vectorized function may return an exception as the outcome of a row.
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
        """The result that `settle` gets for a row: one value, a list of 0..n results, or an exception."""
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
    """Whether a value is the error of its row; the validator reports a mismatch, as it knows the function's name."""
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


def _in_thread(function: Callable[..., Any], name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
    """The function as a coroutine that runs in the loop's thread pool, with the caller's context variables."""

    def guarded(*args: Any) -> Any:
        try:
            result = function(*args)
        except StopIteration as error:  # a future cannot have it: the row would wait for ever
            raise RuntimeError(f"{name} raised StopIteration") from error
        if issubclass(type(result), Coroutine):  # asyncio.iscoroutine takes a generator for one, too
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
