"""A quota that is used up ends the job with its first call, under every policy; results in the store are kept."""

from __future__ import annotations

from typing import Any

import pytest

from asyncudf import AsyncUDFError, CircuitBreaker, RetryStrategy
from asyncudf.testing import run_rows
from tests.kit.errors import task_fails
from tests.kit.functions import KINDS, of_kind
from tests.kit.stores import SlowStore

POLICIES = pytest.mark.parametrize("on_error", ["raise", "null", "capture", "dead_letter"])


class RateLimitError(Exception):
    """As the client of OpenAI raises it."""

    status_code = 429
    code = "insufficient_quota"


class Service:
    """Takes so many calls."""

    def __init__(self, quota: int) -> None:
        self.left, self.calls = quota, 0

    async def __call__(self, x: int) -> int:
        self.calls += 1
        if self.calls > self.left:
            raise RateLimitError("all of it is used")
        return x


@POLICIES
@pytest.mark.parametrize(
    "more",
    [{}, {"breaker": CircuitBreaker()}, {"job_capacity": 5}, {"retry": RetryStrategy.exponential_backoff(5, 1, 60)}],
    ids=["plain", "breaker", "gates", "retry"],
)
def test_it_ends_the_job_at_once(on_error: Any, more: Any) -> None:
    """200 rows made 17,683 calls in 17,673 s, and were NULL then."""
    service = Service(20)
    with task_fails() as caught:
        run_rows(service, range(200), capacity=10, on_error=on_error, **more)
    said = str(caught.value)
    assert "a quota of the service is used up (insufficient_quota)" in said
    assert "RateLimitError: all of it is used" in said
    assert "for the input (20,)" in said
    assert service.calls <= 20 + 10
    assert isinstance(caught.value.__cause__, RateLimitError)


def test_it_does_without_waits_that_are_ignored() -> None:
    """With `max_retry_after=0` a refusal is an error like others; this is none."""
    service = Service(0)
    with task_fails("used up"):
        run_rows(service, range(200), on_error="null", retry=RetryStrategy.fixed_delay(5, 1.0, max_retry_after=0))
    assert service.calls <= 100


def test_a_run_with_a_new_quota_goes_on_from_the_store() -> None:
    store, service = SlowStore(put=0.5), Service(20)
    with pytest.raises(AsyncUDFError, match="used up"):
        run_rows(service, range(50), capacity=5, on_error="null", store=store)
    again = Service(1000)
    assert run_rows(again, range(50), capacity=5, on_error="null", store=store) == [*range(50)]
    assert again.calls == 30


@pytest.mark.parametrize("kind", [*KINDS, "def"])
def test_so_does_that_of_any_function(kind: str) -> None:
    async def refused(x: int) -> None:
        raise RateLimitError

    def plain(x: int) -> int:
        raise RateLimitError

    function, clock = (plain, "real") if kind == "def" else (of_kind(kind, refused), "virtual")
    with task_fails("used up"):
        run_rows(function, [1, 2], on_error="null", clock=clock, returnType="long")


def test_the_message_leaves_out_the_input_and_the_answer_of_the_service() -> None:
    from asyncudf import http

    async def ask(x: str) -> str:
        error = http.PermanentError(429, body="you asked for my secret")
        error.code = "insufficient_quota"
        raise error

    with task_fails() as caught:
        run_rows(ask, ["my secret"], on_error="null", redact=True)
    assert "secret" not in str(caught.value)
