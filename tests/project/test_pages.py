"""What is written runs: examples in docstrings, and the code blocks of README and docs."""

from __future__ import annotations

import doctest
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import asyncudf

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PICTURE_LIMIT = 200_000  # bytes: a README is looked at on phones, too
MODULES = ["asyncudf", *sorted(info.name for info in pkgutil.walk_packages(asyncudf.__path__, "asyncudf."))]


def examples_of(name: str) -> list[doctest.DocTest]:
    """Those of a module; of the methods of its public classes too, whose code is that of a private module."""
    module = importlib.import_module(name)
    finder = doctest.DocTestFinder()
    found = {test.name: test for test in finder.find(module)}
    for public in getattr(module, "__all__", ()):
        if inspect.isclass(getattr(module, public)) and getattr(module, public).__module__ == name:
            names = dict(vars(module))
            tests = finder.find(getattr(module, public), f"{name}.{public}", module=False, globs=names)  # type: ignore[arg-type]
            found.update({test.name: test for test in tests})
    return list(found.values())


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_run(name: str) -> None:
    runner = doctest.DocTestRunner()
    for test in examples_of(name):
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


def test_no_example_is_left_out() -> None:
    """Each `>>>` in the source is one that the test above has run."""
    files = [*(ROOT / "udfs").rglob("*.py"), *(ROOT / "queues").rglob("*.py")]
    written = sum(line.lstrip().startswith(">>> ") for path in files for line in path.read_text().splitlines())
    assert sum(len(test.examples) for name in MODULES for test in examples_of(name)) == written


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


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_what_a_page_leads_to_is_there(page: Path) -> None:
    """Other pages and pictures, by their relative paths; a picture is not too large to be sent."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text) + re.findall(r'src(?:set)?="([^":]+)"', text)
    assert [link for link in links if not (page.parent / link).exists()] == []
    assert [
        link for link in links if link.endswith(".png") and (page.parent / link).stat().st_size > PICTURE_LIMIT
    ] == []
