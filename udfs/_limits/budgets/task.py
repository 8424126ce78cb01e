"""The gate of a budget."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter

from ..._errors.call_outcome import CallOutcome
from ..._errors.exceptions import AsyncUDFError
from ..._errors.failure import Failure
from ..gate import Aside, AskingAttempt, Gate, Key
from ..limited_task import LimitedTask
from .amount import Amount, Amounts, SpentByName, TaskAmounts
from .option import MOST_UNTOLD, Budget, Budgets, MaxCalls, budget_label


async def gates(budgets: Budgets, task: LimitedTask, first: int) -> list[BudgetGate]:
    """A gate for each budget, in one order in all functions: a task keeps one budget while it waits for the next."""
    found: list[tuple[str, BudgetGate]] = []
    for place, (budget, name) in enumerate(budgets.named(task.query), first):
        wake = partial(task.ask_again, place) if budget.by else partial(_wake, task.wake)
        amounts: Amounts
        if task.link is None:
            spent = task.own.shared(SpentByName, f"{name}:{budget.per or ''}:{budget.by is not None}")
            amounts = TaskAmounts(budget, task.shared_clock, spent, wake)
        else:
            from .ledger import shared_amounts

            waiting = partial(_waiting, task, place if budget.by else None)
            opened = shared_amounts(task.link, name, budget, task.store, wake, waiting)
            amounts = await task.closing.enter_async_context(opened)
        spending = task.spending
        gate = BudgetGate(amounts, budget, place, spending.error_of(budget, place), ends_task=spending.ends_task)
        spending.gates.append(gate)
        found.append((name, gate))
    if task.link is not None:
        found.sort(key=itemgetter(0))
    return [gate for _, gate in found]


def _wake(wake: Callable[[], None], key: Key) -> None:
    """The amount is the same for all keys."""
    wake()


def _waiting(task: LimitedTask, place: int | None, key: Key) -> int:
    """How many calls would begin now if their costs were there; with a place, only calls of this key count."""
    if place is None:
        return task.wanted_calls() - task.slots.in_flight
    return min(task.slots.capacity - task.slots.in_flight, 1 + task.waiting((place, key)))


class BudgetGate(Gate):
    """One budget: an attempt begins when what it may cost at most is reserved.

    Args:
        budget: the budget that `amounts` belong to.
        place: the index of the budget's reservations among the costs of an attempt.
        error_of: makes the error of a call that will never begin, from the amount that is spent and what the call
            needs; None: it is not known what a call needs.
        ends_task: whether that error ends the task; then calls in flight, which are paid for, may end before.
    """

    def __init__(
        self,
        amounts: Amounts,
        budget: Budget,
        place: int,
        error_of: Callable[[AskingAttempt, Amount, float | None], AsyncUDFError],
        *,
        ends_task: bool,
    ) -> None:
        self.amounts, self.place = amounts, place
        self.limit = "max_calls" if isinstance(budget, MaxCalls) else budget_label(budget)
        self.limits = (self.limit,)
        self._is_by_key = budget.by is not None
        self._only = None if budget.is_divided else amounts.of("")
        self._asked: tuple[Amount, float] | None = None  # by the last attempt that did, and what it needs
        self._reserved_of: dict[AskingAttempt, Amount] = {}  # of each attempt in flight
        self.learns = budget.learns
        self._most: float | None = None  # that an attempt did cost so far
        self._least = 1e-6 * budget.amount
        self._untold = 0  # attempts of which nobody has said what they cost, before the first that did
        self._error_of, self._ends_task = error_of, ends_task
        self.follows_calls = amounts.is_settled or ends_task

    @property
    def last_asked(self) -> Amount | None:
        """The amount that the last attempt asked; None: none has, or there is one for each key."""
        return None if self._is_by_key or self._asked is None else self._asked[0]

    def need(self, attempt: AskingAttempt) -> float:
        if self.learns:
            return self._least if self._most is None else self._most
        assert attempt.costs is not None
        return attempt.costs[self.place]

    def wait(self, attempt: AskingAttempt, now: float) -> float | Aside | None:
        key = (attempt.keys[self.place] or "") if self._is_by_key else ""
        amount = self._only or self.amounts.of(key)
        if self.learns and self._most is None:
            if self._reserved_of:
                return None
            if self._untold >= MOST_UNTOLD:
                raise self._error_of(attempt, amount, None)
        need = self.need(attempt)
        self._asked = amount, need
        if amount.ask(need):
            return 0.0
        seconds = self.amounts.seconds_left
        if amount.is_spent(need):
            if self._ends_task and self._reserved_of:
                return seconds  # the task is going to end, so no call of another key begins either
            raise self._error_of(attempt, amount, need)
        return Aside((self.place, key), seconds) if self._is_by_key else seconds

    def began(self, attempt: AskingAttempt, now: float) -> None:
        assert self._asked is not None
        amount, need = self._asked
        self._reserved_of[attempt] = amount
        amount.reserve(need)

    def ended(self, attempt: AskingAttempt, outcome: CallOutcome, failure: Failure | None, now: float) -> None:
        del self._reserved_of[attempt]

    def settle(self, attempt: AskingAttempt, reserved: float, cost: float, *, is_untold: bool) -> None:
        """An attempt has ended with this cost; `is_untold`: neither `settle` nor `context.spend` has told the cost."""
        if cost > self._least:  # else it was free, or nobody has said what it cost
            self._most = max(self._most or 0.0, cost)
        self._untold += is_untold
        self._reserved_of[attempt].settle(reserved, cost)
