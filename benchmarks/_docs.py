"""Tables of figures in the project's pages, written from a results file so that no figure is typed by hand.

A page says where and which, and the lines between are replaced:

    <!-- figures P3: calls/s, % of the ideal -->
    <!-- end -->

Names after a semicolon choose systems: `<!-- figures P3: calls/s; ordered_wait; flink-java -->`. Instead of
`figures ...`, `targets` gives the table of all targets, `missed` those that were missed, `claims` how ours stands to
the best peer of each case, `runs` where, when and how large the cases ran, `age` which code that was, and
`notes P3 P4` how the peers of these cases were set up, and why some are missing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from ._harness import AT_ITS_BEST, BEST_PEER, Case, Figure, Outcome, Target, Verdict, higher_is_better
from ._machine import CHANGES, MEASURED
from ._report import beside, caption, spread, table, verdict_rows

__all__ = ("PAGES", "filled", "write")

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "performance.md")
BLOCK = re.compile(
    r"(<!-- (?:(?P<all>targets|runs|missed|claims|age)|"
    r"figures (?P<case>\w+): (?P<wanted>[^>]*)|notes (?P<of>[\w ]+)) -->\n)"
    r".*?(?P<end><!-- end -->)",
    re.DOTALL,
)


def write(outcomes: Sequence[Outcome], cases: Mapping[str, Case], commit: str) -> None:
    """Bring every page up to date with what a results file holds, and say whether it is of this commit."""
    for page in PAGES:
        page.write_text(filled(page.read_text(), outcomes, cases, commit))


def filled(text: str, outcomes: Sequence[Outcome], cases: Mapping[str, Case], commit: str = "") -> str:
    """The text of a page with its tables made anew; those of cases that are not among the outcomes say so.

    Without a commit it stays as it is what the page says of the age of its figures.
    """
    known = {outcome.id: outcome for outcome in outcomes}

    of_all: dict[str, Callable[[], str]] = {
        "runs": lambda: table(_runs(outcomes, cases)),
        "targets": lambda: table(verdict_rows(outcomes, cases, with_bound=True)),
        "missed": lambda: "\n".join(_missed(outcomes, cases)),
        "claims": lambda: "\n".join(_claims(outcomes, cases)),
        "age": lambda: _age(outcomes, commit),
    }

    def block(found: re.Match[str]) -> str:
        if found["all"] == "age" and not commit:
            return found[0]
        return f"{found[1]}\n{content(found)}\n\n{found['end']}"

    def content(found: re.Match[str]) -> str:
        if found["all"]:
            return of_all[found["all"]]()
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


def _judged(outcomes: Sequence[Outcome], cases: Mapping[str, Case]) -> Iterator[tuple[str, Target, Verdict]]:
    for outcome in outcomes:
        case = cases[outcome.id]
        for target, verdict in zip(case.targets, outcome.verdicts(case), strict=True):
            yield target.id or outcome.id, target, verdict


def _missed(outcomes: Sequence[Outcome], cases: Mapping[str, Case]) -> list[str]:
    """A line for each bound that was missed, and one for what was not judged, so that no gap looks like a success."""
    missed: dict[str, list[str]] = {}
    ran, unjudged = set(), []
    for name, target, verdict in _judged(outcomes, cases):
        ran.add(name)
        if verdict.met is False:
            value = verdict.ours if verdict.ratio is None else verdict.ratio
            found = beside(value or 0.0, target.bound) + ("" if verdict.ratio is None else "x")
            bound = str(target).replace(f"{target.ours} ", "", 1)
            missed.setdefault(f"- **{name} is missed** ({bound})", []).append(f"{target.ours} {found}")
        elif verdict.met is None and target.bound is not None:
            unjudged.append(f"{name} beside {target.against}" if target.against else name)
    for case in cases.values():
        bounded = (target.id or case.id for target in case.targets if target.bound is not None)
        unjudged += [name for name in bounded if name not in ran]
    lines = [f"{bound}: {', '.join(found)}." for bound, found in missed.items()]
    if unjudged:
        lines.append(f"- Not judged in this run: {', '.join(dict.fromkeys(unjudged))}.")
    return lines if missed else ["- No target that was judged in this run is missed.", *lines]


def _claims(outcomes: Sequence[Outcome], cases: Mapping[str, Case]) -> list[str]:
    """A line for each comparison with the best peer, or why there is none."""
    lines = []
    for name, target, verdict in _judged(outcomes, cases):
        if target.against == BEST_PEER:
            way = "more" if higher_is_better(target.quantity) else "less"
            ratio = verdict.ratio and f"{beside(verdict.ratio, target.bound)}x the {target.quantity} of"
            found = f"{ratio} {verdict.best_peer} ({way} is better)" if ratio else f"not judged: {verdict.why}"
            lines.append(f"- {name}, {target.ours}: {found}")
    return lines or ["- No case with peers is in this run."]


def _age(outcomes: Sequence[Outcome], commit: str) -> str:
    """Of which commit the figures are, and whether the code has changed since."""
    measured = sorted({outcome.commit for outcome in outcomes})
    if not all(measured):
        return (
            "The commit that was measured was not recorded; **the code has changed since, and how it is measured too**."
        )
    names = ", ".join(measured)
    folders = " ".join(folder for folder in MEASURED if not folder.startswith(":"))
    later = "" if measured == [commit] else f"; **the code has changed since** (it is {commit} now)"
    shown = f" `git log {measured[0].removesuffix(CHANGES).strip()}.. -- {folders}` shows what came later."
    return f"Measured at commit {names}{later}.{shown}"


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
