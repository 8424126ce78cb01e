"""Flink's Async I/O for PySpark: enrich rows by calling services, many calls in flight, in the promised order.

The layers, each importing only from those below it (and from `asyncudf.queues`):

    testing, _stream_testing, _clock   the test kit: functions and chains over plain values, on a virtual clock
    _wait, _stream, _decorator         the doors: ordered_wait, unordered_wait, AsyncStream, async_pandas_udf
    _evaluations                       what is evaluated together, and kept
    _spark, _spark_*                   all of PySpark: columns, plans of chains, table functions, pickling
    _ends, _chain, _node, _specs       a chain: batches in and out, its operators, what each of them does
    _layout, _task, _arrow, _fit       rows on their way; Arrow <-> rows; a result against its declared type
    _bridge, _loops                    Spark's thread <-> the event loop's
    _operator                          AsyncWaitOperator
    _steps, _watermark_steps, _process the operators that wait for nothing
    _driver, _input, _batching         what pushes rows along, what it is fed and gathers
    _call, _deadlines, _workers        one row's call, its time, the slots that calls run in
    _resources, _invoke, _signature, _types   how each kind of function is opened, called, read, typed
    _writer, _weight, _outputs, _watermarks   where records go, what they weigh, where watermarks come from
    _options, _retry, _function, _tags, _failures, _errors, _text
"""

from ._decorator import AsyncUDF, async_pandas_udf
from ._errors import AsyncTimeoutError, AsyncUDFError, FunctionError, OptionError, ResultError
from ._function import AsyncFunction, ResultFuture, RuntimeContext
from ._options import OutputMode
from ._outputs import Collector
from ._process import ProcessContext, ProcessFunction
from ._retry import RetryStrategy
from ._stream import AsyncStream
from ._tags import DEAD_LETTERS, LATENCIES, OutputTag
from ._wait import ordered_wait, unordered_wait
from ._watermarks import WatermarkStrategy

__all__ = (
    "DEAD_LETTERS",
    "LATENCIES",
    "AsyncFunction",
    "AsyncStream",
    "AsyncTimeoutError",
    "AsyncUDF",
    "AsyncUDFError",
    "Collector",
    "FunctionError",
    "OptionError",
    "OutputMode",
    "OutputTag",
    "ProcessContext",
    "ProcessFunction",
    "ResultError",
    "ResultFuture",
    "RetryStrategy",
    "RuntimeContext",
    "WatermarkStrategy",
    "async_pandas_udf",
    "ordered_wait",
    "unordered_wait",
)
