"""What one attempt of a row sees: its own arguments, its own context, and time that begins with its first step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pandas as pd
import pytest

from asyncudf import (
    AsyncFunction,
    AsyncStream,
    AsyncTimeoutError,
    AsyncUDFError,
    OutputTag,
    ResultFuture,
    RetryStrategy,
    RuntimeContext,
)
from asyncudf.testing import VirtualClockLoop, run_rows, run_stream

TWICE = RetryStrategy.fixed_delay(attempts=2, delay=1.0)
AT_ONCE_AND_LATER = pytest.mark.parametrize("suspends", [False, True], ids=["at once", "later"])


def loop() -> VirtualClockLoop:
    running = asyncio.get_running_loop()
    assert isinstance(running, VirtualClockLoop)
    return running


async def maybe(suspends: bool) -> None:
    if suspends:
        await asyncio.sleep(0)


class TestArguments:
    @AT_ONCE_AND_LATER
    @pytest.mark.parametrize(
        ("value", "edit"),
        [
            (["a", "b"], lambda value: value.pop()),
            ({"k": ["a"]}, lambda value: value["k"].append("x")),
            ([{"k": 1}], lambda value: value[0].clear()),
            ({"k": {"inner": 1}}, lambda value: value["k"].pop("inner")),
        ],
        ids=["list", "list in a map", "struct in a list", "struct in a struct"],
    )
    def test_a_retried_call_sees_its_arguments_as_they_were(
        self, value: Any, edit: Callable[[Any], Any], suspends: bool
    ) -> None:
        seen = []

        async def call(value: Any) -> None:
            seen.append(repr(value))
            edit(value)
            await maybe(suspends)
            raise ConnectionError

        assert run_rows(call, [value], retry=TWICE, on_error="null") == [None]
        assert seen == [repr(value)] * 2, "and neither did the row itself change"

    def test_so_does_an_async_function_whose_row_is_a_dict(self) -> None:
        """An `AsyncFunction` that edits its row sees it whole in the next attempt."""
        seen = []

        class Edits(AsyncFunction):
            async def async_invoke(self, value: dict[str, Any], result_future: ResultFuture) -> None:
                seen.append(dict(value))
                del value["n"]
                raise ConnectionError

        rows = [{"n": 1}]
        assert run_stream(
            lambda stream: stream.ordered_wait(Edits(), returnType="m int", retry=TWICE, on_error="null"), rows, "n int"
        ) == [{"n": 1, "m": None}]
        assert seen == [{"n": 1}] * 2

    def test_so_does_a_vectorized_function(self) -> None:
        """Lists inside a vector are edited in place as well."""
        seen = []

        async def call(values: pd.Series) -> pd.Series:
            seen.append(repr(list(values)))
            values[0].append("x")
            raise ConnectionError

        assert run_rows(call, [["a"], ["b"]], retry=TWICE, on_error="null") == [None, None]
        assert seen == ["[['a'], ['b']]"] * 2

    def test_so_does_an_operator_in_mid_chain_and_its_answer_at_the_deadline(self) -> None:
        """Values that another operator has added are protected too, and `on_timeout` gets them whole."""

        async def tags(n: int) -> list[str]:
            return ["a", str(n)]

        async def edits(tags: list[str]) -> str:
            tags.clear()
            await asyncio.sleep(7)
            raise ConnectionError

        def build(stream: AsyncStream) -> AsyncStream:
            return stream.ordered_wait(tags).ordered_wait(
                edits, timeout=10, retry=TWICE, on_timeout=lambda tags: "+".join(tags)
            )

        assert run_stream(build, [{"n": 1}], "n int") == [{"n": 1, "tags": ["a", "1"], "edits": "a+1"}]

    def test_the_message_shows_the_input_as_it_was(self) -> None:
        async def call(value: list[int]) -> None:
            value.clear()
            raise ConnectionError

        with pytest.raises(Exception, match=r"for the input \(\[1, 2\],\)"):
            run_rows(call, [[1, 2]], retry=TWICE)

    @AT_ONCE_AND_LATER
    @pytest.mark.parametrize("retry", [None, TWICE])
    def test_a_row_keeps_its_idempotency_key(self, retry: RetryStrategy | None, suspends: bool) -> None:
        keys = []

        async def call(value: list[str], context: RuntimeContext) -> None:
            keys.append(context.idempotency_key)
            value.clear()
            await maybe(suspends)
            keys.append(context.idempotency_key)
            raise ConnectionError

        run_rows(call, [["a", "b"], ["c"]], retry=retry, on_error="null", capacity=1)
        assert len(set(keys)) == 2, "one for each row"
        assert len(keys) == (4 if retry is None else 8)


class TestContext:
    @AT_ONCE_AND_LATER
    def test_a_task_that_outlives_its_row_sees_that_row(self, suspends: bool) -> None:
        seen: dict[str, list[Any]] = {}
        tasks = []

        async def later(city: str, context: RuntimeContext) -> None:
            seen[city] = [context.idempotency_key, context.attempt_number]
            await asyncio.sleep(2.5)
            seen[city] += [context.idempotency_key, context.attempt_number]

        async def call(city: str, context: RuntimeContext) -> str:
            tasks.append(asyncio.create_task(later(city, context)))
            await maybe(suspends)
            if city == "wait":
                await asyncio.sleep(10)
            return city

        cities = ["Oslo", "Rome", "Paris", "wait"]
        assert run_rows(call, cities, capacity=1) == cities
        assert {city: found[:2] for city, found in seen.items()} == {city: found[2:] for city, found in seen.items()}
        assert len({found[0] for found in seen.values()}) == 4

    def test_it_sees_its_own_attempt(self) -> None:
        """A task that runs on when its attempt has failed does not see the number of the next one."""
        seen = []

        async def later(context: RuntimeContext) -> None:
            await asyncio.sleep(1.5)
            seen.append(context.attempt_number)

        tasks = []

        async def call(city: str, context: RuntimeContext) -> str:
            tasks.append(asyncio.create_task(later(context)))
            if context.attempt_number == 1:
                raise ConnectionError
            await asyncio.sleep(5)
            return city

        assert run_rows(call, ["Oslo"], retry=TWICE, capacity=1) == ["Oslo"]
        assert seen == [1, 2]

    def test_what_it_writes_to_a_side_output_does_not_leave_with_another_row(self) -> None:
        tag = OutputTag("log", "city string")
        tasks = []

        async def later(city: str, context: RuntimeContext) -> None:
            await asyncio.sleep(0.5)
            context.output(tag, {"city": city})

        async def call(city: str, context: RuntimeContext) -> str:
            context.output(tag, {"city": f"{city} itself"})
            tasks.append(asyncio.create_task(later(city, context)))
            await asyncio.sleep(1 if city == "Rome" else 0)
            return city

        sides: dict[OutputTag, list[Any]] = {}
        assert run_rows(call, ["Oslo", "Rome"], capacity=1, side_outputs=sides) == ["Oslo", "Rome"]
        assert sides == {tag: [{"city": "Oslo itself"}, {"city": "Rome itself"}, {"city": "Rome"}]}


class TestTime:
    def test_the_deadline_runs_from_the_first_step(self) -> None:
        async def call(n: int) -> None:
            loop().block(0.75)
            await asyncio.sleep(10)

        got = run_rows(call, [1], timeout=1.0, on_error="capture")
        assert got[0]["error"]["type"] == "AsyncTimeoutError"
        assert got[0]["error"]["elapsed"] == pytest.approx(1.0)

    @AT_ONCE_AND_LATER
    def test_so_does_elapsed(self, suspends: bool) -> None:
        """`elapsed` of an error counts from the first step, not from when a slot was free."""

        async def call(n: int) -> None:
            loop().block(0.75)
            await maybe(suspends)
            raise ConnectionError

        got = run_rows(call, [1, 2], on_error="capture", capacity=1)
        assert [row["error"]["elapsed"] for row in got] == [0.75, 0.75]

    def test_and_what_remains(self) -> None:
        """`context.remaining()` counts from the first step as well."""

        async def call(n: int, context: RuntimeContext) -> Any:
            loop().block(0.75)
            remaining = context.remaining()
            await asyncio.sleep(0.25)
            return remaining, context.remaining()

        assert run_rows(call, [1, 2], timeout=2.0, capacity=1) == [(1.25, 1.0)] * 2

    @AT_ONCE_AND_LATER
    def test_a_result_that_comes_after_its_deadline_is_timed_out_and_its_neighbours_are_not(
        self, suspends: bool
    ) -> None:
        async def call(n: int) -> int:
            await maybe(suspends)
            if n % 3 == 1:
                loop().block(0.2)
            return n

        got = run_rows(call, range(300), timeout=0.05, on_error="null", capacity=1)
        assert got == [None if n % 3 == 1 else n for n in range(300)]

    def test_so_is_an_error_that_comes_too_late(self) -> None:
        """An exception after the deadline is a timeout, as a result is."""

        async def call(n: int) -> int:
            loop().block(0.2)
            raise ConnectionError

        with pytest.raises(AsyncTimeoutError, match=r"no result within 0.05 s"):
            run_rows(call, [1], timeout=0.05)

    @pytest.mark.parametrize("kind", ["generator", "AsyncFunction", "vectorized"])
    def test_so_is_one_of_any_other_kind_of_function(self, kind: str) -> None:
        """A late result of a generator, an `AsyncFunction` or a vectorized function is a timeout too."""

        async def generator(n: int) -> AsyncIterator[int]:
            loop().block(0.2)
            yield n

        async def vectorized(n: pd.Series) -> pd.Series:
            loop().block(0.2)
            return n

        class Function(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                loop().block(0.2)
                result_future.complete([value])

        functions = {"generator": generator, "AsyncFunction": Function(), "vectorized": vectorized}
        assert run_rows(functions[kind], [1, 2], timeout=0.05, on_error="null") == [None, None]

    @AT_ONCE_AND_LATER
    def test_an_attempt_that_comes_back_too_late_is_tried_again(self, suspends: bool) -> None:
        calls = []

        async def call(n: int) -> int:
            calls.append(n)
            await maybe(suspends)
            loop().block(0.2 if len(calls) == 1 else 0.01)
            return n

        assert run_rows(call, [7], attempt_timeout=0.05, retry=TWICE) == [7]
        assert calls == [7, 7]

    def test_a_late_row_gets_its_own_answer(self) -> None:
        async def call(n: int) -> int:
            loop().block(0.2)
            return n

        assert run_rows(call, [1, 2], timeout=0.05, on_timeout=lambda n: -n) == [-1, -2]

    @pytest.mark.parametrize("kind", ["coroutine", "failing", "generator", "AsyncFunction"])
    def test_a_deadline_is_kept_beside_calls_that_block_one_after_another(self, kind: str) -> None:
        """Deadlines, timers and the mailbox waited until all the rows of a batch had blocked the loop."""

        async def coroutine(n: int) -> Any:
            if n == 0:
                await asyncio.sleep(100)
            loop().block(0.05)
            return n

        async def failing(n: int) -> Any:
            await coroutine(n)
            raise ConnectionError

        async def generator(n: int) -> AsyncIterator[Any]:
            yield await coroutine(n)

        class Function(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete([await coroutine(value)])

        function: Any = {
            "coroutine": coroutine, "failing": failing, "generator": generator, "AsyncFunction": Function()
        }[kind]  # fmt: skip
        times = []
        run_rows(
            function,
            range(200),
            timeout=1.0,
            capacity=2,
            on_error="null",
            on_timeout=lambda n: times.append(loop().time()),
        )
        assert times == [pytest.approx(1.0, abs=0.11)], "of row 0: two blocking calls later at most"


def test_an_attempt_of_a_function_of_any_number_of_values_gets_its_arguments_as_they_were() -> None:
    row = [0]

    async def edits(*values: list[int]) -> int:
        values[0].append(1)
        if len(values[0]) < 4:
            raise ValueError("again")
        return len(values[0])

    with pytest.raises(AsyncUDFError, match=r"attempt 3, partition 0, for the input \(\[0\],\)"):
        run_rows(edits, [row], retry=RetryStrategy.fixed_delay(attempts=3, delay=1.0))
    assert row == [0]
