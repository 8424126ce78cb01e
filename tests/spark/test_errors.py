"""Failures, retries and deadlines, as Spark's user sees them."""

# ruff: noqa: A002, A006 - parameters are called like the columns, and Spark's own is `id`

import asyncio
import contextlib
import re
import threading

import pytest

from asyncudf import (
    AsyncFunction,
    AsyncTimeoutError,
    AsyncUDFError,
    RetryStrategy,
    async_pandas_udf,
    ordered_wait,
    unordered_wait,
)

pytestmark = pytest.mark.spark


class BusyError(Exception):
    pass


@async_pandas_udf(retry=RetryStrategy.fixed_delay(attempts=3, delay=0.001))
async def fails_at_seven(id: int, text: str = "") -> int:
    await asyncio.sleep(0)
    if id == 7:
        raise BusyError("service says no")
    return id


@pytest.mark.parametrize("entry_point", ["column", "ordered_wait", "unordered_wait"])
def test_the_error_names_function_attempts_partition_input_and_cause(spark, spark_error, entry_point):
    df = spark.range(0, 8, 1, 2).selectExpr("id", "repeat('long', 1000) AS text")
    queries = {
        "column": lambda: df.select(fails_at_seven("id", "text")),
        "ordered_wait": lambda: ordered_wait(df, fails_at_seven),
        "unordered_wait": lambda: unordered_wait(df, fails_at_seven),
    }
    text = spark_error(queries[entry_point]())
    message = re.search(r"AsyncUDFError: (fails_at_seven failed in attempt 3, partition 1, for the input .*)", text)[1]
    assert re.search(r"for the input \(7, 'long.*\.\.\..*long'\): BusyError: service says no", message)
    assert len(message) < 300, "the input is shortened"


def test_the_error_shows_the_line_of_the_users_function(spark):
    with pytest.raises(Exception, match=r'raise BusyError\("service says no"\)'):
        spark.range(7, 8).select(fails_at_seven("id")).collect()


def test_under_raise_the_task_fails_at_once_and_not_after_the_rows_before(spark, spark_error, journal):
    @async_pandas_udf(timeout=None)
    async def first_hangs(id: int) -> int:
        if id == 5:
            raise BusyError
        try:
            await asyncio.Event().wait()
        finally:
            journal.write("cancelled")

    assert "first_hangs failed" in spark_error(spark.range(0, 10, 1, 1).select(first_hangs("id")))
    assert 5 <= journal.count("cancelled") <= 9


def test_under_null_only_the_failed_row_is_null(spark):
    df = spark.range(0, 20, 1, 2)
    lenient = fails_at_seven.with_options(on_error="null")
    found = df.select("id", lenient("id").alias("r")).collect()
    assert [row.r for row in found] == [None if i == 7 else i for i in range(20)]
    assert [row.fails_at_seven for row in ordered_wait(df, lenient, "id").collect()] == [row.r for row in found]


def test_under_capture_the_result_is_a_struct_of_value_and_error(spark):
    captured = fails_at_seven.with_options(on_error="capture")
    df = spark.range(6, 8, 1, 1).select(captured("id").alias("r"))
    ddl = "struct<value:bigint,error:struct<type:string,message:string,attempts:int,elapsed:double,status:int>>"
    assert df.schema["r"].dataType.simpleString() == ddl
    good, bad = (row.r for row in df.collect())
    assert (good.value, good.error, bad.value) == (6, None, None)
    assert (bad.error.type, bad.error.message, bad.error.attempts) == ("BusyError", "service says no", 3)
    assert bad.error.elapsed > 0.0015, "the two back-offs are part of it, but for what the clock rounds off"


def test_a_struct_under_capture_in_the_operator_form(spark):
    @async_pandas_udf("temp double, sky string", on_error="capture")
    async def weather(id: int):
        if id:
            raise BusyError("closed")
        return {"temp": 1.0, "sky": "clear"}

    df = ordered_wait(spark.range(0, 2, 1, 1), weather)
    assert df.columns == ["id", "value", "error"]
    assert [(row.value, row.error and row.error.message) for row in df.collect()] == [
        ((1.0, "clear"), None),
        (None, "closed"),
    ]


def test_a_retry_calls_again_until_it_goes_well(spark, journal):
    @async_pandas_udf(
        retry=RetryStrategy.exponential_backoff(attempts=4, initial=0.001, maximum=0.01, retry_on=BusyError)
    )
    async def third_time_lucky(id: int) -> int:
        journal.write(id)
        if journal.lines.count(str(id)) < 3:
            raise BusyError
        return id

    assert [row[0] for row in spark.range(0, 6, 1, 1).select(third_time_lucky("id")).collect()] == list(range(6))
    assert len(journal) == 18


def test_a_result_that_is_not_good_enough_is_asked_for_again_and_the_last_one_stands(spark):
    strategy = RetryStrategy.fixed_delay(attempts=3, delay=0.001, retry_if_result=lambda result: result < 10)

    @contextlib.asynccontextmanager
    async def counts():
        yield {}

    @async_pandas_udf(retry=strategy, resources=counts)
    async def grows(id: int, counts) -> int:
        counts[id] = counts.get(id, id * 5) + 1
        return counts[id]

    assert [row[0] for row in spark.range(0, 3, 1, 1).select(grows("id")).collect()] == [3, 8, 11]


def test_only_the_errors_that_were_named_are_retried(spark, journal, spark_error):
    @async_pandas_udf(retry=RetryStrategy.fixed_delay(attempts=5, delay=0.001, retry_on=(BusyError, OSError)))
    async def broken(id: int) -> int:
        journal.write("called")
        raise KeyError("broken for good")

    assert "broken failed in attempt 1" in spark_error(spark.range(1).select(broken("id")))
    assert len(journal) == 1


def test_a_call_without_an_answer_ends_at_its_deadline(spark, journal):
    @async_pandas_udf(timeout=0.5, on_error="capture")
    async def odd_ones_hang(id: int) -> int:
        if id % 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                journal.write("cancelled")
                raise
        return id

    found = [row[0] for row in spark.range(0, 6, 1, 1).select(odd_ones_hang("id")).collect()]
    assert [r.value for r in found] == [0, None, 2, None, 4, None]
    assert {(r.error.type, r.error.message) for r in found if r.error} == {
        ("AsyncTimeoutError", "no result within 0.5 s")
    }
    assert len(journal) == 3


def test_a_timeout_fails_the_query_under_raise(spark, spark_error):
    @async_pandas_udf(timeout=0.05)
    async def hangs(id: int) -> int:
        await asyncio.Event().wait()

    text = spark_error(spark.range(3, 4).select(hangs("id")))
    assert re.search(
        r"AsyncTimeoutError: hangs failed in attempt 1, partition \d, for the input \(3,\): no result within 0.05 s",
        text,
    )
    assert issubclass(AsyncTimeoutError, TimeoutError)


@pytest.mark.parametrize(
    ("answer", "expected"), [(-1, [0, -1]), (lambda id: -10 * id, [0, -10])], ids=["value", "function"]
)
def test_on_timeout_gives_the_result_of_a_row_whose_time_is_up(spark, answer, expected):
    @async_pandas_udf(timeout=0.5, on_timeout=answer)
    async def odd_ones_hang(id: int) -> int:
        if id % 2:
            await asyncio.Event().wait()
        return id

    assert [row[0] for row in spark.range(0, 2, 1, 1).select(odd_ones_hang("id")).collect()] == expected


def test_an_attempt_has_its_own_limit(spark, journal):
    @async_pandas_udf(timeout=60, attempt_timeout=0.5, retry=RetryStrategy.fixed_delay(attempts=2, delay=0.001))
    async def first_call_hangs(id: int) -> int:
        journal.write("called")
        if len(journal) == 1:
            await asyncio.Event().wait()
        return id

    assert spark.range(5, 6).select(first_call_hangs("id")).first()[0] == 5
    assert len(journal) == 2


class Oracle(AsyncFunction):
    """Odd rows hang, and the function has its own answer for them."""

    async def async_invoke(self, value, result_future):
        if value["id"] % 2:
            await asyncio.Event().wait()
        result_future.complete([f"answer {value['id']}"])

    def timeout(self, value, result_future):
        result_future.complete([f"no idea about {value['id']}", "sorry"])


def test_an_async_function_answers_for_a_row_whose_time_is_up(spark):
    df = ordered_wait(spark.range(0, 3, 1, 1), Oracle(), returnType="string", timeout=0.5)
    assert [row.Oracle for row in df.collect()] == ["answer 0", "no idea about 1", "sorry", "answer 2"]


def test_a_result_future_may_be_completed_from_another_thread(spark):
    class Callback(AsyncFunction):
        """The coroutine returns at once; a thread of a callback-style client completes the row."""

        async def async_invoke(self, value, result_future):
            if value["id"] == 3:
                complete = lambda: result_future.complete_exceptionally(BusyError("from a thread"))  # noqa: E731
            else:
                complete = lambda: result_future.complete([value["id"]] * 2)  # noqa: E731
            threading.Timer(0.01, complete).start()

    df = ordered_wait(spark.range(0, 5, 1, 1), Callback(), returnType="bigint", on_error="capture")
    found = [(row.id, row.value, row.error and row.error.message) for row in df.collect()]
    assert found == [
        (0, 0, None),
        (0, 0, None),
        (1, 1, None),
        (1, 1, None),
        (2, 2, None),
        (2, 2, None),
        (3, None, "from a thread"),
        (4, 4, None),
        (4, 4, None),
    ]


def test_the_first_completion_of_a_result_future_counts(spark):
    class Twice(AsyncFunction):
        async def async_invoke(self, value, result_future):
            result_future.complete([value["id"]])
            result_future.complete([-1])
            result_future.complete_exceptionally(BusyError("late"))
            raise BusyError("later")

    df = ordered_wait(spark.range(0, 3, 1, 1), Twice(), returnType="bigint")
    assert [row.Twice for row in df.collect()] == [0, 1, 2]


def test_a_plain_function_runs_in_as_many_threads_as_there_are_call_slots(spark):
    """Each of four calls waits for the other three: with fewer threads none would ever return."""

    @contextlib.asynccontextmanager
    async def barrier():
        yield threading.Barrier(4)

    @async_pandas_udf(capacity=4, timeout=30.0, resources=barrier)
    def blocking(id: int, barrier) -> str:
        barrier.wait()
        return f"{id} {threading.current_thread() is threading.main_thread()}"

    found = [row[0] for row in spark.range(0, 12, 1, 1).select(blocking("id")).collect()]
    assert found == [f"{i} False" for i in range(12)]


def test_no_more_calls_are_in_progress_than_capacity(spark):
    @contextlib.asynccontextmanager
    async def gauge():
        yield []

    @async_pandas_udf(capacity=5, resources=gauge)
    async def crowded(id: int, gauge) -> int:
        gauge.append(id)
        await asyncio.sleep(0.002)
        now = len(gauge)
        gauge.remove(id)
        return now

    found = [row[0] for row in spark.range(0, 60, 1, 1).select(crowded("id")).collect()]
    assert max(found) == 5


def test_a_cancellation_that_the_users_code_raises_is_an_error_like_any_other(spark):
    @async_pandas_udf(on_error="capture")
    async def cancels_itself(id: int) -> int:
        if id == 1:
            raise asyncio.CancelledError("gave up")
        if id == 2:
            asyncio.current_task().cancel()
            await asyncio.sleep(0)
        return id

    found = [row[0] for row in spark.range(0, 5, 1, 1).select(cancels_itself("id")).collect()]
    assert [r.value for r in found] == [0, None, None, 3, 4]
    assert [r.error.type for r in found if r.error] == ["CancelledError"] * 2


@pytest.mark.parametrize("fatal", [SystemExit, KeyboardInterrupt])
def test_an_exit_fails_the_task_under_every_policy(spark, spark_error, fatal):
    @async_pandas_udf(on_error="null")
    async def leaves(id: int) -> int:
        raise fatal("enough")

    text = spark_error(spark.range(1).select(leaves("id")))
    assert "leaves failed in attempt 1" in text
    assert f"{fatal.__name__}: enough" in text


@async_pandas_udf
async def broken_text(id: int) -> int:
    """What a service sends that cuts an emoji in half: JSON allows it, UTF-8 does not."""
    if id == 1:
        raise ValueError("no such city: \ud83d")
    return id


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


def test_an_error_text_that_is_no_unicode_is_captured_with_its_row(spark):
    df = spark.range(0, 3, 1, 1).select(broken_text.with_options(on_error="capture")("id"))
    found = [row[0] for row in df.collect()]
    assert [r.value for r in found] == [0, None, 2]
    assert found[1].error.message.startswith("no such city: ")


def test_a_result_that_cannot_even_be_printed_affects_its_row_only(spark):
    class Unprintable:
        def __repr__(self):
            raise RuntimeError("no text")

    @async_pandas_udf(on_error="capture")
    async def strange(id: int) -> int:
        return Unprintable() if id == 1 else id

    found = [row[0] for row in spark.range(0, 3, 1, 1).select(strange("id")).collect()]
    assert [r.value for r in found] == [0, None, 2]
    assert found[1].error.type == "ResultError"


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


def test_the_root_of_all_errors_is_asyncudferror():
    assert issubclass(AsyncTimeoutError, AsyncUDFError)
