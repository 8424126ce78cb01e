"""A task's line in the log is short, for people, and no terminal obeys what stands in it."""

from __future__ import annotations

import pytest

from asyncudf._observe.export import task_line
from asyncudf._observe.function_metrics import FunctionMetrics
from asyncudf._observe.time_account import State


def totals(*latencies: float, **counts: float) -> FunctionMetrics:
    """Calls that took so long, in a task of 30 s unless something else is given."""
    calls = len(latencies)
    told = FunctionMetrics(**{"seconds": 30.0, "rows": calls, "calls": calls, "attempts": calls, **counts})
    told.latency.add(latencies)
    return told


def test_a_task_in_one_line() -> None:
    """What it did, and where most of the time went."""
    told = totals(*[0.048] * 12_345, attempts=12_375, timeouts=4, failures=3, dead_letters=3, store_hits=1)
    told.errors.update(ConnectionError=31, ValueError=2)
    told.time.update({State.CALLS_BUSY: 27.9, State.INPUT: 1.6, State.START_AND_END: 0.5})
    assert task_line("weather", told) == (
        "weather: 12,345 rows in 30 s (412/s), 12,345 calls (p50 48 ms, p95 48 ms), 19.8 in flight on average, "
        "33 errors, 30 retries, 4 timeouts, 3 failed rows, 3 dead letters, 1 store hit, 93% calls busy, 5% input"
    )


def test_errors_say_which_was_the_last_and_which_the_commonest() -> None:
    told = totals(1.0)
    told.errors.update(ConnectionError=31)
    told.note_error("ThrottledError", str, 429)
    assert "32 errors (mostly ConnectionError, last ThrottledError 429)" in task_line("weather", told)


def test_what_did_nothing_says_so() -> None:
    assert task_line("weather", totals(seconds=0.0)) == "weather: 0 rows in 0 s"


def test_calls_of_which_none_came_back_are_told() -> None:
    assert task_line("weather", totals(calls=20, attempts=20)).startswith("weather: 0 rows in 30 s, 20 calls")


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (totals(1.23), "1 row in 30 s (0.033/s), 1 call (p50 1.2 s, p95 1.2 s)"),
        (totals(65.0, seconds=12_000.0), "1 row in 3 h 20 min (0.000083/s), 1 call (p50 1 min 5 s, p95 1 min 5 s)"),
        (totals(2.0, attempts=2, timeouts=1, failures=1, dead_letters=1), "1 retry, 1 timeout, 1 failed row, 1 dead"),
    ],
)
def test_figures_are_as_people_read_them(told: FunctionMetrics, words: str) -> None:
    """No 1.23e+03 ms, no 12000.00 s, no 1 retries."""
    assert words in task_line("weather", told)


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31mb", "a\u2028b", "a\x00b", "n" * 5000, "half \ud83d"])
def test_a_name_stays_in_the_line(name: str) -> None:
    """A line break in it would begin a line that nobody has logged."""
    line = task_line(name, totals(1.0))
    assert line.isprintable()
    assert len(line) < 250
    line.encode()
