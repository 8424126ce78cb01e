"""P5, P5b, SLOW and TLS: aiohttp's requests to a server on the same machine; Flink and `jvm` make theirs with Netty.

P5 asks for 2,000 requests a second, which two cores can do beside the server: what is counted is how near each system
comes. P5b has a server that answers at once, so that the client is busy all the time: what is judged is the CPU of a
request. In `of the task` it is that of the Python worker, else that of all processes of a system: with Spark its JVM,
too. SLOW is a model's service: calls of 1 s, and a thousand of them in flight, each on a connection of its own. TLS has
the price of a request with TLS, on connections that are kept and on new ones.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial

from .._calls import Calls
from .._harness import Case, Settings, System, Target
from .._http_server import certified, http_server
from .._spark import local_spark
from .._work import CAPACITY

__all__ = ("P5", "P5B", "SLOW", "TLS")

PEERS = ("flink", "jvm", "ray", "daft")
AT_ONCE = 1e-6  # seconds that an answer is expected to take


@contextlib.contextmanager
def requests(
    latency: float, rows: int, capacity: int, peers: Sequence[str], settings: Settings
) -> Iterator[list[System]]:
    with local_spark() as session, http_server(latency) as url:
        calls = Calls(session, [latency or AT_ONCE] * settings.rows(rows), capacity, url=url)
        yield [
            System("bare", calls.bare),
            System("ordered_wait", calls.ordered),
            System("unordered_wait", calls.unordered),
            System("handwritten", calls.handwritten),
            System("gather", calls.gather),
            *calls.peers(settings, peers),
        ]


@contextlib.contextmanager
def with_tls(settings: Settings) -> Iterator[list[System]]:
    with contextlib.ExitStack() as stack:
        options, authority = certified(stack.enter_context(tempfile.TemporaryDirectory()))
        session = stack.enter_context(local_spark())
        url = stack.enter_context(http_server(0.0, *options))
        systems = []
        for name, rows, is_kept in (("kept", 10_000, True), ("new", 2_000, False)):
            latencies = [AT_ONCE] * settings.rows(rows)
            calls = Calls(session, latencies, url=url, authority=authority, is_kept=is_kept)
            systems += [
                System(f"bare, {name} connections", calls.bare),
                System(f"ordered_wait, {name} connections", calls.ordered),
            ]
        yield systems


def bound(quantity: str, ours: str, against: str, target: str = "", **limit: float) -> Target:
    return Target(quantity, ours, against=against, id=target, **limit)


P5 = Case(
    "P5",
    "HTTP requests to a server that answers after 50 ms, 100 in flight",
    partial(requests, 0.05, 8_000, CAPACITY, PEERS),
    (
        bound("requests/s", "ordered_wait", "bare", least=0.97),
        bound("requests/s", "unordered_wait", "bare", least=0.97),
        bound("requests/s", "ordered_wait", "handwritten", least=0.98),
        bound("requests/s", "ordered_wait", "flink", least=0.98),
    ),
    minutes=5.0,
    peers=PEERS,
)
P5B = Case(
    "P5b",
    "HTTP requests to a server that answers at once, 100 in flight",
    partial(requests, 0.0, 40_000, CAPACITY, PEERS),
    (
        bound("CPU us/request of the task", "ordered_wait", "bare", "P10", most=1.1),
        bound("CPU us/request of the task", "ordered_wait", "handwritten", "P10", most=1.1),
    ),
    minutes=6.0,
    peers=PEERS,
)
SLOW = Case(
    "SLOW",
    "HTTP requests to a server that answers after 1 s, 1,000 in flight",
    partial(requests, 1.0, 4_000, 1_000, ("flink",)),
    (
        bound("requests/s", "ordered_wait", "bare", least=0.97),
        bound("requests/s", "ordered_wait", "handwritten", least=0.98),
    ),
    minutes=3.3,
    peers=("flink",),
)
TLS = Case(
    "TLS",
    "HTTPS requests to a server that answers at once, 100 in flight",
    with_tls,
    tuple(
        bound("CPU us/request of the task", f"ordered_wait, {name}", f"bare, {name}", most=1.1)
        for name in ("kept connections", "new connections")
    ),
    minutes=1.6,
)
