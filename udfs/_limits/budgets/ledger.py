"""What is left of a budget, for all tasks of a job: opened with its ledger."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

from ..._stores.base import ResultStore
from ..._stores.key_ledgers import key_ledger_of
from ..._stores.ledgers import ledger_of
from ..coordinator.link import TaskLink
from ..gate import Key
from .job import SharedBudget
from .keyed import KeyedBudget
from .option import Budget


@contextlib.asynccontextmanager
async def shared_amounts(
    link: TaskLink, name: str, budget: Budget, store: ResultStore | None, wake_key: Callable[[Key], None]
) -> AsyncIterator[SharedBudget | KeyedBudget]:
    """The amounts of a budget while the block runs.

    The store keeps what was spent of a budget with a name; `wake_key` is called when calls of a key may begin.
    """
    store = None if budget.name is None else store
    amounts: SharedBudget | KeyedBudget
    async with contextlib.AsyncExitStack() as stack:
        if budget.is_divided:
            name = f"{name}:{budget.per or ''}"
            keys_ledger = await stack.enter_async_context(key_ledger_of(store, name))
            amounts = KeyedBudget(link, name, budget, keys_ledger, wake_key)
        else:
            amounts = SharedBudget(link, name, budget, await stack.enter_async_context(ledger_of(store, name)))
        stack.push_async_callback(amounts.close)
        yield amounts
