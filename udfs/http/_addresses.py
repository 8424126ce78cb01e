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
CLOSING = 1.0  # seconds for look-ups to end that are cancelled

Lookup = asyncio.Future[list[ResolveResult]]


class _Host:
    lookup: Lookup | None = None
    until = math.inf  # when what it has found counts no more
    forgotten = -math.inf  # when that was ended before
    turn = 0  # of the address with which the next connection begins


class Addresses(AbstractResolver):
    """Remembers what a resolver has found, for so many seconds, or until a request does not get through.

    It takes the place of aiohttp's own memory, which can only be emptied, and then begins with a host's first address
    again, whether or not that one answers. Here each connection begins with the next address. Calls share a look-up
    that is under way, and it goes on if one of them is cancelled: it may take longer than an attempt.
    """

    def __init__(self, resolver: AbstractResolver | None, seconds: float) -> None:
        self._resolver = DefaultResolver() if resolver is None else resolver
        self._is_own = resolver is None
        self._seconds = seconds
        self._hosts: dict[tuple[Any, ...], _Host] = {}
        self._running: set[Lookup] = set()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        known = self._hosts.get((host, port, family))
        if known is None:
            if len(self._hosts) >= HOSTS:
                del self._hosts[next(iter(self._hosts))]
            known = self._hosts[host, port, family] = _Host()
        lookup = known.lookup
        if lookup is None or (lookup.done() and (monotonic() >= known.until or _has_failed(lookup))):
            lookup = known.lookup = asyncio.ensure_future(self._looked_up(known, host, port, family))
            self._running.add(lookup)
            lookup.add_done_callback(self._running.discard)
            lookup.add_done_callback(_has_failed)  # or asyncio would log an error for which no call waits any more
        turn = known.turn
        known.turn += 1
        found = await asyncio.shield(lookup)
        first = turn % len(found) if found else 0
        return found[first:] + found[:first]

    async def _looked_up(self, known: _Host, host: str, port: int, family: socket.AddressFamily) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family=family)
        known.until = monotonic() + self._seconds
        return found

    def forget(self, host: str | None) -> None:
        """Have the next connection look a host up, or any if it is None: once in `LOOK_AGAIN`, as many calls may fail.

        A look-up that is under way stays.
        """
        now = monotonic()
        for (name, _, _), known in self._hosts.items():
            is_known = known.lookup is not None and known.lookup.done()
            if host in (None, name) and is_known and now >= known.forgotten + LOOK_AGAIN:
                known.until, known.forgotten = -math.inf, now

    async def close(self) -> None:
        for lookup in (running := [*self._running]):
            lookup.cancel()
        if running:  # a resolver of the user's may ignore that it is cancelled
            await asyncio.wait(running, timeout=CLOSING)
        if self._is_own:
            await self._resolver.close()


def _has_failed(lookup: Lookup) -> bool:
    return lookup.cancelled() or lookup.exception() is not None or not lookup.result()
