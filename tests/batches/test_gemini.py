"""The class for Gemini in the examples works with Google's client and a fake of its service."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from aiohttp import web

from asyncudf.batches import BatchRequest, BatchService, JobState, NotAnsweredError
from examples.gemini_batches import GeminiBatches
from tests.kit.http_services import serving

pytestmark = pytest.mark.services


class GeminiServer:
    """Files, jobs by file, states, and a file of responses."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.jobs: dict[str, dict[str, Any]] = {}
        self.state = "BATCH_STATE_PENDING"

    async def handle(self, request: web.Request) -> web.Response:
        path, query = re.sub(r"/v1(beta)?/", "/v/", request.path), request.query  # as the client has it
        if path == "/upload/v/files":
            url = str(request.url.origin() / "put" / f"{len(self.files)}")
            return web.json_response({}, headers={"X-Goog-Upload-URL": url, "X-Goog-Upload-Status": "active"})
        if path.startswith("/put/"):
            name = f"files/{path.removeprefix('/put/')}"
            self.files[name] = await request.read()
            return web.json_response({"file": {"name": name}}, headers={"X-Goog-Upload-Status": "final"})
        if path.endswith(":batchGenerateContent"):
            batch = (await request.json())["batch"]
            name = f"batches/{len(self.jobs)}"
            self.jobs[name] = {"displayName": batch["displayName"], "input": batch["inputConfig"]["fileName"]}
            return self.shown(name)
        if path.endswith(":cancel"):
            self.state = "BATCH_STATE_CANCELLED"
            return web.json_response({})
        if path.startswith("/v/batches/"):
            return self.shown(path.removeprefix("/v/"))
        if path == "/v/batches":
            return web.json_response({"operations": [json.loads(str(self.shown(name).text)) for name in self.jobs]})
        if path.startswith("/v/files/") and query.get("alt") == "media":
            return web.Response(body=self.files[path.removeprefix("/v/").removesuffix(":download")])
        raise AssertionError(request.path_qs)

    def shown(self, name: str) -> web.Response:
        about: dict[str, Any] = {"state": self.state, "displayName": self.jobs[name]["displayName"], "name": name}
        if self.state == "BATCH_STATE_SUCCEEDED":
            rows = []
            for line in self.files[self.jobs[name]["input"]].split(b"\n")[:-1]:
                one = json.loads(line)
                text = one["request"]["contents"][0]["parts"][0]["text"]
                content = {"parts": [{"text": text.upper()}], "role": "model"}
                good = {"response": {"candidates": [{"content": content}]}}
                rows.append({"key": one["key"], **({"error": {"code": 8}} if text == "bad" else good)})
            damaged = [{"response": {}}, ["key"], {"key": rows[1]["key"], "response": {}}]
            lines = [json.dumps(row, ensure_ascii=False) for row in [*damaged, *rows]]
            self.files["files/out"] = "\n".join(["", '{"key": ', *lines, ""]).encode()
            about["output"] = {"responsesFile": "files/out"}
        return web.json_response({"name": name, "metadata": about})


def test_the_class_of_the_example(monkeypatch: pytest.MonkeyPatch) -> None:
    server = GeminiServer()
    with serving(server.handle) as url:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", url)
        monkeypatch.setenv("GEMINI_API_KEY", "k")
        service: BatchService = GeminiBatches()
        requests = [
            BatchRequest(f"{n:032x}", {"contents": [{"role": "user", "parts": [{"text": text}]}]})
            for n, text in enumerate(["oslo\u2028\x85", "bad"])
        ]
        job = service.submit(requests, "a key")
        assert service.poll(job).state is JobState.QUEUED
        assert (service.find("a key"), service.find("another")) == (job, None)
        server.state = "BATCH_STATE_SUCCEEDED"
        assert service.poll(job).state is JobState.ENDED
        found = dict(service.fetch(job))
        assert found[requests[0].key]["candidates"][0]["content"]["parts"][0]["text"] == "OSLO\u2028\x85"
        assert isinstance(found[requests[1].key], NotAnsweredError)
        service.cancel(job)
        assert service.poll(job).state is JobState.CANCELLED
        assert list(service.fetch(job)) == []
