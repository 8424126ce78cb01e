"""What a row costs, counted and not timed, so that it cannot grow unseen: the same on each machine, however busy it is.

A change that makes a row of some kind dearer or cheaper by a tenth writes the new figures here, and says why in its
commit. `python -m benchmarks.counts PROGRAM` shows how much of a cost is that of which function.
"""

from __future__ import annotations

import sys
from typing import NamedTuple

import pytest

from benchmarks.counts import PROGRAMS, ROWS, counted

pytestmark = pytest.mark.figures

MORE = 1.1  # times the best that was reached
NOTHING = 0.02  # per row: what happens per batch or per task, not per row


class Cost(NamedTuple):
    """Of a row: calls of Python and of C functions, bytecodes, callbacks that the event loop got, and its timers."""

    calls: float
    bytecodes: float
    callbacks: float = 0.0
    timers: float = 0.0


# The best that was reached, on Python 3.11; 3.12 and 3.13 make as many calls and have fewer bytecodes for the same. For
# comparison a plain program: 19.2 calls, 199 bytecodes and 1.1 callbacks, or 2 calls and 17 bytecodes where its calls
# return at once; and a row of Spark's Arrow UDF: 1 call and 10 bytecodes.
BEST = {
    "ordered": Cost(37.0, 564, 1.07),
    "unordered": Cost(35.6, 581, 1.07),
    "ordered, instant": Cost(8.1, 114),
    "unordered, instant": Cost(8.1, 114),
    "one at a time": Cost(43.9, 738, 1.0),
    "one at a time, after a pause": Cost(44.3, 747, 1.0),
    "one at a time, after a pause, with rate_limit": Cost(88.4, 1718, 1.0),
    "with retry": Cost(37.1, 564, 1.07),
    "with retry, one row in ten fails": Cost(69.8, 1064, 1.2, 0.1),
    'with on_error="null"': Cost(37.0, 564, 1.07),
    'with on_error="null", one row in ten fails': Cost(45.9, 713, 1.07),
    'with on_error="null", no service': Cost(109.1, 1798),
    'with on_error="null", answers of 500': Cost(213.1, 3349),
    "with attempt_timeout": Cost(41.0, 632, 1.07),
    "with rate_limit": Cost(82.6, 1561, 1.1),
    "with breaker": Cost(86.9, 1540, 1.1),
    "with job_capacity": Cost(74.5, 1342, 1.1),
    "with max_calls": Cost(73.5, 1388, 1.1),
    'with capacity="auto"': Cost(94.8, 1635, 1.4),
    "with store, missed": Cost(105.5, 1699, 1.08),
    "with store on disk, missed": Cost(157.1, 2408, 1.33, 0.035),
    "with store, found": Cost(3.6, 47),
    "column": Cost(8.1, 115),
    'column, NULL with on_null_input="null"': Cost(1.9, 45),
    "hit": Cost(2.0, 26),
}


def test_each_kind_of_row_has_a_bound() -> None:
    assert PROGRAMS.keys() - {"bare", "bare, instant", "Arrow UDF"} == BEST.keys()


@pytest.mark.parametrize("name", BEST)
def test_a_row_costs_what_it_did(name: str) -> None:
    account, best = counted(name), BEST[name]
    soon, from_thread, at = (
        account.entered[f"BaseEventLoop.{name}"] for name in ("call_soon", "call_soon_threadsafe", "call_at")
    )
    counts = account.calls.total(), account.bytecodes.total(), soon + from_thread, at
    spent = Cost(*(count / ROWS for count in counts))
    dearer = [kind for kind in Cost._fields if getattr(spent, kind) > MORE * getattr(best, kind) + NOTHING]
    assert not dearer, f"{name} costs more: {spent}, and did {best}"
    if sys.version_info[:2] == (3, 11):
        cheaper = [kind for kind in ("calls", "bytecodes") if getattr(spent, kind) < getattr(best, kind) / MORE]
        assert not cheaper, f"{name} costs less: write {spent} into BEST, so that it stays so"
