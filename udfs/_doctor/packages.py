"""Versions: of Python, of the packages that asyncudf asks for, and of the Spark in SPARK_HOME."""

from __future__ import annotations

import glob
import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING

from .findings import Finding, clear

if TYPE_CHECKING:  # imported late: without `packaging` the doctor says so, and looks at everything else
    from packaging.requirements import Requirement

PACKAGE = "asyncudf"
CONNECT_CLIENTS = ("databricks-connect", "pyspark-client")  # each is a pyspark without Java
EXTRAS = ("store", "redis", "coordinator", "fast", "report", "progress", "otel", "openai", "anthropic")
WHY = {"pandas": "PySpark does not fully support pandas 3"}  # an upper bound that people ask about


def check_package(required: Requirement, version: str) -> Finding:
    """The installed version of Python, asyncudf or a package, within the bounds; empty if it is not installed."""
    name, bounds = required.name, bounds_of(required)
    if version and (name == PACKAGE or fits(version, bounds)):
        return Finding(name, "ok", version)
    why = f": {WHY[name]}" if version and name in WHY and "<" in bounds else ""
    found = f"{version or 'not installed'}, and asyncudf needs {bounds or 'it'}{why}"
    fix = shlex.join([sys.executable, "-m", "pip", "install", as_line(required)])
    if name == PACKAGE:
        found = "is not installed, so the versions that it needs are not known"
    elif name == "Python":
        fix = "make a virtual environment with another Python, and install asyncudf there"
    return Finding(name, "fail", found, fix)


def check_packages(versions: Iterable[tuple[Requirement, str]]) -> list[Finding]:
    """What does not fit; if all fits, one line with all versions."""
    found = list(starmap(check_package, versions))
    fitting = ", ".join(f"{one.name} {one.found}" for one in found)
    return [one for one in found if one.status != "ok"] or [Finding("packages", "ok", fitting)]


def read_versions() -> Iterator[tuple[Requirement, str]]:
    """What is needed and its installed version: asyncudf, then what its metadata asks for."""
    from packaging.requirements import Requirement

    version = version_of(PACKAGE)
    yield Requirement(PACKAGE), version
    if version:
        bounds = importlib.metadata.metadata(PACKAGE)["Requires-Python"] or ""
        yield Requirement(f"Python{bounds}"), platform.python_version()
        yield from ((required, version_of(required.name)) for required in packages_needed())


def packages_needed() -> list[Requirement]:
    """The packages that each Python needs: pyspark as well, unless a client of Spark Connect stands for it."""
    return [*([] if connect_client() else required_of(PACKAGE, "spark")), *required_of(PACKAGE)]


def read_extras() -> dict[str, list[str]]:
    """What each extra lacks: packages that are not installed, or of another version."""
    asked = {extra: required_of(PACKAGE, extra) for extra in EXTRAS}
    return {
        extra: [one.name for one in needed if not fits(version_of(one.name), bounds_of(one))]
        for extra, needed in asked.items()
        if needed
    }


def check_extras(lacking: Mapping[str, Sequence[str]]) -> list[Finding]:
    """Which extras are there. None of them is needed until a function uses it."""
    there = [extra for extra, packages in lacking.items() if not packages]
    absent = [f"{extra} ({', '.join(packages)})" for extra, packages in lacking.items() if packages]
    said = [", ".join(there)] if there else []
    if absent:
        said.append(f"not installed: {', '.join(absent)}")
    return [Finding("extras", "ok", "; ".join(said))] if said else []


def connect_client() -> str:
    """The package with which queries run on another machine's Spark, and its version; empty for a Spark of our own."""
    found = [f"{package} {version}" for package in CONNECT_CLIENTS if (version := version_of(package))]
    return "" if version_of("pyspark") or not found else found[0]


def required_of(package: str, extra: str = "") -> list[Requirement]:
    """What an installed package asks for on this platform: always, or what one of its extras adds to that."""
    from packaging.requirements import Requirement

    try:
        lines = importlib.metadata.requires(package) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [required for required in map(Requirement, lines) if _counts(required, extra)]


def _counts(required: Requirement, extra: str) -> bool:
    marker = required.marker
    always = marker is None or marker.evaluate({"extra": ""})
    return bool(marker and not always and marker.evaluate({"extra": extra})) if extra else always


def bounds_of(required: Requirement) -> str:
    """The bounds as people write them, the lower one first: ">=2.2,<3"."""
    return ",".join(sorted(map(str, required.specifier), reverse=True))


def as_line(required: Requirement) -> str:
    """The requirement as an argument for pip, without its marker."""
    extras = f"[{','.join(sorted(required.extras))}]" if required.extras else ""
    return f"{required.name}{extras}{bounds_of(required)}"


def fits(version: str, bounds: str) -> bool:
    """Whether a version is within bounds; an empty one is not. A pre-release such as 3.0rc1 counts as 3.0."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(bounds).contains(Version(version).base_version)
    except InvalidVersion:
        return False


def version_of(package: str) -> str:
    """The installed version of a package; empty if it is not installed."""
    try:
        return importlib.metadata.version(package) or ""
    except importlib.metadata.PackageNotFoundError:
        return ""


def check_remote(url: str) -> list[Finding]:
    """Whether sessions run on another machine, over Spark Connect. The URL is not shown: it may hold a token."""
    found = "is set: your sessions run on another machine, and what follows is about this one"
    return [Finding("SPARK_REMOTE", "ok", found)] if url else []


def check_spark_home(home: str, there: str, installed: str) -> Finding:
    """Whether the Spark in SPARK_HOME, of version `there` (empty without one), fits the `installed` PySpark."""
    if not there:
        return Finding("SPARK_HOME", "fail", f"{home} has no Spark in it", clear("SPARK_HOME"))
    if there.split(".")[:2] != installed.split(".")[:2] and installed:
        found = f"{home} is Spark {there}, and the package pyspark is {installed}"
        return Finding("SPARK_HOME", "fail", found, clear("SPARK_HOME"))
    if there != installed and installed:
        found = f"{home} is Spark {there}, nearly the {installed} of the package pyspark"
        return Finding("SPARK_HOME", "warn", found, clear("SPARK_HOME"))
    return Finding("SPARK_HOME", "ok", f"{home} is Spark {there}")


def spark_folder(environment: Mapping[str, str]) -> str:
    """The folder of the Spark that is used; empty if there is none."""
    if environment.get("SPARK_HOME"):
        return environment["SPARK_HOME"]
    # `find_spec` does not import: a broken pyspark is found too.
    found = importlib.util.find_spec("pyspark")
    return os.path.dirname(found.origin) if found and found.origin else ""


def spark_in(home: str) -> str:
    """The version of the Spark in a folder; empty if the folder has none, or there is no folder."""
    for jar in glob.glob(os.path.join(glob.escape(home), "jars", "spark-core_*.jar")) if home else ():
        found = re.search(r"spark-core_[\d.]+-(.+)\.jar$", jar)
        if found:
            return found[1]
    release = Path(home, "RELEASE")
    found = re.search(r"Spark (\d\S*)", release.read_text(errors="replace")) if home and release.is_file() else None
    return found[1] if found else ""
