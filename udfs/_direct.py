"""The hottest loop: the calls of one call slot, row after row."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextvars import copy_context
from types import coroutine
from typing import Any, Protocol

from asyncudf.queues import StreamRecord

from ._errors import ResultError
from ._function import NO_RECORD, CallSlot, Results
from ._input import Fed
from ._workers import Worker

__all__ = ("BURST", "Admission", "Passed", "driven", "run_direct")

BURST = 200  # rows that are taken together
PASSES = 20  # such bursts, if calls return or fail at once, before timers and the mailbox get their turn


class Passed:
    """Rows that were done at once, with their results; the operator takes them together."""

    __slots__ = ("may_leave", "records", "results")

    def __init__(self) -> None:
        self.may_leave = False  # whether they need not be in the queue
        self.records: list[Fed] = []
        self.results: list[Any] = []

    def clear(self) -> None:
        self.records.clear()
        self.results.clear()


class Admission(Protocol):
    """What the loop asks of its operator."""

    def next_rows(self, worker: Worker, /) -> Iterator[Fed] | None: ...
    def refill(self) -> bool: ...
    def admit_marker(self, marker: Fed, /) -> None: ...
    def ended(self, worker: Worker, results: list[Results] | None, error: BaseException | None, /) -> None: ...


async def run_direct(
    function: Callable[..., Awaitable[Any]],
    worker: Worker,
    finish: Callable[[Any], Any] | None,
    passed: Passed,
    operator: Admission,
) -> bool:
    """Call the function for one row after another, to be driven by `driven`.

    Rows that are done at once are noted in `passed`. One whose call suspends, fails or has more than its result to be
    passed on is admitted to the queue.

    Returns:
        Whether there may be more rows, after a pause; else the slot has nothing to do here.
    """
    # Awaiting costs a third of driving each call by hand, which ends with an exception that has to be caught.
    slot, clean, cancelling = worker.slot, worker.clean, worker.task.cancelling
    records, values = passed.records, passed.results
    for _ in range(PASSES):
        if (elements := operator.next_rows(worker)) is None:
            return False
        for element in elements:
            if type(element) is not tuple and type(element) is not StreamRecord:
                operator.admit_marker(element)
                break
            slot.element = element
            result = value = None  # or the last result would live on through this call
            try:
                result = await function(*element[0])  # type: ignore[misc]
            except BaseException as error:  # every error of the user's code has its policy
                operator.ended(worker, None, error)
                break
            if slot.is_suspended or slot.side:
                operator.ended(worker, [(result,)], None)
                break
            try:
                value = result if finish is None else finish(result)
            except ResultError:
                operator.ended(worker, [(result,)], None)
                break
            records.append(element)
            values.append(value)
            if copy_context() != clean or cancelling():  # is_spoiled, which asks more than can have happened here
                break
        else:
            if slot.element is not NO_RECORD:  # a row was taken
                return True
            if not operator.refill():
                return False
    return True


@coroutine
def driven(
    running: Coroutine[Any, Any, bool], slot: CallSlot, suspended: Callable[[], None]
) -> Generator[Any, Any, bool]:
    """Run a loop of calls; `suspended` is told of each call when it gives way for the first time."""
    error = None
    while True:
        try:
            waiting_for = running.send(None) if error is None else running.throw(error)
        except StopIteration as stop:
            return stop.value  # type: ignore[no-any-return]
        if not slot.is_suspended:
            slot.is_suspended = True
            suspended()
        error = None
        try:
            yield waiting_for
        except BaseException as thrown:
            error = thrown
