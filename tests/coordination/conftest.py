"""One server for the tests that do not end it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from asyncudf._coordination.server import CoordinatorServer

from .servers import Scripts


@pytest.fixture(scope="session")
def server() -> Iterator[CoordinatorServer]:
    with contextlib.closing(CoordinatorServer()) as started:
        yield started


@pytest.fixture
def scripts(server: CoordinatorServer) -> Iterator[Scripts]:
    with contextlib.closing(Scripts(server)) as connected:
        yield connected
