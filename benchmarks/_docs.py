"""Tables of figures in the project's pages, written from a results file so that no figure is typed by hand.

A page says where and which, and the lines between are replaced:

    <!-- figures P3: calls/s, % of the ideal -->
    <!-- end -->

Names after a semicolon choose systems: `<!-- figures P3: calls/s; ordered_wait; flink-java -->`. Instead of
`figures ...`, `targets` gives the table of all targets, `runs` where, when and how large the cases ran, and
`notes P3 P4` how the peers of these cases were set up, and why some are missing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ._harness import AT_ITS_BEST, Case, Figure, Outcome
from ._report import caption, spread, table, verdict_rows

__all__ = ("PAGES", "filled", "write")

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "performance.md")
BLOCK = re.compile(
    r"(<!-- (?:(?P<all>targets|runs)|figures (?P<case>\w+): (?P<wanted>[^>]*)|notes (?P<of>[\w ]+)) -->\n)"
    r".*?(?P<end><!-- end -->)",
    re.DOTALL,
)


def write(outcomes: Sequence[Outcome], cases: Mapping[str, Case]) -> None:
    """Bring every page up to date with what a results file holds."""
    for page in PAGES:
        page.write_text(filled(page.read_text(), outcomes, cases))


def filled(text: str, outcomes: Sequence[Outcome], cases: Mapping[str, Case]) -> str:
    """The text of a page with its tables made anew; those of cases that are not among the outcomes say so."""
    known = {outcome.id: outcome for outcome in outcomes}

    def block(found: re.Match[str]) -> str:
        return f"{found[1]}\n{content(found)}\n\n{found['end']}"

    def content(found: re.Match[str]) -> str:
        if found["all"] == "runs":
            return table(_runs(outcomes, cases))
        if found["all"]:
            return table(verdict_rows(outcomes, cases, with_bound=True))
        if found["of"]:
            return "\n".join(_notes([known[case] for case in found["of"].split() if case in known]))
        if found["case"] not in known:
            return "Not in this run."
        outcome = known[found["case"]]
        return f"{table(_figures(outcome, found['wanted']))}\n\n{caption(outcome, cases[outcome.id])}"

    return BLOCK.sub(block, text)


def _notes(outcomes: Sequence[Outcome]) -> list[str]:
    """A line for each thing that is said of a peer, with the cases of which it is said if they are not all."""
    said: dict[tuple[str, str], list[str]] = {}
    for outcome in outcomes:
        missing = {system: f"could not be measured: {reason}" for system, reason in outcome.unavailable.items()}
        for spoken in {**outcome.notes, **missing}.items():
            said.setdefault(spoken, []).append(outcome.id)
    everywhere = [outcome.id for outcome in outcomes]
    return [
        f"- {system}: {note}" if where == everywhere else f"- {system} ({', '.join(where)}): {note}"
        for (system, note), where in sorted(said.items())
    ]


def _runs(outcomes: Sequence[Outcome], cases: Mapping[str, Case]) -> list[list[str]]:
    facts = {name: fact for outcome in outcomes for name, fact in {**outcome.machine, **outcome.versions}.items()}
    small = [f"{outcome.id} {outcome.scale:g}" for outcome in outcomes if outcome.scale != 1]
    fewer = [
        f"{outcome.id} {outcome.repetitions} of {cases[outcome.id].repetitions}"
        for outcome in outcomes
        if outcome.repetitions < cases[outcome.id].repetitions
    ]
    ran = {outcome.id for outcome in outcomes}
    return [
        ["", ""],
        ["run", f"{min(outcome.started for outcome in outcomes)} to {max(outcome.started for outcome in outcomes)}"],
        ["commit", ", ".join(sorted({outcome.commit or "not recorded" for outcome in outcomes}))],
        *([name, fact] for name, fact in facts.items() if not name.endswith(AT_ITS_BEST)),
        ["not at full size", ", ".join(small) or "none"],
        ["with fewer rounds than declared", ", ".join(fewer) or "none"],
        ["not in this run", ", ".join(case for case in cases if case not in ran) or "none"],
    ]


def _figures(outcome: Outcome, wanted: str) -> list[list[str]]:
    columns, *systems = (part.strip() for part in wanted.split(";"))
    quantities = columns.split(", ")
    chosen = [figure for figure in outcome.figures if figure.quantity in quantities]
    if any(figure.at is not None for figure in chosen):
        return _growth(chosen, quantities)
    found = {(figure.system, figure.quantity): spread(figure) for figure in chosen}
    names = systems or list(dict.fromkeys(figure.system for figure in chosen))
    return [["", *quantities], *([name, *(found[name, quantity] for quantity in quantities)] for name in names)]


def _growth(figures: Sequence[Figure], quantities: Sequence[str]) -> list[list[str]]:
    """A line for each system, a column for each place on the axis."""
    places = sorted({figure.at for figure in figures if figure.at is not None})
    found = {(figure.quantity, figure.system, figure.at): spread(figure) for figure in figures}
    lines = dict.fromkeys((figure.quantity, figure.system) for figure in figures)
    ordered = sorted(lines, key=lambda line: quantities.index(line[0]))
    return [
        ["", *(f"{place:,.0f}" for place in places)],
        *(
            [f"{system}, {quantity}", *(found[quantity, system, place] for place in places)]
            for quantity, system in ordered
        ),
    ]
