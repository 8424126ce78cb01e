"""The calls of a user, and the types that mypy and pyright see; `test_typing.py` runs both over this file."""

# pyright: strict, reportMissingTypeStubs=false

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any, assert_type

import aiohttp
import pandas as pd
import tenacity
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructType

from asyncudf import (
    DEAD_LETTERS,
    LATENCIES,
    AdaptiveCapacity,
    AsyncFunction,
    AsyncStream,
    AsyncTimeoutError,
    AsyncUDF,
    AsyncUDFError,
    BatchFunction,
    Budget,
    CircuitBreaker,
    Collector,
    DryRun,
    Estimate,
    Forecast,
    FunctionError,
    LookupTable,
    OptionError,
    OutputMode,
    OutputTag,
    ProcessContext,
    ProcessFunction,
    RateLimit,
    Rehearsal,
    ResultError,
    ResultFuture,
    ResultStore,
    RetryStrategy,
    RuntimeContext,
    SinkError,
    SinkReport,
    Submission,
    SubmissionStatus,
    WatermarkStrategy,
    async_pandas_udf,
    async_sink,
    batch_function,
    batch_handler,
    dry_run,
    http,
    ordered_wait,
    rehearse,
    sink_source,
    stream_sink,
    submit,
    unordered_wait,
)
from asyncudf.batches import BatchRequest, BatchService, JobStatus, OpenAIBatches
from asyncudf.queues import (
    Entry,
    LatencyMarker,
    OrderedStreamElementQueue,
    Output,
    StreamElement,
    StreamElementQueue,
    StreamRecord,
    UnorderedStreamElementQueue,
    Watermark,
    WatermarkStatus,
)
from asyncudf.testing import (
    ManualFunction,
    MemoryStore,
    OperatorHarness,
    VirtualClockLoop,
    check_result_store,
    run_rows,
    run_stream,
)

# Declarations: what is decorated keeps its parameters and its result.


@dataclasses.dataclass
class Weather:
    temp: float
    sky: str | None


class Client:
    async def get(self, city: str) -> str:
        return city


@asynccontextmanager
async def client() -> AsyncGenerator[Client, None]:
    yield Client()


@async_pandas_udf
async def bare(city: str, days: int = 1) -> Weather:
    return Weather(12.5, f"{city} {days}")


@async_pandas_udf()
async def empty(city: str) -> str:
    return city


@async_pandas_udf("temp double, sky string", capacity=200, timeout=5.0, on_error="null")
async def ddl_first(city: str) -> dict[str, Any]:
    return {"temp": 12.5, "sky": city}


@async_pandas_udf(Weather, capacity=5)
async def model_first(city: str) -> Weather:
    return Weather(12.5, city)


@async_pandas_udf(StringType(), output_mode=OutputMode.UNORDERED, timeout=timedelta(seconds=5))
async def data_type_first(city: str) -> str:
    return city


@async_pandas_udf(returnType="string", resources=client, retry=RetryStrategy.fixed_delay(3, 1.0))
async def with_resource(city: str, client: Client, context: RuntimeContext) -> str:
    return await client.get(f"{city} {context.attempt_number}")


@async_pandas_udf("string")
async def many(city: str) -> AsyncIterator[str]:
    yield city


@async_pandas_udf("string", batch_size=50, batch_linger=0.1)
async def vectorized(city: pd.Series) -> pd.Series:
    return city


@async_pandas_udf
def in_a_thread(x: int) -> int:
    return x + 1


async def plain(city: str) -> str:
    return city


class Lookup(AsyncFunction):
    async def open(self, context: RuntimeContext) -> None:
        assert_type(context.partition, int)
        assert_type(context.task_attempt_number, int)

    async def async_invoke(self, value: Mapping[str, Any], result_future: ResultFuture) -> None:
        assert_type(result_future.is_done, bool)
        if "city" in value:
            result_future.complete([value["city"]])
        else:
            result_future.complete_exceptionally(KeyError("city"))

    def timeout(self, value: Mapping[str, Any], result_future: ResultFuture) -> None:
        result_future.complete([])

    async def close(self) -> None:
        pass


REJECTS = OutputTag("rejects", "city string")


class Checked(ProcessFunction):
    def open(self, context: ProcessContext) -> None:
        assert_type(context.partition, int)

    def process_element(self, value: dict[str, Any], context: ProcessContext, collector: Collector) -> None:
        assert_type(context.timestamp, int | None)
        assert_type(context.watermark, int | None)
        if value["city"]:
            collector.collect(value)
        else:
            context.output(REJECTS, {"city": value["city"]})


async def what_is_wrapped_keeps_its_types() -> None:
    assert_type(await bare.__wrapped__("Oslo", days=2), Weather)
    assert_type(await empty.__wrapped__("Oslo"), str)
    assert_type(await ddl_first.__wrapped__("Oslo"), dict[str, Any])
    assert_type(await model_first.__wrapped__("Oslo"), Weather)
    assert_type(await data_type_first.__wrapped__(city="Oslo"), str)
    assert_type([city async for city in many.__wrapped__("Oslo")], list[str])
    assert_type(in_a_thread.__wrapped__(1), int)
    assert_type(await vectorized.__wrapped__(pd.Series(["Oslo"])), pd.Series)
    assert_type(bare.__name__, str)
    # So do copies, and what is declared without the decorator's @.
    assert_type(await bare.with_options(capacity=5, output_mode="unordered").__wrapped__("Oslo"), Weather)
    assert_type(await bare.asNondeterministic().__wrapped__("Oslo"), Weather)
    assert_type(await async_pandas_udf(plain).__wrapped__("Oslo"), str)
    assert_type(await async_pandas_udf(plain, "string", capacity=5).__wrapped__("Oslo"), str)
    assert_type(await async_pandas_udf(plain, returnType=StringType()).__wrapped__("Oslo"), str)
    assert_type(await async_pandas_udf("string", deterministic=True)(plain).__wrapped__("Oslo"), str)


def an_async_function_is_taken_as_an_instance_and_as_a_class() -> None:
    assert_type(async_pandas_udf(Lookup(), "string"), AsyncUDF[..., Any])
    assert_type(async_pandas_udf(Lookup, "string", timeout=None), AsyncUDF[..., Any])
    assert_type(async_pandas_udf("string", capacity=5)(Lookup()), AsyncUDF[..., Any])
    assert_type(async_pandas_udf("string")(Lookup), AsyncUDF[..., Any])


def price(text: str, answer: str) -> float:
    return 0.001 * len(text + answer)


def every_option_has_its_types() -> None:
    with_resource.with_options(
        output_mode="ordered",
        capacity=10,
        queue_size=None,
        max_buffered_bytes=2**20,
        timeout=timedelta(minutes=1),
        attempt_timeout=2.5,
        on_timeout="nobody knows",
        retry=tenacity.AsyncRetrying(stop=tenacity.stop_after_attempt(3)),
        on_error="capture",
        on_null_input="null",
        extra_fields="drop",
        redact=True,
        batch_size=None,
        batch_linger=None,
        batch_weight=None,
        max_batch_weight=None,
        split_failed=False,
        resources={"client": client},
        deterministic=False,
        loop="uvloop",
        store=ResultStore.executor(max_bytes=2**30),
        version="2026-11",
        on_store_error="call",
        store_timeout=timedelta(seconds=2),
        open_timeout=timedelta(minutes=5),
        rate_limit=[RateLimit(100), RateLimit(5_000, per="hour", burst=50, cost=len, name="api")],
        job_capacity=40,
        max_calls=100_000,
        budget=[
            Budget(20, reserve=0.01, settle=price, per="month"),
            Budget(1e6, "tokens", reserve=len, per=timedelta(hours=1), by="city"),
        ],
        on_spent="null",
        coordinator="redis://localhost:6379",
        breaker=CircuitBreaker(failure_rate=0.5, window=50, open_for=timedelta(seconds=5), failure_on=OSError),
        max_failures=0.02,
    )
    with_resource.with_options(capacity="auto", rate_limit=RateLimit(1, per=timedelta(minutes=1), scope="task"))
    with_resource.with_options(capacity=AdaptiveCapacity(minimum=2, maximum=50), rate_limit=None)
    with_resource.with_options(redact=len, on_error="dead_letter", max_failures=10, timeout=None, retry=None)


# Entry points: columns and DataFrames.


def a_column(df: DataFrame, spark: SparkSession) -> None:
    assert_type(bare("city"), Column)
    assert_type(bare(sf.col("city"), days=sf.lit(2)), Column)
    assert_type(df.withColumn("weather", bare("city")), DataFrame)
    spark.udf.register("weather", bare)
    assert_type(bare.register(spark, "weather")("city"), Column)
    assert_type(bare.deterministic, bool)


def operator_forms(df: DataFrame) -> None:
    assert_type(ordered_wait(df, bare, "city"), DataFrame)
    assert_type(ordered_wait(df, Lookup(), returnType="string", timeout=1, as_="found"), DataFrame)
    assert_type(ordered_wait(df, plain, returnType=StringType(), with_watermark_column="watermark"), DataFrame)
    assert_type(ordered_wait(df, Lookup, "city", returnType="string"), DataFrame)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness("ts", "10 seconds")
    assert_type(unordered_wait(df, bare, "city", "days", watermark=strategy, capacity=5, on_error="null"), DataFrame)


def chains(df: DataFrame) -> None:
    with AsyncStream(df, object_reuse=True, latency_interval=timedelta(seconds=1), redact=len) as stream:
        assert_type(stream, AsyncStream)
        assert_type(stream.ordered_wait(bare, "city", capacity=5, on_error="dead_letter"), AsyncStream)
        assert_type(stream.unordered_wait(Lookup(), returnType="string", as_="found"), AsyncStream)
        assert_type(stream.assign_timestamps_and_watermarks(WatermarkStrategy.per_batch()), AsyncStream)
        assert_type(stream.filter(lambda row: row["temp"] > 30), AsyncStream)
        assert_type(stream.map(lambda row: {"city": row["city"].upper()}, "city string"), AsyncStream)
        assert_type(stream.flat_map(lambda row: [row, row]), AsyncStream)
        assert_type(stream.map(lambda row: Weather(1.5, row["city"]), Weather), AsyncStream)
        assert_type(stream.process(Checked(), returnType=StructType().add("city", "string")), AsyncStream)
        assert_type(stream.branch().union(stream, stream.branch()), AsyncStream)
        assert_type(stream.side_output(REJECTS), AsyncStream)
        assert_type(stream.side_output(DEAD_LETTERS), AsyncStream)
        assert_type(stream.side_output(LATENCIES).to_df(), DataFrame)
        assert_type(stream.to_df(), DataFrame)
        assert_type(AsyncStream.collect(main=stream, rejects=stream.side_output(REJECTS)), Any)
        assert_type(stream.show(), Any)  # an attribute of the DataFrame
        stream.close()


def a_dry_run(df: DataFrame) -> None:
    report = dry_run(df, bare, "city", latency=timedelta(seconds=0.2), price=0.001, counting="approximate", capacity=9)
    assert_type(report, DryRun)
    assert_type(report.calls, int)
    assert_type(report.distinct, int | None)
    assert_type(report.seconds, float | None)
    assert_type(report.cost, float | None)


def a_rehearsal(df: DataFrame) -> None:
    told = rehearse(df, bare("city"), sample=50)
    assert_type(told, Rehearsal)
    assert_type(rehearse(df, bare, "city", capacity=9).as_is, Forecast)
    assert_type(told.as_is.seconds, Estimate)
    assert_type(told.as_is.seconds.high, float)
    told.report(Path("rehearsal.html"))


# Strategies and errors.


def strategies() -> None:
    fixed = RetryStrategy.fixed_delay(attempts=3, delay=1.0, retry_on=(OSError, TimeoutError))
    assert_type(fixed, RetryStrategy)
    assert_type(RetryStrategy.fixed_delay(), RetryStrategy)
    assert_type(RetryStrategy.exponential_backoff(), RetryStrategy)
    assert_type(RetryStrategy.fixed_delay(tenacity.stop_after_delay(9), tenacity.wait_random(0, 1)), RetryStrategy)
    assert_type(RetryStrategy.exponential_backoff(4, 0.2, timedelta(seconds=5), retry_on=OSError), RetryStrategy)
    assert_type(RetryStrategy.fixed_delay(3, 1, retry_on=lambda error: "busy" in str(error)), RetryStrategy)
    assert_type(RetryStrategy.fixed_delay(3, 1, retry_if_result=lambda result: result is None), RetryStrategy)
    assert_type(RetryStrategy(stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_fixed(1)), RetryStrategy)
    assert_type(WatermarkStrategy.for_monotonous_timestamps("ts", interval=10), WatermarkStrategy)
    assert_type(WatermarkStrategy.for_bounded_out_of_orderness("ts", timedelta(seconds=10)), WatermarkStrategy)
    assert_type(WatermarkStrategy.for_punctuation("flag"), WatermarkStrategy)
    assert_type(WatermarkStrategy.from_column("watermark"), WatermarkStrategy)
    assert_type(WatermarkStrategy.per_batch().with_idleness(5), WatermarkStrategy)
    assert_type(OutputMode("ordered"), OutputMode)


def errors_are_also_pythons_own(
    timeout: AsyncTimeoutError, option: OptionError, function: FunctionError, result: ResultError
) -> None:
    as_pythons: list[TimeoutError | ValueError | TypeError] = [timeout, option, function]
    as_ours: list[AsyncUDFError] = [timeout, option, function, result]
    assert_type([*as_pythons, *as_ours], list[TimeoutError | ValueError | TypeError | AsyncUDFError])


def the_context_of_a_call(context: RuntimeContext) -> None:
    assert_type(context.attempt_number, int)
    assert_type(context.last_error, Any)
    assert_type(context.remaining(), float | None)
    assert_type(context.idempotency_key, str)
    context.output(REJECTS, {"city": "Oslo"})


# Stores.


class OwnStore(ResultStore):
    async def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return [None for _ in keys]

    async def put_many(self, items: dict[bytes, bytes], ttl: float | None) -> None: ...


@async_pandas_udf(store=ResultStore.disk("results", ttl=timedelta(days=1)), version="2", on_store_error="fail")
async def stored(city: str) -> str:
    return city


def stores(spark: SparkSession, df: DataFrame) -> None:
    assert_type(ResultStore.executor(max_bytes=2**30, ttl=5, error_ttl=1.5, key=len), ResultStore)
    assert_type(ResultStore.redis("redis://localhost", prefix="x"), ResultStore)
    assert_type(stored.store_key("Oslo"), bytes)
    stored.with_options(store=OwnStore(), store_timeout=2)
    check_result_store(OwnStore, travels=False)
    table = LookupTable(spark, "/data/airports", stored, "city", ttl=timedelta(days=1), wave=1000, capacity=10)
    assert_type(table.update(df).called, int)
    assert_type(table.join(df, how="inner"), DataFrame)
    assert_type(table.to_df(), DataFrame)
    assert_type(run_rows(plain, ["Oslo"], store=MemoryStore(ttl=60)), list[Any])


async def looks_into_a_store() -> None:
    async with ResultStore.disk("results") as store:
        assert_type(await store.info(), dict[str, int])
        await store.delete([stored.store_key("Oslo")])
        await store.clear()


# Limits, and HTTP services.


def tokens(city: str, days: int) -> float:
    return len(city) / 4 + days


@async_pandas_udf(
    resources=http.session("https://api.example.com", token_env="API_TOKEN", connections=50, read_timeout=5),
    retry=RetryStrategy.fixed_delay(attempts=3, delay=0.2, retry_on=http.is_retryable),
    rate_limit=[RateLimit(100), RateLimit(1e6, per="minute", cost=tokens), RateLimit(5, by=["city"])],
    breaker=CircuitBreaker(failure_on=lambda error: isinstance(error, http.RetryableError)),
)
async def limited(city: str, days: int, session: aiohttp.ClientSession) -> str:
    async with session.get(f"/cities/{city}", params={"days": days}) as response:
        await http.raise_for_status(response)
        return await response.text()


def limits() -> None:
    assert_type(RateLimit(100, per=timedelta(minutes=1), scope="task").cost_of(["Oslo"]), float)
    assert_type(RateLimit.from_headers("openai", "tokens", start=100, at_most=1e6, cost=tokens), RateLimit)
    RateLimit.from_headers(lambda headers: {"limit": headers["x-quota"]}, start=1, per="second")
    http.tell_limits({"ratelimit": '"default";r=50;t=30'})
    assert_type(AdaptiveCapacity(minimum=1, maximum=50).maximum, int)
    assert_type(CircuitBreaker(max_open=timedelta(hours=1), failure_on=(OSError, TimeoutError)), CircuitBreaker)
    assert_type(http.ThrottledError(429, retry_after=7).retry_after, float | None)
    assert_type(http.is_retryable(http.PermanentError(404)), bool)
    assert_type(http.session("https://example.com", headers=lambda: {"X-Api-Key": "?"}), http.SessionFactory)


# The test kit.


def the_test_kit() -> None:
    rejects: dict[OutputTag, list[Any]] = {}
    assert_type(run_rows(bare, ["Oslo", Watermark(5), StreamRecord("Bergen", 6)]), list[Any])
    assert_type(run_rows(plain, ["Oslo"], output_mode="unordered", clock="real", capacity=3), list[Any])
    assert_type(run_rows(Lookup(), [{"city": "Oslo"}], returnType="string", side_outputs=rejects), list[Any])
    assert_type(run_stream(lambda stream: stream.ordered_wait(plain), [{"city": "Oslo"}], "city string"), Any)
    assert_type(run_stream(lambda stream: {"main": stream.branch()}, [{"city": "Oslo"}], "city string"), Any)
    function = ManualFunction()
    with OperatorHarness(function, returnType="string", on_error="null", capacity=2) as harness:
        assert_type(harness, OperatorHarness)
        harness.put("Oslo", "Bergen", Watermark(5))
        harness.fail("Oslo", ConnectionError("busy"))
        harness.complete("Bergen", "BERGEN")
        harness.advance(1.5)
        assert_type(harness.output, list[Any])
        assert_type(harness.is_done, bool)
        assert_type(harness.snapshot(), list[StreamElement])
    assert_type(function.calls, list[Any])
    with closing(VirtualClockLoop()) as loop:
        assert_type(loop.time(), float)


# Sinks.


async def post(city: str) -> None: ...


def sinks(df: DataFrame, spark: SparkSession) -> None:
    report = async_sink(df, post, "city", capacity=5, max_failures=None)
    assert_type(report, SinkReport)
    assert_type(report.raise_for_failures().written, int)
    assert_type(report.reasons, Mapping[str, int])
    write = stream_sink(post, "city", dead_letters="not_sent", name="cities")
    df.writeStream.foreachBatch(write)
    spark.dataSource.register(sink_source("crm", post, columns="city", capacity=5))
    try:
        async_sink(df, post)
    except SinkError as error:
        assert_type(error.report, SinkReport | None)


# Submit and collect.


class Jobs(BatchService):
    max_requests = 10

    def submit(self, requests: Sequence[BatchRequest], key: str) -> str:
        return f"{key} {requests[0].key} {requests[0].body}"

    def poll(self, job: str) -> JobStatus:
        return JobStatus("working", answers=1)

    def fetch(self, job: str) -> Iterator[tuple[str, Any]]:
        yield job, {"n": 1}

    def cancel(self, job: str) -> None: ...


def read(answer: dict[str, Any]) -> int:
    return int(answer["n"])


@batch_function("bigint", parse=read, version="2", redact=True)
def ask(city: str, context: RuntimeContext) -> dict[str, Any]:
    return {"city": city, "why": context.last_error}


def handlers() -> None:
    handler = batch_handler(read, capacity=50, timeout=5)
    assert_type(handler(iter([pd.Series(["Oslo"])])), Iterator[Any])


def submissions(df: DataFrame) -> None:
    assert_type(ask, BatchFunction)
    assert_type(batch_function(read), BatchFunction)
    budget = Budget(20, reserve=0.01)
    submission = submit(df, ask, "city", service=Jobs(), state="/data/june", budget=budget, attempts=2, timeout=60)
    assert_type(submission, Submission)
    submission = Submission.open("/data/june", function=ask, service=OpenAIBatches(max_queued=1e6))
    status = submission.wait(timeout=0, progress=True)
    assert_type(status, SubmissionStatus)
    assert_type((status.exit_code, status.requests), tuple[int, Mapping[str, int]])
    assert_type(submission.collect(partial=True), DataFrame)
    assert_type(submission.dead_letters(), DataFrame)
    submission.cancel()


# The queues.


class Printer:
    """An Output by its methods alone."""

    def collect(self, record: StreamRecord) -> None:
        assert_type(record.timestamp, int | None)
        assert_type(record.with_value(1), StreamRecord)

    def emit_watermark(self, watermark: Watermark) -> None:
        assert_type(watermark.timestamp, int)

    def emit_watermark_status(self, status: WatermarkStatus) -> None: ...

    def emit_latency_marker(self, marker: LatencyMarker) -> None: ...


def queues() -> None:
    output: Output = Printer()
    ordered, unordered = OrderedStreamElementQueue(10), UnorderedStreamElementQueue(10)
    either: Sequence[StreamElementQueue] = (ordered, unordered)
    for queue in either:
        entry = queue.try_put(StreamRecord("Oslo"))
        assert_type(entry, Entry | None)
        if entry is not None:
            entry.complete(["OSLO"])
            assert_type(entry.element, StreamElement)
        queue.try_put(Watermark(5))
        queue.emit_completed_element(Printer())
        assert_type(queue.emit_completed_elements(output, 5), int)
        assert_type(queue.values(), list[StreamElement])
        assert_type((queue.has_completed_elements(), queue.is_empty()), tuple[bool, bool])
        assert_type((len(queue), queue.capacity), tuple[int, int])
