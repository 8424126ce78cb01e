"""A task's connection to the coordinator, and its clock."""

from __future__ import annotations

import asyncio
import logging
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Self

from ..._errors.exceptions import FatalError, OptionError
from ..._errors.safe import safe_repr, without_secrets

MOST_AWAY = 30.0  # seconds that a coordinator may be away
LEASE = 4.0  # seconds that an answer holds: a killed task is forgotten within 5
LEASE_MARGIN = 0.9  # of the lease: for the task it ends before it ends on the server
ANSWER = LEASE  # seconds without an answer after which a question is asked again
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
SLOW_TRIP = 0.5  # seconds of a round trip from which on limits may not be used to the full
AWAY_AFTER = 1.0  # seconds without an answer from which on the log says so
WARN_AGAIN = 60.0  # seconds until the log repeats a warning
PASSING = "MISCONF", "NOREPLICAS", "BUSY"  # beginnings of errors that pass, or that an operator of the server mends
NEWEST_TRIP_WEIGHT = 0.3  # the weight of the newest round trip in their mean
DRIFT = 1e-4  # of the time since an answer: how far the two clocks may drift apart

logger = logging.getLogger("asyncudf")

# The functions of a task share a connection. For each loop and URL: the client, and how many use it.
_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, list[Any]]] = weakref.WeakKeyDictionary()


class Coordinator:
    """Runs scripts on the server. Of one event loop; an async context manager.

    A server that does not answer is asked again for `patience` seconds; then the task fails, for its limits cannot be
    kept without it. The namespace separates the keys of this application from those of others on the same server.
    Raises OptionError without the library redis, or for a URL that cannot be one.
    """

    # A script whose answer was lost may have run: what it granted is lost, and no task has it twice.
    #
    # trip: seconds of a round trip, a mean of the last ones
    # away_since: when the question was asked that has had no answer for a while; None while there are answers

    def __init__(self, url: str, namespace: str, *, clock: Callable[[], float], patience: float = MOST_AWAY) -> None:
        try:
            import redis.asyncio
            import redis.exceptions
        except ImportError as error:
            raise OptionError(
                'limits of the whole job need the library redis: pip install "asyncudf[coordinator]"'
            ) from error
        self._errors = errors = redis.exceptions
        self._passing = (errors.OutOfMemoryError, errors.ReadOnlyError, errors.ClusterDownError, errors.TryAgainError)
        self._told = without_secrets(url)
        self._url = url
        try:
            pool = redis.asyncio.BlockingConnectionPool.from_url(
                url,
                max_connections=1,
                timeout=None,
                decode_responses=True,
                socket_timeout=None,
                socket_connect_timeout=None,
                retry=None,
            )
        except ValueError:  # its message has the URL, and so would the traceback
            raise OptionError(f"coordinator must be the URL of a Redis server, not {safe_repr(self._told)}") from None
        self._redis = redis.asyncio.Redis.from_pool(pool)
        self._namespace = namespace
        self._scripts: dict[str, Any] = {}
        self.clock = clock
        self.time = ServerTime()
        self.trip = 0.0
        self.patience = patience
        self.away_since: float | None = None
        self._warned: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"Coordinator({self._told})"

    async def __aenter__(self) -> Self:
        client = _clients.setdefault(asyncio.get_running_loop(), {}).setdefault(self._url, [self._redis, 0])
        client[1] += 1
        self._redis = client[0]
        return self

    async def __aexit__(self, *_: object) -> None:
        clients = _clients[asyncio.get_running_loop()]
        clients[self._url][1] -= 1
        if not clients[self._url][1]:
            del clients[self._url]
            await self._redis.aclose()

    def key(self, kind: str, name: str, *, for_all: bool = False) -> str:
        """The name of a key of this namespace, or of one that all jobs on the server share."""
        # The braces put all keys on one server of a Redis cluster: a script needs all of its own there.
        return f"{{asyncudf}}:{kind}:{name}" if for_all else f"{{asyncudf}}:{self._namespace}:{kind}:{name}"

    async def run(self, script: str, keys: Sequence[str], *arguments: object) -> Any:
        """Run a script on the server; returns its answer. FatalError if there is none for `patience` seconds."""
        if script not in self._scripts:
            self._scripts[script] = self._redis.register_script(script)
        given = ["", *(f"{one:.17g}" if isinstance(one, float) else str(one) for one in arguments)]
        begun, pause = self.clock(), FIRST_PAUSE
        while True:
            try:
                # Not the client's own socket_timeout: before Python 3.12 its wait_for swallows a cancellation that
                # comes when it is done, and then the closing task waits for ever.
                async with asyncio.timeout(ANSWER):
                    sent = self.clock()
                    answer = await self._scripts[script](keys=keys, args=given)
                    self._measure(self.clock() - sent)
                    self.away_since = None
                    return answer
            except (self._errors.AuthenticationError, self._errors.NoPermissionError) as error:
                raise FatalError(f"the coordinator at {self._told} does not let us in: {error}") from None
            except (self._errors.ConnectionError, self._errors.TimeoutError, OSError, EOFError) as error:
                what, why = "has not answered", type(error).__name__
            except self._errors.ResponseError as error:
                if not (isinstance(error, self._passing) or str(error).startswith(PASSING)):
                    raise FatalError(f"the coordinator at {self._told} cannot do what it should: {error}") from None
                what, why = "has kept nothing", str(error)
            away = self.clock() - begun
            if away + pause > self.patience:
                raise FatalError(
                    f"the coordinator at {self._told} {what} for {self.patience:g} s ({why}); "
                    "without it limits of the job cannot be kept"
                )
            if away > AWAY_AFTER:
                self.away_since = begun
                waits = "the coordinator at %s %s for %.0f s (%s): calls wait, for %g s at most"
                self._warn(waits, self._told, what, away, why, self.patience)
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)

    def has_forgotten(self) -> None:
        """Warn that the server has lost a rate limit: permits that it granted no longer count."""
        self._warn(
            "the coordinator at %s has lost what it knew of a rate limit: it was started anew, or evicts keys. So that "
            "the limit holds calls wait for %g s, or for as long as the next one has to pay off what it costs",
            self._told,
            LEASE,
        )

    def _measure(self, trip: float) -> None:
        self.trip = trip if not self.trip else (1 - NEWEST_TRIP_WEIGHT) * self.trip + NEWEST_TRIP_WEIGHT * trip
        if self.trip > SLOW_TRIP:
            self._warn(
                "the coordinator at %s takes %.1f s to answer: limits of the whole job are kept, but not used to the "
                "full. It is far away, or it or this machine has too much to do",
                self._told,
                self.trip,
            )

    def _warn(self, message: str, *arguments: object) -> None:
        """Write a warning to the log, at most once a minute."""
        if self.clock() >= self._warned.get(message, -math.inf) + WARN_AGAIN:
            self._warned[message] = self.clock()
            logger.warning(message, *arguments)


class ServerTime:
    """How far the server's clock is ahead of the task's, as far as its answers show.

    The server makes an answer between the sending of the question and the arrival of the answer. So each answer bounds
    the difference of the clocks, and the fastest bounds it best.
    """

    # _least <= our time - the server's time <= _most. _most is used: a time that comes late keeps limits.

    def __init__(self) -> None:
        self._least, self._most = -math.inf, math.inf
        self._since = 0.0

    def update(self, sent: float, said: float, received: float) -> None:
        """Take an answer into account: when its question was sent, the server's time in it, when it arrived."""
        apart = DRIFT * (received - self._since)
        self._least, self._most = self._least - apart, self._most + apart
        self._since = received
        if received - said < self._least or sent - said > self._most:  # one of the clocks was set
            self._least, self._most = -math.inf, math.inf
        self._least = max(self._least, sent - said)
        self._most = min(self._most, received - said)

    @property
    def is_known(self) -> bool:
        """Whether there was an answer."""
        return self._most < math.inf

    def ours(self, time: float) -> float:
        """An upper bound of the task's time at this time of the server."""
        return time + self._most

    def theirs(self, time: float) -> float:
        """The server's time at this time of the task, as `ours` has it."""
        return time - self._most


# Redis keeps numbers as texts: 17 digits bring back the same one. The first argument is the time; only tests give it.
NOW_SCRIPT = """
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1000000
end
local function text(number) return string.format('%.17g', number) end
"""

# A server that was restarted, or another one in its place, has no data or old data, such as a replica's.
RUN = """
local info = redis.pcall('INFO', 'server')  -- not every user may ask for it
local run = type(info) == 'string' and string.match(info, 'run_id:(%w+)') or ''
"""

# For how many seconds the server has kept all that it was told, as far as is known; goes after RUN.
UPTIME = """
local stats, kept = redis.pcall('INFO', 'stats'), 0
if type(stats) == 'string' and string.match(stats, 'evicted_keys:0%s') and run ~= '' then
  kept = tonumber(string.match(info, 'uptime_in_seconds:(%d+)'))
end
"""
