"""Flink's Async I/O for PySpark: enrich rows by calling services, many calls in flight, in the promised order.

The layers, each importing only from those below it (and from `asyncudf.queues`):

    testing (with _clock)           the test kit: the operator over plain values, on a virtual clock
    _wait, _decorator               the doors: ordered_wait, unordered_wait, async_pandas_udf
    _spark, _spark_*                all of PySpark: columns, operators, table functions, pickling
    _task, _arrow, _fit             a task's work; Arrow <-> rows; a result against its declared type
    _bridge                         Spark's thread <-> the event loop's
    _operator                       AsyncWaitOperator
    _input, _batching, _resources   what it is fed, gathers and opens
    _call, _deadlines, _workers     one row's call, its time, the slots that calls run in
    _invoke, _signature, _types     how each kind of function is called, read, typed
    _watermarks, _outputs           elements in, results out
    _options, _retry, _function, _errors, _text
"""

from ._decorator import AsyncUDF, async_pandas_udf
from ._errors import AsyncTimeoutError, AsyncUDFError, FunctionError, OptionError, ResultError
from ._function import AsyncFunction, ResultFuture, RuntimeContext
from ._options import OutputMode
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
