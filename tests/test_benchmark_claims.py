"""What a sceptic tried on the benchmarks: each way to a figure that flatters is closed, and stays so."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from functools import partial

import pytest

from benchmarks._engine import engine_seconds, gather_seconds
from benchmarks._work import instant
from benchmarks.cases.p9_suspended import bare_seconds

ROWS = 100


@pytest.mark.parametrize(
    "seconds",
    [
        partial(engine_seconds, instant, ROWS, "ordered"),
        partial(gather_seconds, instant, ROWS),
        partial(bare_seconds, ROWS, asyncio.new_event_loop),
    ],
    ids=["engine", "gather", "bare"],
)
def test_objects_of_the_benchmark_are_nobodys_work_for_the_garbage_collector(seconds: Callable[[], float]) -> None:
    gc.unfreeze()
    try:
        seconds()
        assert gc.get_freeze_count() > len(gc.get_objects())
    finally:
        gc.unfreeze()
