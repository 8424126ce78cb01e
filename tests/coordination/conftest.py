"""One server for the tests that do not end it, and connections to it, on given and on real time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from asyncudf._limits.coordinator.client import Coordinator
from asyncudf.testing import VirtualClockLoop
from tests.kit.coordinators import OnGivenTime, Scripts, Server, coordinator, space_of_its_own, start_server
from tests.kit.loops import entered


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with contextlib.closing(start_server()) as started:
        yield started


@pytest.fixture
def scripts(server: Server) -> Iterator[Scripts]:
    with contextlib.closing(Scripts(server)) as connected:
        yield connected


@pytest.fixture
def given_time() -> Iterator[asyncio.Runner]:
    """Of a test that is a coroutine: how busy the machine is changes nothing."""
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        yield runner


@pytest.fixture
def connection(server: Server, given_time: asyncio.Runner) -> Iterator[OnGivenTime]:
    """A task's, on given time."""
    with entered(given_time, lambda: OnGivenTime(server)) as connected:
        yield connected


@pytest.fixture
def real_time() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture
def connected(server: Server, real_time: asyncio.Runner) -> Iterator[Coordinator]:
    """A task's, on real time."""
    with entered(real_time, lambda: coordinator(server, space_of_its_own())) as one:
        yield one
