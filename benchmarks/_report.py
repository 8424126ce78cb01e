"""Outcomes as text: the figures of each case, and the table of targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ._harness import Case, Figure, Outcome, Verdict, higher_is_better

__all__ = ("asked", "beside", "caption", "list_cases", "number", "show", "spread", "table", "verdict_rows")


def show(outcome: Outcome, case: Case) -> None:
    """All figures of a case: median (smallest .. largest)."""
    print(f"\n{outcome.id}: {outcome.title}")
    print(f"  {_joined(outcome.machine)}\n  {_joined(outcome.versions)}")
    print(f"  {caption(outcome, case)}")
    for figure in outcome.figures:
        print(f"  {figure.label:42s} {figure.quantity:22s} {spread(figure)}")
    for system, reason in outcome.unavailable.items():
        print(f"  {system:42s} unavailable: {reason}")
    for system, note in outcome.notes.items():
        print(f"  {system}: {note}")


def caption(outcome: Outcome, case: Case) -> str:
    """How the figures of a case came about; in bold what falls short of the case as it is declared."""
    size = [] if outcome.scale == 1 else [f"**{outcome.scale:g} of the rows**"]
    times = f"{rounds(outcome, case)} {'round' if outcome.repetitions == case.repetitions == 1 else 'rounds'}"
    commit = f"commit {outcome.commit}" if outcome.commit else "the commit was not recorded"
    return ", ".join([*size, times, case.loop, commit]) + (asked(outcome) if case.has_peers else "")


def asked(outcome: Outcome) -> str:
    """Which peers the run was asked for, and which of them could not be measured."""
    few = ", ".join(outcome.peers) or "none"
    text = f"; peers asked for: {few if outcome.not_asked else f'all {len(outcome.peers)} set-ups'}"
    missing = [name for name in outcome.peers if name in outcome.unavailable]
    return text + (f"; **could not be measured: {', '.join(missing)}**" if missing else "")


def rounds(outcome: Outcome, case: Case) -> str:
    """How many; marked if fewer than declared."""
    done = outcome.repetitions
    return str(done) if done >= case.repetitions else f"**{done} of {case.repetitions}**"


def spread(figure: Figure) -> str:
    """The median with the smallest and the largest value, where they differ."""
    least, most = number(min(figure.values)), number(max(figure.values))
    return number(figure.median) + (f" ({least} .. {most})" if least != most else "")


def verdict_rows(
    outcomes: Iterable[Outcome], cases: Mapping[str, Case], *, with_bound: bool = False
) -> list[list[str]]:
    """The table of targets; with `with_bound` only those that can be missed."""
    header = ["", "target", "ours", "ratio (of the rounds)", "met", "best peer measured", "ours / best peer", "rounds"]
    rows = [
        [target.id or outcome.id, *_judged(verdict, target.bound), rounds(outcome, cases[outcome.id])]
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


def _judged(verdict: Verdict, bound: float | None) -> list[str]:
    met = {True: "yes", False: "**no**", None: verdict.why or "-"}[verdict.met]
    absolute = bound if verdict.ratio is None else None
    ours = "" if verdict.ours is None else f"{beside(verdict.ours, absolute)} {verdict.quantity}"
    ratio = "" if verdict.ratio is None else f"{beside(verdict.ratio, bound)}x"
    least, most = (f"{choose(verdict.ratios, default=0):.3g}" for choose in (min, max))
    if least != most:
        ratio += f" ({least} .. {most})"
    to_peer = "" if verdict.ratio_to_peer is None else f"{verdict.ratio_to_peer:.3g}x"
    if to_peer:
        to_peer += f", {'more' if higher_is_better(verdict.quantity) else 'less'} is better"
    return [verdict.target, ours, ratio, met, verdict.best_peer, to_peer]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows in Markdown, the first of them the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _joined(facts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())


def beside(value: float, bound: float | None) -> str:
    """The value with as many digits as show on which side of the bound it is."""
    text = number(value)
    for digits in range(3, 16):
        if bound is None or value == bound or float(text.replace(",", "")) != bound:
            break
        text = f"{value:.{digits}g}"
    return text


def number(value: float) -> str:
    """Three digits that count, or all of a large number."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
