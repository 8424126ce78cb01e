"""What becomes of a call's error: it fails the task, is null, or is captured, and no other row is lost."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import pytest

from asyncudf import AsyncUDFError, FatalError, ResultError, async_pandas_udf
from asyncudf.testing import run_rows
from tests.kit.functions import FIXED, Flaky


class TestErrors:
    async def fails(self, x: int) -> int:
        if x == 3:
            raise ValueError("bad row")
        await asyncio.sleep(x)
        return x

    def test_raise_names_function_attempt_partition_and_input_and_has_the_users_exception_as_cause(self) -> None:
        with pytest.raises(AsyncUDFError) as caught:
            run_rows(self.fails, [1, 2, 3])
        assert str(caught.value) == "fails failed in attempt 1, partition 0, for the input (3,): ValueError: bad row"
        assert isinstance(caught.value.__cause__, ValueError)

    def test_raise_names_the_other_policies_once_below_the_message(self) -> None:
        with pytest.raises(AsyncUDFError) as caught:
            run_rows(self.fails, [3, 3])
        assert caught.value.__notes__ == [
            (
                'With on_error="null", "capture" or "dead_letter" the job goes on without such rows; '
                "a sink with dead_letters=."
            )
        ]

    @pytest.mark.parametrize("fatal", [SystemExit(3), FatalError("the key has expired")], ids=["exit", "fatal"])
    def test_what_fails_the_task_under_every_policy_names_none(self, fatal: BaseException) -> None:
        with pytest.raises(AsyncUDFError) as caught:
            run_rows(Flaky(9, fatal), ["a"])
        assert not hasattr(caught.value, "__notes__")

    @pytest.mark.parametrize("policy", ["raise", "null", "capture"])
    def test_a_function_may_fail_the_task_itself(self, policy: str) -> None:
        """`asyncudf.FatalError` was named in messages and could not be imported."""
        calls = []

        async def call(x: int) -> int:
            calls.append(x)
            async with asyncio.TaskGroup():
                raise FatalError("the key has expired")

        async def alone(x: int) -> int:
            calls.append(x)
            raise FatalError("the key has expired")

        with pytest.raises(FatalError, match=r"^alone failed in attempt 1, .*\(1,\): the key has expired$") as caught:
            run_rows(alone, [1], on_error=policy, retry=FIXED)
        assert [frame.name for frame in traceback.extract_tb(caught.value.__cause__.__traceback__)][-1] == "alone"  # type: ignore[union-attr]
        with pytest.raises(AsyncUDFError, match="FatalError: the key has expired"):
            run_rows(call, [2], on_error=policy, retry=FIXED)
        assert calls == [1, 2], "neither was tried again"

    def test_raise_fails_at_once_not_after_the_rows_before(self) -> None:
        ended = []

        async def call(x: int) -> int:
            try:
                await asyncio.sleep(100 if x == 0 else 1)
            finally:
                ended.append((x, asyncio.get_running_loop().time()))
            raise ValueError

        with pytest.raises(AsyncUDFError, match="ValueError"):
            run_rows(call, [0, 1])
        assert ended == [(1, 1.0), (0, 1.0)], "the slow call was cancelled and awaited when the other failed"

    def test_capture_gives_a_value_or_the_error(self) -> None:
        assert run_rows(Flaky(1), ["a"], on_error="capture", retry=None) == [
            {
                "value": None,
                "error": {"type": "ValueError", "message": "busy", "attempts": 1, "elapsed": 0.0, "status": None},
            }
        ]
        retried = run_rows(Flaky(9), ["a"], on_error="capture", retry=FIXED)
        assert retried[0]["error"] == {
            "type": "ValueError",
            "message": "busy",
            "attempts": 3,
            "elapsed": 2.0,
            "status": None,
        }
        assert run_rows(Flaky(0), ["a"], on_error="capture") == [{"value": 0.0, "error": None}]

    @pytest.mark.parametrize("policy", ["null", "capture"])
    @pytest.mark.parametrize("fatal", [SystemExit(3), KeyboardInterrupt()])
    def test_system_exit_fails_the_task_under_every_policy(self, policy: str, fatal: BaseException) -> None:
        with pytest.raises(AsyncUDFError, match=type(fatal).__name__):
            run_rows(Flaky(9, fatal), ["a"], on_error=policy)

        async def later(x: int) -> int:
            await asyncio.sleep(1)
            raise fatal

        with pytest.raises(AsyncUDFError, match=type(fatal).__name__):
            run_rows(later, [1], on_error=policy)

    def test_a_function_that_cannot_take_the_columns_is_refused_before_it_runs(self) -> None:
        async def two(a: int, b: int) -> int:
            return a + b

        class Client:
            async def ask(self, a: int) -> int:
                return a

        with pytest.raises(TypeError, match=r"not 1 of them; give it the method of an object: .*\(object\.ask\)"):
            run_rows(Client.ask, [1])
        with pytest.raises(TypeError, match=r"two takes the columns \(a, b\), not 3 of them"):
            run_rows(two, [(1, 2, 3)])


class TestCancelledError:
    """PyFlink's `except Exception` misses CancelledError, and the row is never completed."""

    async def cancelled(self, x: int) -> int:
        if x == 2:
            raise asyncio.CancelledError
        await asyncio.sleep(x)
        return x

    def test_pyflink_swallows_it_one_raised_by_the_users_code_is_an_error_like_any_other(self) -> None:
        assert run_rows(self.cancelled, [1, 2, 3], on_error="null") == [1, None, 3]
        with pytest.raises(AsyncUDFError, match="CancelledError"):
            run_rows(self.cancelled, [1, 2, 3])

    def test_a_task_that_cancels_itself_spoils_only_its_own_row(self) -> None:
        async def call(x: int) -> int:
            if x == 2:
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            if x == 3:
                await asyncio.sleep(0)
            return x

        assert run_rows(call, [1, 2, 3, 4], on_error="null", capacity=1) == [1, 2, 3, 4]

    def test_a_worker_that_is_cancelled_between_two_calls_is_replaced(self) -> None:
        async def call(x: int) -> int:
            task = asyncio.current_task()
            assert task is not None
            if x == 0:
                asyncio.get_running_loop().call_soon(task.cancel)  # comes when the worker pauses after a burst
            return x

        assert run_rows(call, range(1000), capacity=1) == list(range(1000))


def test_a_result_error_follows_the_policy() -> None:
    @async_pandas_udf("int", on_error="capture")
    async def call(x: int) -> Any:
        return float(x)

    got = run_rows(call, [1])
    assert got[0]["error"]["type"] == "ResultError"
    with pytest.raises(ResultError, match=r"call returned 1.0 \(float\): declared int32"):
        run_rows(call, [1], on_error="raise")
