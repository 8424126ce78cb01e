"""A service with OpenAI's batch interface, for examples: it takes a file of requests, and answers some looks later."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import web

from ._serving import served


class BatchModelService:
    """Says of each text how long it is; one in a hundred answers is no JSON at first.

    Attributes:
        url: of its API.
        billed: the requests that it has billed.
    """

    def __init__(self) -> None:
        self.url = ""
        self.billed = 0
        self._files: list[bytes] = []
        self._jobs: dict[str, dict[str, Any]] = {}

    def _keep(self, content: bytes) -> str:
        self._files.append(content)
        return f"file-{len(self._files) - 1}"

    async def upload(self, request: web.Request) -> web.Response:
        form = await request.post()
        return web.json_response({"id": self._keep(form["file"].file.read())})  # type: ignore[union-attr]

    async def download(self, request: web.Request) -> web.Response:
        return web.Response(body=self._files[int(request.match_info["file"].removeprefix("file-"))])

    async def create(self, request: web.Request) -> web.Response:
        job = {"id": f"batch_{len(self._jobs)}", "status": "validating", **(await request.json())}
        self._jobs[job["id"]] = job
        return web.json_response(job)

    async def jobs(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [*self._jobs.values()], "has_more": False})

    async def look(self, request: web.Request) -> web.Response:
        job = self._jobs[request.match_info["job"]]
        if job["status"] == "finalizing":
            content = self._files[int(job["input_file_id"].removeprefix("file-"))]
            answers = [self._answer(json.loads(line)) for line in content.split(b"\n") if line]
            job["output_file_id"] = self._keep("\n".join(map(json.dumps, answers)).encode())
            job["request_counts"] = {"total": len(answers), "completed": len(answers), "failed": 0}
            job["status"] = "completed"
        elif job["status"] != "completed":
            job["status"] = {"validating": "in_progress", "in_progress": "finalizing"}[job["status"]]
        return web.json_response(job)

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        self.billed += 1
        messages = request["body"]["messages"]
        text = messages[0]["content"]
        content = json.dumps({"length": len(text), "long": len(text) > 10})
        if text.endswith("7 7") and len(messages) == 1:
            content = f"Sure! {content}"  # until it is told what was wrong
        body = {"choices": [{"message": {"content": content}}], "usage": {"total_tokens": len(text) // 4 + 20}}
        return {"custom_id": request["custom_id"], "response": {"status_code": 200, "body": body}, "error": None}

    def app(self) -> web.Application:
        """Its interface."""
        app = web.Application(client_max_size=2**28)
        app.router.add_post("/v1/files", self.upload)
        app.router.add_get("/v1/files/{file}/content", self.download)
        app.router.add_post("/v1/batches", self.create)
        app.router.add_get("/v1/batches", self.jobs)
        app.router.add_get("/v1/batches/{job}", self.look)
        return app


@contextmanager
def serving() -> Iterator[BatchModelService]:
    """The service, while the block runs."""
    service = BatchModelService()
    with served(service.app()) as address:
        service.url = f"{address}/v1"
        yield service
