"""OpenAI's batch interface, by the official client: a file of requests, a job, a file of answers and one of errors."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

from .._batches.service import BatchRequest, BatchService, JobState, JobStatus, NotAnsweredError
from .._errors.answers import answer_of
from .._errors.bodies import status_in
from .._errors.checks import amount, optional, text
from .._errors.safe import safe_repr
from .._errors.waits import number_in
from .._stores.base import need
from ..http import error_for
from ._clients import CachedClient, answers_of, lines_of, not_answered

logger = logging.getLogger("asyncudf")

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
ENDS = ("completed", "expired", "cancelled", "failed")
QUEUE_IS_FULL = "token_limit_exceeded"  # of a job that has failed because others wait
NOT_ANSWERED = ("batch_expired", "batch_cancelled")  # of a line in the file of errors
GONE = (404, 410)  # status of a file that nobody will read any more
NOT_GIVEN = (*GONE, 400, 403)  # of a file of requests; then its job is divided in halves
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
        state, counts, errors = _state(found), found.request_counts, _errors(found)
        if state is JobState.FAILED and any(error.code == QUEUE_IS_FULL for error in errors):
            state = JobState.REFUSED
        answers = None
        if counts is not None:
            answers = (counts.completed or 0) + ((counts.failed or 0) if state is JobState.ENDED else 0)
        if state is None:
            return JobStatus(JobState.WORKING, answers, f"its status {safe_repr(found.status)} is not known")
        other = getattr(found, "errors", None)  # in a form of its own
        why = "; ".join(f"{error.code}: {error.message}" for error in errors[:3])
        return JobStatus(state, answers, why or ("" if hasattr(other, "data") else str(other or "")))

    def fetch(self, job: str) -> Iterator[tuple[str, Any]]:
        found = self.client.batches.retrieve(job)
        yield from self._rejected(found)
        for file in filter(None, (found.output_file_id, found.error_file_id)):
            yield from answers_of(self._lines(file), _answer)

    def _rejected(self, job: Any) -> Iterator[tuple[str, Any]]:
        """The requests that made the job fail, by their lines in the file of requests."""
        wrong = {error.line: error for error in _errors(job) if error.line is not None}
        if not wrong:
            return
        for number, line in enumerate(self._lines(job.input_file_id, NOT_GIVEN), start=1):
            if (error := wrong.get(number)) is not None:
                said = {"error": {"code": error.code, "message": error.message, "param": error.param}}
                yield json.loads(line)["custom_id"], error_for(400, body=json.dumps(said))

    def _lines(self, file: str, gone: Container[int | None] = GONE) -> Iterator[bytes]:
        """The lines of a file; none if the service answers with a status of those that are `gone`."""
        try:
            with self.client.files.with_streaming_response.content(file) as response:
                yield from lines_of(response)
        except Exception as error:
            if answer_of(error).status not in gone:
                raise
            logger.warning("the file %s of OpenAI cannot be read any more: %s", file, error)

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


def _state(job: Any) -> JobState | None:
    """The state of a job. If its status is not known, the time of its end tells the state; None without one."""
    if (state := STATES.get(str(job.status).lower())) is not None:
        return state
    return next((STATES[name] for name in ENDS if getattr(job, f"{name}_at", None) is not None), None)


def _errors(job: Any) -> Sequence[Any]:
    """Why a job has failed; services with the same interface may leave the field out."""
    found = getattr(getattr(job, "errors", None), "data", None)
    return found if isinstance(found, list) else []


def _answer(row: dict[str, Any]) -> Any:
    """The body of a response, or the error of a line."""
    response, error = row.get("response"), row.get("error")
    status, body = (response.get("status_code"), response.get("body")) if isinstance(response, dict) else (None, None)
    if isinstance(error, dict) and error.get("code") in NOT_ANSWERED:
        return NotAnsweredError(f"the request has no answer: {error.get('message') or error['code']}")
    number = number_in(status) or 0
    if error or 400 <= number <= 599:
        number = number if 400 <= number <= 599 else status_in({"error": error}) or 500
        return error_for(int(number), body=json.dumps(body or error))
    if not 200 <= number <= 299 or not isinstance(body, dict) or not body:
        why = f"the line for it has the status {safe_repr(status)}"
        return not_answered(f"{why} and the body {safe_repr(body)}", why)
    return body
