"""The command line; `benchmarks/__init__.py` tells how to use it."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import benchmarks

from ._harness import ROUNDS, Case, Settings, measured
from ._pages import listed, show, table, target_rows, write
from ._results import LATEST, Results, commit, facts, load, of_any_commit, require_writable, save
from .peers import PEERS

try:
    from .cases import CASES
except ModuleNotFoundError as missing:
    raise SystemExit(f"{missing.name} is not installed: pip install -e '.[benchmarks,spark]'") from missing

QUICK = 0.1


def main(argv: Sequence[str] | None = None) -> None:
    options = _options(argv)
    cases = {case.id: case for case in CASES}
    chosen = [cases[name] for name in options.only or cases]
    if options.list:
        print(listed(chosen))
        return
    results = _loaded(options.load, chosen) if options.load else _run(chosen, options)
    print("\n" + table(target_rows(results.outcomes.values(), cases)))
    if options.docs:
        write(load(options.load or options.json), cases)
    if not options.load and (failed := [case.id for case in chosen if case.id not in results.outcomes]):
        raise SystemExit(f"failed, as their tracebacks say: {', '.join(failed)}")


def _run(chosen: Sequence[Case], options: argparse.Namespace) -> Results:
    settings = Settings(options.scale, options.peers)
    now, depends = Results(commit(), facts()), not all(case.is_of_others for case in chosen)
    if options.json:
        now = now if depends else of_any_commit(options.json, now)
        require_writable(options.json, now, [case.id for case in chosen])
    outcomes = {}
    for case in chosen:
        started, clock = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
        try:
            outcome = measured(case, settings, options.rounds, partial(print, case.id, file=sys.stderr))
        except Exception:  # the other cases go on: a run takes an hour
            traceback.print_exc()
            continue
        outcome = dataclasses.replace(outcome, started=started, seconds=round(time.monotonic() - clock))
        show(outcome)
        if options.json and depends and commit() != now.commit:
            raise SystemExit(f"not written: the code was {now.commit} when the run began and is {commit()} now")
        if options.json:  # at once: a later case may fail
            save(options.json, now, outcome, [case.id for case in CASES])
        outcomes[case.id] = outcome
    return dataclasses.replace(now, outcomes=outcomes)


def _loaded(path: Path, chosen: Sequence[Case]) -> Results:
    found = load(path)
    outcomes = {case.id: found.outcomes[case.id] for case in chosen if case.id in found.outcomes}
    for outcome in outcomes.values():
        show(outcome)
    return dataclasses.replace(found, outcomes=outcomes)


def _options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks", description=benchmarks.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ids = [case.id for case in CASES]
    parser.add_argument("--only", nargs="+", choices=ids, metavar="ID", help="these cases")
    parser.add_argument("--list", action="store_true", help="the cases, their targets and minutes; runs nothing")
    parser.add_argument("--scale", type=_positive(float), default=1.0, help="share of the rows, 0.01 for a smoke test")
    parser.add_argument("--quick", dest="scale", action="store_const", const=QUICK, help=f"the same as --scale {QUICK}")
    parser.add_argument(
        "--rounds", type=_positive(int), default=ROUNDS, metavar="N", help=f"at most {ROUNDS}, the default"
    )
    parser.add_argument("--peers", nargs="*", choices=PEERS, metavar="NAME", help="with all peers, or with these")
    parser.add_argument("--json", nargs="?", type=Path, const=LATEST, metavar="FILE", help="write the figures")
    parser.add_argument("--docs", action="store_true", help="write what --json or --load holds into the pages")
    parser.add_argument("--load", nargs="?", type=Path, const=LATEST, metavar="FILE", help="show a file; runs nothing")
    options = parser.parse_args(argv)
    if options.rounds > ROUNDS:
        parser.error(f"--rounds: every case has {ROUNDS}, so that nobody can go on until a target is met")
    if options.json and options.json.resolve() == LATEST and (options.scale, options.rounds) != (1.0, ROUNDS):
        parser.error(f"{LATEST.name} is what the pages show, in full: give another file to --json")
    if options.docs and not (options.json or options.load):
        parser.error("--docs writes what a file holds: it goes with --json, which writes one, or with --load")
    options.peers = () if options.peers is None else tuple(options.peers or PEERS)
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
