"""P26: a budget and a rate of tokens, both settled after each call, which four tasks share.

Each call reserves 1,000 tokens and uses 100 to 400 of them; 500,000 a second are allowed. So about 2,000 calls a second
begin, and the budget ends before the rows do. The function is the service: it waits, and bills what it answers. The
rate is that of the middle eight tenths of the calls: at the start and at the end what is reserved bounds them.

Calls without limits come eight times as often, and a call that comes alone costs more: its own turn of the event loop,
and its own wake-up. So the last system has no limits and 25 calls in flight in each task, which begin as often as those
with limits, one by one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from asyncudf import AsyncUDF, Budget, RateLimit, async_pandas_udf

from .._harness import Case, Sample, Settings, System, Target
from .._meter import Processes, driver_of
from .._spark import local_spark

__all__ = ("P26",)

ROWS, TASKS = 20_000, 4
RESERVED, RATE = 1_000, 500_000  # tokens of a call, and of a second
PRICE = 1e-6  # USD of a token
SHARE = 0.9  # of what all rows cost, that may be spent


def tokens_of(n: int) -> int:
    return 100 + n * 7919 % 301


def asking(capacity: int = 200, **options: Any) -> AsyncUDF[..., Any]:
    @async_pandas_udf("ended double, tokens long", capacity=capacity, **options)
    async def ask(n: int) -> dict[str, float]:
        await asyncio.sleep(0.03 + n * 7919 % 401 / 10_000)  # 50 ms on the average; equal calls would end together
        return {"ended": time.time(), "tokens": tokens_of(n)}

    return ask


@contextlib.contextmanager
def systems(settings: Settings) -> Iterator[list[System]]:
    with local_spark(cores=TASKS) as session:
        rows = settings.rows(ROWS)
        df = session.range(0, rows, 1, TASKS)
        amount = SHARE * PRICE * sum(map(tokens_of, range(rows)))
        limited = asking(
            budget=Budget(amount, reserve=PRICE * RESERVED, settle=lambda n, answer: PRICE * answer["tokens"]),
            rate_limit=RateLimit(RATE, cost=RESERVED, settle=lambda n, answer: answer["tokens"]),
            on_spent="null",
        )
        yield [
            System("budget and rate", partial(measure, session, df, limited, amount)),
            System("no limits", partial(measure, session, df, asking(), amount)),
            System("no limits, as often", partial(measure, session, df, asking(capacity=25), amount)),
        ]


def measure(session: SparkSession, df: DataFrame, ask: AsyncUDF[..., Any], amount: float) -> Sample:
    used = Processes(driver_of(session), "python")
    before = used.cpu()
    found = df.select(ask("id").alias("r")).selectExpr("r.ended", "r.tokens").dropna().toPandas().sort_values("ended")
    middle = found[len(found) // 10 : -len(found) // 10]
    seconds = middle["ended"].iloc[-1] - middle["ended"].iloc[0]
    return Sample(
        {
            "% of the amount": 100 * PRICE * found["tokens"].sum() / amount,
            "% of the rate": 100 * middle["tokens"].sum() / (RATE * seconds),
            "CPU us/call": 1e6 * (used.cpu() - before) / len(found),
        }
    )


P26 = Case(
    "P26",
    "a budget and a rate of tokens, both settled after each call, over four tasks",
    systems,
    (
        Target("% of the amount", "budget and rate", most=100),
        Target("% of the rate", "budget and rate", least=95),
        Target("CPU us/call", "budget and rate", most=150),
    ),
    minutes=1.0,
)
