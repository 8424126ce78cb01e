"""`run_rows`: a function over plain values, without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Literal, Unpack

from .._api.decorator import udf_of
from .._errors.exceptions import OptionError
from .._functions.side_outputs import OutputTag
from .._policies.options import CallOptions, OutputMode
from .._text.safe import safe_repr
from ._clock import VirtualClockLoop as VirtualClockLoop
from ._operators import ListOutput, chain_of, elements_of
from ._run_apart import run_apart

__all__ = ("run_rows",)


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

    >>> import asyncio
    >>> async def shout(word: str) -> str:
    ...     await asyncio.sleep(len(word))
    ...     return word.upper()
    >>> run_rows(shout, ["long", "one"]), run_rows(shout, ["long", "one"], output_mode="unordered")
    (['LONG', 'ONE'], ['ONE', 'LONG'])
    """
    chosen = {} if output_mode is None else {"output_mode": output_mode}
    udf = udf_of(function, returnType, {**options, **chosen})
    if clock not in ("virtual", "real"):
        raise OptionError(f"clock must be 'virtual' or 'real', not {safe_repr(clock)}")
    loop = VirtualClockLoop() if clock == "virtual" else asyncio.new_event_loop()
    if clock == "virtual" and udf.spec.runs_in_thread:
        loop.close()
        raise OptionError(
            f"{udf.spec.name} is a plain def and runs in a thread, in which virtual time does not pass: time would "
            "jump past its timeout; use run_rows(..., clock='real')"
        )
    output = ListOutput(side_outputs)

    # Fed at once and as a whole: nobody else reads the input, so there is nobody to ask for the next batch.
    async def main() -> None:
        chain = chain_of(udf, output, loop)
        chain.feed(elements_of(udf, rows))
        chain.end_of_input()
        await chain.run()

    run_apart(loop, main(), udf.options.slots)
    return output.collected
