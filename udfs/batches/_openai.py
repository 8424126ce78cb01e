"""OpenAI's batch interface, by the official client: a file of requests, a job, a file of answers and one of errors."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from .._batches.service import BatchRequest, BatchService, JobState, JobStatus, NotAnsweredError
from .._errors.checks import amount, optional, text
from .._stores.base import need
from ..http import error_for
from ._clients import CachedClient

STATES = {
    "validating": JobState.QUEUED,
    "in_progress": JobState.WORKING,
    "finalizing": JobState.WORKING,
    "cancelling": JobState.WORKING,
    "completed": JobState.ENDED,
    "expired": JobState.EXPIRED,
    "cancelled": JobState.CANCELLED,
    "failed": JobState.FAILED,
}
QUEUE_IS_FULL = "token_limit_exceeded"  # of a job that has failed because others wait
NOT_ANSWERED = ("batch_expired", "batch_cancelled")  # of a line in the file of errors
BYTES_PER_TOKEN = 4  # of a text in English; others have fewer


class OpenAIBatches(CachedClient, BatchService):
    """OpenAI's Batch API, and services with the same interface. Needs the extra `asyncudf[openai]`.

    A request is the body for the endpoint, and an answer the body of its response, both dicts. `find` looks for the
    job's key in the metadata of the account's batches, so no job is sent twice.

    Args:
        endpoint: of all requests.
        client: a function that makes the client, `openai.OpenAI(max_retries=0)` unless given, which reads
            `OPENAI_API_KEY` from the environment of the executors.
        max_queued: how many tokens may be in the queue, in jobs of this submission; an estimate by bytes. Unless given
            jobs are sent until the service refuses one, and then again after each that is over.

    Raises:
        OptionError: a value that cannot work, or openai is not installed.
    """

    max_requests: int = 50_000
    max_bytes: int | None = 190_000_000  # of the 200 MB of a file, the rest is around each body

    def __init__(
        self,
        endpoint: str = "/v1/chat/completions",
        *,
        client: Callable[[], Any] | None = None,
        max_queued: float | None = None,
    ) -> None:
        need("OpenAIBatches", "openai", "openai")
        super().__init__(client, _client)
        self.endpoint: str = text(endpoint, "endpoint")
        self.max_queued: float | None = optional(amount)(max_queued, "max_queued")

    def submit(self, requests: Sequence[BatchRequest], key: str) -> str:
        with tempfile.TemporaryFile() as file:
            for request in requests:
                line = {"custom_id": request.key, "method": "POST", "url": self.endpoint, "body": request.body}
                file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
            file.seek(0)
            uploaded = self.client.files.create(file=(f"{key}.jsonl", file), purpose="batch")
        job = self.client.batches.create(
            input_file_id=uploaded.id,
            endpoint=self.endpoint,
            completion_window="24h",
            metadata={"asyncudf": key},
        )
        return str(job.id)

    def poll(self, job: str) -> JobStatus:
        found = self.client.batches.retrieve(job)
        state, counts = STATES.get(found.status, JobState.WORKING), found.request_counts
        errors = (found.errors.data or []) if found.errors is not None else []
        if state is JobState.FAILED and any(error.code == QUEUE_IS_FULL for error in errors):
            state = JobState.REFUSED
        answers = None if counts is None else counts.completed + (counts.failed if state is JobState.ENDED else 0)
        return JobStatus(state, answers, "; ".join(str(error.message) for error in errors[:3]))

    def fetch(self, job: str) -> Iterator[tuple[str, Any]]:
        found = self.client.batches.retrieve(job)
        for file in filter(None, (found.output_file_id, found.error_file_id)):
            with self.client.files.with_streaming_response.content(file) as response:
                for line in filter(None, response.iter_lines()):
                    row = json.loads(line)
                    yield row["custom_id"], _answer(row)

    def cancel(self, job: str) -> None:
        self.client.batches.cancel(job)

    def find(self, key: str) -> str | None:
        jobs = self.client.batches.list(limit=100)
        return next((str(job.id) for job in jobs if (job.metadata or {}).get("asyncudf") == key), None)

    def weight(self, body: Any) -> float:
        return len(json.dumps(body, ensure_ascii=False).encode()) / BYTES_PER_TOKEN


def _client() -> Any:
    """Reads its key from the environment."""
    from openai import OpenAI

    return OpenAI(max_retries=0)


def _answer(row: dict[str, Any]) -> Any:
    """The body of a response, or the error of a line."""
    response, error = row.get("response") or {}, row.get("error")
    status = response.get("status_code")
    if error and error.get("code") in NOT_ANSWERED:
        return NotAnsweredError(f"the request has no answer: {error.get('message') or error['code']}")
    if status is None or status >= 400 or error:
        return error_for(status if status and status >= 400 else 500, body=json.dumps(response.get("body") or error))
    return response["body"]
