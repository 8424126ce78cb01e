"""Whatever code of the user's raises is the error of its row or of the task: no row is lost, doubled or stuck."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from pyspark.sql import Row

import asyncudf
from asyncudf import (
    AsyncFunction,
    AsyncStream,
    AsyncTimeoutError,
    AsyncUDFError,
    CircuitBreaker,
    ProcessFunction,
    ResultError,
    ResultFuture,
    RetryStrategy,
)
from asyncudf.testing import MemoryStore, run_rows, run_stream


class UserError(BaseException):
    """What libraries raise that shall not be caught by mistake."""


NOT_EXCEPTIONS = [asyncio.CancelledError("mine"), UserError("mine"), GeneratorExit("mine"), SystemExit("mine")]
ROWS = [{"n": n} for n in range(6)]


async def same(n: int) -> int:
    return n


def fails_at(n: int, error: BaseException, result: Any) -> Callable[[dict[str, Any]], Any]:
    def call(row: dict[str, Any]) -> Any:
        if row["n"] == n:
            raise error
        return result(row)

    return call


class Process(ProcessFunction):
    def __init__(self, call: Callable[[Any], Any]) -> None:
        self.call = call

    def process_element(self, value: Any, context: Any, collector: Any) -> None:
        collector.collect(self.call(value))


@pytest.mark.parametrize("error", NOT_EXCEPTIONS, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("capacity", [1, 3])
@pytest.mark.parametrize(
    "add",
    [
        lambda stream, error: stream.filter(fails_at(2, error, lambda row: True)),
        lambda stream, error: stream.map(fails_at(2, error, dict)),
        lambda stream, error: stream.flat_map(fails_at(2, error, lambda row: [row])),
        lambda stream, error: stream.process(Process(fails_at(2, error, dict))),
    ],
    ids=["filter", "map", "flat_map", "process"],
)
def test_what_is_no_exception_in_a_plain_function_fails_the_task_and_names_the_row(
    add: Any, capacity: int, error: BaseException
) -> None:
    """Rows were lost and doubled, and the run succeeded: [0, 1, 0, 1] for six rows."""

    def build(stream: AsyncStream) -> AsyncStream:
        waited: AsyncStream = stream.ordered_wait(same, capacity=capacity)
        return add(waited, error)

    with pytest.raises(AsyncUDFError, match=rf"call|Process.*'n': 2.*{type(error).__name__}: mine") as caught:
        run_stream(build, ROWS, "n int")
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("fails_in", ["retry_on", "retry_if_result"])
@pytest.mark.parametrize("error", [asyncio.CancelledError("mine"), ZeroDivisionError("mine")])
def test_what_a_retry_predicate_raises_is_the_error_of_its_row(fails_in: str, error: BaseException) -> None:
    def predicate(_: Any) -> bool:
        raise error

    async def call(n: int) -> int:
        if fails_in == "retry_on" and n == 1:
            raise ValueError(n)
        await asyncio.sleep(0)
        return n

    retry = RetryStrategy.fixed_delay(attempts=2, delay=1.0, **{fails_in: predicate})  # type: ignore[arg-type]
    got = run_rows(call, [0, 1, 2], retry=retry, on_error="capture")
    failed = [1] if fails_in == "retry_on" else [0, 1, 2]
    assert [row["error"] and row["error"]["message"] for row in got] == [
        "mine" if n in failed else None for n in range(3)
    ]
    assert [row["value"] for row in got] == [None if n in failed else n for n in range(3)]


class Unprintable:
    def __repr__(self) -> str:
        raise UserError("repr")


class Fatal:
    def __index__(self) -> int:
        raise KeyboardInterrupt


class NoItems(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no keys today")

    def __len__(self) -> int:
        return 1


ODD_RESULTS = [
    ("bigint", 10**5000),
    ("string", Unprintable()),
    ("bigint", Unprintable()),
    ("map<string,int>", NoItems()),
    ("a int, b int", Row("a", "b")(1)),
    ("a int", NoItems()),
    ("array<int>", [Unprintable()]),
]


@pytest.mark.parametrize(("declared", "odd"), ODD_RESULTS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("suspends", [False, True], ids=["at once", "later"])
def test_a_result_whose_check_raises_is_a_mismatch_like_any_other(declared: str, odd: Any, suspends: bool) -> None:
    async def call(n: int) -> Any:
        if suspends:
            await asyncio.sleep(1)
        return odd if n == 1 else None

    assert run_rows(call, [0, 1, 2], returnType=declared, on_error="null") == [None, None, None]
    got = run_rows(call, [0, 1, 2], returnType=declared, on_error="capture")
    assert [row["error"] and row["error"]["type"] for row in got] == [None, "ResultError", None]
    said = r"^call failed in attempt 1, partition 0, for the input \(1,\): call returned "
    with pytest.raises(ResultError, match=said):
        run_rows(call, [0, 1, 2], returnType=declared)

    class FromThread(AsyncFunction):
        async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
            threading.Thread(target=result_future.complete, args=([odd],)).start()

    got = run_rows(FromThread(), [1], returnType=declared, on_error="capture", clock="real", timeout=60)
    assert got[0]["error"]["type"] == "ResultError", "at once, and not at its deadline"


def test_an_interrupt_in_a_check_fails_the_task_under_every_policy() -> None:
    async def call(n: int) -> Any:
        return Fatal()

    for policy in ("null", "capture"):
        with pytest.raises(AsyncUDFError, match="KeyboardInterrupt"):
            run_rows(call, [1], returnType="bigint", on_error=policy)


@pytest.mark.parametrize("waits", [False, True])
def test_a_mismatch_is_checked_once(waits: bool) -> None:
    """Validating a result calls code of the user, so it is not done again for the message."""
    looks = []

    class Looked:
        def __index__(self) -> int:
            looks.append(1)
            raise TypeError

    async def call(n: int) -> Any:
        if waits:
            await asyncio.sleep(1)
        return Looked()

    assert run_rows(call, [1], returnType="bigint", on_error="null") == [None]
    assert len(looks) == 1


def test_a_result_future_of_an_attempt_before_decides_nothing() -> None:
    futures: list[ResultFuture] = []

    class Twice(AsyncFunction):
        async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
            futures.append(result_future)
            if len(futures) == 1:
                raise ConnectionError("busy")
            futures[0].complete_exceptionally(ValueError("late"))
            await asyncio.sleep(1)
            futures[0].complete(["of the first attempt"])
            result_future.complete(["of the second"])

    assert run_rows(Twice(), [1], retry=RetryStrategy.fixed_delay(attempts=2, delay=1.0)) == ["of the second"]


class Incomparable:
    """As an array: comparing two of them has no truth value."""

    def __eq__(self, other: object) -> Any:
        raise ValueError("the truth value of an array is ambiguous")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("suspends", [False, True], ids=["at once", "later"])
def test_a_context_variable_whose_values_cannot_be_compared_is_no_obstacle(suspends: bool) -> None:
    variable: contextvars.ContextVar[Any] = contextvars.ContextVar("array")
    found = []

    async def call(n: int) -> int:
        found.append(variable.get(None))
        variable.set(Incomparable())
        if suspends:
            await asyncio.sleep(1)
        return n

    outer = contextvars.copy_context()
    outer.run(variable.set, Incomparable())
    assert outer.run(run_rows, call, list(range(20)), capacity=2) == list(range(20))
    assert len({id(value) for value in found}) == 1, "what one row has set was not seen by another"


@pytest.mark.parametrize("name", [name for name in asyncudf.__all__ if name.endswith("Error")])
def test_an_error_is_shown_under_the_name_of_the_package(name: str) -> None:
    assert getattr(asyncudf, name).__module__ == "asyncudf"


@pytest.mark.parametrize("raised", [ValueError("no more"), SystemExit(1)])
def test_results_whose_own_code_raises_are_the_error_of_their_row(raised: BaseException) -> None:
    """From a thread that nobody looks at: the row waited until its deadline."""

    class Lazy(list[int]):
        def __iter__(self) -> Iterator[int]:
            raise raised

    class Completes(AsyncFunction):
        async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
            def complete() -> None:
                with contextlib.suppress(BaseException):
                    result_future.complete(Lazy([1]))

            asyncio.get_running_loop().call_soon(complete)

    with pytest.raises(AsyncUDFError) as caught:
        run_rows(Completes(), [1], timeout=60.0)
    assert not isinstance(caught.value, AsyncTimeoutError)
    assert type(raised).__name__ in str(caught.value)


def raises(_: Any) -> Any:
    raise UserError("read")


class HostileError(Exception):
    """What is read of it raises, its class included."""

    __class__ = errno = status = reason = code = args = property(raises)  # type: ignore[assignment]


def ended(run: Callable[[], Any]) -> Any:
    """What a run returns or raises, without the exceptions behind it, which pytest could not show."""
    try:
        return run()
    except BaseException as error:
        return type(error).__name__, str(error)


HOSTILE = {
    "plain": {},
    "store": {"store": MemoryStore(error_ttl=60)},
    "retry": {"retry": RetryStrategy.fixed_delay(2, 1.0, retry_on=OSError)},
    "breaker": {"breaker": CircuitBreaker()},
    "failure_on": {"breaker": CircuitBreaker(failure_on=(OSError,))},
}


@pytest.mark.parametrize("options", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("base", [Exception, OSError])
def test_an_exception_that_cannot_be_looked_at_is_the_error_of_its_row(
    base: type[Exception], options: dict[str, Any]
) -> None:
    kind = type("HostileError", (HostileError, base), {})

    async def call(n: int) -> int:
        await asyncio.sleep(1)
        if n == 1:
            raise kind
        return n

    got = ended(lambda: run_rows(call, [0, 1, 2, 1], on_error="capture", timeout=60, **options))
    assert type(got) is list, got
    assert [row["value"] for row in got] == [0, None, 2, None]
    assert [row["error"] and row["error"]["type"] for row in got] == [None, "HostileError", None, "HostileError"]
