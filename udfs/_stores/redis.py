"""Results in Redis, or in a server that speaks its protocol: one MGET for a batch, pipelined SETs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from .._errors.exceptions import OptionError
from .._errors.safe import safe_repr, without_secrets
from .keys import KEY_BYTES

SCHEMES = ("redis", "rediss", "unix")
SCANNED_AT_ONCE = 1000
# Seconds of silence after which a NAT or a load balancer may have dropped a connection without a sign.
SILENT_FOR = 30.0
LEAVING = 0.1  # seconds to close such a connection: its other end may not answer
COUNTING = 0.5  # seconds at most, for figures that nobody waits for
LONGEST_TTL = 10**15  # milliseconds, 30,000 years: a server adds them to its clock, and both have to fit in 63 bits
TEXTS = {"username", "password", "client_name"}  # options of a URL that redis takes as they are; beside them `ssl_...`


@dataclasses.dataclass(frozen=True)
class RedisServer:
    """A server, and the prefix of all keys on it."""

    url: str = dataclasses.field(repr=False)  # it may have a password in it
    prefix: str

    @property
    def kind(self) -> str:
        return "redis"

    def __str__(self) -> str:
        return f"in {without_secrets(self.url)}, {self.prefix}:*"

    def connect(self) -> RedisResults:
        return RedisResults(self.client(), self.prefix)

    def client(self) -> Any:
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        # Tried again once, at once: only its use shows that the server has restarted while a connection was idle.
        # More is for the option on_store_error, which knows how long a row may wait.
        return Redis.from_url(self.url, decode_responses=False, retry=Retry(NoBackoff(), 1))

    def leases(self) -> None:
        """None: a lease of a server would cost a round trip for each call."""


class RedisResults:
    # _found: hits and misses that were not sent to the server yet, which counts them for all tasks
    # _answers: whether the server has answered the last command
    # _asked_at: when it was asked last, by the loop's clock

    def __init__(self, client: Any, prefix: str) -> None:
        self._client = client
        self._prefix = f"{prefix}:".encode()
        self._is_result = re.compile(re.escape(self._prefix) + b"[0-9a-f]{%d}" % (2 * KEY_BYTES)).fullmatch
        self._counts = f"{prefix}:asyncudf.counts".encode()  # no key of a result, and most likely of no other program
        self._found = {"hits": 0, "misses": 0}
        self._answers = True
        self._asked_at = 0.0

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        if not keys:
            return []
        values: list[bytes | None] = await self._ask(self._client.mget(self._names_of(keys)))
        misses = values.count(None)
        self._found["hits"] += len(values) - misses
        self._found["misses"] += misses
        return values

    async def put_many(self, items: Mapping[bytes, bytes], ttl: float | None) -> None:
        if not items:
            return
        names = dict(zip(self._names_of(items), items.values(), strict=True))
        if ttl is None:
            await self._ask(self._client.mset(names))
            return
        ends = int(min(max(1, ttl * 1000), LONGEST_TTL))
        await self._ask_all([("SET", name, value, "PX", ends) for name, value in names.items()])

    async def close(self) -> None:
        try:
            if any(self._found.values()) and self._answers:
                async with asyncio.timeout(COUNTING):
                    await self._ask_all([("HINCRBY", self._counts, *count) for count in self._found.items()])
        except Exception:  # these are figures for people: a server that is gone must not fail a task for them
            pass
        finally:
            await self._client.aclose()

    async def info(self) -> dict[str, int]:
        entries = size = 0
        async for names in self._names():
            size += sum(await self._ask_all([("STRLEN", name) for name in names]))
            entries += len(names)
        counted = await self._client.hmget(self._counts, list(self._found))
        found = zip(self._found.items(), counted, strict=True)
        return {"entries": entries, "bytes": size, **{name: new + int(old or 0) for (name, new), old in found}}

    async def delete(self, keys: Sequence[bytes]) -> None:
        if keys:
            await self._client.unlink(*self._names_of(keys))

    async def clear(self) -> None:
        async for names in self._names():
            await self._client.unlink(*names)
        await self._client.delete(self._counts)
        self._found = dict.fromkeys(self._found, 0)

    async def _ask(self, answer: Awaitable[Any]) -> Any:
        self._answers = False  # until it has: it may fail, or be cancelled
        idle_since, self._asked_at = self._asked_at, asyncio.get_running_loop().time()
        if self._asked_at > idle_since + SILENT_FOR:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(LEAVING):
                    await self._client.connection_pool.disconnect(inuse_connections=False)
        found = await answer
        self._answers = True
        return found

    async def _ask_all(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        async with self._client.pipeline(transaction=False) as pipeline:
            for command in commands:
                pipeline.execute_command(*command)
            # What a pipeline itself raises has the command in it, and so the value.
            answers: list[Any] = await self._ask(pipeline.execute(raise_on_error=False))
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    def _names_of(self, keys: Iterable[bytes]) -> list[bytes]:
        # Hexadecimal, so that people can look for them; all at once, as it is done for each row.
        return [*map(self._prefix.__add__, b"".join(keys).hex(" ", KEY_BYTES).encode().split())]

    async def _names(self) -> AsyncIterator[list[bytes]]:
        """The names of all results, some at a time; a name may come twice while others write."""
        pattern = re.sub(rb"([*?\[\]\\^-])", rb"\\\1", self._prefix) + b"?" * (2 * KEY_BYTES)
        cursor = 0
        while True:
            cursor, names = await self._client.scan(cursor, match=pattern, count=SCANNED_AT_ONCE)
            # A set: SCAN may give a name twice. Names of other programs may begin like ours.
            if ours := {name for name in names if self._is_result(name)}:
                yield list(ours)
            if not cursor:
                return


def checked_url(url: str, option: str = "url") -> str:
    """Check the URL of a server, the value of this option; OptionError, without a part that could be of a password."""
    if not isinstance(url, str):
        raise OptionError(f"{option} must be a text such as 'redis://localhost:6379/0', not {safe_repr(url)}")
    try:
        parts = urlsplit(url)
        is_unix = parts.scheme == "unix"
        is_url = parts.scheme in SCHEMES and parts.port != 0 and bool(parts.path if is_unix else parts.hostname)
        is_url = is_url and (is_unix or "@" not in url[url.index(parts.netloc) + len(parts.netloc) :])
    except ValueError:  # a port that is no number: so a password with a slash in it is read
        parts, is_unix, is_url = urlsplit(""), False, False
    if not is_url:
        raise OptionError(
            f"{option} must begin with redis://, rediss:// or unix://, and name a host; in a password "
            "write / as %2F, # as %23, ? as %3F and @ as %40"
        )
    given = parse_qs(parts.query, keep_blank_values=True)
    has_path = not is_unix and parts.path not in ("", "/")
    if has_path and not re.fullmatch(r"/\d{1,9}/?", parts.path):
        raise OptionError(
            f"{option} must end with the number of a database, such as /0; what is behind the host is none"
        )
    if parts.fragment:
        raise OptionError(f"{option} has a # behind which all would be left out; in a password write # as %23")
    for name, values in given.items():
        if len(values) > 1:
            raise OptionError(f"{option} has the option {name} {len(values)} times; leave all but one out")
    if given:
        _check_by_redis(url, given, option)
    return url


def _check_by_redis(url: str, given: Iterable[str], option: str) -> None:
    """Have redis read the URL, and make a connection that does not connect yet; no value is shown."""
    from redis.asyncio import ConnectionPool
    from redis.asyncio.connection import URL_QUERY_ARGUMENT_PARSERS

    known = TEXTS | URL_QUERY_ARGUMENT_PARSERS.keys()
    for name in given:  # some others would be read, and break a store: `decode_responses`
        if name not in known and not name.startswith("ssl_"):
            raise OptionError(
                f"{option} has an option {safe_repr(name)} that a store cannot take; it can {', '.join(sorted(known))}"
            )
    try:
        ConnectionPool.from_url(url).make_connection()  # type: ignore[no-untyped-call]
    except Exception as error:
        raise OptionError(f"{option} has an option that redis does not take: {error}") from None
