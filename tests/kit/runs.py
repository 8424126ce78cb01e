"""Runs of the real engine on the virtual clock, and the figures that a monitor would have of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from unittest import mock

from asyncudf import AsyncStream, async_pandas_udf
from asyncudf._chain.chain import Chain
from asyncudf._metrics.run_metrics import RunMetrics
from asyncudf.testing import VirtualClockLoop, _operators, _stream, run_stream

__all__ = ("figures_of", "run_of_a_function", "run_of_a_stream")


def figures_of(
    chains: Sequence[Chain], options: Mapping[str, Any], entry_point: str = "column"
) -> list[dict[str, Any]]:
    """What `run.metrics` tells of the functions of these chains, each of which ran in a task of its own."""
    run = RunMetrics()
    for number, chain in enumerate(chains):
        task = {"status": "succeeded", "stage": 1, "partition": number, "attempt": 0, "host": "here", "began": 0.0}
        functions = {
            name: {
                "about": {"name": name, "entry_point": entry_point, "order": order, "options": dict(options)},
                "metrics": operator.counters.totals.to_plain(),
                "timeline": operator.counters.timeline,
            }
            for order, (name, operator) in enumerate(chain.counted.items())
        }
        run.add(json.loads(json.dumps({"id": str(number), "task": task, "functions": functions})))
    return run.to_plain()


def run_of_a_function(
    function: Callable[..., Any], rows: Iterable[Any], *, every: float = 0.0, batch: int = 10_000, **options: Any
) -> dict[str, Any]:
    """The figures of one task.

    Args:
        every: seconds after which another batch comes; the first one comes at once.
        batch: rows of it.
    """
    rows, loop = list(rows), VirtualClockLoop()
    udf = async_pandas_udf(function, **options)
    chain = _operators.chain_of(udf, _operators.ListOutput(), loop)

    def feed(start: int) -> None:
        chain.feed(list(_operators.elements_of(udf, rows[start : start + batch])))
        if start + batch >= len(rows):
            chain.end_of_input()

    for number, start in enumerate(range(0, max(1, len(rows)), batch)):
        loop.call_later(number * every, feed, start)
    try:
        loop.run_until_complete(chain.run())
    finally:
        loop.close()
    (figures,) = figures_of([chain], _plain(udf.options))
    return figures


def run_of_a_stream(
    build: Callable[[AsyncStream], AsyncStream], rows: Any, schema: str, **options: Any
) -> list[dict[str, Any]]:
    """The figures of each function of a chain, in one task; all have the same options."""
    chains: list[Chain] = []
    start = _stream.start_chain

    def started(*arguments: Any) -> Chain:
        chains.append(start(*arguments))
        return chains[-1]

    with mock.patch.object(_stream, "start_chain", started):
        run_stream(build, rows, schema)
    return figures_of(chains, options, "operator")


def _plain(options: Any) -> dict[str, Any]:
    told = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    told["output_mode"] = options.output_mode.value
    return {name: value for name, value in told.items() if isinstance(value, (int, float, str)) or value is None}
