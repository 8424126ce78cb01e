"""Attempts that are set aside because a limit holds back their key: attempts of other keys pass them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence

from ..._limits.gate import Aside, Key, LimitKey
from ..loop.event_loops import seconds_until
from .attempt import Attempt
from .row import Row, RowState
from .slots import HostOperator


class KeyLine:
    """The attempts of one key: first rows that are called again, then new rows, both in the order they came."""

    __slots__ = ("_again", "_new", "asked", "since", "timer")

    def __init__(self, since: float) -> None:
        # Most keys have one attempt; a deque would take memory for 64.
        self._again: OrderedDict[Attempt, None] = OrderedDict()
        self._new: OrderedDict[Attempt, None] = OrderedDict()
        self.since = since  # when the line has begun to wait, or the last attempt has left it
        # This attempt has left the line to ask its limits once more; only a row that is called again passes it.
        self.asked: Attempt | None = None
        # When it fires the first attempt asks again; None: only `KeyLines.ask_again` lets it.
        self.timer: asyncio.TimerHandle | None = None

    def put(self, attempt: Attempt, *, is_first: bool) -> None:
        line = self._again if attempt.rows[0].attempts else self._new
        line[attempt] = None
        if is_first:
            line.move_to_end(attempt, last=False)

    def __len__(self) -> int:
        return len(self._again) + len(self._new)

    def pop(self) -> Attempt | None:
        line = self._again or self._new
        return line.popitem(last=False)[0] if line else None

    def take_out(self, attempt: Attempt) -> None:
        for line in (self._again, self._new):
            line.pop(attempt, None)


class KeyLines:
    """The lines of all keys that are held back; `ask` lets an attempt ask its limits once more, soon."""

    # The first attempt of a key that asks in vain begins its line. Later attempts of the key go behind it and ask no
    # limit. A line either waits, or one of its attempts is `asked`; when this attempt begins, or needs no call any
    # more, the next one is `asked`. So each line goes on until it is empty, and is deleted then.
    #
    # Each of these attempts has one row.

    def __init__(self, operator: HostOperator, ask: Callable[[Attempt], None]) -> None:
        self._operator, self._ask = operator, ask
        self._lines: dict[LimitKey, KeyLine] = {}  # none is empty
        self.attempts: dict[Row, Attempt] = {}  # of all lines

    @property
    def rows(self) -> Sequence[Row]:
        return [*self.attempts]

    def waiting(self, key: LimitKey) -> int:
        return len(self._lines.get(key, ()))

    def longest(self, awaits_calls: Callable[[LimitKey], bool]) -> tuple[int, float, float] | None:
        """The key that has waited longest: the place of its limit, since when, and for how many seconds at most.

        Keys that only wait for calls of this task in flight are left out.
        """
        lines = self._lines.items()
        waiting = ((line.since, key) for key, line in lines if line.asked is None and not awaits_calls(key))
        since, key = min(waiting, key=lambda one: one[0], default=(0.0, None))
        return None if key is None else (key[0], since, seconds_until(self._lines[key].timer, self._operator.loop))

    def holds(self, attempt: Attempt) -> bool:
        """Whether one of its keys has a line: then the attempt is put behind that line."""
        # An attempt that is `asked` in one line asks for all keys: or two lines would put it behind each other in turn.
        if attempt.asks_for is None:
            for key in enumerate(attempt.keys):
                if (line := self._lines.get(key)) is not None:
                    self._put(line, attempt, is_first=False)
                    return True
        return False

    def set_aside(self, attempt: Attempt, answer: Aside) -> None:
        """A limit has held back the key of an attempt; if it was `asked`, it stays the first of its line."""
        key, seconds = answer
        if is_first := attempt.asks_for == key:
            self._lines[key].asked = attempt.asks_for = None
        else:
            self.leaves(attempt)
        if (line := self._lines.get(key)) is None:
            line = self._lines[key] = KeyLine(attempt.began)
        self._put(line, attempt, is_first=is_first)
        if seconds is not None and line.asked is None and line.timer is None:
            line.timer = self._operator.loop.call_later(seconds, self.ask_again, *key)

    def ask_again(self, place: int, key: Key | None) -> None:
        """The limit at this place may let a key go on; may be called at any time, any number of times."""
        line = self._lines.get((place, key))
        if line is not None and line.asked is None:
            if line.timer is not None:
                line.timer.cancel()
                line.timer = None
            self._ask_next((place, key), line)

    def ended(self, attempt: Attempt) -> None:
        """An attempt is over and may have given back permits or calls: the lines of its keys ask again now."""
        for place, key in enumerate(attempt.keys):
            self.ask_again(place, key)

    def leaves(self, attempt: Attempt) -> None:
        """An attempt begins, waits for another key, or needs no call: ask the next of its line if it was `asked`."""
        if (key := attempt.asks_for) is not None:
            line = self._lines[key]
            line.asked = attempt.asks_for = None
            line.since = attempt.began
            self._ask_next(key, line)

    def take_out(self, row: Row) -> Attempt:
        """A row is not called, but may be put again; returns its attempt."""
        attempt = self.attempts.pop(row)
        for key in enumerate(attempt.keys):
            if (line := self._lines.get(key)) is not None:
                line.take_out(attempt)
        self._operator.waiting_has_changed()
        return attempt

    def close(self) -> None:
        for line in self._lines.values():
            if line.timer is not None:
                line.timer.cancel()

    def _put(self, line: KeyLine, attempt: Attempt, *, is_first: bool) -> None:
        (row,) = attempt.rows
        row.move(RowState.ASIDE)
        line.put(attempt, is_first=is_first)
        self.attempts[row] = attempt
        self._operator.waiting_has_changed()

    def _ask_next(self, key: LimitKey, line: KeyLine) -> None:
        if (attempt := line.pop()) is None:
            del self._lines[key]
            return
        (row,) = attempt.rows
        del self.attempts[row]
        self._operator.waiting_has_changed()
        line.asked, attempt.asks_for = attempt, key
        self._ask(attempt)
