"""Each number of a limit has a largest value: a larger one failed in a worker, or was no limit, and nobody said so."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from asyncudf import AdaptiveCapacity, Budget, CircuitBreaker, KeyCapacity, OptionError, RateLimit, async_pandas_udf

MANY = 10**30
LARGE, IN_FLIGHT = "1,000,000,000,000,000", "1,000,000,000"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: KeyCapacity(MANY, by="tenant"), f"calls must be at most {IN_FLIGHT}, not 1000000"),
        (lambda: async_pandas_udf(job_capacity=MANY), f"job_capacity must be at most {IN_FLIGHT}, not 1000000"),
        (lambda: async_pandas_udf(capacity=MANY), f"capacity must be at most {IN_FLIGHT}, not 1000000"),
        (lambda: AdaptiveCapacity(1, MANY), f"maximum must be at most {IN_FLIGHT}, not 1000000"),
        (lambda: async_pandas_udf(max_calls=MANY), f"max_calls must be at most {LARGE}, not 1000000"),
        (lambda: async_pandas_udf(max_failures=MANY), f"max_failures must be at most {LARGE} rows, not 1000000"),
        (lambda: RateLimit(MANY), f"permits must be at most {LARGE}, not 1000000"),
        (lambda: RateLimit(5e-324), "permits must be at least one in a hundred years, not 5e-324 in 1 s"),
        (
            lambda: RateLimit(1, per=1e10),
            r"per must be at most a hundred years \(3,155,760,000 seconds\), not 1",
        ),
        (lambda: RateLimit(1, burst=MANY), f"burst must be at most {LARGE}, not 1000000"),
        (lambda: RateLimit(1, cost=1e300), f"cost must be at most {LARGE}, not 1e.300"),
        (lambda: RateLimit.from_headers("openai", start=MANY), f"start of a rate limit must be at most {LARGE}"),
        (
            lambda: RateLimit.from_headers("openai", start=1, at_most=MANY),
            f"at_most of a rate limit must be at most {LARGE}",
        ),
        (lambda: Budget(MANY), f"amount of a budget must be at most {LARGE}, not 1000000"),
        (lambda: Budget(1, reserve=1e300), f"reserve must be at most {LARGE}, not 1e.300"),
        (lambda: Budget(1, per=1e300), "per of a budget must be at most a hundred years"),
        (lambda: CircuitBreaker(window=MANY), "window must be at most 100,000, not 1000000"),
        (lambda: CircuitBreaker(open_for=timedelta(days=100_000)), "open_for must be at most a hundred years"),
        (lambda: CircuitBreaker(max_open=1e300), "max_open must be at most a hundred years"),
    ],
)
def test_a_larger_number_is_an_error_that_says_the_largest(make: Callable[[], Any], message: str) -> None:
    pytest.importorskip("msgspec")  # for limits by key
    with pytest.raises(OptionError, match=f"^{message}"):
        make()
