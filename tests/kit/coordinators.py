"""Coordinators for tests: servers, tasks that talk to them, and what is left on them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol
from unittest import mock
from urllib.parse import urlsplit

from asyncudf import FatalError, RateLimit
from asyncudf._limits.coordinator.client import Coordinator
from asyncudf._limits.coordinator.link import TaskLink
from asyncudf._limits.coordinator.server import CoordinatorServer
from asyncudf._limits.rates.job import SharedPermits, open_limits
from asyncudf._spark import coordinators
from asyncudf.testing import VirtualClockLoop

__all__ = (
    "CutOff",
    "OnGivenTime",
    "Scripts",
    "Server",
    "begin_calls",
    "coordinator",
    "drivers_servers",
    "fail",
    "leased",
    "linked",
    "run_on_given_time",
    "space_of_its_own",
    "start_server",
    "start_server_again",
    "time_to_live",
    "watchdog_of",
)


_NUMBERS = itertools.count()
SERVER_TIME = 1.7e9  # seconds since 1970, when a loop on virtual time begins


class Server(Protocol):
    """A coordinator's server; its URL has the password."""

    is_closed: bool

    @property
    def url(self) -> str: ...
    def is_ready(self) -> bool: ...
    def close(self) -> None: ...


def start_server(host: str = "127.0.0.1") -> Server:
    """A server that the test ends."""
    return CoordinatorServer(host)


def start_server_again(first: Server) -> Server:
    """A server without a memory, where a closed one was and with its password, as if that had come back."""
    where = urlsplit(first.url)
    with (
        mock.patch("asyncudf._limits.coordinator.server._free_port", return_value=where.port),
        mock.patch("secrets.token_hex", return_value=where.password),
    ):
        return CoordinatorServer()


def watchdog_of(server: Server) -> Any:
    """The process that ends the server with the driver."""
    assert isinstance(server, CoordinatorServer)
    return server._watchdog


def drivers_servers() -> AbstractContextManager[dict[Any, Server]]:
    """The servers that this process starts as a driver in the block, which begins with none; it closes none of them."""
    return mock.patch.object(coordinators, "_servers", {})


def space_of_its_own() -> str:
    """Keys that no other test has."""
    return f"test{next(_NUMBERS)}"


def coordinator(server: Server, space: str, **options: Any) -> Coordinator:
    """A task's connection, on real time."""
    return Coordinator(server.url, space, clock=time.monotonic, **options)


class CutOff(Coordinator):
    """A task's connection whose first questions are never answered.

    Args:
        lost: how many.
        gives_up: they fail, as if the server had not answered for as long as it may.
    """

    def __init__(self, server: Server, *, lost: int = 1, gives_up: bool = False) -> None:
        super().__init__(server.url, space_of_its_own(), clock=asyncio.get_running_loop().time)
        self.lost, self.gives_up = lost, gives_up
        self.asked = 0

    async def run(self, script: str, keys: Any, *arguments: object) -> Any:
        self.asked += 1
        if self.asked > self.lost:
            return await super().run(script, keys, *arguments)
        if self.gives_up:
            raise FatalError("nobody answers")
        return await asyncio.Event().wait()


def fail(error: BaseException) -> None:
    """For tasks that must not fail."""
    raise AssertionError(error)


def linked(
    connection: Coordinator,
    task: str = "t",
    wake: Callable[[], object] = lambda: None,
    fail: Callable[[BaseException], object] = fail,
) -> TaskLink:
    """A task's link over this connection."""
    return TaskLink(connection, task, wake, fail)  # type: ignore[arg-type]  # what they return does not matter


async def leased(
    connection: Coordinator, limits: Sequence[tuple[str, RateLimit]], *, is_open: bool = True
) -> tuple[SharedPermits, asyncio.Event]:
    """A task's permits of limits that it opens, and the event that wakes it."""
    look = asyncio.Event()
    if is_open:
        await open_limits(connection, limits)
    return SharedPermits(linked(connection, "t", look.set), limits), look


async def begin_calls(
    permits: SharedPermits,
    look: asyncio.Event,
    begun: list[float],
    *,
    cost: float = 1.0,
    calls: float = math.inf,
    seconds: float | None = None,
) -> None:
    """Begin so many calls within that time, each as soon as it may, and note when they began."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while calls:
                if permits.take([cost]):
                    begun.append(permits._clock())
                    calls -= 1
                else:
                    look.clear()
                    await look.wait()


async def time_to_live(client: Any, space: str) -> dict[str, int]:
    """Of each kind of key that a space has on the server, the milliseconds that it lives on."""
    names = await client.keys(f"*{space}*")
    return {name.split(":")[2]: await client.pttl(name) for name in names}


# Goes before a script whose time is given: its keys then expire by that time and not by the server's clock, on which a
# busy machine may let seconds pass between two scripts that are a millisecond apart. Each key has a second one beside
# it, with the time at which it ends.
EXPIRES_BY_GIVEN_TIME = """
local now, server = tonumber(ARGV[1]), redis
local redis = setmetatable({}, {__index = server})
local function ends_of(key) return tonumber(server.call('GET', key .. ':ends') or '') end
local function expire(key, milliseconds)
  return server.call('SET', key .. ':ends', string.format('%.17g', now + milliseconds / 1000))
end
for _, key in ipairs(KEYS) do
  if (ends_of(key) or math.huge) <= now then server.call('DEL', key, key .. ':ends') end
end
function redis.call(command, key, ...)
  local given = {...}
  if command == 'PEXPIRE' then return expire(key, given[1]) end
  if command == 'PTTL' then return 1000 * ((ends_of(key) or now) - now) end
  if command == 'SET' and given[2] == 'PX' then
    expire(key, given[3])
    return server.call('SET', key, given[1])
  end
  return server.call(command, key, ...)
end
"""


class Scripts:
    """Runs scripts at times that a test gives."""

    def __init__(self, server: Server) -> None:
        import redis

        self._redis = redis.Redis.from_url(server.url, decode_responses=True)
        self.space = space_of_its_own()

    def run(self, script: str, now: float, keys: list[str], *arguments: object) -> Any:
        """As `Coordinator.run`, at that time; what is kept for some seconds is kept for seconds of the given time."""
        names = [f"{{{self.space}}}:{key}" for key in keys]
        texts = [f"{one:.17g}" if isinstance(one, float) else str(one) for one in arguments]
        return self._redis.eval(EXPIRES_BY_GIVEN_TIME + script, len(names), *names, f"{now:.17g}", *texts)

    def forget(self) -> None:
        """The server has lost its memory."""
        self._redis.flushall()

    def close(self) -> None:
        self._redis.close()


class OnGivenTime(Coordinator):
    """A task's connection for a loop on virtual time, which is the server's time too.

    Args:
        trip: seconds there and back.
        space: of the job's keys; one of its own unless given.
    """

    def __init__(self, server: Server, trip: float = 0.001, space: str | None = None) -> None:
        super().__init__(server.url, space or space_of_its_own(), clock=asyncio.get_running_loop().time)
        self.on_given_time = Scripts(server)
        if space is not None:
            self.on_given_time.space = space
        self._half = trip / 2

    async def __aexit__(self, *_: object) -> None:
        self.on_given_time.close()
        await super().__aexit__()

    async def run(self, script: str, keys: Any, *arguments: object) -> Any:
        await asyncio.sleep(self._half)
        answer = self.on_given_time.run(script, SERVER_TIME + self.clock(), keys, *arguments)
        await asyncio.sleep(self._half)
        self._measure(2 * self._half)
        return answer


def run_on_given_time(job: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Run it on a loop on virtual time: how busy the machine is changes nothing."""
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        runner.run(job())
