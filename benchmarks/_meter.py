"""What a process uses while something runs in it: time, CPU time, memory. Works inside Spark's Python workers."""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import resource
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

__all__ = ("Meter", "metered")


@contextlib.contextmanager
def metered() -> Iterator[dict[str, float]]:
    """Fills the dict at the end: seconds, cpu (seconds, of all threads), peak (MB, since the process began)."""
    used: dict[str, float] = {}
    start, cpu = time.perf_counter(), time.process_time()
    try:
        yield used
    finally:
        used |= {"seconds": time.perf_counter() - start, "cpu": time.process_time() - cpu, "peak": _peak()}


class Meter:
    """Brings what a worker has used to the driver, in a file.

    Give `resource` to `resources=`: it is opened with the task, before the first call, and closed after the last.
    """

    def __init__(self, folder: str, name: str) -> None:
        self._path = Path(folder, f"{name}.json")

    @contextlib.asynccontextmanager
    async def resource(self) -> AsyncIterator[None]:
        with self.measure():
            yield

    @contextlib.contextmanager
    def measure(self) -> Iterator[None]:
        importlib.import_module("pandas")  # a fresh worker would at its first Arrow array, and that is start-up
        with metered() as used:
            yield
        self._path.write_text(json.dumps(used))

    def read(self) -> dict[str, float]:
        """What the last task has used; a second reading fails, so that no old figure passes for a new one."""
        used: dict[str, float] = json.loads(self._path.read_text())
        self._path.unlink()
        return used


def _peak() -> float:
    # In MB, of a million bytes.
    # Not ru_maxrss where it can be helped: after an exec it still counts the process from which the worker came.
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"^VmHWM:\s+(\d+) kB", status.read_text(), re.MULTILINE)
        assert found
        return int(found[1]) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6
