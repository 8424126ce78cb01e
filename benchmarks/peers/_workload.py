"""What goes into a peer's program and what comes out; standard library only, as every environment imports it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

__all__ = ("Measurement", "Workload", "serve")


@dataclass(frozen=True)
class Workload:
    """One call per latency, in seconds; a call of latency 0 returns at once, without a single suspension.

    Attributes:
        latencies: How long each call takes.
        capacity: How many calls may be in flight.
        timeout: Seconds allowed per call, for the peers that have a timeout.
        mode: Whether results must come in the order of the rows.
        room: How many times the capacity the rows are that a peer holds: calls in flight and finished rows that wait
            for their turn. Who knows the latencies makes it larger than a slow call by a usual one.
        url: Where a call makes a request instead of waiting; its latency then only says what is expected.
        master: Of the programs on Spark.
        tasks: Of the programs on Spark, but for `jvm`; each has `capacity` calls in flight.
    """

    latencies: Sequence[float]
    capacity: int = 100
    timeout: float = 60.0
    mode: Literal["ordered", "unordered"] = "ordered"
    room: int = 100
    url: str = ""
    master: str = "local[1]"
    tasks: int = 1


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


def serve(make: Callable[[Workload], Callable[[Sequence[float]], Measurement]]) -> None:
    """A program's main: reads the workload from the file that is the first argument.

    Then each line of the standard input is a number of rows, of which it makes the calls, and prints what it measured
    as a line of JSON. It ends with its input.
    """
    workload = Workload(**json.loads(Path(sys.argv[1]).read_text()))
    measure = make(workload)
    for line in sys.stdin:
        print(json.dumps(asdict(measure(workload.latencies[: int(line)]))), flush=True)
