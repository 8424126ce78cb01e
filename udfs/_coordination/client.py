"""A task's connection to the coordinator, which may be away for a while, but never be left out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self

from .._errors.exceptions import FatalError, OptionError
from .._text.safe import safe_repr
from .._text.urls import without_secrets
from .server_time import ServerTime

__all__ = ("GOODBYE", "LEASE", "Coordinator")


PATIENCE = 30.0  # seconds that a coordinator may be away
GOODBYE = 1.0  # seconds that a task that ends waits for it
LEASE = 4.0  # seconds that what it has said holds: a task that is killed is forgotten before 5 are over
ANSWER = LEASE  # seconds within which it answers, or is away
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
SLOW = 0.5  # seconds of a round trip from which on limits may not be used to the full
AWAY = 1.0  # seconds without an answer from which on the log says so
WARN_AGAIN = 60.0  # seconds until the log says the same again
PASSING = "MISCONF", "NOREPLICAS", "BUSY"  # of errors that end by themselves, or when somebody mends them
NEWEST = 0.3  # the weight of the newest round trip in their mean

logger = logging.getLogger("asyncudf")

# The functions of a task share a connection: of each loop and URL the client, and how many use it.
_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, list[Any]]] = weakref.WeakKeyDictionary()


class Coordinator:
    """Runs scripts on the server. Of one event loop; an async context manager.

    Args:
        url: with the password.
        namespace: before the names of all keys: what belongs together, and to nobody else on the same server.
        clock: seconds, of the task.
        patience: seconds after which a server that does not answer fails the task.

    Raises:
        OptionError: the library redis is missing, or the URL cannot be one.
    """

    # A script that was cut off may have run: what it has granted is lost, and nobody has it twice. Failures may be
    # counted twice; a budget then ends a little early, in a job whose network has failed.
    #
    # trip: seconds of a round trip, the mean of the last ones

    def __init__(self, url: str, namespace: str, *, clock: Callable[[], float], patience: float = PATIENCE) -> None:
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
        self._patience = patience
        self.clock = clock
        self.time = ServerTime()
        self.trip = 0.0
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
        """The name of a key: of this namespace, or one that all jobs on the server share."""
        # In braces: where several servers share the keys, a script finds all of its own on one.
        return f"{{asyncudf}}:{kind}:{name}" if for_all else f"{{asyncudf}}:{self._namespace}:{kind}:{name}"

    async def run(self, script: str, keys: Sequence[str], *arguments: object) -> Any:
        """What a script answers that decides by the server's time.

        Raises:
            FatalError: the server does not answer for as long as it may, or does not let us in.
        """
        if script not in self._scripts:
            self._scripts[script] = self._redis.register_script(script)
        given = ["", *(f"{one:.17g}" if isinstance(one, float) else str(one) for one in arguments)]
        begun, pause = self.clock(), FIRST_PAUSE
        while True:
            try:
                # Not by the client's own socket_timeout: before Python 3.12 its wait_for swallows a cancellation that
                # comes when it is done, and the task that waits for our end would wait for ever.
                async with asyncio.timeout(ANSWER):
                    sent = self.clock()
                    answer = await self._scripts[script](keys=keys, args=given)
                    self._measure(self.clock() - sent)
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
            if away + pause > self._patience:
                raise FatalError(
                    f"the coordinator at {self._told} {what} for {self._patience:g} s ({why}); "
                    "without it limits of the job cannot be kept"
                )
            if away > AWAY:
                waits = "the coordinator at %s %s for %.0f s (%s): calls wait, for %g s at most"
                self._warn(waits, self._told, what, away, why, self._patience)
            await asyncio.sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)

    def has_forgotten(self) -> None:
        """It has lost what it knew of a limit: permits that were granted there count no more."""
        self._warn(
            "the coordinator at %s has lost what it knew of a rate limit: it was started anew, or evicts keys. So that "
            "the limit holds calls wait for %g s, or for as long as the next one has to pay off what it costs",
            self._told,
            LEASE,
        )

    async def send_last(self, message: Awaitable[object]) -> None:
        """What a task says when it ends: good to know for others, who find out by themselves if it does not arrive."""
        with contextlib.suppress(FatalError, TimeoutError):
            async with asyncio.timeout(GOODBYE):
                await message

    def _measure(self, trip: float) -> None:
        self.trip = trip if not self.trip else (1 - NEWEST) * self.trip + NEWEST * trip
        if self.trip > SLOW:
            self._warn(
                "the coordinator at %s takes %.1f s to answer: limits of the whole job are kept, but not used to the "
                "full. It is too far away, or has too much to do",
                self._told,
                self.trip,
            )

    def _warn(self, message: str, *arguments: object) -> None:
        """Write it to the log, but not again and again."""
        if self.clock() >= self._warned.get(message, -math.inf) + WARN_AGAIN:
            self._warned[message] = self.clock()
            logger.warning(message, *arguments)
