"""The words of the progress are right for one as for many."""

from __future__ import annotations

from typing import Any

import pytest

from asyncudf._observe.function_metrics import SinkRows
from asyncudf._observe.reports.progress import Progress, Snapshot, details, heading, tasks


def one(**others: Any) -> Progress:
    """Progress in which all is 1, but for what is given."""
    ones = dict.fromkeys(("rows", "expected", "rate", "in_flight", "errors", "retries", "failed_tasks"), 1)
    nothing = dict.fromkeys(("share", "p50", "p95", "left", "took"))
    return Progress(**{"label": "weather", "is_estimated": False, **ones, **nothing, **others})


def test_what_went_wrong_is_counted() -> None:
    assert details(one()) == ["1 call in flight", "1 error", "1 retry", "1 failed task"]
    assert details(one(errors=2, retries=2, failed_tasks=2))[1:] == ["2 errors", "2 retries", "2 failed tasks"]


@pytest.mark.parametrize(
    ("rows", "expected", "words"),
    [(1, None, "1 row"), (0, None, "0 rows"), (1, 5, "1 of ~5 rows"), (1, 1, "1 of ~1 row")],
)
def test_rows_and_tasks_are_those_that_were_named_last(rows: int, expected: int | None, words: str) -> None:
    assert heading(one(rows=rows, expected=expected, is_estimated=expected is not None))[0] == words
    assert tasks(Snapshot([], rows, expected, 5.0)) == f"{words.replace('row', 'task').replace('~', '')}, 0:05"


def test_a_sink_has_written_its_rows() -> None:
    """Those that failed, or were acknowledged before, are not among them, and yet the rows add up."""
    sink = one(rows=10, expected=20, is_estimated=True, sink=SinkRows(7, 1, 2, 0))
    assert heading(sink)[0] == "10 of ~20 rows"
    assert details(sink)[0] == "7 written, 1 failed, 2 acknowledged before"
