"""The code blocks of README and docs run, page by page, from top to bottom."""

import re
from pathlib import Path

import pytest

from tests.kit.programs import run_program

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
# That of Sail runs on Sail: tests/engines/test_sail_programs.py.
PAGES = [
    ROOT / "README.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if page != ROOT / "docs" / "platforms" / "sail.md"),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_code_blocks_of_a_page_run_from_top_to_bottom(spark, page, tmp_path):
    """All Python blocks of a page are one program."""
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    program = tmp_path / "page.py"
    program.write_text("\n\n".join(blocks))
    run_program(spark, program, folder=tmp_path)
