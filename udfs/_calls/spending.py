"""What the attempts of a function cost: reserved of its budgets and rate limits before them, settled after them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from .._errors.exceptions import AsyncUDFError, BudgetSpentError, FatalError
from .._errors.records import error_text
from .._functions.signature import FunctionSpec
from .._policies.budget import CALLS, Budget, budget_label
from .._policies.failure import Failure
from .._policies.options import OnSpent, Options
from .._stores.ledgers import keeps_ledgers
from .._text.figures import amount_
from .._text.safe import one_line
from .gates import MOST_UNTOLD, BudgetGate, PermitGate, SharedAmount
from .invokers import Settlement
from .row import Call
from .slots import CallingOperator, CallSlot

logger = logging.getLogger("asyncudf")

LONGEST_ERROR = 150  # characters, of an error of `settle`


class Spending:
    """What attempts reserve, and do cost.

    Args:
        costs: of each attempt, in permits of each rate limit, and then of each budget; None if each call has costs of
            its own.
        is_refusal: whether the service has refused an attempt that ended with this failure.

    Attributes:
        permits: of the rate limits; None: there are none.
    """

    def __init__(
        self,
        operator: CallingOperator,
        options: Options,
        costs: Sequence[float] | None,
        spec: FunctionSpec,
        is_refusal: Callable[[Failure], bool],
    ) -> None:
        self._operator, self._options, self._costs, self._is_refusal = operator, options, costs, is_refusal
        self._settlement = Settlement(
            [*(limit.settle for limit in options.rate_limit), *(budget.settle for budget in options.budgets)], spec
        )
        self._first = len(options.rate_limit)  # place of the budgets among the costs
        self._gates: list[BudgetGate] = []
        self._warned: set[str] = set()
        self._raised: dict[int, str] = {}  # by the `settle` of a limit or budget, by its place among the costs
        self.permits: PermitGate | None = None

    def gate(self, budget: Budget, amount: SharedAmount) -> BudgetGate:
        """The gate of the next of the budgets."""
        error_of, ends_task = partial(self._spent_error, budget), self._options.on_spent is OnSpent.RAISE
        place = self._first + len(self._gates)
        gate = BudgetGate(amount, budget, place, self._costs, error_of, ends_task=ends_task)
        self._gates.append(gate)
        return gate

    @property
    def is_settled(self) -> bool:
        """Whether what an attempt reserves may differ from what it costs."""
        return self._settlement.is_needed or any(gate.amount.is_settled for gate in self._gates)

    def reserved(self, call: Call) -> Sequence[float]:
        """The costs of an attempt that has begun, as they were reserved."""
        costs = call.trouble.costs if self._costs is None else self._costs
        assert costs is not None
        if any(gate.learns for gate in self._gates):
            costs = [*costs[: self._first], *(gate.need(call) for gate in self._gates)]
        return costs

    def settle(
        self, slot: CallSlot, call: Call, results: Sequence[Any] | None, failure: Failure | None, *, is_cut: bool
    ) -> None:
        """Replace what an attempt has reserved by what it did cost.

        Args:
            results: of each row, as the function returned them; an exception where a row has one.
            failure: of the attempt, if it has no results.
            is_cut: nobody has waited for its end, so nobody knows what it costs.
        """
        reserved, said = slot.costs, slot.state.spent
        slot.costs = slot.state.spent = None
        spent = dict(said or {})
        if reserved is not None:
            error = None if failure is None else failure.error
            outcomes = [error] * len(call.rows) if results is None else results
            is_refused = failure is not None and self._is_refusal(failure)
            if not is_cut:
                self._settle_permits(call, reserved, outcomes)
            spent.update(self._settle_budgets(call, reserved, spent, outcomes, is_cut=is_cut, is_refused=is_refused))
        totals = self._operator.counters.totals
        for unit, cost in spent.items():
            totals.spent[unit] = totals.spent.get(unit, 0.0) + cost
            totals.spent_squares[unit] = totals.spent_squares.get(unit, 0.0) + cost * cost

    def _settle_permits(self, call: Call, reserved: Sequence[float], outcomes: Sequence[Any]) -> None:
        for place in filter(self._settlement.has, range(self._first)):
            assert self.permits is not None
            used = self._cost_of(place, call, outcomes)
            if used is not None:
                self.permits.settle(place, reserved[place], used, self._operator.counters.clock())

    def _settle_budgets(
        self,
        call: Call,
        reserved: Sequence[float],
        said: dict[str, float],
        outcomes: Sequence[Any],
        *,
        is_cut: bool,
        is_refused: bool,
    ) -> dict[str, float]:
        """Settle the budgets; returns what the attempt did cost, by unit, beside what the function has `said`."""
        spent = {}
        for gate, budget in zip(self._gates, self._options.budgets, strict=True):
            place, own = gate.place, said.get(budget.unit)
            if not gate.amount.is_settled:
                continue
            is_untold = own is None
            if is_cut:
                cost = max(reserved[place], own or 0.0)
            elif self._settlement.has(place):
                settled = self._cost_of(place, call, outcomes)
                is_untold = is_untold and settled is None
                cost = (reserved[place] if settled is None else settled) + (own or 0.0)
            else:
                cost = own if own is not None else 0.0 if is_refused else reserved[place]
                has_failed = all(isinstance(outcome, BaseException) for outcome in outcomes)
                is_untold = is_untold and not has_failed  # most failures are free
                if is_untold and budget.learns:
                    self._warn_of_silence(budget)
            if cost > reserved[place] * 1.001 and not budget.learns:
                self._warn_of_more(budget, cost, reserved[place], len(call.rows))
            gate.settle(reserved[place], cost, is_untold=is_untold)
            spent[budget.unit] = cost
        return spent

    def _warn_of_silence(self, budget: Budget) -> None:
        self._warn_once(
            "%s has given a result and not said what it cost of its budget of %s: call context.spend(amount, %r), "
            f"or give reserve=. Until a task knows a cost, it makes one call at a time, and at most {MOST_UNTOLD}",
            self._operator.name,
            budget_label(budget),
            budget.unit,
        )

    def _warn_of_more(self, budget: Budget, cost: float, reserved: float, rows: int) -> None:
        self._warn_once(
            "a call of %s did cost %s %s and had reserved %s: the budget of %s may be passed. Let reserve= be what "
            "a call may cost at most%s",
            self._operator.name,
            amount_(cost),
            budget.unit,
            amount_(reserved),
            budget_label(budget),
            "" if rows == 1 else "; a number is for all rows of a call, a function of the arguments for each",
        )

    def _warn_once(self, text: str, *values: Any) -> None:
        if text not in self._warned:
            self._warned.add(text)
            logger.warning(text, *values)

    def _untold_text(self, budget: Budget) -> str:
        raised = self._raised.get(self._first + self._options.budgets.index(budget))
        how = f"context.spend(amount, {budget.unit!r}) in the function, or give settle="
        if budget.settle is not None:
            error = "" if raised is None else f" (it raised {raised})"
            how = f"settle=, which has given no cost so far{error}"
        return (
            f"no cost is known of the first {MOST_UNTOLD} calls of {self._operator.name}, so its budget of "
            f"{budget_label(budget)} cannot be kept: no further call begins. Calls that were cut at a deadline count, "
            f"as the service may charge for them. Say what a call did cost by {how}; or give reserve=, what a call may "
            "cost at most"
        )

    def _cost_of(self, place: int, call: Call, outcomes: Sequence[Any]) -> float | None:
        """What an attempt did cost by `settle`; None if it has failed: the attempt counts with what it had reserved."""
        try:
            return self._settlement.of(place, call.values, outcomes)
        except FatalError as error:
            self._operator.fail(error)
        except BaseException as error:  # code of the user's
            text = one_line(error_text(error, redacted=self._options.redacted))[:LONGEST_ERROR]
            self._raised[place] = text
            self._operator.counters.totals.note_unsettled(text)
            self._warn_once(
                "settle of %s raised %s: such calls count with what they had reserved", self._operator.name, text
            )
        return None

    def _spent_error(self, budget: Budget, spent: float, need: float | None) -> AsyncUDFError:
        """The error of calls that the budget does not let begin; without a `need`, as no cost is known."""
        options, name = self._options, self._operator.name
        is_fatal = options.on_spent is OnSpent.RAISE
        kept = "The store keeps" if options.store is not None else "A store= keeps"
        if need is None:
            text, option = self._untold_text(budget), "budget"
        elif options.max_calls is not None and budget == Budget(options.max_calls, CALLS):
            text = (
                f"{name} has made the {options.max_calls:,} calls that max_calls= allows in one query, and there are "
                f"rows left. {kept} results that are paid for; asyncudf.dry_run(df, {name}, ...) counts the calls"
            )
            option = "max_calls"
        else:
            text = (
                f"{name} has spent {amount_(spent)} of its budget of {budget_label(budget)}, and the next call may "
                f"cost {amount_(need)}. {self._operator.counters.rows_done:,} rows of this task are done, and there "
                f"are rows left. {kept} results that are paid for"
            )
            if budget.name is None or not keeps_ledgers(options.store):
                text += ". Give the budget a name= and the function a disk or Redis store, and the next run"
            else:
                text += ", and what was spent: the next run, with a larger amount of this budget,"
            text += " goes on where this one has ended"
            option = "budget"
        if not is_fatal:
            return BudgetSpentError(text)
        error = FatalError(text)
        error.option = option
        return error
