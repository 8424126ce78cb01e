"""A coordinator of our own is private, and ends with the driver, whatever ends that."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import math
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis

from asyncudf import OptionError
from asyncudf._limits.coordinator.client import Coordinator
from asyncudf._limits.coordinator.server import WATCHDOG, CoordinatorServer, _executable
from tests.kit.coordinators import Server, coordinator, space_of_its_own, watchdog_of
from tests.kit.errors import task_fails
from tests.kit.forgetful import Forgetful

pytestmark = pytest.mark.services

SILENT: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}
DRIVER = """
import os, sys, time
from asyncudf._limits.coordinator.server import CoordinatorServer
server = CoordinatorServer()
if "fork" in sys.argv and os.fork() == 0:
    time.sleep(60)
print(server.url, server._watchdog.pid, flush=True)
time.sleep(60)
"""


def address_of(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def is_there(url: str) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(address_of(url), timeout=1.0):
        return True
    return False


def ends_within(url: str, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while is_there(url) and time.monotonic() < end:
        time.sleep(0.02)
    return not is_there(url)


def test_it_ends_when_it_is_closed() -> None:
    """Within a moment; a second time does nothing."""
    server = CoordinatorServer()
    assert is_there(server.url)
    server.close()
    assert ends_within(server.url, 10.0)
    server.close()


def test_nothing_of_it_stays_when_it_is_closed() -> None:
    """The end of its pipe stayed for as long as the driver, for a forked process to close."""

    def pipes() -> int:
        gc.collect()
        return sum(issubclass(type(one), io.BufferedWriter) for one in gc.get_objects())

    CoordinatorServer().close()
    before = pipes()
    CoordinatorServer().close()
    assert pipes() == before


def test_it_ends_when_it_is_closed_though_its_watchdog_was_killed() -> None:
    """By somebody who kills what he does not know."""
    server = CoordinatorServer()
    os.kill(watchdog_of(server).pid, signal.SIGKILL)
    server.close()
    assert ends_within(server.url, 10.0)


def test_a_server_that_is_killed_begins_anew_at_the_same_address() -> None:
    """With the same password, and without a memory; as often as it happens."""
    with contextlib.closing(CoordinatorServer()) as server:
        url = server.url
        for _ in range(2):
            with redis.Redis.from_url(url) as connection:
                assert connection.get("x") is None
                connection.set("x", 1)
                process: Any = connection.info("server")
            os.kill(process["process_id"], signal.SIGKILL)
            assert ends_within(url, 10.0)
            assert server.is_ready()
        assert server.url == url


def test_a_port_that_somebody_else_has_taken_is_not_ready() -> None:
    """He is told so at the first word that is wrong; then another server is due."""
    server = CoordinatorServer()
    server.close()
    assert ends_within(server.url, 10.0)
    stranger = subprocess.Popen([_executable(), "--port", str(address_of(server.url)[1]), "--save", ""], **SILENT)
    try:
        while not is_there(server.url):
            assert stranger.poll() is None
        assert not server.is_ready()
    finally:
        stranger.kill()
        stranger.wait()


def test_without_its_configuration_no_server_is_started() -> None:
    """A driver may be killed in between: a server that it could not configure would let everybody in."""
    watchdog = subprocess.run(["/bin/sh", "-c", WATCHDOG, "/no/such/server"], input=b"", timeout=10, **SILENT)
    assert watchdog.returncode == 0


@pytest.mark.parametrize("host", ["203.0.113.1", "no-such-host.invalid"])
def test_an_address_of_another_machine_is_an_error_at_once(host: str) -> None:
    """An OSError, which its caller explains."""
    with pytest.raises(OSError, match=r"assign|not known|resolution|resolve"):
        CoordinatorServer(host)


@pytest.mark.parametrize(
    ("number", "way"),
    [(signal.SIGTERM, "plain"), *((signal.SIGKILL, way) for way in ("plain", "fork", "without its watchdog"))],
)
def test_it_ends_with_the_driver(number: signal.Signals, way: str) -> None:
    """Also with one that is killed and can do nothing about it, and whose forked children live on; and if somebody has
    killed the shell that was to see to that."""
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, way], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert driver.stdout is not None
        url, watchdog = driver.stdout.readline().split()
        assert is_there(url)
        if way == "without its watchdog":
            os.kill(int(watchdog), signal.SIGKILL)
        driver.send_signal(number)
        driver.wait(10)
        assert ends_within(url, 10.0)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.stdout.close()  # type: ignore[union-attr]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="shows the commands of all processes on Linux")
def test_the_password_is_in_no_command(server: Server) -> None:
    """Nor in what the server shows of itself."""
    password = urlsplit(server.url).password
    assert password is not None
    assert password not in repr(server)
    for path in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            with contextlib.suppress(OSError):
                assert password.encode() not in (path / name).read_bytes()


def without_password(url: str) -> str:
    host, port = address_of(url)
    return f"redis://:guessed@{host}:{port}/0"


async def prepared(connection: Coordinator) -> None:
    async with connection:
        await connection.run("return 1", [])


def test_who_does_not_know_the_password_is_told_so_at_once(server: Server) -> None:
    """And not after half a minute of trying; the error has neither the right password nor the wrong one."""
    connection = Coordinator(
        without_password(server.url), space_of_its_own(), clock=time.monotonic, patience=math.inf
    )  # what it tries again it tries for ever
    with task_fails(match="does not let us in") as caught:
        asyncio.run(prepared(connection))
    assert "guessed" not in f"{caught.value}{caught.value.__cause__}{connection!r}"


def test_a_server_that_is_away_is_waited_for_and_then_named() -> None:
    """Without the coordinator nothing is decided; the error names it, without its password."""
    server = CoordinatorServer()
    server.close()
    connection = coordinator(server, space_of_its_own(), patience=0.4)
    began = time.monotonic()
    with task_fails(match=r"at redis://\*\*\*@127.0.0.1:\d+/0 has not answered for 0.4 s") as caught:
        asyncio.run(prepared(connection))
    assert time.monotonic() - began > 0.2
    assert caught.value.__cause__ is None


async def test_a_connection_that_something_on_the_way_has_forgotten(
    monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    """After an hour of silence, in one long call, the task asks again over another connection."""
    monkeypatch.setattr("asyncudf._limits.coordinator.client.ANSWER", 0.2)
    async with Forgetful(urlsplit(server.url).port or 0) as way:
        url = server.url.replace(f":{way.target}", f":{way.port}")
        async with Coordinator(url, space_of_its_own(), clock=time.monotonic, patience=20.0) as connection:
            assert await connection.run("return 1", []) == 1
            way.forget()
            assert await connection.run("return 2", []) == 2
            assert way.connections == 2


def test_a_url_that_is_none_is_refused_without_showing_it() -> None:
    """Its password may be right all the same."""
    with pytest.raises(OptionError, match="coordinator must be the URL of a Redis server") as caught:
        Coordinator("http://:secret@host:1", "space", clock=time.monotonic)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
