"""run_stream: a whole chain over plain rows, without Spark, on a virtual clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from .._api.stream import AsyncStream
from .._arrow.objects import has_objects, stored_type
from .._arrow.rows import values_of
from .._arrow.validation import validator
from .._chain.chain import Chain
from .._chain.environment import TaskEnvironment
from .._chain.sinks import ArrowSinks, ResultPlan, SideOutputValidators
from .._chain.source import SourceReader
from .._errors.exceptions import OptionError, ResultError
from .._spark.coordinators import without_coordinator
from .._spark.evaluations import StreamSource
from .._spark.map_in_arrow import ChainTask
from .._spark.planner import rows_node
from .._spark.schemas import arrow_type_or_none, check_source
from .._spark.types import arrow_type, parsed
from .._stores.memory import staying_here
from .._text.safe import safe_repr
from ._loops import new_loop, run_apart


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
        rows: mappings of the columns.
        schema: their types, DDL or a `StructType`.
        clock: "virtual" jumps from timer to timer; "real" is for code that needs threads or sockets.
        batch_size: rows of an Arrow batch.
        object_reuse, latency_interval, redact: as in `AsyncStream`.

    Returns:
        The rows as dicts, in the order of emission; for several streams a list for each name.

    Raises:
        AsyncUDFError: as on a cluster, but not wrapped by Spark.
        OptionError: a stream begins with a side output; run it over rows of its own.

    >>> import asyncio
    >>> async def shout(word: str) -> str:
    ...     await asyncio.sleep(len(word))
    ...     return word.upper()
    >>> rows = [{"word": "long"}, {"word": "one"}]
    >>> run_stream(lambda stream: stream.unordered_wait(shout), rows, "word string")
    [{'word': 'one', 'shout': 'ONE'}, {'word': 'long', 'shout': 'LONG'}]
    """
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
    evaluation = source.plan(list(dict.fromkeys(one._ref.result for one in wanted.values())))
    written = _run(evaluation.task, list(_batches(rows, columns, batch_size)), clock)
    results = {name: _rows(written, evaluation.numbers, one._ref.result) for name, one in wanted.items()}
    return results if isinstance(built, Mapping) else results[""]


def _batches(rows: Iterable[Mapping[str, Any]], schema: Any, size: int) -> Iterator[pa.RecordBatch]:
    rows = list(rows)
    types = {field.name: arrow_type(field.dataType, f"column {field.name!r}") for field in schema.fields}
    stored = {name: validator(f"column {name!r}", one) for name, one in types.items() if has_objects(one)}
    arrow_schema = pa.schema([(name, stored_type(one)) for name, one in types.items()])
    for start in range(0, len(rows), size):
        given = [dict(row) for row in rows[start : start + size]]
        try:
            for name, written in stored.items():
                for row in given:
                    row[name] = written(row.get(name))
            batch = pa.RecordBatch.from_pylist(given, arrow_schema)
        except (pa.ArrowException, TypeError, ValueError, OverflowError, ResultError) as error:
            raise OptionError(f"the rows do not fit the schema {schema.simpleString()}: {error}") from error
        yield batch


def _run(task: ChainTask, batches: Sequence[pa.RecordBatch], clock: str) -> list[pa.RecordBatch]:
    # As in `start_bridge`, but in one thread: a batch that the chain requests is fed in the next turn of the loop.
    loop = new_loop(clock)
    written: list[pa.RecordBatch] = []
    source, read = iter(batches), SourceReader(task.plan)

    async def main() -> None:
        def request_batch() -> None:
            batch = next(source, None)
            if batch is None:
                loop.call_soon(chain.end_of_input)
            else:
                loop.call_soon(chain.feed, read(batch))

        side_types = SideOutputValidators(task.side_output_type, task.results)
        environment = TaskEnvironment(loop, random.Random(0), side_types=side_types, request_batch=request_batch)
        rows = max((batch.num_rows for batch in batches), default=1)
        sinks = ArrowSinks(task.results, written.append, rows, loop, task.side_output_type)
        chain = Chain(task.plan, environment, sinks)
        await chain.run()

    run_apart(loop, main(), task.plan.threads)
    return written


def _rows(
    written: Sequence[pa.RecordBatch], numbers: Mapping[ResultPlan, int], result: ResultPlan
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    types = [arrow_type_or_none(field) for field in result.schema.fields]
    for batch in written:
        if len(numbers) > 1:
            if batch.column(0)[0].as_py() != numbers[result]:
                continue
            batch = pa.RecordBatch.from_struct_array(batch.column(1 + numbers[result]))
        columns = list(map(values_of, batch.columns, types))
        found += [dict(zip(result.schema.names, row, strict=True)) for row in zip(*columns, strict=True)]
    return found
