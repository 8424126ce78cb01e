"""A service with the interface of OpenAI's chat completions, for examples: what it answers follows from the text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from ._serving import served


class ModelService:
    """Says of a review which language it is in and whether it is positive, and counts what it bills.

    Attributes:
        url: of its API.
        asked: the prompts that it was asked.
        tokens: that it has billed.
    """

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []
        self.tokens = 0

    async def complete(self, request: web.Request) -> web.Response:
        messages = (await request.json())["messages"]
        text = messages[1]["content"]
        self.asked.append(text)
        await asyncio.sleep(0.05)
        answer: dict[str, object] = {"language": "de" if "und" in text else "en", "positive": "g" in text}
        if "schnell" in text and len(messages) == 2:
            answer["language"] = "German"  # until it is told what was wrong
        content = json.dumps(answer)
        usage = {
            "prompt_tokens": sum(len(one["content"]) for one in messages) // 4,
            "completion_tokens": len(content) // 4,
        }
        usage["total_tokens"] = sum(usage.values())
        self.tokens += usage["total_tokens"]
        message = {"role": "assistant", "content": content}
        choices = [{"index": 0, "finish_reason": "stop", "message": message}]
        about = {"id": "1", "object": "chat.completion", "created": 0, "model": "a-model"}
        return web.json_response({**about, "choices": choices, "usage": usage})

    def app(self) -> web.Application:
        """Its interface."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.complete)
        return app


@contextmanager
def serving() -> Iterator[ModelService]:
    """The service, while the block runs."""
    service = ModelService()
    with served(service.app()) as address:
        service.url = f"{address}/v1"
        yield service
