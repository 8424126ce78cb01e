"""What a package asks for is read from its metadata as pip reads it, without the library that pip reads it with."""

from __future__ import annotations

import importlib.metadata
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement as TheirRequirement
from packaging.specifiers import SpecifierSet

from asyncudf._doctor.install_check import read_extras
from asyncudf._doctor.requirements import (
    Requirement,
    fits,
    missing_for,
    read_requirement,
    requirements_of,
    version_of,
)

ROOT = Path(__file__).parents[2]
versions = st.lists(st.integers(0, 4), min_size=1, max_size=3).map(lambda parts: ".".join(map(str, parts)))
bounds = st.lists(st.tuples(st.sampled_from([">=", "<=", ">", "<", "==", "!="]), versions).map("".join), max_size=3)


@given(versions, bounds.map(",".join))
def test_bounds_mean_what_pip_means(version, bounds):
    """A version fits exactly if pip would take it."""
    assert fits(version, bounds) == SpecifierSet(bounds).contains(version)


@pytest.mark.parametrize(
    ("version", "bounds", "expected"),
    [
        ("3.0.0rc1", ">=2.2,<3", False),  # pip agrees
        ("4.1.0.dev1", ">=4.1", True),  # pip does not, and nobody has one by mistake
        ("2.5.1", "==2.5.*", True),
        ("2.6", "==2.5.*", False),
        ("2.6", "!=2.5.*", True),
        ("2.6", "~=1.0", True),
        ("odd", ">=1", False),
    ],
)
def test_bounds_of_odd_versions(version, bounds, expected):
    """What is early counts as what it will be; what is not understood raises no alarm."""
    assert fits(version, bounds) is expected


@pytest.mark.parametrize("package", ["asyncudf", "pyspark", "pandas", "aiohttp"])
def test_requirements_are_read_as_pip_reads_them(package):
    """Names, extras and bounds of real packages."""
    for line in importlib.metadata.requires(package) or []:
        ours, theirs = read_requirement(line), TheirRequirement(line)
        assert (ours.name, set(ours.extras)) == (theirs.name, theirs.extras)
        assert SpecifierSet(ours.bounds) == theirs.specifier
        if theirs.marker is not None and ours.extra:
            assert ours.is_for_here == theirs.marker.evaluate({"extra": ours.extra})


def test_a_requirement_shows_as_it_is_written():
    """It can be given to pip."""
    assert str(read_requirement('pyspark[connect]>=4.1; extra == "x"')) == "pyspark[connect]>=4.1"
    assert read_requirement('a; sys_platform == "plan9"') == Requirement("a", is_for_here=False)
    assert read_requirement('a; sys_platform != "plan9" and extra == "b"') == Requirement("a", extra="b")


def test_an_extra_needs_what_its_extras_need():
    """Through other extras, of other packages too, and round in a circle."""
    lines = {
        "us": [
            'a>=2; extra == "one"',
            'us[two]; extra == "one"',
            'us[one]; extra == "two"',
            'b[c]; extra == "two"',
            "z",
        ],
        "b": ['d; extra == "c"', 'e; extra == "other"', "f"],
    }
    installed = {"us": "1", "a": "1.9", "b": "1"}

    def required(package):
        return [read_requirement(line) for line in lines.get(package, [])]

    def missing(extra):
        return missing_for("us", extra, required, lambda package: installed.get(package, ""))

    assert missing("one") == ["a>=2", "d"]
    installed["d"] = "0"
    assert missing("two") == ["a>=2"]
    installed["a"] = "2.0"
    assert missing("one") == []


def test_the_extras_are_those_of_the_package():
    """None is listed by hand."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert read_extras("asyncudf").keys() == project["optional-dependencies"].keys()


def test_a_package_that_is_not_there():
    """It has no version and asks for nothing."""
    assert version_of("no-such-package-anywhere") == ""
    assert requirements_of("no-such-package-anywhere") == []
