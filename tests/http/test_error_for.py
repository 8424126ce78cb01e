"""`error_for` takes what the answer of a bulk endpoint holds, as it is, and refuses what is no status of an error."""

from __future__ import annotations

import collections
import copy
import enum
import http as python_http
import json
import pickle
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest

from asyncudf import OptionError
from asyncudf.http import HTTPStatusError, PermanentError, RetryableError, ThrottledError, error_for, is_retryable
from asyncudf.testing import run_rows
from tests.kit.errors import Raises


class Status(enum.IntEnum):
    BUSY = 429


@pytest.mark.parametrize(
    "status",
    [429, "429", " 429 ", 429.0, Status.BUSY, python_http.HTTPStatus.TOO_MANY_REQUESTS, Decimal(429),
     np.int64(429), np.uint16(429), np.float64(429.0)],
)  # fmt: skip
def test_a_status_may_be_written_in_many_ways(status: Any) -> None:
    error = error_for(status)
    assert (type(error), error.status, type(error.status), str(error)) == (ThrottledError, 429, int, "429")


@pytest.mark.parametrize(
    "status",
    [600, 42201, 21211, 999, 399, 200, 0, -429, None, True, np.True_, 429.5, float("nan"), float("inf"), "", "busy",
     "4e2", "0x190", "429 Too Many Requests", "9" * 5000, 10**400, b"429", [429], pd.NA],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_is_no_status_of_an_error_is_refused_by_name(status: Any) -> None:
    """Every number from 600 on was a failure of the service, and called again: codes of services."""
    with pytest.raises(OptionError, match="status must be the HTTP status of an error, 400 to 599, not ") as caught:
        error_for(status)
    assert "code of the service's own belongs into body=" in str(caught.value)
    assert len(str(caught.value)) < 300


BODY = {"type": "mapper_parsing_exception", "reason": "title is null"}
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32-be")
SHOWN = '{"type": "mapper_parsing_exception", "reason": "title is null"}'


@pytest.mark.parametrize(
    ("body", "shown", "code"),
    [
        (BODY, SHOWN, "mapper_parsing_exception"),
        (SHOWN, SHOWN, "mapper_parsing_exception"),
        *[(SHOWN.encode(name), SHOWN, "mapper_parsing_exception") for name in ENCODINGS],
        (bytearray(SHOWN.encode()), SHOWN, "mapper_parsing_exception"),
        (memoryview(b"busy"), "busy", ""),
        (collections.OrderedDict(BODY), SHOWN, "mapper_parsing_exception"),
        ([{"error": BODY}], f'[{{"error": {SHOWN}}}]', "mapper_parsing_exception"),
        ({"error": "no such field"}, '{"error": "no such field"}', "no such field"),
        ({"Code": "InternalError"}, '{"Code": "InternalError"}', "InternalError"),
        ({"at": datetime(2026, 1, 1), 3: {4}}, '{"at": "datetime.datetime(2026, 1, 1, 0, 0)", "3": "{4}"}', ""),
        (None, "", ""),
        (float("nan"), "", ""),
        (pd.NA, "", ""),
        (pd.NaT, "", ""),
        ("", "", ""),
        (7, "7", ""),
        (False, "false", ""),
        ("ø".encode("latin-1"), "\ufffd", ""),
        (b"\x89PNG\0\xff", "", ""),
        ("half an emoji \ud83d", "half an emoji \\ud83d", ""),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_body_may_be_whatever_the_answer_has(body: Any, shown: str, code: str) -> None:
    error = error_for(400, body=body)
    assert (type(error), error.body, error.code) == (PermanentError, shown, code)
    assert PermanentError(400, body=body).body == shown, "a function may make one itself"
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (type(other), other.status, other.body, other.code, str(other)) == (
            PermanentError, 400, shown, code, str(error),
        )  # fmt: skip


def in_a_circle() -> dict[str, Any]:
    body: dict[str, Any] = {"code": "odd"}
    body["body"] = body
    return body


def deep() -> list[Any]:
    body: list[Any] = []
    for _ in range(100_000):
        body = [body]
    return body


@pytest.mark.parametrize(
    "made", [in_a_circle, deep, lambda: {"code": Raises(SystemExit())}, lambda: Raises(KeyboardInterrupt())]
)
def test_no_body_makes_it_fail(made: Any) -> None:
    """It is called while the answers of many rows are made: all of them would fail."""
    assert len(str(error_for(400, body=made()))) < 400


def test_what_cannot_be_looked_at_is_refused_by_name_too() -> None:
    with pytest.raises(OptionError, match="status must be"):
        error_for(Raises(SystemExit()))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="retry_after must be"):
        error_for(429, retry_after=Raises(SystemExit()))  # type: ignore[arg-type]


def test_of_a_long_body_a_part_is_read() -> None:
    body = {"code": "insufficient_quota", "items": ["x" * 100] * 1_000_000}
    text = json.dumps({"error": {"message": "x" * 20_000_000}})
    begun = time.process_time()
    assert error_for(429, body=body).code == "insufficient_quota"
    assert len(error_for(429, body=text).body) == 300
    assert len(error_for(429, body=[{}] * 10_000_000).body) == 300
    assert time.process_time() - begun < 1.0, "the whole takes seconds"


NOW = datetime.now(UTC)


@pytest.mark.parametrize(
    ("retry_after", "seconds"),
    [
        (30, 30.0), (0.5, 0.5), ("30", 30.0), ("0.5", 0.5), (" 30 ", 30.0), ("1m30s", 90.0), ("34.5s", 34.5),
        (np.int64(30), 30.0), (np.float32(0.5), 0.5), (Decimal("0.5"), 0.5), (timedelta(minutes=1), 60.0),
        (pd.Timedelta(minutes=1), 60.0), (-5, 0.0), ("-5", 0.0), (timedelta(seconds=-5), 0.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0), (NOW - timedelta(days=1), 0.0),
        (None, None), ("", None), ("soon", None), ("nan", None), (float("nan"), None), (pd.NaT, None), (pd.NA, None),
        ("9" * 5000, None), (10**400, None), (float("inf"), float("inf")), ("1e400", float("inf")),
    ],
)  # fmt: skip
def test_a_wait_may_be_written_in_many_ways(retry_after: Any, seconds: float | None) -> None:
    for error in (error_for(429, retry_after=retry_after), ThrottledError(429, retry_after=retry_after)):
        assert (error.retry_after, type(error.retry_after)) == (seconds, type(seconds))
        assert is_retryable(error)


TIMES: dict[str, Callable[[datetime], Any]] = {
    "datetime": lambda moment: moment,
    "naive datetime": lambda moment: moment.replace(tzinfo=None),
    "Timestamp": pd.Timestamp,
    "ISO 8601": datetime.isoformat,
    "RFC 3339": lambda moment: f"{moment:%Y-%m-%dT%H:%M:%SZ}",
    "HTTP date": lambda moment: f"{moment:%a, %d %b %Y %H:%M:%S GMT}",
    "seconds": datetime.timestamp,
    "milliseconds": lambda moment: str(int(moment.timestamp() * 1000)),
}


@pytest.mark.parametrize("written", TIMES.values(), ids=TIMES)
def test_or_as_a_time(written: Callable[[datetime], Any]) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    assert error_for(429, retry_after=written(later)).retry_after == pytest.approx(3600, abs=120)


@pytest.mark.parametrize("retry_after", [True, b"30", [30], {"seconds": 30}, object(), lambda: 30])
def test_what_is_no_wait_is_refused_by_name(retry_after: Any) -> None:
    with pytest.raises(OptionError, match="retry_after must be seconds, a date, or a timedelta, not "):
        error_for(429, retry_after=retry_after)


GOOGLE = {"error": {"code": 429, "details": [{"@type": "RetryInfo", "retryDelay": "34.5s"}]}}


@pytest.mark.parametrize(
    ("status", "body", "kind", "wait"),
    [
        (429, GOOGLE, ThrottledError, 34.5),
        (503, GOOGLE, ThrottledError, 34.5),
        (529, GOOGLE, ThrottledError, 34.5),
        (500, GOOGLE, ThrottledError, 34.5),
        (400, GOOGLE, PermanentError, None),
        (429, {"code": "insufficient_quota"}, PermanentError, None),
        (400, {"ErrorCode": "ProvisionedThroughputExceededException"}, ThrottledError, None),  # Kinesis
        (400, {"Code": "SlowDown"}, ThrottledError, None),
        (400, {"Code": "requestTimeout"}, RetryableError, None),
        (400, "<?xml version='1.0'?><Error><Code>RequestTimeout</Code></Error>", RetryableError, None),  # S3
        (400, "<html><Code>no code</Code>", PermanentError, None),
        (400, '{"message": "<Code>SlowDown</Code>"}', PermanentError, None),
        (400, {"message": "Throttling"}, PermanentError, None),
        (404, {"error": {"code": 429}}, PermanentError, None),
        (400, {"detail": [{"input": {"code": "SlowDown"}}]}, PermanentError, None),
    ],
)
def test_the_code_and_the_wait_of_a_body_count(
    status: int, body: Any, kind: type[HTTPStatusError], wait: float | None
) -> None:
    error = error_for(status, body=body)
    assert (type(error), error.retry_after) == (kind, wait)
    assert is_retryable(error) is (kind is not PermanentError)


def test_the_rows_of_the_answer_that_are_written_stay_written() -> None:
    """As people write it: an item's error is a dict, a text or missing, and its wait a text."""
    items = [
        {"status": 201}, {"status": 400, "error": BODY}, {"status": 400},
        {"status": "429", "error": "busy", "retry_after": "0.5"},
    ]  # fmt: skip
    asked: list[int] = []

    async def index(key: pd.Series) -> list[Any]:
        asked.extend(key)
        return [
            "ok" if item["status"] == 201 or asked.count(one) > 1
            else error_for(item["status"], body=item.get("error"), retry_after=item.get("retry_after"))
            for one, item in ((one, items[one]) for one in key)
        ]  # fmt: skip

    got = run_rows(index, range(4), returnType="string", on_error="capture", batch_size=4)
    assert [row["value"] for row in got] == ["ok", None, None, "ok"]
    assert [row["error"]["message"] for row in got[1:3]] == [f"400: {SHOWN}", "400"]
    assert asked == [0, 1, 2, 3, 3]
