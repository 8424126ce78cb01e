"""A vectorized function answers for each row: a value or an exception, which is that row's alone. Virtual clock."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf import (
    AsyncUDFError,
    CircuitBreaker,
    FatalError,
    OptionError,
    RateLimit,
    ResultError,
    ResultStore,
    RetryStrategy,
    RuntimeContext,
    http,
)
from asyncudf.testing import OperatorHarness, run_rows
from tests.kit.engines import Engine
from tests.kit.figures import figures

ONCE_MORE = RetryStrategy.fixed_delay(2, 10.0)
LONG = RetryStrategy.fixed_delay(9, 1.0)


async def f(x: pa.Array) -> pa.Array:
    return x


class Bulk:
    """A bulk endpoint: each row is answered by `answer(row, how often it was sent)`; `calls` has time and rows."""

    def __init__(self, answer: Callable[[Any, int], Any], seconds: float = 1.0) -> None:
        self.calls: list[tuple[float, list[Any]]] = []
        self.sent: Counter[Any] = Counter()
        self.answer, self.seconds = answer, seconds

    @property
    def rows(self) -> list[list[Any]]:
        return [rows for _, rows in self.calls]

    async def __call__(self, x: pa.Array) -> list[Any]:
        rows = x.to_pylist()
        self.calls.append((asyncio.get_running_loop().time(), rows))
        self.sent.update(rows)
        await asyncio.sleep(self.seconds)
        return [self.answer(row, self.sent[row]) for row in rows]


def refuses(times: int, *bad: Any, error: Callable[[Any], BaseException] = ValueError) -> Callable[[Any, int], Any]:
    """Answers each row with itself, the bad ones after so many errors."""
    return lambda row, sent: error(row) if row in bad and sent <= times else row


class TestEachRowForItself:
    def test_only_the_rows_that_failed_are_sent_again(self) -> None:
        bulk = Bulk(refuses(1, 2, 4))
        assert run_rows(bulk, range(6), batch_size=6, retry=ONCE_MORE) == [0, 1, 2, 3, 4, 5]
        assert bulk.calls == [(0, [0, 1, 2, 3, 4, 5]), (11, [2, 4])]

    def test_good_rows_leave_at_once_and_bad_ones_keep_their_places(self) -> None:
        bulk = Bulk(refuses(1, 2))
        with OperatorHarness(bulk, batch_size=4, retry=ONCE_MORE) as ordered:
            ordered.put(*range(4))
            ordered.advance(1)
            assert ordered.output == [0, 1]
            ordered.advance(11)
            assert ordered.output == [0, 1, 2, 3]
        bulk = Bulk(refuses(1, 2))
        with OperatorHarness(bulk, batch_size=4, retry=ONCE_MORE, output_mode="unordered") as unordered:
            unordered.put(*range(4))
            unordered.advance(12)
            assert unordered.output == [0, 1, 3, 2]

    def test_they_are_gathered_from_several_calls_and_go_before_new_rows(self) -> None:
        bulk = Bulk(refuses(1, 0, 3), seconds=4.0)
        retry = RetryStrategy.fixed_delay(2, 5.0)
        run_rows(bulk, range(16), batch_size=2, capacity=2, retry=retry)
        assert bulk.calls[6:] == [(12, [0, 3]), (12, [12, 13]), (16, [14, 15])]

    def test_rows_that_failed_together_come_back_together_with_jitter_too(self) -> None:
        bulk = Bulk(refuses(1, *range(0, 40, 3)))
        retry = RetryStrategy.exponential_backoff(3, 8.0, 8.0)
        run_rows(bulk, range(40), batch_size=40, retry=retry)
        assert bulk.rows[1:] == [list(range(0, 40, 3))]

    def test_attempts_are_counted_for_each_row(self) -> None:
        """Row 1 fails three times and row 0 twice: with three attempts only row 1 fails for good."""
        bulk = Bulk(lambda row, sent: ValueError(f"{row} for the {sent}. time") if sent <= 2 + row else row)
        got = run_rows(bulk, range(3), batch_size=3, retry=RetryStrategy.fixed_delay(3, 1.0), on_error="capture")
        assert [row["value"] for row in got] == [0, None, None]
        assert [row["error"] and row["error"]["attempts"] for row in got] == [None, 3, 3]
        assert got[1]["error"]["message"] == "1 for the 3. time"

    def test_a_series_of_objects_answers_as_a_list_does(self) -> None:
        async def halves(x: pd.Series) -> pd.Series:
            return pd.Series([ValueError("odd") if value % 2 else value // 2 for value in x], dtype=object)

        assert run_rows(halves, range(4), on_error="null", returnType="int") == [0, None, 1, None]

    def test_a_value_of_another_type_is_the_error_of_its_row(self) -> None:
        calls: list[list[int]] = []

        async def f(x: pd.Series) -> list[int]:
            calls.append(list(x))
            return ["no" if value == 1 and len(calls) == 1 else value for value in x]  # type: ignore[misc]

        assert run_rows(f, range(3), batch_size=3, retry=ONCE_MORE) == [0, 1, 2]
        assert calls == [[0, 1, 2], [1]]

    def test_a_request_whose_rows_fail_in_two_ways_is_one_error(self) -> None:
        """As many errors as attempts at most: it counted once for each type."""

        async def refuses(x: pd.Series) -> list[Any]:
            return [KeyError(value) if value == 1 else ValueError(value) for value in x]

        retry = RetryStrategy.fixed_delay(3, 1.0)
        found = figures(refuses, range(6), batch_size=3, retry=retry, on_error="null", returnType="int")
        assert (found.attempts, found.errors, found.failures) == (6, {"ValueError": 6}, 6)

    def test_rows_count_once_and_calls_as_they_were_made(self) -> None:
        found = figures(Bulk(refuses(1, 2, 4)), range(6), batch_size=6, retry=ONCE_MORE)
        assert (found.rows, found.results, found.failures) == (6, 6, 0)
        assert (found.calls, found.attempts) == (1, 2)
        assert (found.errors, found.retried_rows) == ({"ValueError": 1}, 2)
        assert found.in_flight["mean"] * found.seconds == pytest.approx(2.0)


class TestRefusals:
    def test_a_refused_row_waits_as_long_as_it_was_asked_and_uses_no_attempt(self) -> None:
        bulk = Bulk(refuses(3, 1, error=lambda row: http.ThrottledError(429, retry_after=20.0)))
        assert run_rows(bulk, range(3), batch_size=3, capacity=1, retry=RetryStrategy.fixed_delay(2, 1.0)) == [0, 1, 2]
        assert bulk.calls[1:] == [(21, [1]), (42, [1]), (63, [1])]

    def test_few_refused_rows_do_not_pause_all_calls(self) -> None:
        bulk = Bulk(refuses(1, *range(0, 1000, 10), error=lambda row: http.ThrottledError(429, retry_after=60.0)))
        run_rows(bulk, range(1000), batch_size=10, capacity=1)
        assert bulk.calls[99][0] == 99, "no new row waited"

    def test_calls_that_are_refused_in_most_rows_do(self) -> None:
        bulk = Bulk(refuses(1, *range(400), error=lambda row: http.ThrottledError(429, retry_after=30.0)))
        run_rows(bulk, range(800), batch_size=10, capacity=1)
        assert sum(when < 30 for when, _ in bulk.calls) < 30, "they paused"

    def test_under_a_rate_limit_few_rows_wait_for_others_while_there_are_new_ones(self) -> None:
        """100 calls of 10 rows, one of which is refused once: they come back in about ten calls, and not in 100."""
        bulk = Bulk(refuses(1, *range(0, 1000, 10)), seconds=0.05)
        retry = RetryStrategy.fixed_delay(2, 0.1)
        assert run_rows(bulk, range(1000), batch_size=10, retry=retry, rate_limit=RateLimit(10, burst=1)) == [
            *range(1000)
        ]
        assert len(bulk.calls) <= 125

    def test_they_wait_a_second_at_most_where_no_other_rows_come(self) -> None:
        bulk = Bulk(refuses(1, 1), seconds=1.0)
        options: dict[str, Any] = {"rate_limit": RateLimit(10), "retry": RetryStrategy.fixed_delay(2, 2.0)}
        with OperatorHarness(bulk, batch_size=4, **options) as harness:
            harness.put(*range(4))
            harness.advance(5.2)
            assert harness.output == [0, 1, 2, 3]
            assert [rows for _, rows in bulk.calls] == [[0, 1, 2, 3], [1]]

    @pytest.mark.parametrize("early", [0.0, 0.0009])
    def test_while_they_wait_the_event_loop_goes_on(self, early: float) -> None:
        """A slot whose call had ended turned without a pause; and timers of uvloop come up to a millisecond early."""
        bulk = Bulk(refuses(1, 1))
        engine = Engine(bulk, batch_size=3, batch_linger=0.1, rate_limit=RateLimit(10), retry=LONG, capacity=2)
        call_later = engine.loop.call_later
        engine.loop.call_later = lambda delay, *what, **how: call_later(max(0.0, delay - early), *what, **how)  # type: ignore[method-assign]
        engine.feed([1, 2, 3])
        engine.loop.call_at(1.5, engine.feed, [4])
        engine.loop.call_at(9.0, engine.end)
        engine.run()
        assert bulk.rows == [[1, 2, 3], [4], [1]]
        assert bulk.calls[-1][0] == pytest.approx(3.0, abs=0.01)


class TestDeadlines:
    def test_rows_of_one_call_have_deadlines_of_their_own(self) -> None:
        """First called at 0.5 and at 8 s, again together from 15.5 to 23.5: row 0 has until 20.5 s, row 1 until 28."""
        calls: list[list[int]] = []
        retry = RetryStrategy(wait=lambda state: state.outcome.exception().args[0])

        async def f(x: pa.Array) -> list[Any]:
            rows = x.to_pylist()
            calls.append(rows)
            await asyncio.sleep(4.0 * len(rows))
            return [row if len(rows) == 2 else ValueError(3.5 if row else 11.0) for row in rows]

        with OperatorHarness(f, batch_size=2, batch_linger=0.5, timeout=20.0, on_timeout=-1, retry=retry) as harness:
            harness.put(0)
            harness.advance(7.5)
            harness.put(1)
            harness.advance(12.9)
            assert harness.output == []
            harness.advance(0.2)
            assert harness.output == [-1], "a late row does not wait for the others"
            harness.advance(3)
            assert harness.output == [-1, 1]
        assert calls == [[0], [1], [0, 1]]

    def test_the_call_of_rows_that_are_all_late_is_cancelled(self) -> None:
        ended: list[str] = []

        async def f(x: pa.Array) -> list[Any]:
            if len(x) == 3:
                await asyncio.sleep(1)
                return [0, ValueError(), ValueError()]
            try:
                await asyncio.sleep(1e6)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise
            return []

        assert run_rows(f, range(3), batch_size=3, timeout=60.0, on_timeout=-1, retry=ONCE_MORE) == [0, -1, -1]
        assert ended == ["cancelled"]

    def test_an_attempt_whose_rows_are_all_late_has_no_limit_any_more(self) -> None:
        """The rows are late at 8 s, in an attempt that began at 5 s and may take until 9 s: its limit found no call."""
        bulk = Bulk(refuses(1, 0, 1), seconds=1.0)

        async def f(x: pa.Array) -> list[Any]:
            if bulk.calls:
                await asyncio.sleep(1e6)
            return await bulk(x)

        options: dict[str, Any] = {"timeout": 8.0, "attempt_timeout": 4.0, "on_timeout": -1, "batch_size": 2}
        with OperatorHarness(f, retry=RetryStrategy.fixed_delay(2, 4.0), **options) as harness:
            harness.put(0, 1)
            harness.advance(8.1)
            assert harness.output == [-1, -1]
            harness.advance(2)
            assert not harness.is_done


class TestBesideOtherOptions:
    def test_a_store_keeps_what_was_answered_and_equal_rows_share_it(self) -> None:
        bulk = Bulk(refuses(1, 2))
        store = ResultStore.executor(max_bytes=2**24)
        rows = [0, 1, 2, 2, 0]
        got = run_rows(bulk, rows, batch_size=5, retry=ONCE_MORE, store=store, returnType="int", version="1")
        assert got == rows
        assert bulk.rows == [[0, 1, 2], [2]]
        assert run_rows(bulk, rows, batch_size=5, store=store, returnType="int", version="1") == rows
        assert len(bulk.calls) == 2

    def test_rows_of_a_dead_service_are_sent_again_after_its_outage(self) -> None:
        """From 20 to 40 s every item of a call answers 503: no row fails, though there is no retry."""

        async def f(x: pa.Array) -> list[Any]:
            await asyncio.sleep(1)
            is_down = 20 <= asyncio.get_running_loop().time() < 40
            return [http.RetryableError(503) if is_down else row for row in x.to_pylist()]

        breaker = CircuitBreaker(window=4, open_for=5.0)
        assert run_rows(f, range(400), batch_size=5, capacity=1, breaker=breaker) == list(range(400))

    def test_a_result_that_is_not_good_enough_is_asked_for_again_beside_errors(self) -> None:
        bulk = Bulk(lambda row, sent: ValueError(row) if row == 1 and sent == 1 else (row, sent))
        retry = RetryStrategy.fixed_delay(3, 1.0, retry_if_result=lambda rows: any(sent < 2 for _, sent in rows))
        assert run_rows(bulk, range(3), batch_size=3, retry=retry) == [(0, 2), (1, 2), (2, 2)]

    def test_a_used_up_quota_in_one_row_ends_the_job(self) -> None:
        class QuotaError(Exception):
            status_code, code = 429, "insufficient_quota"

        bulk = Bulk(refuses(9, 1, error=lambda row: QuotaError()))
        with pytest.raises(FatalError, match="quota"):
            run_rows(bulk, range(3), on_error="null", retry=LONG)

    def test_each_row_keeps_its_idempotency_key(self) -> None:
        keys: list[tuple[list[int], list[str], int]] = []

        async def f(x: pa.Array, context: RuntimeContext) -> list[Any]:
            rows = x.to_pylist()
            keys.append((rows, context.idempotency_keys, context.attempt_number))
            return [ValueError() if row in (1, 2) and len(keys) == 1 else row for row in rows]

        assert run_rows(f, range(4), batch_size=4, retry=ONCE_MORE) == [0, 1, 2, 3]
        (_, first, one), (rows, again, two) = keys
        assert rows == [1, 2]
        assert again == first[1:3]
        assert len({*first}) == 4
        assert (one, two) == (1, 2)


class TestSplitFailed:
    @pytest.mark.parametrize("bad", [0, 37, 63])
    def test_the_row_to_blame_is_found_with_two_calls_for_each_halving(self, bad: int) -> None:
        calls: list[list[int]] = []

        async def f(x: pa.Array) -> pa.Array:
            calls.append(x.to_pylist())
            await asyncio.sleep(1)
            if bad in x.to_pylist():
                raise ValueError("one of these rows is bad")
            return x

        got = run_rows(f, range(64), batch_size=64, split_failed=True, on_error="null")
        assert got == [None if row == bad else row for row in range(64)]
        assert len(calls) == 1 + 2 * math.log2(64)

    def test_attempts_that_are_left_come_first(self) -> None:
        sizes: list[int] = []

        async def f(x: pa.Array) -> pa.Array:
            sizes.append(len(x))
            if 1 in x.to_pylist():
                raise ValueError
            return x

        got = run_rows(f, range(4), batch_size=4, split_failed=True, on_error="null", retry=ONCE_MORE)
        assert got == [0, None, 2, 3]
        assert sizes == [4, 4, 2, 2, 1, 1]

    def test_under_raise_the_error_names_the_row_to_blame(self) -> None:
        async def f(x: pa.Array) -> pa.Array:
            if 5 in x.to_pylist():
                raise ValueError("bad")
            return x

        with pytest.raises(AsyncUDFError, match=r"for the input \(5,\)"):
            run_rows(f, range(8), batch_size=8, split_failed=True)

    def test_an_answer_of_the_wrong_length_is_no_rows_fault(self) -> None:
        calls = 0

        async def f(x: pa.Array) -> list[int]:
            nonlocal calls
            calls += 1
            return [1]

        with pytest.raises(ResultError, match="f returned 1 results for 8 rows; give one for each row"):
            run_rows(f, range(8), batch_size=8, split_failed=True)
        assert calls == 1

    def test_a_plain_function_is_refused(self) -> None:
        async def f(x: int) -> int:
            return x

        with pytest.raises(OptionError, match="split_failed=True is for vectorized functions; f takes one row a call"):
            run_rows(f, [1], split_failed=True)


def test_one_row_is_left_of_a_call_that_failed_as_a_whole() -> None:
    """It has no attempt left that retries would make, and the other rows of the call have: it is called alone."""
    calls = []

    async def fails_twice(x: pa.Array) -> list[Any]:
        rows = x.to_pylist()
        calls.append(rows)
        await asyncio.sleep(10.0 if rows == [3] else 1.0)
        if len(rows) > 1:
            raise ConnectionError
        return (
            rows if calls.count(rows) + sum(len(one) > 1 for one in calls) > 2 or rows == [3] else [ConnectionError()]
        )

    again = RetryStrategy.fixed_delay(3, 1.5)
    options: dict[str, Any] = {"batch_size": 2, "batch_linger": 0.01, "capacity": 1, "split_failed": True}
    engine = Engine(fails_twice, returnType="long", retry=again, **options)
    for row, time in ((1, 0.0), (2, 3.0), (3, 4.0)):
        engine.loop.call_at(time, engine.feed, [row])
    engine.loop.call_at(5.0, engine.end)
    engine.run()
    assert calls == [[1], [1], [2], [3], [1, 2], [1], [2]]
    assert engine.output == [1, 2, 3]


def test_the_answer_for_the_only_row_of_a_call_is_what_the_service_has_done() -> None:
    """Such as that for a row which is called again alone: it was taken for a good answer of the service."""
    bulk = Bulk(lambda row, sent: ConnectionError() if sent < 4 else row)
    breaker = CircuitBreaker(window=4, open_for=5.0)
    assert run_rows(bulk, range(6), returnType="long", batch_size=1, capacity=1, breaker=breaker) == list(range(6))
    assert [time for time, _ in bulk.calls[:5]] == [0.0, 1.0, 2.0, 3.0, 9.0]
    refuses = Bulk(lambda row, sent: http.ThrottledError(429, retry_after=1.0))
    with pytest.raises(FatalError, match="has refused all calls for 120 s"):
        run_rows(refuses, range(6), returnType="long", batch_size=1, timeout=100.0, on_error="null")


def weighed(**options: Any) -> list[list[str]]:
    calls: list[list[str]] = []

    async def f(x: pa.Array) -> pa.Array:
        calls.append(x.to_pylist())
        await asyncio.sleep(1)
        return x

    texts = ["a" * size for size in options.pop("sizes")]
    assert run_rows(f, texts, **options) == texts
    return calls


class TestWeight:
    @pytest.mark.parametrize(
        ("sizes", "calls", "options"),
        [
            ([4, 4, 4, 1, 9, 2], [[4, 4], [4, 1], [9], [2]], {}),
            ([1, 50, 1, 1], [[1], [50], [1, 1]], {}),
            ([1, 1, 1, 0, 0], [[1, 1], [1, 0], [0]], {"batch_size": 2}),
        ],
        ids=["up to the weight", "a heavier one alone", "rows are a bound too"],
    )
    def test_a_call_takes_rows_up_to_the_weight(
        self, sizes: list[int], calls: list[list[int]], options: dict[str, Any]
    ) -> None:
        made = weighed(sizes=sizes, batch_weight=len, max_batch_weight=9, **options)
        assert [[*map(len, call)] for call in made] == calls

    def test_rows_that_are_called_again_are_weighed_too(self) -> None:
        bulk = Bulk(refuses(1, "aaaa", "bbbb", "cccc"))
        run_rows(bulk, ["aaaa", "bbbb", "cccc"], batch_weight=len, max_batch_weight=9, retry=ONCE_MORE)
        assert bulk.rows == [["aaaa", "bbbb"], ["cccc"]] * 2

    def test_a_row_that_cannot_be_weighed_again_takes_no_other_row_out_of_its_place(self) -> None:
        """The row behind it was called in its name, and had no result within its time."""

        async def upper(texts: pd.Series) -> list[Any]:
            answers = [OSError(text) if text in "ab" and text not in asked else text.upper() for text in texts]
            asked.extend(texts)
            return answers

        def weight(text: str) -> float:
            if text == "a" and "a" in asked:
                raise ValueError("no weight")
            return 1.0

        asked: list[str] = []
        options: dict[str, Any] = {"batch_weight": weight, "max_batch_weight": 9, "retry": ONCE_MORE}
        assert run_rows(upper, ["a", "b", "c"], returnType="string", on_error="null", **options) == [None, "B", "C"]

    def test_a_row_held_back_by_the_weight_is_sent_after_the_linger_too(self) -> None:
        bulk = Bulk(refuses(0))
        with OperatorHarness(bulk, batch_weight=len, max_batch_weight=5, batch_linger=3.0) as harness:
            harness.put("aaa", "bbb")
            assert bulk.rows == [["aaa"]]
            harness.advance(3.1)
            assert bulk.rows == [["aaa"], ["bbb"]]

    @pytest.mark.parametrize("weight", [-1, math.nan, math.inf, "3", None, True])
    def test_what_is_no_weight_ends_the_job_and_is_named(self, weight: Any) -> None:
        with pytest.raises(FatalError, match="batch_weight must give a number of 0 or more, not"):
            weighed(sizes=[1], batch_weight=lambda text: weight, max_batch_weight=9, on_error="null")

    def test_a_weight_that_raises_is_the_error_of_its_row(self) -> None:

        got = run_rows(f, [4, 0, 2], batch_weight=lambda x: 8 / x, max_batch_weight=9, on_error="null")
        assert got == [4, None, 2]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"batch_weight": len}, "batch_weight needs max_batch_weight"),
            ({"max_batch_weight": 9}, "max_batch_weight needs batch_weight"),
            ({"batch_weight": 3, "max_batch_weight": 9}, "batch_weight must be a plain function"),
            ({"batch_weight": len, "max_batch_weight": 0}, "max_batch_weight must be a number of more than 0"),
            ({"batch_weight": len, "max_batch_weight": math.nan}, "max_batch_weight must be a number of more than 0"),
        ],
    )
    def test_bad_options_are_named(self, options: dict[str, Any], message: str) -> None:

        with pytest.raises(OptionError, match=message):
            run_rows(f, ["a"], **options)


class TestBadAnswers:
    @pytest.mark.parametrize(
        ("answer", "said"),
        [
            (ValueError("bad"), r"f returned ValueError\('bad'\) \(ValueError\): raise it"),
            (ValueError, r"f returned <class 'ValueError'> \(type\): this is a class; raise it"),
        ],
        ids=["an exception", "a class"],
    )
    @pytest.mark.parametrize("declared", ["int", None])
    def test_an_exception_that_a_function_of_one_row_returns(self, answer: Any, said: str, declared: Any) -> None:
        async def f(x: int) -> Any:
            return answer

        with pytest.raises(ResultError, match=said):
            run_rows(f, [1], returnType=declared)


@given(
    rows=st.integers(1, 60),
    size=st.integers(1, 12),
    capacity=st.integers(1, 4),
    attempts=st.integers(1, 4),
    mode=st.sampled_from(["ordered", "unordered"]),
    split=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_each_row_has_its_own_outcome_and_none_is_called_after_it_succeeded(
    rows: int, size: int, capacity: int, attempts: int, mode: Any, split: bool, seed: int
) -> None:
    rng = random.Random(seed)
    sent: Counter[int] = Counter()
    good: Counter[int] = Counter()

    async def f(x: pa.Array) -> Sequence[Any]:
        batch = x.to_pylist()
        assert len(batch) <= size
        sent.update(batch)
        await asyncio.sleep(rng.random() * 5)
        if rng.random() < 0.2:
            raise OSError("the whole call")
        answers = [ValueError("this row") if rng.random() < 0.3 else row for row in batch]
        good.update(row for row in answers if isinstance(row, int))
        return answers

    retry = RetryStrategy.exponential_backoff(attempts, 0.5, 4.0)
    got = run_rows(
        f, range(rows), batch_size=size, capacity=capacity, retry=retry, on_error="capture", output_mode=mode,
        split_failed=split,
    )  # fmt: skip
    values = [row["value"] for row in got if row["error"] is None]
    failed = [row["error"]["attempts"] for row in got if row["error"] is not None]
    assert len(got) == rows
    assert len({*values}) == len(values)
    assert good == dict.fromkeys(values, 1), "what succeeded is emitted, and was not called again"
    assert all(count >= attempts if split else count == attempts for count in failed)
    if mode == "ordered":
        assert values == sorted(values)
    if not split:
        assert max(sent.values()) <= attempts
