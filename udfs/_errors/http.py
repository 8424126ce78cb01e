"""What an exception or a result tells of an HTTP answer, whichever client it is from."""

from __future__ import annotations

import email.utils
import math
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from .causes import related

__all__ = ("is_of_a_broken_message", "retry_after", "status_of")


# By the names of attributes and not by classes: no client has to be imported, and unknown ones are read as well.


def status_of(error: BaseException) -> int | None:
    """The HTTP status of an exception, of one that it was raised from, or of one in a group; None if there is none.

    Reads `status` (aiohttp), `status_code`, `code` (urllib) and `response` (httpx, requests, botocore). What aiohttp
    raises of a message that is no whole one has none, though it says 400.
    """
    errors = [*related(error)]
    if any(map(is_of_a_broken_message, errors)):
        return None
    for one in errors:
        for holder in (one, _attribute(one, "response")):
            for value in _statuses(holder):
                if issubclass(type(value), int) and 100 <= (status := int.__int__(value)) <= 599:
                    return status
    return None


def is_of_a_broken_message(error: BaseException) -> bool:
    """Whether an HTTP message could not be read: it broke off, or is none."""
    return type(error).__module__ == "aiohttp.http_exceptions"


def _statuses(holder: Any) -> Iterator[Any]:
    yield from (_attribute(holder, name) for name in ("status", "status_code", "code"))
    yield _metadata(holder).get("HTTPStatusCode")


def retry_after(outcome: Any) -> float | None:
    """The seconds that a server asked to wait, if `outcome` tells: `retry_after`, or a `Retry-After` header.

    Reads `outcome.retry_after`, `outcome.headers` (aiohttp, urllib) and `outcome.response` (httpx, requests,
    botocore); the header, however it is written, as seconds or as an HTTP date. Of an exception also those that it was
    raised from, as `status_of` does.

    Never negative, nor NaN, and 0 for a time that is over; but as long as a server may say, `inf` included.
    """
    is_error = issubclass(type(outcome), BaseException)
    return next(
        (wait for one in (related(outcome) if is_error else (outcome,)) if (wait := _wait(one)) is not None), None
    )


def _wait(outcome: Any) -> float | None:
    wait = _tried(lambda: _seconds(_attribute(outcome, "retry_after"), None))
    for holder in (outcome, _attribute(outcome, "response")):
        for headers in (_attribute(holder, "headers"), _metadata(holder).get("HTTPHeaders")):
            if wait is None:
                asked = _header(headers, "retry-after")
                wait = _tried(lambda: _seconds(asked, _header(headers, "date")))  # noqa: B023 - it is called here
    return None if wait is None or math.isnan(wait) else max(0.0, wait)


def _seconds(value: Any, sent: Any) -> float | None:
    """What a wait is in seconds; `sent` is when the server's clock says that it has written it."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        seconds = _tried(lambda: float(value))
        if seconds is not None:
            return seconds  # type: ignore[no-any-return]
        # By the server's own clock: the two may differ by more than the wait.
        now = _tried(lambda: _date(sent)) or datetime.now(UTC)
        return (_date(value) - now).total_seconds()
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _date(text: str) -> datetime:
    date = email.utils.parsedate_to_datetime(text)
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)  # of C's asctime, which HTTP allows


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
