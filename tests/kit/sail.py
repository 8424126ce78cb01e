"""A session of Sail, whose server runs in this process, as its functions do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

__all__ = ("HAS_SAIL", "sail_session", "session_at")

HAS_SAIL = find_spec("pysail") is not None  # its client is no PySpark: with it there is no other engine
# Of the client 3.5 each session that the garbage collector ends, even one that was stopped, closes the client's pool
# again, and waits for ever if a thread of this pool collects the garbage.
SESSIONS: list[Any] = []


def session_at(port: int) -> Any:
    """A session on the server at this port, which is not collected."""
    # The class of `connect` would leave a client of Spark 3.5 without an active session.
    from pyspark.sql import SparkSession

    SESSIONS.append(SparkSession.builder.remote(f"sc://127.0.0.1:{port}").create())
    return SESSIONS[-1]


@contextmanager
def sail_session() -> Iterator[Any]:
    """A session on a server of its own, which ends with the block."""
    from pysail.spark import SparkConnectServer

    os.environ.setdefault("RUST_LOG", "error")  # each start and end is told
    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    try:
        session = session_at(server.listening_address[1])
        yield session
        session.stop()
    finally:
        server.stop()
