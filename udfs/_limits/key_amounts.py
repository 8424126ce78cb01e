"""What a task has of the amounts of a budget, of which each key has one in each window."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from .._stores.key_ledgers import Window
from .by_key import Key
from .shared_budget import CALLS_AT_ONCE, COST_ROUNDING

MOST_SPENT = 10_000  # keys of which a task remembers that they are spent; of others it asks again


class KeyAmount:
    """What the task has of the amount of one key in one window."""

    # available: granted, and not reserved
    # block: calls for which is asked at once
    # in_flight, reserved: attempts whose settlement may give something back, and what they have reserved
    # is_held: the coordinator counts this task among the holders
    # is_newly_spent: the next call that is turned away is the first of all tasks
    # is_used: something was reserved since the last question
    # need: what the next call needs; 0: none asks
    # over: the smallest need that was refused for good
    # unsaid: what is to be added to what the coordinator has as spent

    __slots__ = (
        "available", "block", "in_flight", "is_held", "is_newly_spent", "is_used", "key", "need", "over", "reserved",
        "spent_by_all", "unsaid", "window",
    )  # fmt: skip

    def __init__(self, window: OpenWindow, key: Key) -> None:
        self.window, self.key = window, key
        self.available = self.need = self.reserved = self.unsaid = self.spent_by_all = 0.0
        self.in_flight, self.block = 0, 1
        self.is_held = self.is_used = self.is_newly_spent = False
        self.over = math.inf

    @property
    def during(self) -> Window:
        return self.window.window

    @property
    def told(self) -> float:
        return self.window.told

    @property
    def has_enough(self) -> bool:
        return self.need * (1 - COST_ROUNDING) <= self.available

    def ask(self, need: float) -> bool:
        if need <= 0:
            return True
        self.need = need
        if not self.has_enough and need < self.over:
            self.window.ask_for(self)
        return self.has_enough

    def is_spent(self, need: float) -> bool:
        return need >= self.over

    def reserve(self, need: float) -> None:
        self.available = max(0.0, self.available - need)
        self.need, self.is_used = 0.0, True
        if self.window.is_settled:
            self.in_flight += 1
            self.reserved += need

    def settle(self, reserved: float, cost: float) -> None:
        self.in_flight -= 1
        self.reserved = max(0.0, self.reserved - reserved) if self.in_flight else 0.0
        self.available += max(0.0, reserved - cost)
        self.unsaid += max(0.0, cost - reserved)
        self.window.changed[self] = None

    def question(self, *, is_last: bool) -> Question:
        """What is to be said and asked of it; what the task does not need is given back."""
        is_asking = bool(self.need) and not self.has_enough and not is_last
        want = 0.0
        if is_asking:
            want = self.block * self.need
            if self.window.is_settled:  # no more than is in flight: a task that is killed loses both
                want = min(want, max(self.need, self.reserved))
        spare = 0.0 if is_last or is_asking else max(self.need, self.reserved if self.is_used else 0.0)
        back = max(0.0, self.available - spare)
        self.available -= back
        added, self.unsaid, self.is_used = self.unsaid - back, 0.0, False
        keeps = not is_last and bool(self.in_flight or self.available)
        return Question(self, added, self.need if is_asking else 0.0, want, keeps)


class Question(NamedTuple):
    """What a task says and asks of the amount of a key."""

    of: KeyAmount
    added: float  # to what the coordinator has as spent
    need: float
    want: float
    keeps: bool  # whether the task has something of it in flight or available, whatever it gets


class Answer(NamedTuple):
    """What the coordinator says of it."""

    got: float
    verdict: str
    spent: float


class OpenWindow:
    """The amounts of a window, as far as the task uses them.

    Attributes:
        run: the coordinator's name for the window; another name means that it restarted empty.
        told: when the coordinator last said what is spent, by its clock.
        changed: what the next question is about.
        held: of what the task has something in flight or available.
        waiting: what others hold, which is asked for again after a moment.
    """

    # _amounts: those in use; _spent: those of which calls were turned away

    def __init__(self, window: Window, poke: Callable[[], None], *, is_settled: bool) -> None:
        self.window, self.is_settled, self._poke = window, is_settled, poke
        self.run, self.told = "", 0.0
        self._amounts: dict[Key, KeyAmount] = {}
        self._spent: dict[Key, KeyAmount] = {}
        self.changed: dict[KeyAmount, None] = {}
        self.held: set[KeyAmount] = set()
        self.waiting: set[KeyAmount] = set()

    def of(self, key: Key) -> KeyAmount:
        amount = self._amounts.get(key) or self._spent.get(key)
        if amount is None:
            amount = self._amounts[key] = KeyAmount(self, key)
        return amount

    def ask_for(self, amount: KeyAmount) -> None:
        """Ask for what the next call needs, unless that has just been done."""
        if amount not in self.waiting:
            self.changed[amount] = None
            self._poke()

    def look_again(self) -> list[KeyAmount]:
        """Ask again for what others hold, and give back what is not needed any more.

        Returns what has calls that are to be woken: one that still needs what it has got says so before the next look.
        """
        for amount in self.waiting:
            if amount.need:
                self.changed[amount] = None
            else:
                self._forget(amount)
        self.waiting.clear()
        held = [amount for amount in self.held if amount.available]
        self.changed.update((amount, None) for amount in held if not amount.need)
        needed = [amount for amount in held if amount.need]
        for amount in needed:
            amount.need = 0.0
        return needed

    def take(self, most: int) -> list[KeyAmount]:
        """The next of what is changed, as many as one question may have."""
        taken = [*islice(self.changed, most)]
        for amount in taken:
            del self.changed[amount]
        return taken

    def note(self, question: Question, answer: Answer) -> None:
        """The coordinator has answered; who still needs what it does not have asks again."""
        amount = question.of
        amount.available += answer.got
        amount.spent_by_all = answer.spent
        amount.is_held = question.keeps or answer.got > 0
        if answer.got:
            amount.block = min(CALLS_AT_ONCE, 2 * amount.block)
        elif answer.verdict in "12":
            amount.over = min(amount.over, question.need)
            amount.is_newly_spent |= answer.verdict == "2"
            self._spent[amount.key] = amount
            if len(self._spent) > MOST_SPENT:
                del self._spent[next(iter(self._spent))]
        elif question.want:
            self.waiting.add(amount)
        if question.want:
            amount.need = 0.0  # the call that asked may need none by now; else it asks again
        (self.held.add if amount.is_held else self.held.discard)(amount)
        if amount not in self.waiting:
            self._forget(amount)

    def _forget(self, amount: KeyAmount) -> None:
        """An amount of which the task has nothing, and has nothing to say, is the coordinator's alone."""
        if not (amount.is_held or amount in self.changed):
            self._amounts.pop(amount.key, None)
