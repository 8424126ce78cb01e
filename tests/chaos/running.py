"""Runs a job in a driver of its own, lets its accidents happen, and collects what was seen."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import psutil

from tests.chaos.checks import DRIVERS, Event, Job, Run
from tests.chaos.job import CONNECT_SERVER, Place
from tests.chaos.services import Ledger, Services
from tests.chaos.shapes import Accident, Service, Shape

__all__ = ("run_job",)

ROOT = Path(__file__).parents[2]
MARK = "ASYNCUDF_CHAOS_JOB"  # a variable that all processes of a job inherit
ENVIRONMENT = {
    "PYSPARK_PYTHON": sys.executable,
    "PYTHONPATH": str(ROOT),  # executors run elsewhere
    "SPARK_LOCAL_IP": "127.0.0.1",
}
QUIET = Service(seed=0, seconds=0.02)  # for queries beside a job
QUIET_AFTER = 4.0  # seconds without a call
GONE = 20.0  # seconds until all processes have ended after the driver
UNREACHABLE = 30.0  # more for tasks of a client that was killed: so long they wait for its coordinator


def run_job(shape: Shape, services: Services, folder: Path) -> Job:
    """Runs it to its end, or to the end of its time."""
    return _Runner(shape, services, folder).run()


class _Runner:
    def __init__(self, shape: Shape, services: Services, folder: Path) -> None:
        self.shape, self.services, self.folder = shape, services, folder
        self.key = f"{shape.seed}-{time.time_ns()}"
        self.ledger = services.ledgers[self.key] = Ledger(shape)
        plain = replace(shape, service=QUIET, options={}, form="row")
        self.beside = {kind: Ledger(plain) for kind in shape.beside}
        services.ledgers.update({f"{self.key}-{kind}": ledger for kind, ledger in self.beside.items()})
        self.server: subprocess.Popen | None = None  # of Sail
        self.events: list[Event] = []
        self.drives: list[float] = []
        self.chance = random.Random(shape.seed)
        self.broken = ""
        self.known: set[psutil.Process] = set()
        disk = services.small_disk if "disk" in shape.kinds and services.has_small_disk else folder
        store = disk / "store"
        store.mkdir(mode=0o700)
        self.place = Place(
            self.key,
            services.url,
            services.redis_url,
            services.postgres_dsn if shape.form == "postgres" else "",
            str(store),
            str(folder),
        )
        self.store = store

    def run(self) -> Job:
        shared_before = set(os.listdir("/dev/shm"))
        end = time.monotonic() + 60 * self.shape.minutes
        possible = [one for one in self.shape.accidents if one.kind != "disk" or self.services.has_small_disk]
        pending = sorted(possible, key=lambda one: one.calls)
        left: list[str] = []
        while True:
            if self.shape.server_outlives:
                self._serve()
            outcome = self._drive(pending, end)
            if self.shape.server_outlives and outcome is None:
                self._wait_for_calls(end)
            if outcome is not None or self.broken:
                break
            left += self._wait_for_processes()
        if self.server is not None:
            self.server.stdin.close()
        left += self._wait_for_processes()
        runs = []
        if outcome is not None:
            runs, of_driver = outcome
            self._read(runs)
            left += of_driver
            left += [f"file {one}" for name in ("tmp", "spark") for one in self._files(name)]
        left += self._left_on_services()
        of_others = ("PostgreSQL", ".org.chromium", "sem.mp-")  # the last is of multiprocessing, which no job uses
        new = {one for one in os.listdir("/dev/shm") if not one.startswith(of_others)}
        left += [f"shared memory {one}" for one in new - shared_before]
        calls = self._calls()
        beside = {kind: ledger.calls for kind, ledger in self.beside.items()}
        for key in [self.key, *(f"{self.key}-{kind}" for kind in beside)]:
            del self.services.ledgers[key]
        shutil.rmtree(self.store, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            (self.services.small_disk / "filler").unlink()
        return Job(self.shape, calls, self.events, runs, left, self.broken, self.drives, beside)

    def _serve(self) -> None:
        """Has a server of Sail, which goes on when its client is killed, and is not started again before it dies."""
        if self.server is not None:
            if self.server.poll() is None:
                return
            self.server.stdin.close()
        with open(self.folder / "output", "ab") as output:
            self.server = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "tests.chaos.sail_server", str(self.folder)],
                cwd=ROOT,
                env=self._environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,
            )
        with self.server.stdout as told:
            self.place = replace(self.place, sail=told.readline().decode().strip())

    def _environment(self) -> dict[str, str]:
        made = {**os.environ, **ENVIRONMENT, MARK: self.key, "TMPDIR": str(self.folder / "tmp")}
        if self.shape.is_on_sail:
            made |= {"RUST_LOG": "error", "SAIL_EXECUTION__BATCH_SIZE": str(self.shape.batch)}
            made["SAIL_EXECUTION__DEFAULT_PARALLELISM"] = str(self.shape.parallelism)
        return made

    def _wait_for_calls(self, end: float) -> None:
        """Until the server has no call more of the query of a client that was killed."""
        count, changed = 0, time.monotonic()
        while time.monotonic() < changed + QUIET_AFTER:
            time.sleep(0.2)
            if (now := self._count() + sum(len(one.calls) for one in self.beside.values())) != count:
                count, changed = now, time.monotonic()
            if time.monotonic() > end:
                self.broken = "the server goes on with the query of a client that was killed"
                return

    def _drive(self, pending: list[Accident], end: float) -> tuple[list[Run], list[str]] | None:
        """What a driver says at its end; None if it was killed."""
        for name in () if self.server is not None else ("tmp", "spark"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            (self.folder / name).mkdir()
        (self.folder / "job").write_bytes(pickle.dumps((self.shape, self.place)))
        self.drives.append(time.time())
        with open(self.folder / "output", "ab") as output:
            driver = subprocess.Popen(
                [sys.executable, "-W", "ignore", "-m", "tests.chaos.job", str(self.folder)],
                cwd=ROOT,
                env=self._environment(),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        was_killed = False
        try:
            looked = time.monotonic()
            while driver.poll() is None:
                if time.monotonic() > looked + 1.0:
                    self._processes()
                    looked = time.monotonic()
                if time.monotonic() > end:
                    self.broken = f"hung: no end after {self.shape.minutes:g} min; the stacks are in build/chaos"
                    (self.folder / "stacks").write_text(self._stacks(driver))
                    break
                if pending and self._count() > pending[0].calls and self._happens(pending[0], driver):
                    was_killed = was_killed or pending[0].kind in DRIVERS
                    del pending[0]
                time.sleep(0.02)
        finally:
            for one in [driver, *self._processes()] if driver.poll() is None else []:  # the server too
                with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                    one.kill()
            driver.wait()
            driver.stdin.close()
        file = self.folder / "outcome"
        if file.exists():
            told: tuple[list[Run], list[str]] = pickle.loads(file.read_bytes())
            return told
        if not was_killed and not self.broken:
            self.broken = f"the driver ended with {driver.returncode}: {self._output()}"
        return None

    def _count(self) -> int:
        if self.shape.form != "postgres":
            return len(self.ledger.calls)
        time.sleep(0.2)
        return int(self.services.query(f"SELECT count(*) FROM calls WHERE job = '{self.key}'")[0][0])

    def _calls(self) -> list:
        return self.services.calls_in_postgres(self.key) if self.shape.form == "postgres" else self.ledger.calls

    def _happens(self, accident: Accident, driver: subprocess.Popen) -> bool:
        """Lets it happen if it can now."""
        kind, pids = accident.kind, []
        if kind in ("worker", "workers"):
            alive = {one.pid for one in self._processes()}
            callers = [call.pid for call in self._calls()[-200:] if call.pid in alive]
            pids = callers[-1:] if kind == "worker" else [*set(callers)]
        elif kind == "executor":
            found = [one for one in self._processes() if "CoarseGrainedExecutorBackend" in " ".join(_command(one))]
            pids = [self.chance.choice(found).pid] if found else []
        elif kind == "coordinator":
            pids = [one.pid for one in self._processes() if "valkey-server" in "".join(_command(one)[:1])]
        elif kind in ("driver", "driver alone"):
            java = [
                one.pid for one in psutil.Process(driver.pid).children(recursive=True) if one.name().endswith("java")
            ]
            pids = [driver.pid, *java * (kind == "driver")]
            pids += [self.server.pid] if self.server is not None and kind == "driver" else []
        elif kind == "server" and self.server is not None:
            pids = [self.server.pid]
        elif kind == "server":
            pids = [one.pid for one in self._processes() if CONNECT_SERVER in _command(one)]
        if kind in ("worker", "workers", "executor", "coordinator", *DRIVERS):
            if not pids:
                return False
            killed = {*pids}
            if kind == "executor":
                killed |= {one.pid for pid in pids for one in psutil.Process(pid).children(recursive=True)}
            self._note(kind, *killed)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return True
        self._note(kind)
        if kind == "redis":
            self.services.kill_redis()
        elif kind == "redis stops":
            self.services.stop_redis(2.0)
        elif kind == "disk":
            self.services.fill_small_disk()
        elif kind == "outage":
            self.ledger.outage_until = time.time() + 2.0
        elif kind == "connections":
            self.services.drop_connections()
        elif kind == "cancel":
            with contextlib.suppress(BrokenPipeError):
                driver.stdin.write(b"cancel\n")
                driver.stdin.flush()
        return True

    def _note(self, kind: str, *pids: int) -> None:
        self.events.append(Event(time.time(), kind, frozenset(pids)))

    def _processes(self) -> list[psutil.Process]:
        """Those of this job that are alive, wherever they were started.

        A Valkey server overwrites its variables. It is known by its parent, which may be dead by now.
        """
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(MARK) == self.key:
                    self.known.update([process, *process.children()])
        self.known = {one for one in self.known if one.is_running() and _status(one) != psutil.STATUS_ZOMBIE}
        return list(self.known)

    def _wait_for_processes(self) -> list[str]:
        """What has not ended after a time; it is ended then. A server that is to go on is none of it."""
        end = time.monotonic() + GONE + (UNREACHABLE if self.shape.server_outlives and self.shape.is_limited else 0.0)
        goes_on = self.server.pid if self.server is not None and not self.server.stdin.closed else 0
        while (alive := [one for one in self._processes() if one.pid != goes_on]) and time.monotonic() < end:
            time.sleep(0.1)
        for one in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        return [f"process {' '.join(_command(one))[:200]}" for one in alive]

    def _left_on_services(self) -> list[str]:
        """Connections that are open, after a moment."""
        end = time.monotonic() + 5.0
        while True:
            left = []
            if count := self.services.open_connections():
                left.append(f"{count} connections to the service")
            if count := self.services.connections_to_redis():
                left.append(f"{count} connections to Redis")
            if not left or time.monotonic() > end:
                return left
            time.sleep(0.1)

    def _files(self, name: str) -> Iterator[str]:
        for path in (self.folder / name).rglob("*"):
            if path.is_file():
                yield str(path.relative_to(self.folder))

    def _read(self, runs: list[Run]) -> None:
        """Gives runs that ended well their rows."""
        for run in runs if not self.broken else ():
            if run.error is None:
                run.rows = self._frame(f"rows-{run.number}*")
                run.letters = self._frame(f"letters-{run.number}*")

    def _frame(self, names: str) -> pd.DataFrame | None:
        files = [*self.folder.glob(names)]
        return pd.concat([pd.read_parquet(one) for one in files], ignore_index=True) if files else None

    def _stacks(self, driver: subprocess.Popen) -> str:
        """Where the driver, its JVM and its workers are."""
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.pid == driver.pid or (self.folder / f"stacks-{process.pid}").exists():
                    process.send_signal(signal.SIGUSR1)
                elif process.name().endswith("java"):
                    process.send_signal(signal.SIGQUIT)
        time.sleep(2.0)
        return "\n".join(f"{one.name}\n{text}" for one in self.folder.glob("stacks-*") if (text := one.read_text()))

    def _output(self, length: int = 5000) -> str:
        return (self.folder / "output").read_text(errors="replace")[-length:]


def _status(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status()
    return psutil.STATUS_ZOMBIE


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []
