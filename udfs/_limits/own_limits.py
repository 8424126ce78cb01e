"""The permits of limits that a task shares with no other task; over the coordinator they are `SharedPermits`."""

from __future__ import annotations

import asyncio
import weakref
from collections import defaultdict

from .key_gate import KeyTimes, OwnKeys
from .rate_limit import Bucket, LimitTime, RateLimit


class OwnLimits:
    """The times of the limits of one event loop: those of one name, whatever their numbers, have one time."""

    def __init__(self) -> None:
        self._times = defaultdict[str, LimitTime](LimitTime)
        self._keys = defaultdict[str, KeyTimes](KeyTimes)

    @classmethod
    def of_loop(cls) -> OwnLimits:
        """Those of the loop that runs."""
        return _of_loops.setdefault(asyncio.get_running_loop(), cls())

    def bucket(self, limit: RateLimit) -> Bucket:
        """The permits of a limit."""
        return Bucket(limit, None if limit.name is None else self._times[limit.name])

    def keys(self, limit: RateLimit) -> OwnKeys:
        """The permits of each key of a limit by key."""
        return OwnKeys(limit, KeyTimes() if limit.name is None else self._keys[limit.name])


_of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, OwnLimits] = weakref.WeakKeyDictionary()
