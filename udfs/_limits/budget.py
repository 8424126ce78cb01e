"""What the calls of a job may cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from asyncudf.queues._public import public

from .._errors.call_outcome import CallOutcome
from .._errors.checks import Seconds, amount, check_cost, check_settle, given_number, several, text, twice
from .._errors.exceptions import AsyncUDFError, OptionError
from .._errors.failure import Failure
from .._errors.figures import amount_
from .._errors.safe import safe_repr
from .._stores.key_ledgers import Window
from .by_key import Key, by_label, key_names
from .gate import Aside, AskingAttempt, Gate
from .windows import WHOLE_TIME, Windows, checked_per, per_label

if TYPE_CHECKING:
    from .key_amounts import KeyAmount
    from .keyed_budget import KeyedBudget
    from .shared_budget import SharedBudget

CALLS = "calls"  # the unit of which each call costs 1
ROUNDING = 1e-9  # of an amount: sums of floats


@public("asyncudf")
@dataclasses.dataclass(frozen=True)
class Budget:
    """At most so much may be spent by all calls of a job.

    Before each attempt the function reserves what it may cost at most; if that is not left, no call begins. After it
    the reservation is replaced by what the attempt did cost, and the difference is there for other calls. So calls in
    flight cannot pass the amount together, in whatever task they run.

    Args:
        amount: that may be spent, in `unit`.
        unit: of the amount, "USD" unless given; a text of your own, such as "tokens". Of "calls" each attempt costs 1.
        reserve: what a call may cost at most: a number, or a plain function of the call's arguments. If it is left out,
            a call reserves the most that one has cost in its task so far, and until a first cost is known, a task
            makes one call at a time; after five that do not say what they cost no further call begins, and rows follow
            `on_spent`. So calls that cost more than all before them may pass the amount.
        settle: what a call did cost: a plain function of the arguments and the result, as the function returned it; of
            an attempt that failed it gets the exception. If it raises for an exception, the attempt has cost nothing.
            Without it an attempt costs what it reserved, or what `context.spend` says; one that the service refused
            costs what `context.spend` says.
        name: budgets of one name are one budget: over queries and functions of an application, over jobs that have one
            `coordinator`, and over runs that use one disk or Redis `store`. If their amounts differ, a call begins when
            what all have spent leaves enough of its own. Without a name a budget is of one query. Budgets of one name
            that differ in `per` are others.
        per: "day", "month", or seconds (a number or a timedelta): each such window has the amount. Windows are of UTC,
            by the coordinator's clock. An attempt belongs to the window in which it begins. In a window that is spent
            rows follow `on_spent`: they do not wait for the next one.
        by: the name of a parameter of the function, such as "tenant", or several: each of their values has the amount,
            NULL too. `on_spent` concerns the rows of a value that is spent; the others are called. A column fills each
            of the parameters, and the function takes one row a call. Values are compared as in a store, which needs
            the extra `store`.

    An attempt that is cancelled, at its deadline or with its task, counts with its reservation: nobody knows what the
    service charges. The same is so if `settle` raises for a result; the summary, the report and the manifest say for
    how many attempts it did, and with which error. In a call of many rows a number is for the call;
    functions are asked for each row, and the sum counts.

    Raises:
        OptionError: a value that cannot work.

    >>> from asyncudf.testing import run_rows
    >>> async def ask(question: str):
    ...     return {"answer": question.upper(), "price": 0.3}
    >>> budget = Budget(1.0, reserve=0.5, settle=lambda question, result: result["price"])
    >>> answers = run_rows(ask, ["a", "b", "c", "d"], capacity=1, budget=budget, on_spent="null")
    >>> [answer and answer["answer"] for answer in answers]
    ['A', 'B', None, None]
    """

    amount: float
    unit: str = "USD"
    reserve: float | Callable[..., float] | None = None
    settle: Callable[..., float] | None = None
    name: str | None = None
    per: Seconds | Literal["day", "month"] | None = field(default=None, kw_only=True)
    by: str | Sequence[str] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "amount", amount(self.amount, "amount of a budget"))
        text(self.unit, "unit of a budget")
        if self.name is not None:
            text(self.name, "name of a budget")
        object.__setattr__(self, "per", checked_per(self.per))
        object.__setattr__(self, "by", key_names(self.by))
        check_cost(self.reserve, "reserve", "lambda text: 0.002")
        check_settle(self.settle, "answer.cost")
        for option in ("reserve", "settle"):
            if getattr(self, option) is not None and self.unit == CALLS:
                raise OptionError(f"{option} is never used with the unit {CALLS!r}: each attempt costs 1; leave it out")

    @property
    def learns(self) -> bool:
        """Whether what a call may cost is learnt from those before it."""
        return self.reserve is None and self.unit != CALLS

    @property
    def is_divided(self) -> bool:
        """Whether it has an amount for each window or key."""
        return self.per is not None or self.by is not None

    @property
    def is_settled(self) -> bool:
        """Whether what an attempt did cost is known at its end only; it counts in `spent` then."""
        return self.unit != CALLS

    @classmethod
    def all_of(cls, value: Any, name: str) -> tuple[Budget, ...]:
        """What the option `budget=` accepts: None, one budget or several."""
        given = several(value, name, cls, "a Budget, such as Budget(20, reserve=lambda text: 0.002)")
        if (label := twice([one.name or one.unit for one in given])) is not None:
            raise OptionError(
                f"{name} has two budgets called {safe_repr(label)}, by their name or unit: give each a name of its "
                "own, or write one budget"
            )
        return given

    def reservation_of(self, arguments: Sequence[Any]) -> float:
        """What a call with these arguments may cost at most.

        Raises:
            FatalError: `reserve` did not return a number of 0 or more; it would fail for every row, so the task ends.
            BaseException: what it raises.
        """
        if self.reserve is None:
            return 1.0 if self.unit == CALLS else 0.0  # what is reserved then, the gate knows
        return given_number(self.reserve(*arguments) if callable(self.reserve) else self.reserve, "reserve of a budget")


def budget_label(budget: Budget) -> str:
    """A budget as people are shown it.

    >>> budget_label(Budget(20, reserve=0.01)), budget_label(Budget(1e6, "tokens", 500, name="model"))
    ('20 USD', '1,000,000 tokens of "model"')
    >>> budget_label(Budget(20, per="day", by="tenant"))
    '20 USD a day by "tenant"'
    """
    per = "" if budget.per is None else f" {per_label(budget.per)}"  # type: ignore[arg-type]  # it was checked
    by = "" if budget.by is None else f" by {by_label(budget.by)}"
    named = "" if budget.name is None else f' of "{budget.name}"'
    return f"{amount_(budget.amount)} {budget.unit}{per}{by}{named}"


# What a task reserves from: the last of them where there are windows or keys, the first if the task is the whole job.
SharedAmount: TypeAlias = "TaskBudget | SharedBudget | KeyAmount"
Amounts: TypeAlias = "TaskAmounts | SharedBudget | KeyedBudget"  # of a budget: one for each key, in the window of now


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
    """What is spent of the budgets of one name, whatever their amounts, in the newest window that was asked for.

    Attributes:
        wakes: one for each function that has the budget: called with a key of which calls may begin.
    """

    def __init__(self) -> None:
        self._window = WHOLE_TIME
        self._sums: dict[Key, Spent] = {}
        self.wakes: list[Callable[[Key], None]] = []

    def of(self, window: Window, key: Key) -> Spent:
        if window != self._window:
            self._window, self._sums = window, {}
        return self._sums.setdefault(key, Spent())


# Without reserve=, attempts whose costs nobody says would reserve nothing, and the budget would hold none of them back.
MOST_UNTOLD = 5


class TaskAmounts:
    """The amounts of a budget in a task that is the whole job, by the `time` since 1970.

    Args:
        spent: by all functions of the task that have the budget.
        wake: is called with a key when another one of them may have left something of it.
    """

    # _amounts: those of the window that were asked for

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


class BudgetGate(Gate):
    """One budget: an attempt begins when what it may cost at most is reserved.

    Args:
        budget: whose amounts they are.
        place: of the budget's reservations among the costs of an attempt.
        error_of: makes the error of a call that will never begin, of the amount that is spent and of what the call
            needs; None: nobody knows what a call needs.
        ends_task: whether that error ends the task; then calls in flight, which are paid for, may end before.
    """

    def __init__(
        self,
        amounts: Amounts,
        budget: Budget,
        place: int,
        error_of: Callable[[AskingAttempt, SharedAmount, float | None], AsyncUDFError],
        *,
        ends_task: bool,
    ) -> None:
        self.amounts, self.place, self.limit = amounts, place, budget_label(budget)
        self._is_by_key = budget.by is not None
        self._only = None if budget.is_divided else amounts.of("")
        self._asked: tuple[SharedAmount, float] | None = None  # by the last attempt that did, and what it needs
        self._reserved_of: dict[AskingAttempt, SharedAmount] = {}  # of each attempt in flight
        self.learns = budget.learns
        self._most: float | None = None  # that an attempt did cost so far
        self._least = 1e-6 * budget.amount
        self._untold = 0  # attempts of which nobody has said what they cost, before the first that did
        self._error_of, self._ends_task = error_of, ends_task
        self.follows_calls = amounts.is_settled or ends_task

    @property
    def last_asked(self) -> SharedAmount | None:
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
        """An attempt that had reserved so much did cost so much; `is_untold`: as far as anybody has said."""
        if cost > self._least:  # else it was free, or nobody has said what it cost
            self._most = max(self._most or 0.0, cost)
        self._untold += is_untold
        self._reserved_of[attempt].settle(reserved, cost)
