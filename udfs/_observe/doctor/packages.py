"""Versions: of Python, of the packages that asyncudf needs, and of those of its extras."""

from __future__ import annotations

import importlib.metadata
import platform
import shlex
import sys
from typing import TYPE_CHECKING

from .findings import Finding

if TYPE_CHECKING:  # imported late: without `packaging` the doctor says so, and looks at everything else
    from packaging.requirements import Requirement

PACKAGE = "asyncudf"
CONNECT_CLIENTS = ("databricks-connect", "pyspark-client")  # each is a pyspark without Java
EXTRAS = ("store", "redis", "coordinator", "fast", "report", "progress", "otel", "openai", "anthropic")


def check_packages() -> list[Finding]:
    """What does not fit of all that each Python needs; if all fits, one line with all versions."""
    from packaging.requirements import Requirement

    version = version_of(PACKAGE)
    found = [_check(Requirement(PACKAGE), version)]
    if version:
        bounds = importlib.metadata.metadata(PACKAGE)["Requires-Python"] or ""
        found.append(_check(Requirement(f"Python{bounds}"), platform.python_version()))
        found += [_check(required, version_of(required.name)) for required in packages_needed()]
    fitting = ", ".join(f"{one.name} {one.found}" for one in found)
    return [one for one in found if one.status != "ok"] or [Finding("packages", "ok", fitting)]


def _check(required: Requirement, version: str) -> Finding:
    if _fits(version, required):
        return Finding(required.name, "ok", version)
    fix = shlex.join([sys.executable, "-m", "pip", "install", f"{required.name}{required.specifier}"])
    if required.name == "Python":
        fix = "make a virtual environment with another Python, and install asyncudf there"
    found = f"{version or 'not installed'}, and asyncudf needs {required.specifier or 'it'}"
    return Finding(required.name, "fail", found, fix)


def check_extras() -> list[Finding]:
    """Which extras are there, and what the others lack. None of them is needed until a function uses it."""
    lacks = {extra: [one.name for one in _required(extra) if not _fits(version_of(one.name), one)] for extra in EXTRAS}
    there = ", ".join(extra for extra, names in lacks.items() if not names)
    absent = ", ".join(f"{extra} ({', '.join(names)})" for extra, names in lacks.items() if names)
    found = "; ".join(filter(None, [there, absent and f"not installed: {absent}"]))
    return [Finding("extras", "ok", found)] if version_of(PACKAGE) else []


def packages_needed() -> list[Requirement]:
    """The packages that each Python needs: pyspark as well, unless a client of Spark Connect stands for it."""
    return [*([] if connect_client() else _required("spark")), *_required()]


def packages_here() -> list[str]:
    """The packages of asyncudf and its extras that this Python has."""
    needed = [*packages_needed(), *(one for extra in EXTRAS for one in _required(extra))]
    return sorted({one.name for one in needed if version_of(one.name)})


def connect_client() -> str:
    """The package with which queries run on another machine's Spark, and its version; empty for a Spark of our own."""
    found = [f"{package} {version}" for package in CONNECT_CLIENTS if (version := version_of(package))]
    return "" if version_of("pyspark") or not found else found[0]


def _required(extra: str = "") -> list[Requirement]:
    """What the installed asyncudf asks for on this platform: always, or what one of its extras adds to that."""
    from packaging.requirements import Requirement

    def counts(one: Requirement, extra: str) -> bool:
        return one.marker is None or one.marker.evaluate({"extra": extra})

    needed = [Requirement(line) for line in importlib.metadata.requires(PACKAGE) or ()] if version_of(PACKAGE) else []
    return [one for one in needed if counts(one, extra) and not (extra and counts(one, ""))]


def _fits(version: str, required: Requirement) -> bool:
    """Whether a version is within bounds; an empty one is not. A pre-release such as 3.0rc1 counts as 3.0."""
    from packaging.version import Version

    return bool(version) and required.specifier.contains(Version(version).base_version)


def version_of(package: str) -> str:
    """The installed version of a package; empty if it is not installed."""
    try:
        return importlib.metadata.version(package) or ""
    except importlib.metadata.PackageNotFoundError:
        return ""
