"""Peers to compare with: Flink, PyFlink, Pathway, Daft, Ray Data, and what a Spark user would write instead.

    python -m benchmarks.peers [names...]    # makes their environments below build/peers/

then, in a benchmark: `run("flink-java", Workload(latencies, "ordered")).seconds`. All are counted in the same way: from
the start of the first call to the arrival of the last result at the sink. Each run is a new process, whose start does
not count, but whose just-in-time compiler, if it has one, is cold unless the program says that it goes over the rows
twice.

Each is there twice: `flink-java` as its documentation has it, `flink-java-best` in the best set-up
that we found, often with a second bound made by hand. A measurement's note says how.
"""

from benchmarks.peers._environments import PEERS, PeerUnavailable
from benchmarks.peers._run import run
from benchmarks.peers._workload import Measurement, Mode, Workload

__all__ = ("PEERS", "Measurement", "Mode", "PeerUnavailable", "Workload", "run")
