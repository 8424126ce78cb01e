"""AsyncStream: operators chained over a DataFrame, in one stage; ordered_wait and unordered_wait: a chain of one."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, Unpack

from asyncudf.queues._public import public

from ..._chain.plan import StreamNode, WaitFactory
from ..._errors.exceptions import FunctionError, OptionError
from ..._errors.safe import safe_repr
from ..._functions.async_function import AsyncFunction
from ..._functions.options import CallOptions, OutputMode, shows_options
from ..._functions.process_function import ProcessFunction
from ..._functions.side_outputs import DEAD_LETTERS, LATENCIES, OutputTag
from ..._functions.signature import refuse_dead_letters
from ..._functions.watermarks import WatermarkStrategy
from ..evaluations import ResultRef, StreamSource, read_together, result_plan
from ..planner import assign_node, filter_node, process_node, source_node, union_node, wait_node
from ..schemas import check_frame, column_names
from .decorator import checked_type, udf_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

Rows = Callable[[dict[str, Any]], Any]
PLANNED = frozenset({"columns", "dtypes", "isStreaming", "printSchema", "schema", "sparkSession"})  # they read no row


@public("asyncudf")
class AsyncStream:
    """Async operators and plain functions chained over a DataFrame, all in one stage of one Python worker.

    Each method returns a new stream and changes nothing. Rows pass from operator to operator one by one, and a slow
    operator holds back the operators before it: at most `capacity` rows wait in front of each. Functions are called
    when an action runs on the DataFrame of `to_df()`. Methods that a stream does not have, such as `show`, `count` or
    `select`, and properties such as `write`, are taken from that DataFrame. The stream is only planned when such a
    method is called, or such a property is used. Columns are no attributes: use `sf.col("temp")`.

    Functions of one row see a dict of all columns. An async operator appends the columns of its result. Columns that
    no function reads stay in Arrow. After Flink's `DataStream`.

    **Side outputs** (`side_output`) come from the same evaluation as the stream itself: where an operator may write
    any, the evaluation is kept with Spark's `persist()` (memory, then disk, of the executors) from the first
    action on until `close()`, or the end of a `with` block. If an executor with kept blocks is lost, Spark computes
    these partitions again, and their calls are made again.

    Where `persist()` keeps nothing (Sail) or is refused (serverless computes), `to_df()`, and so the first method that
    reads rows, evaluates the whole stream at once and writes its rows to a temporary folder. It is removed by
    `close()`, at the end of the `with` block, or at the end of the program; the environment variable `ASYNCUDF_FOLDER`
    says where the folder is made.

    Args:
        df: a batch or streaming DataFrame.
        object_reuse: pass the same lists and dicts from operator to operator. This saves copies, but other operators
            then see what a function edits. Off, each operator gets copies of its own.
        latency_interval: seconds between two latency markers; `side_output(LATENCIES)` has the delay of each.
        redact: as in `async_pandas_udf`, for all functions of the chain that do not set it.

    Raises:
        OptionError: not a DataFrame, or a value that cannot work.

    >>> stream = AsyncStream(df).unordered_wait(geocode, "address").ordered_wait(weather)  # doctest: +SKIP
    >>> stream.filter(lambda row: row["temp"] > 30).to_df().show()  # doctest: +SKIP
    """

    def __init__(
        self,
        df: DataFrame,
        object_reuse: bool = False,
        latency_interval: float | timedelta | None = None,
        redact: bool | Callable[[Any], Any] = False,
    ) -> None:
        check_frame(df, "AsyncStream")
        self._source = StreamSource.of(df, object_reuse, latency_interval, redact)
        self._node: StreamNode = source_node(df)
        self._tag: OutputTag | None = None

    @classmethod
    def _at(cls, source: StreamSource, node: StreamNode, tag: OutputTag | None = None) -> AsyncStream:
        stream = object.__new__(cls)
        stream._source, stream._node, stream._tag = source, node, tag
        return stream

    @property
    def _ref(self) -> ResultRef:
        return ResultRef(self._source, result_plan(self._node, self._tag))

    def _then(self, make: Callable[[StreamNode], StreamNode]) -> AsyncStream:
        """A stream with another operator; a side output begins a chain of its own."""
        source, node = self._source, self._node
        if self._tag is not None:
            source, node = source.after(self._ref.result)
        return self._at(source, make(node))

    def assign_timestamps_and_watermarks(self, strategy: WatermarkStrategy) -> AsyncStream:
        """The same rows with event times, and watermarks between them, which hold for all operators that follow.

        Raises:
            OptionError: not a strategy.
            FunctionError: its column is not there or has no time in it, or `per_batch()` behind another operator.
        """
        if not isinstance(strategy, WatermarkStrategy):
            raise OptionError(f"a WatermarkStrategy is needed, not {safe_repr(strategy)}")
        return self._then(lambda node: assign_node(node, strategy))

    @shows_options(CallOptions)
    def ordered_wait(
        self,
        function: Callable[..., Any] | AsyncFunction,
        *columns: str | Column,
        returnType: str | DataType | type[Any] | None = None,  # noqa: N803 - as in async_pandas_udf
        watermark: WatermarkStrategy | None = None,
        with_watermark_column: str | None = None,
        as_: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncStream:
        """The results of an async function beside the columns, in the order of the rows.

        Args:
            function, columns, returnType, watermark, with_watermark_column, as_, options: as in
                `asyncudf.ordered_wait`, with the same errors; also `on_error="dead_letter"`: a row that fails for good
                leaves the stream for `side_output(DEAD_LETTERS)`.
        """
        places = watermark, with_watermark_column, as_
        return self._wait(OutputMode.ORDERED, function, columns, returnType, options, places)

    @shows_options(CallOptions)
    def unordered_wait(
        self,
        function: Callable[..., Any] | AsyncFunction,
        *columns: str | Column,
        returnType: str | DataType | type[Any] | None = None,  # noqa: N803 - as in async_pandas_udf
        watermark: WatermarkStrategy | None = None,
        with_watermark_column: str | None = None,
        as_: str | None = None,
        **options: Unpack[CallOptions],
    ) -> AsyncStream:
        """Like `ordered_wait`, but each row goes on when its call has finished; none passes a watermark."""
        places = watermark, with_watermark_column, as_
        return self._wait(OutputMode.UNORDERED, function, columns, returnType, options, places)

    def _wait(
        self,
        mode: OutputMode,
        function: Any,
        columns: tuple[str | Column, ...],
        returns: Any,
        options: Mapping[str, Any],
        places: tuple[WatermarkStrategy | None, str | None, str | None],
    ) -> AsyncStream:
        """A stream with an async operator; its places: where watermarks come from, and the names of added columns."""
        if "output_mode" in options:
            raise OptionError(f"output_mode is said by the name of the function already: {mode.value}_wait")
        udf = udf_of(function, returns, {**options, "output_mode": mode})
        if udf.options.redact is None and self._source.redact is not None:
            udf = udf.with_options(redact=self._source.redact)
        df = None if self._tag is not None else self._source.frame_before(self._node)
        session = self._source.session

        def make(node: StreamNode) -> StreamNode:
            names = column_names(columns, node.schema, df)
            return wait_node(node, udf.spec, udf.options, udf.returns, names, *places, session=session)

        return self._then(make)

    def map(self, function: Rows, returnType: str | DataType | type[Any] | None = None) -> AsyncStream:  # noqa: N803
        """One row for each row: what a plain function returns for the dict of its columns.

        Args:
            function: returns a mapping of the columns that come out.
            returnType: their types; the same columns as before unless given. Anything but a struct makes one column
                called `value`.

        Raises:
            FunctionError: not a plain function, or a type that is not known.
        """
        return self._processed("map", function, returnType)

    def flat_map(self, function: Rows, returnType: str | DataType | type[Any] | None = None) -> AsyncStream:  # noqa: N803
        """0..n rows for each row: what a plain function yields, or returns in a list; else as `map`."""
        return self._processed("flat_map", function, returnType)

    def process(self, function: ProcessFunction, returnType: str | DataType | type[Any] | None = None) -> AsyncStream:  # noqa: N803
        """0..n rows for each row, and side outputs: a `ProcessFunction`; else as `map`."""
        return self._processed("process", function, returnType)

    def _processed(self, method: str, function: Any, returns: Any) -> AsyncStream:
        declared = checked_type(returns)
        return self._then(lambda node: process_node(node, method, function, declared, self._source.redact))

    def filter(self, function: Rows) -> AsyncStream:
        """The rows for which a plain function of the dict of their columns returns something true.

        Raises:
            FunctionError: not a plain function. For Spark's own conditions filter the DataFrame.
        """
        return self._then(lambda node: filter_node(node, function, self._source.redact))

    def branch(self) -> AsyncStream:
        """The same rows once more, for fan-out: each branch has its own operators in the same evaluation.

        The branches of `AsyncStream.collect(...)` run side by side in one chain; the slowest sets the pace.
        """
        return self._at(self._source, self._node, self._tag)

    def union(self, *others: AsyncStream) -> AsyncStream:
        """The rows of several branches of one stream, in the order in which they arrive.

        The watermark is the lowest of the branches; an idle branch (`WatermarkStrategy.with_idleness`) does not hold
        it back.

        Raises:
            FunctionError: branches of other DataFrames, or with other columns.
        """
        for other in others:
            if not isinstance(other, AsyncStream) or other._source is not self._source or other._tag or self._tag:
                raise FunctionError(
                    "union takes branches of the same stream, no side outputs; for others use "
                    "AsyncStream(df.unionByName(...)), or the union of their to_df()"
                )
        return self._then(lambda node: union_node([node, *(other._node for other in others)]))

    def side_output(self, tag: OutputTag) -> AsyncStream:
        """The rows that the operators of this stream write to a side output, from the same evaluation.

        Args:
            tag: one of your own; `DEAD_LETTERS`, the rows that failed under `on_error="dead_letter"`: the columns
                that the operator got, and `error` (type, message, attempts, elapsed, status, function,
                partition); or `LATENCIES`.

        Raises:
            FunctionError: no operator of this stream can write to it.
            OptionError: not a tag.
        """
        if not isinstance(tag, OutputTag):
            raise OptionError(f"side_output takes an OutputTag, not {safe_repr(tag)}")
        if self._tag is not None or not self._source.may_write(self._node, tag):
            hint = {DEAD_LETTERS: "an operator with on_error='dead_letter'", LATENCIES: "latency_interval"}.get(
                tag, "a ProcessFunction, an AsyncFunction or a function with a RuntimeContext"
            )
            raise FunctionError(f"nothing in this stream can write to the side output {tag.name!r}: it needs {hint}")
        side = self._at(self._source, self._node, tag)
        side._ref  # noqa: B018 - raises where the rows of several operators cannot be one table
        return side

    def to_df(self) -> DataFrame:
        """The rows as a DataFrame.

        Without side outputs each action evaluates anew, as with any DataFrame. With them the evaluation is kept and
        shared with `side_output`, until `close()`. Where the engine keeps nothing, all rows are evaluated here.

        Raises:
            FunctionError: side outputs of a streaming DataFrame; functions do not reach the folder for kept rows.
            OptionError: no folder can be made where `ASYNCUDF_FOLDER` says.
            PySparkException: a row or the engine fails, where all rows are evaluated here.
        """
        return self._source.read(self._ref.result)

    def _alone(self) -> DataFrame:
        """The rows without side outputs, which keeps nothing. For a stream of one async operator."""
        for node in self._node.path():
            if isinstance(node.factory, WaitFactory):
                refuse_dead_letters(node.factory.name, node.factory.function_plan.options)
        return self._source.read(self._ref.result, alone=True)

    def collect(self: AsyncStream | None = None, /, **streams: AsyncStream) -> Any:
        """`AsyncStream.collect(name=stream, ...)`: several streams and side outputs from one evaluation.

        The evaluation is kept, as for side outputs, until `close()` of any of the streams; that of one name alone is
        not. Side outputs without a name here are dropped.

        Returns:
            A DataFrame for each name. Called on a stream without names: its rows, as `DataFrame.collect()` does.

        Raises:
            OptionError: something is not a stream; else as `to_df()`.
            FunctionError: several results of a streaming DataFrame; else as `to_df()`.
        """
        if isinstance(self, AsyncStream):
            if streams:
                raise OptionError(
                    f"collect of one stream gives its rows and takes no {', '.join(streams)}; for several results call "
                    f"it on the class, which takes this stream by a name too: AsyncStream.collect(main=..., "
                    f"{', '.join(f'{name}=...' for name in streams)})"
                )
            return self.to_df().collect()
        if not streams or self is not None:
            raise OptionError("collect takes streams by name: AsyncStream.collect(main=stream, rejects=...)")
        for name, stream in streams.items():
            if not isinstance(stream, AsyncStream):
                raise OptionError(f"collect takes streams; {name} is {safe_repr(stream)}")
        return read_together({name: stream._ref for name, stream in streams.items()})

    def close(self) -> None:
        """Release the kept evaluations of this stream and of all others that begin with the same DataFrame.

        DataFrames already given still work; their next action calls the service again. Those that read a temporary
        folder raise a FunctionError then.
        """
        self._source.kept.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        # Notebooks, copy, pickle and hasattr ask as well: a method plans when it is called.
        found = None if name.startswith("_") else getattr(self._source.frame_type, name, None)
        if found is None:
            if not name.startswith("_") and name in self._node.schema.names:
                raise AttributeError(f"a column of an AsyncStream is no attribute of it; use sf.col({name!r})")
            raise AttributeError(f"neither an AsyncStream nor a DataFrame has {name!r}; to_df() gives the DataFrame")
        alone = name in PLANNED  # to keep the rows may be to evaluate them
        if not callable(found):
            return getattr(self._source.read(self._ref.result, alone=alone), name)  # a property, such as `write`

        @functools.wraps(found)
        def method(stream: AsyncStream, /, *arguments: Any, **named: Any) -> Any:
            return getattr(stream._source.read(stream._ref.result, alone=alone), name)(*arguments, **named)

        return types.MethodType(method, self)

    def __repr__(self) -> str:
        names = [node.factory.name for node in self._node.path() if node.factory is not None]
        side = f".side_output({self._tag.name!r})" if self._tag is not None else ""
        return f"<AsyncStream {' > '.join(['source', *names])}{side}>"


@public("asyncudf")
@shows_options(CallOptions)
def ordered_wait(
    df: DataFrame,
    function: Callable[..., Any] | AsyncFunction,
    *columns: str | Column,
    returnType: str | DataType | type[Any] | None = None,  # noqa: N803 - as in async_pandas_udf
    watermark: WatermarkStrategy | None = None,
    with_watermark_column: str | None = None,
    as_: str | None = None,
    **options: Unpack[CallOptions],
) -> DataFrame:
    """`df` with the results of a function appended, in the order of the rows of each partition.

    A struct's fields become columns, anything else one column named after the function; `as_` chooses otherwise. So
    `on_error="capture"`, which makes a struct, gives the columns `value` and `error`. A function of 0..n
    results repeats or drops the row. The other columns are never turned into Python objects.

    Args:
        df: a batch or streaming DataFrame.
        function: an `async_pandas_udf`, an `AsyncFunction`, or a plain function.
        columns: the names of the columns that the function reads, or plain references to them (`df.id`,
            `sf.col("id")`), in the order of its parameters. Without them the columns called like the parameters; an
            `AsyncFunction` then gets all columns.
        returnType: the type of a result, where `function` does not say it.
        watermark: where watermarks come from.
        with_watermark_column: adds the watermark in force at each row as a timestamp column of that name.
        as_: puts all of a result in one column of that name: a struct stays a struct, and under `on_error="capture"`
            it is the struct of value and error. So two functions with equal fields, or two captures, do not clash.
        options: as in `async_pandas_udf`; those given here win.

    Raises:
        FunctionError: unknown columns, name clashes, or a function that cannot take these columns.
        OptionError: an option that cannot work.
    """
    places = watermark, with_watermark_column, as_
    return AsyncStream(df)._wait(OutputMode.ORDERED, function, columns, returnType, options, places)._alone()


@public("asyncudf")
@shows_options(CallOptions)
def unordered_wait(
    df: DataFrame,
    function: Callable[..., Any] | AsyncFunction,
    *columns: str | Column,
    returnType: str | DataType | type[Any] | None = None,  # noqa: N803 - as in async_pandas_udf
    watermark: WatermarkStrategy | None = None,
    with_watermark_column: str | None = None,
    as_: str | None = None,
    **options: Unpack[CallOptions],
) -> DataFrame:
    """Like `ordered_wait`, but each row leaves when its call has finished, so that no row waits for a slower one.

    With `watermark=`, rows change places only between two watermarks.
    """
    places = watermark, with_watermark_column, as_
    return AsyncStream(df)._wait(OutputMode.UNORDERED, function, columns, returnType, options, places)._alone()
