"""The words of the progress are right for one as for many."""

from __future__ import annotations

from typing import Any

import pytest

from asyncudf._observe.function_metrics import SinkRows
from asyncudf._observe.reports.progress import FunctionProgress, Snapshot, line, tasks


def one(**others: Any) -> FunctionProgress:
    """Progress in which all is 1, but for what is given."""
    ones = dict.fromkeys(("rows", "expected", "rate", "in_flight", "errors", "retries", "failed_tasks"), 1)
    nothing = dict.fromkeys(("share", "p50", "p95", "left", "took"))
    return FunctionProgress(**{"label": "weather", "is_estimated": False, **ones, **nothing, **others})


@pytest.mark.parametrize(
    ("number", "words"),
    [(1, "1 error, 1 retry, 1 failed task"), (2, "2 errors, 2 retries, 2 failed tasks")],
)
def test_what_went_wrong_is_counted(number: int, words: str) -> None:
    """1 retry, 2 retries."""
    told = line(one(errors=number, retries=number, failed_tasks=number))
    assert told.endswith(f", 1 call in flight, {words}")


@pytest.mark.parametrize(
    ("rows", "expected", "words"),
    [(1, None, "1 row"), (0, None, "0 rows"), (1, 5, "1 of ~5 rows"), (1, 1, "1 of ~1 row")],
)
def test_rows_are_those_that_were_named_last(rows: int, expected: int | None, words: str) -> None:
    """1 of ~5 rows."""
    told_of = one(rows=rows, expected=expected, is_estimated=expected is not None)
    assert line(told_of).startswith(f"weather: {words}, 1.0 rows/s")


@pytest.mark.parametrize(
    ("done", "total", "words"), [(1, None, "1 task, 0:05"), (1, 1, "1 of 1 task, 0:05"), (1, 8, "1 of 8 tasks, 0:05")]
)
def test_tasks_are_those_that_were_named_last(done: int, total: int | None, words: str) -> None:
    """1 of 8 tasks."""
    assert tasks(Snapshot([], done, total, 5.0)) == words


def test_a_sink_has_written_its_rows() -> None:
    """Those that failed, or were acknowledged before, are not among them, and yet the rows add up."""
    told_of = one(rows=10, expected=20, is_estimated=True, sink=SinkRows(7, 1, 2, 0))
    told = "weather: 10 of ~20 rows, 1.0 rows/s, ? left, 7 written, 1 failed, 2 acknowledged before"
    assert line(told_of).startswith(told)
