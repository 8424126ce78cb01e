"""What a function answers for its rows: checked, or an error for each that does not fit."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from typing import Any

from asyncudf.queues import StreamRecord

from .._functions.async_function import Results
from .._functions.context import CURRENT_CALL, CallState
from .._functions.side_outputs import SideRecord
from .call import Call
from .invokers import Invoker

__all__ = ("Answers", "Validate")


Validate = Callable[[Any], Any]


class Answers:
    """Checks what comes back of a call, and asks for what shall stand in where it comes too late.

    Args:
        validate: checks and converts each result.
    """

    def __init__(self, validate: Validate | None) -> None:
        self._validate = validate
        self._context = contextvars.copy_context()  # without any row's variables

    def checked(
        self, results: Sequence[Results], side: Sequence[SideRecord]
    ) -> tuple[list[Results | BaseException], BaseException | None]:
        """The results of each row with what it has written on the side, or its error; and the first such error."""
        outcomes: list[Results | BaseException] = []
        validate, misfit = self._validate, None
        for result in results:
            try:
                outcomes.append([*(result if validate is None else map(validate, result)), *side])
                side = ()  # those of a micro-batch go with the first of its rows that fits
            except BaseException as own:  # a ResultError, or whatever code of the user's a check has run
                outcomes.append(own)
                misfit = own if misfit is None else misfit
        return outcomes, misfit

    def late(self, invoker: Invoker, call: Call, record: StreamRecord, error: BaseException) -> Results | BaseException:
        """What the function, or `on_timeout`, answers for a row that was not done in time; else an error."""
        state = CallState(record, call.attempt)  # the function's own answer may ask its context too
        state.deadline = call.deadline

        def answer() -> Results:
            CURRENT_CALL.set(state)
            results = invoker.timed_out(record.value, error)
            return [*(results if self._validate is None else map(self._validate, results)), *state.side]

        try:
            return self._context.copy().run(answer)
        except BaseException as own:
            return own
