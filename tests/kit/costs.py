"""What work costs, counted and not timed, so that a busy machine changes nothing."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

__all__ = ("python_calls",)


def python_calls(work: Callable[[], Any]) -> int:
    """How many Python functions are called meanwhile, in this thread."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    before, collects = sys.getprofile(), gc.isenabled()
    gc.disable()  # what it calls at the end of others is none of the work
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
        if collects:
            gc.enable()
    return calls
