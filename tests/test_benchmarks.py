"""The benchmarks are a program that must not rot: it starts, measures, judges and writes what it found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def run(*arguments: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments], capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


def test_every_case_is_listed() -> None:
    listed = run("--list")
    for case in ("P1", "P2", "P3", "P4", "P5", "P6", "P7", "P8", "CHAIN", "COPIES", "CAPACITY", "PAYLOAD"):
        assert case in listed


def test_a_case_measures_and_writes_its_figures(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    table = run("--only", "P1", "--scale", "0.005", "--repetitions", "1", "--json", str(found))
    assert "| P1 | us/row: ordered at most 1.2" in " ".join(table.split())
    assert "us/row" in json.dumps(json.loads(found.read_text()))
