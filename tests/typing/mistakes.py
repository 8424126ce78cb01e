"""The mistakes of a user that mypy and pyright must report, one to a line.

Each line says how both report it. One that is not reported any more is an error itself: a comment without effect.
"""

# pyright: strict

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from asyncudf import (
    AsyncFunction,
    AsyncStream,
    CircuitBreaker,
    OutputTag,
    RateLimit,
    ResultFuture,
    RetryStrategy,
    WatermarkStrategy,
    async_pandas_udf,
    ordered_wait,
    unordered_wait,
)
from asyncudf.queues import OrderedStreamElementQueue, StreamElementQueue, StreamRecord
from asyncudf.testing import OperatorHarness, run_rows, run_stream


@async_pandas_udf("string")
async def upper(city: str) -> str:
    return city.upper()


class Lookup(AsyncFunction):
    async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
        result_future.complete([value])


def options() -> None:
    async_pandas_udf("string", capacty=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    async_pandas_udf(upper.__wrapped__, capacty=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    async_pandas_udf(Lookup(), capacty=5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    async_pandas_udf("string", capacity="x")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    async_pandas_udf("string", on_error="x")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    upper.with_options(capacty=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    upper.with_options(capacity=None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    upper.with_options(timeout="5 seconds")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    upper.with_options(output_mode="sorted")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    upper.with_options(resources="client")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    upper.with_options(store="redis://localhost")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    upper.with_options(capacity="much")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    upper.with_options(rate_limit=100)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    upper.with_options(rate_limit=RateLimit(100, per="week"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    upper.with_options(rate_limit=RateLimit(100, scope="cluster"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    upper.with_options(job_capacity="40")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    upper.with_options(breaker=True)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    upper.with_options(breaker=CircuitBreaker(failure_on="timeouts"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def functions() -> None:
    async_pandas_udf(5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    async_pandas_udf("string")("upper")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await upper.__wrapped__(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    upper.__wrapped__("Oslo")  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]


def not_awaited() -> str:
    return upper.__wrapped__("Oslo")  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


class NothingToInvoke(AsyncFunction): ...


class NotAwaited(AsyncFunction):
    def async_invoke(self, value: Any, result_future: ResultFuture) -> None: ...  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]


def async_functions(future: ResultFuture) -> None:
    NothingToInvoke()  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]
    future.complete(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    future.complete_exceptionally("busy")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def columns(df: DataFrame, spark: SparkSession) -> None:
    upper(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    upper(city=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    upper.register("upper", spark)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def operator_forms(df: DataFrame) -> None:
    ordered_wait(df, "city", "upper")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ordered_wait(upper, df)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ordered_wait(df, upper, 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ordered_wait(df, upper, capacty=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ordered_wait(df, upper, output_mode="unordered")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    unordered_wait(df, upper, timeout="5 s")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    unordered_wait(df, upper, watermark="ts")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    unordered_wait(df, upper, retry=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    unordered_wait(df, upper, retryy=None)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def chains(stream: AsyncStream, tag: OutputTag) -> None:
    AsyncStream("table")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    stream.ordered_wait(upper, capacty=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    stream.unordered_wait(upper, on_error="skip")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    stream.ordered_wait("city")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    stream.filter("temp > 30")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    stream.process(dict)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    stream.union([stream])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    stream.side_output("rejects")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    stream.assign_timestamps_and_watermarks("ts")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    AsyncStream.collect(main=stream.to_df())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    tag.name = "other"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


def strategies() -> None:
    RetryStrategy.exponential_backoff(retries=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    RetryStrategy.fixed_delay(3, "1 s")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    RetryStrategy.fixed_delay(3, 1, retry_on="busy")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    RetryStrategy(stop=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    WatermarkStrategy.for_punctuation(sf.col("f"))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    WatermarkStrategy.per_batch(5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def the_test_kit() -> None:
    run_rows(upper, 5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    run_rows(upper, ["Oslo"], capacty=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    run_rows(upper, ["Oslo"], clock="fast")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    run_rows(upper, ["Oslo"], output_mode="sorted")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    run_stream(lambda stream: stream.to_df(), [], "x int")  # type: ignore[arg-type, return-value]  # pyright: ignore[reportArgumentType]
    OperatorHarness(upper, capacty=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    OperatorHarness(upper, timeout="5 s")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def queues(queue: OrderedStreamElementQueue) -> None:
    StreamElementQueue(10)  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]
    queue.try_put("Oslo")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    queue.try_put(StreamRecord("Oslo")).complete([])  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    queue.emit_completed_element(print)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
