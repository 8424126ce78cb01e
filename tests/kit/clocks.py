"""Clocks for tests that need real threads, or time that passes at each look at the clock."""

from __future__ import annotations

import asyncio

import pytest

from asyncudf.testing import VirtualClockLoop


class HandClock(asyncio.SelectorEventLoop):
    """Real threads and sockets, but time passes only when the test says so: a busy machine makes no row late."""

    now = 0.0

    @classmethod
    def of_the_kit(cls, monkeypatch: pytest.MonkeyPatch) -> HandClock:
        """The loop of the next `run_rows(..., clock="real")`."""
        loop = cls()
        monkeypatch.setattr(asyncio, "new_event_loop", lambda: loop)
        return loop

    def time(self) -> float:
        return self.now

    def pass_time(self, seconds: float) -> None:
        """From any thread."""
        self.call_soon_threadsafe(self._pass, seconds)

    def _pass(self, seconds: float) -> None:
        self.now += seconds


class TickingClock(VirtualClockLoop):
    """Each look at the clock takes a millisecond: what two looks find may have ended between them."""

    def time(self) -> float:
        self.block(0.001)
        return super().time()
