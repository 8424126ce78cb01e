"""Peers to compare with: Flink in Java and in Python, Ray Data, Daft, and Spark's Java API.

    python -m benchmarks.peers [names...]    # makes their environments below build/peers/

All are counted in the same way: from the start of the first call to the arrival of the last result at the sink. Each
is there once, in the best set-up that we found, often with a second bound made by hand; the note of a measurement says
how. A program stays for all rounds of a case and makes all calls once before they count, as ours does.

`asyncudf`, `handwritten`, `gather` and `bare` are programs of the same kind, for the case that measures whole jobs.
`sail` is no peer but ours on another engine, which needs an environment of its own as they do; beside it, `connect`.
"""

from benchmarks.peers._environments import PEERS, PeerUnavailable, version
from benchmarks.peers._run import Program
from benchmarks.peers._workload import Measurement, Workload

__all__ = ("PEERS", "Measurement", "PeerUnavailable", "Program", "Workload", "version")
