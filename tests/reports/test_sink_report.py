"""What a sink's report says, and how its figures add up."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from asyncudf import RateLimit, ResultStore, SinkError, SinkReport
from asyncudf._observe.function_metrics import SinkRows
from asyncudf._observe.reports.progress import ProgressTracker, Snapshot
from asyncudf._observe.reports.summary import summary
from asyncudf._spark.sinks import SinkFigures
from asyncudf.testing import MemoryStore
from tests.kit.engines import Engine
from tests.kit.figures import figures_so_far
from tests.kit.runs import run_of_a_function


def report(**changed: object) -> SinkReport:
    known: dict[str, object] = {
        "function": "post",
        "written": 980,
        "failed": 12,
        "reused": 5,
        "skipped": 3,
        "calls": 1001,
        "attempts": 1010,
        "retried": 7,
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
        "<SinkReport of post: rows=1000, written=980, failed=12, reused=5, skipped=3, calls=1001, attempts=1010, "
        "retried=7, "
        "reasons={'HTTPStatusError 400': 11, 'AsyncTimeoutError': 1}>"
    )


def test_its_text_says_what_there_is() -> None:
    assert str(report()).splitlines() == [
        "sink post, 1,000 rows: 980 written, 12 failed, 5 acknowledged before, 3 with a NULL argument",
        "  failed   11 rows: HTTPStatusError 400, for example 400 Bad Request for <b>5</b>",
        "           1 row: AsyncTimeoutError, for example no result within 5 s",
        "  retried  7 rows",
        "  sent     1,001 calls in 1,010 attempts",
        "  took     1 min 1 s",
    ]
    assert str(report(**CLEAN, retried=0, attempts=1001)).splitlines()[:2] == [
        "sink post, 980 rows: 980 written",
        "  sent     1,001 calls",
    ]


def test_a_notebook_shows_no_markup_of_a_service() -> None:
    html = report(function="<f>")._repr_html_()
    assert "1,000 rows: 980 written" in html
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
    one.note_failures([("ValueError", "first"), ("ValueError", "second"), ("OSError", "stored")])
    one.metrics.failures, one.metrics.stored_failures = 3, 1
    other.note_failures([("ValueError", "third")])
    other.metrics.failures = 1
    total = SinkFigures.of_tasks([one.to_json(), other.to_json()])
    assert total.rows == SinkRows(written=6, failed=4, reused=3, skipped=2)
    assert total.reasons == {"ValueError": 3, "OSError": 1}
    assert total.examples == {"ValueError": "first", "OSError": "stored"}
    assert total.metrics.calls == 7


def test_no_tasks_are_figures_of_nothing() -> None:
    nothing = SinkFigures.of_tasks([])
    assert (*nothing.rows, nothing.metrics.calls) == (0, 0, 0, 0, 0)


# Which rows were written


async def post(n: int) -> None:
    await asyncio.sleep(1)
    if n < 4:
        raise ValueError


def posted(rows: range | list[int], **options: Any) -> tuple[int, int, int]:
    """How many rows of a sink have failed, were reused, and were written, as all that reads its figures says."""
    sink = {**run_of_a_function(post, rows, on_error="dead_letter", **options), "entry_point": "sink"}
    (progress,) = ProgressTracker().track(Snapshot([sink], 1, 1, 10.0), is_over=True)
    counts = SinkRows.of(sink)
    assert progress.sink == counts
    assert f" {counts.words}" in summary({"functions": [sink], "is_over": True})
    return counts.failed, counts.reused, counts.written


def test_the_stored_error_of_an_equal_row_is_a_failed_row_and_none_that_was_reused() -> None:
    store = MemoryStore(error_ttl=60)
    assert posted(range(10), store=store) == (4, 0, 6)
    assert posted(range(20), store=store) == (4, 6, 10)
    assert posted([1, 1, 19, 19], store=MemoryStore(error_ttl=60)) == (2, 1, 1)


@pytest.mark.parametrize(
    "options", [{"timeout": 0.5}, {"rate_limit": RateLimit(10, 1, cost=lambda n: n // 0 if n == 99 else 1)}]
)
def test_rows_that_failed_before_their_call_are_no_stored_errors(options: dict[str, Any]) -> None:
    """They have no attempt, as rows with a stored error have none: so they were taken for reused ones."""
    store: ResultStore = MemoryStore()
    posted(range(4, 9), store=store)
    assert posted([4, 5, 6, 7, 8, 99, 99, 99], store=store, **options) == (3, 5, 0)


def test_rows_of_the_store_are_counted_when_they_are_done() -> None:
    """They are looked up ahead: counted then, a sink that runs would seem to have written nothing."""
    store, seen = MemoryStore(), []
    rows = range(100, 120)
    posted(rows[1::2], store=store)
    engine = Engine(post, on_error="dead_letter", store=store, capacity=1, queue_size=1, on_null_input="null")
    engine.feed([*rows, *[None] * 100])
    engine.end()

    def look() -> None:
        engine.look()
        counts = SinkRows.of(vars(figures_so_far(engine)))
        seen.append((counts.written, counts.reused, counts.skipped))

    for second in range(1, 9):
        engine.loop.call_at(second + 0.5, look)
    engine.run()
    look()
    assert seen == [*((n, n, 0) for n in range(1, 9)), (10, 10, 100)]
