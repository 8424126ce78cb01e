"""Outcomes in a JSON file: one entry for each case, the newest."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from ._harness import PEERS, Case, Figure, Outcome
from ._machine import CHANGES, MEASURED, UNKNOWN

__all__ = ("LATEST", "RESULTS", "load", "require_a_commit", "require_one_commit", "save")

RESULTS = Path(__file__).parent / "results"
LATEST = RESULTS / "latest.json"


def require_a_commit(path: Path, commit: str) -> None:
    """Refuse to write what the pages show from code that nobody can get; any other file may hold what it likes.

    Raises:
        SystemExit: The commit is not known, or there are changes since.
    """
    if path.resolve() == LATEST and (commit == UNKNOWN or commit.endswith(CHANGES)):
        raise SystemExit(
            f"{path.name} is what the pages show, and the commit is {commit!r}: commit what is measured "
            f"({', '.join(MEASURED)}), or give another file to --json"
        )


def require_one_commit(
    path: Path, commit: str, chosen: Collection[str], facts: Mapping[str, str] | None = None
) -> None:
    """Refuse a run that would leave figures of another commit beside its own; say so before the cases run.

    Args:
        facts: the machine and the versions, which must be the same too.

    Raises:
        SystemExit: The file has such cases that are not among the chosen ones.
    """
    outcomes = load(path) if path.exists() else []
    for outcome in outcomes:
        known = {**outcome.machine, **outcome.versions}
        for name, fact in (facts or {}).items():
            if outcome.id not in chosen and known.get(name, fact) != fact:
                raise SystemExit(
                    f"{path.name} has figures of {name} {known[name]} (this is {fact}) for {outcome.id}: "
                    "run this case too, or give another file to --json"
                )
    others = [outcome for outcome in outcomes if outcome.commit != commit and outcome.id not in chosen]
    if others:
        found = ", ".join(sorted({outcome.commit or "one that was not recorded" for outcome in others}))
        names = ", ".join(outcome.id for outcome in others)
        raise SystemExit(
            f"{path.name} has figures of another commit ({found}, this is {commit}) for {names}: "
            "run these cases too, or give another file to --json"
        )


def save(path: Path, outcome: Outcome, cases: Mapping[str, Case]) -> None:
    """Write an outcome beside those of its commit; a file never has figures of two."""
    entries = _entries(path) if path.exists() else {}
    kept = {name: entry for name, entry in entries.items() if entry.get("commit", "") == outcome.commit}
    kept[outcome.id] = _entry(outcome, cases[outcome.id])
    ordered = {name: kept[name] for name in cases if name in kept}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cases": ordered}, indent=1) + "\n")


def load(path: Path) -> list[Outcome]:
    """What a file holds.

    Raises:
        SystemExit: There is no such file.
    """
    if not path.exists():
        raise SystemExit(f"there is no file {path}: `python -m benchmarks --json {path}` writes one")
    return [_outcome(entry) for entry in _entries(path).values()]


def _entries(path: Path) -> dict[str, Any]:
    entries: dict[str, Any] = json.loads(path.read_text())["cases"]
    return entries


def _entry(outcome: Outcome, case: Case) -> dict[str, Any]:
    entry = dataclasses.asdict(outcome) | {"declared": case.repetitions}
    entry["figures"] = [
        {**dataclasses.asdict(figure), "median": figure.median, "min": min(figure.values), "max": max(figure.values)}
        for figure in outcome.figures
    ]
    entry["verdicts"] = [dataclasses.asdict(verdict) for verdict in outcome.verdicts(case)]
    return entry


def _outcome(entry: dict[str, Any]) -> Outcome:
    figures = tuple(
        Figure(each["system"], each["quantity"], tuple(each["values"]), each["kind"], each["at"])
        for each in entry["figures"]
    )
    names = {each.name for each in dataclasses.fields(Outcome)} & entry.keys()
    measured = dict.fromkeys(figure.system for figure in figures if figure.kind in PEERS)
    peers = tuple(entry.get("peers", (*measured, *entry["unavailable"])))  # a file that is older does not name them
    return Outcome(**{**{name: entry[name] for name in names}, "figures": figures, "peers": peers})
