"""The benchmarks run, the figures in the documentation are those that were measured, and verdicts follow from them."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import benchmarks.cases
from asyncudf._engine.operators.outputs import OUTPUT_BYTES
from benchmarks import _results
from benchmarks.__main__ import main
from benchmarks._harness import Case, Figure, Target
from benchmarks._pages import OVERVIEW, PAGES, filled
from benchmarks._results import LATEST, Results, load, require_writable, save
from benchmarks.cases import CASES
from benchmarks.cases.memory import HELD, HELD_ROWS, HELD_SIZE, LIMITS
from benchmarks.counts import counted
from benchmarks.peers import PeerUnavailable, Program, Workload

BY_ID = {case.id: case for case in CASES}
HOUR = 66.0  # minutes, about


def test_every_case_is_listed_with_its_minutes_and_all_take_an_hour(capsys: pytest.CaptureFixture[str]) -> None:
    """Each `Case` of a module of benchmarks/cases, that is; and a page shows none twice."""
    made = {
        value.id
        for module in pkgutil.iter_modules(benchmarks.cases.__path__, "benchmarks.cases.")
        for value in vars(importlib.import_module(module.name)).values()
        if isinstance(value, Case)
    }
    main(["--list"])
    listed = capsys.readouterr().out
    assert {name for name in made if f"\n{name} " not in f"\n{listed}"} == set()
    assert made == BY_ID.keys()
    assert 0 < float(re.search(r"^all +([\d.]+) min", listed, re.MULTILINE)[1]) <= HOUR  # type: ignore[index]
    shown = " ".join(re.findall(r"<!-- figures ([\w ]+):", "".join(page.read_text() for page in PAGES))).split()
    assert len(shown) == len({*shown})
    assert {*shown} <= made
    assert {case for _, _, case, _, _ in OVERVIEW} <= made


def test_a_case_measures_and_writes_its_figures(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    command = ["-m", "benchmarks", "--only", "P23", "--scale", "0.01", "--rounds", "1", "--json", str(found)]
    ran = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=_results.ROOT)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "| P23 " in ran.stdout
    figures = load(found).outcomes["P23"].figures
    assert {figure.system for figure in figures} == {"run_rows", "run_rows, a function without types", "gather"}
    assert min(figure.median for figure in figures) > 0


@pytest.mark.parametrize("arguments", ["--docs", "--peers dafd", "--load nowhere.json"])
def test_a_mistake_on_the_command_line_ends_the_program_before_anything_runs(
    arguments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as mistake:
        main(arguments.split())
    assert arguments.split()[-1] in f"{mistake.value} {capsys.readouterr().err}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_figures_of_a_page_are_those_of_the_results_file(path: Path) -> None:
    text = path.read_text()
    assert "<!-- end -->" in text
    assert text == filled(text, load(LATEST), BY_ID)


def test_a_results_file_has_figures_of_one_commit_and_one_machine(tmp_path: Path) -> None:
    found, one = tmp_path / "found.json", load(LATEST).outcomes["P23"]
    old, other, edited = (
        Results(commit, {"cores": cores}, {})
        for commit, cores in (("old", "2"), ("old", "8"), ("1234567 with changes", "2"))
    )
    save(found, old, one, ["P23", "P3"])
    assert load(found).outcomes == {"P23": one}
    with pytest.raises(SystemExit, match=r"cores 2 \(this is 8\)"):
        require_writable(found, other, ["P3"])
    with pytest.raises(SystemExit, match=r"old.*P23"):
        require_writable(found, edited, ["P3"])
    with pytest.raises(SystemExit, match="commit"):
        require_writable(LATEST, edited, BY_ID)


@pytest.mark.parametrize(
    ("ours", "met"),
    [((98.0, 99.0, 104.0), "yes"), ((90.0, 97.9, 97.0), "no"), ((97.9, 99.0, 99.0), "open"), ((), None)],
)
def test_a_target_is_met_or_missed_only_if_all_rounds_say_so(ours: tuple[float, ...], met: str | None) -> None:
    figures = [Figure("flink", "calls/s", (100.0,) * 3), *([Figure("ours", "calls/s", ours)] if ours else [])]
    assert Target("calls/s", "ours", least=0.98, against="flink").judge(figures, {}).met == met


def test_the_memory_to_plan_with_is_more_than_any_peak_of_a_worker() -> None:
    """The rule of thumb in docs/deployment.md, held against the measured peaks."""
    batch_rows, capacity = 1_000, 100
    waiting = {name: HELD_ROWS * HELD_SIZE if limit is None else limit for name, limit in LIMITS.items()}
    peaks = {each.system: each.values for each in load(LATEST).outcomes[HELD.id].figures if each.quantity == "peak MB"}
    assert peaks.keys() == LIMITS.keys()
    for name, values in peaks.items():
        held = capacity * HELD_SIZE + waiting[name] + OUTPUT_BYTES
        # In that run results on their way to Spark did not count: all of two batches could wait.
        held += 2 * batch_rows * HELD_SIZE
        assert max(values) * 1e6 <= 2 * held + 300 * 2**20


def test_a_peer_that_loses_rows_or_fails_has_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        """for _ in (1, 2): print('{"seconds": 1.5, "rows": %d, "version": "1"}' % min(int(input()), 3), flush=True)"""
    )
    monkeypatch.setattr("benchmarks.peers._run.arguments", lambda *_: [sys.executable, "-IS", "-c", text])
    peer = Program("daft", Workload([0.0] * 4))
    try:
        assert peer.run(3).rows == 3
        with pytest.raises(PeerUnavailable, match="gave 3 of 4 rows"):
            peer.run(4)
        with pytest.raises(PeerUnavailable, match="daft ended with 0"):
            peer.run(4)
    finally:
        peer.close()


def test_the_account_counts_the_calls_of_each_function() -> None:
    """A call that suspends begins once and goes on once, in ours as in the plain program."""
    rows, names = 50, ("bare", "ordered", "unordered")
    found = {name: counted(name, rows) for name in names}
    assert {name: account.calls["suspends_once"] for name, account in found.items()} == dict.fromkeys(found, 2 * rows)
