"""What is written to a tag leaves there with its row, or not at all."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asyncudf import (
    DEAD_LETTERS,
    LATENCIES,
    AsyncFunction,
    AsyncStream,
    AsyncUDFError,
    OutputTag,
    ProcessFunction,
    ResultError,
    ResultFuture,
    RetryStrategy,
    RuntimeContext,
)
from asyncudf.testing import run_rows, run_stream
from tests.kit.chains import column, numbers

LOG = OutputTag("log", "n int")


class TestSideOutputs:
    def test_a_process_function_gives_rows_and_side_rows(self) -> None:
        class Split(ProcessFunction):
            def process_element(self, value: Any, context: Any, collector: Any) -> None:
                if value["n"] % 2:
                    context.output(LOG, {"n": value["n"]})
                else:
                    collector.collect(value)
                    collector.collect({"n": -value["n"]})

        got = run_stream(lambda s: _with_side(s.process(Split()), LOG), numbers(5), "n int")
        assert column(got["main"], "n") == [0, 0, 2, -2, 4, -4]
        assert column(got["side"], "n") == [1, 3]

    def test_side_rows_keep_the_place_of_their_row(self) -> None:
        async def slow_first(n: int, context: RuntimeContext) -> int:
            context.output(LOG, {"n": n})
            await asyncio.sleep(10 - n)
            return n

        for wait, expected in (("ordered_wait", [0, 1, 2]), ("unordered_wait", [2, 1, 0])):
            got = run_stream(lambda s, w=wait: _with_side(getattr(s, w)(slow_first), LOG), numbers(3), "n int")  # type: ignore[misc]
            assert column(got["side"], "n") == column(got["main"], "n") == expected

    def test_an_async_function_writes_through_its_context_also_at_its_deadline(self) -> None:
        class Lookup(AsyncFunction):
            async def open(self, context: RuntimeContext) -> None:
                self.context = context

            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                self.context.output(LOG, {"n": value["n"]})
                if value["n"] == 1:
                    await asyncio.sleep(100)
                result_future.complete([value["n"]])

            def timeout(self, value: Any, result_future: ResultFuture) -> None:
                self.context.output(LOG, {"n": -1})
                result_future.complete([])

        got = run_stream(
            lambda s: _with_side(s.ordered_wait(Lookup(), "n", returnType="int", timeout=5), LOG), numbers(3), "n int"
        )
        assert column(got["main"], "n") == [0, 2]
        assert column(got["side"], "n") == [0, -1, 2]

    def test_a_value_that_does_not_fit_its_tag_is_the_rows_error(self) -> None:
        async def wrong(n: int, context: RuntimeContext) -> int:
            context.output(LOG, {"n": "one"})
            return n

        with pytest.raises(ResultError, match=r"side output 'log' returned 'one' \(str\) in field 'n'"):
            run_stream(lambda s: _with_side(s.ordered_wait(wrong), LOG), numbers(1), "n int")

    @pytest.mark.parametrize("pause", [0, 1])
    def test_what_a_call_has_written_is_dropped_when_its_result_does_not_fit(self, pause: int) -> None:
        async def writes(n: int, context: RuntimeContext) -> Any:
            context.output(LOG, {"n": n})
            if pause:
                await asyncio.sleep(pause)
            return "text" if n == 1 else n

        got = run_stream(
            lambda s: _with_side(s.ordered_wait(writes, returnType="int", on_error="null"), LOG), numbers(3), "n int"
        )
        assert column(got["main"], "writes") == [0, None, 2]
        assert column(got["side"], "n") == [0, 2]

    @pytest.mark.parametrize("tag", ["log", DEAD_LETTERS, LATENCIES])
    def test_only_own_tags_can_be_written(self, tag: Any) -> None:
        async def writes(n: int, context: RuntimeContext) -> int:
            context.output(tag, {"n": n})
            return n

        with pytest.raises(AsyncUDFError, match="OutputTag"):
            run_rows(writes, [1])

    def test_dead_letters_hold_the_input_and_what_went_wrong(self) -> None:
        async def picky(n: int) -> int:
            await asyncio.sleep(1)
            if n == 1:
                raise ValueError("not 1")
            return n

        async def pickier(picky: int) -> int:
            if picky == 2:
                raise KeyError("2")
            return picky

        def chain(s: AsyncStream) -> Any:
            retry = RetryStrategy.fixed_delay(2, 1.0)
            stream = s.ordered_wait(picky, on_error="dead_letter", retry=retry)
            return _with_side(stream.ordered_wait(pickier, on_error="dead_letter"), DEAD_LETTERS)

        got = run_stream(chain, numbers(4), "n int")
        assert column(got["main"], "n") == [0, 3]
        one, two = sorted(got["side"], key=lambda row: row["n"])
        error = {"type": "ValueError", "message": "not 1", "attempts": 2, "elapsed": 3.0, "status": None}
        assert one == {"n": 1, "picky": None, "error": {**error, "function": "picky", "partition": 0}}
        assert (two["n"], two["picky"], two["error"]["function"]) == (2, 2, "pickier")

    def test_run_rows_tells_side_rows_and_dead_letters(self) -> None:
        async def picky(n: int, context: RuntimeContext) -> int:
            context.output(LOG, {"n": n})
            if n == 1:
                raise ValueError("not 1")
            return n

        sides: dict[OutputTag, list[Any]] = {}
        assert run_rows(picky, [0, 1], on_error="dead_letter", side_outputs=sides) == [0]
        assert sides[LOG] == [{"n": 0}]
        assert sides[DEAD_LETTERS][0]["input"] == (1,)
        assert sides[DEAD_LETTERS][0]["error"]["message"] == "not 1"


def _with_side(stream: AsyncStream, tag: OutputTag) -> dict[str, AsyncStream]:
    return {"main": stream, "side": stream.side_output(tag)}


def test_operators_of_the_same_name_are_told_apart_from_the_head_to_the_tail() -> None:
    def same(row: dict[str, Any]) -> bool:
        return True

    got = run_stream(
        lambda s: _with_side(s.filter(same).filter(same), LATENCIES), numbers(3), "n int", latency_interval=1.0
    )
    assert column(got["side"], "operator") == ["source", "same", "same 2"]
