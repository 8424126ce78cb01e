"""The journal of a submission: events that are only ever added, and how far the submission is by them.

Requests are divided into parts. A part is a file of requests, a job of the service, and a file of results. Each part
goes through "planned", "intent" (it may have been sent from now on), "sent" (the service has given an id) and
"settled" (each of its requests has a result, is a dead letter, is asked again in the next attempt, or is apart).

The requests of a job that has failed as a whole are apart: they are in smaller parts of the same attempt, the pieces,
which are planned by the event "apart". A piece is called like its part and one letter: "a" and "b" are halves, "r" is
the rest without the invalid requests that the service has named.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Sequence

UNMADE = "unmade"  # the part of requests that could not be made; it has no job
HALVES, REST = ("a", "b"), "r"  # at the end of the name of a piece; the name of any other part ends with a digit
PIECES = (*HALVES, REST)
MOST_RESTS = 8  # rests of rests; after that a part is halved, even if the service names the invalid requests
REUSED = "reused"  # the part of requests that a store had the results of, in attempt 0; it has no job
SUBMITTED = "submitted"  # the kind of the event that says what was submitted
OF_OWNERS = ("claim", "beat", "release")  # the kinds of events about the process that goes on
OF_PARTS = ("planned", "intent", "sent", "unclear", "unknown", "gone", "trouble", "refused", "apart", "settled")
OF_ALL = (SUBMITTED, "formed", "counted", "cancelled")  # "counted": the results of the wave in `text` are in events
KINDS = frozenset((*OF_OWNERS, *OF_PARTS, *OF_ALL))


@dataclasses.dataclass(frozen=True)
class Event:
    """What has happened; which fields count depends on `kind`."""

    at: float  # seconds since the epoch
    owner: str  # the process that has written the event
    kind: str
    attempt: int = 0
    part: str = ""
    turn: int = 0  # how often the service has refused the part before
    job: str = ""  # the service's id
    text: str = ""
    requests: int = 0
    weight: float = 0.0
    costs: Sequence[float] = ()  # by budget: reserved by a planned part, spent by a settled part
    ok: int = 0  # requests with a result
    failed: int = 0  # requests without a result for good
    again: int = 0  # requests to be asked again
    apart: int = 0  # requests in the pieces of the part
    unparsed: int = 0  # requests with an answer that `parse` could not read
    unsettled: int = 0  # requests for which `settle` has raised; an example is in `text`
    reruns: int = 0  # how often Spark has begun the task before that has written the event

    def to_json(self) -> str:
        """The event as a line of the journal, without fields that have their defaults."""
        return json.dumps({name: value for name, value in vars(self).items() if value != _DEFAULTS[name]})

    @classmethod
    def from_json(cls, line: str) -> Event:
        """The event in a line of the journal; ValueError or TypeError for an event of a later version."""
        event = cls(**json.loads(line))
        if event.kind not in KINDS:
            raise ValueError(f"unknown kind {event.kind!r}")
        return event


_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Event)}


class Part:
    """The state of a part, by its events; `turn`: how often the service has refused the part."""

    # Events are written on several hosts, whose clocks differ: nothing here depends on their order. What came out of
    # an intent has its turn, and a refusal begins the next turn.

    def __init__(self, planned: Event) -> None:
        self.attempt, self.name, self.turn = planned.attempt, planned.part, 0
        self.id = planned.attempt, planned.part
        self.has_job = planned.part not in (UNMADE, REUSED)  # whether the service is asked for it at all
        self.requests, self.weight = planned.requests, planned.weight
        self.planned_costs = planned.costs  # reserved for the part, by budget
        self._planned = planned
        self.intended_at = 0.0
        self._intents: Counter[int] = Counter()
        self._sent: dict[int, Event] = {}
        self._troubles: Counter[tuple[str, int]] = Counter()
        self._reruns = 0
        self._settled: Event | None = None
        self._has_pieces = False

    def take(self, event: Event) -> None:
        self._reruns += event.reruns
        match event.kind:
            case "intent":
                self._intents[event.turn] += 1
                self.intended_at = max(self.intended_at, event.at)
            case "sent":
                self._sent.setdefault(event.turn, event)
            case "unclear" | "unknown" | "gone" | "trouble":
                self._troubles[event.kind, event.turn] += 1
            case "refused":
                self.turn = max(self.turn, event.turn + 1)
            case "apart":
                self._has_pieces = True
            case "settled" if self._settled is None or (self._settled.ok, self._settled.at) <= (event.ok, event.at):
                self._settled = event

    @property
    def state(self) -> str:
        if self._settled is not None:
            return "settled"
        if self.turn in self._sent:
            return "sent"
        return "intent" if self._intents[self.turn] else "planned"

    @property
    def job(self) -> str:
        return self._sent[self.turn].job if self.turn in self._sent else ""

    def troubles(self, kind: str) -> int:
        """How often in this turn the part could not be sent, its job was not known, or could not be fetched.

        Args:
            kind: that of the events: "unclear", "unknown" (after `cancel`: "gone") or "trouble".
        """
        return self._troubles[kind, self.turn]

    @property
    def outcome(self) -> Event:
        """The counts and costs of the settled part; before that, the planned ones."""
        return self._planned if self._settled is None else self._settled

    @property
    def is_piece(self) -> bool:
        """Whether the part is a piece of a part with a failed job."""
        return self.has_job and self.name[-1] in PIECES

    @property
    def is_to_divide(self) -> bool:
        """Whether the part has requests that are apart, and no pieces yet."""
        return self.outcome.apart > 0 and not self._has_pieces

    @property
    def in_halves(self) -> bool:
        """Whether the pieces are halves: the service did not name the invalid requests, or has named more too often."""
        return self.outcome.apart == self.requests or self.name.count(REST) >= MOST_RESTS

    @property
    def unknown_jobs(self) -> int:
        """How many jobs of the part the service may have beside the known job."""
        return self._reruns + sum(count - 1 for count in self._intents.values())


class SubmissionProgress:
    """The state of a submission, by its journal."""

    def __init__(self, events: Iterable[Event], *, can_find: bool) -> None:
        events = list(events)
        planned = [event for event in events if event.kind == "planned"]
        parts = {(event.attempt, event.part): Part(event) for event in planned}
        for event in events:
            if (part := parts.get((event.attempt, event.part))) is not None:
                part.take(event)
        self._can_find = can_find
        self.parts = [parts[id_] for id_ in sorted(parts)]
        # The last attempt whose parts are all planned; 0 before the first.
        self.attempt = max((event.attempt for event in events if event.kind == "formed"), default=0)
        self.is_cancelled = any(event.kind == "cancelled" for event in events)
        self.counted = {event.text for event in events if event.kind == "counted"}  # waves of results

    def of(self, *states: str) -> list[Part]:
        return [part for part in self.parts if part.state in states]

    @property
    def to_ask_again(self) -> int:
        """How many requests the next attempt has."""
        return sum(part.outcome.again for part in self.parts if part.attempt == self.attempt)

    @property
    def is_attempt_over(self) -> bool:
        return self.attempt > 0 and all(part.state == "settled" and not part.is_to_divide for part in self.parts)

    @property
    def is_done(self) -> bool:
        """Whether each request has a result or is a dead letter."""
        return self.is_attempt_over and not self.to_ask_again

    @property
    def queued(self) -> float:
        """The weight that is, or may be, in the service's queue."""
        return sum(part.weight for part in self.of("intent", "sent") if part.has_job)

    @property
    def unsettled(self) -> dict[str, int]:
        """How many requests `settle` has raised for, by an example of the error."""
        found = Counter[str]()
        for part in self.of("settled"):
            if part.outcome.unsettled:
                found[part.outcome.text] += part.outcome.unsettled
        return dict(found)

    @property
    def has_answers(self) -> bool:
        """Whether the service has given a result for any request."""
        return any(part.outcome.ok for part in self.of("settled") if part.has_job)

    def spent(self, budgets: int) -> list[float]:
        """What was charged, by budget."""
        return self._sum(budgets, self.of("settled"))

    def committed(self, budgets: int) -> list[float]:
        """What was charged and what jobs at work may still cost, by budget."""
        return self._sum(budgets, self.of("intent", "sent", "settled"))

    def _sum(self, budgets: int, parts: Iterable[Part]) -> list[float]:
        total = [0.0] * budgets
        for part in parts:
            # A job that may be there twice may be charged twice.
            twice = 0 if self._can_find else part.unknown_jobs
            for place, (cost, reserved) in enumerate(zip(part.outcome.costs, part.planned_costs, strict=True)):
                total[place] += cost + twice * reserved
        return total

    @property
    def may_be_twice(self) -> int:
        """How many jobs the service may have received twice."""
        return 0 if self._can_find else sum(part.unknown_jobs for part in self.parts)
