"""What processes use: CPU time and memory, read from outside, and inside a Spark worker by a resource. Linux only."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from pyspark.sql import SparkSession

__all__ = ("Meter", "Processes", "driver_of", "metered", "workers_of")

EVERY = 0.25  # seconds between two looks at processes


class Processes:
    """A process and all that descend from it; with `named` only those whose name begins so."""

    def __init__(self, root: int, named: str = "") -> None:
        self._root, self._named = root, named
        self._used: dict[int, float] = {}  # seconds of CPU of each, as far as it has been seen

    def cpu(self) -> float:
        """Seconds, those of processes that have ended included, as far as they have been seen."""
        self._used |= {pid: _clock(pid) for pid in self._found()}
        return sum(self._used.values())

    def memory(self) -> float:
        """MB of all that run now."""
        return sum(_memory("VmRSS", pid) for pid in self._found())

    @contextlib.contextmanager
    def watched(self) -> Iterator[dict[str, float]]:
        """Fills the dict at the end: cpu (seconds), peak (MB). A process that ends is seen a moment before."""
        used, seen, done = dict[str, float](), [0.0], threading.Event()

        def look() -> None:
            while not done.wait(EVERY):
                self.cpu()
                seen.append(self.memory())

        before, thread = self.cpu(), threading.Thread(target=look)
        thread.start()
        try:
            yield used
        finally:
            done.set()
            thread.join()
            used |= {"cpu": self.cpu() - before, "peak": max(*seen, self.memory())}

    def _found(self) -> Iterator[int]:
        every = {pid: (name, parent) for pid, name, parent in _processes()}
        for pid, (name, _) in every.items():
            above = pid
            while above in every and above != self._root:
                above = every[above][1]
            if above == self._root and name.startswith(self._named):
                yield pid


def driver_of(session: SparkSession) -> int:
    """The process of its JVM."""
    gateway = session.sparkContext._gateway
    assert gateway is not None
    pid: int = gateway.proc.pid
    return pid


def workers_of(session: SparkSession) -> Processes:
    """The Python workers of a local session."""
    return Processes(driver_of(session), "python")


def _processes() -> Iterator[tuple[int, str, int]]:
    """The number, the name and the parent of each."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                name, _, fields = (folder / "stat").read_text().partition("(")[2].rpartition(")")
                yield int(folder.name), name, int(fields.split()[1])


def _clock(pid: int) -> float:
    """Seconds of CPU of a process, all its threads included, by the clock that the kernel has for it."""
    with contextlib.suppress(OSError):
        return time.clock_gettime(~pid << 3 | 2)
    return 0.0


def resident() -> float:
    """MB of this process that are in memory now."""
    return _memory("VmRSS")


def _memory(kind: str, process: int | str = "self") -> float:
    """MB, of a million bytes. Not ru_maxrss: after an exec it still counts the process from which this one came."""
    with contextlib.suppress(OSError):
        if found := re.search(rf"^{kind}:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text(), re.MULTILINE):
            return int(found[1]) * 1024 / 1e6
    return 0.0


@contextlib.contextmanager
def metered() -> Iterator[dict[str, float]]:
    """Fills the dict at the end: seconds, cpu (seconds, of all threads), collector (its part), peak (MB)."""
    collector = 0.0

    def look(phase: str, _: dict[str, int]) -> None:
        nonlocal collector
        collector += time.thread_time() if phase == "stop" else -time.thread_time()

    used: dict[str, float] = {}
    gc.callbacks.append(look)
    start, cpu = time.perf_counter(), time.process_time()
    try:
        yield used
    finally:
        used |= {"seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu}
        used |= {"collector": collector, "peak": _memory("VmHWM")}
        gc.callbacks.remove(look)


class Meter:
    """Brings what a worker has used to the driver, in a file.

    Give `resource` to `resources=`: it is opened with the task, before the first call, and closed after the last. A
    function may add figures to the dict that it gets.
    """

    def __init__(self, folder: str, name: str) -> None:
        self._path = Path(folder, f"{name}.json")

    @contextlib.asynccontextmanager
    async def resource(self) -> AsyncIterator[dict[str, float]]:
        with self.measure() as used:
            yield used

    @contextlib.contextmanager
    def measure(self) -> Iterator[dict[str, float]]:
        importlib.import_module("pandas")  # a fresh worker would at its first Arrow array, and that is start-up
        with metered() as used:
            yield used
        self._path.write_text(json.dumps(used))

    def read(self) -> dict[str, float]:
        """What the last task has used; a second reading fails, so that no old figure passes for a new one."""
        used: dict[str, float] = json.loads(self._path.read_text())
        self._path.unlink()
        return used
