"""What goes into a peer's program and what comes out; standard library only, as every environment imports it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

__all__ = ("Measurement", "Mode", "Workload", "serve")

Mode = Literal["ordered", "unordered"]


@dataclass(frozen=True)
class Workload:
    """One call per latency, in seconds; a call of latency 0 returns at once, without a single suspension.

    Attributes:
        latencies: How long each call takes.
        mode: Whether results must come in the order of the rows.
        capacity: How many calls may be in flight.
        timeout: Seconds allowed per call, for the peers that have a timeout.
        room: How many times the capacity the rows are that a peer at its best holds: calls in flight and finished
            rows that wait for their turn. Who knows the latencies makes it larger than a slow call by a usual one.
        url: Where a call makes a request instead of waiting; its latency then only says what is expected.
    """

    latencies: Sequence[float]
    mode: Mode = "ordered"
    capacity: int = 100
    timeout: float = 60.0
    room: int = 100
    url: str = ""

    @classmethod
    def instant(cls, rows: int, mode: Mode = "ordered", capacity: int = 100, timeout: float = 60.0) -> Workload:
        """`rows` calls that all return at once."""
        return cls([0.0] * rows, mode, capacity, timeout)


@dataclass(frozen=True)
class Measurement:
    """Seconds from the start of the first call to the arrival of the last result, and the rows that arrived.

    `note` says how the peer was set up, and what it did not do of what was asked, such as a mode or a timeout that it
    does not have.
    """

    seconds: float
    rows: int
    version: str
    note: str = ""


def serve(measure: Callable[[Workload, bool], Measurement]) -> None:
    """A program's main: reads the workload from the file that is the first argument, prints the result as JSON.

    `measure` is also told whether the last argument is `best`: whether the peer is to be set up in the best way that we
    found, not as its documentation has it.
    """
    workload = Workload(**json.loads(Path(sys.argv[1]).read_text()))
    print(json.dumps(asdict(measure(workload, sys.argv[-1] == "best"))), flush=True)
