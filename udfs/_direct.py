"""The hottest loop: calls one after another on one worker, as long as they return at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

from asyncudf.queues import Entry, StreamRecord

from ._errors import ResultError
from ._function import CallSlot, Results
from ._input import Fed

__all__ = ("Passed", "Stopped", "run_at_once")


class Passed:
    """Rows that were done at once, with their results, which may go to the output together."""

    __slots__ = ("records", "results")

    def __init__(self) -> None:
        self.records: list[Fed] = []
        self.results: list[Any] = []

    def clear(self) -> None:
        self.records.clear()
        self.results.clear()


class Stopped(NamedTuple):
    """Why the loop has ended before its elements: a marker, or a row that needs more than its result be passed on."""

    element: Fed | None
    results: list[Results] | None = None
    error: BaseException | None = None


async def run_at_once(
    function: Callable[..., Awaitable[Any]],
    elements: Iterator[Fed],
    slot: CallSlot,
    finish: Callable[[Any], Any] | None,
    passed: Passed,
    put: Callable[[Fed], Entry] | None,
    is_spoiled: Callable[[], bool],
) -> Stopped | list[Results] | None:
    """Call the function for each row.

    The caller drives this coroutine itself. When it is suspended, the call of the row in `slot.element` is: the
    caller then says so in `slot.is_suspended`, and what is awaited from there on is that one call.

    Args:
        put: what takes a row that is done at once and may not leave at once; None where rows may pass, to `passed`.

    Returns:
        None when there are no more elements, the reason to stop, or the results of the call that was suspended.
    """
    # Awaiting costs a third of driving each call by hand, which ends with an exception that has to be caught.
    records, results = passed.records, passed.results
    for element in elements:
        if type(element) is not tuple and type(element) is not StreamRecord:
            return Stopped(element)
        slot.element = element
        try:
            result = await function(*element[0])  # type: ignore[misc]
        except BaseException as error:
            if slot.is_suspended:
                raise
            return Stopped(element, None, error)
        if slot.is_suspended:
            return [(result,)]
        if slot.side:
            return Stopped(element, [(result,)])
        try:
            value = result if finish is None else finish(result)
        except ResultError:
            return Stopped(element, [(result,)])
        if put is None:
            records.append(element)
            results.append(value)
        else:
            put(element).complete((value,))
        if is_spoiled():
            return Stopped(None)
    return None
