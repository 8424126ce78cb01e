"""The error of calls that a budget does not let begin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..._errors.exceptions import AsyncUDFError, BudgetSpentError, FatalError
from ..._errors.figures import amount_
from ..._errors.records import shown_input
from ..._errors.safe import safe_repr
from ..._functions.options import OnSpent, Options
from ..._functions.signature import FunctionSpec
from ..._limits.budgets.option import MOST_UNTOLD, Budget, MaxCalls, budget_label
from ..._stores.ledgers import Window, keeps_ledgers
from .slots import HostOperator


def spent_error(
    operator: HostOperator,
    options: Options,
    spec: FunctionSpec,
    budget: Budget,
    row: Any,
    window: Window,
    spent: float,
    need: float | None,
    raised: str | None,
) -> AsyncUDFError:
    """Says what was spent, and how the rest of the rows may be done: a FatalError if that ends the task.

    Without `on_spent="raise"` it is a BudgetSpentError, the end of a row alone.

    Without a `need` no cost is known; `raised`: how `settle` has failed.
    """
    name, option = operator.name, "budget"
    is_fatal = options.on_spent is OnSpent.RAISE
    kept = f"{'The store' if options.store is not None else 'A store='} keeps results that are paid for"
    if need is None:
        text = _untold_text(name, budget, raised)
    elif isinstance(budget, MaxCalls):
        text = (
            f"{name} has made the {budget.amount:,.0f} calls that max_calls= allows in one query, and there are "
            f"rows left. {kept}; asyncudf.dry_run(df, {name}, ...) counts the calls"
        )
        option = "max_calls"
    else:
        of_key = "" if budget.by is None else f" for {_key_text(options, spec, budget.by, row)}"
        text = (
            f"{name} has spent {amount_(spent)} of its budget of {budget_label(budget)}{of_key}"
            f"{window.name and f' in {window.name}'}, and the next call may cost {amount_(need)}"
        )
        if is_fatal:  # the error of a row is like that of other rows
            text += f". {operator.counters.rows_done:,} rows of this task are done, and there are rows left. {kept}"
            if budget.name is None or not keeps_ledgers(options.store):
                text += ". Give the budget a name= and the function a disk or Redis store, and the next run"
            else:
                text += ", and what was spent: the next run, with a larger amount of this budget,"
            text += " goes on where this one has ended"
    if not is_fatal:
        return BudgetSpentError(text)
    error = FatalError(text)
    error.option = option
    return error


def _key_text(options: Options, spec: FunctionSpec, by: Iterable[str], row: Any) -> str:
    """The values of a row that have spent the budget of their key."""
    if options.redact is not None:
        return f"the input {shown_input([row], options.redact)}"
    values = row if spec.takes_mapping else dict(zip(spec.parameters, row, strict=False))
    return ", ".join(f"{name}={safe_repr(values[name])}" for name in by)


def _untold_text(name: str, budget: Budget, raised: str | None) -> str:
    how = f"context.spend(amount, {budget.unit!r}) in the function, or give settle="
    if budget.settle is not None:
        error = "" if raised is None else f" (it raised {raised})"
        how = f"settle=, which has given no cost so far{error}"
    return (
        f"no cost is known of the first {MOST_UNTOLD} calls of {name}, so its budget of {budget_label(budget)} cannot "
        "be kept: no further call begins. Calls that were cut at a deadline count, as the service may charge for them. "
        f"Say what a call did cost by {how}; or give reserve=, what a call may cost at most"
    )
