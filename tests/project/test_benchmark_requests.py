"""The HTTP requests of the peers' programs: each row is a request, as many at a time as are allowed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pickle
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pyspark
import pytest

from benchmarks._harness import Settings
from benchmarks._http_server import certified, http_server
from benchmarks._peers import peer_systems
from benchmarks.peers import PEERS, Program, Workload
from benchmarks.peers._requests import Service
from tests.kit.java import find_jdk

CLIENT = Path(__file__).parents[2] / "benchmarks" / "peers" / "Client.java"
JARS = Path(pyspark.__file__).parent / "jars"
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

    before = told(url)["calls"]
    assert asyncio.run(main()).closed
    assert told(url)["calls"] - before == 5


def test_an_answer_that_is_an_error_is_no_answer(url: str) -> None:
    async def main() -> None:
        async with Service(f"{url}missing", 1) as service:
            await service.answer(0.0)

    with pytest.raises(aiohttp.ClientResponseError):
        asyncio.run(main())


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
    """As a run of the benchmarks starts it."""
    monkeypatch.setenv("JAVA_HOME", str(JDK))
    workload = Workload([0.002] * ROWS, capacity=CAPACITY)
    with http_server(0.05) as url, contextlib.closing(Program("jvm", Workload(**vars(workload) | {"url": url}))) as jvm:
        assert [jvm.run(rows, limit=100.0).rows for rows in (ROWS // 2, ROWS)] == [ROWS // 2, ROWS]
        seen = told(url)
    assert (seen["calls"], seen["most"]) == (1.5 * ROWS, CAPACITY)


# Makes calls with the client of the Java programs, without Spark and Flink.
CALLS = """
import java.util.concurrent.CountDownLatch;

final class Calls {
    public static void main(String[] arguments) throws Exception {
        int calls = Integer.parseInt(arguments[1]);
        CountDownLatch answered = new CountDownLatch(calls);
        Client client = new Client(Integer.parseInt(arguments[2]), arguments[0]);
        for (int call = 0; call < calls; call++) {
            client.call(1, answered::countDown);
        }
        answered.await();
    }
}
"""


@COMPILED
def test_the_java_client_bounds_its_requests_and_ends_the_program_when_one_fails(tmp_path: Path) -> None:
    """A peer whose requests fail has no figure then; the program's last line says why."""
    source = tmp_path / "Calls.java"
    source.write_text(CALLS)
    path = f"{tmp_path}:{JARS}/*"
    subprocess.run([f"{JDK}/bin/javac", "-nowarn", "-cp", path, "-d", tmp_path, CLIENT, source], check=True, timeout=60)

    def calls_of_java(url: str) -> subprocess.CompletedProcess[str]:
        java = [f"{JDK}/bin/java", "-cp", path, "Calls", url, str(ROWS), str(CAPACITY)]
        return subprocess.run(java, capture_output=True, text=True, timeout=60)

    with http_server(0.05) as url:
        done = calls_of_java(url)
        assert done.returncode == 0, done.stderr
        seen = told(url)
        assert (seen["calls"], seen["most"]) == (ROWS, CAPACITY)
        failed = calls_of_java(f"{url}missing")
    assert failed.returncode == 1
    assert re.search(r"^a request failed: .*\b404\b", failed.stderr, re.MULTILINE), failed.stderr


def test_peers_get_the_rows_the_address_and_the_mode_that_ours_has() -> None:
    workload = Workload([0.02], url="http://127.0.0.1:1/")
    systems = peer_systems(Settings(peers=PEERS), ("flink", "flink unordered"), workload, lambda *_: {}, room=500)
    given = [system.measure._workload for system in systems]  # type: ignore[attr-defined]
    assert [(one.latencies, one.url, one.mode, one.room) for one in given] == [
        ([0.02], workload.url, "ordered", 500),
        ([0.02], workload.url, "unordered", 500),
    ]
    assert peer_systems(Settings(), ("flink",), workload, lambda *_: {}) == []
