"""What was done in vain is told of, with what keeps it from being so, if an option does."""

from __future__ import annotations

from typing import Any

import pytest

from asyncudf._reports.verdict import verdict
from tests.kit.plain_figures import figures, latencies

BUSY = {"calls_busy": 9.3, "winding_down": 0.7, "in_flight": {"mean": 18.6, "peak": 20}}

# What was found, and what is said of it.
TEXTS: dict[str, tuple[dict[str, Any], str]] = {
    "failed attempts": (
        figures(
            **BUSY,
            tasks={"succeeded": 1, "failed": 2},
            failed_attempts={"seconds": 90.0, "calls": 311, "errors": {"ValueError": 2}, "ended_by": {"on_error": 2}},
        ),
        (
            "93% of the time went to calls busy, but 2 task attempts failed and took 90% of all time: 311 calls were "
            'made in vain; a row that failed ended them (mostly ValueError); on_error="null" or "dead_letter" keeps a '
            "task going when a row fails"
        ),
    ),
    "failed attempts, though rows that fail are no reason": (
        figures(
            **BUSY,
            options={"on_error": "null"},
            tasks={"succeeded": 1, "failed": 2},
            failed_attempts={"seconds": 90.0, "calls": 311, "errors": {"ValueError": 2}},
        ),
        "311 calls were made in vain (mostly ValueError); Spark's log tells why",
    ),
    "failed attempts, in which no row has failed": (
        figures(
            **BUSY,
            options={"on_error": "raise"},
            tasks={"succeeded": 1, "failed": 2},
            failed_attempts={"seconds": 90.0, "calls": 311, "errors": {}, "ended_by": {"no coordinator answers": 2}},
        ),
        "311 calls were made in vain; an error ended them: no coordinator answers; Spark's log tells more",
    ),
    "failed attempts, and little else": (
        figures(
            calls_busy=0.5,
            latency=latencies(10, 0.05),
            tasks={"succeeded": 1, "failed": 3},
            failed_attempts={"seconds": 7200.0, "calls": 9000, "errors": {"ValueError": 3}},
        ),
        "3 task attempts failed and took >99.9% of all time: 9,000 calls were made in vain (mostly ValueError); Spark",
    ),
    "a short failed attempt, and little else": (
        figures(
            calls_busy=0.5,
            latency=latencies(1, 0.05),
            tasks={"succeeded": 1, "failed": 1},
            failed_attempts={"seconds": 0.1, "calls": 2, "errors": {"ValueError": 1}},
        ),
        "too short to tell: 1 call in 500 ms",
    ),
    "lost executors": (
        figures(**BUSY, tasks={"succeeded": 1, "lost": 1}, failed_attempts={"seconds": 90.0, "calls": 311}),
        (
            "1 task attempt failed and took 90% of all time: 311 calls were made in vain; their executors were lost: "
            "Spark's log tells why"
        ),
    ),
    "nothing but failures": (
        figures(
            seconds=0,
            latency=latencies(0, 0.0),
            tasks={"failed": 4},
            failed_attempts={"seconds": 3.0, "calls": 12, "errors": {"ValueError": 4}},
        ),
        (
            "nothing was completed: 4 task attempts failed and took 100% of all time: 12 calls were made in vain "
            "(mostly ValueError); Spark's log tells why"
        ),
    ),
}


@pytest.mark.parametrize("case", TEXTS)
def test_the_text_names_what_failed_and_the_change(case: str) -> None:
    """One line, as a person would say it."""
    function, told = TEXTS[case]
    text = verdict(function).text
    assert told in text
    assert len(text) <= 300
