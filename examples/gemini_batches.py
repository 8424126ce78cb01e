"""Gemini's batch interface for `submit`: half the price, if the answers may come in some hours.

    submission = submit(texts, ask, "text", service=GeminiBatches(), state="s3a://bucket/texts")

It needs `pip install google-genai`, and `GEMINI_API_KEY` in the environment of the executors. A request is what
`generateContent` takes, and an answer is its response: `answer["candidates"][0]["content"]["parts"][0]["text"]`.
"""

from __future__ import annotations

import contextlib
import json
import tempfile

from google import genai

from asyncudf.batches import BatchService, JobState, JobStatus, NotAnsweredError

STATES = {
    "JOB_STATE_PENDING": JobState.QUEUED,
    "JOB_STATE_RUNNING": JobState.WORKING,
    "JOB_STATE_SUCCEEDED": JobState.ENDED,
    "JOB_STATE_PARTIALLY_SUCCEEDED": JobState.ENDED,
    "JOB_STATE_FAILED": JobState.FAILED,
    "JOB_STATE_CANCELLED": JobState.CANCELLED,
    "JOB_STATE_EXPIRED": JobState.EXPIRED,
}


class GeminiBatches(BatchService):
    max_requests = 10_000
    max_bytes = 1_900_000_000

    def submit(self, requests, key):
        client = genai.Client()
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            for request in requests:
                file.write(json.dumps({"key": request.key, "request": request.body}) + "\n")
            file.flush()
            uploaded = client.files.upload(
                file=file.name, config={"display_name": key, "mime_type": "application/jsonl"}
            )
        return client.batches.create(model="gemini-2.5-flash", src=uploaded.name, config={"display_name": key}).name

    def poll(self, job):
        client = genai.Client()  # as a variable: a client that nobody holds closes itself during the call
        return JobStatus(STATES.get(client.batches.get(name=job).state.name, JobState.WORKING))

    def fetch(self, job):
        client = genai.Client()
        dest = client.batches.get(name=job).dest
        if dest is None or dest.file_name is None:  # nothing was answered
            return
        for line in client.files.download(file=dest.file_name).split(b"\n"):
            with contextlib.suppress(ValueError, LookupError, TypeError):  # a damaged line: its request is sent again
                row = json.loads(line)
                key, error = row["key"], NotAnsweredError(json.dumps(row.get("error")))
                yield key, row.get("response") or error

    def cancel(self, job):
        client = genai.Client()
        client.batches.cancel(name=job)

    def find(self, key):
        client = genai.Client()
        return next((job.name for job in client.batches.list() if job.display_name == key), None)
