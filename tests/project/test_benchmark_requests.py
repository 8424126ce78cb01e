"""The HTTP requests of the peers' programs: each row is a request, as many at a time as are allowed."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import shutil
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

import aiohttp
import pytest

from benchmarks._harness import Settings
from benchmarks._http_server import http_server
from benchmarks._peers import peer_systems
from benchmarks.cases import CASES
from benchmarks.peers import PEERS, PeerUnavailable, Workload
from benchmarks.peers._requests import Service, blocking_answer
from benchmarks.peers._run import start

ROWS = 40
HAS_COMPILER = shutil.which("javac") or Path(os.environ.get("JAVA_HOME", ""), "bin", "javac").is_file()
COMPILED = pytest.mark.skipif(not HAS_COMPILER, reason="compiles Java, and there is no javac: a JDK has it, a JRE not")
IN_THIS_PYTHON = [
    "spark-gather",
    "spark-gather-best",
    "spark-threads-best",
    pytest.param("spark-jvm", marks=COMPILED),
]
pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with http_server(0.002) as address:
        yield address


def calls(url: str) -> int:
    return int(told(url)["calls"])


def told(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url}calls") as answer:
        found: dict[str, float] = json.load(answer)
        return found


def test_a_service_without_an_address_waits_and_opens_nothing() -> None:
    async def main() -> float:
        async with Service("", 1) as service:
            before = asyncio.get_running_loop().time()
            await service.answer(0.01)
            assert service._session is None
            return asyncio.get_running_loop().time() - before

    assert asyncio.run(main()) >= 0.009


def test_a_service_with_an_address_makes_a_request_of_each_call_and_closes_its_session(url: str) -> None:
    async def main() -> aiohttp.ClientSession:
        async with pickle.loads(pickle.dumps(Service(url, 2))) as service:  # as it travels to a worker
            await asyncio.gather(*(service.answer(60.0) for _ in range(5)))
            session: aiohttp.ClientSession = service._session
            return session

    before = calls(url)
    assert asyncio.run(main()).closed
    assert calls(url) - before == 5


def test_an_answer_that_is_an_error_is_no_answer(url: str) -> None:
    async def main() -> None:
        async with Service(f"{url}missing", 1) as service:
            await service.answer(0.0)

    with pytest.raises(aiohttp.ClientResponseError):
        asyncio.run(main())
    with pytest.raises(HTTPException, match="404"):
        blocking_answer(f"{url}missing", 0.0)


@pytest.mark.spark
@pytest.mark.parametrize("peer", IN_THIS_PYTHON)
def test_a_peer_makes_a_request_of_each_row_and_as_many_at_a_time_as_are_allowed(peer: str) -> None:
    with http_server(0.002) as url:
        found = start(peer, Workload([0.002] * ROWS, capacity=4, url=url), limit=100.0)
        assert found.rows == ROWS
        seen = told(url)
    assert (seen["calls"], seen["most"]) == (2 * ROWS, 4)  # the warm-up of a hundred rows has them all too


@COMPILED
@pytest.mark.spark
def test_a_peer_whose_requests_fail_has_no_figure(url: str) -> None:
    with pytest.raises(PeerUnavailable, match=r"ended with 1: a request failed: .*404"):
        start("spark-jvm-best", Workload([0.001] * ROWS, capacity=4, url=f"{url}missing"), limit=100.0)


def test_the_peers_of_p5_ask_the_server_of_ours() -> None:
    systems = peer_systems(Settings(peers=()), [0.02], "ordered", lambda *_: {}, url="http://127.0.0.1:1/")
    assert [system.name for system in systems] == list(PEERS)
    assert {system.measure._workload.url for system in systems} == {"http://127.0.0.1:1/"}  # type: ignore[attr-defined]
    assert {case.id for case in CASES if case.has_peers} == {"P2b", "P3", "P3b", "P3c", "P4", "P5"}
