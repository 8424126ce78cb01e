"""Which answers are refusals, and how long their rows wait: whichever client's exception brings them."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from asyncudf._errors.answers import Answer, Refusal, answer_of
from asyncudf._errors.call_outcome import CallOutcome, outcome_of


class AnsweredError(Exception):
    def __init__(self, status: int | None, **headers: Any) -> None:
        super().__init__(status)
        self.status = status
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def wait_of(status: int | None, **headers: Any) -> float | None:
    refusal = answer_of(AnsweredError(status, **headers)).refusal
    return None if refusal is None else refusal.seconds


@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [
        (429, {}, 1.0),
        (429, {"Retry_After": "7"}, 7.0),
        (403, {}, None),
        (403, {"X_RateLimit_Remaining": "0", "X_RateLimit_Reset": "30"}, 30.0),
        (403, {"X_RateLimit_Remaining": "12", "X_RateLimit_Reset": "30"}, None),
        (503, {}, None),
        (529, {}, None),
        (503, {"Retry_After": "7"}, 7.0),
        (529, {"Retry_After": "7"}, 7.0),
        (529, {"Retry_After": "Wed, 21 Oct 2015 07:30:00 GMT", "Date": "Wed, 21 Oct 2015 07:28:00 GMT"}, 120.0),
        (529, {"anthropic_ratelimit_requests_remaining": "0", "anthropic_ratelimit_requests_reset": "9s"}, 9.0),
        (529, {"anthropic_ratelimit_requests_remaining": "49", "anthropic_ratelimit_requests_reset": "9s"}, None),
        (500, {"Retry_After": "7"}, None),
        (301, {"Retry_After": "7"}, None),
        (200, {"Retry_After": "7"}, None),
    ],
)
def test_what_is_a_refusal(status: int, headers: dict[str, str], seconds: float | None) -> None:
    assert wait_of(status, **headers) == seconds


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after_ms": "250", "x_ms_retry_after_ms": "9000", "Retry_After": "9"}, 0.25),
        ({"x_ratelimit_reset_after": "2.5"}, 2.5),
        ({"x_ratelimit_reset_requests": "6m0s"}, 360.0),
        ({"x_ratelimit_reset_tokens": "1h2m3.5s"}, 3723.5),
        ({"x_ratelimit_reset_tokens": "20ms"}, 0.02),
        (
            {
                "x_ratelimit_reset_requests": "2s",
                "x_ratelimit_remaining_requests": "0",
                "x_ratelimit_reset_tokens": "9s",
            },
            2.0,
        ),
        ({"Retry_After": "Wed, 21 Oct 2015 07:30:00 GMT", "Date": "Wed, 21 Oct 2015 07:28:00 GMT"}, 120.0),
        ({"Retry_After": "1445412600", "Date": "Wed, 21 Oct 2015 07:28:00 GMT"}, 120.0),  # the same as a number
        ({"Retry_After": "1m30s"}, 90.0),
    ],
)
def test_the_first_header_that_can_be_read_says_the_wait(headers: dict[str, str], seconds: float) -> None:
    assert wait_of(429, **headers) == pytest.approx(seconds)


DATE = {"Date": "Sun, 29 Nov 2026 10:00:00 GMT"}


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"anthropic_ratelimit_requests_reset": "2026-11-29T10:00:30Z"}, 30.0),
        ({"anthropic_ratelimit_requests_reset": "2026-11-29T12:00:30.5+02:00"}, 30.5),
        ({"anthropic_ratelimit_requests_reset": "2026-11-29T10:00:30"}, 30.0),
        ({"anthropic_ratelimit_requests_reset": "2026-11-29T09:00:00Z"}, 1.0),
        ({"anthropic_ratelimit_requests_reset": "2026-11-29T99:00:00Z"}, 1.0),
        (
            {"anthropic_ratelimit_requests_reset": "soon", "anthropic_ratelimit_tokens_reset": "2026-11-29T10:00:30Z"},
            30.0,
        ),
        (
            {
                "anthropic_ratelimit_requests_remaining": "4",
                "anthropic_ratelimit_requests_reset": "2026-11-29T10:59:00Z",
                "anthropic_ratelimit_input_tokens_remaining": "0",
                "anthropic_ratelimit_input_tokens_reset": "2026-11-29T10:00:30Z",
            },
            30.0,
        ),
        ({"Retry_After": "7", "anthropic_ratelimit_output_tokens_reset": "2026-11-29T10:00:30Z"}, 7.0),
        ({"Retry_After": "2026-11-29T10:00:30Z"}, 30.0),
        ({"x_ratelimit_reset": "2026-11-29T10:00:30Z"}, 30.0),
        ({"x_ratelimit_reset": "Sun, 29 Nov 2026 10:00:30 GMT"}, 30.0),
        ({"RateLimit_Remaining": "0", "RateLimit_Reset": "30"}, 30.0),
    ],
)
def test_a_time_counts_from_the_answers_own(headers: dict[str, str], seconds: float) -> None:
    """Anthropic's wait may stand nowhere else: rows were called again after a second, and refused again."""
    assert wait_of(429, **headers, **DATE) == seconds


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ([("Retry-After", "30"), ("retry-after", "30")], 30.0),
        ([("Retry-After", "1"), ("Retry-After", "30")], 30.0),
        ([("Retry-After", "30, 1")], 30.0),
        ([("Retry-After", "Wed, 21 Oct 2015 07:30:00 GMT, 7"), ("Date", "Wed, 21 Oct 2015 07:28:00 GMT")], 120.0),
        ([("Retry-After", "7, Wed, 21 Oct 2015 07:30:00 GMT"), ("Date", "Wed, 21 Oct 2015 07:28:00 GMT")], 120.0),
        ([("Retry-After", "soon, 7")], 7.0),
        ([("retry-after-ms", "250, 500")], 0.5),
        ([("x-ratelimit-reset-tokens", "1s, 2m0s"), ("x-ratelimit-remaining-tokens", "50, 0")], 120.0),
    ],
)
def test_of_a_header_that_comes_twice_the_longest_wait_counts(headers: list[tuple[str, str]], seconds: float) -> None:
    """As behind a gateway that has limits of its own; most clients make one text of the two. The wait was a second."""
    error = AnsweredError(429)
    error.headers = SimpleNamespace(items=lambda: headers)  # type: ignore[assignment]
    refusal = answer_of(error).refusal
    assert refusal is not None
    assert refusal.wait == seconds


def test_the_headers_may_be_those_of_the_answers_meta_data() -> None:
    """As in the exceptions of Elasticsearch."""
    error = AnsweredError(429)
    error.meta = SimpleNamespace(headers={"retry-after": "17"})  # type: ignore[attr-defined]
    assert answer_of(error).refusal == Refusal(17.0, may_retry=True)


@pytest.mark.parametrize("scale", [1, 1000], ids=["seconds", "milliseconds"])
def test_a_reset_may_be_a_time(scale: int) -> None:
    assert wait_of(429, X_RateLimit_Reset=str((time.time() + 30) * scale)) == pytest.approx(30, abs=2)


@pytest.mark.parametrize("value", ["0", "-5", "", "soon", "nan", "-inf", "9" * 10**6, b"7", [7], None, True, object()])
def test_what_says_nothing_is_a_wait_of_a_second(value: Any) -> None:
    for name in ("Retry_After", "retry_after_ms", "x_ratelimit_reset"):
        assert wait_of(429, **{name: value}) == 1.0


@pytest.mark.parametrize("value", ["inf", "1e308", "9" * 300, float("inf")])
def test_a_wait_that_never_ends_is_a_long_one(value: Any) -> None:
    assert 1e8 < (wait_of(429, Retry_After=value) or 0.0) <= 1e9


def test_a_service_may_forbid_another_call() -> None:
    assert answer_of(AnsweredError(429, **{"x-should-retry": "false"})).refusal == Refusal(None, may_retry=False)
    assert answer_of(AnsweredError(429, **{"x-should-retry": "true"})).refusal == Refusal(None, may_retry=True)


@pytest.mark.parametrize("begins", [str.lower, str.upper])
@pytest.mark.parametrize("status", [None, 200, 400, 429])
def test_a_code_of_aws_is_one_in_either_spelling(status: int | None, begins: Any) -> None:
    def of(code: str) -> Any:
        error = RuntimeError("no")
        metadata = {} if status is None else {"ResponseMetadata": {"HTTPStatusCode": status}}
        error.response = {"Error": {"Code": f"{begins(code[0])}{code[1:]}"}, **metadata}  # type: ignore[attr-defined]
        return answer_of(error)

    assert of("ThrottlingException").refusal == Refusal(None, may_retry=True)
    assert of("ThrottlingException").status == (status if status and status >= 400 else 429)
    assert of("ConditionalCheckFailedException").may_pass is False
    if status != 429:
        assert of("TransactionInProgressException")[1:] == (None, None, None, True)
        assert of("LimitExceededException").refusal is None, "it lasts"


@pytest.mark.parametrize(
    "said",
    [
        "429 Too Many Requests", "status 503", '{"error": {"message": "429"}}',
        '{"error": {"message": "ThrottlingException"}}', "server_is_overloaded", "Please retry after 6 seconds",
    ],
)  # fmt: skip
def test_what_stands_in_a_message_does_not_count(said: str) -> None:
    """It may be the row's own text, which the service repeats."""
    for error in (RuntimeError(said), AnsweredError(400)):
        error.body = error.message = said  # type: ignore[attr-defined]
        answer = answer_of(error)
        assert (answer.refusal, answer.wait, answer.quota, answer.may_pass) == (None, None, None, False)
        assert answer.status in (None, 400)


def test_an_error_is_read_in_a_moment_however_long_its_body_is() -> None:
    error = AnsweredError(429)
    error.body = {"error": {"details": [{"@type": "x"}] * 1_000_000}}  # type: ignore[attr-defined]
    error.details = [{"error": {"code": "x" * 1000}}] * 1_000_000  # type: ignore[attr-defined]
    error.response = SimpleNamespace(_content=b'{"error": ' * 5_000_000)  # type: ignore[attr-defined]
    begun = time.process_time()
    for _ in range(20):
        assert answer_of(error).refusal == Refusal(None, may_retry=True)
    assert time.process_time() - begun < 2.0, "the whole takes a second each time"


def test_googles_wait_may_be_a_message_of_protobuf() -> None:
    """As in the exceptions of google-api-core."""
    from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo

    info = RetryInfo()
    info.retry_delay.FromMilliseconds(34_500)
    error = AnsweredError(429)
    error.details = [ErrorInfo(reason="RATE_LIMIT_EXCEEDED"), info]  # type: ignore[attr-defined]
    assert answer_of(error).wait == 34.5


def test_an_exception_without_a_status_may_say_it() -> None:
    error = AnsweredError(None)
    error.retry_after = 3  # type: ignore[attr-defined]
    assert answer_of(error).refusal == Refusal(3.0, may_retry=True)
    assert answer_of(AnsweredError(None, Retry_After="3")).refusal == Refusal(3.0, may_retry=True)
    assert answer_of(ValueError("of the row")).refusal is None


@pytest.mark.parametrize(
    "details",
    [{"code": "429", "status": "open"}, {"status": 503}, {"type": "INTERNAL"}, [{"field": "a", "type": "api_error"}]],
)
def test_details_of_an_exception_of_the_users_are_of_the_row(details: Any) -> None:
    """A row that was to be rejected waited and was called again, without an end; or it opened the breaker."""
    error = type("InvalidOrderError", (Exception,), {"details": details})()
    assert answer_of(error) == Answer()
    assert outcome_of(error) is CallOutcome.NOTHING
