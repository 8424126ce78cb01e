"""A store in the memory of one process, for tests; its time passes by `advance` alone."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from .._errors.exceptions import OptionError
from .base import Key, ResultStore

_stays_here: ContextVar[bool] = ContextVar("asyncudf_stays_here", default=False)


@contextlib.contextmanager
def staying_here() -> Iterator[None]:
    """A block whose plans do not leave this process, so that what is in them need not pickle."""
    token = _stays_here.set(True)
    try:
        yield
    finally:
        _stays_here.reset(token)


class MemoryStore(ResultStore):
    """A store for tests without Spark: its copies, one for each task, share what is in it.

    Results age by `advance` alone.

    >>> import asyncio
    >>> store = MemoryStore(ttl=60)
    >>> asyncio.run(store.put_many({b"key": b"value"}, store.ttl))
    >>> store.advance(60)
    >>> asyncio.run(store.get_many([b"key"]))
    [None]
    """

    is_built_in: bool = True

    # _entries: of each key its value, and when it ends by the shared clock
    # _shared: the clock, hits and misses; copies have the same objects

    def __init__(self, ttl: float | None = None, error_ttl: float | None = None, key: Key | None = None) -> None:
        self.ttl: float | None = ttl
        self.error_ttl: float | None = error_ttl
        self.key: Key | None = key
        self._entries: dict[bytes, tuple[bytes, float]] = {}
        self._shared: dict[str, float] = {"now": 0.0, "hits": 0, "misses": 0}

    def __reduce__(self) -> tuple[Any, ...]:
        if _stays_here.get():
            return MemoryStore, ()
        raise OptionError("a MemoryStore does not travel to Spark's workers; use ResultStore.executor()")

    def __copy__(self) -> MemoryStore:
        twin = object.__new__(type(self))  # a subclass too, with what it has added
        twin.__dict__.update(self.__dict__)
        return twin

    def advance(self, seconds: float) -> None:
        """Let time pass for what is in the store."""
        self._shared["now"] += seconds

    async def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        now = self._shared["now"]
        found = [value if end > now else None for value, end in (self._entries.get(key, _NOTHING) for key in keys)]
        misses = found.count(None)
        self._shared["hits"] += len(found) - misses
        self._shared["misses"] += misses
        return found

    async def put_many(self, items: Mapping[bytes, bytes], ttl: float | None) -> None:
        end = math.inf if ttl is None else self._shared["now"] + ttl
        self._entries.update({key: (value, end) for key, value in items.items()})

    async def info(self) -> dict[str, int]:
        there = [value for value, end in self._entries.values() if end > self._shared["now"]]
        counts = {name: int(self._shared[name]) for name in ("hits", "misses")}
        return {"entries": len(there), "bytes": sum(map(len, there)), **counts}

    async def delete(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._entries.pop(key, None)

    async def clear(self) -> None:
        self._entries.clear()


_NOTHING: tuple[Any, float] = (None, -math.inf)
