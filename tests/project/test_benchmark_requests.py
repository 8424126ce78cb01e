"""The HTTP requests of the peers' programs: each row is a request, as many at a time as are allowed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from benchmarks._http_server import certified, http_server
from benchmarks.peers import Program, Workload
from benchmarks.peers._requests import Service
from tests.kit.java import find_jdk

ROWS, CAPACITY = 40, 4
JDK = find_jdk()
COMPILED = pytest.mark.skipif(JDK is None, reason="compiles Java, and there is no javac: a JDK has it, a JRE not")
pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with http_server(0.002) as address:
        yield address


def told(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}calls") as answer:
        found: dict[str, float] = json.load(answer)
        return found


def test_a_service_with_an_address_makes_a_request_of_each_call_and_closes_its_session(url: str) -> None:
    async def main() -> aiohttp.ClientSession:
        async with pickle.loads(pickle.dumps(Service(url, 2))) as service:  # as it travels to a worker
            await asyncio.gather(*(service.answer(60.0) for _ in range(5)))
            session: aiohttp.ClientSession = service._session
            return session

    before = told(url)["calls"]
    assert asyncio.run(main()).closed
    assert told(url)["calls"] - before == 5


def test_a_client_trusts_the_certificate_of_the_server_and_no_other(tmp_path: Path) -> None:
    async def ask(authority: str) -> None:
        async with Service(url, 1, authority=authority) as service:
            await service.answer(0.0)

    options, authority = certified(str(tmp_path))
    with http_server(0.0, *options) as url:
        asyncio.run(ask(authority))
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            asyncio.run(ask(""))


@COMPILED
@pytest.mark.spark
def test_the_java_program_makes_a_request_of_each_row_each_time_that_it_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(JDK))
    workload = Workload([0.002] * ROWS, capacity=CAPACITY)
    with http_server(0.05) as url, contextlib.closing(Program("jvm", Workload(**vars(workload) | {"url": url}))) as jvm:
        assert [jvm.run(rows, limit=100.0).rows for rows in (ROWS // 2, ROWS)] == [ROWS // 2, ROWS]
        seen = told(url)
    assert (seen["calls"], seen["most"]) == (1.5 * ROWS, CAPACITY)
