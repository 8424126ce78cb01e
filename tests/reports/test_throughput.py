"""The ideal beside what was achieved: never less, and shown only where the figures tell it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf._observe.reports.function_figures import throughput_of


def function_of(
    *,
    capacity: Any = 20,
    mean: float = 10.0,
    peak: int = 20,
    calls: int = 1000,
    rows: int = 1000,
    wall: float = 10.0,
    tasks: int = 4,
) -> dict[str, Any]:
    """Four tasks side by side."""
    return {
        "began": 100.0, "ended": 100.0 + wall, "seconds": 4 * wall, "rows": rows, "options": {"capacity": capacity},
        "in_flight": {"mean": mean, "peak": peak}, "latency": {"count": calls},
        "tasks": {"succeeded": tasks - 1, "stopped": 0, "running": 1, "failed": 9, "lost": 0},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "slots", "in_slot", "possible"),
    [
        ({}, 20, 0.4, 200.0),  # four tasks of 20 slots, of which 10 were in use: a call had its slot for 0.4 s
        ({"capacity": 100_000, "rows": 100, "calls": 100, "mean": 2.0}, 25, 0.8, 125.0),  # slots no task has rows for
        ({"capacity": 100_000, "rows": 100, "calls": 100, "mean": 20.0, "peak": 97}, 97, 8.0, 48.5),  # were in use
        ({"calls": 20}, 20, 20.0, 200.0),  # calls of 50 rows each
        ({"capacity": 1, "mean": 1.0, "peak": 1}, 1, 0.04, 100.0),  # it was always in use: that was ideal
    ],
)
def test_more_is_possible_by_the_slots_that_were_not_in_use(
    given: dict[str, Any], slots: int, in_slot: float, possible: float
) -> None:
    ideal = throughput_of(function_of(**given))
    assert (ideal.slots, ideal.parallel) == (slots, 4.0)
    assert (ideal.in_slot, ideal.possible) == (pytest.approx(in_slot), pytest.approx(possible))


@given(st.integers(2, 500), st.floats(0.01, 1), st.integers(1, 10**9), st.floats(1e-3, 1e6), st.integers(1, 10**4))
def test_nobody_does_more_than_the_ideal(capacity: int, used: float, rows: int, wall: float, tasks: int) -> None:
    """Achieved is the part of it that the slots were in use."""
    told = function_of(capacity=capacity, mean=capacity * used, peak=capacity, rows=rows, wall=wall, tasks=tasks)
    ideal = throughput_of(told)
    assert ideal.achieved is not None
    assert ideal.possible is not None
    assert ideal.achieved == pytest.approx(ideal.possible * used)


@pytest.mark.parametrize(
    "function",
    [
        function_of(capacity=None),
        function_of(capacity="auto"),
        function_of(peak=1, mean=1.0),
        function_of(calls=0, mean=0.0),
        function_of(wall=0.0),
        function_of(wall=float("inf")),
    ],
    ids=["capacity not known", "capacity by itself", "one call at a time", "no calls", "no time", "never ended"],
)
def test_where_the_figures_do_not_tell_it_there_is_none(function: dict[str, Any]) -> None:
    """Calls that never overlap may be of a kind that cannot."""
    assert throughput_of(function).possible is None
