"""An attempt: one call of the function, for one row or for several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncudf.queues import StreamRecord

from ..._functions.async_function import AttemptState
from ..._limits.gate import Key, LimitKey
from .row import NO_TROUBLE, Row


class Attempt:
    """One call of the function, from when it is formed until the outcomes of its rows are decided."""

    # An attempt may end by its coroutine, its ResultFuture, its own limit, or the deadlines of its rows, or by several
    # of them. The first counts: it takes the attempt out of its slot, so that later ones find none.
    #
    # A row whose deadline comes leaves the attempt. The rows left are those of `rows` whose `attempt` is this one.

    __slots__ = (
        "asks_for", "began", "costs", "counts_for_breaker", "has_asked", "keys", "left", "may_be_joined", "number",
        "reserved", "rows", "slot", "state", "ticket",
    )  # fmt: skip

    def __init__(self, rows: Sequence[Row], *, may_be_joined: bool = False) -> None:
        self.rows = rows
        self.may_be_joined = may_be_joined  # whether other rows that are called again may join it
        self.slot: Any = None  # in which it runs
        self.began = 0.0  # when it was let begin
        self.left = 0  # how many of its rows have left it
        self.ticket = 0  # from the circuit breaker
        self.number = 1  # the most attempts of any of its rows, with this one
        self.has_asked = False  # whether the limits have let it begin, and are told when it ends
        self.counts_for_breaker = True  # whether a failure says something about the service
        # The permits of each rate limit, then the amount of each budget; None: not asked yet.
        self.costs: Sequence[float] | None = None
        self.keys: Sequence[Key | None] = ()  # for each cost, None if its limit is not by key; empty if no limit is
        self.asks_for: LimitKey | None = None  # the key for which it asks once more, having been set aside
        self.reserved: Sequence[float] | None = None  # the reserved costs until they are settled; None: nothing is
        self.state: AttemptState | None = None  # what the function can ask for; None if it cannot

    @property
    def values(self) -> list[Any]:
        return [row.record[0] for row in self.rows]

    @property
    def is_settled(self) -> bool:
        """Whether the cost of the attempt has to be counted when it ends."""
        return self.reserved is not None or (self.state is not None and self.state.spent is not None)

    @property
    def is_excused(self) -> bool:
        """Whether an outage has excused failures of each of its rows."""
        return self.rows[0].trouble is not NO_TROUBLE and all(row.trouble.is_excused for row in self.rows)

    @property
    def element(self) -> StreamRecord:
        """What the function's context shows: the row, or one record with the arguments of all rows."""
        rows = self.rows
        return rows[0].element if len(rows) == 1 else StreamRecord(tuple(self.values))  # type: ignore[return-value]

    def leave(self, row: Row) -> bool:
        """Take a row out; returns whether others are left."""
        row.attempt = None
        self.left += 1
        return self.left < len(self.rows)
