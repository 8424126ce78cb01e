"""UncalledWaitOperator: an AsyncWaitOperator of whose rows some need no call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from asyncudf.queues import StreamElement, StreamRecord

from .._calls.call import Call
from .._calls.looked_up import Answered
from .._calls.slots import CallSlot
from .._functions.signature import FunctionSpec
from .._policies.options import OnNullInput, Options
from .async_wait import AsyncWaitOperator
from .fast_path import ImmediateResults
from .input_buffer import InputElement
from .uncalled_intake import UncalledIntake

__all__ = ("UncalledWaitOperator",)


class UncalledWaitOperator(AsyncWaitOperator):
    """The same operator, with rows that have their result as they come in: they pass those that wait for a call.

    With `on_null_input="null"` these are the rows of which an argument is NULL. A subclass may have others.

    Args:
        parts: as of an `AsyncWaitOperator`.
    """

    # Such rows are no rows to anybody who makes calls: they come as `Answered`, and are taken as markers are.

    _intake: UncalledIntake

    def __init__(
        self,
        spec: FunctionSpec,
        options: Options,
        *parts: Any,
        validate: Callable[[Any], Any] | None = None,
        **more: Any,
    ) -> None:
        self._answered = ImmediateResults()
        self._will_look = False  # past the slots, soon
        self._answers_null = options.on_null_input is OnNullInput.NULL
        self._null = (lambda: None) if validate is None else lambda: validate(None)
        super().__init__(spec, options, *parts, validate=validate, **more)
        admit = self._admit

        def admit_and_look(slot: CallSlot) -> None:
            admit(slot)
            self._look_soon()

        self._admit = admit_and_look

    def _new_intake(self, *parts: Any) -> UncalledIntake:
        return UncalledIntake(*parts, calls=self._calls, pass_on=self._take_answered)

    def feed(self, elements: Iterable[InputElement]) -> None:
        super().feed(self._without_nulls(elements))

    def process(self, element: StreamElement) -> None:
        for one in self._without_nulls((element,)):
            super().process(one)

    process_marker = process

    def restore_state(self, elements: Sequence[StreamElement]) -> None:
        super().restore_state([*self._without_nulls(elements)])

    def _without_nulls(self, elements: Iterable[Any]) -> Iterable[Any]:
        return self._answering(elements) if self._answers_null else elements

    def _answering(self, elements: Iterable[Any]) -> Iterator[Any]:
        nulls: list[Any] = []
        for element in elements:
            if (type(element) is tuple or isinstance(element, StreamRecord)) and _has_null(element[0]):
                nulls.append(element)
                continue
            if nulls:
                yield Answered(nulls, [self._null() for _ in nulls])
                nulls = []
            yield element
        if nulls:
            yield Answered(nulls, [self._null() for _ in nulls])

    async def _run_call(self, slot: CallSlot, call: Call) -> None:
        self._look_soon()
        await super()._run_call(slot, call)

    def call_waits(self) -> None:
        self._look_soon()

    def admit_marker(self, marker: Any) -> None:
        self._take_immediate()
        self._intake.take(marker)

    def _look_soon(self) -> None:
        """A call begins in the last slot, or waits for a limit: what is next in line may need neither."""
        if not self._will_look and (self._pool.is_full or self._admission.waiting is not None):
            self._will_look = True
            self._loop.call_soon(self._look, context=self._own_context.copy())

    def _look(self) -> None:
        self._will_look = False
        self._look_past_slots()

    def _take_answered(self, rows: list[Any], results: list[Any]) -> None:
        """Emit rows that have their results, or give them their places."""
        answered = self._answered
        answered.records, answered.results = rows, results
        self.counters.totals.rows += len(rows)
        self.counters.totals.results += len(rows)
        self._pass_on(answered)


def _has_null(value: Any) -> bool:
    values = value.values() if type(value) is dict else value if type(value) is tuple else (value,)
    return any(one is None for one in values)
