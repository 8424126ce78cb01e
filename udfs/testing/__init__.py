"""The test kit: the real operators over plain Python values, on a clock that does not wait. No Spark, no sleeping.

- `run_rows(function, rows)` runs a function over rows and returns what comes out; also in a notebook.
- `run_stream(build, rows, schema)` does it with a whole chain.
- `OperatorHarness` with a `ManualFunction` goes step by step: each call is completed by hand, in any order.
- `check_result_store(factory)` says whether a `ResultStore` of your own keeps what one promises; `MemoryStore` is one.

A minute of back-off takes no time, every run is the same, and a deadlock fails at once. `VirtualClockLoop` is that
clock, as an event loop for tests of your own.

>>> import asyncio
>>> async def weather(city: str) -> dict:
...     await asyncio.sleep(60)
...     return {"temp": 12.5}
>>> run_rows(weather, ["Oslo"], returnType="temp double")
[{'temp': 12.5}]
"""

from typing import TYPE_CHECKING

from .._errors.missing import MISSING as _MISSING
from .._names import on_use as _on_use

if TYPE_CHECKING:
    from .._engine.loop.virtual_clock import (
        VirtualClockLoop as VirtualClockLoop,  # help() would list all that asyncio's loop has
    )
    from ._harness import ManualFunction, OperatorHarness
    from ._result_store import MemoryStore, check_result_store
    from ._runs import run_rows, run_stream

__all__ = ("ManualFunction", "MemoryStore", "OperatorHarness", "check_result_store", "run_rows", "run_stream")

# Imported when they are used: what tests a store alone needs no Spark.
if not TYPE_CHECKING:
    __getattr__, __dir__ = _on_use(
        __name__,
        {
            ".._engine.loop.virtual_clock": ("VirtualClockLoop",),
            "._harness": ("ManualFunction", "OperatorHarness"),
            "._result_store": ("MemoryStore", "check_result_store"),
            "._runs": ("run_rows", "run_stream"),
        },
        _MISSING,
    )
