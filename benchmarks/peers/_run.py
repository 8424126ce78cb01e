"""Runs a peer's program in a process of its own, which stays for all rounds of a case, so that it is warm.

Between its rounds it is stopped, so that it takes no CPU from the system that is measured then.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import tempfile
import threading
from dataclasses import asdict
from pathlib import Path

from benchmarks.peers._environments import ROOT, PeerUnavailable, arguments
from benchmarks.peers._workload import Measurement, Workload

__all__ = ("Program",)

MOST = 300  # letters of a reason
GRACE = 20.0  # seconds to end by itself


class Program:
    """A peer that makes the calls of a workload as often as it is asked. Whatever it started is gone at the end."""

    def __init__(self, peer: str, workload: Workload) -> None:
        self._peer = peer
        self._folder = tempfile.TemporaryDirectory(prefix="peer-")
        file, self._errors = Path(self._folder.name, "workload.json"), Path(self._folder.name, "stderr")
        file.write_text(json.dumps(asdict(workload)))
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                arguments(peer, str(file)),
                cwd=ROOT,
                # The executors of a cluster import from here, and keep their folders where they are deleted.
                env=os.environ
                | {"DO_NOT_TRACK": "1", "PYTHONPATH": str(ROOT), "SPARK_WORKER_DIR": f"{self._folder.name}/work"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def run(self, rows: int, limit: float = 300.0) -> Measurement:
        """The calls of the first rows.

        Raises:
            PeerUnavailable: The peer failed, lost rows, or took longer than `limit`.
        """
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        with contextlib.suppress(OSError):  # it has ended, and the reason follows
            self._process.stdin.write(f"{rows}\n")
            self._process.stdin.flush()
        measurement = self._answer(limit)
        self._signal(signal.SIGSTOP)
        if measurement.rows != rows:
            raise PeerUnavailable(f"{self._peer} gave {measurement.rows} of {rows} rows")
        return measurement

    def _answer(self, limit: float) -> Measurement:
        said = ""
        with contextlib.suppress(queue.Empty):
            while line := self._lines.get(timeout=limit):
                said = line
                if line.startswith("{"):  # other programs print in between
                    break
            else:
                code = self._process.wait(GRACE)
                reason = without_folders(last_line(self._errors.read_text(errors="replace")))
                raise PeerUnavailable(f"{self._peer} ended with {code}: {reason or said or 'it said nothing'}")
            try:
                return Measurement(**json.loads(said))
            except (TypeError, ValueError) as error:
                said = without_folders(said)
                raise PeerUnavailable(f"{self._peer} said {said!r} and not what it measured") from error
        raise PeerUnavailable(f"{self._peer} was not done after {limit:g} s")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.strip() or " ")
        self._lines.put("")  # the end

    def close(self) -> None:
        """End it, with all that it started."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE)
        self._signal(signal.SIGKILL)
        self._process.wait(GRACE)
        self._folder.cleanup()

    def _signal(self, number: signal.Signals) -> None:
        """To all processes of the peer."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def last_line(text: str) -> str:
    """The last that is no part of a stack."""
    return next((line for line in reversed(text.splitlines()) if line.strip() and not line[0].isspace()), "")


def without_folders(line: str) -> str:
    """A line whose absolute paths are only the names of their files: a page shows it."""
    return re.sub(r"(?<![\w.:/])/(?:[^\s/:'\"]+/)+", "", line)[:MOST]
