"""What holds at each door: rows beside their results, deadlines, retries and error policies, and what an error says."""

# ruff: noqa: A002 - parameters are called like the columns, and Spark's own is `id`

import asyncio
import re

import pytest

from asyncudf import RetryStrategy, RuntimeContext, async_pandas_udf
from tests.kit.doors import IN_ORDER, through
from tests.kit.sail import HAS_SAIL

pytestmark = pytest.mark.spark


@async_pandas_udf("string", capacity=20)
async def backwards(id: int, text: str | None):
    await asyncio.sleep((20 - id % 20) / 2000)
    return text and f"{text} of {id}"


@pytest.mark.promise("column", "SQL function", "table function", "ordered_wait", "unordered_wait", "chain", "order")
@through()
@pytest.mark.usefixtures("small_batches")
def test_each_result_stands_beside_its_row_and_in_order_where_that_is_promised(spark, conf, door):
    conf("spark.sql.codegen.factoryMode", "FALLBACK")  # Spark's default: expressions are compiled
    df = spark.range(0, 60, 1, 2).selectExpr("id", "IF(id % 7 = 0, NULL, concat('t', id)) AS text", "array(id) AS xs")
    found = door(df, backwards, "id", "text").collect()
    assert sorted(tuple(row) for row in found) == [
        (i, f"t{i}" if i % 7 else None, [i], f"t{i} of {i}" if i % 7 else None) for i in range(60)
    ]
    if door in IN_ORDER:
        ids = [row.id for row in found]  # Sail may give rows of its partitions in turns; each partition is in order
        assert (sorted(ids, key=lambda one: one // 30) if HAS_SAIL else ids) == list(range(60))


class BusyError(Exception):
    pass


@async_pandas_udf(
    "string", timeout=1.0, on_timeout="too late", on_error="null", retry=RetryStrategy.fixed_delay(3, 0.001)
)
async def troubled(id: int, context: RuntimeContext):
    if id == 1:
        await asyncio.Event().wait()
    if id == 2 or context.attempt_number < 3:
        raise BusyError
    return f"attempt {context.attempt_number} in {context.partition}"


@pytest.mark.promise("calls", "errors")
@through()
def test_a_row_is_tried_again_until_its_deadline_and_its_failure_is_its_own(spark, door):
    found = {row.id: row.result for row in door(spark.range(0, 4, 1, 1), troubled, "id").collect()}
    assert found == {0: "attempt 3 in 0", 1: "too late", 2: None, 3: "attempt 3 in 0"}


@async_pandas_udf(retry=RetryStrategy.fixed_delay(attempts=3, delay=0.001))
async def fails_at_seven(id: int, text: str) -> int:
    await asyncio.sleep(0)
    if id == 7:
        raise BusyError("service says no")
    return id


@pytest.mark.promise("errors")
@through()
def test_an_error_names_function_attempts_partition_input_and_cause(spark, spark_error, door):
    df = spark.range(6, 8, 1, 1).selectExpr("id", "repeat('long', 1000) AS text")
    text = spark_error(door(df, fails_at_seven, "id", "text"))
    message = re.search(r"AsyncUDFError: (fails_at_seven failed in attempt 3, partition 0, for the input .*)", text)[1]
    assert re.search(r"for the input \(7, 'long.*\.\.\..*long'\): BusyError: service says no", message)
    assert len(message) < 300, "the input is shortened"


@async_pandas_udf("array<string>", on_error="capture")
async def picky(id: int):
    if id:
        raise ValueError(f"no {id}")
    return [None, "x"]


@through("column", "SQL function", "ordered_wait", "chain")
def test_under_capture_the_result_is_a_struct_of_value_and_error(spark, door):
    error = "error:struct<type:string,message:string,attempts:int,elapsed:double,status:int>"
    df = door(spark.range(0, 2, 1, 1), picky, "id")
    assert df.schema["result"].dataType.simpleString() == f"struct<value:array<string>,{error}>"
    good, bad = sorted(df.collect())
    assert (good.result.value, good.result.error, bad.result.value) == ([None, "x"], None, None)
    assert (bad.result.error.type, bad.result.error.message, bad.result.error.attempts) == ("ValueError", "no 1", 1)
