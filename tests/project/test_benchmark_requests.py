"""The HTTP requests of the peers' programs: each row is a request, as many at a time as are allowed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from http.client import HTTPException
from pathlib import Path

import aiohttp
import pytest

from benchmarks._harness import Settings
from benchmarks._http_server import http_server
from benchmarks._peers import peer_systems
from benchmarks.cases import CASES
from benchmarks.peers import PEERS, Workload
from benchmarks.peers._requests import Service, blocking_answer
from benchmarks.peers._run import start

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "benchmarks" / "peers" / "Client.java"
ROWS = 40
CAPACITY = 4
HOME = os.environ.get("JAVA_HOME")
JAVAC = shutil.which("javac", path=f"{HOME}/bin" if HOME else None) or shutil.which("javac")
COMPILED = pytest.mark.skipif(JAVAC is None, reason="compiles Java, and there is no javac: a JDK has it, a JRE not")
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


# Runs several programs of peers one after another. The first starts Java, and the others go on with it, which halves
# the time of all.
IDIOMS = """
import json, sys
from benchmarks.peers import spark_idioms
workloads = json.loads(sys.argv[1])
for idiom, workload in workloads:
    sys.argv[2:] = idiom.split()
    found = spark_idioms.measure(spark_idioms.Workload(**workload), sys.argv[-1] == "best")
    print(found.rows, flush=True)
"""


@pytest.mark.spark
def test_each_python_idiom_makes_a_request_of_each_row_and_as_many_at_a_time_as_are_allowed() -> None:
    """Coroutines, with and without a task per row, and threads."""
    idioms = ["gather", "gather best", "threads best"]
    with contextlib.ExitStack() as servers:
        urls = [servers.enter_context(http_server(0.002)) for _ in idioms]
        workloads = [asdict(Workload([0.002] * ROWS, capacity=CAPACITY, url=url)) for url in urls]
        program = [sys.executable, "-c", IDIOMS, json.dumps(list(zip(idioms, workloads, strict=True)))]
        ran = subprocess.run(program, capture_output=True, text=True, cwd=ROOT)
        assert ran.returncode == 0, ran.stderr[-2000:]
        assert ran.stdout.split() == [str(ROWS)] * len(idioms)
        seen = {idiom: told(url) for idiom, url in zip(idioms, urls, strict=True)}
    requests = {idiom: (one["calls"], one["most"]) for idiom, one in seen.items()}
    assert requests == dict.fromkeys(idioms, (2 * ROWS, CAPACITY))  # twice: the warm-up makes all requests, too


@COMPILED
@pytest.mark.spark
def test_the_java_idiom_makes_a_request_of_each_row_and_as_many_at_a_time_as_are_allowed() -> None:
    """As a run of the benchmarks starts it."""
    with http_server(0.05) as url:
        assert start("spark-jvm", Workload([0.002] * ROWS, capacity=CAPACITY, url=url), limit=100.0).rows == ROWS
        seen = told(url)
    assert (seen["calls"], seen["most"]) == (2 * ROWS, CAPACITY)


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
        System.exit(0); // the threads of the HTTP client would go on
    }
}
"""


@COMPILED
def test_the_java_client_bounds_its_requests_and_ends_the_program_when_one_fails(tmp_path: Path) -> None:
    """A peer whose requests fail has no figure then; the program's last line says why."""
    source = tmp_path / "Calls.java"
    source.write_text(CALLS)
    assert JAVAC is not None
    subprocess.run([JAVAC, "-d", tmp_path, CLIENT, source], check=True, timeout=60)

    def calls_of_java(url: str) -> subprocess.CompletedProcess[str]:
        java = [str(Path(JAVAC).with_name("java")), "-cp", str(tmp_path), "Calls", url, str(ROWS), str(CAPACITY)]
        return subprocess.run(java, capture_output=True, text=True, timeout=60)

    with http_server(0.05) as url:
        done = calls_of_java(url)
        assert done.returncode == 0, done.stderr
        seen = told(url)
        assert (seen["calls"], seen["most"]) == (ROWS, CAPACITY)
        failed = calls_of_java(f"{url}missing")
    assert failed.returncode == 1
    assert re.search(r"^a request failed: .*\b404$", failed.stderr, re.MULTILINE), failed.stderr


def test_the_peers_of_p5_ask_the_server_of_ours() -> None:
    systems = peer_systems(Settings(peers=()), [0.02], "ordered", lambda *_: {}, url="http://127.0.0.1:1/")
    assert [system.name for system in systems] == list(PEERS)
    assert {system.measure._workload.url for system in systems} == {"http://127.0.0.1:1/"}  # type: ignore[attr-defined]
    assert {case.id for case in CASES if case.has_peers} == {"P2b", "P3", "P3b", "P3c", "P4", "P5"}
