"""Outcomes as text, and as tables in the project's pages, so that no figure is typed by hand.

A page says which table it wants, and the lines between are replaced:

    <!-- figures P3: calls/s, % of the ideal -->
    <!-- end -->

Names after a semicolon choose systems: `<!-- figures P3: calls/s; ordered_wait; flink -->`. Several cases share a
table: `<!-- figures P3b P3c: calls/s -->`. Instead of `figures ...`, `overview` gives the table of the README,
`targets` those that are not met, `runs` where, when and how large the cases ran, and `notes` how the peers were set up
and why some are missing.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from ._harness import ROUNDS, Case, Figure, Outcome, Target, Verdict
from ._results import ROOT, Results

__all__ = ("PAGES", "filled", "listed", "show", "spread", "table", "target_rows", "write")

PAGES = (
    ROOT / "README.md",
    ROOT / "benchmarks" / "README.md",
    *(ROOT / "docs" / page for page in ("performance.md", "platforms/sail.md")),
)
BLOCK = re.compile(
    r"(<!-- (?:(?P<all>overview|targets|runs|notes)|figures (?P<cases>[\w ]+): (?P<wanted>[^>]*)) -->\n)"
    r".*?(?P<end><!-- end -->)",
    re.DOTALL,
)

# The table of the README: what is asked, the calls of NAIVE in the first column, the case of the other columns, and
# which system answers in each of them.
COLUMNS = ("a plain UDF", "asyncudf", "plain asyncio", "handwritten Spark", "the usual gather", "Flink, tuned")
NEAR = 0.25  # rounds that differ by less are shown by their median alone
OTHERS = ("bare", "handwritten", "gather", "flink")
IN_ORDER, IN_ANY_ORDER = ("ordered_wait", *OTHERS), ("unordered_wait", *OTHERS[:-1], "flink unordered")
OVERVIEW: tuple[tuple[str, str, str, str, tuple[str, ...]], ...] = (
    ("calls of 19 ms, in order: calls/s", "19 ms", "P3", "calls/s", IN_ORDER),
    ("calls of 19 ms, in any order: calls/s", "", "P3", "calls/s", IN_ANY_ORDER),
    ("20 ms, but 1% take 1 s, in order: calls/s", "1% take 1 s", "P3b", "calls/s", IN_ORDER),
    ("20 ms, but 0.1% take 5 s, in order: calls/s", "0.1% take 5 s", "P3c", "calls/s", IN_ORDER),
    ("HTTP, in order: requests/s", "HTTP", "P5", "requests/s", IN_ORDER),
    ("HTTP: CPU of a request, in us", "", "P5b", "CPU us/request", IN_ORDER),
    ("calls that return at once: us/row", "", "P2", "us/row", IN_ORDER),
)


def write(results: Results, cases: Mapping[str, Case]) -> None:
    """Bring every page up to date with what a results file holds."""
    for page in PAGES:
        page.write_text(filled(page.read_text(), results, cases))


def filled(text: str, results: Results, cases: Mapping[str, Case]) -> str:
    """The text of a page with its tables made anew; those of cases that are not among the results say so."""

    def block(found: re.Match[str]) -> str:
        return f"{found[1]}\n{content(found)}\n\n{found['end']}"

    def content(found: re.Match[str]) -> str:
        if found["all"]:
            return contents[found["all"]]()
        outcomes = [results.outcomes[case] for case in found["cases"].split() if case in results.outcomes]
        if not outcomes:
            return "Not in this run."
        captions = [f"{outcome.id}: {caption}" for outcome in outcomes if (caption := _caption(outcome))]
        return "\n\n".join([table(_figures(outcomes, found["wanted"])), *captions])

    contents: dict[str, Callable[[], str]] = {
        "overview": lambda: f"{table(_overview(results))}\n\n{_origin(results)}",
        "targets": lambda: _targets(target_rows(results.outcomes.values(), cases)),
        "runs": lambda: _run(results, cases),
        "notes": lambda: "\n".join(_notes(results.outcomes.values())) or "Nothing to note in this run.",
    }
    return BLOCK.sub(block, text)


def _overview(results: Results) -> list[list[str]]:
    rows = (
        [asked, *_answers(results, "NAIVE", "calls/s", [naive]), *_answers(results, case, quantity, systems)]
        for asked, naive, case, quantity, systems in OVERVIEW
    )
    return [["calls", *COLUMNS], *(row for row in rows if set(row[1:]) != {"-"})]


def _answers(results: Results, case: str, quantity: str, systems: Sequence[str]) -> Iterator[str]:
    """The medians; a dash where there is none."""
    figures = results.outcomes[case].figures if case in results.outcomes else ()
    found = {figure.system: number(figure.median) for figure in figures if figure.quantity == quantity}
    return (found.get(system, "-") for system in systems)


def _origin(results: Results) -> str:
    rounds = min((outcome.rounds for outcome in results.outcomes.values()), default=0)
    cores = results.facts["cores"]
    return f"Medians of at least {rounds} rounds on one machine with {cores} cores, commit {results.commit}"


def _notes(outcomes: Iterable[Outcome]) -> list[str]:
    """A line for each thing that is said of a system, with the cases of which it is said."""
    said: dict[tuple[str, str], list[str]] = {}
    for outcome in outcomes:
        missing = {system: f"could not be measured: {reason}" for system, reason in outcome.unavailable.items()}
        for spoken in {**outcome.notes, **missing}.items():
            said.setdefault(spoken, []).append(outcome.id)
    return [f"- {system} ({', '.join(where)}): {note}" for (system, note), where in sorted(said.items())]


def target_rows(outcomes: Iterable[Outcome], cases: Mapping[str, Case]) -> list[list[str]]:
    """The table of targets."""
    header = ["case", "target", "median (rounds)", "met"]
    return [
        header,
        *(
            [target.id or outcome.id, str(target), *_judged(target, verdict)]
            for outcome in outcomes
            for target, verdict in zip(cases[outcome.id].targets, outcome.verdicts(cases[outcome.id]), strict=True)
        ),
    ]


def _targets(rows: list[list[str]]) -> str:
    """How many are met, and all others."""
    judged = [row for row in rows[1:] if row[2]]
    others = [row for row in judged if row[-1] != "yes"]
    met = f"{len(judged) - len(others)} of {len(judged)} bounds that were judged are met in every round"
    return f"{met}. The others:\n\n{table([rows[0], *others])}" if others else f"{met}."


def _judged(target: Target, verdict: Verdict) -> list[str]:
    met = verdict.why or {"yes": "yes", "no": "**no**", "open": "open", None: ""}[verdict.met]
    shown = verdict.ratio or verdict.ours
    if shown is None:
        return ["", met]
    unit = "x" if verdict.ratio else ""
    low, high = min(shown.values), max(shown.values)
    return [f"{_beside(shown.median, target.bound)}{unit} ({_range(low, high)})", met]


def _run(results: Results, cases: Mapping[str, Case]) -> str:
    """Where, when and how large the cases ran."""
    outcomes = list(results.outcomes.values())
    versions = {name: version for outcome in outcomes for name, version in outcome.versions.items()}
    small = [f"{outcome.id} {outcome.scale:g}" for outcome in outcomes if outcome.scale != 1]
    fewer = [f"{outcome.id} {outcome.rounds}" for outcome in outcomes if outcome.rounds < ROUNDS]
    gaps = {
        "not at full size": small,
        f"with fewer rounds than {ROUNDS}": fewer,
        "not in this run": [case for case in cases if case not in results.outcomes],
    }
    started, minutes = (outcome.started for outcome in outcomes), sum(outcome.seconds for outcome in outcomes) / 60
    facts = ", ".join(f"{name} {fact}" for name, fact in {**results.facts, **versions}.items())
    missing = "".join(f"\n- {gap}: {', '.join(names)}" for gap, names in gaps.items() if names)
    text = (
        f"Run of {min(started)[:16]}, {f'{minutes:.0f} minutes, ' if minutes else ''}commit {results.commit}; {facts}."
    )
    return "\n".join(textwrap.wrap(text, 120)) + (f"\n{missing}" if missing else "")


def _figures(outcomes: Sequence[Outcome], wanted: str) -> list[list[str]]:
    """A line for each system, a column for each quantity of each case."""
    columns, *systems = (part.strip() for part in wanted.split(";"))
    found = {(one.id, each.quantity, each.system): spread(each) for one in outcomes for each in one.figures}
    places = [(one.id, quantity) for one in outcomes for quantity in columns.split(", ")]
    names = systems or list(dict.fromkeys(system for *place, system in found if tuple(place) in places))
    if unknown := [name for name in names if not any((*place, name) in found for place in places)]:
        raise KeyError(f"there are no {columns} of {', '.join(unknown)}")
    header = [quantity if len(outcomes) == 1 else f"{case}: {quantity}" for case, quantity in places]
    return [["system", *header], *([name, *(found.get((*place, name), "-") for place in places)] for name in names)]


def _caption(outcome: Outcome) -> str:
    """What must be known of the figures of a case; in bold what falls short of a full run."""
    size = [] if outcome.scale == 1 else [f"**{outcome.scale:g} of the rows**"]
    rounds = [] if outcome.rounds >= ROUNDS else [f"**{outcome.rounds} of {ROUNDS} rounds**"]
    missing = [f"**could not be measured: {', '.join(outcome.unavailable)}**"] if outcome.unavailable else []
    return ", ".join([*size, *rounds, *filter(None, [outcome.how]), *missing])


def show(outcome: Outcome) -> None:
    """All figures of a case."""
    print(f"\n{outcome.id}: {outcome.title} ({outcome.seconds:.0f} s)\n  {_caption(outcome)}")
    for figure in outcome.figures:
        print(f"  {figure.system:28s} {figure.quantity:32s} {spread(figure)}")
    for system, said in {**outcome.unavailable, **outcome.notes}.items():
        print(f"  {system}: {said}")


def listed(cases: Sequence[Case]) -> str:
    """The cases with their targets, and how long they take."""
    lines = []
    for case in cases:
        lines += [f"{case.id:10s}{case.minutes:4.1f} min  {case.title}"]
        lines += [f"{'':20s}- {target}" for target in case.targets]
        lines += [f"{'':20s}with {', '.join(case.peers)}"] if case.peers else []
    return "\n".join(
        [*lines, f"{'all':10s}{sum(case.minutes for case in cases):4.1f} min on two idle cores, with peers"]
    )


def spread(figure: Figure) -> str:
    """The median; with the smallest and the largest value where they are not near it."""
    least, most = min(figure.values), max(figure.values)
    is_near = most - least <= NEAR * figure.median
    return number(figure.median) + ("" if is_near else f" ({_range(least, most)})")


def _range(least: float, most: float) -> str:
    return f"{number(least)}\N{EN DASH}{number(most)}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows in Markdown, the first of them the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def _beside(value: float, bound: float) -> str:
    """The value with as many digits as show on which side of the bound it is."""
    text = number(value)
    for digits in range(3, 16):
        if value == bound or float(text.replace(",", "")) != bound:
            break
        text = f"{value:.{digits}g}"
    return text


def number(value: float) -> str:
    """Three digits that count, or all of a large number."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
