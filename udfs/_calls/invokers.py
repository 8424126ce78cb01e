"""How each kind of function is called: one way in, a list of results for each row out."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from inspect import Parameter
from typing import Any, Protocol

from .._errors.exceptions import ResultError
from .._functions.async_function import AsyncFunction, Deliver, ResultFuture, Results
from .._functions.context import RuntimeContext
from .._functions.parameters import BY_POSITION, bound, parameters_of
from .._functions.signature import FunctionKind, FunctionSpec
from .._policies.options import Options
from .spans import Attempt, Spans

__all__ = ("BatchCodec", "Invoker", "invoker_of", "of_row")


class BatchCodec(Protocol):
    """Turns the rows of a micro-batch into vectors, and a vector of results into values."""

    def encode(self, rows: Sequence[Any]) -> Sequence[Any]: ...
    def decode(self, result: Any) -> Sequence[Any]: ...


class Invoker(ABC):
    """A function bound to its task: its resources are open, its context is there."""

    direct: Callable[..., Coroutine[Any, Any, Any]] | None = None  # one call, one plain coroutine, one result

    def __init__(self, name: str, on_timeout: Any) -> None:
        self.name = name
        self._on_timeout = on_timeout

    @abstractmethod
    async def invoke(self, rows: Sequence[Any], deliver: Deliver) -> Sequence[Results] | None:
        """Call the function for the rows of one call; None when `deliver` has had the results."""

    def timed_out(self, row: Any, error: BaseException) -> Results:
        """The results of a row whose deadline has passed; raises `error` if the function has no answer."""
        if self._on_timeout is None:
            raise error
        return ((self._on_timeout(*row) if callable(self._on_timeout) else self._on_timeout),)

    def seen_by_retry(self, results: Sequence[Results]) -> Any:
        """What a result predicate is asked about: the value of a plain function, else the list of results."""
        return results[0]


class _Scalar(Invoker):
    """A plain `def`, whose coroutine waits for a thread; with `_Direct` all that gives one value for one row."""

    def __init__(self, name: str, on_timeout: Any, function: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        super().__init__(name, on_timeout)
        self._function = function

    async def invoke(self, rows: Sequence[Any], deliver: Deliver) -> Sequence[Results]:
        return [(await self._function(*rows[0]),)]

    def seen_by_retry(self, results: Sequence[Results]) -> Any:
        return results[0][0]


class _Direct(_Scalar):
    """An `async def`: what it returns is the coroutine itself, so the fast path may call it."""

    def __init__(self, name: str, on_timeout: Any, function: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        super().__init__(name, on_timeout, function)
        self.direct = function


class _Generator(Invoker):
    """An `async def` with `yield`: 0..n results, which leave together when it has ended."""

    def __init__(self, name: str, on_timeout: Any, function: Callable[..., Any]) -> None:
        super().__init__(name, on_timeout)
        self._function = function

    async def invoke(self, rows: Sequence[Any], deliver: Deliver) -> Sequence[Results]:
        return [[result async for result in self._function(*rows[0])]]


class _Vectorized(Invoker):
    """One call for the rows of a micro-batch."""

    def __init__(self, name: str, on_timeout: Any, function: Callable[..., Any], codec: BatchCodec) -> None:
        super().__init__(name, on_timeout)
        self._function = function
        self._codec = codec

    async def invoke(self, rows: Sequence[Any], deliver: Deliver) -> Sequence[Results]:
        values = self._codec.decode(await self._function(*self._codec.encode(rows)))
        if len(values) != len(rows):
            raise ResultError(f"{self.name} returned {len(values)} results for {len(rows)} rows; give one for each row")
        return [(value,) for value in values]

    def seen_by_retry(self, results: Sequence[Results]) -> Any:
        return [result[0] for result in results]


class _Rich(Invoker):
    """An `AsyncFunction`, which completes a `ResultFuture`."""

    # The row is done when the future is, though `async_invoke` may go on; and it may return long before. So results
    # come by `deliver` and not as what `invoke` returns, and the slot stays taken until both are over.

    def __init__(self, name: str, on_timeout: Any, function: AsyncFunction) -> None:
        super().__init__(name, on_timeout)
        self._function = function

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


class _Traced(Invoker):
    """Any of these, with a span around each attempt."""

    def __init__(self, inner: Invoker, spans: Spans) -> None:
        super().__init__(inner.name, None)
        self._inner = inner
        self._spans = spans
        if (function := inner.direct) is not None:

            async def call(*row: Any) -> Any:
                with Attempt(spans, 1):
                    return await function(*row)

            self.direct = call

    async def invoke(self, rows: Sequence[Any], deliver: Deliver) -> Sequence[Results] | None:
        with Attempt(self._spans, len(rows)) as attempt:

            def delivered(results: Results | None, error: BaseException | None) -> None:
                if error is not None:
                    attempt.failed(error)
                deliver(results, error)

            return await self._inner.invoke(rows, delivered)

    def timed_out(self, row: Any, error: BaseException) -> Results:
        return self._inner.timed_out(row, error)

    def seen_by_retry(self, results: Sequence[Results]) -> Any:
        return self._inner.seen_by_retry(results)


def invoker_of(
    spec: FunctionSpec,
    options: Options,
    resources: Mapping[str, Any],
    context: RuntimeContext,
    codec: BatchCodec | None,
) -> Invoker:
    """Bind a function to the resources and the context of its task.

    Raises:
        AsyncUDFError: there shall be spans, and OpenTelemetry is not installed here.
    """
    invoker = _bound(spec, options.on_timeout, resources, context, codec)
    if not options.spans:
        return invoker
    return _Traced(invoker, Spans(spec.name, spec.full_name, context.partition, options.redact))


def _bound(
    spec: FunctionSpec,
    on_timeout: Any,
    resources: Mapping[str, Any],
    context: RuntimeContext,
    codec: BatchCodec | None,
) -> Invoker:
    if spec.kind is FunctionKind.ASYNC_FUNCTION:
        return _Rich(spec.name, on_timeout, spec.function)
    given, parameters = dict(resources), parameters_of(spec.function)
    if spec.context_parameter is not None:
        given[spec.context_parameter] = context
    function = bound(spec.function, parameters, spec.parameters, given)
    if callable(on_timeout):
        on_timeout = of_row(on_timeout, spec)
    if spec.kind is FunctionKind.THREAD:
        function = _in_thread(function, spec.name)
    if spec.vectorized:
        assert codec is not None
        return _Vectorized(spec.name, on_timeout, function, codec)
    if spec.kind is FunctionKind.GENERATOR:
        return _Generator(spec.name, on_timeout, function)
    return (_Direct if spec.kind is FunctionKind.COROUTINE else _Scalar)(spec.name, on_timeout, function)


def of_row(asked: Callable[..., Any], spec: FunctionSpec) -> Callable[..., Any]:
    """What an option has as a function of a row's arguments, such as `cost` or `on_timeout`, called with its columns.

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
    except (ValueError, TypeError):  # of some that are made in C
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
        except StopIteration as error:  # no future may carry it: the row would wait for ever
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
