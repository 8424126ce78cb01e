"""The benchmarks are a program that must not rot: it starts, measures, judges and writes what it found."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from benchmarks._docs import PAGES, filled
from benchmarks._harness import BEST_PEER, Case, Figure, Kind, Outcome, Target
from benchmarks._machine import commit
from benchmarks._report import caption, spread
from benchmarks._spark import sized
from benchmarks._store import LATEST, load, require_one_commit, save
from benchmarks.account import programs, taken
from benchmarks.cases import CASES
from benchmarks.peers import PEERS

ROOT = Path(__file__).parents[2]
FASTER = Target("calls/s", "ours", 0.98, against=BEST_PEER)


def run(*arguments: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments], capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


def test_every_case_is_listed() -> None:
    listed = run("--list")
    for case in (
        *(f"P{number}" for number in (*range(1, 10), 11, 12)),
        "CHAIN",
        "COPIES",
        "CAPACITY",
        "PAYLOAD",
        "HELD",
    ):
        assert case in listed


def test_a_case_measures_and_writes_its_figures(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    table = run("--only", "P1", "--scale", "0.005", "--repetitions", "1", "--json", str(found))
    assert "| P1 | us/row: ordered at most 1.2" in " ".join(table.split())
    assert "us/row" in json.dumps(json.loads(found.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_figures_of_a_page_are_those_of_the_results_file(page: Path) -> None:
    text = page.read_text()
    assert "<!-- figures P3:" in text
    assert text == filled(text, load(LATEST), {case.id: case for case in CASES})


def test_an_edited_figure_is_seen() -> None:
    """A figure on a page that is not the run's own is replaced, and nothing else changes."""
    outcomes, cases = load(LATEST), {case.id: case for case in CASES}
    page = "x\n<!-- figures P2: us/row; column -->\n| column | 0.001 |\n<!-- end -->\ny"
    made = filled(page, outcomes, cases)
    assert "0.001" not in made
    assert filled(made, outcomes, cases) == made
    assert made.startswith("x\n")
    assert made.endswith("\ny")


def test_an_unknown_figure_is_an_error_and_not_an_empty_cell() -> None:
    with pytest.raises(KeyError, match="nobody"):
        filled("<!-- figures P2: us/row; nobody -->\n<!-- end -->", load(LATEST), {case.id: case for case in CASES})


def nothing_to_open(*_: object) -> NoReturn:
    raise NotImplementedError


def case(case_id: str, repetitions: int = 3) -> Case:
    return Case(case_id, "", nothing_to_open, repetitions=repetitions)


def outcome(case_id: str, repetitions: int = 3, of_commit: str = "1234567") -> Outcome:
    figures = (Figure("ours", "calls/s", (5147.0,) * repetitions),)
    return Outcome(case_id, "", 1.0, repetitions, figures, {}, commit=of_commit)


def test_a_table_names_its_rounds_and_its_commit() -> None:
    assert caption(outcome("A"), case("A")) == "3 rounds, ours on uvloop, commit 1234567"


def test_fewer_rounds_than_declared_are_marked_in_every_table() -> None:
    page = "<!-- figures A: calls/s -->\n<!-- end -->\n<!-- targets -->\n<!-- end -->\n<!-- runs -->\n<!-- end -->"
    judged = dataclasses.replace(case("A"), targets=(Target("calls/s", "ours", 1.0),))
    figures, targets, runs = filled(page, [outcome("A", repetitions=2)], {"A": judged}).split("<!-- end -->")[:3]
    assert "**2 of 3** rounds" in figures
    assert "**2 of 3**" in targets
    assert "A 2 of 3" in runs


def test_a_case_that_is_not_in_the_run_says_so_on_the_page() -> None:
    page = "<!-- figures B: calls/s -->\nan old table\n<!-- end -->\n<!-- runs -->\n<!-- end -->"
    figures, runs = filled(page, [outcome("A")], {"A": case("A"), "B": case("B")}).split("<!-- end -->")[:2]
    assert "Not in this run." in figures
    assert "an old table" not in figures
    assert re.search(r"not in this run +\| B ", runs)


@pytest.mark.parametrize(
    ("values", "text"),
    [((5147.0,), "5,147"), ((5147.1, 5147.2), "5,147"), ((1.0, 2.0, 4.0), "2 (1 .. 4)")],
    ids=["one", "alike", "different"],
)
def test_a_figure_is_not_a_range_of_itself(values: tuple[float, ...], text: str) -> None:
    assert spread(Figure("ours", "calls/s", values)) == text


def test_a_results_file_has_figures_of_one_commit(tmp_path: Path) -> None:
    found, cases = tmp_path / "found.json", {"A": case("A"), "B": case("B")}
    for name in cases:
        save(found, outcome(name, of_commit="old"), cases)
    assert [each.commit for each in load(found)] == ["old", "old"]
    save(found, outcome("B", of_commit="new"), cases)
    assert [(each.id, each.commit) for each in load(found)] == [("B", "new")]


def test_a_run_that_would_mix_commits_does_not_start(tmp_path: Path) -> None:
    found, cases = tmp_path / "found.json", {"A": case("A"), "B": case("B")}
    for name in cases:
        save(found, outcome(name, of_commit="old"), cases)
    with pytest.raises(SystemExit, match=r"another commit \(old, this is new\) for A: run these cases too"):
        require_one_commit(found, "new", ["B"])
    require_one_commit(found, "new", ["A", "B"])
    require_one_commit(found, "old", ["B"])


@pytest.mark.skipif(shutil.which("git") is None, reason="makes commits, and there is no git")
def test_the_commit_is_that_of_what_is_measured_and_says_whether_it_was_changed(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        named = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *named, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def write(name: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
        git("add", name)

    assert commit(tmp_path) == "unknown"
    git("init")
    write("udfs/a.py")
    git("commit", "-m", "a")
    first = commit(tmp_path)
    write("benchmarks/results/latest.json")
    write("README.md")
    assert commit(tmp_path) == first
    git("commit", "-m", "figures")
    assert commit(tmp_path) == first
    write("queues/b.py")
    assert commit(tmp_path) == f"{first} with changes"


def test_notes_of_peers_and_why_one_is_missing_stand_on_the_page() -> None:
    found = [
        dataclasses.replace(
            outcome("A"), notes={"flink": "capacity=100", "daft": "in A"}, unavailable={"ray": "no ray"}
        ),
        dataclasses.replace(outcome("B"), notes={"flink": "capacity=100"}, unavailable={"ray": "no ray"}),
    ]
    page = filled("<!-- notes A B C -->\n<!-- end -->", found, {})
    lines = ["- daft (A): in A", "- flink: capacity=100", "- ray: could not be measured: no ray"]
    assert page == "\n".join(["<!-- notes A B C -->", "", *lines, "", "<!-- end -->"])


def figures(*systems: tuple[str, float, Kind]) -> list[Figure]:
    return [Figure(name, "calls/s", (value,), kind) for name, value, kind in systems]


def test_the_best_peer_is_the_best_of_all_set_ups() -> None:
    found = figures(("ours", 99.0, "ours"), ("a", 100.0, "peer"), ("a-best", 90.0, "peer at its best"))
    verdict = FASTER.judge(found, {})
    assert (verdict.met, verdict.best_peer, verdict.ratio) == (True, "a", 0.99)


def test_without_peers_at_their_best_there_is_no_verdict_on_the_best_peer() -> None:
    verdict = FASTER.judge(figures(("ours", 99.0, "ours"), ("a", 10.0, "peer")), {})
    assert (verdict.met, verdict.why) == (None, "the best peer at its best is not part of this run")


def test_each_peer_is_there_as_documented_and_at_its_best() -> None:
    documented = {name for name in PEERS if not name.endswith("-best")}
    assert {name.removesuffix("-best") for name in PEERS if name.endswith("-best")} == documented
    assert {"flink-java", "pyflink", "pathway", "daft", "ray-data", "spark-jvm"} <= documented


def test_batches_of_another_size_than_the_table_says_are_an_error() -> None:
    assert [len(batch) for batch in sized([[0] * 3, [0] * 3, [0]], 3)] == [3, 3, 1]
    for wrong in ([[0] * 4], [[0] * 2, [0] * 3]):
        with pytest.raises(AssertionError, match="rows, not of 3"):
            list(sized(wrong, 3))


def test_ours_is_judged_by_the_plain_program_on_its_own_loop() -> None:
    plain = {target.against for case in CASES for target in case.targets if target.against.startswith("bare")}
    assert plain == {"bare asyncio on uvloop"}


def test_the_account_tells_each_function_of_a_call() -> None:
    account = asyncio.run(taken(programs()["ordered"], 200))
    assert account.calls["suspends_once"] == 400, "it begins, and goes on once"
    assert account.bytecodes["run_fast_path"] >= account.bytecodes["suspends_once"] >= 1_000
