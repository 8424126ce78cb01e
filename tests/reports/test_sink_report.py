"""What a sink's report says, and how its figures add up."""

from __future__ import annotations

import pickle

import pytest

from asyncudf import SinkError, SinkReport
from asyncudf._spark.sinks import SinkFigures


def report(**changed: object) -> SinkReport:
    known: dict[str, object] = {
        "function": "post",
        "written": 980,
        "failed": 12,
        "reused": 5,
        "skipped": 3,
        "calls": 1001,
        "retried": 9,
        "reasons": {"HTTPStatusError 400": 11, "AsyncTimeoutError": 1},
        "examples": {
            "HTTPStatusError 400": "400 Bad Request\nfor <b>5</b>",
            "AsyncTimeoutError": "no result within 5 s",
        },
        "seconds": 61.0,
        "dead_letters": None,
    }
    return SinkReport(**{**known, **changed})  # type: ignore[arg-type]


CLEAN = {"failed": 0, "reused": 0, "skipped": 0, "reasons": {}, "examples": {}}


def test_the_counts_stand_in_its_repr() -> None:
    assert repr(report()) == (
        "<SinkReport of post: written=980, failed=12, reused=5, skipped=3, calls=1001, retried=9, "
        "reasons={'HTTPStatusError 400': 11, 'AsyncTimeoutError': 1}>"
    )


def test_its_text_says_what_there_is() -> None:
    assert str(report()).splitlines() == [
        "sink post",
        "  written  980 rows",
        "  failed   12 rows",
        "           11 x HTTPStatusError 400, for example 400 Bad Request for <b>5</b>",
        "           1 x AsyncTimeoutError, for example no result within 5 s",
        "  reused   5 rows, acknowledged before or equal to another one",
        "  skipped  3 rows with a NULL argument",
        "  calls    1,001, and 9 retries",
        "  took     1 min 1 s",
    ]
    assert str(report(**CLEAN)).splitlines()[1:3] == ["  written  980 rows", "  calls    1,001, and 9 retries"]


def test_a_notebook_shows_no_markup_of_a_service() -> None:
    html = report(function="<f>")._repr_html_()
    assert "980 rows" in html
    assert "<b>" not in html
    assert "<f>" not in html


def test_failures_are_raised_with_the_commonest_reasons() -> None:
    clean, failed = report(**CLEAN), report()
    assert clean.raise_for_failures() is clean
    with pytest.raises(SinkError) as raised:
        failed.raise_for_failures()
    assert str(raised.value).splitlines() == [
        "12 of 1,000 rows of post failed: HTTPStatusError 400 (11), AsyncTimeoutError (1)",
        "  for example 400 Bad Request for <b>5</b>",
        "  for example no result within 5 s",
    ]
    assert raised.value.report is failed
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_many_reasons_are_shortened() -> None:
    reasons = {f"Error{n}": 10 - n for n in range(8)}
    with pytest.raises(SinkError, match=r"Error4 \(6\), others \(12\)"):
        report(reasons=reasons, examples={}).raise_for_failures()


def figures(rows: int, **counts: int) -> SinkFigures:
    made = SinkFigures()
    made.metrics.rows = rows
    for name, count in counts.items():
        setattr(made.metrics, name, count)
    return made


def test_figures_of_tasks_add_up() -> None:
    one, other = figures(10, store_hits=3, calls=7), figures(5, shared_flights=1, null_rows=2)
    one.note_failures([("ValueError", "first", False), ("ValueError", "second", False), ("OSError", "stored", True)])
    other.note_failures([("ValueError", "third", False)])
    total = SinkFigures.of_tasks([one.to_json(), other.to_json()])
    assert (total.failed, total.reused, total.metrics.null_rows, total.written) == (4, 3, 2, 6)
    assert total.reasons == {"ValueError": 3, "OSError": 1}
    assert total.examples == {"ValueError": "first", "OSError": "stored"}
    assert total.metrics.calls == 7


def test_no_tasks_are_figures_of_nothing() -> None:
    nothing = SinkFigures.of_tasks([])
    assert (nothing.written, nothing.failed, nothing.reused, nothing.metrics.calls) == (0, 0, 0, 0)
