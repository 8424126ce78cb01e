"""Anthropic's Message Batches, by the official client: requests in the body of one call, results as lines of JSON."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .._batches.service import BatchRequest, BatchService, JobState, JobStatus, NotAnsweredError
from .._errors.safe import safe_repr
from .._stores.base import need
from ..http import error_for
from ._clients import CachedClient, answers_of, lines_of, not_answered

# The status of a request that is answered with an error of this type; others are the service's fault.
STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "overloaded_error": 529,
}


class AnthropicBatches(CachedClient, BatchService):
    """Anthropic's Message Batches API. Needs the extra `asyncudf[anthropic]`.

    A request is what `messages.create` takes, and an answer the message, both dicts. The service cannot tell which job
    was sent with a key (it has no `find`). Results are there for 29 days.

    Args:
        client: a function that makes the client, `anthropic.Anthropic(max_retries=0)` unless given, which reads
            `ANTHROPIC_API_KEY` from the environment of the executors.

    Raises:
        OptionError: anthropic is not installed.
    """

    max_requests: int = 100_000
    max_bytes: int | None = 240_000_000  # of the 256 MB of a call, the rest is around each body

    def __init__(self, *, client: Callable[[], Any] | None = None) -> None:
        need("AnthropicBatches", "anthropic", "anthropic")
        super().__init__(client, _client)

    def submit(self, requests: Sequence[BatchRequest], key: str) -> str:
        made = [{"custom_id": request.key, "params": request.body} for request in requests]
        return str(self.client.messages.batches.create(requests=made).id)

    def poll(self, job: str) -> JobStatus:
        found = self.client.messages.batches.retrieve(job)
        if found.processing_status != "ended":
            return JobStatus(JobState.WORKING)
        if found.archived_at is not None:
            return JobStatus(JobState.EXPIRED, 0)
        counts = found.request_counts
        return JobStatus(JobState.ENDED, counts.succeeded + counts.errored + counts.canceled + counts.expired)

    def fetch(self, job: str) -> Iterator[tuple[str, Any]]:
        if self.client.messages.batches.retrieve(job).archived_at is not None:
            return
        # The lines as they were sent: the client takes a result of a type that it does not know for one that succeeded.
        # (Some of its versions have no `with_streaming_response.results`.)
        with contextlib.closing(self.client.messages.batches.results(job).http_response) as response:
            yield from answers_of(lines_of(response), _answer)

    def cancel(self, job: str) -> None:
        self.client.messages.batches.cancel(job)


def _client() -> Any:
    """Reads its key from the environment."""
    from anthropic import Anthropic

    return Anthropic(max_retries=0)


def _answer(row: dict[str, Any]) -> Any:
    """The message, or the error of a request."""
    found = row.get("result")
    result: dict[str, Any] = found if isinstance(found, dict) else {}
    kind, message, error = result.get("type"), result.get("message"), result.get("error")
    if kind == "succeeded" and isinstance(message, dict) and message:
        return message
    if kind == "errored" and isinstance(error, dict) and error:
        inner = error.get("error")
        status = STATUSES.get(str(inner.get("type")) if isinstance(inner, dict) else "", 500)
        return error_for(status, body=json.dumps(error))
    if kind in ("canceled", "expired"):
        return NotAnsweredError(f"the request has no answer: it was {kind}")
    why = f"its result is of the type {safe_repr(kind)}"
    return not_answered(f"{why}: {safe_repr(found)}", why)
