"""Are the packages that asyncudf asks for installed, in versions that fit, and does Spark come from where they do?"""

from __future__ import annotations

import glob
import importlib.metadata
import importlib.util
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .findings import Finding, clear
from .requirements import as_line, bounds_of, fits, missing_for

if TYPE_CHECKING:
    from packaging.requirements import Requirement

__all__ = (
    "check_extras",
    "check_language",
    "check_package",
    "check_remote",
    "check_spark_home",
    "read_extras",
    "spark_folder",
    "spark_in",
)

WHY = {"pandas": "PySpark does not fully support pandas 3"}  # an upper bound that people ask about


def check_language(version: str, bounds: str) -> Finding:
    """The driver's Python against what asyncudf asks for."""
    if fits(version, bounds):
        return Finding("Python", "ok", f"{version} ({bounds or 'any'})")
    mend = "make a virtual environment with another Python, and install asyncudf there"
    return Finding("Python", "fail", f"{version}, and asyncudf needs {bounds}", mend)


def check_package(required: Requirement, version: str, python: str) -> Finding:
    """An installed package against what asyncudf asks for; an empty version is one that is not installed."""
    bounds = bounds_of(required)
    if version and fits(version, bounds):
        return Finding(required.name, "ok", f"{version} ({bounds or 'any'})")
    why = f": {WHY[required.name]}" if version and required.name in WHY and "<" in bounds else ""
    found = f"{version or 'not installed'}, and asyncudf needs {bounds or 'it'}{why}"
    return Finding(required.name, "fail", found, shlex.join([python, "-m", "pip", "install", as_line(required)]))


def check_extras(missing: Mapping[str, list[str]]) -> Finding:
    """Which extras are there; none has to be. Given is for each what is not installed of what it asks for."""
    there = ", ".join(extra for extra, lacking in missing.items() if not lacking) or "none"
    absent = ", ".join(
        f"{extra} (lacks {', '.join(lacking[:3])}{', ...' if len(lacking) > 3 else ''})"
        for extra, lacking in missing.items()
        if lacking
    )
    return Finding("extras", "ok", f"installed: {there}" + (f"; not installed: {absent}" if absent else ""))


def check_spark_home(home: str, there: str, installed: str) -> Finding:
    """Does SPARK_HOME lead to the Spark that PySpark was made for?

    Args:
        home: SPARK_HOME; empty if it is not set.
        there: the version of the Spark in it; empty if it has none.
        installed: the version of PySpark.
    """
    if not home:
        return Finding("SPARK_HOME", "ok", "not set: Spark is the one in the package pyspark")
    if not there:
        return Finding("SPARK_HOME", "fail", f"{home} has no Spark in it", clear("SPARK_HOME"))
    if there.split(".")[:2] != installed.split(".")[:2] and installed:
        found = f"{home} is Spark {there}, and the package pyspark is {installed}"
        return Finding("SPARK_HOME", "fail", found, clear("SPARK_HOME"))
    if there != installed and installed:
        found = f"{home} is Spark {there}, nearly the {installed} of the package pyspark"
        return Finding("SPARK_HOME", "warn", found, clear("SPARK_HOME"))
    return Finding("SPARK_HOME", "ok", f"{home} is Spark {there}")


def check_remote(url: str) -> list[Finding]:
    """Spark Connect runs on another machine. Its address is not shown: there may be a token in it."""
    found = "is set: your sessions run on another machine, and what follows is about this one"
    return [Finding("SPARK_REMOTE", "ok", found)] if url else []


def read_extras(package: str) -> dict[str, list[str]]:
    """For each extra of a package what is not installed of what it asks for."""
    names = importlib.metadata.metadata(package).get_all("Provides-Extra") or []
    return {name: missing_for(package, name) for name in names}


def spark_folder(environment: Mapping[str, str]) -> str:
    """The folder of the Spark that is used; empty if there is none."""
    if environment.get("SPARK_HOME"):
        return environment["SPARK_HOME"]
    # Finding is not importing: a broken pyspark is found too.
    found = importlib.util.find_spec("pyspark")
    return os.path.dirname(found.origin) if found and found.origin else ""


def spark_in(home: str) -> str:
    """The version of the Spark in a folder; empty if it has none."""
    for jar in glob.glob(os.path.join(glob.escape(home), "jars", "spark-core_*.jar")):
        found = re.search(r"spark-core_[\d.]+-(.+)\.jar$", jar)
        if found:
            return found[1]
    release = Path(home, "RELEASE")
    found = re.search(r"Spark (\d\S*)", release.read_text(errors="replace")) if release.is_file() else None
    return found[1] if found else ""
