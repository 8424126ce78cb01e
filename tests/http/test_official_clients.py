"""What the official clients of paid services raise, each for the answers of its own service, on a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import anthropic
import botocore.session
import openai
import pytest
from aiohttp import web
from botocore.config import Config
from google import genai
from google.genai.types import HttpOptions, HttpRetryOptions

from asyncudf import AsyncUDFError, RetryStrategy, http
from asyncudf.testing import run_rows
from tests.kit.http_services import serving

pytestmark = pytest.mark.services

SECONDS = 0.5  # until a client gives up


async def by_openai(url: str) -> None:
    async with openai.AsyncOpenAI(api_key="k", base_url=url, max_retries=0, timeout=SECONDS) as client:
        await client.responses.create(model="m", input="Hei")


async def by_openai_in_parts(url: str) -> None:
    async with openai.AsyncOpenAI(api_key="k", base_url=url, max_retries=0, timeout=SECONDS) as client:
        async for _ in await client.responses.create(model="m", input="Hei", stream=True):
            pass


async def by_anthropic(url: str) -> None:
    async with anthropic.AsyncAnthropic(api_key="k", base_url=url, max_retries=0, timeout=SECONDS) as client:
        await client.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "Hei"}])


async def by_anthropic_in_parts(url: str) -> None:
    message = {"role": "user", "content": "Hei"}
    async with (
        anthropic.AsyncAnthropic(api_key="k", base_url=url, max_retries=0, timeout=SECONDS) as client,
        client.messages.stream(model="m", max_tokens=5, messages=[message]) as stream,
    ):
        await stream.get_final_message()


def google_options(url: str) -> HttpOptions:
    return HttpOptions(
        base_url=url, timeout=int(1000 * SECONDS), retry_options=HttpRetryOptions(attempts=1, initial_delay=0.01)
    )


async def by_google(url: str) -> None:
    client = genai.Client(api_key="k", http_options=google_options(url))
    try:
        await client.aio.models.generate_content(model="m", contents="Hei")
    finally:
        await client.aio.aclose()


async def by_google_in_a_thread(url: str) -> None:
    def ask() -> None:
        client = genai.Client(api_key="k", http_options=google_options(url))
        client.models.generate_content(model="m", contents="Hei")

    await asyncio.to_thread(ask)


async def by_botocore(url: str) -> None:
    def ask() -> None:
        session = botocore.session.get_session()
        session.set_credentials("key", "secret")
        config = Config(retries={"total_max_attempts": 1}, read_timeout=SECONDS, connect_timeout=SECONDS)
        client = session.create_client("dynamodb", region_name="eu-north-1", endpoint_url=url, config=config)
        client.get_item(TableName="t", Key={"a": {"S": "b"}})

    await asyncio.to_thread(ask)


def openai_says(kind: str, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": "no", "type": kind, "param": None, "code": code}}


def anthropic_says(kind: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": "no"}}


def google_says(status: int, name: str, **detail: str) -> dict[str, Any]:
    return {"error": {"code": status, "message": "no", "status": name, "details": [{"@type": "a", **detail}]}}


def botocore_says(name: str) -> dict[str, Any]:
    return {"__type": f"com.amazonaws.dynamodb#{name}", "message": "no"}


Client = Callable[[str], Awaitable[None]]
Answer = tuple[int, dict[str, str], dict[str, Any]]
BUSY = {"Retry-After": "7"}
REFUSALS: list[tuple[Client, Answer, float | None]] = [
    (by_openai, (429, BUSY, openai_says("requests", "rate_limit_exceeded")), 7.0),
    (by_openai, (429, {"retry-after-ms": "250"}, openai_says("tokens", "rate_limit_exceeded")), 0.25),
    (by_anthropic, (429, BUSY, anthropic_says("rate_limit_error")), 7.0),
    (by_google, (429, BUSY, google_says(429, "RESOURCE_EXHAUSTED")), 7.0),
    (by_google, (429, {}, google_says(429, "RESOURCE_EXHAUSTED", retryDelay="34.5s")), 34.5),
    (by_google_in_a_thread, (429, {}, google_says(429, "RESOURCE_EXHAUSTED", retryDelay="34.5s")), 34.5),
    (by_botocore, (400, {}, botocore_says("ProvisionedThroughputExceededException")), None),
]
USED_UP: list[tuple[Client, Answer]] = [
    (by_openai, (429, {}, openai_says("insufficient_quota", "insufficient_quota"))),
    (by_openai, (400, {}, openai_says("invalid_request_error", "billing_hard_limit_reached"))),
    (by_anthropic, (402, {}, anthropic_says("billing_error"))),
    (by_google, (403, {}, google_says(403, "PERMISSION_DENIED", reason="BILLING_DISABLED"))),
    (by_google_in_a_thread, (403, {}, google_says(403, "PERMISSION_DENIED", reason="BILLING_DISABLED"))),
    (by_botocore, (400, {}, botocore_says("SubscriptionRequiredException"))),
]
LASTING: list[tuple[Client, Answer]] = [
    (by_openai, (400, {}, openai_says("invalid_request_error"))),
    (by_anthropic, (400, {}, anthropic_says("invalid_request_error"))),
    (by_google, (400, {}, google_says(400, "INVALID_ARGUMENT"))),
    (by_botocore, (400, {}, botocore_says("ValidationException"))),
]
DOWN: list[tuple[Client, Answer]] = [
    (by_openai, (503, {}, openai_says("server_error"))),
    (by_anthropic, (529, {}, anthropic_says("overloaded_error"))),
    (by_google, (503, {}, google_says(503, "UNAVAILABLE"))),
    (by_google_in_a_thread, (503, {}, google_says(503, "UNAVAILABLE"))),
    (by_botocore, (500, {}, botocore_says("InternalServerError"))),
]
# In an answer that has begun with a 200; the seconds until the next attempt.
IN_PARTS: list[tuple[Client, dict[str, Any], float | None]] = [
    (by_openai_in_parts, openai_says("requests", "rate_limit_exceeded"), 1.0),
    (by_openai_in_parts, openai_says("server_error", "rate_limit_exceeded"), 1.0),
    (by_openai_in_parts, openai_says("server_error", "server_error"), 3.0),
    (by_openai_in_parts, {"error": {"message": "no", "code": 502}}, 3.0),
    (by_openai_in_parts, openai_says("invalid_request_error"), None),
    (by_anthropic_in_parts, anthropic_says("rate_limit_error"), 1.0),
    (by_anthropic_in_parts, anthropic_says("overloaded_error"), 3.0),
    (by_anthropic_in_parts, anthropic_says("api_error"), 3.0),
    (by_anthropic_in_parts, anthropic_says("invalid_request_error"), None),
]
USED_UP_IN_PARTS: list[tuple[Client, dict[str, Any]]] = [
    (by_openai_in_parts, openai_says("insufficient_quota", "insufficient_quota")),
    (by_anthropic_in_parts, anthropic_says("billing_error")),
]
CLIENTS: list[Client] = [by_openai, by_anthropic, by_google, by_google_in_a_thread, by_botocore]


def name_of(value: Any) -> str | None:
    return getattr(value, "__name__", None) or str(value[0] if type(value) is tuple else value)


@pytest.fixture(scope="module")
def service() -> Iterator[tuple[str, dict[str, Any]]]:
    """The address of a service, and what it answers.

    `says` is an answer, an event of a stream that has begun, "nothing", or "end" of the connection.
    """
    state: dict[str, Any] = {}

    async def answer(request: web.Request) -> web.Response:
        if state["says"] == "nothing":
            await asyncio.Event().wait()
        if state["says"] == "end":
            assert request.transport is not None
            request.transport.close()
        if type(state["says"]) is dict:
            event = f"event: error\ndata: {json.dumps(state['says'])}\n\n"
            return web.Response(text=event, content_type="text/event-stream")
        status, headers, body = state["says"] if type(state["says"]) is tuple else (200, {}, {})
        return web.json_response(body, status=status, headers=headers)

    with serving(answer) as url:
        yield url, state


Service = tuple[str, dict[str, Any]]


def raised_by(client: Client, service: Service, says: Any) -> Exception:
    url, state = service
    state["says"] = says
    with pytest.raises(Exception) as caught:  # noqa: PT011 - each client has its own
        asyncio.run(client(url))  # type: ignore[arg-type]
    return caught.value


def delays(error: Exception) -> float | None:
    """Seconds until the next attempt of a call that has ended with this error, on the virtual clock."""

    async def call(row: int) -> float:
        begun.append(asyncio.get_running_loop().time())
        if len(begun) == 1:
            raise error
        return begun[1] - begun[0]

    begun: list[float] = []
    retry = RetryStrategy.fixed_delay(2, 3.0, retry_on=http.is_retryable)
    (waited,) = run_rows(call, [0], retry=retry, on_error="null")
    return waited


@pytest.mark.parametrize(("client", "says", "seconds"), REFUSALS, ids=name_of)
def test_a_refused_call_waits_for_what_it_was_asked(
    service: Service, client: Client, says: Answer, seconds: float | None
) -> None:
    assert delays(raised_by(client, service, says)) == (seconds or 1.0)


@pytest.mark.parametrize(("client", "says"), USED_UP, ids=name_of)
def test_a_quota_that_is_used_up_ends_the_job(service: Service, client: Client, says: Answer) -> None:
    error = raised_by(client, service, says)
    with pytest.raises(AsyncUDFError, match="a quota of the service is used up"):
        delays(error)


@pytest.mark.parametrize(("client", "says"), LASTING, ids=name_of)
def test_a_bad_request_is_not_repeated(service: Service, client: Client, says: Answer) -> None:
    assert delays(raised_by(client, service, says)) is None


@pytest.mark.parametrize(("client", "says"), DOWN, ids=name_of)
def test_a_service_that_cannot_answer_now_is_asked_again(service: Service, client: Client, says: Answer) -> None:
    assert delays(raised_by(client, service, says)) == 3.0


@pytest.mark.parametrize(("client", "says", "seconds"), IN_PARTS, ids=name_of)
def test_an_error_in_a_stream_is_what_its_body_says(
    service: Service, client: Client, says: dict[str, Any], seconds: float | None
) -> None:
    """Its status is the 200 that the answer had begun with, or it has none: no such row was called again."""
    assert delays(raised_by(client, service, says)) == seconds


@pytest.mark.parametrize(("client", "says"), USED_UP_IN_PARTS, ids=name_of)
def test_a_quota_that_is_used_up_in_a_stream_ends_the_job(
    service: Service, client: Client, says: dict[str, Any]
) -> None:
    error = raised_by(client, service, says)
    with pytest.raises(AsyncUDFError, match="a quota of the service is used up"):
        delays(error)


@pytest.mark.parametrize("says", ["nothing", "end"])
@pytest.mark.parametrize("client", CLIENTS)
def test_no_answer_is_a_service_that_is_down(service: Service, client: Client, says: str) -> None:
    assert delays(raised_by(client, service, says)) == 3.0


@pytest.mark.parametrize("client", CLIENTS)
def test_so_is_a_connection_that_is_refused(client: Client) -> None:
    assert delays(raised_by(client, ("http://127.0.0.1:9", {}), None)) == 3.0
