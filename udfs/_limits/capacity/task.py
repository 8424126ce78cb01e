"""The gates of `job_capacity`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ..._errors.call_outcome import CallOutcome
from ..._errors.failure import Failure
from ..gate import AskingAttempt, Gate, Slots
from ..limited_task import LimitedTask
from .option import CallsOfJob


def gates(limit: CallsOfJob, task: LimitedTask) -> list[Gate]:
    total, name = limit.calls, limit.named(task.function)
    if task.link is None:
        return [OwnShareGate(total, task.slots, task.wake, task.own.shared(OwnShares, name))]
    from .job import CapacityShare

    share = task.owned(CapacityShare(task.link, name, total, lambda: (task.slots.in_flight, task.wanted_calls())))
    return [ShareGate(task.slots, lambda: share.limit, share.poke)]


class ShareGate(Gate):
    """`job_capacity`: the task's share of the calls that the job may have in flight; `poke` tells that it is small."""

    limits = ("job_capacity",)
    limit = "job_capacity"

    def __init__(self, slots: Slots, share: Callable[[], int], poke: Callable[[], None]) -> None:
        self._slots, self._share, self._poke = slots, share, poke

    def wait(self, attempt: AskingAttempt, now: float) -> float | None:
        if self._slots.in_flight < self._share():
            return 0.0
        self._poke()
        return None


class OwnShareGate(ShareGate):
    """`job_capacity` where one task is the whole job: its functions of one name have at most `total` calls in flight.

    Args:
        gates: the gates of all these functions; this gate adds itself.
    """

    def __init__(self, total: int, slots: Slots, wake: Callable[[], None], gates: OwnShares) -> None:
        super().__init__(slots, lambda: total - sum(gate.in_flight for gate in gates if gate is not self), lambda: None)
        self._wake, self._gates = wake, gates
        gates.append(self)

    @property
    def in_flight(self) -> int:
        return self._slots.in_flight

    def ended(self, attempt: AskingAttempt, outcome: CallOutcome, failure: Failure | None, now: float) -> None:
        loop = asyncio.get_running_loop()
        for gate in self._gates:
            if gate is not self:
                loop.call_soon(gate._wake)  # the slot is free only then


class OwnShares(list[OwnShareGate]):
    """The gates of the functions that share calls in flight."""
