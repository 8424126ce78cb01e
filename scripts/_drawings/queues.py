"""What waits when one row is slow. The times are those of the real operator."""

from __future__ import annotations

import asyncio
from typing import Literal, NamedTuple

from asyncudf.queues import StreamRecord, Watermark
from asyncudf.testing import OperatorHarness

from .svg import box, key, small, svg, title

__all__ = ("picture",)

SECONDS = (2, 8, 1, 2, 1, 2, 1, 2, 1, 1, 2, 1)  # of each row's call; the second row is slow
CAPACITY = 3
WATERMARK = 6  # no row from here on passes those before

ROW, SECOND, LEFT, TITLE, GAP, MARGIN = 13, 30, 66, 44, 20, 14  # pixels

ANIMATED = """
  .shown { animation: show 12s linear infinite }
  @keyframes show { 0% { clip-path: inset(0 100% 0 0) } 75%, 100% { clip-path: inset(0 0 0 0) } }
  @media (prefers-reduced-motion: reduce) { .shown { animation: none } }
"""


class Row(NamedTuple):
    """When a row's call began and ended, and when its result left, in seconds."""

    began: float
    ended: float
    left: float


def gathered() -> list[Row]:
    """`asyncio.gather` for each batch of `CAPACITY` rows: a batch leaves when its slowest call has ended."""
    rows, now = [], 0.0
    for first in range(0, len(SECONDS), CAPACITY):
        batch = SECONDS[first : first + CAPACITY]
        rows += [Row(now, now + seconds, now + max(batch)) for seconds in batch]
        now += max(batch)
    return rows


def operated(mode: Literal["ordered", "unordered"]) -> list[Row]:
    """The operator, on the virtual clock."""
    began: dict[int, float] = {}
    left: dict[int, float] = {}

    async def call(row: int) -> int:
        began[row] = asyncio.get_running_loop().time()
        await asyncio.sleep(SECONDS[row])
        return row

    rows = [StreamRecord(row) for row in range(len(SECONDS))]
    with OperatorHarness(call, output_mode=mode, capacity=CAPACITY) as harness:
        harness.put(*rows[:WATERMARK], Watermark(1), *rows[WATERMARK:])
        for now in range(1, sum(SECONDS)):
            harness.advance(1.0)
            for row in harness.output:
                if not isinstance(row, Watermark):
                    left.setdefault(row, float(now))
    return [Row(began[row], began[row] + SECONDS[row], left[row]) for row in range(len(SECONDS))]


def panel(top: float, longest: float, name: str, note: str, rows: list[Row], *, has_watermark: bool) -> list[str]:
    """The rows of one way to call, one below the other; time goes to the right, as fast in each panel."""
    end = max(row.left for row in rows)
    lines = [
        *title(top, name, f"{note}; all rows after {end:g} s"),
        '<g class="shown">',  # its width is that of the longest way, also where its rows end earlier
        f'<rect fill="none" x="{LEFT}" y="{top + TITLE}" width="{longest * SECOND:g}" height="{len(rows) * ROW}"/>',
    ]
    for number, row in enumerate(rows):
        y = top + TITLE + number * ROW
        x = [LEFT + second * SECOND for second in row]
        kind = "slow" if SECONDS[number] == max(SECONDS) else "call"
        lines.append(box(kind, x[0], y, x[1] - x[0], ROW - 3))
        if row.left > row.ended:
            lines.append(box("wait", x[1], y, x[2] - x[1], ROW - 3, radius=0))
        lines.append(f'<circle class="left" cx="{x[2]:g}" cy="{y + (ROW - 3) / 2:g}" r="3.5"/>')
    lines.append("</g>")
    lines += [small(0, top + TITLE + number * ROW + 9, f"row {number + 1}") for number in (0, len(rows) - 1)]
    if has_watermark:
        y = top + TITLE + WATERMARK * ROW - 1.5
        lines.append(f'<line class="mark" x1="{LEFT}" x2="{LEFT + end * SECOND:g}" y1="{y}" y2="{y}"/>')
        lines.append(small(0, y + 4, "watermark"))
    return lines


def picture() -> str:
    """The three ways, as an SVG."""
    ways = [
        ("asyncio.gather per batch", "a batch waits for its slowest call", gathered(), False),
        ("ordered", "calls go on; finished rows wait for their turn", operated("ordered"), False),
        ("unordered", "finished rows leave, but no row passes the watermark", operated("unordered"), True),
    ]
    height = TITLE + len(SECONDS) * ROW + GAP
    longest = max(row.left for _, _, rows, _ in ways for row in rows)
    lines: list[str] = []
    for number, (name, note, rows, has_watermark) in enumerate(ways):
        lines += panel(number * height, longest, name, note, rows, has_watermark=has_watermark)
    width, bottom = LEFT + longest * SECOND + MARGIN, len(ways) * height
    lines += key(bottom, (0, "call", "call"), (66, "slow", "slow call"), (160, "wait", "finished, waits"))
    lines.append(f'<circle class="left" cx="285" cy="{bottom + 5}" r="3.5"/>')
    lines.append(small(294, bottom + 9, "leaves"))
    ends = ", ".join(f"{name} after {max(row.left for row in rows):g} s" for name, _, rows, _ in ways)
    told = (
        f"{len(SECONDS)} rows, {CAPACITY} calls at once; the second row takes {max(SECONDS)} s. All rows done: {ends}."
        " With gather no new call begins until the slow one has ended. In ordered mode calls go on and finished rows "
        "wait for the slow row. In unordered mode finished rows leave at once; those behind the watermark wait for it."
    )
    return svg("What waits when one row is slow", told, width, bottom + 24, lines, style=ANIMATED)
