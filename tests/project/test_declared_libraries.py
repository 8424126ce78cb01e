"""Each library that the tests, the benchmarks and the examples import is declared, not only brought by another one."""

from __future__ import annotations

import ast
import importlib.metadata
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from asyncudf._observe.doctor import EXTRAS

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OWN = {"asyncudf", "tests", "benchmarks", "examples"}
INSTALLED = importlib.metadata.packages_distributions()


def declared(extra: str) -> set[str]:
    """The libraries that an extra brings: its own, those of the extras in it, and the dependencies of the project."""
    found: set[str] = set()
    for requirement in map(Requirement, [*PROJECT["dependencies"], *PROJECT["optional-dependencies"].get(extra, [])]):
        if requirement.name == PROJECT["name"]:
            found |= {name for inner in requirement.extras for name in declared(inner)}
        found.add(canonicalize_name(requirement.name))
    return found


def imported(path: Path) -> Iterator[str]:
    """The packages that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield str(node.module).partition(".")[0]


@pytest.mark.parametrize(
    ("folder", "extra"), [("tests", "dev"), ("benchmarks", "benchmarks"), ("examples", "examples")]
)
def test_what_a_folder_imports_is_declared(folder: str, extra: str) -> None:
    """The tests imported psutil, which came with no extra: on another machine they were skipped or failed."""
    known = declared(extra) | declared("spark") | declared("sail")  # one of these, beside each other extra
    known |= {"pytest", "google-genai"} if folder == "examples" else set()  # of a test and a class to be copied
    for path in (ROOT / folder).rglob("*.py"):
        for package in {*imported(path)} - OWN - sys.stdlib_module_names:
            # What is installed by nobody here belongs to another environment, as the peers of the benchmarks do.
            libraries = {canonicalize_name(name) for name in INSTALLED.get(package, ())}
            assert not libraries or libraries & known, f"{path} imports {package}: add it to {extra} in pyproject.toml"


def test_the_extra_all_brings_what_each_of_them_does() -> None:
    assert [extra for extra in EXTRAS if not declared(extra) <= declared("all")] == []
