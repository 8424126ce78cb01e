"""The option `budget`: what the calls of a job may cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from asyncudf.queues._public import public

from ..._errors.checks import (
    LARGEST,
    Seconds,
    amount,
    check_cost,
    check_settle,
    given_number,
    positive_int,
    several,
    text,
    twice,
)
from ..._errors.exceptions import OptionError
from ..._errors.figures import amount_
from ..._errors.safe import safe_repr
from ..keys import by_label, key_names
from ..limited_task import Limit, OfJob
from .windows import checked_per, per_label

if TYPE_CHECKING:
    from ..gate import Gate
    from ..limited_task import LimitedTask

CALLS = "calls"  # the unit of which each call costs 1
ROUNDING = 1e-9  # of an amount: sums of floats
# Without reserve=, attempts whose costs nobody says would reserve nothing, and the budget would hold none of them back.
MOST_UNTOLD = 5


@public("asyncudf")
@dataclasses.dataclass(frozen=True)
class Budget:
    """At most so much may be spent by all calls of a job.

    Before each attempt the function reserves what it may cost at most; if that is not left, no call begins. After it
    the reservation is replaced by what the attempt did cost, and the difference is there for other calls. So calls in
    flight cannot pass the amount together, in whatever task they run.

    Args:
        amount: how much may be spent, in `unit`.
        unit: the unit of the amount, "USD" unless given; or a text such as "tokens". With "calls" each attempt costs 1.
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

    An attempt that is cancelled, at its deadline or with its task, counts with its reservation: it is not known what
    the service charges. The same is so if `settle` raises for a result; the summary, the report and the manifest say
    for how many attempts it did, and with which error. In a call of many rows a number is for the call; functions are
    asked for each row, and the sum counts.

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
        """Whether what a call may cost is learned from earlier calls."""
        return self.reserve is None and self.unit != CALLS

    @property
    def is_divided(self) -> bool:
        """Whether it has an amount for each window or key."""
        return self.per is not None or self.by is not None

    @property
    def is_settled(self) -> bool:
        """Whether the cost of an attempt is known only when it has ended; it counts in `spent` then."""
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

    @property
    def asks(self) -> bool:
        return callable(self.reserve)

    def asking(self, of_row: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Budget:
        """A copy that calls `reserve` through `of_row`, if it is a function."""
        return dataclasses.replace(self, reserve=of_row(self.reserve)) if callable(self.reserve) else self

    def cost_of(self, arguments: Sequence[Any]) -> float:
        """What a call with these arguments may cost at most.

        Raises:
            FatalError: `reserve` did not return a number of 0 or more; it would fail for every row, so the task ends.
            BaseException: what it raises.
        """
        if self.reserve is None:
            return 1.0 if self.unit == CALLS else 0.0  # what is reserved then, the gate knows
        return given_number(self.reserve(*arguments) if callable(self.reserve) else self.reserve, "reserve of a budget")


@dataclasses.dataclass(frozen=True)
class MaxCalls(Budget):
    """What `max_calls=` means: a budget of calls."""

    unit: str = CALLS


def max_calls(value: Any, name: str) -> int:
    """What the option `max_calls=` accepts."""
    return positive_int(value, name, most=LARGEST)


class Budgets(tuple[Budget, ...], Limit):
    """All budgets of a function."""

    __slots__ = ()

    holds_back = False  # what is left of an amount is mostly there

    @property
    def counted(self) -> Sequence[Budget]:
        return self

    @property
    def of_job(self) -> Sequence[OfJob]:
        return [
            OfJob("max_calls", None, takes_name=False) if isinstance(one, MaxCalls) else OfJob("a budget", one.name)
            for one in self
        ]

    def named(self, query: str) -> list[tuple[Budget, str]]:
        """Each budget with the name under which tasks share it; the names differ.

        A budget without a name belongs to the query: it is shared with an equal budget in another use of the function.
        """
        names: list[str] = []
        for budget in self:
            of_query = f"{query}:{budget.unit}:{float(budget.amount)!r}"
            equal = sum(name.startswith(f"{of_query}:") for name in names)
            names.append(f"{of_query}:{equal}" if budget.name is None else f"{budget.name}:{budget.unit}")
        return list(zip(self, names, strict=True))

    async def gates(self, task: LimitedTask, first: int) -> Sequence[Gate]:
        from .task import gates

        return await gates(self, task, first)


def budgets_label(budgets: Iterable[Budget]) -> str:
    """The option `budget` as people are shown it."""
    return ", ".join(map(budget_label, budgets))


def spent_names(budgets: Sequence[Budget]) -> list[str]:
    """The name of each budget in the figures: the unit, or unit and name where two budgets have one unit.

    >>> spent_names([Budget(20, name="day"), Budget(300, name="month"), Budget(1e6, "tokens", name="model")])
    ['USD of "day"', 'USD of "month"', 'tokens']
    """
    units = [one.unit for one in budgets]
    return [
        one.unit if one.name is None or units.count(one.unit) == 1 else f'{one.unit} of "{one.name}"' for one in budgets
    ]


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
