"""What one attempt of a row sees: its own arguments, its own context, and time that begins with its first step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from asyncudf import AsyncStream, AsyncUDFError, OutputTag, RetryStrategy, RuntimeContext
from asyncudf.testing import VirtualClockLoop, run_rows, run_stream
from tests.kit.functions import of_kind

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

    def test_so_does_an_operator_in_mid_chain_and_its_answer_at_the_deadline(self) -> None:
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

    def test_so_does_what_remains(self) -> None:
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

    @pytest.mark.parametrize("kind", ["coroutine", "failing", "generator", "AsyncFunction"])
    def test_a_deadline_is_kept_beside_calls_that_block_one_after_another(self, kind: str) -> None:
        """Deadlines, timers and the mailbox waited until all the rows of a batch had blocked the loop."""
        times = []

        async def blocks(n: int) -> int:
            if n == 0:
                await asyncio.sleep(100)
            loop().block(0.05)
            return n // (kind != "failing")

        note = lambda n: times.append(loop().time())  # noqa: E731
        options: dict[str, Any] = {"timeout": 1.0, "capacity": 2, "on_error": "null", "on_timeout": note}
        run_rows(of_kind(kind, blocks), range(200), **options)
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


def test_attempts_that_are_late_together_end_in_the_order_in_which_they_began() -> None:
    """They ended in the order of a set, so no two runs were the same."""
    ended = []

    async def hangs(row: int) -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            ended.append(row)

    run_rows(hangs, range(50), capacity=50, attempt_timeout=1.0, on_error="null")
    assert ended == [*range(50)]
