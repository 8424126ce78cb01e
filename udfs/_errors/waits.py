"""Numbers, durations and times as services write them, in headers and in bodies: the seconds to wait."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from .safe import tried

LONGEST_WAIT = 1e9  # seconds; a larger number is a time since 1970
LONGEST_TEXT = 1000  # characters of a header that are read
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
PART = re.compile(r"([0-9]+(?:\.[0-9]*)?)(ms|[smhd])")
DURATION = re.compile(f"(?:{PART.pattern})+")
# Between the values of a header that came more than once, and not behind the weekday of a date.
BETWEEN = re.compile(r",(?!\s*\d\d[ -])")


def seconds_of(value: Any, headers: Mapping[str, Any]) -> float | None:
    """The seconds to wait, from a timedelta, a time, or what `seconds_until` reads; below 0 for a time in the past."""
    if issubclass(type(value), timedelta):
        return float(value.total_seconds())
    if (wait := seconds_until(value, headers)) is not None:
        return wait
    return None if (time := time_in(value)) is None else time - server_now(headers)


def seconds_until(value: Any, headers: Mapping[str, Any]) -> float | None:
    """The seconds until a limit is reset, from a number of them, a time since 1970 in (milli)seconds, or `6m0s`."""
    number = number_in(value)
    if number is None:
        text = value.strip() if type(value) is str and len(value) <= LONGEST_TEXT else ""
        parts = PART.findall(text) if DURATION.fullmatch(text) else ()
        return sum(float(count) * UNITS[unit] for count, unit in parts) if parts else None
    if number >= LONGEST_WAIT:
        number = (number if number < 100 * LONGEST_WAIT else number / 1000) - server_now(headers)
    return max(0.0, number)


def each_of(value: Any) -> list[Any]:
    """The values of a header: clients make one text of a header that came more than once."""
    is_several = type(value) is str and "," in value and len(value) <= LONGEST_TEXT
    return BETWEEN.split(value) if is_several else [value]


def read_each(value: Any, read: Callable[[Any], float | None]) -> list[float]:
    """The results of `read` for the values of a header; a value that it cannot read is left out."""
    return [found for one in each_of(value) if (found := read(one)) is not None]


def number_in(value: Any) -> float | None:
    """A number, also from its text; None for anything else, and for NaN."""
    kind = type(value)
    if kind is bool or not issubclass(kind, (int, float, str, Decimal, numbers.Real)):
        return None
    number = tried(lambda: None if issubclass(kind, str) and len(value) > LONGEST_TEXT else float(value))
    return None if number is None or math.isnan(number) else number


def server_now(headers: Mapping[str, Any]) -> float:
    """The time by the server's clock, if it sends one: two clocks may differ by more than the wait."""
    sent = time_in(headers.get("date"))
    return datetime.now(UTC).timestamp() if sent is None else sent


def time_in(value: Any) -> float | None:
    """Seconds since 1970, from a datetime, or from a text in the forms of RFC 3339 and HTTP; UTC unless it says."""
    time = value if issubclass(type(value), datetime) else None
    if type(value) is str and len(value) <= LONGEST_TEXT:
        text = value.strip()
        # Most dates of HTTP begin with a weekday.
        time = tried(lambda: datetime.fromisoformat(text)) if text[:1].isdigit() else None
        from email.utils import parsedate_to_datetime  # few services send dates

        time = time or tried(lambda: parsedate_to_datetime(text))
    found = None if time is None else tried(lambda: _utc(time).timestamp())
    return None if found is None or math.isnan(found) else found  # pandas has a time that is missing


def _utc(time: datetime) -> datetime:
    # asctime of C has no time zone, and HTTP allows it.
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
