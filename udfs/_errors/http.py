"""What an exception or a result tells of an HTTP answer, whichever client it is from."""

from __future__ import annotations

import email.utils
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from .causes import related

__all__ = ("retry_after", "status_of")


# By the names of attributes and not by classes: no client has to be imported, and unknown ones are read as well.


def status_of(error: BaseException) -> int | None:
    """The HTTP status of an exception, of one that it was raised from, or of one in a group; None if there is none.

    Reads `status` (aiohttp), `status_code`, `code` (urllib) and `response` (httpx, requests, botocore).
    """
    for one in related(error):
        for holder in (one, _attribute(one, "response")):
            for value in _statuses(holder):
                if issubclass(type(value), int) and 100 <= (status := int.__int__(value)) <= 599:
                    return status
    return None


def _statuses(holder: Any) -> Iterator[Any]:
    yield from (_attribute(holder, name) for name in ("status", "status_code", "code"))
    yield _metadata(holder).get("HTTPStatusCode")


def retry_after(outcome: Any) -> float | None:
    """The seconds that a server asked to wait, if `outcome` tells: `retry_after`, or a `Retry-After` header.

    Reads `outcome.retry_after`, `outcome.headers` (aiohttp, urllib) and `outcome.response` (httpx, requests,
    botocore); the header, however it is written, as seconds or as an HTTP date.
    """
    value = _attribute(outcome, "retry_after")
    for holder in (outcome, _attribute(outcome, "response")):
        for headers in (_attribute(holder, "headers"), _metadata(holder).get("HTTPHeaders")):
            value = _header(headers, "retry-after") if value is None else value
    wait = _tried(lambda: _seconds(value))
    if wait is None:
        wait = _tried(lambda: (email.utils.parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    return None if wait is None or math.isnan(wait) else max(0.0, wait)


def _seconds(value: Any) -> float | None:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return float(value) if isinstance(value, (int, float, str)) else None


def _attribute(holder: Any, name: str) -> Any:
    return _tried(lambda: getattr(holder, name, None))


def _metadata(response: Any) -> Mapping[str, Any]:
    """What botocore, whose responses are dicts, tells of HTTP."""
    found = _tried(lambda: response["ResponseMetadata"])
    return found if type(found) is dict else {}


def _header(headers: Any, name: str) -> Any:
    # Not every client's headers are a Mapping (urllib has an email's), and not all take a name in any case.
    return _tried(lambda: next((value for key, value in headers.items() if key.lower() == name), None))


def _tried(read: Callable[[], Any]) -> Any:
    """What it gives, None if it raises: reading an error must not make another one of it."""
    try:
        return read()
    except BaseException:  # of the user's own classes, or of one that is no such thing
        return None
