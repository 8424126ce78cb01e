"""COPIES: what `object_reuse` saves, in a chain of plain functions over rows with a list and a map."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from pyspark.sql import DataFrame

from asyncudf import AsyncStream

from .._harness import Case, Sample, Settings, System, Target
from .._spark import local_spark

__all__ = ("COPIES",)

ROWS = 100_000
COLUMNS = ("id", "array_repeat(id, 10) AS numbers", "map('a', id, 'b', id) AS named")


@contextlib.contextmanager
def systems(settings: Settings) -> Iterator[list[System]]:
    with local_spark() as session:
        rows = settings.rows(ROWS)
        df = session.range(rows, numPartitions=1).selectExpr(*COLUMNS).cache()
        df.count()
        yield [
            System("object_reuse=True", partial(query, df, rows, True)),
            System("object_reuse=False", partial(query, df, rows, False)),
        ]


def query(df: DataFrame, rows: int, reuse: bool) -> Sample:
    def keep(row: dict[str, Any]) -> bool:
        return row["id"] >= 0

    stream = AsyncStream(df, object_reuse=reuse).filter(keep).filter(keep).filter(keep)
    start = time.perf_counter()
    assert stream.count() == rows
    return Sample({"us/row": (time.perf_counter() - start) / rows * 1e6})


COPIES = Case(
    "COPIES",
    "three plain functions over rows with a list and a map",
    systems,
    targets=(Target("us/row", "object_reuse=True", against="object_reuse=False"),),
    repetitions=3,
    plots=("us/row",),
)
