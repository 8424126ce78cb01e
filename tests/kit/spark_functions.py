"""Functions for Spark's workers, which cannot import them: they travel by value."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import asyncio

from asyncudf import OutputTag, ProcessFunction, RetryStrategy, RuntimeContext, async_pandas_udf


@async_pandas_udf(capacity=3)
async def labelled(name: str, id: int) -> str:
    await asyncio.sleep(id * 5 % 7 / 2000)
    return f"{id}:{name}"


@async_pandas_udf
async def same(id: int) -> int:
    return id


async def length(city: str | None) -> int:
    return len(city or "")


async def told(id: int, context: RuntimeContext) -> int:
    """May write side outputs, so its evaluation is kept."""
    return context.partition


class Passes(ProcessFunction):
    def process_element(self, value, context, collector):
        collector.collect(value)


LOG = OutputTag("log", "id bigint, note string")
TWICE = RetryStrategy.fixed_delay(attempts=2, delay=0.01)


def note(context, id):
    if id % 2:
        context.output(LOG, {"id": id, "note": f"odd {id}"})
    if id == 3:
        context.output(LOG, {"id": id, "note": None})


@async_pandas_udf("got bigint")
async def from_a_coroutine(id: int, context: RuntimeContext):
    note(context, id)
    await asyncio.sleep(0)
    return {"got": id}


@async_pandas_udf("half int", on_error="dead_letter", retry=TWICE)
async def halved(id: int):
    if id % 2:
        raise ValueError(f"{id} is odd")
    return {"half": id // 2}
