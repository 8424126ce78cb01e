"""What follows the end of an attempt, as a table: rows in, a decision out, and nothing else is asked."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from asyncudf import RetryStrategy, async_pandas_udf, http
from asyncudf._engine.calls.decisions import Decision, Decisions, Ending, RetryAt, Way
from asyncudf._errors.failure import Failure
from tests.kit.limited import ThrottledError

TWICE = RetryStrategy.fixed_delay(3, 2.0)
DOWN, WRONG = ConnectionError("down"), ValueError("wrong")


def decisions(**options: Any) -> Decisions:
    async def f(x: pa.Array) -> list[int]:
        return x.to_pylist()

    return Decisions(async_pandas_udf("long", **options)(f).options)


def way(attempts: int = 1, deadline: float | None = 100.0, refused: float | None = None) -> Way:
    return Way(attempts, started=0.0, waited=0.0, deadline=deadline, refused=refused)


@pytest.mark.parametrize(
    ("error", "options", "found"),
    [
        (WRONG, {}, Ending.DONE),
        (WRONG, {"retry": TWICE}, RetryAt(2.0)),
        (ThrottledError(5.0), {}, RetryAt(5.0, is_refusal=True)),
        (ThrottledError(5.0), {"retry": TWICE}, RetryAt(5.0, is_refusal=True)),
        (ThrottledError(200.0), {}, Ending.DONE),
        (SystemExit(), {"retry": TWICE}, Ending.DONE),
        (http.ThrottledError(503, retry_after=7.0), {"retry": TWICE}, RetryAt(7.0, is_refusal=True)),
    ],
)
def test_a_row_that_has_failed_by_its_error(error: BaseException, options: dict[str, Any], found: Decision) -> None:
    asked = {"seen": None, "may_split": False, "is_down": False}
    assert decisions(**options).of_failure(Failure(error), way(), 10.0, 0.5, **asked) == found


@pytest.mark.parametrize(
    ("come", "found"),
    [
        (way(2), RetryAt(2.0)),
        (way(3), Ending.DONE),  # the attempts are used up
        (way(deadline=12.0), Ending.DONE),  # the next attempt could not begin in time
        (way(deadline=12.1), RetryAt(2.0)),
        (way(deadline=None), RetryAt(2.0)),
    ],
)
def test_a_row_that_has_failed_by_the_way_it_came(come: Way, found: Decision) -> None:
    asked = {"seen": None, "may_split": False, "is_down": False}
    assert decisions(retry=TWICE).of_failure(Failure(WRONG), come, 10.0, 0.5, **asked) == found


def test_refusals_keep_a_row_without_a_deadline_for_an_hour_from_the_first() -> None:
    asked = {"seen": None, "may_split": False, "is_down": False}
    one = decisions()
    failure = Failure(ThrottledError(5.0))
    assert one.of_failure(failure, way(deadline=None, refused=10.0), 3604.0, 0.5, **asked) == RetryAt(5.0, True)
    assert one.of_failure(failure, way(deadline=None, refused=10.0), 3606.0, 0.5, **asked) is Ending.DONE


@pytest.mark.parametrize(
    ("error", "may_split", "is_down", "found"),
    [
        (WRONG, True, False, Ending.SPLIT),
        (DOWN, True, True, Ending.SPLIT),
        (ThrottledError(200.0), True, False, Ending.DONE),  # halves would be refused as well
        (WRONG, False, False, Ending.DONE),
        (DOWN, False, True, Ending.HOLD),
        (SystemExit(), True, True, Ending.DONE),  # says nothing about its rows, nor about the service
    ],
)
def test_a_call_of_several_rows_is_split_and_a_row_of_a_dead_service_is_held(
    error: BaseException, may_split: bool, is_down: bool, found: Decision
) -> None:
    one = decisions(split_failed=True)
    assert one.of_failure(Failure(error), way(), 10.0, 0.5, seen=None, may_split=may_split, is_down=is_down) is found


def test_a_result_that_is_not_good_enough_is_asked_for_again_and_stands_at_last_for_its_own_row() -> None:
    one = decisions(retry=RetryStrategy.fixed_delay(2, 2.0, retry_if_result=lambda value: value == 0))
    assert one.of_result(1, way(), 10.0, 0.5, is_kept=True) is Ending.DONE
    assert one.of_result(0, way(), 10.0, 0.5, is_kept=True) == RetryAt(2.0)
    assert one.of_result(0, way(2), 10.0, 0.5, is_kept=True) is Ending.UNKEPT
    assert one.of_result(0, way(2), 10.0, 0.5, is_kept=False) is Ending.DONE
    assert decisions().of_result(0, way(), 10.0, 0.5, is_kept=True) is Ending.DONE


def test_the_jitter_is_the_draw() -> None:
    one = decisions(retry=RetryStrategy.exponential_backoff(3, 4.0, 60.0))
    asked = {"seen": None, "may_split": False, "is_down": False}
    drawn = [one.of_failure(Failure(WRONG), way(), 0.0, draw, **asked) for draw in (0.0, 0.5, 1.0)]
    assert drawn == [RetryAt(2.0), RetryAt(3.0), RetryAt(4.0)]
