"""Outcomes as text: the figures of each case, and the table of targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ._harness import Case, Outcome, Verdict

__all__ = ("list_cases", "number", "ratio_text", "show", "table", "verdict_rows")


def show(outcome: Outcome) -> None:
    """All figures of a case: median (smallest .. largest)."""
    print(f"\n{outcome.id}: {outcome.title}")
    print(f"  {_joined(outcome.machine)}\n  {_joined(outcome.versions)}")
    print(f"  scale {outcome.scale:g}, {outcome.repetitions} rounds")
    for figure in outcome.figures:
        spread = f"({number(min(figure.values))} .. {number(max(figure.values))})"
        print(f"  {figure.label:42s} {number(figure.median):>9s} {figure.quantity:14s} {spread}")
    for system, reason in outcome.unavailable.items():
        print(f"  {system:42s} unavailable: {reason}")
    for system, note in outcome.notes.items():
        print(f"  {system}: {note}")


def verdict_rows(
    outcomes: Iterable[Outcome], cases: Mapping[str, Case], *, with_bound: bool = False
) -> list[list[str]]:
    """The table of targets; with `with_bound` only those that can be missed."""
    header = ["", "target", "ours", "ratio", "met", "best peer", "ours / peer"]
    rows = [
        _row(outcome.id, verdict)
        for outcome in outcomes
        for target, verdict in zip(cases[outcome.id].targets, outcome.verdicts(cases[outcome.id]), strict=True)
        if target.bound is not None or not with_bound
    ]
    return [header, *rows]


def list_cases(cases: Iterable[Case]) -> None:
    for case in cases:
        print(f"{case.id:9s} {case.title}")
        for target in case.targets:
            print(f"{'':9s} - {target}")


def _row(case_id: str, verdict: Verdict) -> list[str]:
    met = {True: "yes", False: "**no**", None: verdict.why or "-"}[verdict.met]
    ours = "" if verdict.ours is None else f"{number(verdict.ours)} {verdict.quantity}"
    return [
        case_id,
        verdict.target,
        ours,
        ratio_text(verdict.ratio),
        met,
        verdict.best_peer,
        ratio_text(verdict.ratio_to_peer),
    ]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows in Markdown, the first of them the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _joined(facts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def ratio_text(value: float | None) -> str:
    """Nothing for None."""
    return "" if value is None else f"{value:.3g}x"


def number(value: float) -> str:
    """Three digits that count, or all of a large number."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
