"""Runs of the real engine on the virtual clock, and the figures that a monitor would have of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from asyncudf import AsyncStream, AsyncUDFError
from asyncudf.testing import run_stream
from tests.kit.engines import Counted, Engine, added_up, started_streams

__all__ = ("figures_of", "run_of_a_function", "run_of_a_stream", "run_of_tasks", "run_that_ends")


def figures_of(
    tasks: Sequence[Counted], options: Mapping[str, Any], entry_point: str = "column", *, statuses: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """What `run.metrics` tells of the functions, of each of which these tasks have counted something.

    Args:
        statuses: how each task ended; they have succeeded if left out.
    """
    messages = []
    for number, (counted, status) in enumerate(zip(tasks, statuses or ["succeeded"] * len(tasks), strict=True)):
        task = {"status": status, "stage": 1, "partition": number, "attempt": 0, "host": "here", "began": 0.0}
        functions = {
            name: {
                "about": {"name": name, "entry_point": entry_point, "order": order, "options": dict(options)},
                **told,
            }
            for order, (name, told) in enumerate(counted.items())
        }
        messages.append({"id": str(number), "task": task, "functions": functions})
    return added_up(messages)


def run_of_a_function(
    function: Callable[..., Any], rows: Iterable[Any], *, every: float = 0.0, batch: int = 10_000, **options: Any
) -> dict[str, Any]:
    """The figures of one task.

    Args:
        every: seconds after which another batch comes; the first one comes at once.
        batch: rows of it.
    """
    rows, engine = list(rows), Engine(function, **options)

    def feed(start: int) -> None:
        engine.feed(rows[start : start + batch])
        if start + batch >= len(rows):
            engine.end()

    for number, start in enumerate(range(0, max(1, len(rows)), batch)):
        engine.loop.call_later(number * every, feed, start)
    engine.run()
    (figures,) = figures_of([engine.counted], engine.udf.options.to_plain())
    return figures


def run_that_ends(function: Callable[..., Any], rows: Iterable[Any], **options: Any) -> dict[str, Any]:
    """The figures of a job that an error has ended: one of two tasks has failed, and Spark has stopped the other."""
    failed, stopped = Engine(function, **options), Engine(function, **options)
    failed.feed(rows)
    failed.end()
    with contextlib.suppress(AsyncUDFError):
        failed.run()
        raise AssertionError("the task has not failed")
    stopped.feed([])
    stopped.run(until=60.0)
    (figures,) = figures_of(
        [failed.counted, stopped.counted], failed.udf.options.to_plain(), statuses=["failed", "stopped"]
    )
    return figures


def run_of_tasks(function: Callable[..., Any], *partitions: Iterable[Any], **options: Any) -> dict[str, Any]:
    """The figures of tasks that run at the same time, each with the rows of a partition."""
    first = Engine(function, **options)
    engines = [first, *(Engine(function, loop=first.loop, **options) for _ in partitions[1:])]
    for engine, rows in zip(engines, partitions, strict=True):
        engine.feed(rows)
        engine.end()
    first.run(*engines[1:])
    (figures,) = figures_of([engine.counted for engine in engines], first.udf.options.to_plain())
    return figures


def run_of_a_stream(
    build: Callable[[AsyncStream], AsyncStream], rows: Any, schema: str, **options: Any
) -> list[dict[str, Any]]:
    """The figures of each function of a chain, in one task; all have the same options."""
    with started_streams() as started:
        run_stream(build, rows, schema)
    return figures_of([counted() for counted in started], options, "operator")
