"""Outcomes in a JSON file: one entry for each case, the newest."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ._harness import Case, Figure, Outcome

__all__ = ("LATEST", "RESULTS", "load", "save")

RESULTS = Path(__file__).parent / "results"
LATEST = RESULTS / "latest.json"


def save(path: Path, outcome: Outcome, cases: Mapping[str, Case]) -> None:
    """Write an outcome over an older one of its case; the file's other cases stay, each with its own machine."""
    entries = _entries(path) if path.exists() else {}
    entries[outcome.id] = _entry(outcome, cases[outcome.id])
    ordered = {name: entries[name] for name in cases if name in entries}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"cases": ordered}, indent=1) + "\n")


def load(path: Path) -> list[Outcome]:
    return [_outcome(entry) for entry in _entries(path).values()]


def _entries(path: Path) -> dict[str, Any]:
    entries: dict[str, Any] = json.loads(path.read_text())["cases"]
    return entries


def _entry(outcome: Outcome, case: Case) -> dict[str, Any]:
    entry = dataclasses.asdict(outcome)
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
    return Outcome(**{**{name: entry[name] for name in names}, "figures": figures})
