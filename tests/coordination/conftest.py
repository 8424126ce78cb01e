"""One server for the tests that do not end it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.kit.coordinators import Scripts, Server, start_server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with contextlib.closing(start_server()) as started:
        yield started


@pytest.fixture
def scripts(server: Server) -> Iterator[Scripts]:
    with contextlib.closing(Scripts(server)) as connected:
        yield connected
