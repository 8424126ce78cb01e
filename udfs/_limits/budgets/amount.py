"""The amounts of a budget: what is spent and reserved, and the part of a shared amount that a task holds."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import NamedTuple, Protocol

from ..._stores.ledgers import Window
from ..gate import Key
from .option import ROUNDING, Budget
from .windows import WHOLE_TIME, Windows

CALLS_AT_ONCE = 64  # calls for which a task asks at once
LOW = 0.5  # of what is to be there before calls need it: below it a task asks for more
COST_ROUNDING = 1e-9  # of what a call needs: the same amount after some arithmetic


class Amount(Protocol):
    """The amount that a task reserves from: of the whole budget, or of one key in the current window."""

    @property
    def is_newly_spent(self) -> bool:
        """Whether the next call that it turns away is the first, of those of all tasks."""
        ...

    @is_newly_spent.setter
    def is_newly_spent(self, value: bool, /) -> None: ...
    @property
    def during(self) -> Window: ...
    @property
    def told(self) -> float: ...
    @property
    def spent_by_all(self) -> float: ...
    def ask(self, need: float, /) -> bool:
        """Whether so much may be reserved now."""
        ...

    def is_spent(self, need: float, /) -> bool:
        """Whether so much will never be left."""
        ...

    def reserve(self, need: float, /) -> None: ...
    def settle(self, reserved: float, cost: float, /) -> None:
        """An attempt that had reserved so much has ended, and did cost so much."""


class Amounts(Protocol):
    """The amounts of a budget: one for each key, in the window of now."""

    is_settled: bool  # whether what is reserved may come back

    @property
    def seconds_left(self) -> float | None:
        """After which there is another window; None: there is none."""
        ...

    def of(self, key: Key, /) -> Amount: ...


class Spent:
    """What is spent and reserved of an amount, by all functions of a task that have its budget."""

    __slots__ = ("is_newly_spent", "reserved", "spent")

    def __init__(self) -> None:
        self.spent = self.reserved = 0.0
        self.is_newly_spent = True


class TaskBudget:
    """An amount of a budget in a task that is the whole job.

    Args:
        settled: called when what was reserved has come back, or is spent.

    Attributes:
        is_settled: whether what is reserved may come back.
        told: when `spent_by_all` was told, by the clock of who told it; 0: the task is alone.
    """

    # spent + reserved <= _total, but for attempts that cost more than they reserved

    __slots__ = ("_settled", "_sums", "_total", "during", "is_settled")

    told = 0.0

    def __init__(
        self, total: float, during: Window, sums: Spent, *, is_settled: bool, settled: Callable[[], None]
    ) -> None:
        self._total, self.during, self._sums, self.is_settled, self._settled = total, during, sums, is_settled, settled

    @property
    def is_newly_spent(self) -> bool:
        """Whether the next call that it turns away is the first, of those of all tasks."""
        return self._sums.is_newly_spent

    @is_newly_spent.setter
    def is_newly_spent(self, value: bool) -> None:
        self._sums.is_newly_spent = value

    def ask(self, need: float) -> bool:
        """Whether so much may be reserved now."""
        return self._sums.spent + self._sums.reserved + need <= self._total * (1 + ROUNDING)

    def is_spent(self, need: float) -> bool:
        """Whether so much will never be left."""
        return self._sums.reserved <= ROUNDING * self._total and not self.ask(need)  # sums of floats are seldom 0 again

    def reserve(self, need: float) -> None:
        if self.is_settled:
            self._sums.reserved += need
        else:
            self._sums.spent += need

    def settle(self, reserved: float, cost: float) -> None:
        """An attempt that had reserved so much has ended, and did cost so much."""
        self._sums.reserved = max(0.0, self._sums.reserved - reserved)
        self._sums.spent += cost
        self._settled()

    @property
    def spent_by_all(self) -> float:
        """What all tasks have spent `during` the window, as far as it is known."""
        return self._sums.spent


class SpentByName:
    """What is spent in the newest window by all budgets of one name, even if their amounts differ.

    Attributes:
        wakes: a callback for each function that has the budget: called with a key whose calls may begin.
    """

    def __init__(self) -> None:
        self._window = WHOLE_TIME
        self._sums: dict[Key, Spent] = {}
        self.wakes: list[Callable[[Key], None]] = []

    def of(self, window: Window, key: Key) -> Spent:
        if window != self._window:
            self._window, self._sums = window, {}
        return self._sums.setdefault(key, Spent())


class TaskAmounts:
    """The amounts of a budget where one task is the whole job.

    Args:
        time: returns seconds since 1970.
        spent: the spending of all functions of the task that have the budget.
        wake: called with a key when another function may have left some of its amount.
    """

    # _amounts: the amounts of the current window that were asked for

    def __init__(
        self, budget: Budget, time: Callable[[], float], spent: SpentByName, wake: Callable[[Key], None]
    ) -> None:
        self._total, self.is_settled, self._time = budget.amount, budget.is_settled, time
        self._spent, self._wake = spent, wake
        spent.wakes.append(wake)
        self._windows = Windows(budget.per)
        self.window = self._windows.at(time())
        self._amounts: dict[Key, TaskBudget] = {}

    def of(self, key: Key) -> TaskBudget:
        if (now := self._windows.at(self._time())) is not self.window:
            self.window, self._amounts = now, {}
        amount = self._amounts.get(key)
        if amount is None:
            amount = self._amounts[key] = TaskBudget(
                self._total,
                now,
                self._spent.of(now, key),
                is_settled=self.is_settled,
                settled=partial(self._wake_others, key),
            )
        return amount

    def _wake_others(self, key: Key) -> None:
        for wake in self._spent.wakes:
            if wake is not self._wake:
                wake(key)

    @property
    def seconds_left(self) -> float | None:
        """After which there is another window; None: there is none."""
        return self.window.left(self._time())


MOST_SPENT = 10_000  # keys of which a task remembers that they are spent; of others it asks again


class KeyAmount:
    """The part of a key's amount in one window that the task holds."""

    # available: granted, and not reserved
    # block: calls for which is asked at once
    # in_flight, reserved: attempts whose settlement may give something back, and what they have reserved
    # is_held: the coordinator counts this task among the holders
    # is_newly_spent: the next call that is turned away is the first of all tasks
    # is_scarce: the last block was not whole, so nothing is asked for before a call needs it
    # is_used: something was reserved since the last question
    # need: what the next call needs; 0: none asks
    # over: the smallest need that was refused for good
    # unsaid: what is to be added to what the coordinator has as spent
    # usual: what the last call has needed

    __slots__ = (
        "available", "block", "in_flight", "is_held", "is_newly_spent", "is_scarce", "is_used", "key", "need", "over",
        "reserved", "spent_by_all", "unsaid", "usual", "window",
    )  # fmt: skip

    def __init__(self, window: OpenWindow, key: Key) -> None:
        self.window, self.key = window, key
        self.available = self.need = self.reserved = self.unsaid = self.usual = self.spent_by_all = 0.0
        self.in_flight, self.block = 0, 1
        self.is_held = self.is_used = self.is_newly_spent = self.is_scarce = False
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
        self.need, self.usual, self.is_used = 0.0, need, True
        if self.window.is_settled:
            self.in_flight += 1
            self.reserved += need
            if self._is_low:
                self.window.ask_for(self)

    @property
    def _ahead(self) -> float:
        """How much to hold before a call needs it, while calls are made."""
        return min(self.block * self.usual, self.reserved) if self.is_used and not self.is_scarce else 0.0

    @property
    def _is_low(self) -> bool:
        ahead, available = self._ahead, self.available
        return available < LOW * ahead and available + self.usual <= ahead

    def settle(self, reserved: float, cost: float) -> None:
        self.in_flight -= 1
        self.reserved = max(0.0, self.reserved - reserved) if self.in_flight else 0.0
        self.available += max(0.0, reserved - cost)
        self.unsaid += max(0.0, cost - reserved)
        self.window.changed[self] = None

    def question(self, *, is_last: bool) -> Question:
        """The next question to the coordinator about this amount; it also gives back what the task does not need."""
        is_asking = bool(self.need) and not self.has_enough and not is_last
        need = want = 0.0
        if is_asking:
            need, want = self.need, self.block * self.need
            if self.window.is_settled:  # as a task that is killed loses it, no more than is in flight or would be
                want = min(want, max(need * max(1, self.window.waiting_calls(self.key)), self.reserved))
        elif not is_last and self._is_low:
            need, want = self.usual, self._ahead - self.available
        used = self.reserved if self.window.is_settled else self.available  # what calls will perhaps need in a moment
        spare = 0.0 if is_last or is_asking else max(self.need, used if self.is_used else 0.0)
        back = max(0.0, self.available - spare)
        self.available -= back
        added, self.unsaid, self.is_used = self.unsaid - back, 0.0, False
        keeps = not is_last and bool(self.in_flight or self.available)
        return Question(self, added, need, want, keeps)


class Question(NamedTuple):
    """What a task tells the coordinator about the amount of a key, and what it asks for."""

    of: KeyAmount
    added: float  # to what the coordinator has as spent
    need: float
    want: float
    keeps: bool  # whether the task has something of it in flight or available, whatever it gets


class Reply(NamedTuple):
    """The answer of the coordinator to a `Question`."""

    got: float
    verdict: str
    spent: float


class OpenWindow:
    """The amounts of a window that the task uses.

    Args:
        waiting: how many calls of a key would begin now if their costs were there.

    Attributes:
        run: the coordinator's name for the window; another name means that it restarted empty.
        told: when the coordinator last said what is spent, by its clock.
        changed: what the next question is about.
        held: of what the task has something in flight or available.
        waiting: what others hold, which is asked for again after a moment.
    """

    # _amounts: those in use; _spent: those of which calls were turned away

    def __init__(
        self, window: Window, poke: Callable[[], None], waiting: Callable[[Key], int], *, is_settled: bool
    ) -> None:
        self.window, self.is_settled, self.waiting_calls, self._poke = window, is_settled, waiting, poke
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
        """Ask again for amounts that other tasks hold, and give back amounts that no call needs any more.

        Returns the amounts whose calls are to be woken: a call that still needs its amount asks before the next look.
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
        """The next of the changed amounts, as many as fit into one question."""
        taken = [*islice(self.changed, most)]
        for amount in taken:
            del self.changed[amount]
        return taken

    def note(self, question: Question, answer: Reply) -> None:
        """Take in the answer of the coordinator; calls that still lack their costs ask again."""
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
            amount.is_scarce = answer.got + question.need <= question.want
            amount.need = 0.0  # the call that asked may need none by now; else it asks again
        (self.held.add if amount.is_held else self.held.discard)(amount)
        if amount not in self.waiting:
            self._forget(amount)

    def _forget(self, amount: KeyAmount) -> None:
        """Drop an amount that the task neither holds nor has a question about."""
        if not (amount.is_held or amount in self.changed):
            self._amounts.pop(amount.key, None)
