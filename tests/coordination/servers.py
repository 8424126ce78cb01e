"""A coordinator for tests, started once, and tasks that talk to it."""

from __future__ import annotations

import itertools
import time
from typing import Any

from asyncudf._coordination.client import Coordinator
from asyncudf._coordination.server import CoordinatorServer

__all__ = ("Scripts", "coordinator", "fail", "space_of_its_own")


_NUMBERS = itertools.count()


def space_of_its_own() -> str:
    """Keys that no other test has."""
    return f"test{next(_NUMBERS)}"


def coordinator(server: CoordinatorServer, space: str, **options: Any) -> Coordinator:
    """A task's connection, on real time."""
    return Coordinator(server.url, space, clock=time.monotonic, **options)


def fail(error: BaseException) -> None:
    """For tasks that must not fail."""
    raise AssertionError(error)


class Scripts:
    """Runs scripts at times that a test gives."""

    def __init__(self, server: CoordinatorServer) -> None:
        import redis

        self._redis = redis.Redis.from_url(server.url, decode_responses=True)
        self.space = space_of_its_own()

    def run(self, script: str, now: float, keys: list[str], *arguments: object) -> Any:
        """As `Coordinator.run`, at that time."""
        names = [f"{{{self.space}}}:{key}" for key in keys]
        texts = [f"{one:.17g}" if isinstance(one, float) else str(one) for one in arguments]
        return self._redis.eval(script, len(names), *names, f"{now:.17g}", *texts)

    def forget(self) -> None:
        """The server has lost its memory."""
        self._redis.flushall()

    def close(self) -> None:
        self._redis.close()
