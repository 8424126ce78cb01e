"""The examples in docstrings run, and what README and docs lead to is there."""

from __future__ import annotations

import dataclasses
import doctest
import functools
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import asyncudf
from asyncudf._engine.calls.row import _MOVES, RowState
from asyncudf._functions.options import Options

ROOT = Path(__file__).parents[2]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    ROOT / "benchmarks" / "README.md",
    *sorted(ROOT.glob(".github/*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
PICTURE_LIMIT = 200_000  # bytes: a README is looked at on phones, too
MODULES = ["asyncudf", *sorted(info.name for info in pkgutil.walk_packages(asyncudf.__path__, "asyncudf."))]


@functools.cache
def examples_of(name: str) -> list[doctest.DocTest]:
    """Those of a module; of the methods of its public classes too, whose code is that of a private module."""
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", ()):
        getattr(module, public)  # a name is in the package from its first use on
    finder = doctest.DocTestFinder()
    found = {test.name: test for test in finder.find(module)}
    for public in getattr(module, "__all__", ()):
        if inspect.isclass(getattr(module, public)) and getattr(module, public).__module__ == name:
            names = dict(vars(module))
            tests = finder.find(getattr(module, public), f"{name}.{public}", module=False, globs=names)  # type: ignore[arg-type]
            found.update({test.name: test for test in tests})
    return list(found.values())


def test_the_examples_in_docstrings_run() -> None:
    told: list[str] = []
    for name in MODULES:
        runner = doctest.DocTestRunner(verbose=False)
        for test in examples_of(name):
            runner.run(test, out=told.append)
    assert not told, "".join(told)


def test_no_example_is_left_out() -> None:
    """Each `>>>` in the source is one that the test above has run."""
    files = [*(ROOT / "udfs").rglob("*.py"), *(ROOT / "queues").rglob("*.py")]
    written = sum(line.lstrip().startswith(">>> ") for path in files for line in path.read_text().splitlines())
    assert sum(len(test.examples) for name in MODULES for test in examples_of(name)) == written


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them of its headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_what_a_page_leads_to_is_there(page: Path) -> None:
    """Other pages and pictures, by their relative paths; a picture is not too large to be sent."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text) + re.findall(r'src(?:set)?="([^":]+)"', text)
    assert [link for link in links if not (page.parent / link).exists()] == []
    anchors = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", text)
    assert [one for one in anchors if one[1] not in headings(page.parent / one[0] if one[0] else page)] == []
    assert [
        link for link in links if link.endswith(".png") and (page.parent / link).stat().st_size > PICTURE_LIMIT
    ] == []


@pytest.mark.parametrize("name", ["queues", "refusals", "once"])
def test_a_picture_shows_what_the_operator_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If it differs, `scripts/draw` makes it anew: look at it then."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    drawing = importlib.import_module(f"_drawings.{name}")
    assert (ROOT / "docs" / "images" / f"{name}.svg").read_text() == drawing.picture()


def test_the_reference_has_each_public_name_and_each_option() -> None:
    """Names under `:::`, options as lines of a table, each once."""
    reference = "".join(path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md"))
    packages = ("asyncudf", "asyncudf.batches", "asyncudf.http", "asyncudf.queues", "asyncudf.testing")
    public = {f"{name}.{one}" for name in packages for one in importlib.import_module(name).__all__}
    public -= {"asyncudf.DEAD_LETTERS", "asyncudf.LATENCIES"}  # values: a sentence describes them
    public |= {"asyncudf.testing.VirtualClockLoop"}
    assert sorted(re.findall(r"^::: (.+)$", reference, re.MULTILINE)) == sorted(public)
    shown = re.findall(r"^\| `(\w+)` \|", reference, re.MULTILINE)
    assert shown == [one.name for one in dataclasses.fields(Options)], "in the order in which help() shows them"


def test_the_pages_about_the_inside_name_files_that_exist() -> None:
    text = (ROOT / "docs" / "internals.md").read_text() + (ROOT / "CONTRIBUTING.md").read_text()
    named = set(re.findall(r"`((?:_\w+/)+\w+\.py)`", text))
    assert len(named) > 20
    assert not [name for name in sorted(named) if not (ROOT / "udfs" / name).exists()]


def test_the_page_about_the_inside_shows_all_moves_of_a_row() -> None:
    moves = ((state, [one.name for one in RowState if one in after]) for state, after in _MOVES.items())
    diagram = "\n".join(f"{state.name:<11} --> {', '.join(after)}" for state, after in moves if after)
    page = (ROOT / "docs" / "internals.md").read_text()
    assert f"```text\n{diagram}\n```" in page, f"the page needs this diagram:\n{diagram}"
