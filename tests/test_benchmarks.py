"""The benchmarks are a program that must not rot: it starts, measures, judges and writes what it found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks._docs import PAGES, filled
from benchmarks._store import LATEST, load
from benchmarks.cases import CASES

ROOT = Path(__file__).parent.parent


def run(*arguments: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments], capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


def test_every_case_is_listed() -> None:
    listed = run("--list")
    for case in ("P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "CHAIN", "COPIES", "CAPACITY", "PAYLOAD", "HELD"):
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
