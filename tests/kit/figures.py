"""Runs a function through the engine on the virtual clock, and gives the figures that were counted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from asyncudf import AsyncUDF
from tests.kit.engines import Engine
from tests.kit.runs import figures_of

__all__ = ("figures", "figures_so_far")


def figures(
    function: Callable[..., Any] | AsyncUDF[..., Any],
    rows: Iterable[Any],
    *,
    batches: Iterable[tuple[float, Iterable[Any]]] = (),
    **options: Any,
) -> SimpleNamespace:
    """What a function does with rows: the figures of `run.metrics`, as attributes.

    Args:
        batches: more rows, each at its time.
    """
    engine = Engine(function, **options)
    engine.feed(rows)
    later = list(batches)

    def feed(number: int) -> None:
        if number < len(later):
            engine.feed(later[number][1])
        if number + 1 < len(later):
            engine.loop.call_at(later[number + 1][0], feed, number + 1)
        else:
            engine.end()

    if later:
        engine.loop.call_at(later[0][0], feed, 0)
    else:
        engine.end()
    engine.run()
    return figures_so_far(engine)


def figures_so_far(engine: Engine) -> SimpleNamespace:
    """The same of an engine that runs, or that has failed, as far as it has been looked at."""
    (found,) = figures_of([engine.counted], {})
    return SimpleNamespace(**found)
