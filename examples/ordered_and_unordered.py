"""In which order rows leave, and what that order costs: ordered, unordered, and unordered with watermarks.

    python examples/ordered_and_unordered.py [--capacity 4] [--slow 0.5] [--fast 0.02]

24 rows, each calling a "service" that takes a while; the first row of every six is slow. The same function runs in
four ways over one partition:

    ordered                         rows leave in the order in which they came; finished ones wait inside for their turn
    ordered, queue_size=capacity    the same, but only `capacity` rows may be inside: a slow row stops all new calls
                                    (this is what Apache Flink, where these names come from, always does)
    unordered                       rows leave when their call is done
    unordered with watermarks       the same, but no row passes a watermark: a fence, here after every sixth row
"""

from __future__ import annotations

import asyncio
import time

import _session
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as in PySpark's own documentation

from asyncudf import WatermarkStrategy, async_pandas_udf, ordered_wait, unordered_wait

ROWS, GROUP = 24, 6


@async_pandas_udf("started double, ended double")
async def call_service(latency: float) -> dict[str, float]:
    started = time.time()
    await asyncio.sleep(latency)
    return {"started": started, "ended": time.time()}


def show(title: str, result: DataFrame) -> None:
    rows = result.collect()
    order = [f"{row.id:2d}" for row in rows]
    seconds = max(row.ended for row in rows) - min(row.started for row in rows)
    groups = [" ".join(order[start : start + GROUP]) for start in range(0, ROWS, GROUP)]
    print(f"{title:30s} {seconds:5.2f} s   {' | '.join(groups)}")


def main() -> None:
    parser = _session.parser(__doc__)
    parser.add_argument("--capacity", type=int, default=4, help="calls in flight at once")
    parser.add_argument("--slow", type=float, default=0.5, help="seconds of a slow call")
    parser.add_argument("--fast", type=float, default=0.02, help="seconds of any other")
    args = parser.parse_args()
    spark = _session.session()
    latency = F.when(F.col("id") % GROUP == 0, args.slow).otherwise(args.fast)
    df = (
        spark.range(ROWS)
        .withColumn("latency", latency)
        .withColumn("fence", F.col("id") % GROUP == GROUP - 1)
        .coalesce(1)
    )
    function = call_service.with_options(capacity=args.capacity)
    fences = WatermarkStrategy.for_punctuation("fence")  # a watermark follows each row in which the column is true
    show("ordered", ordered_wait(df, function, "latency"))
    show("ordered, queue_size=capacity", ordered_wait(df, function, "latency", queue_size=args.capacity))
    show("unordered", unordered_wait(df, function, "latency"))
    show("unordered with watermarks", unordered_wait(df, function, "latency", watermark=fences))
    spark.stop()


if __name__ == "__main__":
    main()
