"""What is written runs: examples in docstrings, and the code blocks of README and docs."""

from __future__ import annotations

import doctest
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import asyncudf

ROOT = Path(__file__).parents[2]
MODULES = ["asyncudf", *sorted(info.name for info in pkgutil.walk_packages(asyncudf.__path__, "asyncudf."))]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_run(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def code_blocks(path: Path) -> str:
    """All Python blocks of a page, as one program."""
    return "\n\n".join(re.findall(r"^```python\n(.*?)^```", path.read_text(), flags=re.DOTALL | re.MULTILINE))


@pytest.mark.spark
@pytest.mark.timeout(240)  # a Spark of its own, on a machine that may be busy
@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.name)
def test_the_code_blocks_of_a_page_run_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    program = tmp_path / "page.py"
    program.write_text(code_blocks(page))
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    ran = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=180, cwd=tmp_path, env=environment
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
