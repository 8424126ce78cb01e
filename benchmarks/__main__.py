"""The command line; `benchmarks/__init__.py` tells how to use it."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import benchmarks

from ._docs import write
from ._harness import Case, Outcome, Settings, measured
from ._machine import commit, machine, versions
from ._plots import draw, require_matplotlib
from ._report import list_cases, show, table, verdict_rows
from ._store import LATEST, RESULTS, load, require_a_commit, require_one_commit, save
from .peers import PEERS

try:
    from .cases import CASES
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing.name} is not installed: pip install -e '.[benchmarks]'") from missing

QUICK = 0.2


def main(argv: Sequence[str] | None = None) -> None:
    options = _options(argv)
    cases = {case.id: case for case in CASES}
    chosen = [cases[name] for name in options.only or cases]
    if options.list:
        list_cases(chosen)
        return
    if options.plot:
        require_matplotlib()
    outcomes = _loaded(options.load, chosen) if options.load else _run(chosen, options)
    print("\n" + table(verdict_rows(outcomes, cases)))
    if options.docs:  # before drawing, which may fail
        write(load(options.load or options.json), cases, commit())
    for outcome in outcomes if options.plot else ():
        draw(outcome, cases[outcome.id], options.plot)


def _run(chosen: Sequence[Case], options: argparse.Namespace) -> list[Outcome]:
    settings = Settings(options.scale, options.repetitions, options.peers)
    measured_commit = commit()
    facts = {**machine(), **versions()}
    if options.json:
        require_a_commit(options.json, measured_commit)
        require_one_commit(options.json, measured_commit, [case.id for case in chosen], facts)
    outcomes = []
    for case in chosen:
        started = datetime.now(UTC).isoformat(timespec="seconds")
        outcome = measured(case, settings, partial(print, case.id, file=sys.stderr))
        known = {**versions(), **outcome.versions}
        outcome = dataclasses.replace(
            outcome, versions=known, machine=machine(), started=started, commit=measured_commit
        )
        show(outcome, case)
        if commit() != measured_commit:
            raise SystemExit(f"not written: the code was {measured_commit} when the run began and is {commit()} now")
        if options.json:  # at once: a later case may fail
            save(options.json, outcome, {case.id: case for case in CASES})
        outcomes.append(outcome)
    return outcomes


def _loaded(path: Path, chosen: Sequence[Case]) -> list[Outcome]:
    cases = {case.id: case for case in chosen}
    outcomes = [outcome for outcome in load(path) if outcome.id in cases]
    for outcome in outcomes:
        show(outcome, cases[outcome.id])
    return outcomes


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description=benchmarks.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ids = [case.id for case in CASES]
    parser.add_argument("--only", nargs="+", choices=ids, metavar="ID", help="these cases")
    parser.add_argument("--list", action="store_true", help="the cases and their targets; runs nothing")
    parser.add_argument("--scale", type=_positive(float), default=1.0, help="share of the rows, 0.01 for a smoke test")
    parser.add_argument("--quick", dest="scale", action="store_const", const=QUICK, help=f"the same as --scale {QUICK}")
    parser.add_argument("--repetitions", type=_positive(int), metavar="N", help="rounds that count")
    parser.add_argument("--peers", nargs="*", choices=PEERS, metavar="NAME", help="with all peers, or with these")
    parser.add_argument("--json", nargs="?", type=Path, const=LATEST, metavar="FILE", help="write the figures")
    parser.add_argument("--plot", nargs="?", type=Path, const=RESULTS, metavar="FOLDER", help="draw them (matplotlib)")
    parser.add_argument("--docs", action="store_true", help="write what --json or --load holds into the pages")
    parser.add_argument("--load", nargs="?", type=Path, const=LATEST, metavar="FILE", help="show a file; runs nothing")
    options = parser.parse_args(argv)
    if options.docs and not (options.json or options.load):
        parser.error("--docs writes what a file holds: it goes with --json, which writes one, or with --load")
    options.peers = None if options.peers is None else tuple(options.peers)
    return options


def _positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = kind(text)
        if value <= 0:
            raise argparse.ArgumentTypeError(f"must be more than 0, not {text}")
        return value

    return read


if __name__ == "__main__":
    main()
