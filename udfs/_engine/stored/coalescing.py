"""Equal calls in flight share one: the first leads, the others follow. If it fails, the next one leads."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

Call = TypeVar("Call", bound=Hashable)


class SingleFlight(Generic[Call]):
    """Notes which call is made, and which calls wait for its result. It neither calls nor waits itself.

    Exactly one of the calls in flight with one key leads. When it has results, all calls that follow get them too.
    When it ends without results (it failed, came to its deadline, was cancelled or abandoned), the call that has
    followed longest leads, with its own attempts and the rest of its own deadline. No failure is passed on.
    """

    # A key that is in `_followers` is in `_leaders`; no list of followers is empty.
    # A call is in one flight at most, and there once, as leader or as follower.
    #
    # A method may be called too late, such as for a call that has timed out and whose coroutine ends after all: a call
    # that is not in flight changes nothing.

    def __init__(self) -> None:
        self._leaders: dict[bytes, Call] = {}
        self._followers: dict[bytes, OrderedDict[Call, None]] = {}
        self.following = 0  # how many calls follow

    def join(self, key: bytes, call: Call) -> bool:
        """Add a call: True if it leads and has to be made, False if it follows the call that leads."""
        if key not in self._leaders:
            self._leaders[key] = call
            return True
        self._followers.setdefault(key, OrderedDict())[call] = None
        self.following += 1
        return False

    def is_flying(self, key: bytes) -> bool:
        return key in self._leaders

    def followers(self, key: bytes) -> Sequence[Call]:
        return tuple(self._followers.get(key, ()))

    def land(self, key: bytes, call: Call) -> Sequence[Call]:
        """End a flight with results: returns the calls that get them too, in the order in which they joined."""
        if key not in self._leaders or self._leaders[key] != call:  # as `leads`, for each row
            self.leave(key, call)
            return ()
        del self._leaders[key]
        if key not in self._followers:
            return ()
        followers = [*self._followers.pop(key)]
        self.following -= len(followers)
        return followers

    def leave(self, key: bytes, call: Call) -> Call | None:
        """End a call without results: returns the call that leads now and has to be made, if there is one."""
        followers: Mapping[Call, None] = self._followers.get(key, {})
        if not self.leads(key, call):
            if call in followers:
                self._unfollow(key, call)
            return None
        if not followers:
            del self._leaders[key]
            return None
        heir = self._leaders[key] = next(iter(followers))
        self._unfollow(key, heir)
        return heir

    def leads(self, key: bytes, call: Call) -> bool:
        return key in self._leaders and self._leaders[key] == call

    def _unfollow(self, key: bytes, call: Call) -> None:
        del self._followers[key][call]
        self.following -= 1
        if not self._followers[key]:
            del self._followers[key]


Outcome = TypeVar("Outcome")


class LandedResults(Generic[Outcome]):
    """Results that came after rows of their key were looked up in vain: these rows need no call."""

    # A batch is looked up as a whole, and its rows are admitted later, one by one. Two equal rows are both looked up in
    # vain, and when the second is admitted the call of the first may have landed: then it is no flight any more.

    def __init__(self) -> None:
        # How many rows of each key were looked up in vain and wait to be admitted.
        self._in_line: Counter[bytes] = Counter()
        # Of keys in `_in_line` alone; during a lookup also of others, as the keys that it adds are not known yet.
        self._landed: dict[bytes, Outcome] = {}
        self._is_looking = False

    def looking(self) -> None:
        self._is_looking = True

    def looked(self, missed: Iterable[bytes]) -> None:
        """The lookup has ended: a row of each of these keys was looked up in vain, and waits to be admitted."""
        self._is_looking = False
        self._in_line.update(missed)
        for key in self._landed.keys() - self._in_line.keys():
            del self._landed[key]

    def wants(self, key: bytes) -> bool:
        """Whether a row may wait for the results of this key."""
        return self._is_looking or key in self._in_line

    def get(self, key: bytes) -> Outcome | None:
        return self._landed.get(key)

    def note(self, key: bytes, outcome: Outcome) -> None:
        """Note the outcome of a call that has landed, if a row waits for it."""
        if self.wants(key):
            self._landed[key] = outcome

    def admit(self, key: bytes) -> Outcome | None:
        """Admit a row: returns the outcome that has landed for it, if there is one."""
        if (in_line := self._in_line.pop(key, 1)) > 1:
            self._in_line[key] = in_line - 1
        elif not self._is_looking:
            return self._landed.pop(key, None)
        return self._landed.get(key)
