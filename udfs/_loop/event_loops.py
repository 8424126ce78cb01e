"""Which event loop the calls of a task run on."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import time

from ._errors import AsyncUDFError
from ._options import EventLoop

__all__ = ("new_event_loop",)


def new_event_loop(kind: EventLoop) -> asyncio.AbstractEventLoop:
    """A loop of that kind.

    Raises:
        AsyncUDFError: uvloop is asked for and not installed here.
    """
    if kind is not EventLoop.ASYNCIO:
        if importlib.util.find_spec("uvloop") is not None:
            # uvloop's own time stands still between two turns: a call that blocks the loop would take no time.
            uvloop = importlib.import_module("uvloop")
            loop: asyncio.AbstractEventLoop = type("Loop", (uvloop.Loop,), {"time": staticmethod(time.monotonic)})()
            return loop
        if kind is EventLoop.UVLOOP:
            raise AsyncUDFError("loop='uvloop' needs uvloop on every executor: pip install 'asyncudf[fast]'")
    return asyncio.new_event_loop()
