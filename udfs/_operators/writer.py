"""The end of a chain: results gathered into batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from asyncudf.queues import StreamRecord

from .._functions.side_outputs import OutputTag
from .outputs import UNLIMITED, Output

__all__ = ("OUTPUT_BYTES", "OUTPUT_LINGER", "RecordWriterOutput")


OUTPUT_LINGER = 0.05  # seconds that a finished row waits for company
OUTPUT_BYTES = 64 * 2**20  # of results that are written together, whatever their number

_origin_of = itemgetter(2)  # of records, and of plain tuples of the same


class RecordWriterOutput(Output):
    """Leaves the chain: gathers results and hands them to `write` in batches.

    A batch goes out when it is full, `linger` seconds after its first row, and at the end, so that a slow
    service does not keep finished rows from Spark. It is full at so many rows, or when its results weigh too much.

    Args:
        write: takes the values and their origins.
        rows: how many make a full batch.
        weigh: how many bytes a value and its origin bring to the batch; None where that does not matter.
        max_bytes: about how many make a full batch.
    """

    # Two bounds and a timer: `rows`, so that Spark's batches keep their size; `max_bytes`, as large results of so many
    # rows would not fit into memory, nor into one Arrow array; `linger`, as a slow service fills no batch for minutes.
    #
    # len(_values) == len(_origins) < rows between two calls; _held: what they weigh, if they are weighed
    # _timer: set while there are rows; _failure: what it met, for the next caller

    def __init__(
        self,
        write: Callable[[Sequence[Any], Sequence[Any]], None],
        rows: int,
        linger: float,
        loop: asyncio.AbstractEventLoop,
        tag: OutputTag | None = None,
        weigh: Callable[[Any, Any], int] | None = None,
        max_bytes: int = UNLIMITED,
    ) -> None:
        super().__init__(tag)
        self._write = write
        self._rows = rows
        self._linger = linger
        self._loop = loop
        self._weigh = weigh
        self._max_bytes = max_bytes
        self._held = 0
        self._timer: asyncio.TimerHandle | None = None
        self._failure: Exception | None = None
        self._values: list[Any] = []
        self._origins: list[Any] = []

    def collect(self, record: StreamRecord) -> None:
        # Not the record itself: thousands of live tuples would keep the garbage collector busy.
        values = self._values
        if not values:
            self._timer = self._loop.call_later(self._linger, self._flush_in_time)
        value, _, origin = record
        values.append(value)
        self._origins.append(origin)
        if len(values) >= self._rows:
            self.flush()
        elif self._weigh is not None:
            self._held += self._weigh(value, origin)
            if self._held >= self._max_bytes:
                self.flush()

    def collect_results(self, records: Sequence[Any], results: Sequence[Any]) -> None:
        origins = [*map(_origin_of, records)]
        if self._weigh is not None:
            more = sum(map(self._weigh, results, origins))
            if self._held + more >= self._max_bytes:  # a batch is full somewhere among them: one by one finds out where
                super().collect_results(records, results)
                return
            self._held += more
        if not self._values:
            self._timer = self._loop.call_later(self._linger, self._flush_in_time)
        self._values += results
        self._origins += origins
        if len(self._values) >= self._rows:
            self._write_full_batches()

    def _write_full_batches(self) -> None:
        # The rest is kept before anything is written: whatever `write` raises, no row is written twice.
        rows, values, origins = self._rows, self._values, self._origins
        full = len(values) - len(values) % rows
        self._values, self._origins = values[full:], origins[full:]
        for start in range(0, full, rows):
            self._write(values[start : start + rows], origins[start : start + rows])
        if self._weigh is not None:
            self._held = sum(map(self._weigh, self._values, self._origins))
        if not self._values:
            self.flush()  # ends the timer

    def collect_tagged(self, tag: OutputTag, record: StreamRecord) -> None:
        if tag == self.tag:
            self.collect(record)

    def _flush_in_time(self) -> None:
        try:
            self.flush()
        except Exception as error:  # a timer's exception would only be logged: the next call raises it
            self._failure = error

    def flush(self) -> None:
        """Write what is held."""
        if self._failure is not None:
            raise self._failure
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._values:
            held = self._values, self._origins
            self._values, self._origins, self._held = [], [], 0
            self._write(*held)

    def close(self) -> None:
        self.flush()
