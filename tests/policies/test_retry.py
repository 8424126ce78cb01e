"""A retry strategy that cannot work is refused where it is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from asyncudf import OptionError, RetryStrategy

FIXED_DELAY, BACKOFF = RetryStrategy.fixed_delay, RetryStrategy.exponential_backoff


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: FIXED_DELAY(0, 1.0), r"attempts must be at least 1 .*, not 0"),
        (lambda: FIXED_DELAY(True, 1.0), r"attempts must be at least 1 .*, not True"),
        (lambda: FIXED_DELAY(3, -1.0), r"delay must be seconds \(0 or more\) .*, not -1.0"),
        (lambda: FIXED_DELAY(3, float("inf")), r"delay must be seconds \(0 or more\) .*, not inf"),
        (lambda: FIXED_DELAY(3, 1.0, retry_on="ValueError"), "retry_on must be exception types .*, not 'ValueError'"),  # type: ignore[arg-type]
        (lambda: FIXED_DELAY(3, 1.0, retry_if_result=5), "retry_if_result must be a plain function .*, not 5"),  # type: ignore[arg-type]
        (lambda: BACKOFF(3, 5.0, 1.0), r"maximum must be at least initial \(5.0 s\), not 1.0 s"),
        (lambda: BACKOFF(3, 1.0, 5.0, multiplier=0.5), "multiplier must be at least 1, not 0.5"),
        (lambda: RetryStrategy(stop=3), "stop must be one of tenacity's stop objects, not 3"),  # type: ignore[arg-type]
    ],
)
def test_a_retry_strategy_that_cannot_work_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        make()
