"""What all tests of a session rely on: that none disturbs another one."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import asyncio
import os
import signal
import threading

import pytest

from asyncudf import async_pandas_udf
from tests.kit.interrupts import end_answers

pytestmark = pytest.mark.spark


class TimeIsOver(BaseException):
    """As a time limit raises it, in the middle of anything."""


def test_a_test_without_time_takes_its_answer_and_its_job_with_it(spark, journal, until):
    """All tests after it failed of answers to other questions, and waited for the cores of its job."""

    @async_pandas_udf(timeout=None)
    async def hangs(id: int) -> int:
        journal.write("call", os.getpid())
        await asyncio.Event().wait()

    def interrupt() -> None:
        until(lambda: len(journal) == 2, "a call of each task")
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    def end(number, frame):
        end_answers()
        raise TimeIsOver

    before = signal.signal(signal.SIGUSR1, end)
    watch = threading.Thread(target=interrupt)
    watch.start()
    try:
        with pytest.raises(TimeIsOver) as caught:  # pytest keeps what was interrupted, too
            spark.range(0, 2, 1, 2).select(hangs("id")).collect()
    finally:
        watch.join()
        signal.signal(signal.SIGUSR1, before)
    assert [row.id for row in spark.range(0, 4, 1, 2).collect()] == [0, 1, 2, 3]
    assert caught.type is TimeIsOver
