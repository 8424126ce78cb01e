"""Operators open from the tail to the head, and all are closed, however the chain ends."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from asyncudf import AsyncFunction, AsyncStream, AsyncUDFError, ProcessFunction, ResultFuture, RuntimeContext
from asyncudf.testing import run_stream
from tests.kit.chains import numbers


class Witness(AsyncFunction):
    """Notes when it is opened and closed."""

    def __init__(self, name: str, log: list[str], fails: str = "") -> None:
        self.name, self.log, self.fails = name, log, fails

    async def open(self, context: RuntimeContext) -> None:
        self.log.append(f"open {self.name}")
        if self.fails == "open":
            raise RuntimeError("no way in")

    async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
        try:
            await asyncio.sleep(1 if self.fails != "never" else 1000)
        except asyncio.CancelledError:
            self.log.append(f"cancelled {self.name}")
            raise
        if self.fails == "call":
            raise RuntimeError("no answer")
        result_future.complete([{self.name: 1}])

    async def close(self) -> None:
        self.log.append(f"close {self.name}")


class Plain(ProcessFunction):
    def __init__(self, log: list[str], fails: str = "") -> None:
        self.log, self.fails = log, fails

    async def open(self, context: Any) -> None:
        self.log.append("open plain")
        if self.fails == "open":
            raise RuntimeError("no way in")

    def process_element(self, value: Any, context: Any, collector: Any) -> None:
        if self.fails == "call":
            raise RuntimeError("no answer")
        collector.collect(value)

    def close(self) -> None:
        self.log.append("close plain")


class TestEnds:
    def chain(self, log: list[str], a: str = "", plain: str = "", b: str = "") -> Any:
        def build(s: AsyncStream) -> AsyncStream:
            stream = s.ordered_wait(Witness("a", log, a), "n", returnType="a int", capacity=1)
            stream = stream.process(Plain(log, plain))
            return stream.ordered_wait(Witness("b", log, b), "n", returnType="b int")

        return build

    def test_operators_open_from_the_tail_to_the_head_and_close_from_the_head_to_the_tail(self) -> None:
        log: list[str] = []
        run_stream(self.chain(log), numbers(3), "n int")
        assert log == ["open b", "open plain", "open a", "close a", "close plain", "close b"]

    @pytest.mark.parametrize("where", ["a", "plain", "b"])
    def test_a_failing_row_ends_all_operators_each_before_it_is_closed(self, where: str) -> None:
        log: list[str] = []
        with pytest.raises(AsyncUDFError, match="no answer") as caught:
            run_stream(self.chain(log, **{where: "call"}), numbers(9), "n int")
        cancelled = [line for line in log if line.startswith("cancelled")]  # calls that were in progress just then
        assert [line for line in log if line not in cancelled] == [
            *["open b", "open plain", "open a"],
            *["close a", "close plain", "close b"],
        ]
        assert all(log.index(line) < log.index(line.replace("cancelled", "close")) for line in cancelled)
        assert isinstance(caught.value.__cause__, RuntimeError)
        assert {"a": "Witness", "plain": "Plain", "b": "Witness"}[where] in str(caught.value)

    @pytest.mark.parametrize(("where", "opened"), [("b", ["b"]), ("plain", ["b", "plain"]), ("a", ["b", "plain", "a"])])
    def test_what_was_opened_is_closed_when_one_cannot_be(self, where: str, opened: list[str]) -> None:
        log: list[str] = []
        with pytest.raises(AsyncUDFError, match="no way in"):
            run_stream(self.chain(log, **{where: "open"}), numbers(3), "n int")
        assert log == [f"open {name}" for name in opened] + [f"close {name}" for name in reversed(opened)]

    def test_a_row_error_deep_in_the_chain_says_where_once(self) -> None:
        def broken(row: dict[str, Any]) -> bool:
            return bool(1 / row["n"])

        with pytest.raises(AsyncUDFError, match="broken failed") as caught:
            run_stream(lambda s: s.map(lambda row: row).filter(broken), numbers(1), "n int")
        assert (
            str(caught.value)
            == "broken failed, partition 0, for the input {'n': 0}: ZeroDivisionError: division by zero"
        )


def test_a_catch_all_around_the_collector_cannot_lose_a_row_that_failed_further_down() -> None:
    class Careless(ProcessFunction):
        def process_element(self, value: Any, context: Any, collector: Any) -> None:
            with contextlib.suppress(Exception):
                collector.collect(value)

    def broken(row: dict[str, Any]) -> bool:
        raise ValueError("no")

    with pytest.raises(AsyncUDFError, match="broken failed"):
        run_stream(lambda s: s.process(Careless()).filter(broken), numbers(2), "n int")
