"""The error that the body of a response describes: its codes, the status that it has or would have had, its wait."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from .safe import presentable, safe_repr, tried, type_name
from .waits import seconds_until

# Codes of an account that pays for no further call, whatever the call is: calls are accepted again when somebody has
# changed the account, not when time has passed. A quota that is renewed every minute or day is a refusal.
USED_UP = {
    # OpenAI, and services with its interface
    "insufficient_quota", "credit_balance_exhausted", "billing_hard_limit_reached", "billing_not_active",
    "organization_spend_limit_exceeded", "organization_usage_limit_exceeded", "project_spend_limit_exceeded",
    # Anthropic
    "billing_error", "contract_spend_limit_reached", "enforced_spend_limit_reached",
    "credit_balance_too_low", "usage_limits_reached",
    # Google and AWS
    "BILLING_DISABLED", "OptInRequired", "SubscriptionRequiredException",
}  # fmt: skip
# Anthropic says these with a 400 and the type of a bad request. No code tells them apart; the service's own message,
# which begins so, does. The codes are ours.
MESSAGES = {
    "Your credit balance is too low": "credit_balance_too_low",
    "You have reached your specified API usage limits": "usage_limits_reached",
}
# Codes of AWS that ask for fewer calls, which it sends with a 400 too. LimitExceededException is not among them: it is
# a quota's, and lasts.
THROTTLING = {
    "Throttling", "ThrottlingException", "ThrottlingError", "ThrottledException", "RequestThrottled",
    "RequestThrottledException", "TooManyRequestsException", "ProvisionedThroughputExceededException",
    "ProvisionedThroughputExceeded", "RequestLimitExceeded", "BandwidthLimitExceeded", "SlowDown",
    "EC2ThrottledException", "PriorRequestNotComplete",
}  # fmt: skip
# Codes of AWS for what another call may do: with a 400 or 424, as if the request were at fault.
TRANSIENT = {
    "TransactionInProgressException", "TransactionConflictException", "TransactionConflict", "RequestTimeout",
    "RequestTimeoutException", "ModelStreamErrorException",
}  # fmt: skip
# What services say in an answer that had begun with a 200, and the status that it would have had.
STATUSES = {
    # OpenAI, Anthropic, and services with their interfaces
    "rate_limit_error": 429, "rate_limit_exceeded": 429, "slow_down": 429, **dict.fromkeys(USED_UP, 429),
    "server_is_overloaded": 503, "service_unavailable_error": 503, "overloaded_error": 529,
    "api_error": 500, "server_error": 500, "internal_server_error": 500, "timeout_error": 504,
    # Google
    "RESOURCE_EXHAUSTED": 429, "INTERNAL": 500, "UNAVAILABLE": 503, "DEADLINE_EXCEEDED": 504,
    # AWS
    **dict.fromkeys(THROTTLING, 429), **dict.fromkeys(TRANSIENT, 400), "ModelStreamErrorException": 424,
    "ModelTimeoutException": 408, "InternalServerException": 500, "InternalServerError": 500, "InternalFailure": 500,
    "ServiceUnavailableException": 503, "ServiceUnavailable": 503, "ValidationException": 400,
}  # fmt: skip
CODES = ("code", "Code", "type", "error_code", "ErrorCode", "reason", "__type")
STATUS_CODES = ("code", "Code", "type", "status")
OF_AWS = THROTTLING | TRANSIENT
LEAST_ERROR, MOST_STATUS = 400, 599
LONGEST_BODY = 16 * 1024  # characters or bytes of a body that are read
MOST_ERRORS = 100  # in one body
BODY_LENGTH = 300  # characters that are shown; error pages are long, and their first line says the same
XML_CODE = re.compile(r"<Code>(\w+)</Code>")  # of S3


def error_code(body: Any) -> str:
    """The code or type of the error that the body of a response describes; empty if there is none."""
    codes = [*codes_in(parsed(body))]
    return next((code for code in codes if code in USED_UP or code in OF_AWS), next(iter(codes), ""))


def codes_in(body: Any) -> Iterator[str]:
    """The codes and types of the errors in a body that is `parsed`, as they are in the tables above."""
    for outer, error, details in errors_in(body):
        if item(error, "type") == "invalid_request_error" and type(message := item(error, "message")) is str:
            yield from (code for begins, code in MESSAGES.items() if message.startswith(begins))
        yield from map(canonical, _texts([error]))
        for holder in (error, outer, *details):
            yield from map(canonical, _texts(item(holder, name) for name in CODES))
        yield from _reasons(outer)


def canonical(code: str) -> str:
    """A code as it is in the tables: in a stream AWS begins it with a small letter, in JSON it has a namespace."""
    name = code.rpartition("#")[2][:80]
    found = f"{name[:1].upper()}{name[1:]}"
    return found if found in OF_AWS or found in STATUSES else code


def status_in(body: Any) -> int | None:
    """The status that the error in a body has, or would have had."""
    for outer, error, _ in errors_in(body):
        for value in (item(holder, name) for holder in (error, outer) for name in STATUS_CODES):
            if (status := _status_of(value)) is not None:
                return status
    return None


def wait_in(body: Any) -> float | None:
    """The seconds to wait that the error in a body asks for, as Google's `RetryInfo` does; None without any."""
    waits = (_delay(one) for outer, error, details in errors_in(body) for one in (*details, error, outer))
    return next((wait for wait in waits if wait is not None), None)


def parsed(body: Any) -> Any:
    """What JSON in a text or bytes describes; the code of AWS's XML; any other value as it is, and None for no JSON."""
    if issubclass(type(body), dict):
        return body if type(body) is dict else tried(lambda: dict(body))  # that of a client may have code of its own
    if not issubclass(type(body), (str, bytes, bytearray)):
        return body
    text = body_text(body[:LONGEST_BODY])
    if text.lstrip().startswith("<"):
        return {"Code": code[1]} if (code := XML_CODE.search(text)) else None
    return tried(lambda: json.loads(text))


def body_text(body: Any) -> str:
    """A body as text, however the answer of a bulk endpoint holds it; the beginning of a long one.

    Bytes in UTF-8, UTF-16 or UTF-32; binary data and a value that is missing are empty.
    """
    if issubclass(type(body), str):
        return str.__str__(body).removeprefix("\ufeff")
    if issubclass(type(body), (bytes, bytearray, memoryview)):
        data = bytes(body[:LONGEST_BODY])
        text = data.decode(json.detect_encoding(data), "replace")
        return "" if "\0" in text else text
    if is_missing(body):
        return ""
    if not issubclass(type(body), (dict, list, tuple, bool, int, float)):
        return safe_repr(body)
    return "".join(_json(body)) or safe_repr(body)


def is_missing(value: Any) -> bool:
    """Whether it is None, NaN, or what pandas has for a value that is missing."""
    return value is None or type_name(value) in ("NAType", "NaTType") or tried(lambda: bool(value != value)) is True


def excerpt(text: str) -> str:
    """The beginning of a body on one line, without secrets."""
    # Secrets are removed before the text is cut: half a URL does not look like one.
    text = presentable(text[: 20 * BODY_LENGTH])
    text = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return text if len(text) <= BODY_LENGTH else f"{text[: BODY_LENGTH - 3]}..."


def errors_in(body: Any) -> Iterator[tuple[Any, Any, list[Any]]]:
    """The errors that a body describes: what each is in, the error itself, and its details."""
    for outer in islice(body, MOST_ERRORS) if type(body) is list else [body]:
        error = item(outer, "error", "Error")
        details = item(error, "details")
        yield outer, error, details[:MOST_ERRORS] if type(details) is list else [details]


def item(holder: Any, *names: str) -> Any:
    return next((holder[name] for name in names if name in holder), None) if type(holder) is dict else None


def _json(body: Any) -> Iterator[str]:
    """The beginning of a body in JSON, made bit by bit: it may have megabytes."""
    encoder, length = json.JSONEncoder(ensure_ascii=False, default=safe_repr, skipkeys=True), 0
    try:
        for part in encoder.iterencode(body):
            yield part[:LONGEST_BODY]
            if (length := length + len(part)) >= LONGEST_BODY:
                return
    except BaseException:  # a circle, or too deep, or a user's value that raises: as far as it went
        return


def _texts(values: Iterable[Any]) -> Iterator[str]:
    return (value for value in values if type(value) is str)


def _status_of(value: Any) -> int | None:
    if type(value) is str:
        value = int(value) if len(value) == 3 and value.isdecimal() else STATUSES.get(canonical(value))
    return value if type(value) is int and LEAST_ERROR <= value <= MOST_STATUS else None


def _delay(detail: Any) -> float | None:
    if type(detail) is dict:
        return seconds_until(detail.get("retryDelay"), {})
    if detail is None or type(detail) is str:
        return None
    # google-api-core has it as a message of protobuf.
    wait = tried(lambda: detail.retry_delay.ToTimedelta().total_seconds())
    return wait if type(wait) is float else None


def _reasons(outer: Any) -> Iterator[str]:
    """The code of DynamoDB's cancelled transaction, if another call may do it: all of its reasons are such codes."""
    reasons = item(outer, "CancellationReasons")
    codes = {item(one, "Code") for one in reasons[:MOST_ERRORS]} if type(reasons) is list else set()
    codes -= {None, "None"}
    if codes and all(type(code) is str and (code in TRANSIENT or code in THROTTLING) for code in codes):
        yield "TransactionConflict"
