"""The costs of attempts: reserved of budgets and rate limits before an attempt begins, settled when it has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from ..._errors.checks import given_number
from ..._errors.exceptions import AsyncUDFError, FatalError
from ..._errors.failure import Failure
from ..._errors.figures import amount_
from ..._errors.records import error_text
from ..._errors.safe import one_line
from ..._stores.ledgers import Window
from ..gate import AskingAttempt, HostTask
from ..rates.option import RateLimit
from .amount import Amount, Amounts
from .option import MOST_UNTOLD, Budget, budget_label, spent_names

logger = logging.getLogger("asyncudf")


class SpendingAttempt(AskingAttempt, Protocol):
    """An attempt whose costs are settled; see the engine's `Attempt`."""

    reserved: Sequence[float] | None
    state: Any

    @property
    def rows(self) -> Sequence[Any]: ...
    @property
    def values(self) -> list[Any]: ...


class SettledGate(Protocol):
    """The gate of a rate limit."""

    def settle(self, attempt: AskingAttempt, place: int, reserved: float, used: float, now: float, /) -> None:
        """A call that was thought to cost so many permits has used other ones: later calls get the rest."""


class SpendingGate(Protocol):
    """The gate of a budget; see `BudgetGate`."""

    amounts: Amounts
    place: int
    learns: bool

    @property
    def last_asked(self) -> Amount | None: ...
    def need(self, attempt: AskingAttempt, /) -> float: ...
    def settle(self, attempt: AskingAttempt, reserved: float, cost: float, /, *, is_untold: bool) -> None: ...


class Spending:
    """Reserves the costs of attempts, and settles them by the `settle` of budgets and rate limits.

    Args:
        ask: calls a `settle` with the arguments of a row and its outcome (a result or an exception).
        is_refusal: whether the service has refused an attempt that ended with this failure.
        spent_error: makes the error of a call that a budget does not let begin, from the row, the window, what is
            spent, what the call needs (None: no cost is known), and how `settle` failed.
        ends_task: whether that error ends the task.
    """

    def __init__(
        self,
        task: HostTask,
        limits: Sequence[RateLimit],
        budgets: Sequence[Budget],
        ask: Callable[[Callable[..., float], Any, Any], float],
        *,
        is_refusal: Callable[[Failure], bool],
        spent_error: Callable[[Budget, Any, Window, float, float | None, str | None], AsyncUDFError],
        ends_task: bool,
        redacted: bool,
    ) -> None:
        self._task, self._budgets, self._ask = task, budgets, ask
        self._names = spent_names(budgets)
        self._settles = [*(one.settle for one in limits), *(one.settle for one in budgets)]  # by their places
        self._is_refusal, self._error_of, self.ends_task, self._redacted = is_refusal, spent_error, ends_task, redacted
        self._first = len(limits)  # place of the budgets among the costs
        self.gates: list[SpendingGate] = []  # of the budgets, in their order
        self._warned: set[str] = set()
        self._raised: dict[int, str] = {}  # by the `settle` of a limit or budget, by its place among the costs
        self.settled_by: dict[int, SettledGate] = {}  # of the rate limits, by their places

    def error_of(self, budget: Budget, place: int) -> Callable[[AskingAttempt, Amount, float | None], AsyncUDFError]:
        """Makes the error of a call that a budget does not let begin."""

        def error_of(attempt: Any, amount: Amount, need: float | None) -> AsyncUDFError:
            if budget.by is not None and amount.is_newly_spent:
                amount.is_newly_spent = False
                self._task.counters.totals.spent_keys += 1
            row, raised = attempt.values[0], self._raised.get(place)
            return self._error_of(budget, row, amount.during, amount.spent_by_all, need, raised)

        return error_of

    @property
    def is_settled(self) -> bool:
        """Whether what an attempt reserves may differ from what it costs."""
        return any(one is not None for one in self._settles) or any(gate.amounts.is_settled for gate in self.gates)

    def note_budgets(self) -> None:
        """Note what all runs have spent of the budgets with names, as far as this task knows."""
        for gate, budget in zip(self.gates, self._budgets, strict=False):  # a task that could not begin has no gates
            if budget.name is not None and (asked := gate.last_asked) is not None:
                told = (asked.during.name, asked.told, asked.spent_by_all, budget.amount, budget.unit)
                self._task.counters.totals.budgets[budget.name] = told

    def reserved(self, attempt: SpendingAttempt) -> Sequence[float]:
        """The costs of an attempt that has begun, as they were reserved."""
        assert attempt.costs is not None
        if any(gate.learns for gate in self.gates):
            return [*attempt.costs[: self._first], *(gate.need(attempt) for gate in self.gates)]
        return attempt.costs

    def settle(
        self, attempt: SpendingAttempt, results: Sequence[Any] | None, failure: Failure | None, *, is_cut: bool
    ) -> None:
        """Replace what an attempt has reserved by its cost.

        Args:
            results: the results of each row, as the function returned them, or the exception of the row.
            failure: the failure of the attempt, if it has no results.
            is_cut: the attempt was abandoned before its end, so its cost is not known.
        """
        reserved, state = attempt.reserved, attempt.state
        spent = dict((state is not None and state.spent) or {})
        attempt.reserved = None
        if state is not None:
            state.spent = None
        if reserved is not None:
            error = None if failure is None else failure.error
            outcomes = [error] * len(attempt.rows) if results is None else results
            is_refused = failure is not None and self._is_refusal(failure)
            if not is_cut:
                self._settle_permits(attempt, reserved, spent, outcomes, is_refused=is_refused)
            settled = self._settle_budgets(attempt, reserved, spent, outcomes, is_cut=is_cut, is_refused=is_refused)
            units = {budget.unit for budget in self._budgets}
            spent = settled | {unit: cost for unit, cost in spent.items() if unit not in units}
        totals = self._task.counters.totals
        for unit, cost in spent.items():
            totals.spent[unit] = totals.spent.get(unit, 0.0) + cost
            totals.spent_squares[unit] = totals.spent_squares.get(unit, 0.0) + cost * cost

    def _settle_permits(
        self,
        attempt: SpendingAttempt,
        reserved: Sequence[float],
        said: dict[str, float],
        outcomes: Sequence[Any],
        *,
        is_refused: bool,
    ) -> None:
        for place, settle in enumerate(self._settles[: self._first]):
            if settle is None:
                continue
            if isinstance(settle, str):
                used = said.get(settle, 0.0 if is_refused else None)
                if used is None and not all(isinstance(outcome, BaseException) for outcome in outcomes):
                    self._warn_of_unsaid(settle)
            else:
                used = self._cost_of(place, settle, attempt, outcomes)
            if used is not None:
                now = self._task.counters.clock()
                self.settled_by[place].settle(attempt, place, reserved[place], used, now)

    def _settle_budgets(
        self,
        attempt: SpendingAttempt,
        reserved: Sequence[float],
        said: dict[str, float],
        outcomes: Sequence[Any],
        *,
        is_cut: bool,
        is_refused: bool,
    ) -> dict[str, float]:
        """Settle the budgets; returns what the attempt cost each budget, by the names of `spent_names`."""
        spent = {}
        for gate, budget, name in zip(self.gates, self._budgets, self._names, strict=True):
            place, own = gate.place, said.get(budget.unit)
            if not gate.amounts.is_settled:
                continue
            is_untold = own is None
            if is_cut:
                cost = max(reserved[place], own or 0.0)
            elif budget.settle is not None:
                settled = self._cost_of(place, budget.settle, attempt, outcomes)
                is_untold = is_untold and settled is None
                cost = (reserved[place] if settled is None else settled) + (own or 0.0)
            else:
                cost = own if own is not None else 0.0 if is_refused else reserved[place]
                has_failed = all(isinstance(outcome, BaseException) for outcome in outcomes)
                is_untold = is_untold and not has_failed  # most failures are free
                if is_untold and budget.learns:
                    self._warn_of_silence(budget)
            if cost > reserved[place] * 1.001 and not budget.learns:
                self._warn_of_more(budget, cost, reserved[place], len(attempt.rows))
            gate.settle(attempt, reserved[place], cost, is_untold=is_untold)
            spent[name] = cost
        return spent

    def _warn_of_unsaid(self, unit: str) -> None:
        self._warn_once(
            "%s has given a result and not said what it used of its rate limit with settle=%r: call "
            "context.spend(amount, %r) before it returns. Such calls count with what cost= has taken",
            self._task.name,
            unit,
            unit,
        )

    def _warn_of_silence(self, budget: Budget) -> None:
        self._warn_once(
            "%s has given a result and not said what it cost of its budget of %s: call context.spend(amount, %r), "
            f"or give reserve=. Until a task knows a cost, it makes one call at a time, and at most {MOST_UNTOLD}",
            self._task.name,
            budget_label(budget),
            budget.unit,
        )

    def _warn_of_more(self, budget: Budget, cost: float, reserved: float, rows: int) -> None:
        self._warn_once(
            "a call of %s did cost %s %s and had reserved %s: the budget of %s may be passed. Let reserve= be what "
            "a call may cost at most%s",
            self._task.name,
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

    def _cost_of(
        self, place: int, settle: Callable[..., float], attempt: SpendingAttempt, outcomes: Sequence[Any]
    ) -> float | None:
        """The cost of an attempt by `settle`; None if `settle` failed: then the attempt costs what it had reserved."""
        try:
            return sum(self._costs(settle, attempt.values, outcomes))
        except FatalError as error:
            self._task.fail(error)
        except BaseException as error:  # code of the user's
            text = one_line(error_text(error, redacted=self._redacted))
            self._raised[place] = text
            self._task.counters.totals.note_unsettled(text)
            self._warn_once(
                "settle of %s raised %s: such calls count with what they had reserved", self._task.name, text
            )
        return None

    def _costs(self, settle: Callable[..., float], values: Sequence[Any], outcomes: Sequence[Any]) -> Iterator[float]:
        """The cost of each row, given its outcome: a result or an exception."""
        for value, outcome in zip(values, outcomes, strict=True):
            try:
                cost = self._ask(settle, value, outcome)
            except BaseException:
                if not isinstance(outcome, BaseException):
                    raise
                continue  # it does not take exceptions: a failed attempt costs nothing
            yield given_number(cost, "settle")
