"""One contract for both queues, then what each promises on its own."""

from __future__ import annotations

import pickle
import weakref
from typing import Any

import pytest

from asyncudf.queues import (
    LatencyMarker,
    OrderedStreamElementQueue,
    StreamElementQueue,
    StreamRecord,
    UnorderedStreamElementQueue,
    Watermark,
    WatermarkStatus,
)
from tests.kit.outputs import Emitted


def drain(queue: StreamElementQueue, output: Emitted | None = None) -> list[Any]:
    """Emit everything that may leave; the values of records, markers as they are."""
    output = output or Emitted()
    while queue.has_completed_elements():
        queue.emit_completed_element(output)
    return output.values


@pytest.fixture(params=[OrderedStreamElementQueue, UnorderedStreamElementQueue])
def make_queue(request: pytest.FixtureRequest) -> type[StreamElementQueue]:
    return request.param  # type: ignore[no-any-return]


class TestContract:
    def test_an_entry_leaves_only_when_complete(self, make_queue: type[StreamElementQueue]) -> None:
        queue = make_queue(2)
        entry = queue.try_put(StreamRecord("a"))
        assert entry is not None
        assert not entry.is_done
        assert drain(queue) == []
        entry.complete(["A"])
        assert entry.is_done
        assert queue.has_completed_elements()
        assert drain(queue) == ["A"]

    def test_results_carry_the_timestamp_and_origin_of_their_row(self, make_queue: type[StreamElementQueue]) -> None:
        queue, output = make_queue(1), Emitted()
        entry = queue.try_put(StreamRecord("a", 7, "row 0"))
        assert entry is not None
        entry.complete(["A", "B"])
        queue.emit_completed_element(output)
        assert output.elements == [StreamRecord("A", 7), StreamRecord("B", 7)]
        assert [record.origin for record in output.elements] == ["row 0", "row 0"]

    @pytest.mark.parametrize("results", [[], [1], [1, 2, 3]])
    def test_one_entry_of_n_results_emits_n_records_at_once(
        self, make_queue: type[StreamElementQueue], results: list[int]
    ) -> None:
        queue, output = make_queue(1), Emitted()
        entry = queue.try_put(StreamRecord("a"))
        assert entry is not None
        entry.complete(results)
        queue.emit_completed_element(output)
        assert output.values == results
        assert queue.is_empty()

    def test_the_first_completion_wins_and_a_later_one_is_ignored(self, make_queue: type[StreamElementQueue]) -> None:
        queue = make_queue(1)
        entry = queue.try_put(StreamRecord("a"))
        assert entry is not None
        entry.complete(["timeout"])
        entry.complete(["too late"])
        assert drain(queue) == ["timeout"]
        entry.complete(["much too late"])
        assert drain(queue) == []
        assert len(queue) == 0

    @pytest.mark.parametrize("results", ["text", None, {"a": 1}, 5])
    def test_a_string_is_never_emitted_letter_by_letter(
        self, make_queue: type[StreamElementQueue], results: Any
    ) -> None:
        queue = make_queue(1)
        entry = queue.try_put(StreamRecord("a"))
        assert entry is not None
        with pytest.raises(TypeError, match="list or tuple"):
            entry.complete(results)
        assert not entry.is_done
        entry.complete(["A"])
        entry.complete(results)
        assert drain(queue) == ["A"], "a later completion is ignored, whatever it is"

    def test_a_full_queue_takes_nothing_until_something_is_emitted(self, make_queue: type[StreamElementQueue]) -> None:
        queue = make_queue(2)
        first, _ = queue.try_put(StreamRecord("a")), queue.try_put(StreamRecord("b"))
        assert first is not None
        assert queue.try_put(StreamRecord("c")) is None
        first.complete(["A"])
        assert queue.try_put(StreamRecord("c")) is None, "complete is not yet emitted: it still has its place"
        assert drain(queue) == ["A"]
        assert queue.try_put(StreamRecord("c")) is not None
        assert queue.try_put(StreamRecord("d")) is None

    def test_watermarks_count_against_the_capacity(self, make_queue: type[StreamElementQueue]) -> None:
        queue = make_queue(2)
        queue.try_put(StreamRecord("a"))
        assert queue.try_put(Watermark(1)) is not None
        assert len(queue) == 2
        assert queue.try_put(StreamRecord("b")) is None
        assert queue.try_put(Watermark(2)) is None

    def test_a_watermark_behind_nothing_leaves_at_once(self, make_queue: type[StreamElementQueue]) -> None:
        queue = make_queue(1)
        entry = queue.try_put(Watermark(3))
        assert entry is not None
        assert entry.is_done
        assert drain(queue) == [Watermark(3)]

    def test_every_marker_keeps_its_place(self, make_queue: type[StreamElementQueue]) -> None:
        markers = [Watermark(1), WatermarkStatus.IDLE, LatencyMarker(1.0, "map", 0), WatermarkStatus.ACTIVE]
        queue = make_queue(10)
        entry = queue.try_put(StreamRecord("a"))
        assert entry is not None
        for marker in markers:
            queue.try_put(marker)
        assert drain(queue) == []
        entry.complete(["A"])
        assert drain(queue) == ["A", *markers]

    def test_values_are_the_elements_not_yet_emitted_in_arrival_order(
        self, make_queue: type[StreamElementQueue]
    ) -> None:
        elements = [StreamRecord("a", 1), StreamRecord("b", 2), Watermark(2), StreamRecord("c", 3)]
        queue = make_queue(4)
        entries = [queue.try_put(element) for element in elements]
        assert entries[1] is not None
        assert entries[3] is not None
        entries[1].complete(["B"])
        entries[3].complete(["C"])
        assert queue.values() == elements
        entries[0].complete(["A"])  # type: ignore[union-attr]
        queue.emit_completed_element(Emitted())
        assert len(queue.values()) == 3

    def test_emitting_from_an_empty_queue_does_nothing(self, make_queue: type[StreamElementQueue]) -> None:
        queue, output = make_queue(1), Emitted()
        queue.emit_completed_element(output)
        assert output.values == []
        assert queue.is_empty()
        assert queue.values() == []

    @pytest.mark.parametrize("capacity", [0, -1])
    def test_a_capacity_below_one_is_refused(self, make_queue: type[StreamElementQueue], capacity: int) -> None:
        with pytest.raises(ValueError, match=f"at least 1, not {capacity}"):
            make_queue(capacity)

    @pytest.mark.parametrize("capacity", [1.5, "10", None, True])
    def test_a_capacity_that_is_no_whole_number_is_refused(
        self, make_queue: type[StreamElementQueue], capacity: Any
    ) -> None:
        with pytest.raises(ValueError, match="whole number"):
            make_queue(capacity)

    def test_a_bare_value_is_refused(self, make_queue: type[StreamElementQueue]) -> None:
        with pytest.raises(TypeError, match="StreamRecord"):
            make_queue(1).try_put("a")  # type: ignore[arg-type]

    def test_capacity_is_told(self, make_queue: type[StreamElementQueue]) -> None:
        """An operator asks the queue for its bound."""
        assert make_queue(7).capacity == 7

    def test_records_that_are_complete_take_their_place_in_line(self, make_queue: type[StreamElementQueue]) -> None:
        queue = make_queue(4)
        queue.try_put(Watermark(1))
        assert queue.places == 3
        queue.put_completed([StreamRecord("a", 5), StreamRecord("b", 6)], ["A", "B"])
        assert (queue.places, len(queue)) == (1, 3)
        assert queue.values() == [Watermark(1), StreamRecord("a", 5), StreamRecord("b", 6)]
        output = Emitted()
        assert drain(queue, output) == [Watermark(1), "A", "B"]
        assert [element.timestamp for element in output.elements] == [1, 5, 6]

    @pytest.mark.parametrize("inside", [0, 1])
    @pytest.mark.parametrize(("rows", "results"), [(3, 3), (2, 1), (1, 2)])
    def test_more_than_fit_or_uneven_ones_are_refused_whole(
        self, make_queue: type[StreamElementQueue], rows: int, results: int, inside: int
    ) -> None:
        queue = make_queue(2 + inside)
        before = [StreamRecord("before")] * inside
        for record in before:
            queue.try_put(record)
        with pytest.raises(ValueError, match=f"{rows} records and {results} results for 2 places"):
            queue.put_completed([StreamRecord(x) for x in range(rows)], list(range(results)))
        assert queue.values() == before

    def test_an_output_may_put_complete_and_emit(self, make_queue: type[StreamElementQueue]) -> None:
        queue, output, left = make_queue(2), Emitted(), list("bcd")
        completed = queue.completing(output, lambda: queue.emit_completed_elements(output, 9))

        def collect(record: StreamRecord) -> None:
            output.elements.append(record)
            if left:
                assert queue.try_put(Watermark(len(left))) is not None, "what leaves has given its place back"
                entry = queue.try_put(StreamRecord(left.pop(0)))
                assert entry is not None
                completed(entry, f"after {record.value}")

        output.collect = collect  # type: ignore[assignment]
        completed(queue.put_record(StreamRecord("a")), "A")
        after = ["A", Watermark(3), "after A", Watermark(2), "after after A", Watermark(1), "after after after A"]
        assert output.values == after
        assert queue.is_empty()

    def test_an_entry_that_has_left_keeps_no_result_alive(self, make_queue: type[StreamElementQueue]) -> None:
        """The timer of a moved deadline had the entry, and a result of any size, until that time."""
        queue, result = make_queue(1), {"large"}
        entry, kept = queue.put_record(StreamRecord("a")), weakref.ref(result)
        entry.complete([result])
        del result
        output = Emitted()
        queue.emit_completed_element(output)
        output.elements.clear()
        assert kept() is None

    def test_a_row_that_is_completed_and_emitted_takes_with_it_what_may_leave(
        self, make_queue: type[StreamElementQueue]
    ) -> None:
        queue, output = make_queue(5), Emitted()
        first, second = queue.put_record(StreamRecord("a", 7, "row 0")), queue.put_record(StreamRecord("b"))
        queue.try_put(Watermark(1))
        third = queue.put_record(StreamRecord("c"))
        third.complete(["C"])
        completed = queue.completing(output, lambda: queue.emit_completed_elements(output, 9))
        completed(first, "A")
        assert output.elements == [StreamRecord("A", 7)]
        assert output.elements[0].origin == "row 0"
        completed(second, ["B"])
        assert output.values == ["A", ["B"], Watermark(1), "C"], "a list is one result"
        completed(third, "late")
        assert (len(output.values), queue.is_empty()) == (4, True)

    def test_what_an_entry_holds_is_released_when_it_leaves_however_that_is(
        self, make_queue: type[StreamElementQueue]
    ) -> None:
        class Counted:
            held = 0

            def hold_row(self, record: Any) -> int:
                return self._hold(1)

            def note_result(self, result: Any) -> None:
                """No result is held back for the memory of others."""

            def hold_results(self, results: Any) -> int:
                return self._hold(10 * len(results))

            def release(self, held: int) -> None:
                self.held -= held

            def _hold(self, size: int) -> int:
                self.held += size
                return size

        queue, output = make_queue(5), Emitted()
        queue.memory = memory = Counted()
        at_once, first, second, third = (queue.put_record(StreamRecord(name)) for name in "abcd")
        queue.completing(output, lambda: None)(at_once, "A")
        assert memory.held == 3, "it has left without waiting: its result was never held"
        third.complete(["C", "C"])
        third.complete(["late"])
        second.complete([])
        assert memory.held == 3 + 20
        first.complete(["B"])
        drain(queue, output)
        assert memory.held == 0

    def test_fewer_places_than_the_capacity(self, make_queue: type[StreamElementQueue]) -> None:
        queue = make_queue(5)
        first, _ = queue.put_record(StreamRecord("a")), queue.put_record(StreamRecord("b"))
        queue.most = 1
        assert (queue.places, queue.try_put(StreamRecord("c")), queue.capacity) == (0, None, 5)
        first.complete(["A"])
        drain(queue)
        assert queue.places == 0
        queue.most = 3
        assert queue.places >= 1
        assert queue.try_put(StreamRecord("c")) is not None


class TestOrdered:
    def test_a_finished_row_waits_for_every_row_before_it(self) -> None:
        queue = OrderedStreamElementQueue(3)
        a, b, c = (queue.try_put(StreamRecord(x)) for x in "abc")
        assert a is not None
        assert b is not None
        assert c is not None
        c.complete(["C"])
        b.complete(["B"])
        assert not queue.has_completed_elements()
        a.complete(["A"])
        assert drain(queue) == ["A", "B", "C"]


class TestUnordered:
    def test_rows_leave_in_completion_order(self) -> None:
        queue = UnorderedStreamElementQueue(3)
        entries = {x: queue.try_put(StreamRecord(x)) for x in "abc"}
        for x in "cab":
            entries[x].complete([x.upper()])  # type: ignore[union-attr]
        assert drain(queue) == ["C", "A", "B"]

    def test_rows_and_watermarks_never_pass_each_other(self) -> None:
        # The example of the specification: E1 E2 E3 W1 E4 E5 W2 may leave as E3 E1 E2 W1 E5 E4 W2.
        queue, output = UnorderedStreamElementQueue(7), Emitted()
        elements = [StreamRecord(1), StreamRecord(2), StreamRecord(3), Watermark(1), StreamRecord(4), StreamRecord(5)]
        entries = [queue.try_put(element) for element in [*elements, Watermark(2)]]
        for number in (5, 3, 1, 4, 2):
            index = number - 1 if number < 4 else number
            entries[index].complete([number])  # type: ignore[union-attr]
            drain(queue, output)
        assert output.values == [3, 1, 2, Watermark(1), 5, 4, Watermark(2)]
        assert queue.is_empty()

    def test_a_later_segment_emits_nothing_before_the_first_is_empty(self) -> None:
        queue = UnorderedStreamElementQueue(3)
        first, _, last = (queue.try_put(e) for e in (StreamRecord("a"), Watermark(1), StreamRecord("b")))
        assert first is not None
        assert last is not None
        last.complete(["B"])
        assert not queue.has_completed_elements()
        first.complete(["A"])
        assert drain(queue) == ["A", Watermark(1), "B"]

    def test_markers_in_a_row_stay_in_order(self) -> None:
        queue = UnorderedStreamElementQueue(5)
        first = queue.try_put(StreamRecord("a"))
        assert first is not None
        for marker in (Watermark(1), WatermarkStatus.IDLE, Watermark(2)):
            queue.try_put(marker)
        first.complete([])
        assert drain(queue) == [Watermark(1), WatermarkStatus.IDLE, Watermark(2)]

    def test_a_row_after_an_emitted_watermark_leaves_freely(self) -> None:
        queue = UnorderedStreamElementQueue(2)
        queue.try_put(Watermark(1))
        drain(queue)
        a, b = queue.try_put(StreamRecord("a")), queue.try_put(StreamRecord("b"))
        assert a is not None
        assert b is not None
        b.complete(["B"])
        assert drain(queue) == ["B"]
        a.complete(["A"])
        assert drain(queue) == ["A"]


class TestElements:
    def test_elements_compare_by_content_and_by_kind(self) -> None:
        assert Watermark(5) == Watermark(5)
        assert StreamRecord("a", 1) == StreamRecord("a", 1)
        assert LatencyMarker(1.0, "map", 0) == LatencyMarker(1.0, "map", 0)
        assert Watermark(5) != Watermark(6)
        assert StreamRecord("a", 1) != StreamRecord("a", 2)
        assert Watermark(5) != (5,)
        assert Watermark(5) != (5,)
        assert StreamRecord("a", 1) != ("a", 1, None)
        assert LatencyMarker(1.0, "map", 0) != StreamRecord(1.0, "map", 0)  # type: ignore[arg-type, comparison-overlap]

    def test_the_origin_takes_no_part_in_a_comparison(self) -> None:
        assert StreamRecord("a", 1, "here") == StreamRecord("a", 1, "there")
        assert hash(StreamRecord("a", 1, "here")) == hash(StreamRecord("a", 1, "there"))

    @pytest.mark.parametrize(
        ("element", "field"),
        [(StreamRecord("a", 1), "timestamp"), (Watermark(5), "timestamp"), (LatencyMarker(1.0, "map", 0), "subtask")],
    )
    def test_elements_cannot_be_changed(self, element: Any, field: str) -> None:
        before = getattr(element, field)
        with pytest.raises(AttributeError, match="can't set attribute"):
            setattr(element, field, 9)
        assert getattr(element, field) == before

    @pytest.mark.parametrize(
        "element", [StreamRecord("a", 1), Watermark.MAX, WatermarkStatus.IDLE, LatencyMarker(1.0, "map", 0)]
    )
    def test_elements_survive_pickling(self, element: Any) -> None:
        assert pickle.loads(pickle.dumps(element)) == element

    def test_watermarks_are_ordered_by_time_and_max_is_last(self) -> None:
        assert Watermark(1) < Watermark(2) < Watermark.MAX
        assert max(Watermark(3), Watermark(2)) == Watermark(3)
