"""What both queues promise, then what each promises of its order."""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from asyncudf.queues import (
    Entry,
    OrderedStreamElementQueue,
    StreamElement,
    StreamElementQueue,
    StreamRecord,
    UnorderedStreamElementQueue,
    Watermark,
)
from tests.kit.outputs import Emitted

QueueClass = type[StreamElementQueue]


def put(queue: StreamElementQueue, *elements: StreamElement | str) -> list[Entry]:
    """Put elements that find a place; texts are records."""
    entries = []
    for element in elements:
        entry = queue.try_put(StreamRecord(element) if isinstance(element, str) else element)
        assert entry is not None
        entries.append(entry)
    return entries


def drain(queue: StreamElementQueue, output: Emitted | None = None) -> list[Any]:
    """Emit everything that may leave; the values of records, markers as they are."""
    output = output or Emitted()
    while queue.has_completed_elements():
        queue.emit_completed_element(output)
    return output.values


@pytest.fixture(params=[OrderedStreamElementQueue, UnorderedStreamElementQueue])
def make_queue(request: pytest.FixtureRequest) -> QueueClass:
    return request.param  # type: ignore[no-any-return]


class TestPutting:
    @pytest.mark.parametrize("capacity", [0, -1, 1.5, "10", None, True])
    def test_a_capacity_is_a_whole_number_of_at_least_one(self, make_queue: QueueClass, capacity: Any) -> None:
        with pytest.raises(ValueError, match=f"whole number of at least 1, not {capacity!r}"):
            make_queue(capacity)

    def test_a_bare_value_is_refused(self, make_queue: QueueClass) -> None:
        with pytest.raises(TypeError, match="StreamRecord"):
            make_queue(1).try_put("a")  # type: ignore[arg-type]

    def test_fewer_places_than_the_capacity_may_be_free(self, make_queue: QueueClass) -> None:
        queue = make_queue(5)
        first, _ = put(queue, "a", "b")
        queue.most = 1
        assert (queue.places, queue.try_put(StreamRecord("c")), queue.capacity) == (0, None, 5)
        first.complete(["A"])
        drain(queue)
        assert queue.places == 0
        queue.most = 3
        assert queue.places >= 1
        put(queue, "c")


class Gathering(Emitted):
    """Writes results in batches of three, with their origins; it counts those that came by `collect_result`."""

    def __init__(self) -> None:
        super().__init__()
        self.held: tuple[list[Any], list[Any]] = ([], [])
        self.batches: list[tuple[list[Any], list[Any]]] = []
        self.collected = 0

    def collect_result(self, record: Any, result: Any) -> None:
        self.collected += 1
        for held, one in zip(self.held, (result, record.origin), strict=True):
            held.append(one)
        if len(self.held[0]) == 3:
            self.batches.append(tuple([*held] for held in self.held))  # type: ignore[arg-type]
            for held in self.held:
                held.clear()


@pytest.mark.parametrize("is_open", [False, True], ids=["collected", "added to the open batch"])
def test_results_that_leave_at_once_fill_the_batch_of_the_output(make_queue: QueueClass, is_open: bool) -> None:
    """Batches are the same if the output has an open batch, to which all between the first and the last are added."""
    queue, output = make_queue(5), Gathering()
    if is_open:
        output.open_batch = (*output.held, 3)  # type: ignore[attr-defined]
    completed = queue.completing(output, lambda: None)
    for entry in [queue.put_record(StreamRecord(None, 0, f"row {i}")) for i in range(5)]:
        completed(entry, entry.record.origin[-1])
    assert output.batches == [(["0", "1", "2"], ["row 0", "row 1", "row 2"])]
    assert output.held == (["3", "4"], ["row 3", "row 4"])
    assert output.collected == (3 if is_open else 5)
    assert len(queue) == 0


@pytest.mark.parametrize("is_open", [False, True], ids=["collected", "added to the open batch"])
def test_whoever_completes_a_row_says_whether_it_did_more_than_to_add_it_to_a_batch(
    make_queue: QueueClass, is_open: bool
) -> None:
    """Then it may have taken long, and a clock that was read before is read again."""
    queue, output = make_queue(6), Gathering()
    if is_open:
        output.open_batch = (*output.held, 3)  # type: ignore[attr-defined]
    completed = queue.completing(output, lambda: queue.emit_completed_elements(output, 9))
    *rows, _, behind = put(queue, "a", "b", "c", "d", Watermark(1), "e")
    behind.complete(["E"])
    has_only_added = [not completed(entry, None) for entry in rows]
    assert has_only_added == [is_open, is_open, False, False], (
        "the third fills the batch, others leave after the fourth"
    )
    assert queue.is_empty()


class TestCompleting:
    @pytest.mark.parametrize("results", [[], [1], (1, 2, 3)])
    def test_an_entry_of_n_results_emits_n_records_of_its_row(self, make_queue: QueueClass, results: Any) -> None:
        queue, output = make_queue(1), Emitted()
        (entry,) = put(queue, StreamRecord("a", 7, "row 0"))
        assert not entry.is_done
        assert drain(queue) == []
        entry.complete(results)
        assert entry.is_done
        queue.emit_completed_element(output)
        assert output.elements == [StreamRecord(result, 7) for result in results]
        assert {record.origin for record in output.elements} <= {"row 0"}
        assert queue.is_empty()

    @pytest.mark.parametrize("results", ["text", None, {"a": 1}, 5])
    def test_a_string_is_never_emitted_letter_by_letter(self, make_queue: QueueClass, results: Any) -> None:
        queue = make_queue(1)
        (entry,) = put(queue, "a")
        with pytest.raises(TypeError, match="list or tuple"):
            entry.complete(results)
        assert not entry.is_done
        entry.complete(["A"])
        entry.complete(results)
        assert drain(queue) == ["A"], "a later completion is ignored, whatever it is"


class TestEmitting:
    def test_an_entry_that_has_left_keeps_no_result_alive(self, make_queue: QueueClass) -> None:
        """The timer of a moved deadline had the entry, and a result of any size, until that time."""
        queue, result, output = make_queue(1), {"large"}, Emitted()
        (entry,), kept = put(queue, "a"), weakref.ref(result)
        entry.complete([result])
        del result
        queue.emit_completed_element(output)
        output.elements.clear()
        assert kept() is None


class TestTogether:
    """What the operator asks for many rows at once, or for a row that leaves as soon as it is done."""

    def test_records_that_are_complete_take_their_place_in_line(self, make_queue: QueueClass) -> None:
        queue, output = make_queue(4), Emitted()
        put(queue, Watermark(1))
        queue.put_completed([StreamRecord("a", 5), StreamRecord("b", 6)], ["A", "B"])
        assert (queue.places, queue.values()) == (1, [Watermark(1), StreamRecord("a", 5), StreamRecord("b", 6)])
        assert drain(queue, output) == [Watermark(1), "A", "B"]
        assert [element.timestamp for element in output.elements] == [1, 5, 6]

    @pytest.mark.parametrize("inside", [0, 1])
    @pytest.mark.parametrize(("rows", "results"), [(3, 3), (2, 1), (1, 2)])
    def test_more_than_fit_or_uneven_ones_are_refused_whole(
        self, make_queue: QueueClass, rows: int, results: int, inside: int
    ) -> None:
        queue = make_queue(2 + inside)
        put(queue, *["before"] * inside)
        with pytest.raises(ValueError, match=f"{rows} records and {results} results for 2 places"):
            queue.put_completed([StreamRecord(x) for x in range(rows)], list(range(results)))
        assert queue.values() == [StreamRecord("before")] * inside

    def test_an_output_may_put_complete_and_emit(self, make_queue: QueueClass) -> None:
        queue, output, left = make_queue(2), Emitted(), list("bcd")
        completed = queue.completing(output, lambda: queue.emit_completed_elements(output, 9))

        def collect(record: StreamRecord) -> None:
            output.elements.append(record)
            if left:
                put(queue, Watermark(len(left)))  # what leaves has given its place back
                (entry,) = put(queue, left.pop(0))
                completed(entry, f"after {record.value}")

        output.collect = collect  # type: ignore[assignment]
        completed(put(queue, "a")[0], "A")
        after = ["A", Watermark(3), "after A", Watermark(2), "after after A", Watermark(1), "after after after A"]
        assert (output.values, queue.is_empty()) == (after, True)

    def test_a_row_that_leaves_takes_with_it_what_may_leave(self, make_queue: QueueClass) -> None:
        queue, output = make_queue(5), Emitted()
        first, second, _, third = put(queue, StreamRecord("a", 7, "row 0"), "b", Watermark(1), "c")
        third.complete(["C"])
        completed = queue.completing(output, lambda: queue.emit_completed_elements(output, 9))
        completed(first, "A")
        assert output.elements == [StreamRecord("A", 7)]
        assert output.elements[0].origin == "row 0"
        completed(second, ["B"])
        assert output.values == ["A", ["B"], Watermark(1), "C"], "a list is one result"
        completed(third, "late")
        assert (len(output.values), queue.is_empty()) == (4, True)


class TestUnordered:
    def test_rows_and_watermarks_never_pass_each_other(self) -> None:
        """E1 E2 E3 W1 E4 E5 W2 may leave as E3 E1 E2 W1 E5 E4 W2, never E4 before W1."""
        queue, output = UnorderedStreamElementQueue(7), Emitted()
        e1, e2, e3, _, e4, e5, _ = put(queue, "E1", "E2", "E3", Watermark(1), "E4", "E5", Watermark(2))
        for entry in (e5, e3, e1, e4, e2):
            entry.complete([entry.element.value])  # type: ignore[union-attr]
            drain(queue, output)
        assert output.values == ["E3", "E1", "E2", Watermark(1), "E5", "E4", Watermark(2)]
        assert queue.is_empty()
