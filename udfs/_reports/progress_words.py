"""The words of the progress: the same in a terminal, a notebook and a log."""

from __future__ import annotations

from .._text.figures import noun, things
from .pace import Progress, Snapshot

__all__ = ("details", "heading", "line", "printable", "tasks")


def printable(text: str, encoding: str) -> str:
    """The text without what would move the cursor, or cannot be written."""
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text.encode(encoding, "replace").decode(encoding)


def line(one: Progress) -> str:
    """All in one line."""
    share = [] if one.share is None or one.took is not None else [f"{int(one.share * 100)}%"]
    return f"{one.label}: " + ", ".join([*share, *heading(one), *(words for words, _ in details(one))])


def heading(one: Progress) -> tuple[str, str, str]:
    """How many rows, how fast, and how long still."""
    of = f" of ~{one.expected:,}" if one.is_estimated else ""
    rate = "?" if one.rate is None else f"{one.rate:,.0f}" if one.rate >= 10 else f"{one.rate:.1f}"
    left = f"in {_clock(one.took)}" if one.took is not None else f"{_clock(one.left)} left"
    rows = noun(one.expected if one.is_estimated else one.rows, "row")
    return f"{one.rows:,}{of} {rows}", f"{rate} rows/s", left


def details(one: Progress) -> list[tuple[str, bool]]:
    """More words, and whether each tells of something that went wrong."""
    words = [] if one.took is not None else [(f"{one.in_flight:,} in flight", False)]
    words.append((things(one.errors, "error"), one.errors > 0))
    words.append((things(one.retries, "retry", "retries"), False))
    if one.p50 is not None and one.p95 is not None:
        words += [(f"p50 {_short(one.p50)}", False), (f"p95 {_short(one.p95)}", False)]
    if one.failed_tasks:
        words.append((things(one.failed_tasks, "failed task"), True))
    return words


def tasks(snapshot: Snapshot) -> str:
    """How many tasks are done, and how long the run has taken."""
    total = "" if snapshot.tasks_total is None else f" of {snapshot.tasks_total:,}"
    named = noun(snapshot.tasks_done if snapshot.tasks_total is None else snapshot.tasks_total, "task")
    return f"{snapshot.tasks_done:,}{total} {named}, {_clock(snapshot.seconds)}"


def _clock(seconds: float | None) -> str:
    """`0:09`, `1:02:33`, and `?` if it is not known."""
    if seconds is None or seconds > 1e7:
        return "?"
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    return f"{minutes}:{rest:02d}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _short(seconds: float) -> str:
    if seconds >= 9.95:
        return f"{seconds:,.0f} s"
    if seconds >= 0.9995:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.00995 else f"{seconds * 1000:.2g} ms"
