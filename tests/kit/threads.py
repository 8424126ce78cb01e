"""The threads that are ours."""

from __future__ import annotations

import threading


def loop_threads() -> list[threading.Thread]:
    """Those in which the event loops of tasks run."""
    return [thread for thread in left_threads() if thread.name == "asyncudf-loop"]


def call_threads() -> list[threading.Thread]:
    """Those in which plain functions are called."""
    return [thread for thread in left_threads() if thread.name.startswith("asyncudf-call")]


def left_threads() -> list[threading.Thread]:
    """Those that a call or a monitor has started; the driver's coordinator stays until its process ends."""
    ours = [thread for thread in threading.enumerate() if thread.name.startswith("asyncudf")]
    return [thread for thread in ours if thread.name != "asyncudf-coordinator"]
