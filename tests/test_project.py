"""The house: layers, sizes, the links of the editable install, doctests, and the code blocks of README and docs."""

from __future__ import annotations

import ast
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
import asyncudf.queues

ROOT = Path(__file__).parent.parent
MODULES = sorted(
    info.name
    for package in (asyncudf, asyncudf.queues)
    for info in pkgutil.iter_modules(package.__path__, package.__name__ + ".")
)
# From the doors down: a module imports only from lines below its own (modules of one line do not know each other).
LAYERS = [
    ["testing"],
    ["_wait", "_stream_testing"],
    ["_stream"],
    ["_decorator", "_evaluations"],
    ["_spark_table", "_spark_stream"],
    ["_spark_operator"],
    ["_spark"],
    ["_spark_errors", "_spark_pickle", "_spark_connection"],
    ["_ends"],
    ["_chain"],
    ["_node"],
    ["_specs"],
    ["_layout", "_task"],
    ["_vectors"],
    ["_arrow", "_error_types", "_fit"],
    ["_plain_values"],
    ["_apart"],
    ["_bridge", "_loops"],
    ["_threads", "_watch"],
    ["_watermark_steps"],
    ["_steps", "_operator"],
    ["_driver", "_process"],
    ["_call", "_resources", "_batching", "_emission"],
    ["_direct"],
    ["_limited"],
    ["_row_call"],
    ["_workers", "_deadlines", "_input", "_copies", "_error_policy"],
    ["_invoke"],
    ["_signature"],
    ["_vector_hints"],
    ["_types"],
    ["_annotations", "_parameters"],
    ["_writer"],
    ["_waiting"],
    ["_weight"],
    ["_watermarks", "_outputs"],
    ["_options"],
    ["_retry"],
    ["_function", "_clock"],
    ["_tags"],
    ["_misfit"],
    ["_failures"],
    ["_traces"],
    ["_errors", "_text", "_http"],
    ["_urls", "_causes"],
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
SPARK = {"_spark", "_spark_errors", "_spark_table", "_spark_operator", "_spark_pickle", "_spark_stream"}
ARROW = {"_arrow", "_ends", "_error_types", "_fit", "_layout", "_plain_values", "_stream_testing", "_vectors"}
ONLY_THERE = {
    "pyspark": SPARK,
    "pyarrow": {*SPARK, *ARROW},
    "pandas": {"_vectors"},
}


def imports(path: Path) -> set[tuple[str, bool]]:
    """Each module that a file imports, and whether it is a relative import; those for type checkers do not count."""
    tree = ast.parse(path.read_text())
    hidden = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    found: set[tuple[str, bool]] = set()
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            found |= {(alias.name, False) for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level:
            found |= {(node.module, True)} if node.module else {(alias.name, True) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or "", False))
    return found


@pytest.mark.parametrize("path", sorted((ROOT / "udfs").glob("*.py")), ids=lambda p: p.stem)
def test_imports_point_down(path: Path) -> None:
    own = path.stem
    assert own == "__init__" or own in LEVEL, f"{own} has no layer yet"
    for module, relative in imports(path):
        if relative and own != "__init__":
            assert LEVEL[module] > LEVEL[own], f"{own} imports {module}, which is not below it"
        package = module.split(".")[0]
        if not relative and package in ONLY_THERE:
            assert own in ONLY_THERE[package], f"{own} imports {package}"
        assert relative or not module.startswith("asyncudf") or module == "asyncudf.queues"


@pytest.mark.parametrize("path", sorted((ROOT / "queues").glob("*.py")), ids=lambda p: p.stem)
def test_queues_import_the_standard_library_only(path: Path) -> None:
    for module, relative in imports(path):
        assert relative or module.split(".")[0] in sys.stdlib_module_names
        assert module not in ("threading", "asyncio", "time"), "a queue is plain data"


def test_every_public_name_is_there_and_documented() -> None:
    for package in (asyncudf, asyncudf.queues, importlib.import_module("asyncudf.testing")):
        assert list(package.__all__) == sorted(package.__all__, key=lambda name: (not name.isupper(), name))
        for name in package.__all__:
            if name != "StreamElement":
                assert getattr(package, name).__doc__, f"{package.__name__}.{name} has no docstring"


@pytest.mark.parametrize("folder", ["udfs", "queues"])
def test_the_editable_install_links_every_file(folder: str) -> None:
    package = asyncudf if folder == "udfs" else asyncudf.queues
    linked = {p.name for p in Path(package.__path__[0]).glob("*.py")}
    there = {p.name for p in (ROOT / folder).glob("*.py")}
    assert linked == there, "a file was added or removed: run scripts/test again, or pip install --no-deps -e ."


def test_no_module_is_longer_than_one_idea() -> None:
    for path in [*(ROOT / "udfs").glob("*.py"), *(ROOT / "queues").glob("*.py")]:
        lines = len(path.read_text().splitlines())
        assert lines <= 300, f"{path.name} has {lines} lines"


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
