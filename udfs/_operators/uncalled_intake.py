"""The intake of an operator with rows that need no call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncudf.queues import Entry, StreamElement, StreamElementQueue, StreamRecord

from .._calls.calls import Calls
from .._calls.looked_up import Answered, plain
from .._calls.micro_batch import MicroBatch
from .fast_path import BURST
from .input_buffer import InputBuffer
from .intake import Intake

__all__ = ("UncalledIntake",)


class UncalledIntake(Intake):
    """Leads rows that have a result straight into the queue; only the others wait for a slot.

    Args:
        calls: knows which row needs one.
        pass_on: takes rows with one result each, for as many as there are places.
    """

    # What is passed on may leave at once, and whoever it makes place for looks here again: while one element is being
    # admitted, those behind it must not be.
    #
    # _is_admitting: that is so

    passes_slots = True

    def __init__(
        self,
        buffer: InputBuffer,
        queue: StreamElementQueue,
        batch: MicroBatch,
        push: Callable[[], None],
        *,
        calls: Calls,
        pass_on: Callable[[list[Any], list[Any]], None],
    ) -> None:
        super().__init__(buffer, queue, batch, push)
        self._calls = calls
        self._pass_on = pass_on
        self._is_admitting = False

    @property
    def has_call(self) -> bool:
        return self._calls.takes_more and super().has_call

    @property
    def may_pass_slots(self) -> bool:
        return not self._is_admitting and self._queue.places > 0

    def values(self) -> list[StreamElement]:
        return plain(self._queue.values() + self._input.values())

    def admit_marker(self) -> bool:
        element: Any = self._input.take_unless(self._calls.has_to_call)
        if element is None:
            return False
        self.take(element)
        return True

    def take(self, element: Any) -> None:
        """Take an element out of the input that needs no call."""
        self._is_admitting = True
        try:
            if isinstance(element, StreamRecord):
                self._calls.needs_call(element, self.admit(element))
            else:
                self._admit_uncalled(element)
        finally:
            self._is_admitting = False
        if self._queue.has_completed_elements():
            self._push()

    def _next_row(self) -> tuple[StreamRecord, Entry] | None:
        if self._is_admitting or not self._calls.takes_more:
            return None
        self._is_admitting = True
        try:
            while self._queue.places and (element := self._input.next()) is not None:
                if not isinstance(element, StreamRecord):
                    self._admit_uncalled(element)
                    continue
                entry = self.admit(element)
                if self._calls.needs_call(element, entry):
                    return element, entry
                if not self._queue.places:
                    self._push()
            return None
        finally:
            self._is_admitting = False
            if self._queue.has_completed_elements():
                self._push()

    def _admit_uncalled(self, element: Any) -> None:
        """Take a marker, or rows with results as far as there are places."""
        if type(element) is not Answered:
            self.admit(element)
            self._push()
            return
        while len(element) and (places := self._queue.places) > 0:
            self._pass_on(*element.take(min(places, BURST)))
        if len(element):
            self._input.put_back(element)  # type: ignore[arg-type]
