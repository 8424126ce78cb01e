"""Answers with a good status that no client can read: they may be tried again, and the error shows how they begin."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import anthropic
import httpx
import openai
import pytest
import requests
from google import genai
from google.genai.types import HttpOptions, HttpRetryOptions
from openai.lib._parsing._completions import parse_function_tool_arguments
from openai.types.chat.chat_completion_message_function_tool_call import Function

from asyncudf import CircuitBreaker, RetryStrategy
from asyncudf._errors.call_outcome import CallOutcome, outcome_of
from asyncudf.http import is_retryable
from asyncudf.testing import run_rows
from tests.kit.http_services import sending

pytestmark = pytest.mark.services

PAGE = b"<html>please log in</html>"


def answer(body: bytes, kind: str = "application/json", status: int = 200, length: int | None = None) -> bytes:
    begin = f"HTTP/1.1 {status} So\r\nContent-Type: {kind}\r\nContent-Length: {length or len(body)}\r\n\r\n"
    return begin.encode() + body


ANSWERS = {
    "half a JSON": answer(b'{"id": "a", "'),
    "empty": answer(b""),
    "a page": answer(PAGE, "text/html"),
    "a page said to be JSON": answer(PAGE),
    "another encoding": answer(b'{"a": "caf\xe9"}'),
    "shorter": answer(b'{"id": "a"', length=100),
}


async def by_openai(url: str) -> Any:
    async with openai.AsyncOpenAI(api_key="k", base_url=url, max_retries=0) as client:
        return (await client.responses.create(model="m", input="Hei")).output_text


async def by_anthropic(url: str) -> Any:
    async with anthropic.AsyncAnthropic(api_key="k", base_url=url, max_retries=0) as client:
        message = await client.messages.create(model="m", max_tokens=5, messages=[{"role": "user", "content": "Hei"}])
        return message.content


async def by_a_stream_of_anthropic(url: str) -> Any:
    async with (
        anthropic.AsyncAnthropic(api_key="k", base_url=url, max_retries=0) as client,
        client.messages.stream(model="m", max_tokens=5, messages=[{"role": "user", "content": "Hei"}]) as stream,
    ):
        return await stream.get_final_message()


async def by_google(url: str) -> Any:
    client = genai.Client(
        api_key="k", http_options=HttpOptions(base_url=url, retry_options=HttpRetryOptions(attempts=1))
    )
    try:
        return await client.aio.models.generate_content(model="m", contents="Hei")
    finally:
        await client.aio.aclose()


async def by_aiohttp(url: str) -> Any:
    async with aiohttp.ClientSession() as client, client.get(url) as response:
        return await response.json()


async def by_httpx(url: str) -> Any:
    async with httpx.AsyncClient() as client:
        return (await client.get(url)).json()


async def by_requests(url: str) -> Any:
    return await asyncio.to_thread(lambda: requests.get(url, timeout=60).json())


Client = Callable[[str], Awaitable[Any]]
CLIENTS: list[Client] = [
    by_openai, by_anthropic, by_a_stream_of_anthropic, by_google, by_aiohttp, by_httpx, by_requests,
]  # fmt: skip
# No client of these says that anything is wrong.
SILENT: list[tuple[Client, str]] = [
    (by_google, "empty"), (by_aiohttp, "empty"),  # None
    (by_requests, "another encoding"),  # it guesses
]  # fmt: skip
CASES = [(client, name) for client in CLIENTS for name in ANSWERS if (client, name) not in SILENT]


async def raised(client: Client, sent: bytes) -> Any:
    """The error of a client, or its result, for an answer that is sent as it is."""
    async with sending(sent) as url:
        try:
            return await client(url.rstrip("/"))
        except Exception as error:
            return error


def message_of(error: Exception, **options: Any) -> str:
    async def call(x: int) -> int:
        raise error

    (row,) = run_rows(call, [0], on_error="capture", **options)
    return str(row["error"]["message"])


@pytest.mark.parametrize(("client", "name"), CASES)
async def test_it_may_be_tried_again(client: Client, name: str) -> None:
    """It was an error of the function's own, and the row was lost."""
    error = await raised(client, ANSWERS[name])
    assert isinstance(error, Exception)
    assert (outcome_of(error), is_retryable(error)) == (CallOutcome.DOWN, True)
    assert is_retryable(ExceptionGroup("two", [error]))
    wrapped = RuntimeError("no answer")
    wrapped.__cause__ = error
    assert is_retryable(wrapped)


@pytest.mark.parametrize("client", [by_openai, by_anthropic, by_google, by_httpx, by_requests])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("half a JSON", 'the answer cannot be read, and begins with: {"id": "a", "'),
        ("a page said to be JSON", "the answer cannot be read, and begins with: <html>please log in</html>"),
        ("a page", "the answer cannot be read, and begins with: <html>please log in</html>"),
    ],
)
async def test_the_error_shows_how_it_begins(client: Client, name: str, said: str) -> None:
    """It was "Expecting value: line 1 column 1 (char 0)", which says of nobody what has answered."""
    error = await raised(client, ANSWERS[name])
    assert await asyncio.to_thread(message_of, error) == f"{error}: {said}"
    assert "log in" not in await asyncio.to_thread(lambda: message_of(error, redact=True)), "it may repeat the input"


async def test_of_an_empty_one_it_says_so() -> None:
    error = await raised(by_openai, ANSWERS["empty"])
    assert (await asyncio.to_thread(message_of, error)).endswith("(char 0): the answer is empty, or cannot be read")


async def test_a_long_one_is_shown_in_part_and_without_secrets() -> None:
    body = b"<html>https://me:secret@example.com/?key=secret\x1b[31m\n" + b"x" * 1_000_000
    error = await raised(by_httpx, answer(body))
    said = await asyncio.to_thread(message_of, error)
    assert len(said) < 500
    assert "secret" not in said
    assert said.isprintable()


@pytest.mark.parametrize(("client", "name"), SILENT)
async def test_the_page_names_what_no_client_reports(client: Client, name: str) -> None:
    assert not isinstance(await raised(client, ANSWERS[name]), Exception)


@pytest.mark.parametrize("client", [by_aiohttp, by_httpx, by_requests])
@pytest.mark.parametrize("kind", ["text/html", "application/json"])
async def test_an_error_is_what_its_status_says(client: Client, kind: str) -> None:
    """Where the function has not looked at the status: a 404 stays one."""
    error = await raised(client, answer(PAGE, kind, status=404))
    assert (is_retryable(error), outcome_of(error) is CallOutcome.DOWN) == (False, False)


TOOL: Any = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {}}}


def of_the_function() -> list[Exception]:
    found: list[Exception] = []
    for read in (
        lambda: json.loads("{'a': 1}"),
        lambda: b"caf\xe9".decode(),
        lambda: "a row".answer,  # type: ignore[attr-defined]
        lambda: [].text,  # type: ignore[attr-defined]
        lambda: httpx.Response(200, content=b"{}").jsn,  # type: ignore[attr-defined]
        lambda: (_ for _ in ()).throw(AssertionError("of a row")),
        lambda: parse_function_tool_arguments(input_tools=[TOOL], function=Function(name="f", arguments='{"a": ')),
        lambda: openai.OpenAI(api_key="k").webhooks.unwrap("{", {}, secret="whsec_a"),
    ):
        try:
            read()
        except Exception as error:
            found.append(error)
    return [*found, json.JSONDecodeError("never raised", "<html>", 0), AttributeError("no object")]


def test_what_the_function_reads_itself_is_its_own() -> None:
    """As the JSON of a row, or of a model's text: no other attempt changes it."""
    errors = of_the_function()
    assert len(errors) == 10
    for error in errors:
        assert (outcome_of(error), is_retryable(error)) == (CallOutcome.NOTHING, False)
        assert "the answer" not in message_of(error)


def test_a_page_of_the_function_is_its_own_where_no_client_returns_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake of a function that reads pages was repeated, and opened the breaker."""
    page = "<html>please log in</html>"
    with pytest.raises(AttributeError) as caught:
        page.decode()  # type: ignore[attr-defined]
    for client in ("openai", "anthropic"):
        monkeypatch.delitem(sys.modules, client)
    assert (outcome_of(caught.value), is_retryable(caught.value)) == (CallOutcome.NOTHING, False)


async def of_one(text: str) -> Any:
    return text.decode()  # type: ignore[attr-defined]


async def of_a_row(row: dict[str, str]) -> Any:
    return row["text"].decode()  # type: ignore[attr-defined]


async def of_several(*texts: str) -> Any:
    return texts[0].decode()  # type: ignore[attr-defined]


@pytest.mark.parametrize("function", [of_one, of_a_row, of_several])
def test_a_page_that_the_function_was_given_is_its_own(function: Callable[..., Any]) -> None:
    """A mistake in it was taken for an outage: 1,200 paid calls in place of 101."""
    page = PAGE.decode()
    retry = RetryStrategy.fixed_delay(4, 1.0, retry_on=is_retryable)
    row = {"text": page} if function is of_a_row else page
    (found,) = run_rows(function, [row], returnType="string", on_error="capture", retry=retry)
    assert (found["error"]["attempts"], found["error"]["type"]) == (1, "AttributeError")
    assert "the answer" not in found["error"]["message"]


def test_a_page_of_another_encoding_is_the_rows() -> None:
    """A function that reads pages gets those that are written otherwise, each time."""

    async def by_text(url: str) -> str:
        async with aiohttp.ClientSession() as client, client.get(url) as response:
            return await response.text()

    error = asyncio.run(raised(by_text, answer(b"caf\xe9", "text/html; charset=utf-8")))
    assert isinstance(error, UnicodeDecodeError)
    assert not is_retryable(error)


def test_rows_get_whole_answers_in_the_end_and_a_service_of_pages_opens_the_breaker() -> None:
    """On the virtual clock, with the errors of a real client."""
    half = asyncio.run(raised(by_httpx, ANSWERS["half a JSON"]))
    page = asyncio.run(raised(by_openai, ANSWERS["a page"]))
    retry = RetryStrategy.fixed_delay(3, 1.0, retry_on=is_retryable)
    calls: dict[int, int] = {}

    async def call(x: int) -> int:
        calls[x] = calls.get(x, 0) + 1
        if calls[x] < 3:
            raise (half, page)[x % 2]
        return x

    assert run_rows(call, range(20), retry=retry, on_error="null") == [*range(20)]

    async def dead_for_a_minute(x: int) -> int:
        await asyncio.sleep(0.1)
        if 1 < asyncio.get_running_loop().time() < 60:
            raise page
        return x

    got = run_rows(dead_for_a_minute, range(200), capacity=10, on_error="null", breaker=CircuitBreaker())
    assert got == [*range(200)]
