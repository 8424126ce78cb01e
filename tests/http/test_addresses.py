"""Where the hosts of a session are: how long that is remembered, and with which address a connection begins."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import pytest
from aiohttp.abc import AbstractResolver

from asyncudf.http._addresses import CLOSING, HOSTS, Addresses
from asyncudf.testing import VirtualClockLoop


class Resolver(AbstractResolver):
    """Says that each host has two addresses, once it may."""

    def __init__(self) -> None:
        self.asked, self.may_answer, self.error = list[str](), asyncio.Event(), None
        self.may_answer.set()

    async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> Any:
        self.asked.append(host)
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return [{"host": "10.0.0.1"}, {"host": "10.0.0.2"}]

    async def close(self) -> None:
        raise AssertionError("it belongs to the user")


async def first(addresses: Addresses, host: str = "service.test") -> str:
    """The address with which a connection begins."""
    found = await addresses.resolve(host)
    assert {one["host"] for one in found} == {"10.0.0.1", "10.0.0.2"}
    return found[0]["host"][-1]


def test_a_connection_begins_with_the_next_address_also_when_they_are_looked_up_again() -> None:
    """The first one may accept requests and answer none: then each attempt of each row went there."""

    async def main() -> None:
        addresses = Addresses(resolver := Resolver(), 60.0)
        assert [await first(addresses) for _ in range(3)] == ["1", "2", "1"]
        addresses.forget("service.test")
        assert [await first(addresses) for _ in range(2)] == ["2", "1"]
        assert len(resolver.asked) == 2
        await addresses.close()

    asyncio.run(main())


def test_a_host_that_is_forgotten_while_calls_wait_for_it_is_found_by_all() -> None:
    """aiohttp raises a KeyError there, which is no error that passes."""

    async def main() -> None:
        addresses = Addresses(resolver := Resolver(), 60.0)
        resolver.may_answer.clear()
        calls = [asyncio.ensure_future(first(addresses)) for _ in range(4)]
        await asyncio.sleep(0)
        resolver.may_answer.set()
        addresses.forget("service.test")
        calls[0].cancel()  # whose look-up it was
        assert await asyncio.gather(*calls[1:]) == ["2", "1", "2"]
        assert len(resolver.asked) == 1
        await addresses.close()

    asyncio.run(main())


def test_only_the_host_that_does_not_answer_is_looked_up_again_and_once_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr("asyncudf.http._addresses.monotonic", lambda: now)

    async def main() -> None:
        nonlocal now
        addresses = Addresses(resolver := Resolver(), 60.0)
        for _ in range(10):
            await first(addresses), await first(addresses, "other.test")
            addresses.forget("service.test")
        assert resolver.asked == ["service.test", "other.test", "service.test"]
        now += 1.0
        addresses.forget("service.test")
        await first(addresses), await first(addresses, "other.test")
        assert resolver.asked[3:] == ["service.test"]
        now += 60.0
        await first(addresses, "other.test")
        assert resolver.asked[4:] == ["other.test"]
        await addresses.close()

    asyncio.run(main())


def test_an_error_is_not_remembered() -> None:
    async def main() -> None:
        addresses = Addresses(resolver := Resolver(), 60.0)
        resolver.error = OSError("no such name")
        calls = await asyncio.gather(first(addresses), first(addresses), return_exceptions=True)
        assert [str(error) for error in calls] == ["no such name"] * 2
        resolver.error = None
        assert await first(addresses) == "1"
        assert len(resolver.asked) == 2
        await addresses.close()

    asyncio.run(main())


def test_so_many_hosts_are_remembered() -> None:
    async def main() -> None:
        addresses = Addresses(resolver := Resolver(), 60.0)
        for number in range(HOSTS + 1):
            await first(addresses, f"{number}.test")
        await first(addresses, "1.test"), await first(addresses, "0.test")
        assert resolver.asked[HOSTS + 1 :] == ["0.test"]
        await addresses.close()

    asyncio.run(main())


def test_a_look_up_that_takes_longer_than_an_attempt_serves_the_next_one() -> None:
    """Each attempt began one anew, which met the same end."""

    async def main() -> None:
        addresses = Addresses(resolver := Resolver(), 60.0)
        resolver.may_answer.clear()
        attempt = asyncio.ensure_future(first(addresses))
        await asyncio.sleep(0)
        attempt.cancel()
        addresses.forget(None)
        attempt = asyncio.ensure_future(first(addresses))
        await asyncio.sleep(0)
        resolver.may_answer.set()
        assert await attempt in ("1", "2")
        assert len(resolver.asked) == 1
        await addresses.close()

    asyncio.run(main())


def test_nothing_is_remembered_for_no_seconds_and_any_host_can_be_forgotten() -> None:
    async def main() -> None:
        for seconds, asked in ((0.0, 2), (60.0, 1)):
            addresses = Addresses(resolver := Resolver(), seconds)
            await first(addresses), await first(addresses)
            assert len(resolver.asked) == asked
            addresses.forget(None)
            await first(addresses)
            assert len(resolver.asked) == asked + 1
            await addresses.close()

    asyncio.run(main())


def test_closing_ends_what_is_looked_up() -> None:
    async def main() -> None:
        addresses = Addresses(resolver := Resolver(), 60.0)
        resolver.may_answer.clear()
        call = asyncio.ensure_future(first(addresses))
        await asyncio.sleep(0)
        await addresses.close()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(main())


def test_closing_does_not_wait_for_a_resolver_that_ignores_it() -> None:
    begun = asyncio.Event()

    class Deaf(Resolver):
        async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_INET) -> Any:
            begun.set()
            with contextlib.suppress(asyncio.CancelledError):
                await self.may_answer.wait()
            await asyncio.sleep(3600)

    async def main() -> float:
        loop = asyncio.get_running_loop()
        addresses, began = Addresses(deaf := Deaf(), 60.0), loop.time()
        deaf.may_answer.clear()
        call = asyncio.ensure_future(first(addresses))
        await begun.wait()
        await addresses.close()
        call.cancel()
        return loop.time() - began

    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        assert runner.run(main()) == CLOSING
