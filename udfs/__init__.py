"""Flink's Async I/O for PySpark: enrich rows by calling services, many calls in flight, in the promised order.

Declare a function, and use it at one of the three entry points:

1. As a column, or in SQL, where each row has exactly one result:

    @async_pandas_udf("temp double, sky string", capacity=200, timeout=5.0, on_error="null")
    async def weather(city: str) -> dict: ...

    df.withColumn("weather", weather("city")).select("city", "weather.temp", "weather.sky")
    weather.register(spark, "weather")      # SELECT w.temp, w.sky FROM (SELECT weather(city) AS w FROM trips)

2. Beside the columns of a DataFrame, with 0..n results for each row, in the order of the rows or of completion:

    ordered_wait(df, weather, "city")       # or unordered_wait; in SQL: SELECT * FROM f(TABLE(trips), 'city')

3. As one of several operators in one stage, with filters, side outputs and dead letters:

    AsyncStream(df).unordered_wait(geocode, "address").filter(known).ordered_wait(weather, "city").to_df()

See what a job does, live and afterwards, with a verdict on what limits it:

    with asyncudf.monitor(spark, progress=True) as run: ...

Try a function without Spark, on a virtual clock:

>>> from asyncudf.testing import run_rows
>>> async def shout(word: str) -> str:
...     return word.upper()
>>> run_rows(shout, ["oslo", "bergen"])
['OSLO', 'BERGEN']

More in `help(asyncudf.async_pandas_udf)` (every kind of function and every option), `help(asyncudf.ordered_wait)`,
`help(asyncudf.AsyncStream)`, `help(asyncudf.RetryStrategy)`, `help("asyncudf.http")` (sessions and errors of services)
and `help("asyncudf.testing")`.
"""

from typing import TYPE_CHECKING

from ._errors.missing import MISSING as _MISSING
from ._names import on_use as _on_use
from ._version import VERSION as __version__  # noqa: F401, N811 - no name for `import *`

if TYPE_CHECKING:
    from ._batches.function import BatchFunction, batch_function
    from ._batches.submission import Submission, SubmissionStatus, submit
    from ._errors.exceptions import (
        AsyncTimeoutError,
        AsyncUDFError,
        FatalError,
        FunctionError,
        OptionError,
        ResultError,
    )
    from ._functions.async_function import AsyncFunction, ResultFuture, RuntimeContext
    from ._functions.options import OutputMode
    from ._functions.process_function import Collector, ProcessContext, ProcessFunction
    from ._functions.retry import RetryStrategy
    from ._functions.side_outputs import DEAD_LETTERS, LATENCIES, OutputTag
    from ._functions.watermarks import WatermarkStrategy
    from ._limits.budgets.option import Budget
    from ._limits.capacity.option import AdaptiveCapacity, KeyCapacity
    from ._limits.health.option import CircuitBreaker
    from ._limits.rates.option import RateLimit
    from ._observe.reports.sink_report import SinkError, SinkReport
    from ._rehearsal.arithmetic import Estimate, Forecast
    from ._rehearsal.rehearsal import Rehearsal
    from ._spark.api.decorator import AsyncUDF, async_pandas_udf
    from ._spark.api.dry_run import DryRun, dry_run
    from ._spark.api.handler import batch_handler
    from ._spark.api.lookup_table import LookupTable
    from ._spark.api.monitor import Run, monitor
    from ._spark.api.rehearse import rehearse
    from ._spark.api.sinks import async_sink, sink_source, stream_sink
    from ._spark.api.stream import AsyncStream, ordered_wait, unordered_wait
    from ._spark.shipping import ship
    from ._stores.base import ResultStore

__all__ = (
    "DEAD_LETTERS",
    "LATENCIES",
    "AdaptiveCapacity",
    "AsyncFunction",
    "AsyncStream",
    "AsyncTimeoutError",
    "AsyncUDF",
    "AsyncUDFError",
    "BatchFunction",
    "Budget",
    "CircuitBreaker",
    "Collector",
    "DryRun",
    "Estimate",
    "FatalError",
    "Forecast",
    "FunctionError",
    "KeyCapacity",
    "LookupTable",
    "OptionError",
    "OutputMode",
    "OutputTag",
    "ProcessContext",
    "ProcessFunction",
    "RateLimit",
    "Rehearsal",
    "ResultError",
    "ResultFuture",
    "ResultStore",
    "RetryStrategy",
    "Run",
    "RuntimeContext",
    "SinkError",
    "SinkReport",
    "Submission",
    "SubmissionStatus",
    "WatermarkStrategy",
    "async_pandas_udf",
    "async_sink",
    "batch_function",
    "batch_handler",
    "dry_run",
    "monitor",
    "ordered_wait",
    "rehearse",
    "ship",
    "sink_source",
    "stream_sink",
    "submit",
    "unordered_wait",
)

# Imported when they are used, so that a worker holds what its plan needs and no more.
if not TYPE_CHECKING:
    __getattr__, __dir__ = _on_use(
        __name__,
        {
            "._batches.function": ("BatchFunction", "batch_function"),
            "._batches.submission": ("Submission", "SubmissionStatus", "submit"),
            "._errors.exceptions": (
                "AsyncTimeoutError",
                "AsyncUDFError",
                "FatalError",
                "FunctionError",
                "OptionError",
                "ResultError",
            ),
            "._functions.async_function": ("AsyncFunction", "ResultFuture", "RuntimeContext"),
            "._functions.options": ("OutputMode",),
            "._functions.process_function": ("Collector", "ProcessContext", "ProcessFunction"),
            "._functions.retry": ("RetryStrategy",),
            "._functions.side_outputs": ("DEAD_LETTERS", "LATENCIES", "OutputTag"),
            "._functions.watermarks": ("WatermarkStrategy",),
            "._limits.capacity.option": ("AdaptiveCapacity", "KeyCapacity"),
            "._limits.budgets.option": ("Budget",),
            "._limits.health.option": ("CircuitBreaker",),
            "._limits.rates.option": ("RateLimit",),
            "._observe.reports.sink_report": ("SinkError", "SinkReport"),
            "._rehearsal.arithmetic": ("Estimate", "Forecast"),
            "._rehearsal.rehearsal": ("Rehearsal",),
            "._spark.api.decorator": ("AsyncUDF", "async_pandas_udf"),
            "._spark.api.dry_run": ("DryRun", "dry_run"),
            "._spark.api.handler": ("batch_handler",),
            "._spark.api.lookup_table": ("LookupTable",),
            "._spark.api.monitor": ("Run", "monitor"),
            "._spark.api.rehearse": ("rehearse",),
            "._spark.api.sinks": ("async_sink", "sink_source", "stream_sink"),
            "._spark.api.stream": ("AsyncStream", "ordered_wait", "unordered_wait"),
            "._spark.shipping": ("ship",),
            "._stores.base": ("ResultStore",),
            ".batches": (),
            ".http": (),
            ".queues": (),
            ".testing": (),
        },
        _MISSING,
    )
