"""run_rows and run_stream: a function, or a whole chain, over plain rows and without Spark."""

from __future__ import annotations

import asyncio
import datetime
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Unpack, get_args

import pyarrow as pa

from asyncudf.queues import LatencyMarker, StreamElement, StreamRecord, Watermark, WatermarkStatus
from asyncudf.queues._public import public

from .._arrow.objects import has_objects, stored_type
from .._arrow.rows import reader, values_of
from .._arrow.validation import in_utc, validator
from .._chain.chain import Chain, SourceReader
from .._chain.environment import TaskEnvironment
from .._chain.function_plan import FieldsDropped, FunctionPlan
from .._chain.plan import ChainPlan
from .._chain.results import ArrowOutputs, ResultPlan, SingleOutput, side_output_validators
from .._engine.operators.input import InputElement
from .._engine.operators.outputs import UNLIMITED, OpenBatch, StreamOutput
from .._errors.checks import positive_int, unknown_name
from .._errors.exceptions import OptionError, ResultError
from .._errors.safe import safe_repr
from .._functions.options import CallOptions, OutputMode, shows_options
from .._functions.side_outputs import DEAD_LETTERS, OutputTag
from .._spark.api.decorator import AsyncUDF, udf_of
from .._spark.api.stream import AsyncStream
from .._spark.chain_task import ChainTask
from .._spark.coordinators import without_coordinator
from .._spark.evaluations import StreamSource
from .._spark.planner import plan_function_offline, rows_node
from .._spark.schemas import arrow_type_or_none, check_source
from .._spark.types import arrow_type, parsed, side_output_type
from ._loops import new_loop, run_apart
from ._result_store import staying_here

ELEMENTS = get_args(StreamElement)


@public("asyncudf.testing")
@shows_options(CallOptions)
def run_rows(
    function: Any,
    rows: Iterable[Any],
    *,
    output_mode: OutputMode | Literal["ordered", "unordered"] | None = None,
    clock: Literal["virtual", "real"] = "virtual",
    returnType: Any = None,  # noqa: N803 - as in async_pandas_udf
    side_outputs: dict[OutputTag, list[Any]] | None = None,
    as_column: bool = False,
    **options: Unpack[CallOptions],
) -> list[Any]:
    """Run a function over rows with the real operator and return the results in the order of emission.

    Args:
        function: a plain function, an `async_pandas_udf` (with its options) or an `AsyncFunction`.
        rows: values, `StreamRecord`s and `Watermark`s; a row of a function with several parameters is a tuple.
        output_mode, options: as in `async_pandas_udf`; those given here win.
        clock: "virtual" jumps from timer to timer, so an hour takes no time and every run is the same; "real"
            is for code that needs threads or sockets.
        returnType: the declared type; results are checked against it as with Spark.
        side_outputs: filled with the rows that the function writes to side outputs, under their tags; a row of
            `DEAD_LETTERS` has the arguments and the error.
        as_column: give results as a column has them, and as the next function would see them: a dict for each struct,
            with the declared fields.

    Returns:
        The result values and the watermarks of `rows`, without the `Watermark.MAX` at the end. Results are checked
        against the declared type, and are the objects that the function has returned: a Pydantic model stays one, while
        a column of Spark has a `Row` with its fields. With `as_column=True` or a `store` they have the declared type,
        and so has each result that has more fields.

    Raises:
        AsyncUDFError: as on a cluster, but not wrapped by Spark. On the virtual clock also if every call waits for
            something that can no longer happen.

    >>> import asyncio
    >>> async def shout(word: str) -> str:
    ...     await asyncio.sleep(len(word))
    ...     return word.upper()
    >>> run_rows(shout, ["long", "one"]), run_rows(shout, ["long", "one"], output_mode="unordered")
    (['LONG', 'ONE'], ['ONE', 'LONG'])
    """
    chosen = {} if output_mode is None else {"output_mode": output_mode}
    udf = udf_of(function, returnType, {**options, **chosen})
    if clock == "virtual" and udf.spec.runs_in_thread:
        raise OptionError(
            f"{udf.spec.name} is a plain def and runs in a thread, in which virtual time does not pass: time would "
            "jump past its timeout; use run_rows(..., clock='real')"
        )
    loop = new_loop(clock)
    output = ListOutput(side_outputs)

    # All rows are fed at once, so the chain never asks for the next batch.
    async def main() -> None:
        chain = chain_of(udf, output, loop, as_column=as_column)
        chain.feed(elements_of(udf, rows))
        chain.end_of_input()
        await chain.run()

    run_apart(loop, main(), udf.options.slots)
    return output.collected


class ListOutput(StreamOutput):
    """Keeps what a chain emits."""

    def __init__(self, side_outputs: dict[OutputTag, list[Any]] | None = None) -> None:
        super().__init__()
        self.everything: list[Any] = []
        self._has_others = False  # statuses or latency markers
        self.read: Callable[[Any], Any] | None = None  # turns a result into the value that the next function would see
        self._sides = {} if side_outputs is None else side_outputs

    @property
    def collected(self) -> list[Any]:
        """Results and watermarks, in the order of emission."""
        if not self._has_others:
            return [*self.everything]
        return [item for item in self.everything if not isinstance(item, (WatermarkStatus, LatencyMarker))]

    def keep(self, read: Callable[[Any], Any] | None, *, weighs: bool) -> None:
        """Keep what `read` makes of each result, or the results themselves; `weighs`: results differ in size."""
        self.read = read
        if read is None and not weighs:  # then a queue may append results itself, as to a batch for Spark
            self.open_batch = OpenBatch(self.everything, [], UNLIMITED)

    def collect(self, record: StreamRecord) -> None:
        self.everything.append(record.value if self.read is None else self.read(record.value))

    def collect_result(self, record: Any, result: Any) -> None:
        self.everything.append(result if self.read is None else self.read(result))

    def collect_tagged(self, tag: OutputTag, record: StreamRecord) -> None:
        row = {"input": record.origin, **record.value} if tag == DEAD_LETTERS else record.value
        self._sides.setdefault(tag, []).append(row)

    def emit_watermark(self, watermark: Watermark) -> None:
        super().emit_watermark(watermark)
        if watermark != Watermark.MAX:
            self.everything.append(watermark)

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        self._has_others = True
        self.everything.append(status)

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        self._has_others = True
        self.everything.append(marker)


class _KitPlan(FunctionPlan):
    """Results are checked and stay the objects that the function returned, as tests compare with these."""

    @property
    def converts(self) -> bool:
        # A store gives back values that Arrow takes. So results are such values from the start: nobody may see whether
        # a result was stored.
        return super().converts and self.options.store is not None

    def _validator(self) -> Callable[[Any], Any]:
        if self.converts or self.declared is None:
            return super()._validator()
        dropped = FieldsDropped(self.spec.name, redacted=self.options.redacted)
        validate = self.validator_telling(dropped)

        def check(value: Any) -> Any:
            validated = validate(value)
            if not dropped.any:
                return value
            dropped.any = False
            return validated

        return check


def chain_of(
    udf: AsyncUDF[..., Any], output: ListOutput, loop: asyncio.AbstractEventLoop, *, as_column: bool = False
) -> Chain:
    """The chain of a function as Spark runs it; without `as_column` results stay the objects that it returned."""
    # Random(0): every run is the same, jitter included.
    plan = plan_function_offline(udf.spec, udf.options, udf.returns)
    if not as_column:
        plan = _KitPlan(plan.spec, plan.options, plan.declared, plan.coordinator)
    read = reader(plan.written) if plan.converts and has_objects(plan.written) else None
    output.keep(read, weighs=plan.weigh is not None)
    names = udf.spec.parameters
    environment = TaskEnvironment(loop, random.Random(0), side_types=side_output_validators(side_output_type))
    return Chain(ChainPlan.of_function(plan, names, [None] * max(1, len(names))), environment, SingleOutput(output))


def elements_of(udf: AsyncUDF[..., Any], rows: Iterable[Any]) -> Iterator[InputElement]:
    """Turns rows, as a user writes them, into elements for an operator."""
    spec, counts = udf.spec, set[int]()
    takes_mapping, several = spec.takes_mapping, spec.variadic or len(spec.parameters) > 1
    for row in rows:
        value, timestamp = row, None
        if isinstance(row, ELEMENTS):
            if not isinstance(row, StreamRecord):
                yield row
                continue
            value, timestamp = row.value, row.timestamp
        seen = value
        if not takes_mapping:
            seen = value if several and isinstance(value, tuple) else (value,)
            if (several or not counts) and len(seen) not in counts:
                spec.check_column_count(len(seen))
                counts.add(len(seen))
        yield seen, timestamp, seen


@public("asyncudf.testing")
def run_stream(
    build: Callable[[AsyncStream], AsyncStream | Mapping[str, AsyncStream]],
    rows: Iterable[Mapping[str, Any]],
    schema: Any,
    *,
    clock: Literal["virtual", "real"] = "virtual",
    batch_size: int = 10_000,
    object_reuse: bool = False,
    latency_interval: float | None = None,
    redact: bool | Callable[[Any], Any] = False,
) -> Any:
    """Run a chain over rows with the real operators, and return its results.

    Args:
        build: takes a stream and returns the stream to read, or several by name; side outputs too.
        rows: mappings of the columns; a column that a row leaves out is NULL.
        schema: their types, DDL or a `StructType`.
        clock: "virtual" jumps from timer to timer; "real" is for code that needs threads or sockets.
        batch_size: rows of an Arrow batch.
        object_reuse, latency_interval, redact: as in `AsyncStream`.

    Returns:
        The rows as dicts, in the order of emission; for several streams a list for each name.

    Raises:
        AsyncUDFError: as on a cluster, but not wrapped by Spark.
        OptionError: a row has a column that the schema has not, or does not fit it; or a stream begins with a side
            output; run it over rows of its own.

    >>> import asyncio
    >>> async def shout(word: str) -> str:
    ...     await asyncio.sleep(len(word))
    ...     return word.upper()
    >>> rows = [{"word": "long"}, {"word": "one"}]
    >>> run_stream(lambda stream: stream.unordered_wait(shout), rows, "word string")
    [{'word': 'one', 'shout': 'ONE'}, {'word': 'long', 'shout': 'LONG'}]
    """
    positive_int(batch_size, "batch_size")
    columns: Any = parsed(schema) if isinstance(schema, str) else schema
    if not hasattr(columns, "fields"):
        raise OptionError(f"the schema of the rows has columns, such as 'word string', and is not {safe_repr(schema)}")
    check_source(columns, "the DataFrame")
    if twice := [name for name in columns.names if columns.names.count(name) > 1]:
        raise OptionError(f"rows as dicts cannot have two columns called {twice[0]!r}")
    source = StreamSource.of(None, object_reuse, latency_interval, redact)
    with staying_here(), without_coordinator():
        built = build(AsyncStream._at(source, rows_node(columns)))
    wanted = dict(built) if isinstance(built, Mapping) else {"": built}
    if not wanted or not all(isinstance(one, AsyncStream) for one in wanted.values()):
        raise OptionError(f"build must return a stream, or several by name, not {safe_repr(built)}")
    for one in wanted.values():
        if one._source is not source:
            raise OptionError(f"{one!r} does not begin with the rows; run_stream runs one chain")
    task = source.task(list(dict.fromkeys(one._ref.result for one in wanted.values())))
    written = _run(task, list(_batches(rows, columns, batch_size)), clock)
    results = {name: _rows(written, task.results, one._ref.result) for name, one in wanted.items()}
    return results if isinstance(built, Mapping) else results[""]


def _batches(rows: Iterable[Mapping[str, Any]], schema: Any, size: int) -> Iterator[pa.RecordBatch]:
    rows = list(rows)
    types = {field.name: arrow_type(field.dataType, f"column {field.name!r}") for field in schema.fields}
    stored = {name: validator(f"column {name!r}", one) for name, one in types.items() if has_objects(one)}
    moments = [name for name, one in types.items() if pa.types.is_timestamp(one) and one.tz is not None]
    arrow_schema = pa.schema([(name, stored_type(one)) for name, one in types.items()])
    for start in range(0, len(rows), size):
        given = [dict(row) for row in rows[start : start + size]]
        if unknown := [name for row in given for name in row if name not in types]:  # Arrow would leave them out
            raise OptionError(f"a row has an {unknown_name('column', str(unknown[0]), types)}")
        try:
            for name, written in stored.items():
                for row in given:
                    row[name] = written(row.get(name))
            for name, row in itertools.product(moments, given):
                if isinstance(value := row.get(name), datetime.datetime) and value.tzinfo is not None:
                    row[name] = in_utc(value)
            batch = pa.RecordBatch.from_pylist(given, arrow_schema)
        except (pa.ArrowException, TypeError, ValueError, OverflowError, ResultError) as error:
            raise OptionError(f"the rows do not fit the schema {schema.simpleString()}: {error}") from error
        yield batch


def _run(task: ChainTask, batches: Sequence[pa.RecordBatch], clock: str) -> list[pa.RecordBatch]:
    # As in `start_bridge`, but in one thread: a batch that the chain requests is fed in the next turn of the loop.
    written: list[pa.RecordBatch] = []
    source, read = iter(batches), SourceReader(task.plan)
    loop = new_loop(clock)

    async def main() -> None:
        def request_rows() -> None:
            batch = next(source, None)
            if batch is None:
                loop.call_soon(chain.end_of_input)
            else:
                loop.call_soon(chain.feed, read(batch))

        side_types = side_output_validators(task.side_output_type, task.results)
        environment = TaskEnvironment(loop, random.Random(0), side_types=side_types, request_rows=request_rows)
        rows = max((batch.num_rows for batch in batches), default=1)
        results = ArrowOutputs(task.results, written.append, rows, loop, task.side_output_type)
        chain = Chain(task.plan, environment, results)
        await chain.run()

    run_apart(loop, main(), task.plan.threads)
    return written


def _rows(written: Sequence[pa.RecordBatch], results: Sequence[ResultPlan], result: ResultPlan) -> list[dict[str, Any]]:
    found, number = list[dict[str, Any]](), results.index(result)
    types = [arrow_type_or_none(field) for field in result.schema.fields]
    for batch in written:
        if len(results) > 1:
            if batch.column(0)[0].as_py() != number:
                continue
            batch = pa.RecordBatch.from_struct_array(batch.column(1 + number))
        columns = list(map(values_of, batch.columns, types))
        found += [dict(zip(result.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]
    return found
