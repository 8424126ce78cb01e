"""A session of Sail, whose server runs in this process, as its functions do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

__all__ = ("HAS_SAIL", "sail_session")

HAS_SAIL = find_spec("pysail") is not None  # its client is no PySpark: with it there is no other engine


@contextmanager
def sail_session() -> Iterator[Any]:
    """A session on a server of its own, which ends with the block."""
    from pysail.spark import SparkConnectServer
    from pyspark.sql import SparkSession

    os.environ.setdefault("RUST_LOG", "error")  # each start and end is told
    server = SparkConnectServer("127.0.0.1", 0)
    server.start(background=True)
    try:
        session = SparkSession.builder.remote(f"sc://127.0.0.1:{server.listening_address[1]}").create()
        yield session
        session.stop()
    finally:
        server.stop()
