"""What a second run calls again after the first has failed, without and with a store."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from asyncudf import AsyncUDFError, ResultStore
from asyncudf.testing import run_rows

from .svg import box, key, small, svg, title

__all__ = ("picture",)

ROWS, CAPACITY = 24, 3
FATAL = 14  # this row fails the first run

LEFT, CELL, BETWEEN, TITLE, GAP = 76, 21, 16, 44, 22  # pixels


class Run(NamedTuple):
    """Rows whose call has ended well, and rows whose call was begun in vain."""

    paid: set[int]
    in_vain: set[int]


def job(store: ResultStore | None, *, fails: bool) -> Run:
    """One run of the job."""
    began: set[int] = set()
    ended: set[int] = set()

    async def service(row: int) -> int:
        began.add(row)
        await asyncio.sleep(1.0 + row % 3)
        if fails and row == FATAL:
            raise ConnectionError
        ended.add(row)
        return row

    options = {} if store is None else {"store": store, "version": "1"}
    try:
        run_rows(service, range(ROWS), capacity=CAPACITY, **options)
    except AsyncUDFError:
        assert fails
    return Run(ended, began - ended)


@contextmanager
def disk() -> Iterator[ResultStore]:
    with tempfile.TemporaryDirectory() as folder:
        yield ResultStore.disk(f"{folder}/results")


def strip(y: float, label: str, run: Run) -> list[str]:
    """The rows of a run from left to right."""
    lines = [small(0, y + 11, label)]
    for row in range(ROWS):
        kind = "call" if row in run.paid else "slow" if row in run.in_vain else "none"
        lines.append(box(kind, LEFT + row * CELL, y, CELL - 3, 14))
    return lines


def picture() -> str:
    """The job without a store and with one, each run twice, as an SVG."""
    plain = [job(None, fails=True), job(None, fails=False)]
    with disk() as store:
        stored = [job(store, fails=True), job(store, fails=False)]
    lines: list[str] = []
    told: list[str] = []
    height = TITLE + 2 * (14 + BETWEEN) - BETWEEN + GAP
    for number, (name, (first, second)) in enumerate((("Without a store", plain), ("With a store on disk", stored))):
        called = [len(one.paid) + len(one.in_vain) for one in (first, second)]
        note = f"the first run makes {called[0]} calls and fails, the second makes {called[1]}"
        top = number * height
        lines += title(top, name, note)
        lines += strip(top + TITLE, "first run", first)
        lines += strip(top + TITLE + 14 + BETWEEN, "second run", second)
        told.append(f"{name}, {note}.")
    bottom = 2 * height
    lines += key(bottom, (0, "call", "called"), (82, "slow", "called in vain"), (196, "none", "no call"))
    description = f"{ROWS} rows, {CAPACITY} calls at once; row {FATAL + 1} fails the first run. {' '.join(told)}"
    return svg(
        "What is called again after a job has failed", description, LEFT + ROWS * CELL, bottom + 24, lines,
        style="  .none { fill: none; stroke: #8c959f; stroke-dasharray: 2 2 }\n",
    )  # fmt: skip
