"""Tables of figures in the project's pages, written from a results file so that no figure is typed by hand.

A page says where and which, and the lines between are replaced:

    <!-- figures P3: calls/s, % of the ideal -->
    <!-- end -->

Names after a semicolon choose systems: `<!-- figures P3: calls/s; ordered_wait; flink-java -->`. Instead of
`figures ...`, `targets` gives the table of all targets and `runs` where, when and how large the cases ran.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from ._harness import Case, Figure, Outcome
from ._report import number, table, verdict_rows

__all__ = ("PAGES", "filled", "write")

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "performance.md")
BLOCK = re.compile(
    r"(<!-- (?:(?P<all>targets|runs)|figures (?P<case>\w+): (?P<wanted>[^>]*)) -->\n).*?(<!-- end -->)", re.DOTALL
)


def write(outcomes: Sequence[Outcome], cases: Mapping[str, Case]) -> None:
    """Bring every page up to date with all cases that a results file holds."""
    for page in PAGES:
        page.write_text(filled(page.read_text(), outcomes, cases))


def filled(text: str, outcomes: Sequence[Outcome], cases: Mapping[str, Case]) -> str:
    """The text of a page with its tables made anew; tables of cases that are not among the outcomes stay."""
    known = {outcome.id: outcome for outcome in outcomes}

    def block(found: re.Match[str]) -> str:
        if found["all"]:
            rows = _runs(outcomes) if found["all"] == "runs" else verdict_rows(outcomes, cases, with_bound=True)
        elif found["case"] in known:
            rows = _figures(known[found["case"]], found["wanted"])
        else:
            return found[0]
        return f"{found[1]}\n{table(rows)}\n\n{found[5]}"

    return BLOCK.sub(block, text)


def _runs(outcomes: Sequence[Outcome]) -> list[list[str]]:
    facts = {name: fact for outcome in outcomes for name, fact in {**outcome.machine, **outcome.versions}.items()}
    small = [f"{outcome.id} {outcome.scale:g}" for outcome in outcomes if outcome.scale != 1]
    return [
        ["", ""],
        ["run", f"{min(outcome.started for outcome in outcomes)} to {max(outcome.started for outcome in outcomes)}"],
        *([name, fact] for name, fact in facts.items()),
        ["not at full size", ", ".join(small) or "none"],
    ]


def _figures(outcome: Outcome, wanted: str) -> list[list[str]]:
    columns, *systems = (part.strip() for part in wanted.split(";"))
    quantities = columns.split(", ")
    chosen = [figure for figure in outcome.figures if figure.quantity in quantities]
    if any(figure.at is not None for figure in chosen):
        return _growth(chosen, quantities)
    found = {(figure.system, figure.quantity): _value(figure) for figure in chosen}
    names = systems or list(dict.fromkeys(figure.system for figure in chosen))
    return [["", *quantities], *([name, *(found[name, quantity] for quantity in quantities)] for name in names)]


def _growth(figures: Sequence[Figure], quantities: Sequence[str]) -> list[list[str]]:
    """A line for each system, a column for each place on the axis."""
    places = sorted({figure.at for figure in figures if figure.at is not None})
    found = {(figure.quantity, figure.system, figure.at): number(figure.median) for figure in figures}
    lines = dict.fromkeys((figure.quantity, figure.system) for figure in figures)
    ordered = sorted(lines, key=lambda line: quantities.index(line[0]))
    return [
        ["", *(f"{place:,.0f}" for place in places)],
        *(
            [f"{system}, {quantity}", *(found[quantity, system, place] for place in places)]
            for quantity, system in ordered
        ),
    ]


def _value(figure: Figure) -> str:
    return f"{number(figure.median)} ({number(min(figure.values))} .. {number(max(figure.values))})"
