"""What a refusal does to its row and to the other calls. The times are those of the real operator."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from asyncudf import http
from asyncudf.testing import run_rows

from .svg import box, key, small, svg, title

__all__ = ("picture",)

# Above: one row is refused once. Each call takes a second.
ROWS, CAPACITY, REFUSED_ROW, WAIT = 12, 3, 1, 4.0
# Below: a service that gives 20 calls a second, and 40 at once after a quiet time.
CALLS, RATE, BURST, LATENCY, RETRY_AFTER, AT_ONCE = 720, 20, 40, 0.1, 2.0, 20
BIN = 0.5  # seconds that a bar counts

LEFT, WIDTH, TITLE, GAP = 66, 510, 44, 26  # pixels
ROW, HIGHEST = 13, 100


class Attempt(NamedTuple):
    """When a call began and ended, in seconds, and whether the service refused it."""

    row: int
    began: float
    ended: float
    is_refused: bool


def one_row_refused() -> list[Attempt]:
    """A service that refuses one row once."""
    attempts: list[Attempt] = []

    async def call(row: int) -> int:
        clock = asyncio.get_running_loop().time
        began = clock()
        await asyncio.sleep(1.0)
        is_refused = row == REFUSED_ROW and all(one.row != row for one in attempts)
        attempts.append(Attempt(row, began, clock(), is_refused))
        if is_refused:
            raise http.ThrottledError(429, retry_after=WAIT)
        return row

    run_rows(call, range(ROWS), capacity=CAPACITY)
    return attempts


def all_refused() -> list[Attempt]:
    """A service that refuses all calls beyond its limit, a token bucket."""
    attempts: list[Attempt] = []
    tokens, counted = float(BURST), 0.0

    async def call(row: int) -> int:
        nonlocal tokens, counted
        clock = asyncio.get_running_loop().time
        began = clock()
        tokens, counted = min(BURST, tokens + (began - counted) * RATE), began
        is_refused = tokens < 1
        tokens -= not is_refused
        await asyncio.sleep(LATENCY)
        attempts.append(Attempt(row, began, clock(), is_refused))
        if is_refused:
            raise http.ThrottledError(429, retry_after=RETRY_AFTER)
        return row

    run_rows(call, range(CALLS), capacity=AT_ONCE)
    return attempts


def lanes(top: float, attempts: list[Attempt]) -> list[str]:
    """The rows of `one_row_refused`, one below the other."""
    second = WIDTH / max(one.ended for one in attempts)
    lines: list[str] = []
    for one in attempts:
        y = top + one.row * ROW
        kind = "slow" if one.is_refused else "call"
        lines.append(box(kind, LEFT + one.began * second, y, (one.ended - one.began) * second - 1, ROW - 3))
        if one.is_refused:
            again = next(other.began for other in attempts if other.row == one.row and other.began > one.began)
            lines.append(box("wait", LEFT + one.ended * second, y, (again - one.ended) * second - 1, ROW - 3))
    lines += [small(0, top + number * ROW + 9, f"row {number + 1}") for number in (0, ROWS - 1)]
    return lines


def counts(attempts: list[Attempt]) -> list[tuple[int, int]]:
    """How many calls that began in each half second were accepted, and how many refused."""
    bars = [[0, 0] for _ in range(int(max(one.began for one in attempts) / BIN) + 1)]
    for one in attempts:
        bars[int(one.began / BIN)][one.is_refused] += 1
    return [(accepted, refused) for accepted, refused in bars]


def bars(top: float, found: list[tuple[int, int]]) -> list[str]:
    """The calls of `all_refused`, each half second a bar."""
    wide, high = WIDTH / len(found), HIGHEST / max(map(sum, found))
    bottom = top + HIGHEST
    limit = bottom - RATE * BIN * high
    lines = [
        f'<line class="axis" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{bottom}" y2="{bottom}"/>',
        f'<line class="mark" x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{limit:g}" y2="{limit:g}"/>',
        small(0, limit + 4, f"{RATE} calls/s"),
    ]
    for number, (accepted, refused) in enumerate(found):
        x, middle = LEFT + number * wide, bottom - accepted * high
        if accepted:
            lines.append(box("call", x, middle, wide - 1.5, accepted * high, radius=0))
        if refused:
            lines.append(box("slow", x, middle - refused * high, wide - 1.5, refused * high, radius=0))
    end = len(found) * BIN
    for second in range(0, int(end) + 1, 5):
        anchor = "middle" if second else "start"
        lines.append(small(LEFT + second / end * WIDTH, bottom + 15, f"{second} s", anchor=anchor))
    return lines


def picture() -> str:
    """Both services, as an SVG."""
    alone, found = one_row_refused(), counts(all_refused())
    second = TITLE + ROWS * ROW + GAP
    bottom = second + TITLE + HIGHEST + GAP + 4
    accepted, refused = (sum(column) for column in zip(*found, strict=True))
    done = max(one.ended for one in alone)
    note = f"row {REFUSED_ROW + 1} waits {WAIT:g} s as the service asks; the other rows go on; all after {done:g} s"
    lines = [
        *title(0, "One row is refused", note),
        *lanes(TITLE, alone),
        *title(
            second,
            "All calls are refused",
            f"pause, one probe, then the accepted pace, which grows; {refused} of {accepted + refused} calls refused",
        ),
        *bars(second + TITLE, found),
        *key(bottom, (0, "call", "accepted"), (92, "slow", "refused"), (176, "wait", "waits")),
    ]
    told = (
        f"Above: {ROWS} rows, {CAPACITY} calls at once. Row {REFUSED_ROW + 1} is refused and waits for {WAIT:g} s; the "
        f"calls of the other rows go on meanwhile, and all rows are done after {done:g} s. Below: a service takes "
        f"{RATE} calls a second, {BURST} at once after a quiet time, and refuses calls beyond that. All calls pause "
        f"for {RETRY_AFTER:g} s, one call probes, and calls go on at the pace that the service has accepted. The pace "
        f"grows until calls are refused again. Of {accepted + refused} calls, {refused} are refused."
    )
    return svg("What a refusal does to the other calls", told, LEFT + WIDTH + 8, bottom + 24, lines)
