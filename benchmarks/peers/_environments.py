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
# What makes the calls of peers in Python: the same that ours has.
CLIENT = tuple(f"{name}=={importlib.metadata.version(name)}" for name in ("aiohttp", "uvloop"))


class PeerUnavailable(Exception):  # noqa: N818, it names a state of affairs
    """A peer cannot be measured here: not installed, failed, or out of time. The message says which, and why."""


@dataclass(frozen=True)
class Peer:
    """A peer's program, its further arguments, and the environment that it runs in."""

    program: str
    requirement: str = ""  # nothing: it runs in the Python that runs this
    arguments: tuple[str, ...] = ()
    more: tuple[str, ...] = ()  # arguments of pip


# SynapseML is not among them: its wheel has no jars, and it fetches them from a Maven repository when it starts.
_PEERS = {
    "flink": Peer("flink_java", "apache-flink-libraries==2.3.0"),  # only the jars: the program is Java
    "pyflink": Peer("pyflink_program", "apache-flink==2.3.0"),
    "ray": Peer("ray_program", "ray[data]==2.60.0"),
    "daft": Peer("daft_program", "daft==0.7.26"),
    "jvm": Peer("spark_jvm"),
    # With pandas 3 the client warns at each query.
    "sail": Peer("engine_program", "pysail==0.7.2", ("sail",), ("-e", f"{ROOT}[benchmarks,sail]", "pandas<3")),
}
_OWN = {
    "connect": Peer("engine_program", arguments=("connect",)),
    **{name: Peer("own_program", arguments=(name,)) for name in ("asyncudf", "handwritten", "gather", "bare")},
}
PEERS: tuple[str, ...] = tuple(_PEERS)


def _peer(name: str) -> Peer:
    return (_PEERS | _OWN)[name]


def _marker(name: str) -> Path:
    """Holds what is installed and was tried; written last."""
    return ROOT / "build" / "peers" / name / "ready"


def _wanted(requirement: str) -> str:
    return " ".join([requirement, *CLIENT])


def version(name: str) -> str:
    """The version that is ready to be run.

    Raises:
        PeerUnavailable: The peer is not installed.
    """
    requirement = _peer(name).requirement
    try:
        if not requirement:
            return importlib.metadata.version("pyspark")
        if _marker(name).read_text() == _wanted(requirement):
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
    peer, marker = _peer(name), _marker(name)
    requirement = peer.requirement
    if not requirement:
        raise PeerUnavailable("this Python has no pyspark")
    marker.parent.mkdir(parents=True, exist_ok=True)
    _step([sys.executable, "-m", "venv", "--clear", str(marker.parent)])
    _step([str(marker.parent / "bin" / "python"), "-m", "pip", "install", "--quiet", requirement, *peer.more, *CLIENT])
    trial(name)
    marker.write_text(_wanted(requirement))


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
