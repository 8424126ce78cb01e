"""Runs a function through the engine on the virtual clock, and gives the figures that were counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from asyncudf import AsyncUDF, async_pandas_udf
from asyncudf._metrics.function_metrics import FunctionMetrics
from asyncudf.testing import VirtualClockLoop
from asyncudf.testing._operators import ListOutput, chain_of, elements_of


def figures(
    function: Callable[..., Any] | AsyncUDF[..., Any],
    rows: Iterable[Any],
    *,
    batches: Iterable[tuple[float, Iterable[Any]]] = (),
    **options: Any,
) -> FunctionMetrics:
    """What a function does with rows.

    Args:
        batches: more rows, each at its time.
    """
    udf = function if isinstance(function, AsyncUDF) else async_pandas_udf(function, **options)
    loop = VirtualClockLoop()
    chain = chain_of(udf, ListOutput(), loop)
    chain.feed(elements_of(udf, rows))
    later = list(batches)

    def feed(number: int) -> None:
        if number < len(later):
            chain.feed(elements_of(udf, later[number][1]))
        if number + 1 < len(later):
            loop.call_at(later[number + 1][0], feed, number + 1)
        else:
            chain.end_of_input()

    if later:
        loop.call_at(later[0][0], feed, 0)
    else:
        chain.end_of_input()
    try:
        loop.run_until_complete(chain.run())
    finally:
        loop.close()
    (operator,) = chain.counted.values()
    return operator.counters.totals
