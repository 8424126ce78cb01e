"""Equal calls in flight share one: the first leads, others follow, and one of them takes over when it fails."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from typing import Generic, TypeVar

__all__ = ("LandedResults", "SingleFlight")


Call = TypeVar("Call", bound=Hashable)


class SingleFlight(Generic[Call]):
    """Who calls, and who waits for whose result. It neither calls nor waits itself.

    Of the calls with one key that are in flight exactly one leads. When it has results, all that follow have them.
    When it is out without any, be it that it failed, came to its deadline, or was cancelled or abandoned, the one that
    has followed longest leads, with its own attempts and what is left of its own deadline. A failure is handed to
    nobody.

    >>> flights = SingleFlight[str]()
    >>> flights.join(b"oslo", "row 1"), flights.join(b"oslo", "row 2"), flights.join(b"oslo", "row 3")
    (True, False, False)
    >>> flights.leave(b"oslo", "row 1")
    'row 2'
    >>> flights.land(b"oslo", "row 2")
    ['row 3']
    """

    # A key that is in `_followers` is in `_leaders`; no list of followers is empty.
    # A call is in one flight at most, and there once, as leader or as follower. It is compared as a key of a dict is.
    #
    # Each question may come too late, such as for a call that has timed out and whose coroutine ends after all: what is
    # not in flight changes nothing.

    def __init__(self) -> None:
        self._leaders: dict[bytes, Call] = {}
        self._followers: dict[bytes, OrderedDict[Call, None]] = {}

    def join(self, key: bytes, call: Call) -> bool:
        """Take a call in: True if it leads and has to be made, False if it waits for the one that leads."""
        if key not in self._leaders:
            self._leaders[key] = call
            return True
        self._followers.setdefault(key, OrderedDict())[call] = None
        return False

    def is_flying(self, key: bytes) -> bool:
        """Whether a call with this key is in flight."""
        return key in self._leaders

    def followers(self, key: bytes) -> Sequence[Call]:
        """Those who wait for the call that leads, in the order in which they came."""
        return tuple(self._followers.get(key, ()))

    def land(self, key: bytes, call: Call) -> Sequence[Call]:
        """A call has results: those who have them too, in the order in which they came. The flight is over."""
        if not self.leads(key, call):
            self.leave(key, call)
            return []
        del self._leaders[key]
        return [*self._followers.pop(key, ())]

    def leave(self, key: bytes, call: Call) -> Call | None:
        """A call is out without results: who leads from now on, and has to be called, if anybody does."""
        followers = self._followers.get(key)
        if not self.leads(key, call):
            if followers is not None:
                followers.pop(call, None)
                self._drop_empty(key, followers)
            return None
        if followers is None:
            del self._leaders[key]
            return None
        heir, _ = followers.popitem(last=False)
        self._drop_empty(key, followers)
        self._leaders[key] = heir
        return heir

    def leads(self, key: bytes, call: Call) -> bool:
        """Whether others may wait for this call."""
        return key in self._leaders and self._leaders[key] == call

    def clear(self) -> None:
        """Nobody waits any more: the task ends."""
        self._leaders.clear()
        self._followers.clear()

    def __len__(self) -> int:
        """How many calls wait for another."""
        return sum(map(len, self._followers.values()))

    def _drop_empty(self, key: bytes, followers: OrderedDict[Call, None]) -> None:
        if not followers:
            del self._followers[key]


Outcome = TypeVar("Outcome")


class LandedResults(Generic[Outcome]):
    """What has landed since rows of the same key were looked up in vain: they are not called for that.

    >>> landed = LandedResults[str]()
    >>> landed.looking(); landed.note(b"oslo", "rain"); landed.looked([b"oslo", b"bergen", b"oslo"])
    >>> landed.note(b"bergen", "sun"); landed.note(b"tromso", "snow")
    >>> landed.admit(b"oslo"), landed.admit(b"bergen"), landed.admit(b"oslo"), len(landed)
    ('rain', 'sun', 'rain', 0)
    """

    # A batch is looked up as a whole, and its rows are admitted later, one by one. Two equal ones are both looked up in
    # vain, and by the time the second is admitted the call of the first may have landed: it is no flight any more.
    #
    # _in_line: how many rows wait to be admitted, of each key that was looked up in vain
    # _landed: has keys of `_in_line` only, but while a lookup is under way: whose keys that will add is not known yet

    def __init__(self) -> None:
        self._in_line: Counter[bytes] = Counter()
        self._landed: dict[bytes, Outcome] = {}
        self._is_looking = False

    def looking(self) -> None:
        """Rows are being looked up from now on."""
        self._is_looking = True

    def looked(self, missed: Iterable[bytes]) -> None:
        """They were; these keys in vain, each for one row that waits to be admitted."""
        self._is_looking = False
        self._in_line.update(missed)
        for key in self._landed.keys() - self._in_line.keys():
            del self._landed[key]

    def wants(self, key: bytes) -> bool:
        """Whether a row waits for what lands under this key, as far as is known."""
        return self._is_looking or key in self._in_line

    def get(self, key: bytes) -> Outcome | None:
        """What has landed for a row that stays in line."""
        return self._landed.get(key)

    def note(self, key: bytes, outcome: Outcome) -> None:
        """A call has landed."""
        if self.wants(key):
            self._landed[key] = outcome

    def admit(self, key: bytes) -> Outcome | None:
        """A row leaves the line: what has landed for it, if anything has."""
        outcome = self._landed.get(key)
        self._in_line[key] -= 1
        if self._in_line[key] <= 0:
            del self._in_line[key]
            if not self._is_looking:
                self._landed.pop(key, None)
        return outcome

    def __len__(self) -> int:
        """How many outcomes are kept."""
        return len(self._landed)
