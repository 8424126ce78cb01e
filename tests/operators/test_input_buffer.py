"""What an operator has not yet admitted waits in a line that may be looked at, and takes markers at its head."""

from __future__ import annotations

import gc
import itertools
from typing import Any

from asyncudf._operators.input import InputBuffer
from asyncudf.queues import LatencyMarker, StreamRecord


def test_what_was_put_one_by_one_stays_where_it_is_when_it_is_listed() -> None:
    requests: list[None] = []
    buffer = InputBuffer(lambda: requests.append(None))
    rows = [StreamRecord(n) for n in range(4)]
    buffer.restore(rows[:1])
    for row in rows[1:3]:
        buffer.put(row)
    assert buffer.values() == buffer.values() == rows[:3]
    assert (requests, buffer.waiting) == ([], 2)
    assert [buffer.next(), buffer.next()] == rows[:2]
    buffer.put(rows[3])
    assert buffer.values() == rows[2:]
    assert (requests, buffer.waiting) == ([None], 2)
    assert [buffer.next(), buffer.next(), buffer.next()] == [*rows[2:], None]
    assert len(requests) == 2, "when all that was in line has been taken"


def test_one_that_came_while_nothing_was_in_line_is_listed_once() -> None:
    """Who had read the line to its end read on, beside another who was to begin; a snapshot gave the rows to both."""
    requests: list[None] = []
    buffer = InputBuffer(lambda: requests.append(None))
    rows = [StreamRecord(n) for n in range(4)]
    buffer.put(rows[0])
    assert buffer.next() == rows[0]
    buffer.put(rows[1])
    buffer.put(rows[2])
    assert buffer.values() == rows[1:3]
    assert [buffer.next(), buffer.next()] == rows[1:3]
    assert buffer.values() == []
    requests.clear()
    assert buffer.next() is None
    assert requests, "whoever hands rows over is asked for more, though somebody has looked meanwhile"
    buffer.put(rows[3])
    assert [buffer.next(), buffer.next()] == [rows[3], None]


def test_nothing_piles_up_behind_rows_that_are_taken_as_they_come() -> None:
    buffer = InputBuffer(lambda: None)
    for n in range(100):
        buffer.put(StreamRecord(n))
        assert buffer.next() == StreamRecord(n)
    assert len(buffer._batches) == 0


def depth(buffer: Any) -> int:
    inner = [thing for thing in gc.get_referents(buffer) if hasattr(thing, "__next__")]
    return 1 + max(map(depth, inner), default=0) if isinstance(buffer, itertools.chain) else 0


def test_many_markers_do_not_nest_and_ask_for_no_other_batch() -> None:
    requests: list[None] = []
    buffer = InputBuffer(lambda: requests.append(None))
    buffer.feed([StreamRecord(n) for n in range(500)])
    taken: list[Any] = []
    for n in range(500):
        buffer.insert(LatencyMarker(n, "source", 0))
        taken += [buffer.next(), buffer.next()]
    assert taken == [what for n in range(500) for what in (LatencyMarker(n, "source", 0), StreamRecord(n))]
    assert depth(buffer.current) < 5
    assert len(requests) == 1
    buffer.insert(LatencyMarker(500, "source", 0))
    buffer.restore([StreamRecord(-1)])
    buffer.insert(LatencyMarker(501, "source", 0))
    assert buffer.values() == [StreamRecord(-1), LatencyMarker(500, "source", 0), LatencyMarker(501, "source", 0)]
    buffer.insert(LatencyMarker(502, "source", 0))
    assert (buffer.next(), buffer.next()) == (LatencyMarker(502, "source", 0), StreamRecord(-1))
    assert len(requests) == 1
