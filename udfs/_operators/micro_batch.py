"""Gathers the rows of a vectorized function's next call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from .._calls.invokers import BatchBounds
from .._calls.row import Batch, Row


class MicroBatch:
    """The rows of a vectorized function's next call: gathers rows until the batch is full or has waited long enough.

    Args:
        bounds: of a batch.
        weight_of: the weight of a row; None: it has failed.
        linger: seconds after which a batch is ready though not full; None: never.
        wake: called when that time has come.
    """

    # Its rows are in the queue already: they count there, and keep their place in the order while they wait here. So a
    # batch must not wait for more rows when the queue has no place for them: `is_starved` says so.
    #
    # len(_rows) <= bounds.size; _timer runs from the first row on, and only while there is one; _has_waited: it has
    # fired; _weight: of all rows; _next: a row that would have made the batch too heavy, and begins the next one

    def __init__(
        self,
        bounds: BatchBounds,
        weight_of: Callable[[Row], float | None],
        linger: float | None,
        loop: asyncio.AbstractEventLoop,
        wake: Callable[[], None],
    ) -> None:
        self._bounds = bounds
        self._weight_of = weight_of
        self._linger = linger
        self._loop = loop
        self._wake = wake
        self._rows: list[Row] = []
        self._timer: asyncio.TimerHandle | None = None
        self._has_waited = False
        self._weight = 0.0
        self._next: tuple[Row, float] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def is_ready(self) -> bool:
        """Whether the batch must go out as it is."""
        bounds = self._bounds
        is_full = len(self._rows) == bounds.size or self._weight >= bounds.most_weight or self._next is not None
        return is_full or self._has_waited

    def gather(self, next_row: Callable[[], Row | None], is_starved: Callable[[], bool]) -> Batch | None:
        """The next call: of a full batch, or of a partial one that must not wait any longer; else None.

        Args:
            next_row: a row that is in the queue already, None if there is none now.
            is_starved: whether nothing can join the batch any more.
        """
        while not self.is_ready:
            row = next_row()
            if row is not None:
                self._weigh(row)
            elif is_starved():
                break
            else:
                return None
        return Batch(self._take()) if self._rows else None

    def _weigh(self, row: Row) -> None:
        if not self._bounds.weighs:
            self._add(row, 0.0)
        elif (weight := self._weight_of(row)) is not None:
            if self._rows and self._weight + weight > self._bounds.most_weight:
                self._next = row, weight
            else:
                self._add(row, weight)

    def _add(self, row: Row, weight: float) -> None:
        self._weight += weight
        if not self._rows and self._linger is not None:
            self._timer = self._loop.call_later(self._linger, self._due)
        self._rows.append(row)

    def _take(self) -> Sequence[Row]:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        rows, self._rows, self._has_waited, self._weight = self._rows, [], False, 0.0
        if self._next is not None:
            (row, weight), self._next = self._next, None
            self._add(row, weight)
        return rows

    def _due(self) -> None:
        self._has_waited = True
        self._wake()
