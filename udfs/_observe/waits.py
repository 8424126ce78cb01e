"""What a task may wait for: the table of all waits, what it waits for now and since when, and when the log says so."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from .._errors.figures import seconds
from .._errors.safe import one_line

LONG = 30.0  # seconds of a wait after which the log has a line; the next one comes after twice as long, and so on
SOON = 10.0  # seconds for what is over, one way or the other, within a minute
LOOK_EVERY = 1.0  # seconds between two looks at what a task waits for


class _Kind(NamedTuple):
    what: str  # after "has waited for 30 s for ..."; {} is the detail, if there is one
    most: str  # how long at most, for the page
    option: str  # what changes that
    told: float = LONG  # seconds after which it is told


class Waiting(enum.Enum):
    """All that a task may wait for. docs/hangs.md shows this table."""

    OPENING = _Kind(
        "{} to open", "`open_timeout`, 60 s unless given",
        "open_timeout= of the function, or the client's own time limit", SOON,
    )  # fmt: skip
    CALL = _Kind(
        "a call that does not return", "`timeout`, 180 s unless given",
        "attempt_timeout= or timeout= of the function, or the client's own time limit",
    )  # fmt: skip
    BACK_OFF = _Kind("the next attempt of rows that failed", "`timeout`, 180 s unless given", "the delays of retry=")
    PERMIT = _Kind(
        "a permit under the limit {}",
        "no limit: until the limit or the budget allows a call",
        "that limit or budget; other jobs share one with a name",
    )
    REFUSAL = _Kind(
        "the service, which refuses calls", "`timeout`, at least 2 and at most 10 minutes, until no call was accepted",
        "timeout=, or max_retry_after= of retry=",
    )  # fmt: skip
    BREAKER = _Kind(
        "the circuit breaker to close",
        "`max_open` of the breaker, 5 minutes unless given",
        "max_open= of CircuitBreaker",
    )
    LEASE = _Kind(
        "the calls of other tasks for equal rows",
        "`timeout`, 180 s unless given",
        "timeout=, or a store without leases",
    )
    STORE = _Kind("the result store", "`store_timeout`, 1 s unless given, for each request", "store_timeout=")
    COORDINATOR = _Kind(
        "an answer of the coordinator", "30 s, then the task fails", "coordinator=, for a server that is near", SOON
    )
    INPUT = _Kind(
        "input: what comes before in the query has given no row", "no limit: Spark decides",
        "more partitions or less work in what comes before",
    )  # fmt: skip
    SPARK = _Kind(
        "Spark to read results: what comes behind in the query is busy", "no limit: Spark decides",
        "more partitions or less work in what comes behind",
    )  # fmt: skip
    EVENT_LOOP = _Kind(
        "code that blocks the event loop", "no limit: a thread cannot be stopped",
        "an asynchronous client, or a plain def, which runs in a thread", SOON,
    )  # fmt: skip
    CLOSING = _Kind("resources to close", "30 s for each, then the task fails", "the client's own time limit", SOON)

    __hash__ = object.__hash__


class Wait(NamedTuple):
    """Something that a function waits for now.

    Args:
        name: of the function.
        since: by the task's clock; None: since it was first seen with this `mark`, look by look.
        most: seconds in all; inf if there is no limit.
        detail: which one.
        mark: counts what has gone on; as long as it stays the same, it is the same wait.
        left: seconds from now on, where `most` is not known as `since` is not; inf if there is no limit.
    """

    kind: Waiting
    name: str
    since: float | None = None
    most: float = math.inf
    detail: str = ""
    mark: Hashable = None
    left: float = math.inf

    def lasts(self, now: float) -> float:
        return 0.0 if self.since is None else max(0.0, now - self.since)

    def to_plain(self, now: float) -> dict[str, Any]:
        """As plain values, for JSON."""
        return {
            "kind": self.kind.name.lower(),
            "what": self.kind.value.what.format(one_line(self.detail)),
            "seconds": self.lasts(now),
            "at_most": None if self.most == math.inf else self.most,
            "option": self.kind.value.option,
        }

    def text(self, now: float) -> str:
        return told(self.name, self.to_plain(now))


def told(name: str, wait: dict[str, Any]) -> str:
    """One wait in a line: what, for how long, for how long at most, and what changes that."""
    most = "with no time limit" if wait["at_most"] is None else f"for {seconds(wait['at_most'])} at most"
    who = f"{one_line(name)} has" if wait.get("tasks", 1) == 1 else f"{wait['tasks']:,} tasks of {one_line(name)} have"
    return f"{who} waited for {seconds(wait['seconds'])} for {wait['what']}, {most}; to change it: {wait['option']}"


class TaskWaits:
    """What a task waits for, as it was at the last look; what lasts is told once, and again after twice as long.

    So is what comes again and again: it is told when as long as before has passed once more, or if it lasts twice as
    long as any before.

    The operators say what they wait for at a look, from the state that they have anyway. Nothing is noted for a row.
    """

    # A wait whose beginning nobody notes began when a look first found it, unless something went on since.
    #
    # now: the waits of the last look; a tuple, which any thread may read
    # _seen: for each such wait its mark, and since when; of the last look alone
    # _told: of each wait that was told: when it may be told again, the pause until then, and how long it has lasted

    def __init__(self, clock: Callable[[], float], tell: Callable[[str], object]) -> None:
        self.clock, self._tell = clock, tell
        self.now: tuple[Wait, ...] = ()
        self._seen: dict[tuple[Waiting, str, str], tuple[Hashable, float]] = {}
        self._told: dict[tuple[Waiting, str, str], tuple[float, float, float]] = {}

    def look(self, waits: Iterable[Wait]) -> None:
        now, before, self._seen = self.clock(), self._seen, {}
        self.now = tuple([self._dated(wait, before, now) for wait in waits])
        for wait in self.now:
            key = wait.kind, wait.name, wait.detail
            lasts, first = wait.lasts(now), wait.kind.value.told
            due, pause, longest = self._told.get(key, (-math.inf, first, 0.0))
            if lasts >= first and (now >= due or lasts >= 2 * longest):
                self._told[key] = max(due, now + pause), 2 * pause, max(longest, lasts)
                self._tell(wait.text(now))

    def _dated(self, wait: Wait, before: dict[tuple[Waiting, str, str], tuple[Hashable, float]], now: float) -> Wait:
        if wait.since is not None:
            return wait
        key = wait.kind, wait.name, wait.detail
        mark, since = before.get(key, (wait.mark, now))
        self._seen[key] = seen = wait.mark, since if mark == wait.mark else now
        return wait._replace(since=seen[1], most=min(wait.most, now - seen[1] + wait.left))

    def long(self) -> Sequence[tuple[str, dict[str, Any]]]:
        """Those that last for so long that they are told, with the names of their functions."""
        now = self.clock()
        return [(wait.name, wait.to_plain(now)) for wait in self.now if wait.lasts(now) >= wait.kind.value.told]

    def lines(self) -> list[str]:
        """All, in words."""
        now = self.clock()
        return [wait.text(now) for wait in self.now]
