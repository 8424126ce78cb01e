"""What the official clients of paid services raise, each for the answers of its own service, on a real socket.

The answers are those of the table in answers.md beside this file.
"""

from __future__ import annotations

import asyncio
import binascii
import json
import re
import struct
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import anthropic
import botocore.session
import httpx
import openai
import pytest
import requests
from aiohttp import web
from botocore.config import Config
from google import genai
from google.genai.types import HttpOptions, HttpRetryOptions

from asyncudf import AsyncUDFError, RetryStrategy, http
from asyncudf._errors import bodies
from asyncudf.testing import run_rows
from tests.kit.http_services import serving

pytestmark = pytest.mark.services

SECONDS = 2.0  # until a client gives up


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


def by_botocore(service: str, call: Callable[[Any], Any]) -> Callable[[str], Awaitable[None]]:
    async def by_botocore(url: str) -> None:
        def ask() -> None:
            session = botocore.session.get_session()
            session.set_credentials("key", "secret")
            config = Config(retries={"total_max_attempts": 1}, read_timeout=SECONDS, connect_timeout=SECONDS)
            call(session.create_client(service, region_name="eu-north-1", endpoint_url=url, config=config))

        await asyncio.to_thread(ask)

    return by_botocore


by_dynamodb = by_botocore("dynamodb", lambda client: client.get_item(TableName="t", Key={"a": {"S": "b"}}))
by_bedrock = by_botocore("bedrock-runtime", lambda client: [*client.converse_stream(modelId="m")["stream"]])


async def by_session(url: str) -> None:
    async with http.session(url)() as session, session.post("/") as response:
        await http.raise_for_status(response)


async def by_httpx(url: str) -> None:
    async with httpx.AsyncClient() as client:
        (await client.post(url)).raise_for_status()


async def by_requests(url: str) -> None:
    await asyncio.to_thread(lambda: requests.post(url, timeout=60).raise_for_status())


Client = Callable[[str], Awaitable[None]]
CLIENTS: list[Client] = [by_openai, by_anthropic, by_google, by_google_in_a_thread, by_dynamodb]
CLIENTS_OF: dict[str, list[Client]] = {
    "OpenAI": [by_openai],
    "OpenAI, in a stream": [by_openai_in_parts],
    "Anthropic": [by_anthropic],
    "Anthropic, in a stream": [by_anthropic_in_parts],
    "Google": [by_google, by_google_in_a_thread],
    "DynamoDB": [by_dynamodb],
    "Bedrock, in a stream": [by_bedrock],
}
OTHERS: list[Client] = [by_session, by_httpx, by_requests]


class Case(NamedTuple):
    """A line of the table: what a service answers, and what becomes of the row."""

    service: str
    status: int
    headers: dict[str, str]
    body: Any
    row: str

    @property
    def waited(self) -> float | None:
        """Seconds until the next attempt; None if there is none."""
        if self.row.startswith("waits"):
            return float(self.row.split()[1]) if " " in self.row else 1.0
        return BETWEEN_ATTEMPTS if self.row == "uses an attempt" else None


BETWEEN_ATTEMPTS = 3.0
TABLE = Path(__file__).with_name("answers.md")
PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "refusals.md"
LINE = re.compile(
    r"\| (?P<service>[^|]*) \| (?P<status>\d{3})(?P<headers>[^|]*) \| `(?P<body>[^|`]*)` \| (?P<row>[^|]*) \| .*\|"
)


def case_of(line: re.Match[str]) -> Case:
    headers = dict(found.split(": ", 1) for found in re.findall("`([^`]*)`", line["headers"]))
    place = ", in a stream" if line["headers"].endswith(", in a stream") else ""
    return Case(f"{line['service']}{place}", int(line["status"]), headers, json.loads(line["body"]), line["row"])


CASES = [case_of(line) for line in LINE.finditer(TABLE.read_text())]
BY_CLIENTS = [(client, case) for case in CASES for client in CLIENTS_OF[case.service]]
ITEMS = [case for case in CASES if case.status >= 400 and case.headers.keys() <= {"retry-after"}]
BY_OTHERS = [(client, case) for case in CASES if "stream" not in case.service for client in OTHERS]


def event_of_aws(kind: str, body: Any) -> bytes:
    """An exception in a stream of AWS: lengths with their check sum, headers, the body, and another check sum."""
    headers = b""
    for name, value in (
        (":message-type", "exception"),
        (":exception-type", kind),
        (":content-type", "application/json"),
    ):
        headers += struct.pack(">B", len(name)) + name.encode() + struct.pack(">BH", 7, len(value)) + value.encode()
    payload = json.dumps(body).encode()
    lengths = struct.pack(">II", 16 + len(headers) + len(payload), len(headers))
    message = lengths + struct.pack(">I", binascii.crc32(lengths)) + headers + payload
    return message + struct.pack(">I", binascii.crc32(message))


def response_of(case: Case) -> web.Response:
    if case.service.startswith("Bedrock"):
        ((kind, body),) = case.body.items()
        return web.Response(body=event_of_aws(kind, body), content_type="application/vnd.amazon.eventstream")
    if "stream" in case.service:
        return web.Response(text=f"event: error\ndata: {json.dumps(case.body)}\n\n", content_type="text/event-stream")
    return web.json_response(case.body, status=case.status, headers=case.headers)


def name_of(value: Any) -> str | None:
    if type(value) is Case:
        return f"{value.service} {value.status} {json.dumps(value.body)[:80]}"
    return getattr(value, "__name__", None)


@pytest.fixture(scope="module")
def service() -> Iterator[tuple[str, dict[str, Any]]]:
    """The address of a service, and what it answers: a case of the table, "nothing", or "end" of the connection."""
    state: dict[str, Any] = {}

    async def answer(request: web.Request) -> web.Response:
        if state["says"] == "nothing":
            await asyncio.Event().wait()
        if state["says"] == "end":
            assert request.transport is not None
            request.transport.close()
        return response_of(state["says"]) if type(state["says"]) is Case else web.json_response({})

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
    retry = RetryStrategy.fixed_delay(2, BETWEEN_ATTEMPTS, retry_on=http.is_retryable)
    (waited,) = run_rows(call, [0], retry=retry, on_error="null")
    return waited


def becomes(error: Exception, case: Case) -> None:
    """Check what becomes of a row whose call has ended with this error."""
    if case.row == "ends the job":
        with pytest.raises(AsyncUDFError, match="a quota of the service is used up"):
            delays(error)
    else:
        assert delays(error) == case.waited


@pytest.mark.parametrize(("client", "case"), BY_CLIENTS, ids=name_of)
def test_the_row_is_called_again_as_the_table_says(service: Service, client: Client, case: Case) -> None:
    becomes(raised_by(client, service, case), case)


@pytest.mark.parametrize(("client", "case"), BY_OTHERS, ids=name_of)
def test_so_it_is_without_the_client_of_the_service(service: Service, client: Client, case: Case) -> None:
    """A service behind `http.session` was asked again and again with a quota used up, and not at all if throttled."""
    becomes(raised_by(client, service, case), case)


@pytest.mark.parametrize("case", ITEMS, ids=name_of)
@pytest.mark.parametrize("form", [dict, json.dumps, lambda body: json.dumps(body).encode("utf-16")])
def test_an_item_of_a_bulk_answer_is_the_same(case: Case, form: Callable[[Any], Any]) -> None:
    becomes(http.error_for(case.status, body=form(case.body), retry_after=case.headers.get("retry-after")), case)


def test_the_table_has_each_kind_of_answer_for_each_service() -> None:
    assert len(CASES) == len(
        re.findall(r"^\| (OpenAI|Anthropic|Google|DynamoDB|Bedrock) \|", TABLE.read_text(), re.MULTILINE)
    )
    assert {case.service for case in CASES} == {*CLIENTS_OF}
    for service in CLIENTS_OF.keys() - {"Bedrock, in a stream"}:  # which has no event for a used-up quota
        kinds = {case.row.split()[0] for case in CASES if case.service == service}
        assert kinds == {"waits", "uses", "fails", "ends"}, service


def test_the_pages_name_each_code() -> None:
    pages = TABLE.read_text() + PAGE.read_text()
    codes = {*bodies.USED_UP, *bodies.THROTTLING, *bodies.TRANSIENT, *bodies.STATUSES} - {*bodies.MESSAGES.values()}
    assert [code for code in sorted(codes) if f"`{code}`" not in pages] == []
    assert [message for message in bodies.MESSAGES if message not in pages] == []


@pytest.mark.parametrize("says", ["nothing", "end"])
@pytest.mark.parametrize("client", CLIENTS)
def test_no_answer_is_a_service_that_is_down(service: Service, client: Client, says: str) -> None:
    assert delays(raised_by(client, service, says)) == 3.0


@pytest.mark.parametrize("client", CLIENTS)
def test_so_is_a_connection_that_is_refused(client: Client) -> None:
    assert delays(raised_by(client, ("http://127.0.0.1:9", {}), None)) == 3.0
