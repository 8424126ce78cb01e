"""What others install: the wheel has every file, and works where nothing of this folder can be seen.

And a function that one process has pickled runs in another one, as from the driver in the workers.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from packaging.requirements import Requirement

import asyncudf
from asyncudf._version import VERSION

ROOT = Path(__file__).parent.parent.parent
FOLDERS = {"udfs": "asyncudf", "queues": "asyncudf/queues"}
SOURCES = {
    f"{folder}/{path.relative_to(ROOT / folder).as_posix()}": f"{package}/{path.relative_to(ROOT / folder).as_posix()}"
    for folder, package in FOLDERS.items()
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".html", ".css") or path.name == "py.typed"
}  # each file of the packages, and its name in a wheel

NOT_PART_OF_IT = (
    *(".git", ".venv", ".*_cache", ".hypothesis", "build", "dist", "*.egg-info", "__pycache__"),
    *("spark-warehouse", "metastore_db", "artifacts", "derby.log"),
)
BESIDE_THE_SOURCES = ("tests", "examples", "benchmarks", "docs", "scripts", ".ci")  # whole folders of an sdist
JUNK = (
    *(".venv/bin/python", "build/x", "dist/x.whl", "tests/__pycache__/x.pyc", "udfs/__pycache__/x.pyc"),
    *("examples/spark-warehouse/a/b.parquet", "tests/.pytest_cache/v/x", "benchmarks/artifacts/a/b", "docs/.DS_Store"),
)  # what there may be where an sdist is made, and is not part of it


class Distribution(NamedTuple):
    sdist: Path
    wheel: Path


def run(*command: str | Path, cwd: Path, path: Path | None = None) -> str:
    """What a program prints; the variables that lead Python to this folder are not passed on."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    ran = subprocess.run([str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-2000:]
    return ran.stdout


def build_requirements(folder: Path) -> Path | None:
    """Where the build's requirements are, if the ones installed here do not do."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    if all(is_installed(Requirement(one)) for one in wanted):
        return None
    command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--target", folder, *wanted]
    fetched = subprocess.run(command, capture_output=True, text=True)
    if fetched.returncode != 0 and not os.environ.get("CI"):
        pytest.skip(f"a wheel is built with {', '.join(wanted)}, which cannot be fetched: {fetched.stderr[-200:]}")
    assert fetched.returncode == 0, fetched.stderr
    return folder


def is_installed(requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(importlib.metadata.version(requirement.name))
    except importlib.metadata.PackageNotFoundError:
        return False


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    """The sdist of a copy of the project, and the wheel of that sdist."""
    folder = tmp_path_factory.mktemp("built")
    tools = build_requirements(folder / "tools")
    shutil.copytree(ROOT, folder / "copy", ignore=shutil.ignore_patterns(*NOT_PART_OF_IT))
    for name in JUNK:
        (folder / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "copy" / name).touch()

    def build(what: str, source: Path) -> Path:
        program = f"from setuptools.build_meta import build_{what} as build; print(build({str(folder)!r}))"
        return folder / run(sys.executable, "-c", program, cwd=source, path=tools).splitlines()[-1]

    sdist = build("sdist", folder / "copy")
    with tarfile.open(sdist) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # from Python 3.11.4 on
        archive.extractall(folder / "unpacked")
    (source,) = (folder / "unpacked").iterdir()
    return Distribution(sdist, build("wheel", source))


@pytest.fixture(scope="module")
def elsewhere(built: Distribution, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel in it. It borrows this one's libraries, but not what is editable."""
    folder = tmp_path_factory.mktemp("elsewhere")
    venv.create(folder, with_pip=False)
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    run(*pip, "install", "--quiet", "--no-deps", "--no-index", built.wheel, cwd=folder)
    # After the wheel, or pip would find the asyncudf of this environment and remove it. The .pth files of a folder that
    # a .pth file names are not read, so that the editable one stays unseen.
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    borrowed = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    (Path(packages) / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    return python


@pytest.mark.services
class TestDistribution:
    """What is built has all that is here, and nothing else."""

    def test_the_wheel_has_every_file(self, built: Distribution) -> None:
        """A package that pyproject.toml does not list would be missing; its py.typed shows the types to checkers."""
        with zipfile.ZipFile(built.wheel) as archive:
            found = {name for name in archive.namelist() if ".dist-info/" not in name}
        assert found == set(SOURCES.values())
        assert {name for name in found if name.endswith("py.typed")} == {
            "asyncudf/py.typed",
            "asyncudf/queues/py.typed",
        }

    def test_the_sdist_has_every_file_and_no_other(self, built: Distribution) -> None:
        """The tests run from it too: they read the pages and start the examples, the benchmarks and the scripts."""
        with tarfile.open(built.sdist) as archive:
            files = {one.name.partition("/")[2]: one.mode for one in archive.getmembers() if one.isfile()}
        found = {name: mode for name, mode in files.items() if not name.startswith("asyncudf.egg-info/")}
        copy = built.sdist.parent / "copy"
        beside = {
            path.relative_to(copy).as_posix()
            for folder in BESIDE_THE_SOURCES
            for path in (copy / folder).rglob("*")
            if path.is_file()
        }
        pages = {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"}
        settings = {"pyproject.toml", "setup.py", "mkdocs.yml", "MANIFEST.in", ".gitignore", "PKG-INFO", "setup.cfg"}
        assert found.keys() == {*SOURCES, *pages, *settings, *beside.difference(JUNK)}
        programs = {name for name, mode in found.items() if mode & 0o100}
        names = ("chaos", "demo", "docs", "draw", "matrix", "test")
        assert programs == {".ci/run", ".ci/as_user", *(f"scripts/{name}" for name in names)}

    def test_links_of_the_readme_lead_to_the_repository(self, built: Distribution) -> None:
        with zipfile.ZipFile(built.wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            shown = archive.read(name).decode()
        links = re.findall(r"\]\(([^)]+)\)", shown) + re.findall(r'src(?:set)?="([^"]+)"', shown)
        assert len(links) > 20
        assert [link for link in links if not link.startswith(("https://", "#"))] == []

    def test_the_command_on_the_page_builds_the_wheel_that_the_pages_of_platforms_name(self, tmp_path: Path) -> None:
        """With the build's requirements of this environment: else it would fetch them."""
        pages = [page.read_text() for page in (ROOT / "docs" / "platforms").glob("*.md")]
        (command,) = {command for page in pages for command in re.findall(r"^pip (wheel .*)$", page, re.MULTILINE)}
        tools = build_requirements(tmp_path / "tools")
        shutil.copytree(ROOT, tmp_path / "copy", ignore=shutil.ignore_patterns(*NOT_PART_OF_IT))
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check")
        run(*pip, *command.split(), "--no-build-isolation", "--quiet", cwd=tmp_path / "copy", path=tools)
        (wheel,) = (tmp_path / "copy" / "dist").iterdir()
        assert {name for page in pages for name in re.findall(r"asyncudf-[\w.-]+\.whl", page)} == {wheel.name}

    def test_the_wheel_tells_what_it_needs(self, built: Distribution) -> None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        with zipfile.ZipFile(built.wheel) as archive:
            (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            told = importlib.metadata.PathDistribution(zipfile.Path(archive, name.removesuffix("METADATA")))
            assert (told.name, told.version) == (project["name"], VERSION) == (told.name, asyncudf.__version__)
            assert told.metadata["License-Expression"] == project["license"]
            needed = {Requirement(one).name for one in told.requires or () if "extra ==" not in one}
        assert needed == {Requirement(one).name for one in project["dependencies"]}


IMPORT_ALL = """
import importlib, json, pkgutil
import asyncudf
names = ["asyncudf", *(info.name for info in pkgutil.walk_packages(asyncudf.__path__, "asyncudf."))]
print(json.dumps({name: importlib.import_module(name).__file__ for name in names}))
"""

# What is defined in a program travels by value. Of `func` it is the object that Spark sends to its workers.
WRITE = """
import sys
from dataclasses import dataclass
from pyspark import cloudpickle
from pyspark.sql.types import DoubleType, StringType, StructType
from asyncudf import AsyncFunction, RetryStrategy, RuntimeContext, async_pandas_udf

FACTOR = 2.0

@dataclass
class Weather:
    temp: float
    sky: str

@async_pandas_udf(StructType().add("temp", DoubleType()).add("sky", StringType()), on_error="capture", capacity=3,
                  retry=RetryStrategy.exponential_backoff(3, 0.001, 0.01, retry_on=ConnectionError))
async def weather(city: str, context: RuntimeContext) -> Weather:
    if context.attempt_number < 2:
        raise ConnectionError("busy")
    if city == "Atlantis":
        raise LookupError(city)
    return Weather(FACTOR * len(city), "clear")

class Twice(AsyncFunction):
    async def async_invoke(self, value, result_future):
        result_future.complete([value, value])

with open(sys.argv[1], "wb") as file:
    file.write(cloudpickle.dumps((weather, weather.func, async_pandas_udf(Twice(), "string"))))
"""

READ = """
import json, pickle, sys
for name in sys.argv[1:]:
    with open(name, "rb") as file:
        weather, task, twice = pickle.load(file)
    import asyncudf, pyarrow
    from asyncudf.testing import run_rows
    (column,) = (batch for batch in task(iter([pyarrow.array(["Oslo", "Atlantis"])])) if len(batch))
    print(json.dumps({
        "file": asyncudf.__file__,
        "rows": [row["value"] and row["value"].temp for row in run_rows(weather, ["Oslo", "Atlantis"])],
        "values": [row["value"] for row in column.to_pylist()],
        "errors": [row["error"] and row["error"]["type"] for row in column.to_pylist()],
        "attempts": [row["error"] and row["error"]["attempts"] for row in column.to_pylist()],
        "capacity": weather.options.capacity,
        "twice": run_rows(twice, ["a"]),
        "is_one": isinstance(weather, asyncudf.AsyncUDF),
    }))
"""


def run_program(python: str | Path, text: str, folder: Path, *arguments: str | Path) -> str:
    """What a program prints that sees neither this folder nor what runs here."""
    program = folder / "program.py"
    program.write_text(text)
    return run(python, "-I", program, *arguments, cwd=folder)


def pass_on(writers: Sequence[str | Path], reader: str | Path, folder: Path) -> Any:
    """What `reader` makes of the functions that each of `writers` has pickled and left; returns its library's file."""
    pickled = [folder / f"functions-{number}.pickle" for number, _ in enumerate(writers)]
    for writer, file in zip(writers, pickled, strict=True):
        run_program(writer, WRITE, folder, file)
    told = [json.loads(line) for line in run_program(reader, READ, folder, *pickled).splitlines()]
    expected = {
        "file": told[0]["file"],
        "rows": [8.0, None],
        "values": [{"temp": 8.0, "sky": "clear"}, None],
        "errors": [None, "LookupError"],
        "attempts": [None, 2],
        "capacity": 3,
        "twice": ["a", "a"],
        "is_one": True,
    }
    assert told == [expected] * len(writers)
    return expected["file"]


def is_within(file: str, python: Path) -> bool:
    """Whether a file belongs to the environment of a Python."""
    return Path(file).resolve().is_relative_to(python.parent.parent.resolve())


def test_a_function_pickled_in_one_process_runs_in_another(tmp_path: Path) -> None:
    """As PySpark sends it to its workers: they have the library, and nothing of the program that declared it."""
    pass_on([sys.executable], sys.executable, tmp_path)


@pytest.mark.services
class TestElsewhere:
    def test_every_module_can_be_imported(self, elsewhere: Path, tmp_path: Path) -> None:
        found = json.loads(run_program(elsewhere, IMPORT_ALL, tmp_path))
        files = [name.removesuffix(".py") for name in SOURCES.values() if name.endswith(".py")]
        assert found.keys() == {name.removesuffix("/__init__").replace("/", ".") for name in files}
        for name, file in found.items():
            assert is_within(file, elsewhere), f"{name} is that of {file}"

    def test_a_function_of_an_earlier_process_runs(self, elsewhere: Path, tmp_path: Path) -> None:
        """Made there, and made here: driver and workers need not have got the library in the same way."""
        assert is_within(pass_on([elsewhere, sys.executable], elsewhere, tmp_path), elsewhere)
