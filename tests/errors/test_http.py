"""The HTTP status and the Retry-After of an exception, whichever client it is from."""

from __future__ import annotations

import email.message
import http
import urllib.error
import warnings
from collections.abc import Mapping
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import aiohttp
import numpy as np
import pytest
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from asyncudf import DEAD_LETTERS, OutputTag
from asyncudf._errors.answers import answer_of
from asyncudf._errors.call_outcome import CallOutcome, outcome_of
from asyncudf.http import is_retryable
from asyncudf.testing import run_rows


def having(**attributes: Any) -> Exception:
    error = ValueError("no")
    error.__dict__.update(attributes)
    return error


def caused_by(cause: BaseException | None) -> Exception:
    error = ValueError("wrapped")
    error.__cause__ = cause
    return error


def own_cause() -> Exception:
    error = ValueError("circular")
    error.__cause__ = caused_by(error)
    return error


class EvilError(Exception):
    """Every attribute raises, and not an AttributeError."""

    def __getattr__(self, name: str) -> Any:
        raise SystemExit


class ClosedError(Exception):
    """As of a websocket."""

    @property
    def code(self) -> int:
        warnings.warn("ClosedError.code is deprecated", DeprecationWarning, stacklevel=2)
        return 500


def of_google() -> Exception:
    class TooManyRequests(Exception):  # noqa: N818 - its name
        code = http.HTTPStatus.TOO_MANY_REQUESTS

    return TooManyRequests("429 slower")


def from_urllib(headers: dict[str, str]) -> urllib.error.HTTPError:
    message = email.message.Message()
    for name, value in headers.items():
        message[name] = value
    return urllib.error.HTTPError("http://localhost", 503, "busy", message, None)


def from_aiohttp(headers: Any) -> aiohttp.ClientResponseError:
    url = URL("http://localhost")
    request = aiohttp.RequestInfo(url, "GET", CIMultiDictProxy(CIMultiDict()), url)
    return aiohttp.ClientResponseError(request, (), status=503, headers=headers)


def from_botocore(headers: dict[str, str]) -> Exception:
    return having(response={"ResponseMetadata": {"HTTPStatusCode": 503, "HTTPHeaders": headers}})


STATUSES = {
    "aiohttp": (from_aiohttp(None), 503),
    "urllib": (from_urllib({}), 503),
    "botocore": (from_botocore({}), 503),
    "status": (having(status=404), 404),
    "status_code": (having(status_code=429), 429),
    "an HTTPStatus": (having(code=http.HTTPStatus.NOT_FOUND), 404),
    "httpx and requests": (having(response=SimpleNamespace(status_code=500)), 500),
    "a response's status": (having(response=SimpleNamespace(status=500)), 500),
    "the cause": (caused_by(having(status=404)), 404),
    "the cause of the cause": (caused_by(caused_by(having(status=404))), 404),
    "its own before its cause's": (having(status=500), 500),
    "none": (ValueError(), None),
    "a text": (having(status="404"), None),
    "a bool": (having(status=True), None),
    "a float": (having(status=404.0), None),
    "an exit code": (having(code=1), None),
    "a method, as in grpc": (having(code=lambda: 5), None),
    "of a websocket": (having(code=1006), None),
    "too small": (having(status=99), None),
    "too large": (having(status=600), None),
    "a number of numpy's": (having(status=np.int64(404)), None),
    "of a row, with its own cause's status": (caused_by(having(code=404, status=409)), 409),
    "a class with an HTTPStatus, as Google's": (of_google(), 429),
    "a response's code": (having(response=SimpleNamespace(code=503)), 503),
    "a property that warns": (ClosedError(), None),
    "attributes that raise": (EvilError(), None),
    "a cause with attributes that raise": (caused_by(EvilError()), None),
    "its own cause": (own_cause(), None),
}


@pytest.mark.parametrize("case", STATUSES)
def test_the_status_is_found_where_clients_put_it(case: str) -> None:
    error, status = STATUSES[case]
    found = answer_of(error).status
    assert found == status
    assert type(found) is type(status), "a plain int, which Arrow takes"


@pytest.mark.parametrize("code", [112, 429, 503, 550])
def test_a_code_that_is_no_status_is_about_the_row(code: int) -> None:
    """MongoDB's 112 (a write conflict) and a mail server's 550 were answers of HTTP, and a 503 an outage."""
    error = having(code=code)
    assert (outcome_of(error), is_retryable(error)) == (CallOutcome.NOTHING, False)

    async def fails(x: int) -> int:
        raise error

    (row,) = run_rows(fails, [1], on_error="capture")
    assert row["error"]["status"] is None


def test_captured_errors_and_dead_letters_have_the_status() -> None:
    async def fails(code: int) -> int:
        raise having(status=code) if code else ValueError("no status")

    got = run_rows(fails, [404, 500, 0], on_error="capture")
    assert [row["error"]["status"] for row in got] == [404, 500, None]
    assert list(got[0]["error"]) == ["type", "message", "attempts", "elapsed", "status"]
    sides: dict[OutputTag, list[Any]] = {}
    run_rows(fails, [404], on_error="dead_letter", side_outputs=sides)
    (letter,) = sides[DEAD_LETTERS]
    assert list(letter["error"]) == ["type", "message", "attempts", "elapsed", "status", "function", "partition"]
    assert letter["error"]["status"] == 404


class Headers(Mapping[str, str]):
    """Like those of requests and httpx: a mapping that takes a name in any case and gives it as it was written."""

    def __init__(self, name: str, value: str) -> None:
        self._name, self._value = name, value

    def __getitem__(self, name: str) -> str:
        if name.lower() != self._name.lower():
            raise KeyError(name)
        return self._value

    def __iter__(self) -> Any:
        return iter([self._name])

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize("name", ["Retry-After", "retry-after", "RETRY-AFTER"])
def test_retry_after_is_read_from_every_clients_headers(name: str) -> None:
    asked = {name: "7"}
    assert answer_of(from_urllib(asked)).wait == 7
    assert answer_of(from_aiohttp(CIMultiDictProxy(CIMultiDict(asked)))).wait == 7
    assert answer_of(from_aiohttp(asked)).wait == 7
    assert answer_of(from_botocore(asked)).wait == 7
    assert answer_of(having(response=SimpleNamespace(headers=Headers(name, "7")))).wait == 7
    assert answer_of(SimpleNamespace(status=429, headers=asked)).wait == 7, "a response that was returned"


LATER = {
    "of today": ("Sun, 22 Nov 2026 10:00:07 GMT", 7.0),
    "of RFC 850": ("Sunday, 22-Nov-26 10:00:07 GMT", 7.0),
    "of asctime": ("Sun Nov 22 10:00:07 2026", 7.0),
    "over": ("Sun, 22 Nov 2026 09:00:00 GMT", 0.0),
    "of the last year": ("Fri, 31 Dec 9999 23:59:59 GMT", 251_606_959_199.0),
}


@pytest.mark.parametrize("case", LATER)
def test_a_date_counts_from_the_servers_own_clock(case: str) -> None:
    """HTTP has three ways to write one. By a worker whose clock is 5 s behind it would be waited 5 s more."""
    written, seconds = LATER[case]
    asked = {"Retry-After": written, "Date": "Sun, 22 Nov 2026 10:00:00 GMT"}
    assert answer_of(having(headers=asked)).wait == seconds
    assert answer_of(having(response=SimpleNamespace(headers=asked))).wait == seconds


def test_without_a_date_of_the_server_it_counts_from_ours() -> None:
    for sent in ({}, {"Date": "some day"}):
        wait = answer_of(having(headers={"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT", **sent})).wait
        assert wait is not None
        assert 2.4e11 < wait < 2.6e11


def test_the_reset_of_a_limit_counts_for_a_refusal_alone() -> None:
    """Services send it with each answer."""
    limits = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "7"}
    assert answer_of(having(status=429, headers=limits)).wait == 7
    assert answer_of(having(status=500, headers=limits)).wait is None


def test_the_wait_is_found_behind_an_exception_that_wraps_it() -> None:
    """As its status is: both are of the same answer."""
    error = caused_by(caused_by(having(status=429, headers={"Retry-After": "7"})))
    assert (answer_of(error).status, answer_of(error).wait) == (429, 7.0)
    assert answer_of(ExceptionGroup("calls", [ValueError(), error])).wait == 7.0
    assert answer_of(own_cause()).wait is None


def test_a_wait_that_cannot_be_read_hides_none_that_can() -> None:
    assert answer_of(having(retry_after="soon", headers={"Retry-After": "7"})).wait == 7.0
    assert answer_of(having(retry_after=True, headers={"Retry-After": "7"})).wait == 7.0
    assert answer_of(having(retry_after=timedelta(minutes=1), headers={"Retry-After": "7"})).wait == 60.0


UNREADABLE = {
    "attributes that raise": EvilError(),
    "headers that are none": having(headers=5),
    "a header without a name": having(headers={1: "7"}),
    "no number": having(headers={"Retry-After": "nan"}),
    "bytes": having(headers={"Retry-After": b"7"}),
    "no date": having(headers={"Retry-After": "Fri, 32 Foo 2026"}),
    "no metadata": having(response={"ResponseMetadata": None}),
    "too large": having(retry_after=10**400),
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_cannot_be_read_asks_for_nothing(case: str) -> None:
    assert answer_of(UNREADABLE[case]).wait is None


class OddInt(int):
    def __int__(self) -> int:
        raise RuntimeError("no number")


class OddStatusError(Exception):
    status = OddInt(404)


class NoCauseError(Exception):
    __cause__ = 5  # type: ignore[assignment]


class FailingCauseError(Exception):
    @property
    def __cause__(self) -> Any:  # type: ignore[override]
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("error", "status"), [(OddStatusError(), 404), (NoCauseError(), None), (FailingCauseError(), None)]
)
def test_an_exception_with_odd_attributes_is_captured(error: Exception, status: int | None) -> None:
    async def call(x: int) -> int:
        raise error

    (result,) = run_rows(call, [1], on_error="capture")
    assert (result["error"]["type"], result["error"]["status"]) == (type(error).__name__, status)


def test_the_status_of_the_true_cause_is_found_behind_an_odd_attribute() -> None:
    with pytest.raises(NoCauseError) as failed:
        raise NoCauseError from OddStatusError()
    assert answer_of(failed.value).status == 404
