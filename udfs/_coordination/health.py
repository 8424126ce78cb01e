"""What the tasks of a job know of a service together: that it is dead, or has asked for a pause."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable

from .._policies.call_outcome import CallOutcome
from .._policies.circuit_breaker import CircuitBreaker
from .client import Coordinator
from .periodic import PeriodicTask
from .scripts import HEALTH

__all__ = ("SharedHealth",)


BEAT = 0.25  # seconds until a task hears of what others have seen
LEASE = 4.0  # seconds that a probe is waited for whose task says nothing
PROBE = -1  # the ticket of a probe
ENDS = ("s", "f", "n")  # of a probe
_TOLD = {CallOutcome.ANSWERED: "s", CallOutcome.DOWN: "f"}


class SharedHealth(PeriodicTask):
    """The circuit breaker of the job, with the methods of a `Breaker`, and its pause; of one event loop.

    Outcomes of all tasks go into one window. When it opens, each task learns of it within a quarter of a second, or of
    many tasks each two thousand within a second, and one call in the whole job tries the service.

    Args:
        breaker: None where there is only a pause to share.
        task: a name that no other task has.
        wake: called when something was heard: calls may begin that could not before.
        fail: called with the error when the coordinator does not answer.
    """

    # heard: how often it was heard what others have seen
    # paused_until: None before that: a task that begins in the midst of an outage, or a pause, has to know
    # _ticket: of the calls that begin while the breaker is closed; it changes whenever it opens or closes
    # _outcomes: of calls under that ticket, not yet told
    # _is_prober: one call of this task may try, or is trying, the service; _is_probing: it is
    # _probe_end: how that has ended, not yet told
    # _wants_to_try: a call was sent away while it is open, so there is one to try with

    def __init__(
        self,
        coordinator: Coordinator,
        name: str,
        task: str,
        breaker: CircuitBreaker | None,
        wake: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        super().__init__(coordinator, [coordinator.key("health", name)], fail)
        self._name = task
        self._has_breaker = breaker is not None
        self._options = breaker or CircuitBreaker()
        self._wake = wake
        self._ticket = 0
        self._outcomes = self._probe_end = ""
        self._is_prober = self._is_probing = self._wants_to_try = False
        self._probe_at = 0.0
        self.open_since: float | None = None
        self.paused_until: float | None = None
        self.heard = 0
        self._pause_not_told = -math.inf

    def admit(self, now: float) -> int | None:
        """The ticket of a call that may begin; None if it has to wait."""
        if self.open_since is None:
            return self._ticket
        if self._is_prober and not self._is_probing:
            self._is_probing, self._wants_to_try = True, False
            return PROBE
        self._wants_to_try = True
        return None

    def wait(self, now: float) -> float | None:
        """0.0 if a call may begin now; None if `wake` tells when."""
        return 0.0 if self.open_since is None or (self._is_prober and not self._is_probing) else None

    def ended(self, ticket: int, outcome: CallOutcome, now: float) -> None:
        """A call is over; each that was admitted must come here, also one that was cancelled (`NOTHING`)."""
        if ticket == PROBE:
            answered = outcome in (CallOutcome.ANSWERED, CallOutcome.THROTTLED)
            self._probe_end = "s" if answered else _TOLD.get(outcome, "n")
            self._is_prober = self._is_probing = False
            self._poke()
        elif self._has_breaker and ticket == self._ticket and outcome in _TOLD:
            self._outcomes = (self._outcomes + _TOLD[outcome])[-self._options.window :]
            if outcome is CallOutcome.DOWN:
                self._poke()

    def is_in_doubt(self) -> bool:
        """Whether the service may be dead, though the breaker does not know it: the window of the job is elsewhere."""
        return False

    def has_given_up(self, now: float) -> bool:
        """Whether the breaker has been open for so long that the task must fail."""
        return self.open_since is not None and now - self.open_since >= self._options.max_open  # type: ignore[operator]

    def pause(self, until: float) -> None:
        """The service has asked all callers to wait until then."""
        if self.paused_until is None or until > self.paused_until:
            self.paused_until = self._pause_not_told = until
            self._poke()

    def _last_message(self) -> Awaitable[object] | None:
        if self._is_prober:
            self._probe_end, self._is_prober, self._is_probing = "n", False, False
        is_known = not (self._outcomes or self._probe_end or self._pause_not_told > self._clock())
        return None if is_known else self._exchange()

    async def _exchange(self) -> float:
        sent = self._clock()
        outcomes, probe, until = self._outcomes, self._probe_end, self._pause_not_told
        self._outcomes = self._probe_end = ""
        self._pause_not_told = -math.inf
        if not probe and self._is_prober:
            # Woken, and there was no call to make: let another task try.
            probe = "hold" if self._is_probing else "n"
            self._is_prober = self._is_probing
        elif not probe and self.open_since is not None and self._wants_to_try and sent >= self._probe_at:
            probe = "ask"
        of, pause = self._options, max(0.0, until - sent)
        try:
            told = (self._name, of.window, of.failure_rate, of.open_for, LEASE, self._ticket, outcomes, probe, pause)
            answer = await self._ask(HEALTH, *told)
        except BaseException:  # what was not told, or perhaps not, is told by the next
            self._outcomes = (outcomes + self._outcomes)[-of.window :]
            self._probe_end = self._probe_end or (probe if probe in ENDS else "")
            self._pause_not_told = max(self._pause_not_told, until)
            raise
        self._hear(answer, sent)
        if self.open_since is None or self._is_prober:
            return BEAT
        return min(BEAT, max(0.01, self._probe_at - self._clock()))

    def _hear(self, answer: list[str], sent: float) -> None:
        said, ticket, since, probe_at, is_prober, pause = answer
        time = self._coordinator.time
        time.heard(sent, float(said), self._clock())
        if int(ticket) != self._ticket:
            self._ticket, self._outcomes = int(ticket), ""
        self.open_since = time.ours(float(since)) if since else None
        self._probe_at = time.ours(float(probe_at))
        if not self._probe_end:  # else it has ended meanwhile, and the answer does not know it
            self._is_prober = bool(int(is_prober)) and self.open_since is not None
            self._is_probing = self._is_probing and self._is_prober
        asked = time.ours(float(pause)) if float(pause) > float(said) else -math.inf
        self.paused_until = max(self.paused_until or -math.inf, asked)
        self.heard += 1
        self._wake()
