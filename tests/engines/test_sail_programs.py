"""The page about Sail, the demo and an example run on it, each as a program of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pysail.spark", reason="Sail is not installed: scripts/test --sail")
ROOT = Path(__file__).parents[2]


def printed(program: Path, *arguments: object, folder: Path) -> str:
    """What a program prints; it must end well."""
    command = [sys.executable, str(program), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Traceback" not in ran.stderr
    return ran.stdout


def test_the_code_blocks_of_the_page_run_from_top_to_bottom(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "platforms" / "sail.md").read_text()
    program = tmp_path / "page.py"
    program.write_text("\n\n".join(re.findall(r"^```python\n(.*?)^```", page, flags=re.DOTALL | re.MULTILINE)))
    assert "|  1| Oslo| 4.0|clear|" in printed(program, folder=tmp_path)


def test_the_demo_shows_the_same_as_on_spark(tmp_path: Path) -> None:
    report, demo = tmp_path / "run.html", ROOT / "examples" / "enrich_flights.py"
    pytest.importorskip("airportsdata")
    arguments = ["--engine", "sail", "--rows", 200, "--sample", 40, "--seed", 55, "--report", report]
    output = printed(demo, *arguments, folder=tmp_path)
    assert re.findall(r"^(?:\d\. As|\d\. In|\d\. With|For)\b", output, re.MULTILINE) == [
        "1. As",
        "2. In",
        "3. With",
        "For",
    ]
    assert output.count("the monitor has counted the same") == 3
    assert len(re.findall(r"^    verdict +\S", output, re.MULTILINE)) == 3
    assert len(re.findall(r"ideal: +[\d.]+ s for [\d,]+ rows", output)) == 4
    rows = [sum(map(int, one)) for one in re.findall(r"client: +(\d+) rows enriched, (\d+) not", output)]
    assert rows[:3] == [200] * 3
    assert report.stat().st_size > 10_000


def test_examples_take_the_engine(tmp_path: Path) -> None:
    output = printed(ROOT / "examples" / "fan_out.py", "--engine", "sail", folder=tmp_path)
    assert "|  1| Oslo|    724000|  12|good|" in output
