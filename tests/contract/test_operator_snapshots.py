"""A snapshot holds what has not left, and an operator that is restored from it begins with that."""

from __future__ import annotations

from asyncudf.queues import StreamElement, StreamRecord, Watermark
from asyncudf.testing import ManualFunction, OperatorHarness


class TestSnapshot:
    def test_it_holds_what_is_not_emitted_in_order_also_what_the_queue_had_no_place_for(self) -> None:
        function = ManualFunction()
        with OperatorHarness(function, capacity=2, queue_size=2) as harness:
            harness.put("a", "b")
            for element in ("c", Watermark(5), "d"):  # one by one, and looked at in between
                harness.put(element)
                harness.snapshot()
            harness.complete("b", "B")
            state = harness.snapshot()
            assert state == [
                StreamRecord(("a",)),
                StreamRecord(("b",)),
                StreamRecord(("c",)),
                Watermark(5),
                StreamRecord(("d",)),
            ]
            harness.complete("a", "A")
            harness.complete("c", "C")
            harness.complete("d", "D")
            harness.end()
            assert harness.is_done
            assert harness.output == ["A", "B", "C", Watermark(5), "D"], "a snapshot disturbs nothing"

    def test_restored_rows_are_called_anew_before_new_ones_even_if_they_outnumber_the_queue(self) -> None:
        first, second = ManualFunction(), ManualFunction()
        with OperatorHarness(first, capacity=2, queue_size=2) as harness:
            harness.put(*"abcde")
            harness.complete("b", "B")
            state = harness.snapshot()
        with OperatorHarness(second, capacity=2, queue_size=2) as harness:
            harness.restore(state)
            harness.put("new")
            harness.end()
            for letter in "abcde":
                harness.complete(letter, letter)
            harness.complete("new", "new")
            assert harness.is_done
            assert second.calls == harness.output == ["a", "b", "c", "d", "e", "new"]

    def test_a_restored_row_comes_before_one_that_was_fed_but_not_admitted(self) -> None:
        function = ManualFunction()
        with OperatorHarness(function, capacity=1, queue_size=1) as harness:
            harness.put("a", "new")
            harness.restore([StreamRecord(("restored",))])
            harness.complete("a", "A")
            harness.complete("restored", "R")
            assert function.calls == ["a", "restored", "new"]

    def test_it_holds_the_rows_that_a_call_finds_when_it_takes_one(self) -> None:
        """The row of the call, and those behind it; rows that were done at once have left."""
        states: list[list[StreamElement]] = []

        async def looks(letter: str) -> str:
            if letter == "c":
                states.append(harness.snapshot())
            return letter

        with OperatorHarness(looks) as harness:
            harness.put(*"abcd")
            assert [[element.value for element in state] for state in states] == [[("c",), ("d",)]]
            assert harness.output == [*"abcd"]
