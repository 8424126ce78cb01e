"""The bulk helpers of Elasticsearch and OpenSearch raise one exception for all documents of a call."""

from __future__ import annotations

import traceback
from typing import Any

import pandas as pd
import pytest

from asyncudf import AsyncUDFError
from asyncudf._errors.records import error_message
from asyncudf.testing import run_rows
from tests.kit.errors import in_a_worker


class OfElasticsearch(Exception):  # noqa: N818
    def __init__(self, message: str, errors: list[Any]) -> None:
        super().__init__(message)
        self.errors = errors


class OfOpenSearch(Exception):  # noqa: N818
    @property
    def errors(self) -> Any:
        return self.args[1]


OfElasticsearch.__name__ = OfOpenSearch.__name__ = "BulkIndexError"
CLIENTS = pytest.mark.parametrize("client", [OfElasticsearch, OfOpenSearch], ids=["Elasticsearch", "OpenSearch"])
WAY_OUT = "it fails all rows of its call, also those that were written; the client's bulk() has an answer for each"


def refused(name: str, status: int, kind: str, reason: str) -> dict[str, Any]:
    error = {"type": kind, "reason": reason}
    return {"index": {"_id": name, "status": status, "error": error, "data": {"name": name}}}


def bulk_error(client: Any, names: Any) -> Exception:
    busy = [refused(name, 429, "es_rejected_execution_exception", "the queue is full") for name in names]
    bad = refused("SECRET", 400, "document_parsing_exception", "failed to parse: 'SECRET'")
    error: Exception = client(f"{len(busy) + 1} document(s) failed to index.", [bad, *busy])
    return error


@CLIENTS
def test_the_message_says_what_is_wrong_and_has_not_all_documents(client: Any) -> None:
    """Elasticsearch's said only how many; OpenSearch's had them all, and each of 500 dead letters had 500 documents."""
    message = error_message(bulk_error(client, [f"name {number}" for number in range(499)]))
    assert message == (
        "500 failed: 499 x 429 es_rejected_execution_exception (the queue is full), "
        f"1 x 400 document_parsing_exception (failed to parse: 'SECRET'); {WAY_OUT}"
    )


@pytest.mark.parametrize(
    ("errors", "message"),
    [
        ([{"index": {"status": "N/A", "error": "timed out"}}], f"1 failed: 1 x N/A (timed out); {WAY_OUT}"),
        ([{"index": {}}, None], f"2 failed: 2 x no reason; {WAY_OUT}"),
        ([refused("x", 400 + n, "", "") for n in range(4)], f"4 failed: 1 x 400, 1 x 401, 1 x 402, ...; {WAY_OUT}"),
        ([], "some"),
        (None, "some"),
    ],
)
def test_answers_of_any_shape_are_shown_as_far_as_they_can_be_read(errors: Any, message: str) -> None:
    assert error_message(OfElasticsearch("some", errors)) == message


@CLIENTS
def test_redact_shows_no_document(client: Any) -> None:
    async def index(name: pd.Series) -> pd.Series:
        raise bulk_error(client, name)

    (row,) = run_rows(index, ["SECRET"], returnType="int", on_error="capture", redact=True)
    assert row["error"]["message"] == (
        f"2 failed: 1 x 400 document_parsing_exception, 1 x 429 es_rejected_execution_exception; {WAY_OUT}"
    )
    with pytest.raises(AsyncUDFError) as failed, in_a_worker():
        run_rows(index, ["SECRET"], returnType="int", redact=True)
    shown = "".join(traceback.format_exception_only(failed.value))
    assert "SECRET" not in shown
    assert "in index" in shown
