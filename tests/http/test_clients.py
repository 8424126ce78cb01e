"""What clients raise for the answers of a real server: which of them are refusals, and how long their rows wait."""

from __future__ import annotations

import asyncio
import urllib.request
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import aiohttp
import httpx
import pytest
import requests
import urllib3
from aiohttp import web

from asyncudf._errors.answers import Refusal, answer_of
from asyncudf.http import is_retryable
from tests.kit.http_services import serving

pytestmark = pytest.mark.services


def by_aiohttp(url: str) -> None:
    async def ask() -> None:
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            response.raise_for_status()

    asyncio.run(ask())


def by_httpx(url: str) -> None:
    httpx.get(url).raise_for_status()


def by_requests(url: str) -> None:
    requests.get(url, timeout=60).raise_for_status()


def by_urllib(url: str) -> None:
    urllib.request.urlopen(url).close()


class RateLimitError(Exception):
    """As openai raises it from httpx's, with the response."""

    def __init__(self, response: httpx.Response) -> None:
        super().__init__("Error code")
        self.response, self.status_code, self.request_id, self.code = response, response.status_code, None, None


def by_openai(url: str) -> None:
    try:
        httpx.get(url).raise_for_status()
    except httpx.HTTPStatusError as error:
        raise RateLimitError(error.response) from None


CLIENTS = [by_aiohttp, by_httpx, by_requests, by_urllib, by_openai]
SEVEN = Refusal(7.0, may_retry=True)
ANSWERS: list[tuple[int, dict[str, str], Refusal | None]] = [
    (429, {}, Refusal(None, may_retry=True)),
    (429, {"Retry-After": "7"}, SEVEN),
    (429, {"retry-after-ms": "250", "Retry-After": "7"}, Refusal(0.25, may_retry=True)),
    (429, {"x-ms-retry-after-ms": "250", "Retry-After": "7"}, Refusal(0.25, may_retry=True)),
    (429, {"Retry-After": "7", "x-ratelimit-reset": "60"}, SEVEN),
    (429, {"Retry-After": "Sun, 22 Nov 2015 10:00:07 GMT", "Date": "Sun, 22 Nov 2015 10:00:00 GMT"}, SEVEN),
    (429, {"x-ratelimit-reset": "7"}, SEVEN),
    (429, {"x-should-retry": "false"}, Refusal(None, may_retry=False)),
    (429, {"Retry-After": "nan"}, Refusal(None, may_retry=True)),
    (429, {"Retry-After": "9" * 5_000}, Refusal(None, may_retry=True)),
    (429, {"Retry-After": "-7"}, Refusal(1.0, may_retry=True)),
    (503, {"Retry-After": "7"}, SEVEN),
    (503, {}, None),
    (403, {"Retry-After": "7"}, SEVEN),
    (403, {"x-ratelimit-remaining": "0"}, Refusal(None, may_retry=True)),
    (403, {"x-ratelimit-remaining": "5"}, None),
    (404, {}, None),
]


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    async def answer(request: web.Request) -> web.Response:
        status, headers, _ = ANSWERS[int(request.path[1:])]
        return web.Response(status=status, headers=headers)

    with serving(answer) as url:
        yield url


def raised_by(client: Callable[[str], None], url: str) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011 - each client has its own
        client(url)
    return caught.value


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("number", range(len(ANSWERS)), ids=[f"{one[0]}-{[*one[1]]}" for one in ANSWERS])
def test_each_client_tells_the_same(service: str, client: Callable[[str], None], number: int) -> None:
    status, _, refusal = ANSWERS[number]
    error = raised_by(client, f"{service}/{number}")
    wrapped = ValueError("of the user's own")
    wrapped.__cause__ = error
    for one in (error, wrapped):
        assert (answer_of(one).status, answer_of(one).refusal) == (status, refusal)


def by_urllib3(url: str) -> None:
    urllib3.PoolManager().request("GET", url, retries=urllib3.Retry(1, status_forcelist=[429, 404], backoff_factor=0))


def by_requests_with_retries(url: str) -> None:
    session = requests.Session()
    adapter = requests.adapters.HTTPAdapter(max_retries=urllib3.Retry(1, status_forcelist=[429, 404]))
    session.mount("http://", adapter)
    session.get(url, timeout=60)


@pytest.mark.parametrize("client", [by_urllib3, by_requests_with_retries])
def test_one_that_has_repeated_it_in_vain_says_only_why(service: str, client: Callable[[str], None]) -> None:
    assert answer_of(raised_by(client, f"{service}/0")).refusal == Refusal(None, may_retry=True)
    missing = raised_by(client, f"{service}/{len(ANSWERS) - 1}")
    assert (answer_of(missing).status, is_retryable(missing)) == (404, False)


class ClientError(Exception):
    """As botocore's; its services answer with a 400 for most of these."""

    def __init__(self, code: Any, status: int = 400) -> None:
        super().__init__(code)
        self.response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": {}}}


@pytest.mark.parametrize("status", [400, 503])
@pytest.mark.parametrize(
    "code", ["ThrottlingException", "TooManyRequestsException", "SlowDown", "ProvisionedThroughputExceededException"]
)
def test_a_code_of_botocore_is_a_refusal_whatever_its_status(code: str, status: int) -> None:
    error = ClientError(code, status)
    assert (answer_of(error).refusal, is_retryable(error)) == (Refusal(None, may_retry=True), True)


@pytest.mark.parametrize("code", ["ValidationException", "LimitExceededException", None, ["SlowDown"], {}])
def test_another_code_is_none(code: Any) -> None:
    assert answer_of(ClientError(code)).refusal is None
    assert answer_of(SimpleNamespace(response={"Error": code})).refusal is None
