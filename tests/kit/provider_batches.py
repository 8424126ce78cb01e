"""The batch interfaces of OpenAI and Anthropic on real sockets, as far as their documentation tells how they behave.

They keep files, jobs and states, bill by themselves, and have limits on what is sent. A test moves their time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

from aiohttp import web

from tests.kit.http_services import serving

__all__ = ("AnthropicServer", "OpenAIServer", "Provider", "providing")

Answer = Callable[[dict[str, Any]], Any]  # the text for a request; an int is the status of its error, None no answer


class Provider:
    """What both have.

    Attributes:
        answer: see `Answer`.
        ended: what becomes of a job that is asked for its state: None (it is at work), or a state.
        refuses: responses for the next requests, in place of true ones.
        cuts: of how many bytes the next files of answers are, though more were announced.
        lines: what becomes of a file of answers before anybody reads it.
        rejects: why a request makes its whole job fail; None if it does not.
    """

    def __init__(self) -> None:
        self.answer: Answer = lambda body: "yes"
        self.ended: Callable[[dict[str, Any]], str | None] = lambda job: "completed"
        self.refuses: list[web.Response] = []
        self.cuts: list[int] = []
        self.lines: Callable[[bytes], bytes] = lambda content: content
        self.rejects: Callable[[dict[str, Any]], str | None] = lambda body: None
        self.jobs: dict[str, dict[str, Any]] = {}
        self.billed = 0
        self.lock = threading.Lock()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        form = await request.post() if request.content_type.startswith("multipart") else {}
        body = await request.json() if request.can_read_body and not form else {}
        with self.lock:
            if self.refuses:
                return self.refuses.pop(0)
            found = self.respond(request.method, request.path.rstrip("/").split("/")[1:], body, form, request)
        if isinstance(found, bytes):
            return await self._file(request, found)
        if isinstance(found, web.Response):
            return found
        return web.json_response(found, status=404 if found is None else 200)

    async def _file(self, request: web.Request, content: bytes) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/jsonl"})
        response.content_length = len(content)
        await response.prepare(request)
        cut = self.cuts.pop(0) if self.cuts else len(content)
        await response.write(content[:cut])
        if cut < len(content):
            assert request.transport is not None
            request.transport.close()
        return response

    def respond(self, method: str, path: list[str], body: Any, form: Any, request: web.Request) -> Any:
        raise NotImplementedError


def json_error(status: int, kind: str, message: str, **headers: str) -> web.Response:
    """An error as both providers write it."""
    error = {"type": "error", "error": {"type": kind, "code": kind, "message": message}}
    return web.json_response(error, status=status, headers=headers)


class OpenAIServer(Provider):
    """Files, batches with states, an output and an error file, expiry, and the limit of enqueued tokens.

    Attributes:
        most_enqueued: characters of all requests in progress; a job beyond it fails after it was validated.
        names_lines: whether a job that fails has the numbers of the lines with a request that was rejected.
        gone: files that cannot be read, and the status that says so.
    """

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, bytes] = {}
        self.most_enqueued = float("inf")
        self.names_lines = True
        self.gone: dict[str, int] = {}

    def respond(self, method: str, path: list[str], body: Any, form: Any, request: web.Request) -> Any:
        match method, path[1:]:
            case "POST", ["files"]:
                assert form["purpose"] == "batch"
                return {"id": self._keep(form["file"].file.read()), "object": "file", "purpose": "batch"}
            case "GET", ["files", file, "content"] if file in self.gone:
                return json_error(self.gone[file], "no_file", "it cannot be read")
            case "GET", ["files", file, "content"]:
                return self.files[file]
            case "POST", ["batches"]:
                return self._create(body)
            case "GET", ["batches"]:
                return self._page(request.query.get("after"))
            case "POST", ["batches", job, "cancel"]:
                if self.jobs[job]["status"] in ("validating", "in_progress"):
                    self._end(self.jobs[job], "cancelled")
                return self._shown(self.jobs[job])
            case "GET", ["batches", job] if job in self.jobs:
                self._go_on(self.jobs[job])
                return self._shown(self.jobs[job])
        return None

    def _keep(self, content: bytes) -> str:
        name = f"file-{len(self.files)}"
        self.files[name] = content
        return name

    def _create(self, body: dict[str, Any]) -> Any:
        assert body["completion_window"] == "24h"
        job = {
            "id": f"batch_{len(self.jobs)}", "object": "batch", "status": "validating", "created_at": 0, "errors": None,
            "output_file_id": None, "error_file_id": None, **body,
            "request_counts": {"total": 0, "completed": 0, "failed": 0},
        }  # fmt: skip
        self.jobs[job["id"]] = job
        return self._shown(job)

    def _page(self, after: str | None) -> Any:
        newest = list(reversed(self.jobs))
        start = newest.index(after) + 1 if after else 0
        page = newest[start : start + 2]  # two in a page, so that a client has to turn it
        data = [self._shown(self.jobs[name]) for name in page]
        last = page[-1] if page else None
        return {"object": "list", "data": data, "has_more": start + 2 < len(newest), "last_id": last}

    def _go_on(self, job: dict[str, Any]) -> None:
        if job["status"] == "validating":
            enqueued = sum(
                len(self.files[one["input_file_id"]]) for one in self.jobs.values() if one["status"] == "in_progress"
            )
            if enqueued and enqueued + len(self.files[job["input_file_id"]]) > self.most_enqueued:
                text = "Enqueued token limit reached for a-model. Please try again once some batches have ended"
                job["status"], job["errors"] = "failed", {"data": [{"code": "token_limit_exceeded", "message": text}]}
            elif errors := self._errors(job):
                job["status"], job["errors"] = "failed", {"object": "list", "data": errors}
            else:
                job["status"] = "in_progress"
        elif job["status"] == "in_progress" and (state := self.ended(job)) is not None:
            self._end(job, state)

    def _errors(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        """Of the validation: of each line, or one of the whole file."""
        lines = self.files[job["input_file_id"]].split(b"\n")[:-1]
        whys = [(number, self.rejects(json.loads(line)["body"])) for number, line in enumerate(lines, start=1)]
        errors = [
            {"code": "invalid_request", "message": why, "param": None, "line": number if self.names_lines else None}
            for number, why in whys
            if why is not None
        ]
        return errors if self.names_lines else errors[:1]

    def _end(self, job: dict[str, Any], state: str) -> None:
        lines = [json.loads(line) for line in self.files[job["input_file_id"]].split(b"\n")[:-1]]
        good, bad = [], []
        for number, line in enumerate(lines):
            assert (line["method"], line["url"]) == ("POST", job["endpoint"])
            answer = None if state == "cancelled" or (state == "expired" and number % 2) else self.answer(line["body"])
            row = {"id": f"r{number}", "custom_id": line["custom_id"], "response": None, "error": None}
            if isinstance(answer, str):
                self.billed += 1
                message = {"role": "assistant", "content": answer}
                body = {"choices": [{"message": message}], "usage": {"total_tokens": 10}}
                good.append({**row, "response": {"status_code": 200, "request_id": "q", "body": body}})
            elif isinstance(answer, int):
                body = {"error": {"code": "bad", "message": "no"}}
                bad.append({**row, "response": {"status_code": answer, "request_id": "q", "body": body}})
            elif state in ("expired", "cancelled"):
                bad.append({**row, "error": {"code": f"batch_{state}", "message": f"This request was {state}"}})
        job["status"] = state
        if state == "failed":
            job["errors"] = {"data": [{"code": "invalid_json_line", "message": "line 1 is no JSON", "line": 1}]}
            return
        job["request_counts"] = {"total": len(lines), "completed": len(good), "failed": len(bad)}
        for name, rows in (("output_file_id", good), ("error_file_id", bad)):
            if rows:
                content = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in reversed(rows)).encode()
                job[name] = self._keep(self.lines(content))

    @staticmethod
    def _shown(job: dict[str, Any]) -> dict[str, Any]:
        return job


@dataclasses.dataclass
class _Message:
    text: str

    def shown(self) -> dict[str, Any]:
        usage = {"input_tokens": 5, "output_tokens": 5}
        return {
            "id": "msg", "type": "message", "role": "assistant", "model": "a-model", "stop_reason": "end_turn",
            "stop_sequence": None, "content": [{"type": "text", "text": self.text}], "usage": usage,
        }  # fmt: skip


class AnthropicServer(Provider):
    """Batches of requests in the body, results as lines of JSON, for 29 days."""

    def respond(self, method: str, path: list[str], body: Any, form: Any, request: web.Request) -> Any:
        assert path[:3] == ["v1", "messages", "batches"]
        match method, path[3:]:
            case "POST", []:
                assert all(len(one["custom_id"]) <= 64 for one in body["requests"])
                job = {
                    "id": f"msgbatch_{len(self.jobs)}",
                    "requests": body["requests"],
                    "state": None,
                    "archived": False,
                }
                self.jobs[job["id"]] = job
                return self._shown(job, request)
            case "GET", [name]:
                job = self.jobs[name]
                if job["state"] is None and (state := self.ended(job)) is not None:
                    self._end(job, state)
                return self._shown(job, request)
            case "GET", [name, "results"]:
                rows = reversed(self.jobs[name]["rows"])
                return self.lines("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows).encode())
            case "POST", [name, "cancel"]:
                self._end(self.jobs[name], "canceled")
                return self._shown(self.jobs[name], request)
        return None

    def _end(self, job: dict[str, Any], state: str) -> None:
        job["state"], job["rows"] = state, []
        for number, one in enumerate(job["requests"]):
            late = state == "canceled" or (state == "expired" and number % 2)
            answer = None if late else self.answer(one["params"])
            if isinstance(answer, str):
                self.billed += 1
                result: dict[str, Any] = {"type": "succeeded", "message": _Message(answer).shown()}
            elif isinstance(answer, int):
                kind = {400: "invalid_request_error", 529: "overloaded_error"}.get(answer, "api_error")
                result = {"type": "errored", "error": {"type": "error", "error": {"type": kind, "message": "no"}}}
            else:
                result = {"type": state if late else "expired"}
            job["rows"].append({"custom_id": one["custom_id"], "result": result})

    @staticmethod
    def _shown(job: dict[str, Any], request: web.Request) -> dict[str, Any]:
        kinds = [row["result"]["type"] for row in job.get("rows", ())]
        counts = {kind: kinds.count(kind) for kind in ("succeeded", "errored", "canceled", "expired")}
        has_ended, day = job["state"] is not None, "2026-01-01T00:00:00Z"
        url = str(request.url.origin().joinpath("v1", "messages", "batches", job["id"], "results"))
        return {
            "id": job["id"], "type": "message_batch", "processing_status": "ended" if has_ended else "in_progress",
            "request_counts": {"processing": 0 if has_ended else len(job["requests"]), **counts},
            "archived_at": day if job["archived"] else None, "created_at": day, "expires_at": day,
            "ended_at": day if has_ended else None, "cancel_initiated_at": None,
            "results_url": url if has_ended and not job["archived"] else None,
        }  # fmt: skip


@contextlib.contextmanager
def providing(server: Provider) -> Iterator[str]:
    """The address of a provider."""
    with serving(server.handle) as url:
        yield url
