"""Where the hosts of a session are: remembered, and looked up again when a request has not got through."""

from __future__ import annotations

import asyncio
import math
import socket
from time import monotonic
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import DefaultResolver

LOOK_AGAIN = 1.0  # seconds between two look-ups of a host that does not answer
HOSTS = 1_000  # remembered


class _Host:
    lookup: asyncio.Future[list[ResolveResult]] | None = None
    until = -math.inf  # when it is looked up again
    forgotten = -math.inf
    turn = 0  # of the address with which the next connection begins


class Addresses(AbstractResolver):
    """Remembers what a resolver has found, for so many seconds, or until a request does not get through.

    It takes the place of aiohttp's own memory, which can only be emptied, and then begins with a host's first address
    again, whether or not that one answers. Here each connection begins with the next address.
    """

    def __init__(self, resolver: AbstractResolver | None, seconds: float) -> None:
        self._resolver = DefaultResolver() if resolver is None else resolver
        self._is_own = resolver is None
        self._seconds = seconds
        self._hosts: dict[tuple[Any, ...], _Host] = {}

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        known = self._hosts.get((host, port, family))
        if known is None:
            if len(self._hosts) >= HOSTS:
                del self._hosts[next(iter(self._hosts))]
            known = self._hosts[host, port, family] = _Host()
        now, lookup = monotonic(), known.lookup
        if lookup is None or now >= known.until or (lookup.done() and _has_failed(lookup)):
            known.until = now + self._seconds
            known.lookup = lookup = asyncio.ensure_future(self._resolver.resolve(host, port, family=family))
            lookup.add_done_callback(_has_failed)  # or asyncio would log an error for which no call waits any more
        turn = known.turn
        known.turn += 1
        found = await asyncio.shield(lookup)  # other calls wait for it too
        first = turn % len(found) if found else 0
        return found[first:] + found[:first]

    def forget(self, host: str | None) -> None:
        """Have the next connection look a host up, once in `LOOK_AGAIN`: a service that is down has many calls."""
        now = monotonic()
        for (name, _, _), known in self._hosts.items():
            if name == host and now >= known.forgotten + LOOK_AGAIN:
                known.until, known.forgotten = -math.inf, now

    async def close(self) -> None:
        for known in self._hosts.values():
            if known.lookup is not None:
                known.lookup.cancel()
        if self._is_own:
            await self._resolver.close()


def _has_failed(lookup: asyncio.Future[Any]) -> bool:
    return lookup.cancelled() or lookup.exception() is not None
