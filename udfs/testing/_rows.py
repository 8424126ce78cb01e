"""run_rows: a function over plain Python values, without Spark; and the chain and the output behind it."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, Unpack

from asyncudf.queues import LatencyMarker, StreamRecord, Watermark, WatermarkStatus

from .._api.decorator import AsyncUDF, udf_of
from .._arrow.objects import has_objects
from .._arrow.rows import reader
from .._chain.chain import Chain
from .._chain.environment import TaskEnvironment
from .._chain.plan import ChainPlan
from .._chain.sinks import OutputSink, SideOutputValidators
from .._errors.exceptions import OptionError
from .._functions.side_outputs import DEAD_LETTERS, OutputTag
from .._operators.input import InputElement
from .._operators.outputs import Output
from .._policies.options import CallOptions, OutputMode
from .._spark.planner import plan_function_offline
from .._spark.types import side_output_type
from ._loops import new_loop, run_apart

ELEMENTS = (StreamRecord, Watermark, WatermarkStatus, LatencyMarker)


def run_rows(
    function: Any,
    rows: Iterable[Any],
    *,
    output_mode: OutputMode | Literal["ordered", "unordered"] | None = None,
    clock: Literal["virtual", "real"] = "virtual",
    returnType: Any = None,  # noqa: N803 - as in async_pandas_udf
    side_outputs: dict[OutputTag, list[Any]] | None = None,
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

    Returns:
        The result values and the watermarks of `rows`, without the `Watermark.MAX` at the end.

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
        chain = chain_of(udf, output, loop)
        chain.feed(elements_of(udf, rows))
        chain.end_of_input()
        await chain.run()

    run_apart(loop, main(), udf.options.slots)
    return output.collected


class ListOutput(Output):
    """Keeps what a chain emits.

    Attributes:
        read: makes of a result what a function sees of it.
    """

    def __init__(self, side_outputs: dict[OutputTag, list[Any]] | None = None) -> None:
        super().__init__()
        self.everything: list[Any] = []
        self.read: Callable[[Any], Any] | None = None
        self._sides = {} if side_outputs is None else side_outputs

    @property
    def collected(self) -> list[Any]:
        """Results and watermarks, in the order of emission."""
        return [item for item in self.everything if not isinstance(item, (WatermarkStatus, LatencyMarker))]

    def collect(self, record: StreamRecord) -> None:
        self.everything.append(record.value if self.read is None else self.read(record.value))

    def collect_results(self, records: Sequence[Any], results: Sequence[Any]) -> None:
        self.everything += results if self.read is None else map(self.read, results)

    def collect_tagged(self, tag: OutputTag, record: StreamRecord) -> None:
        row = {"input": record.origin, **record.value} if tag == DEAD_LETTERS else record.value
        self._sides.setdefault(tag, []).append(row)

    def emit_watermark(self, watermark: Watermark) -> None:
        super().emit_watermark(watermark)
        if watermark != Watermark.MAX:
            self.everything.append(watermark)

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        self.everything.append(status)

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        self.everything.append(marker)


def chain_of(udf: AsyncUDF[..., Any], output: ListOutput, loop: asyncio.AbstractEventLoop) -> Chain:
    """The chain of a function as Spark runs it; its results are checked, and stay what the function returned."""
    # keeps_results: a test compares with what its function returned, not with the value that Arrow takes for it.
    # Random(0): every run is the same, jitter included.
    plan = dataclasses.replace(plan_function_offline(udf.spec, udf.options, udf.returns), keeps_results=True)
    if plan.converts and has_objects(plan.written):
        output.read = reader(plan.written)
    names = udf.spec.parameters
    environment = TaskEnvironment(loop, random.Random(0), side_types=SideOutputValidators(side_output_type))
    return Chain(ChainPlan.of_function(plan, names, [None] * max(1, len(names))), environment, OutputSink(output))


def elements_of(udf: AsyncUDF[..., Any], rows: Iterable[Any]) -> Iterator[InputElement]:
    """Rows as a user writes them as elements for an operator."""
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
            if len(seen) not in counts:
                spec.check_column_count(len(seen))
                counts.add(len(seen))
        yield seen, timestamp, seen
