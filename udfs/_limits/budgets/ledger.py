"""What is left of a budget, for all tasks of a job: opened with its ledger."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

from ..._stores.base import ResultStore
from ..._stores.ledgers import ledger_of
from ..coordinator.link import TaskLink
from ..gate import Key
from .job import SharedBudget
from .keyed import KeyedBudget
from .option import Budget


@contextlib.asynccontextmanager
async def shared_amounts(
    link: TaskLink,
    name: str,
    budget: Budget,
    store: ResultStore | None,
    wake: Callable[[Key], None],
    waiting: Callable[[Key], int],
) -> AsyncIterator[SharedBudget | KeyedBudget]:
    """The amounts of a budget while the block runs.

    The store keeps what was spent of a budget with a name; `wake` is called when calls of a key may begin, and
    `waiting` says how many would.
    """
    async with contextlib.AsyncExitStack() as stack:
        name = f"{name}:{budget.per or ''}" if budget.is_divided else name
        ledger = await stack.enter_async_context(ledger_of(None if budget.name is None else store, name))
        amounts: SharedBudget | KeyedBudget
        if budget.is_divided:
            amounts = KeyedBudget(link, name, budget, ledger, wake, waiting)
        else:
            amounts = SharedBudget(link, name, budget, ledger, waiting)
        stack.push_async_callback(amounts.close)
        yield amounts
