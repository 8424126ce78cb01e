"""Which answers say that a quota is used up, so that no further call will be accepted: whichever client raises them."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from asyncudf._errors.answers import answer_of
from asyncudf.http import PermanentError, ThrottledError, is_retryable


def answered(status: int | None, **attributes: Any) -> Exception:
    error = RuntimeError("no")
    error.__dict__.update(attributes, status_code=status)
    return error


def raised_from(cause: BaseException) -> Exception:
    error = ValueError("of the function")
    error.__cause__ = cause
    return error


def by_httpx(status: int, body: Any) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://localhost")
    response = httpx.Response(status, content=json.dumps(body), request=request)
    return httpx.HTTPStatusError("no", request=request, response=response)


def by_botocore(code: Any) -> Exception:
    response = {"Error": {"Code": code, "Message": "m"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    return answered(None, response=response)


def by_our_session(code: str) -> Exception:
    error = PermanentError(429)
    error.code = code
    return error


OPENAI = {"error": {"message": "m", "type": "insufficient_quota", "param": None, "code": None}}
SPENT = {
    "type": "error",
    "error": {"type": "rate_limit_error", "details": {"error_code": "enforced_spend_limit_reached"}},
}
GOOGLE = {
    "error": {"code": 403, "status": "PERMISSION_DENIED", "details": [{"@type": "x"}, {"reason": "BILLING_DISABLED"}]}
}
USED_UP = {
    "openai, by its code": answered(429, code="insufficient_quota", type="insufficient_quota"),
    "openai, by its type": answered(429, code=None, type="insufficient_quota"),
    "openai, by its body": answered(400, body={"code": "billing_hard_limit_reached"}),
    "the whole body": answered(429, body=OPENAI),
    "anthropic, by its type": answered(402, type="billing_error", error_code=None),
    "anthropic, by its code": answered(429, type="rate_limit_error", error_code="contract_spend_limit_reached"),
    "anthropic, by its body": answered(429, body=SPENT),
    "google-genai": answered(403, details=GOOGLE),
    "google-genai, a list": answered(403, details=[GOOGLE]),
    "google-api-core": answered(403, reason="BILLING_DISABLED"),
    "botocore": by_botocore("SubscriptionRequiredException"),
    "httpx": by_httpx(429, OPENAI),
    "asyncudf.http": by_our_session("credit_balance_exhausted"),
    "a text": answered(403, body='{"error": "insufficient_quota"}'),
    "a cause": raised_from(answered(429, code="insufficient_quota")),
    "one of a group": ExceptionGroup("two", [ValueError(), answered(429, code="insufficient_quota")]),
}


@pytest.mark.parametrize("case", USED_UP)
def test_a_quota_that_is_used_up_is_not_worth_another_call(case: str) -> None:
    error = USED_UP[case]
    assert answer_of(error).quota is not None
    assert not is_retryable(error)


def unread() -> httpx.HTTPStatusError:
    async def body() -> Any:
        yield b"{}"

    request = httpx.Request("POST", "http://localhost")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(429, content=body(), request=request))


OTHERS = {
    "a rate": answered(429, code="rate_limit_exceeded", type="requests"),
    "no code": answered(429),
    "no status": answered(None, code="insufficient_quota"),
    "no error": answered(200, code="insufficient_quota"),
    "Google's rate": answered(429, details={"error": {"details": [{"reason": "RATE_LIMIT_EXCEEDED"}]}}),
    "a quota of resources": by_botocore("ServiceQuotaExceededException"),
    "a code that is no text": by_botocore(["OptInRequired"]),
    "a row that has such a code": answered(422, body={"detail": [{"input": {"code": "insufficient_quota"}}]}),
    "a message with the word": answered(429, body={"error": {"message": "insufficient_quota"}}),
    "no JSON": answered(429, body="<html>insufficient_quota</html>"),
    "half of it": answered(429, body='{"error": {"code": "insufficient_quota"'),
    "a body that was not read": unread(),
    "an odd body": answered(429, body=SimpleNamespace(error={"code": "insufficient_quota"}), details=[None, 3, [{}]]),
}


@pytest.mark.parametrize("case", OTHERS)
def test_others_are_what_they_were(case: str) -> None:
    assert answer_of(OTHERS[case]).quota is None


def test_an_error_of_python_is_not_looked_at() -> None:
    assert answer_of(ValueError("insufficient_quota")).quota is None
    assert answer_of(ThrottledError(429)).quota is None
