"""What belongs to another event loop is no row's fault: the task fails under every policy, with the way out."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import aiohttp
import pandas as pd
import pytest

from asyncudf import AsyncFunction, AsyncUDFError, CircuitBreaker, FatalError, ResultFuture, RetryStrategy, http
from asyncudf.testing import MemoryStore, VirtualClockLoop, run_rows
from tests.kit.bridges import batch, start

WAY_OUT = r"event loop.*per task, with resources= or in AsyncFunction\.open"
RETRY = RetryStrategy.fixed_delay(attempts=5, delay=1)


async def at_once(lock: asyncio.Semaphore) -> None:
    async with lock:
        await asyncio.sleep(1)


async def two_at_once(lock: Any) -> None:
    await asyncio.gather(at_once(lock), at_once(lock))


async def waits_for_item(queue: asyncio.Queue[int]) -> None:
    asyncio.get_running_loop().call_later(1, queue.put_nowait, 1)
    await queue.get()


async def waits(future: asyncio.Future[None]) -> None:
    if asyncio.get_running_loop() is not future.get_loop():
        await future


async def waits_again(future: asyncio.Future[None]) -> None:
    for _ in range(2):
        try:
            await waits(future)
        except RuntimeError as error:
            last = error
            continue
        return
    raise last


async def waits_with_a_limit(future: asyncio.Future[None]) -> None:
    if asyncio.get_running_loop() is not future.get_loop():
        await asyncio.wait_for(future, 1)


async def runs_there(loop: asyncio.AbstractEventLoop) -> None:
    if asyncio.get_running_loop() is not loop:
        loop.call_soon(print)


KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any], Awaitable[None]]]] = {
    "a semaphore": (lambda: asyncio.Semaphore(1), two_at_once),
    "a queue": (asyncio.Queue, waits_for_item),
    "a future": (lambda: asyncio.get_running_loop().create_future(), waits),
    "a future, again": (lambda: asyncio.get_running_loop().create_future(), waits_again),
    "a future with a limit": (lambda: asyncio.get_running_loop().create_future(), waits_with_a_limit),
    "the loop": (asyncio.get_running_loop, runs_there),
}


class Client:
    """What a module makes once in a process, at its first use."""

    def __init__(self, kind: str = "a semaphore") -> None:
        self.make, self.use = KINDS[kind]
        self.made: Any = None
        self.calls = 0

    async def get(self, x: int) -> int:
        self.calls += 1
        if self.made is None:
            self.made = self.make()
        await self.use(self.made)
        return x


def of_an_earlier_task(kind: str = "a semaphore") -> Client:
    """A client that a task before this one, in the same worker, has made."""
    client = Client(kind)
    assert run_rows(client.get, [1]) == [1]
    client.calls = 0
    return client


@pytest.mark.parametrize("policy", ["raise", "null", "capture", "dead_letter"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_task_fails_at_once_under_every_policy_and_names_the_way_out(kind: str, policy: str) -> None:
    """With on_error="null" 30 of 40 rows were NULL, and nothing said so."""
    client = of_an_earlier_task(kind)

    async def call(x: int) -> int:
        return await client.get(x)

    with pytest.raises(FatalError, match=rf"^call failed in attempt 1, .*\(1,\): \w+Error: .*{WAY_OUT}") as caught:
        run_rows(call, [1, 2], on_error=policy, retry=RETRY, capacity=1, on_timeout=7)
    assert client.calls == 1, "it was not tried again"
    assert type(caught.value.__cause__) in (RuntimeError, ValueError)


def test_a_closed_loop_of_uvloop_which_shows_no_objects() -> None:
    loop = pytest.importorskip("uvloop").new_event_loop()
    loop.close()

    async def call(x: int) -> int:
        loop.call_soon(print)
        return x

    with pytest.raises(FatalError, match=WAY_OUT):
        run_rows(call, [1], on_error="null")


EARLIER: dict[str, Client] = {}


async def closed_session() -> Any:
    session = aiohttp.ClientSession()
    await session.close()
    return session


async def asked(session: aiohttp.ClientSession) -> None:
    await session.get("http://127.0.0.1:9/")  # "Session is closed"


ASYNCPG = """
class InterfaceError(Exception):
    pass

class Connection:
    def __init__(self, loop):
        self._loop = loop

    def fetch(self):
        raise InterfaceError("cannot perform operation: another operation is in progress")
"""


async def connection() -> Any:
    """As asyncpg's, which an earlier task has used in vain."""
    module: dict[str, Any] = {"__name__": "asyncpg.connection"}
    exec(ASYNCPG, module)
    return module["Connection"](asyncio.get_running_loop())


async def fetched(connection: Any) -> None:
    connection.fetch()


@pytest.mark.parametrize(("make", "use"), [(closed_session, asked), (connection, fetched)], ids=["aiohttp", "asyncpg"])
@pytest.mark.parametrize("is_earlier", [True, False], ids=["of an earlier task", "of this task"])
def test_an_error_that_does_not_say_so_comes_through_a_client_of_another_loop(
    make: Callable[[], Awaitable[Any]], use: Callable[[Any], Awaitable[None]], is_earlier: bool
) -> None:
    made: list[Any] = []

    async def call(x: int) -> int:
        if not made:
            made.append(await make())
        if x:
            await use(made[0])
        return x

    if is_earlier:
        assert run_rows(call, [0]) == [0]
        with pytest.raises(FatalError, match=WAY_OUT):
            run_rows(call, [1], on_error="null")
    else:
        assert run_rows(call, [0, 1], on_error="null") == [0, None]


SAID = {
    "pymongo.asynchronous.mongo_client": "Cannot use AsyncMongoClient in different event loop. AsyncMongoClient uses "
    "low-level asyncio APIs that bind it to the event loop it was created on.",
    "async_lru": "alru_cache is not safe to use across event loops: this cache instance was first used with a "
    "different event loop. Use separate cache instances per event loop.",
}


@pytest.mark.parametrize("module", SAID)
def test_packages_that_say_it_in_words_of_their_own(module: str) -> None:
    """With on_error="null" all rows of a second task of a worker were NULL."""
    package: dict[str, Any] = {"__name__": module}
    exec("def check(text): raise RuntimeError(text)", package)

    async def call(x: int) -> int:
        package["check"](SAID[module])
        return x

    with pytest.raises(FatalError, match=WAY_OUT):
        run_rows(call, [1], on_error="null", retry=RETRY)


async def runs_a_loop(x: int) -> int:
    with contextlib.closing(asyncio.sleep(0, x)) as sleeping:
        return asyncio.run(sleeping)


async def runs_its_own_loop(x: int) -> int:
    with contextlib.closing(asyncio.sleep(0, x)) as sleeping:
        return asyncio.get_running_loop().run_until_complete(sleeping)


async def runs_another_loop(x: int) -> int:
    with contextlib.closing(asyncio.new_event_loop()) as loop, contextlib.closing(asyncio.sleep(0, x)) as sleeping:
        return loop.run_until_complete(sleeping)


def finds_no_loop(x: int) -> None:
    asyncio.get_event_loop()


def sets_an_alarm(x: int) -> int:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    return x


async def handles_a_signal(x: int) -> int:
    asyncio.get_running_loop().add_signal_handler(signal.SIGALRM, print)
    return x


MISUSE = {
    "await the coroutine": [runs_a_loop, runs_its_own_loop, runs_another_loop],
    "use asyncio.run": [finds_no_loop],
    "in place of an alarm": [sets_an_alarm, handles_a_signal],
}


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize(("way_out", "function"), [(way, one) for way, them in MISUSE.items() for one in them])
def test_what_no_call_of_a_task_may_do_is_told_once_and_not_for_each_row(
    function: Callable[[int], Any], way_out: str, loop: str
) -> None:
    """With on_error="null" all rows were NULL. Calls run on a loop, or in a thread; not in the main thread."""
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    bridge = start(function, loop=loop, on_error="null", retry=RETRY)
    with pytest.raises(FatalError, match=f"failed in attempt 1, .*{way_out}"):
        list(bridge.pipe(iter([batch(1, 2, 3)])))


def test_a_text_of_the_users_own_is_its_rows_here_too() -> None:
    async def call(x: int) -> int:
        raise ValueError("signal only works in main thread")

    assert run_rows(call, [1], on_error="null") == [None]


def vectorized(client: Client) -> Any:
    async def call(x: pd.Series[int]) -> pd.Series[int]:
        await client.get(0)
        return x

    return call


def async_function(client: Client) -> Any:
    class Function(AsyncFunction):
        async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
            try:
                result_future.complete([await client.get(value)])
            except RuntimeError as error:
                result_future.complete_exceptionally(error)

    return Function()


@pytest.mark.parametrize("kind", [vectorized, async_function])
def test_every_kind_of_function(kind: Callable[[Client], Any]) -> None:
    with pytest.raises(FatalError, match=WAY_OUT):
        run_rows(kind(of_an_earlier_task()), [1, 2], returnType="int", on_error="null", retry=RETRY)


def in_its_own_loop(work: Callable[[], Awaitable[Any]]) -> Any:
    """`asyncio.run`, which an event loop whose clock is virtual does not allow beside itself."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work())  # type: ignore[arg-type]
    finally:
        loop.close()


def test_a_plain_function_that_runs_a_loop_in_its_thread() -> None:
    client = of_an_earlier_task()

    def call(x: int) -> Any:
        return in_its_own_loop(lambda: client.get(x))

    with pytest.raises(FatalError, match=WAY_OUT):
        run_rows(call, [1], returnType="int", on_error="null", clock="real")


@contextlib.contextmanager
def loop_in_a_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """As libraries have it that offer a client of asyncio to plain functions."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def connected_in_vain() -> None:
    await fetched(await connection())


def waits_there(loop: asyncio.AbstractEventLoop) -> Any:
    def call(x: int) -> None:
        asyncio.run_coroutine_threadsafe(connected_in_vain(), loop).result()

    return call


def awaits_what_runs_there(loop: asyncio.AbstractEventLoop) -> Any:
    async def call(x: int) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(connected_in_vain(), loop))

    return call


def waits_for_a_loop_of_its_own(_: asyncio.AbstractEventLoop) -> Any:
    def call(x: int) -> None:
        with loop_in_a_thread() as loop:
            waits_there(loop)(x)

    return call


@pytest.mark.parametrize("kind", [waits_there, awaits_what_runs_there, waits_for_a_loop_of_its_own])
def test_an_error_of_a_loop_that_runs_in_another_thread_is_its_rows(kind: Callable[..., Any]) -> None:
    """It failed the task under every policy: its client belongs to the loop that it was used in."""
    with loop_in_a_thread() as loop:
        assert run_rows(kind(loop), [1], returnType="int", on_error="null", clock="real") == [None]


def test_a_client_of_a_loop_that_runs_in_another_thread_is_no_rows_fault_where_it_is_used() -> None:
    """asyncio itself says so, in a frame of its own: a stream waits for a future of the loop that it is of."""

    async def streamed() -> asyncio.StreamReader:
        return asyncio.StreamReader()

    with loop_in_a_thread() as loop:
        reader = asyncio.run_coroutine_threadsafe(streamed(), loop).result()

        async def call(x: int) -> bytes:
            return (await asyncio.gather(reader.readline()))[0]  # in a task of its own, which no slot drives

        with pytest.raises(FatalError, match=WAY_OUT):
            run_rows(call, [1], returnType="binary", on_error="null", clock="real")


class ServiceError(Exception):
    """Of a client, which wraps what happens to it."""


async def in_its_place(client: Client) -> None:
    try:
        await client.get(0)
    except Exception:
        raise ServiceError("Connection error.")  # noqa: B904 - as many clients do


async def hidden(client: Client) -> None:
    try:
        await client.get(0)
    except Exception:
        raise ServiceError("Connection error.") from None


async def deep(client: Client) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(client.get(0))
    except* Exception as errors:
        raise ServiceError("Connection error.") from ExceptionGroup("several", [KeyError(), errors])


@pytest.mark.parametrize("wrapped", [in_its_place, hidden, deep])
def test_clients_may_wrap_it(wrapped: Callable[[Client], Awaitable[None]]) -> None:
    client = of_an_earlier_task()

    async def call(x: int) -> None:
        await wrapped(client)

    with pytest.raises(FatalError, match=WAY_OUT):
        run_rows(call, [1], returnType="int", on_error="null", retry=RETRY)
    assert client.calls == 1


async def says(text: str) -> None:
    raise RuntimeError(text)


async def says_of_the_lock(text: str) -> None:
    raise RuntimeError(f"the lock of train 7 {text}")


async def asks_a_new_client_that_fails_too(text: str) -> None:
    client = EARLIER["client"]
    try:
        await client.get(0)
    except RuntimeError:
        await refused()


async def refused() -> None:
    raise ConnectionError("refused")


async def of_a_loop_of_its_own(text: str) -> None:
    """A loop in a thread, as libraries have it: its errors are those of rows."""
    await asyncio.sleep(0)
    raise OwnLoop().error(text)


class OwnLoop:
    def __init__(self) -> None:
        self._loop = VirtualClockLoop()
        self._loop.close()

    def error(self, text: str) -> Exception:
        try:
            raise RuntimeError(f"no such city: {text}")
        except RuntimeError as error:
            return error


@pytest.mark.parametrize(
    "raises", [says, says_of_the_lock, asks_a_new_client_that_fails_too, of_a_loop_of_its_own], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("text", ["Event loop is closed", "is bound to a different event loop"])
def test_an_error_of_the_users_own_is_its_rows_whatever_it_says(
    raises: Callable[[str], Awaitable[None]], text: str
) -> None:
    EARLIER["client"] = of_an_earlier_task()

    async def call(x: int) -> int:
        if x == 1:
            await raises(text)
        return x

    assert run_rows(call, [0, 1, 2], on_error="null") == [0, None, 2]
    with pytest.raises(AsyncUDFError) as caught:
        run_rows(call, [0, 1, 2])
    assert type(caught.value) is AsyncUDFError


def test_a_plain_function_whose_own_loop_is_closed_by_then_is_its_rows_error() -> None:
    """An error of asyncio's that comes through objects of a loop that the call has run itself."""

    async def reads_twice() -> None:
        reader = asyncio.StreamReader()
        first = asyncio.ensure_future(reader.read(1))
        await asyncio.sleep(0)
        try:
            await reader.read(1)  # "read() called while another coroutine is already waiting for incoming data"
        finally:
            first.cancel()

    def call(x: int) -> Any:
        return in_its_own_loop(reads_twice)

    assert run_rows(call, [1], returnType="int", on_error="null", clock="real") == [None]


def test_it_is_kept_in_no_store_opens_no_breaker_and_is_not_retryable() -> None:
    client, store, retryable = of_an_earlier_task(), MemoryStore(error_ttl=60), list[bool]()

    async def call(x: int) -> int:
        try:
            return await client.get(x)
        except RuntimeError as error:
            wrapped = ConnectionError("Connection error.")
            wrapped.__cause__ = error
            retryable.append(http.is_retryable(wrapped))
            raise wrapped  # noqa: B904 - it has its cause

    breaker = CircuitBreaker(window=2, failure_on=(ConnectionError,))
    for calls in (1, 2):
        with pytest.raises(FatalError, match=WAY_OUT):
            run_rows(call, range(10), on_error="null", store=store, breaker=breaker, capacity=1)
        assert client.calls == calls
    assert retryable == [False] * 2


def test_a_library_that_would_change_uvloop_is_told_of_once_and_not_for_each_row() -> None:
    """With on_error="null" all rows were NULL."""
    calls = []

    async def call(x: int) -> int:
        calls.append(x)
        raise ValueError("Can't patch loop of type <class 'uvloop.Loop'>")  # nest_asyncio.apply() on uvloop

    with pytest.raises(FatalError, match="give the function loop='asyncio'"):
        run_rows(call, range(9), on_error="null", retry=RETRY)
    assert calls == [0]
