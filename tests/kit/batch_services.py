"""A service that takes jobs and answers later, on a real socket; it bills what it was asked, by itself.

It can be told to be slow, to refuse, to expire, to answer twice, in part or nonsense, and to kill whom it talks to.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from aiohttp import web

from asyncudf import http
from asyncudf.batches import BatchRequest, BatchService, JobStatus, NotAnsweredError
from tests.kit.http_services import serving

__all__ = ("BillingServer", "Findable", "Job", "Jobs", "billing")


@dataclasses.dataclass
class Job:
    """A job as the server has it."""

    id: str
    key: str
    requests: dict[str, Any]
    state: str = "working"
    polls: int = 0
    answers: dict[str, Any] = dataclasses.field(default_factory=dict)


class BillingServer:
    """What the server is told, and what it has seen.

    Attributes:
        polls: after which a job is over.
        answer: what a request is answered with; an exception's text is an error, None no answer.
        ends: how a job ends.
        disturb: called with the name of each step ("submit before", "submit after", "poll", "fetch", ...) and the
            process that asks; what it returns is the response in place of the true one.
        billed: how often each request was charged, by its body; `jobs` has all jobs.
        at_work: the weight that may be in the queue; more is refused.
    """

    def __init__(self) -> None:
        self.polls = 1
        self.answer: Callable[[Any, int], Any] = lambda body, asked: {"value": 2 * body["n"]}
        self.ends: Callable[[Job], str] = lambda job: "ended"
        self.disturb: Callable[[str, int], web.Response | None] = lambda step, pid: None
        self.lines: Callable[[Job, list[str]], list[str]] = lambda job, lines: lines
        self.billed: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self.steps: Counter[str] = Counter()
        self.jobs: dict[str, Job] = {}
        self.most_queued = float("inf")
        self._lock = threading.Lock()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        _, what, *rest = request.path.split("/")
        pid = int(request.headers["X-Pid"])
        body = await request.json() if request.can_read_body else None
        with self._lock:
            self.steps[what] += 1
            if (instead := self.disturb(f"{what} before", pid)) is not None:
                return instead
            response = getattr(self, f"_{what}")(body, *rest)
            if (instead := self.disturb(f"{what} after", pid)) is not None:
                return instead
        return response

    def _submit(self, body: Any) -> web.Response:
        queued = sum(len(job.requests) for job in self.jobs.values() if job.state == "working")
        if queued and queued + len(body["requests"]) > self.most_queued:
            return web.json_response({"error": "the queue is full"}, status=429, headers={"Retry-After": "0.05"})
        job = Job(f"job-{len(self.jobs)}", body["key"], dict(body["requests"]))
        self.jobs[job.id] = job
        return web.json_response({"id": job.id})

    def _find(self, _: Any, key: str) -> web.Response:
        return web.json_response({"id": next((job.id for job in self.jobs.values() if job.key == key), None)})

    def _poll(self, _: Any, id_: str) -> web.Response:
        job = self.jobs[id_]
        job.polls += 1
        if job.state == "working" and job.polls > self.polls and (state := self.ends(job)) != "working":
            self.end(job, state)
        return web.json_response({"state": job.state, "answers": len(job.answers)})

    def end(self, job: Job, state: str) -> None:
        """End a job: answer and bill its requests, unless it has failed."""
        job.state = state
        for key, body in job.requests.items():
            text = json.dumps(body, sort_keys=True)
            self.asked[text] += 1
            answer = None if state in ("failed", "cancelled") else self.answer(body, self.asked[text])
            if state == "expired" and len(job.answers) >= len(job.requests) // 2:
                answer = None
            if answer is not None:
                self.billed[text] += not isinstance(answer, Exception)
                job.answers[key] = {"error": str(answer)} if isinstance(answer, Exception) else {"answer": answer}

    def _fetch(self, _: Any, id_: str) -> web.Response:
        job = self.jobs[id_]
        lines = [json.dumps({"key": key, **answer}) for key, answer in job.answers.items()]
        return web.Response(text="\n".join(self.lines(job, lines)))

    def _cancel(self, _: Any, id_: str) -> web.Response:
        if self.jobs[id_].state == "working":
            self.end(self.jobs[id_], "cancelled")
        return web.json_response({})


@contextlib.contextmanager
def billing() -> Iterator[tuple[str, BillingServer]]:
    """The address of such a server, and what it is told by."""
    server = BillingServer()
    with serving(server.handle) as url:
        yield url, server


class Jobs(BatchService):
    """The client's side; it cannot find a job by its key."""

    poll_every = 0.05

    def __init__(self, url: str, max_requests: int = 10, **bounds: Any) -> None:
        self.url, self.max_requests = url, max_requests
        vars(self).update(bounds)

    def submit(self, requests: Sequence[BatchRequest], key: str) -> str:
        return str(self._ask("submit", {"key": key, "requests": [tuple(request) for request in requests]})["id"])

    def poll(self, job: str) -> JobStatus:
        found = self._ask(f"poll/{job}")
        return JobStatus(found["state"], found["answers"])

    def fetch(self, job: str) -> Iterator[tuple[str, Any]]:
        for line in self._read(f"fetch/{job}").decode().splitlines():
            row = json.loads(line)
            if "error" in row:
                status = int(row["error"]) if row["error"].isdecimal() else 0
                yield row["key"], http.error_for(status) if status else NotAnsweredError(row["error"])
            else:
                yield row["key"], row["answer"]

    def cancel(self, job: str) -> None:
        self._ask(f"cancel/{job}")

    def _ask(self, path: str, body: Any = None) -> Any:
        return json.loads(self._read(path, body))

    def _read(self, path: str, body: Any = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        headers = {"X-Pid": str(os.getpid()), "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/{path}", data, headers)
        with urllib.request.urlopen(request, timeout=30) as response:
            return bytes(response.read())


class Findable(Jobs):
    """The same for a service that can tell whether it has a job."""

    def find(self, key: str) -> str | None:
        found: str | None = self._ask(f"find/{key}")["id"]
        return found


def kill(pid: int) -> None:
    """Kill a worker that waits for an answer."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
