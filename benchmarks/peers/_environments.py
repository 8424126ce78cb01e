"""One environment per peer, below build/peers/: a virtual environment with the pinned release, tried once."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ("PEERS", "ROOT", "PeerUnavailable", "arguments", "install", "version")

ROOT = Path(__file__).resolve().parents[2]
INSTALLATION_LIMIT = 1800.0  # seconds


class PeerUnavailable(Exception):  # noqa: N818, it names a state of affairs
    """A peer cannot be measured here: not installed, failed, or out of time. The message says which, and why."""


@dataclass(frozen=True)
class Peer:
    """Where a peer's program is, its further arguments, and what it needs installed."""

    program: str
    arguments: tuple[str, ...] = ()
    requirement: str = ""  # nothing: it runs in the Python that runs this


_PEERS = {
    # Only the jars: the program is Java.
    "flink-java": Peer("flink_java", requirement="apache-flink-libraries==2.3.0"),
    "pyflink": Peer("pyflink_program", requirement="apache-flink==2.3.0"),
    "pathway": Peer("pathway_program", requirement="pathway==0.33.0"),
    "daft": Peer("daft_program", requirement="daft==0.7.26"),
    "spark-gather": Peer("spark_idioms", ("gather",)),
    "spark-threads": Peer("spark_idioms", ("threads",)),
    "spark-concurrency": Peer("spark_idioms", ("concurrency",)),
}
PEERS: tuple[str, ...] = tuple(_PEERS)


def _peer(name: str) -> Peer:
    if name not in _PEERS:
        raise ValueError(f"there is no peer {name!r}; there are {', '.join(PEERS)}")
    return _PEERS[name]


def _marker(name: str) -> Path:
    """Holds the requirement that is installed and was tried; written last."""
    return ROOT / "build" / "peers" / name / "ready"


def version(name: str) -> str:
    """The version that is ready to be run.

    Raises:
        PeerUnavailable: The peer is not installed.
        ValueError: There is no such peer.
    """
    requirement = _peer(name).requirement
    try:
        if not requirement:
            return importlib.metadata.version("pyspark")
        if _marker(name).read_text() == requirement:
            return requirement.partition("==")[2]
    except (OSError, importlib.metadata.PackageNotFoundError):
        pass
    raise PeerUnavailable(f"not installed: run `python -m benchmarks.peers {name}`")


def arguments(name: str, workload: str) -> list[str]:
    """The command that runs a peer's program on a workload file; to be started in ROOT."""
    peer = _peer(name)
    python = str(_marker(name).parent / "bin" / "python") if peer.requirement else sys.executable
    return [python, "-m", f"benchmarks.peers.{peer.program}", workload, *peer.arguments]


def install(name: str, trial: Callable[[str], object]) -> None:
    """Makes a peer's environment anew and runs `trial(name)` in it; only after that it counts as ready.

    Raises:
        PeerUnavailable: The installation or the trial failed.
    """
    requirement, marker = _peer(name).requirement, _marker(name)
    if not requirement:
        raise PeerUnavailable("this Python has no pyspark")
    marker.parent.mkdir(parents=True, exist_ok=True)
    _step([sys.executable, "-m", "venv", "--clear", str(marker.parent)])
    _step([str(marker.parent / "bin" / "python"), "-m", "pip", "install", "--quiet", requirement])
    trial(name)
    marker.write_text(requirement)


def _step(command: list[str]) -> None:
    environment = os.environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    try:
        subprocess.run(command, capture_output=True, text=True, check=True, timeout=INSTALLATION_LIMIT, env=environment)
    except subprocess.CalledProcessError as error:
        lines = (error.stderr or error.stdout).strip().splitlines()
        reasons = [line for line in lines if line.startswith("ERROR")] or lines[-1:]
        reason = reasons[-1] if reasons else f"{command[2]} ended with {error.returncode}"
        raise PeerUnavailable(reason.removeprefix("ERROR: ")) from error
    except subprocess.TimeoutExpired as error:
        raise PeerUnavailable(f"not done after {INSTALLATION_LIMIT:.0f} s") from error
