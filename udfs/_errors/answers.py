"""The HTTP status, the refusal and the wait in an exception or a response, of whichever client."""

from __future__ import annotations

import builtins
import dataclasses
import email.utils
import inspect
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from http import HTTPStatus
from itertools import chain
from typing import Any, NamedTuple

from .safe import tried
from .traces import is_group, leaves, related

# Clients are read by the names of attributes, not by their classes: none has to be imported, and unknown ones work too.

TOO_MANY_REQUESTS, UNAVAILABLE, FORBIDDEN = 429, 503, 403
# Instead of 0 seconds: a server whose clock differs seems to say "at once", and would be called without end.
SHORT_WAIT = 1.0
LONGEST_WAIT = 1e9  # seconds; a larger number is a time since 1970
LONGEST_TEXT = 1000  # characters of a header that are read
# Each header of a reset with the header of what is left until then.
RESETS = {
    "x-ratelimit-reset-after": "x-ratelimit-remaining",
    "x-ratelimit-reset": "x-ratelimit-remaining",
    "x-ratelimit-reset-requests": "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-tokens": "x-ratelimit-remaining-tokens",
}
MILLISECONDS = ("retry-after-ms", "x-ms-retry-after-ms")
NAMES = {*MILLISECONDS, *RESETS, *RESETS.values(), "retry-after", "date", "x-should-retry"}
# Codes of botocore, whose services send them with a 400 too. LimitExceededException is not among them: it is a quota's,
# and lasts.
THROTTLING_CODES = {
    "Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled", "RequestThrottledException",
    "TooManyRequestsException", "ProvisionedThroughputExceededException", "RequestLimitExceeded",
    "BandwidthLimitExceeded", "SlowDown", "EC2ThrottledException", "PriorRequestNotComplete",
}  # fmt: skip
# Codes of an account that pays for no further call, whatever the call is: calls are accepted again when somebody has
# changed the account, not when time has passed. A quota that is renewed every minute or day is a refusal.
USED_UP = {
    # OpenAI, and services with its interface
    "insufficient_quota", "credit_balance_exhausted", "billing_hard_limit_reached", "billing_not_active",
    "organization_spend_limit_exceeded", "organization_usage_limit_exceeded", "project_spend_limit_exceeded",
    # Anthropic
    "billing_error", "contract_spend_limit_reached", "enforced_spend_limit_reached",
    # Google and AWS
    "BILLING_DISABLED", "OptInRequired", "SubscriptionRequiredException",
}  # fmt: skip
LEAST_ERROR = 400  # status
# What services with the interfaces of Anthropic and OpenAI say in an answer that had begun with a 200, and the status
# that it would have had.
STATUSES = {
    "rate_limit_error": 429, "rate_limit_exceeded": 429, "overloaded_error": 529, "api_error": 500, "server_error": 500,
    "timeout_error": 504, **dict.fromkeys(USED_UP, 429),
}  # fmt: skip
CODES = ("code", "Code", "type", "error_code", "reason")
# What aiohttp says of an answer that it does not read: the next one has the same headers.
BOUND = re.compile(r"[Gg]ot more than \d+ bytes|[Tt]oo many (?:headers|trailers) received")
LONGEST_BODY = 16 * 1024  # characters or bytes of a body that are read
TOO_MANY_RESPONSES = re.compile(r"too many ([45]\d\d) error responses")  # urllib3, after its own retries
UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
PART = re.compile(r"([0-9]+(?:\.[0-9]*)?)(ms|[smhd])")
DURATION = re.compile(f"(?:{PART.pattern})+")
# Between the values of a header that came more than once, and not behind the weekday of a date.
BETWEEN = re.compile(r",(?!\s*\d\d[ -])")
# Python's own errors have no answer of a service in them, unless somebody has put one there.
OF_PYTHON = {
    one for one in vars(builtins).values()
    if isinstance(one, type) and issubclass(one, Exception) and not issubclass(one, (ExceptionGroup, UnicodeError))
}  # fmt: skip
TEXTS_AND_NUMBERS = {str, bytes, int, float, type(None)}


@dataclasses.dataclass(frozen=True)
class Refusal:
    """A service's response that it wants fewer calls."""

    wait: float | None  # seconds until it wants to be called again, above 0, at most 10^9; None if it does not say
    may_retry: bool  # False if the service says that it will refuse the same request again

    @property
    def seconds(self) -> float:
        """`wait`, or a second if the service does not say."""
        return SHORT_WAIT if self.wait is None else self.wait


class Answer(NamedTuple):
    """What a service has said in an exception, the exceptions that it was raised from and those of its group.

    Or in a response. Each is None where nothing was said.

    Attributes:
        status: the HTTP status; without one of an error that of the error in a body, as in the event of a stream that
            had begun with a 200. A `code` counts only if it is an `http.HTTPStatus`: databases, mail servers and
            websockets have codes of their own. An exception of aiohttp for an incomplete message has none.
        refusal: a 429; botocore's code for it, with any status; a 503 that says when to call again; a 403 that says so,
            or with `x-ratelimit-remaining: 0`; and what has a wait and no status. In a group one is enough.
        wait: the seconds that the service asks for, in the error, its headers or its body; of a refusal also those
            until a limit is reset: one with nothing left, else the longest. In a group the longest wait counts. Not
            negative nor NaN; 0 for a time in the past; `inf` is possible.
        quota: the code (of `USED_UP`) of an account of which no call will be accepted any more, with a status of an
            error.
    """

    status: int | None = None
    refusal: Refusal | None = None
    wait: float | None = None
    quota: str | None = None


def answer_of(outcome: Any) -> Answer:
    """Everything that an exception or a response says, read in one go."""
    if _has_no_answer(outcome):
        return Answer()
    # Each exception with its response, if it has one, the headers of both, and what was read of its body.
    said = [
        (one, response := _attribute(one, "response"), [*_headers(one, response)], _bodies(one, response))
        for one in _outcomes(outcome)
    ]
    status, asked = _status(said), _asked(said)
    refusal, wait = _refusal(said, status, asked), asked
    if is_group(outcome):
        inside = [*map(answer_of, leaves(outcome))]
        refusal = _refusal_inside(inside) or refusal
        wait = max((one.wait for one in inside if one.wait is not None), default=asked)
    if wait is None and refusal is not None:
        wait = refusal.wait
    return Answer(status, refusal, wait, _quota(said) if status is not None and status >= LEAST_ERROR else None)


def error_code(body: str) -> str:
    """The code or type of the error that the body of a response describes in JSON; empty if there is none."""
    codes = [*_codes_in(body)]
    return next((code for code in codes if code in USED_UP), next(iter(codes), ""))


def wait_in(body: Any) -> float | None:
    """The seconds to wait that the error in a body asks for, as Google's `RetryInfo` does; None without any."""
    delays = (_item(detail, "retryDelay") for _, _, details in _errors_in(body) for detail in details)
    return next((wait for delay in delays if (wait := seconds_until(delay, {})) is not None), None)


def is_of_a_broken_message(error: Any) -> bool:
    """Whether an HTTP message could not be read: it broke off, or is none."""
    return type(error).__module__ == "aiohttp.http_exceptions"


def bound_of_aiohttp(error: BaseException) -> str | None:
    """The bound of aiohttp that an answer is beyond, which is not read then; None if it failed for another reason."""
    texts = (str(tried(one.__str__)) for one in related(error) if is_of_a_broken_message(one))
    return next((found[0] for text in texts if (found := BOUND.search(text))), None)


def is_broken(error: BaseException) -> bool:
    """Whether aiohttp has found that an answer, which is no error, is not of the type that was asked for."""
    return any(map(_is_of_another_type, related(error)))


def _is_of_another_type(error: BaseException) -> bool:
    kind = type(error)
    return kind.__module__.startswith("aiohttp.") and kind.__name__ == "ContentTypeError" and _is_success(error)


def _is_success(error: BaseException) -> bool:
    return (_status_in(error) or LEAST_ERROR) < LEAST_ERROR


def headers_of(error: BaseException) -> list[Any]:
    """The headers of all answers in an exception, the exceptions that it was raised from, and those of its group."""
    found = [] if _has_no_answer(error) else [*_all_headers(error)]
    return [*found, *(headers for leaf in leaves(error) for headers in headers_of(leaf))] if is_group(error) else found


def _all_headers(error: BaseException) -> Iterator[Any]:
    for one in _outcomes(error):
        for holder in (one, _attribute(one, "response")):
            yield from (headers for headers in _all_of(holder) if hasattr(headers, "items"))


def limit_headers(response: Any) -> dict[str, str]:
    """The headers of a response that tell its limits, or when to call again, and no others, such as cookies."""
    return next(_headers(response, _attribute(response, "response")), {})


# An exception, its response, the headers of both, and what was read of the body.
Said = Sequence[tuple[Any, Any, Sequence[Mapping[str, Any]], Sequence[Any]]]


def _status(said: Said) -> int | None:
    for one, *_ in said:
        if is_of_a_broken_message(one):
            return None
    holders = [holder for one, response, *_ in said for holder in (one, response) if holder is not None]
    found = next((status for status in map(_status_in, holders) if status is not None), None)
    if found is None or found < LEAST_ERROR:
        told = (_status_told(body) for *_, bodies in said for body in bodies)
        return next((status for status in told if status is not None), found)
    return found


def _status_told(body: Any) -> int | None:
    """The status that the error in a body has, or would have had."""
    for outer, error, _ in _errors_in(body):
        for value in (_item(holder, name) for holder in (error, outer) for name in ("code", "type")):
            status = STATUSES.get(value) if type(value) is str else value
            if type(status) is int and LEAST_ERROR <= status <= 599:
                return status
    return None


def _refusal(said: Said, status: int | None, asked: float | None) -> Refusal | None:
    for _, response, *_ in said:
        if response is not None and _is_throttling(response):
            status = TOO_MANY_REQUESTS
    if status not in (None, TOO_MANY_REQUESTS, UNAVAILABLE, FORBIDDEN):
        return None
    headers, wait = [found for _, _, both, _ in said for found in both], asked
    if wait is None and status is not None:
        # Many gateways send these headers with each response: a 503 is a refusal only if one says that nothing is left.
        resets = (_reset(found, may_have_left=status == TOO_MANY_REQUESTS) for found in headers)
        wait = next((reset for reset in resets if reset is not None), None)
    if status == FORBIDDEN:
        is_refusal = asked is not None or any(_left(found, "x-ratelimit-remaining") == 0 for found in headers)
    else:
        is_refusal = status == TOO_MANY_REQUESTS or wait is not None
    if not is_refusal:
        return None
    may_retry = not any(str(found.get("x-should-retry")).strip().lower() == "false" for found in headers)
    return Refusal(None if wait is None else min(wait, LONGEST_WAIT) or SHORT_WAIT, may_retry)


def _refusal_inside(group: Sequence[Answer]) -> Refusal | None:
    """The refusal of a group of exceptions, if there is one in it."""
    if not (found := [one.refusal for one in group if one.refusal is not None]):
        return None
    waits = [refusal.wait for refusal in found if refusal.wait is not None]
    return Refusal(max(waits, default=None), all(refusal.may_retry for refusal in found))


def _quota(said: Said) -> str | None:
    """The first code or type that says so, of an exception or of the error that the body of its response describes."""
    for one, _, _, bodies in said:
        codes = [_code(one), *_attributes(one, "type", "error_code", "reason"), *chain(*map(_codes_in, bodies))]
        if (found := next((code for code in codes if type(code) is str and code in USED_UP), None)) is not None:
            return found
    return None


def _bodies(outcome: Any, response: Any) -> list[Any]:
    """The body of the response of an exception, as far as a client has read it: JSON, or what it has made of it."""
    found = [*_attributes(outcome, "body", "details"), response]
    if response is not None:  # httpx's: no waiting
        found.append(tried(lambda: response.content if response.is_stream_consumed is True else None))
    return [body for body in found if type(body) in (dict, list, str, bytes)]


def _codes_in(body: Any) -> Iterator[str]:
    for outer, error, details in _errors_in(body):
        yield from _texts([error])
        for holder in (error, outer, *details):
            yield from _texts(_item(holder, name) for name in CODES)


def _errors_in(body: Any) -> Iterator[tuple[Any, Any, list[Any]]]:
    """The errors that a body describes: what each is in, the error itself, and its details."""
    if type(body) in (str, bytes):
        body = tried(lambda: json.loads(body[:LONGEST_BODY]))
    for outer in body if type(body) is list else [body]:
        error = _item(outer, "error", "Error")
        details = _item(error, "details")
        yield outer, error, details if type(details) is list else [details]


def _texts(values: Iterable[Any]) -> Iterator[str]:
    return (value for value in values if type(value) is str)


def _outcomes(outcome: Any) -> list[Any]:
    return [*related(outcome)] if issubclass(type(outcome), BaseException) else [outcome]


def _has_no_answer(outcome: Any) -> bool:
    """Whether the rest need not look, which takes hundreds of calls of functions."""
    if type(outcome) not in OF_PYTHON:
        return False
    return _is_pythons(outcome) if outcome.__cause__ is None else all(map(_is_pythons, _outcomes(outcome)))


def _is_pythons(error: Any) -> bool:
    return type(error) in OF_PYTHON and not error.__dict__ and TEXTS_AND_NUMBERS.issuperset(map(type, error.args))


def _asked(said: Said) -> float | None:
    for one, _, headers, bodies in said:
        for wait in _waits(one, headers, bodies):
            if wait is not None:
                return max(0.0, wait)
    return None


def _status_in(holder: Any) -> int | None:
    for value in _statuses(holder):
        if value is not None and issubclass(type(value), int) and 100 <= (status := int.__int__(value)) <= 599:
            return status
    return None


def _statuses(holder: Any) -> Iterator[Any]:
    yield from _attributes(holder, "status", "status_code")
    if issubclass(type(holder), BaseException):
        yield code if type(code := _code(holder)) is HTTPStatus else None
    else:
        yield _attribute(holder, "code")
    yield _metadata(holder).get("HTTPStatusCode")
    # requests wraps urllib3's error for a request that has used up its retries; that error has no response.
    for error in (holder, tried(lambda: holder.args[0])):
        said = TOO_MANY_RESPONSES.fullmatch(tried(lambda: str(error.reason)) or "")  # noqa: B023 - called here
        yield None if said is None else int(said[1])


def _waits(outcome: Any, headers: Sequence[Mapping[str, Any]], bodies: Sequence[Any]) -> Iterator[float | None]:
    if (asked := _attribute(outcome, "retry_after")) is not None:
        yield tried(lambda: _seconds(asked, {}))
    for found in headers:
        for name in MILLISECONDS:
            yield max((number / 1000 for number in _each(found.get(name), number_in)), default=None)
        yield max(_each(found.get("retry-after"), partial(_seconds, headers=found)), default=None)
    yield from map(wait_in, bodies)


def _headers(outcome: Any, response: Any) -> Iterator[dict[str, Any]]:
    """The headers that say when to call again, by name in lower case; of each holder that has any."""
    for holder in (outcome, response):
        if holder is None:
            continue
        for headers in _all_of(holder):
            if headers is not None and (found := tried(lambda: _of_limits(headers))):  # noqa: B023 - called here
                yield found


def _all_of(holder: Any) -> Sequence[Any]:
    """What may be headers in an exception or a response; `meta` is Elasticsearch's."""
    in_meta = _attribute(_attribute(holder, "meta"), "headers")
    return _attribute(holder, "headers"), in_meta, _metadata(holder).get("HTTPHeaders")


def _of_limits(headers: Any) -> dict[str, Any]:
    # Not every client's headers are a Mapping (urllib has an email's), and some tell upper from lower case.
    found: dict[str, Any] = {}
    for name, value in headers.items():
        if issubclass(type(name), str) and type(value) in (str, int, float):
            lower = name.lower()
            if lower in NAMES or "ratelimit" in lower:
                found[lower] = f"{found[lower]}, {value}" if lower in found else value
    return found


def _seconds(value: Any, headers: Mapping[str, Any]) -> float | None:
    """The seconds to wait, from a timedelta, an HTTP date, or what `seconds_until` reads."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if (wait := seconds_until(value, headers)) is not None:
        return wait
    return None if (date := _date(value)) is None else date.timestamp() - server_now(headers)


def _reset(headers: Mapping[str, Any], *, may_have_left: bool) -> float | None:
    until = partial(seconds_until, headers=headers)
    waits = {name: max(found) for name in RESETS if (found := _each(headers.get(name), until))}
    if "x-ratelimit-reset-after" in waits:
        waits.pop("x-ratelimit-reset", None)  # the same time, by the server's clock
    left = {name: _left(headers, RESETS[name]) for name in waits}
    spent = [wait for name, wait in waits.items() if left[name] == 0]
    others = [wait for name, wait in waits.items() if may_have_left or left[name] is None]
    return max(spent or others, default=None)


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


def _left(headers: Mapping[str, Any], name: str) -> float | None:
    left = min(_each(headers.get(name), number_in), default=None)
    return None if left is None else max(0.0, left)


def each_of(value: Any) -> list[Any]:
    """The values of a header: clients make one text of a header that came more than once."""
    is_several = type(value) is str and "," in value and len(value) <= LONGEST_TEXT
    return BETWEEN.split(value) if is_several else [value]


def _each(value: Any, read: Callable[[Any], float | None]) -> list[float]:
    return [found for one in each_of(value) if (found := read(one)) is not None]


def number_in(value: Any) -> float | None:
    """A number, or the one that a text is; None for anything else, and for NaN."""
    if type(value) is bool or not issubclass(type(value), (int, float, str)):
        return None
    number = tried(lambda: None if issubclass(type(value), str) and len(value) > LONGEST_TEXT else float(value))
    return None if number is None or math.isnan(number) else number


def server_now(headers: Mapping[str, Any]) -> float:
    """The time by the server's clock, if it sends one: two clocks may differ by more than the wait."""
    return (_date(headers.get("date")) or datetime.now(UTC)).timestamp()


def _date(text: Any) -> datetime | None:
    date = tried(lambda: email.utils.parsedate_to_datetime(text[:LONGEST_TEXT])) if type(text) is str else None
    # asctime of C has no time zone, and HTTP allows it.
    return date.replace(tzinfo=UTC) if date is not None and date.tzinfo is None else date


def _attributes(holder: Any, *names: str) -> list[Any]:
    return [_attribute(holder, name) for name in names]


def _attribute(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name, None)
    except BaseException:  # a user's class may raise anything
        return None


def _code(error: Any) -> Any:
    """The `code` of an exception, unless it is a property: those of aiohttp and of websockets warn about being read."""
    try:
        return inspect.getattr_static(error, "code")
    except BaseException:
        return None


def _item(holder: Any, *names: str) -> Any:
    return next((holder[name] for name in names if name in holder), None) if type(holder) is dict else None


def _is_throttling(response: Any) -> bool:
    """Whether a response of botocore, which is a dict, says so."""
    return issubclass(type(response), dict) and tried(lambda: response["Error"]["Code"] in THROTTLING_CODES) is True


def _metadata(response: Any) -> Mapping[str, Any]:
    """The part about HTTP in a response of botocore, which is a dict."""
    found = tried(lambda: response["ResponseMetadata"]) if issubclass(type(response), dict) else None
    return found if type(found) is dict else {}
