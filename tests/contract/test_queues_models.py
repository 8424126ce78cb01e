"""Each queue against a model of a few lines: hypothesis plays any sequence of puts, completions and emissions."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from asyncudf.queues import (
    Entry,
    OrderedStreamElementQueue,
    StreamElementQueue,
    StreamRecord,
    UnorderedStreamElementQueue,
    Watermark,
    WatermarkStatus,
)
from tests.kit.outputs import Emitted


class _QueueMachine(RuleBasedStateMachine):
    """The model: `line` holds [element, results or None, time of completion] in arrival order."""

    queue_class: type[StreamElementQueue]
    open_entries = Bundle("open_entries")

    @initialize(capacity=st.integers(1, 6))
    def start(self, capacity: int) -> None:
        self.capacity = capacity
        self.queue = self.queue_class(capacity)
        self.line: list[list[Any]] = []
        self.clock = 0

    @rule(target=open_entries)
    def put_row(self) -> tuple[Entry | None, list[Any]]:
        self.clock += 1
        return self._put(StreamRecord(self.clock, self.clock), None)

    @rule(results=st.lists(st.integers(), max_size=3))
    def put_completed(self, results: list[int]) -> None:
        results = results[: self.queue.places]
        rows = [StreamRecord(self.clock + number, number) for number in range(1, len(results) + 1)]
        self.queue.put_completed(rows, results)
        for row, result in zip(rows, results, strict=True):
            self.clock += 1
            self.line.append([row, [result], self.clock])

    @rule(is_watermark=st.booleans())
    def put_marker(self, is_watermark: bool) -> None:
        self.clock += 1
        self._put(Watermark(self.clock) if is_watermark else WatermarkStatus.IDLE, [])

    def _put(self, element: Any, results: Any) -> tuple[Entry | None, list[Any]]:
        entry = self.queue.try_put(element)
        slot = [element, results, self.clock]
        assert (entry is None) == (len(self.line) == self.capacity)
        if entry is not None:
            self.line.append(slot)
        return entry, slot

    @rule(opened=consumes(open_entries), results=st.lists(st.integers(), max_size=3))
    def complete(self, opened: tuple[Entry | None, list[Any]], results: list[int]) -> None:
        entry, slot = opened
        if entry is not None:
            self.clock += 1
            entry.complete(results)
            entry.complete(["ignored"])
            slot[1], slot[2] = results, self.clock

    @rule()
    def emit(self) -> None:
        output = Emitted()
        self.queue.emit_completed_element(output)
        assert output.elements == (self.leave() or [])

    @rule(opened=consumes(open_entries), result=st.integers(), is_late=st.booleans())
    def complete_and_emit(self, opened: tuple[Entry | None, list[Any]], result: int, is_late: bool) -> None:
        entry, slot = opened
        if entry is None:
            return
        output = Emitted()
        self.clock += 1
        slot[1], slot[2] = [result], self.clock
        if is_late:
            entry.complete([result])
        self.queue.completing(output, lambda: self.queue.emit_completed_elements(output, 99))(
            entry, "ignored" if is_late else result
        )
        wanted: list[Any] = []
        while (left := self.leave()) is not None:
            wanted += left
        assert output.elements == wanted

    def leave(self) -> list[Any] | None:
        """What leaves the model next."""
        expected = self.next_to_leave()
        if expected is None:
            return None
        self.line = [slot for slot in self.line if slot is not expected]
        element, results, _ = expected
        is_row = isinstance(element, StreamRecord)
        return [StreamRecord(r, element.timestamp) for r in results] if is_row else [element]

    def next_to_leave(self) -> list[Any] | None:
        raise NotImplementedError

    @invariant()
    def the_queue_and_the_model_agree(self) -> None:
        if hasattr(self, "line"):
            assert len(self.queue) == len(self.line) <= self.capacity
            assert self.queue.values() == [slot[0] for slot in self.line]
            assert self.queue.is_empty() == (not self.line)
            assert self.queue.has_completed_elements() == (self.next_to_leave() is not None)


class OrderedMachine(_QueueMachine):
    queue_class = OrderedStreamElementQueue

    def next_to_leave(self) -> list[Any] | None:
        return self.line[0] if self.line and self.line[0][1] is not None else None


class UnorderedMachine(_QueueMachine):
    queue_class = UnorderedStreamElementQueue

    def next_to_leave(self) -> list[Any] | None:
        markers = [i for i, slot in enumerate(self.line) if not isinstance(slot[0], StreamRecord)]
        segment = self.line[: markers[0] or 1] if markers else self.line
        finished = [slot for slot in segment if slot[1] is not None]
        return min(finished, key=lambda slot: slot[2]) if finished else None


OrderedMachine.TestCase.settings = UnorderedMachine.TestCase.settings = settings(stateful_step_count=40)
TestOrderedModel = OrderedMachine.TestCase
TestUnorderedModel = UnorderedMachine.TestCase
