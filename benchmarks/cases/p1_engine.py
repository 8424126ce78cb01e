"""P1: what the engine costs per row, alone: an instantly returning function, deadlines on, no Spark.

`gather` is the idiom that it replaces, `asyncio.gather` over each batch of 10,000 rows. P9 has a function that gives
way to the event loop, as every real call does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial

from .._engine import engine_seconds, gather_seconds
from .._harness import Case, Sample, Settings, System, Target
from .._work import instant

__all__ = ("MOST", "P1")

ROWS = 1_000_000
MOST = 1.2  # us a row


@contextlib.contextmanager
def systems(settings: Settings) -> Iterator[list[System]]:
    rows = settings.rows(ROWS)
    yield [
        System("ordered", partial(per_row, partial(engine_seconds, instant, rows, "ordered"), rows)),
        System("unordered", partial(per_row, partial(engine_seconds, instant, rows, "unordered"), rows)),
        System("gather", partial(per_row, partial(gather_seconds, instant, rows), rows), "reference"),
    ]


def per_row(seconds: Callable[[], float], rows: int) -> Sample:
    return Sample({"us/row": seconds() / rows * 1e6})


P1 = Case(
    "P1",
    "the engine alone, an instant function, a deadline for each row",
    systems,
    targets=(
        Target("us/row", "ordered", MOST),
        Target("us/row", "unordered", MOST),
        Target("us/row", "ordered", 0.2, against="gather"),
        Target("us/row", "unordered", 0.2, against="gather"),
    ),
    plots=("us/row",),
    loop="all on asyncio's loop",
)
