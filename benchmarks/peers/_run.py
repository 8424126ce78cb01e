"""Runs a peer's program on a workload, in a process of its own with a time limit."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks.peers._environments import ROOT, PeerUnavailable, arguments, version
from benchmarks.peers._workload import Measurement, Workload

__all__ = ("run", "start")

MOST = 300  # letters of a reason


def run(peer: str, workload: Workload, limit: float = 900.0) -> Measurement:
    """One measurement; the peer gets `limit` seconds, start-up and end included.

    Raises:
        PeerUnavailable: The peer is not installed, failed, lost rows, or took longer than `limit`.
        ValueError: There is no such peer.
    """
    version(peer)
    return start(peer, workload, limit)


def start(peer: str, workload: Workload, limit: float) -> Measurement:
    """`run` without the question whether the peer is ready."""
    with tempfile.TemporaryDirectory(prefix="peer-") as folder:
        file, errors = Path(folder, "workload.json"), Path(folder, "stderr")
        file.write_text(json.dumps(asdict(workload)))
        with errors.open("w") as stderr:
            code, output = _output(arguments(peer, str(file)), stderr.fileno(), limit)
        if code is None:
            raise PeerUnavailable(f"{peer} was not done after {limit:g} s")
        lines = output.strip().splitlines()
        if code or not lines:
            raise PeerUnavailable(f"{peer} ended with {code}: {last_line(errors.read_text(errors='replace'))}")
    try:
        measurement = Measurement(**json.loads(lines[-1]))
    except (TypeError, ValueError) as error:
        raise PeerUnavailable(f"{peer} said {without_folders(lines[-1])!r} and not what it measured") from error
    if measurement.rows != len(workload.latencies):
        raise PeerUnavailable(f"{peer} gave {measurement.rows} of {len(workload.latencies)} rows")
    return measurement


def last_line(errors: str) -> str:
    """What a program said last, for a page that others read."""
    return without_folders("".join(errors.strip().splitlines()[-1:])) or "it said nothing"


def without_folders(line: str) -> str:
    """A line whose absolute paths are only the names of their files."""
    return re.sub(r"(?<![\w.:/])/(?:[^\s/:'\"]+/)+", "", line)[:MOST]


def _output(command: list[str], stderr: int, limit: float) -> tuple[int | None, str]:
    """Exit code (None: out of time) and standard output; whatever the command started is gone afterwards."""
    environment = os.environ | {"DO_NOT_TRACK": "1"}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=limit)
        return process.returncode, output
    except subprocess.TimeoutExpired:
        return None, ""
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)
