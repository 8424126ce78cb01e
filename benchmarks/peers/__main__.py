"""Makes the peers' environments below build/peers/, skipping what is there: python -m benchmarks.peers [names...]"""

from __future__ import annotations

import argparse

from benchmarks.peers._environments import PEERS, PeerUnavailable, install, version
from benchmarks.peers._run import Program
from benchmarks.peers._workload import Workload


def _trial(name: str) -> None:
    program = Program(name, Workload([0.0, 0.01]))
    try:
        program.run(2, limit=180.0)
    finally:
        program.close()


def _prepared(name: str) -> str:
    """One line: the version that is ready, or why there is none."""
    try:
        try:
            return f"ready, version {version(name)}"
        except PeerUnavailable:
            install(name, _trial)
            return f"ready, version {version(name)}"
    except PeerUnavailable as reason:
        return f"cannot be installed: {reason}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PEERS)}; all of them if none is given")
    names = parser.parse_args().names or PEERS
    for unknown in set(names) - set(PEERS):
        parser.error(f"there is no peer {unknown!r}; there are {', '.join(PEERS)}")
    for name in names:
        print(f"{name:18s} {_prepared(name)}", flush=True)


if __name__ == "__main__":
    main()
