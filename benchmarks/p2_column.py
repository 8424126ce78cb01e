"""P2: a whole query on local[1], an instant async function as a column, beside what Spark users do today.

    python -m benchmarks.p2_column [--rows 1000000]

The query sums the column. `arrow udf` is Spark's own Arrow-optimized Python UDF on the plain function, `gather`
is `asyncio.gather` over each Arrow batch. The session is warm, and its start is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import functions as sf

from asyncudf import async_pandas_udf
from benchmarks._common import interleaved, report, spark


def columns() -> dict[str, Callable[[str], Any]]:
    """The ways to call a function for a column; defined here so that they travel to the worker by value."""

    @async_pandas_udf
    async def ours(x: int) -> int:
        return x

    @sf.udf("bigint", useArrow=True)
    def arrow_python(x: int) -> int:
        return x

    @sf.arrow_udf("bigint")
    def gathered(batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        async def call(x: int) -> int:
            return x

        async def all_of(values: list[int]) -> list[int]:
            return await asyncio.gather(*map(call, values))

        for batch in batches:
            yield pa.array(asyncio.run(all_of(batch.to_pylist())), pa.int64())

    return {"async_pandas_udf": ours, "arrow udf": arrow_python, "gather": gathered}


def query(session: Any, rows: int, column: Callable[[str], Any]) -> float:
    """Seconds for the whole query."""
    start = time.perf_counter()
    total = session.range(rows, numPartitions=1).select(column("id").alias("x")).agg(sf.sum("x")).first()[0]
    assert total == rows * (rows - 1) // 2
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    session = spark(1)
    try:
        cases = {name: partial(query, session, args.rows, column) for name, column in columns().items()}
        report(f"P2 {args.rows} rows as a column", interleaved(cases, args.repetitions), "s", "arrow udf")
    finally:
        session.stop()


if __name__ == "__main__":
    main()
