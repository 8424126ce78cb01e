"""The test kit: the real operators over plain Python values, on a clock that does not wait. No Spark, no sleeping.

- `run_rows(function, rows)` runs a function over rows and returns what comes out; also in a notebook.
- `run_stream(build, rows, schema)` does it with a whole chain.
- `OperatorHarness` with a `ManualFunction` goes step by step: each call is completed by hand, in any order.

A minute of back-off takes no time, every run is the same, and a deadlock fails at once. `VirtualClockLoop` is that
clock, as an event loop for tests of your own.

>>> async def weather(city: str) -> dict:
...     await asyncio.sleep(60)
...     return {"temp": 12.5}
>>> run_rows(weather, ["Oslo"], returnType="temp double")
[{'temp': 12.5}]
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Iterator
from typing import Any, Literal, Self

from asyncudf.queues import LatencyMarker, StreamElement, StreamRecord, Watermark, WatermarkStatus

from ._apart import is_loop_running, run_apart
from ._bridge import run_to_end
from ._clock import VirtualClockLoop as VirtualClockLoop  # help() would list all that asyncio's loop has
from ._decorator import AsyncUDF, udf_of
from ._ends import SideKinds
from ._errors import AsyncUDFError, OptionError
from ._function import RuntimeContext
from ._operator import AsyncWaitOperator
from ._options import OutputMode
from ._outputs import Output, SplittingOutput
from ._signature import Kind
from ._spark import offline_work, tag_kind
from ._stream_testing import run_stream
from ._tags import DEAD_LETTERS, OutputTag
from ._text import short
from ._vectors import Codec
from ._weight import weight

__all__ = ("ManualFunction", "OperatorHarness", "run_rows", "run_stream")


def run_rows(
    function: Any,
    rows: Iterable[Any],
    *,
    output_mode: OutputMode | Literal["ordered", "unordered"] | None = None,
    clock: Literal["virtual", "real"] = "virtual",
    returnType: Any = None,  # noqa: N803 - as in async_pandas_udf
    side_outputs: dict[OutputTag, list[Any]] | None = None,
    **options: Any,
) -> list[Any]:
    """Run a function over rows with the real operator and return the results in the order of emission.

    Args:
        function: a plain function, an `async_pandas_udf` (with its options) or an `AsyncFunction`.
        rows: values, `StreamRecord`s and `Watermark`s; for a function of several parameters a row is a tuple.
        output_mode, options: as in `async_pandas_udf`; those given here win.
        clock: "virtual" jumps from timer to timer, so an hour takes no time and every run is the same; "real"
            is for code that needs threads or sockets.
        returnType: the declared type, to check results against it as Spark's run would.
        side_outputs: filled with what the function writes to side outputs, under their tags; of `DEAD_LETTERS`
            the row's arguments and its error.

    Returns:
        The result values and the watermarks that were put in, without the `Watermark.MAX` at the end.

    Raises:
        AsyncUDFError: as on a cluster, but not wrapped by Spark. On the virtual clock also when every call waits
            for something that can no longer happen.

    >>> async def shout(word: str) -> str:
    ...     await asyncio.sleep(len(word))
    ...     return word.upper()
    >>> run_rows(shout, ["long", "one"]), run_rows(shout, ["long", "one"], output_mode="unordered")
    (['LONG', 'ONE'], ['ONE', 'LONG'])
    """
    if output_mode is not None:
        options["output_mode"] = output_mode
    udf = udf_of(function, returnType, options)
    if clock not in ("virtual", "real"):
        raise OptionError(f"clock must be 'virtual' or 'real', not {short(clock)}")
    loop = VirtualClockLoop() if clock == "virtual" else asyncio.new_event_loop()
    if clock == "virtual" and udf.spec.kind is Kind.THREAD:
        loop.close()
        raise OptionError(
            f"{udf.spec.name} is a plain def and runs in a thread, in which virtual time does not pass: time would "
            "jump past its timeout; use run_rows(..., clock='real')"
        )
    output = ListOutput(side_outputs)

    async def main() -> None:
        operator = operator_of(udf, output, loop)
        operator.feed(elements_of(udf, rows))
        operator.end_of_input()
        await operator.run()

    run_apart(loop, main(), udf.options.capacity)
    return output.collected


class ManualFunction:
    """An async function whose calls wait until the test completes them.

    Attributes:
        calls: the arguments of each call so far; of one argument, the argument itself.
    """

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    async def __call__(self, *args: Any) -> Any:
        number = len(self.calls)
        self.calls.append(args[0] if len(args) == 1 else args)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            return await future
        finally:
            del self._waiting[number]

    @property
    def running(self) -> list[Any]:
        """The arguments of the calls that are waiting, in the order of their start."""
        return [self.calls[number] for number in self._waiting]

    def complete(self, value: Any, result: Any) -> None:
        """Let the oldest waiting call with these arguments return."""
        self._future(value).set_result(result)

    def fail(self, value: Any, error: BaseException) -> None:
        """Let the oldest waiting call with these arguments raise."""
        self._future(value).set_exception(error)

    def _future(self, value: Any) -> asyncio.Future[Any]:
        for number, future in self._waiting.items():
            if self.calls[number] == value and not future.done():
                return future
        raise AssertionError(f"no call with {value!r} is waiting; waiting are {self.running}")


class OperatorHarness:
    """One operator on a virtual clock that stands still unless the test advances it.

    Every method runs what can run and returns when all calls are waiting. `output` holds what was emitted. An
    error that ended the operator is raised by `is_done`, at the latest at the end of the `with` block.

    >>> function = ManualFunction()
    >>> with OperatorHarness(function) as harness:
    ...     harness.put("a", "b")
    ...     harness.complete("b", "B")
    ...     waiting = list(harness.output)
    ...     harness.complete("a", "A")
    >>> waiting, harness.output
    ([], ['A', 'B'])
    """

    def __init__(self, function: Any, *, returnType: Any = None, **options: Any) -> None:  # noqa: N803
        if is_loop_running():
            raise AsyncUDFError(
                "an OperatorHarness runs its own event loop step by step and cannot do so inside another; use it in a "
                "plain test function, or in one that a coroutine awaits with asyncio.to_thread"
            )
        self._udf = udf_of(function, returnType, options)
        self._function = function
        self._loop = VirtualClockLoop()
        self._output = ListOutput()
        self._operator = operator_of(self._udf, self._output, self._loop)
        self._main: asyncio.Task[None] | None = None
        self._told = False

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *exception: object) -> None:
        async def stop() -> None:
            if self._main is not None:
                self._main.cancel()
                try:
                    await self._main
                except asyncio.CancelledError:
                    pass
                except Exception:
                    if exception[0] is None and not self._told:  # an error that the test has not looked at
                        raise

        run_to_end(self._loop, stop(), self._udf.options.capacity)

    @property
    def output(self) -> list[Any]:
        """Results, watermarks, statuses and latency markers in the order of emission."""
        return self._output.everything

    @property
    def is_done(self) -> bool:
        """Whether the operator has ended; raises the error that ended it."""
        if self._main is None or not self._main.done():
            return False
        self._told = True
        self._main.result()
        return True

    def put(self, *rows: Any) -> None:
        """Feed rows and elements."""
        self._run(lambda: self._operator.feed(list(elements_of(self._udf, rows))))

    def end(self) -> None:
        """End the input."""
        self._run(self._operator.end_of_input)

    def complete(self, value: Any, result: Any) -> None:
        """Let a call of the `ManualFunction` return."""
        self._run(lambda: self._function.complete(value, result))

    def fail(self, value: Any, error: BaseException) -> None:
        """Let a call of the `ManualFunction` raise."""
        self._run(lambda: self._function.fail(value, error))

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._loop.run_until_complete(asyncio.sleep(seconds))
        self._run(lambda: None)

    def snapshot(self) -> list[StreamElement]:
        """What a snapshot of the operator holds."""
        return self._operator.snapshot_state()

    def restore(self, elements: list[StreamElement]) -> None:
        """Replay a snapshot; before any `put`."""
        self._run(lambda: self._operator.restore_state(elements))

    def _start(self) -> None:
        self._main = self._loop.create_task(self._operator.run())
        self._run(lambda: None)

    def _run(self, action: Any) -> None:
        async def settle() -> None:
            action()
            for _ in range(20):  # more turns of the loop than any chain of callbacks here is long
                await asyncio.sleep(0)

        self._loop.run_until_complete(settle())


class ListOutput(Output):
    def __init__(self, side_outputs: dict[OutputTag, list[Any]] | None = None) -> None:
        super().__init__()
        self.everything: list[Any] = []
        self._sides = {} if side_outputs is None else side_outputs

    @property
    def collected(self) -> list[Any]:
        return [item for item in self.everything if not isinstance(item, (WatermarkStatus, LatencyMarker))]

    def collect(self, record: StreamRecord) -> None:
        self.everything.append(record.value)

    def collect_tagged(self, tag: OutputTag, record: StreamRecord) -> None:
        told = {"input": record.origin, **record.value} if tag == DEAD_LETTERS else record.value
        self._sides.setdefault(tag, []).append(told)

    def emit_watermark(self, watermark: Watermark) -> None:
        super().emit_watermark(watermark)
        if watermark != Watermark.MAX:
            self.everything.append(watermark)

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        self.everything.append(status)

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        self.everything.append(marker)


def operator_of(udf: AsyncUDF[..., Any], output: Output, loop: asyncio.AbstractEventLoop) -> AsyncWaitOperator:
    spec, options = udf.spec, udf.options
    context = RuntimeContext(spec.name, loop.time, timeout=options.timeout, side_types=SideKinds(tag_kind))
    finish = offline_work(spec, options, udf.returns).finish(keep=True)
    codec = Codec(spec.name, spec.vectors, spec.parameters) if spec.vectorized else None
    chosen: dict[str, Any] = {"finish": finish, "codec": codec, "weigh": weight}
    return AsyncWaitOperator(spec, options, SplittingOutput(output), context, loop=loop, rng=random.Random(0), **chosen)


def elements_of(udf: AsyncUDF[..., Any], rows: Iterable[Any]) -> Iterator[StreamElement]:
    spec = udf.spec
    several = spec.variadic or len(spec.parameters) > 1
    for row in rows:
        if isinstance(row, (Watermark, WatermarkStatus, LatencyMarker)):
            yield row
            continue
        record = row if isinstance(row, StreamRecord) else StreamRecord(row)
        if spec.kind is Kind.ASYNC_FUNCTION:
            yield StreamRecord(record.value, record.timestamp, record.value)
            continue
        arguments = record.value if several and isinstance(record.value, tuple) else (record.value,)
        spec.check_column_count(len(arguments))
        yield StreamRecord(arguments, record.timestamp, arguments)
