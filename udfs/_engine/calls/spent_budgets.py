"""The error of calls that a budget does not let begin."""

from __future__ import annotations

from typing import Any

from ..._errors.exceptions import AsyncUDFError, BudgetSpentError, FatalError
from ..._errors.figures import amount_
from ..._errors.records import shown_input
from ..._errors.safe import safe_repr
from ..._functions.options import OnSpent, Options
from ..._functions.signature import FunctionSpec
from ..._limits.budget import CALLS, MOST_UNTOLD, Budget, budget_label
from ..._stores.ledgers import Window, keeps_ledgers
from .slots import CallingOperator


class SpentBudgets:
    """Says what was spent, and how the rest of the rows may be done."""

    def __init__(self, operator: CallingOperator, options: Options, spec: FunctionSpec) -> None:
        self._operator, self._options, self._spec = operator, options, spec

    def __call__(
        self, budget: Budget, row: Any, window: Window, spent: float, need: float | None, raised: str | None
    ) -> AsyncUDFError:
        """Without a `need` no cost is known; `raised`: how `settle` has failed."""
        options, name = self._options, self._operator.name
        is_fatal = options.on_spent is OnSpent.RAISE
        kept = "The store keeps" if options.store is not None else "A store= keeps"
        if need is None:
            text, option = self._untold_text(budget, raised), "budget"
        elif options.max_calls is not None and budget == Budget(options.max_calls, CALLS):
            text = (
                f"{name} has made the {options.max_calls:,} calls that max_calls= allows in one query, and there are "
                f"rows left. {kept} results that are paid for; asyncudf.dry_run(df, {name}, ...) counts the calls"
            )
            option = "max_calls"
        else:
            text = (
                f"{name} has spent {amount_(spent)} of its budget of {budget_label(budget)}"
                f"{self._key_text(budget, row)}{window.name and f' in {window.name}'}, and the next call may cost "
                f"{amount_(need)}"
            )
            if is_fatal:  # the error of a row is like that of other rows
                text += (
                    f". {self._operator.counters.rows_done:,} rows of this task are done, and there are rows left. "
                    f"{kept} results that are paid for"
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

    def _key_text(self, budget: Budget, row: Any) -> str:
        """The values of a row that have spent it; empty for a budget of all."""
        if budget.by is None:
            return ""
        if self._options.redact is not None:
            return f" for the input {shown_input([row], self._options.redact)}"
        values = row if self._spec.takes_mapping else dict(zip(self._spec.parameters, row, strict=False))
        return f" for {', '.join(f'{name}={safe_repr(values[name])}' for name in budget.by)}"

    def _untold_text(self, budget: Budget, raised: str | None) -> str:
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
