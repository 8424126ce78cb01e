"""Failures, retries and deadlines, as Spark's user sees them."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import asyncio
import re
import threading

import pytest

from asyncudf import async_pandas_udf

pytestmark = pytest.mark.spark


@async_pandas_udf
async def broken_text(id: int) -> int:
    """What a service sends that cuts an emoji in half: JSON allows it, UTF-8 does not."""
    if id == 1:
        raise ValueError("no such city: \ud83d")
    return id


@pytest.mark.spark_only("the protocol of its workers")
def test_an_error_text_that_is_no_unicode_fails_the_query_and_does_not_hang_it(spark):
    """Spark's worker says that an error follows, then fails to encode it; Spark waits for it for ever."""
    errors = []

    def run():
        spark.sparkContext.setJobGroup("broken text", "", interruptOnCancel=True)
        try:
            spark.range(0, 3, 1, 1).select(broken_text("id")).collect()
        except Exception as error:
            errors.append(str(error))

    query = threading.Thread(target=run)
    query.start()
    query.join(timeout=60)
    hangs = query.is_alive()
    if hangs:
        spark.sparkContext.cancelJobGroup("broken text")
        query.join()
    assert not hangs
    assert "broken_text failed in attempt 1" in errors[0]
    assert "no such city" in errors[0]


def test_what_a_task_keeps_in_a_module_fails_the_next_task_of_its_worker_and_names_the_way_out(spark, spark_error):
    """A worker runs one task after another, each with an event loop of its own; such rows were NULL."""

    @async_pandas_udf(on_error="null", capacity=4)
    async def one_at_a_time(id: int) -> int:
        lock = vars(asyncio).setdefault("_kept_by_a_test", asyncio.Semaphore(1))  # stands for a module of the user's
        async with lock:
            await asyncio.sleep(0.001)
        return id

    text = spark_error(spark.range(0, 64, 1, 8).select(one_at_a_time("id")))
    assert re.search(
        r"asyncudf\.FatalError: one_at_a_time failed in attempt 1, .*is bound to a different event loop", text
    )
    assert re.search(r"make it per task, with resources= or in AsyncFunction\.open", text)
