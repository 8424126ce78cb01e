"""What is wrong with an installation, and the line that fixes it: `python -m asyncudf doctor`.

Nothing here imports Spark, pandas or pyarrow: the doctor is for installations in which they are broken.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal

from .._errors.safe import presentable

if TYPE_CHECKING:  # imported late: without `packaging` the doctor says so, and looks at everything else
    from packaging.requirements import Requirement

PACKAGE = "asyncudf"
CONNECT_CLIENTS = ("databricks-connect", "pyspark-client")  # each is a pyspark without Java
EXTRAS = ("store", "redis", "coordinator", "fast", "report", "progress", "otel", "openai", "anthropic")
MESSAGE_CHARACTERS = 220  # of another program, so that the next line of the report stays in sight
OWN_FILES = 64  # open in a worker besides its calls: libraries, pipes, its connections to Spark
LIMIT = 60.0  # seconds: on a cold disk the imports alone take ten
INSTALL_JAVA = {
    "darwin": "brew install --cask temurin@17",
    "win32": "winget install EclipseAdoptium.Temurin.17.JRE",
}.get(sys.platform, "sudo apt-get install openjdk-17-jre-headless  (or another package of Java 17)")
# A Python 2 must be able to read this too: PYSPARK_PYTHON may name one. It imports what a worker does.
LOOK = """
import json, sys
found = {"version": "%d.%d" % sys.version_info[:2], "problem": "", "lacks": []}
try:
    from importlib import metadata
    for name in sys.argv[1:]:
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            found["lacks"].append(name)
    import asyncudf._spark.chain_task, asyncudf._spark.column, pandas
except BaseException as error:
    found["problem"] = "cannot import asyncudf: %s: %s" % (type(error).__name__, error)
print("\\n" + json.dumps(found))
"""


@dataclass(frozen=True)
class Finding:
    """What the doctor found out about one thing; with these names in `--json`."""

    name: str  # what was looked at
    status: Literal["ok", "warn", "fail"]  # "warn" if work can go on, "fail" if it cannot
    found: str  # what is there
    fix: str = ""  # the line that fixes it; empty if nothing is wrong


def as_text(finding: Finding) -> str:
    line = f"{finding.status:<5} {_visible(finding.name):<22} {_visible(finding.found)}"
    return f"{line}\n{'':<28} -> {_visible(finding.fix)}" if finding.fix else line


def _visible(text: str) -> str:
    # A path may hold a line break, or a terminal's control sequence.
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


def examine(capacity: int, environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Look at everything, and give each finding as soon as it is known. What cannot be looked at is a finding too.

    There are `capacity` calls in flight in each task, and Spark reads the variables of the environment.
    """
    checks: Mapping[str, Callable[[], list[Finding]]] = {
        "packages": check_packages,
        "extras": check_extras,
        "java": lambda: [] if connect_client() or has_sail() else [check_java(environment)],
        "Python": lambda: [check_pythons(environment)],
        "open files": lambda: check_open_files(capacity),
    }
    for name, check in checks.items():
        try:
            yield from check()
        except Exception as error:
            found = f"cannot be looked at: {type(error).__name__}: {short_message(str(error))}"
            missing = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
            fix = _install(missing) if missing else "please report this: it is a bug of the doctor"
            yield Finding(name, "fail", found, fix)


def check_packages() -> list[Finding]:
    """What does not fit of all that each Python needs; if all fits, one line with all versions."""
    from packaging.requirements import Requirement

    version = version_of(PACKAGE)
    found = [_check(Requirement(PACKAGE), version)]
    if version:
        bounds = importlib.metadata.metadata(PACKAGE)["Requires-Python"] or ""
        found.append(_check(Requirement(f"Python{bounds}"), platform.python_version()))
        found += [_check(required, version_of(required.name)) for required in _needed()]
    fitting = ", ".join(f"{one.name} {one.found}" for one in found)
    return [one for one in found if one.status != "ok"] or [Finding("packages", "ok", fitting)]


def _check(required: Requirement, version: str) -> Finding:
    if fits(version, required):
        return Finding(required.name, "ok", version)
    another = "make a virtual environment with another Python, and install asyncudf there"
    fix = another if required.name == "Python" else _install(f"{required.name}{required.specifier}")
    found = f"{version or 'not installed'}, and asyncudf needs {required.specifier or 'it'}"
    return Finding(required.name, "fail", found, fix)


def _install(*packages: str) -> str:
    return shlex.join([sys.executable, "-m", "pip", "install", *packages])


def check_extras() -> list[Finding]:
    """Which extras are there, and what the others lack. None of them is needed until a function uses it."""
    lacks = {extra: [one.name for one in required(extra) if not fits(version_of(one.name), one)] for extra in EXTRAS}
    there = ", ".join(extra for extra, names in lacks.items() if not names)
    absent = ", ".join(f"{extra} ({', '.join(names)})" for extra, names in lacks.items() if names)
    found = "; ".join(filter(None, [there, absent and f"not installed: {absent}"]))
    return [Finding("extras", "ok", found)] if version_of(PACKAGE) else []


def _needed() -> list[Requirement]:
    """What each Python needs: pyspark as well, unless a client of Spark Connect stands for it, and what fits Sail."""
    return [*(_of_sail() if has_sail() else [] if connect_client() else required("spark")), *required()]


def has_sail() -> bool:
    """Whether Sail is here for pyspark: databricks-connect has versions of its own, and never connects to it."""
    return bool(version_of("pysail")) and not version_of("databricks-connect")


def _of_sail() -> list[Requirement]:
    """Sail and its client, in the versions that go together; the whole pyspark is a client too."""
    needed = required("sail")
    for one in needed:
        if one.name == "pyspark-client" and version_of("pyspark"):
            one.name = "pyspark"  # which is older than the client alone
            (whole,) = required("spark")
            one.specifier = whole.specifier & ",".join(
                str(bound) for bound in one.specifier if bound.operator[0] == "<"
            )
    return needed


def required(extra: str = "") -> list[Requirement]:
    """What the installed asyncudf asks for on this platform: always, or what one of its extras adds to that."""
    from packaging.requirements import Requirement

    def counts(one: Requirement, extra: str) -> bool:
        return one.marker is None or one.marker.evaluate({"extra": extra})

    needed = [Requirement(line) for line in importlib.metadata.requires(PACKAGE) or ()] if version_of(PACKAGE) else []
    return [one for one in needed if counts(one, extra) and not (extra and counts(one, ""))]


def fits(version: str, required: Requirement) -> bool:
    """Whether a version is within bounds; an empty one is not. A pre-release such as 3.0rc1 counts as 3.0."""
    from packaging.version import Version

    return bool(version) and required.specifier.contains(Version(version).base_version)


def version_of(package: str) -> str:
    """The installed version; empty if it is not installed."""
    try:
        return importlib.metadata.version(package) or ""
    except importlib.metadata.PackageNotFoundError:
        return ""


def connect_client() -> str:
    """The package with which queries run on another machine's Spark, and its version; empty for a Spark of our own."""
    found = [f"{package} {version}" for package in CONNECT_CLIENTS if (version := version_of(package))]
    return "" if version_of("pyspark") or not found else found[0]


def check_java(environment: Mapping[str, str]) -> Finding:
    """Whether Spark can use the Java that it finds: in JAVA_HOME, and only without in PATH."""
    home, spark = environment.get("JAVA_HOME", ""), version_of("pyspark")
    path = shutil.which("java", path=os.path.join(home, "bin") if home else environment.get("PATH"))
    fix = INSTALL_JAVA if not home else "set JAVA_HOME=" if sys.platform == "win32" else "unset JAVA_HOME"
    if not path:
        found = f"JAVA_HOME is {home}, which has no bin/java" if home else "JAVA_HOME is not set, and PATH has no java"
        return Finding("java", "fail", found, fix)
    output = run_program([path, "-XshowSettings:properties", "-version"])
    if not (version := re.search(r"java\.specification\.version = (?:1\.)?(\d+)", output)):
        return Finding("java", "fail", f"{path} cannot be used: {short_message(output)}", fix)
    java, numbers = int(version[1]), tuple(map(int, re.findall(r"\d+", spark)[:2]))
    tested = (17, 21, 25) if numbers >= (4, 2) else (17, 21)
    if java in tested:
        return Finding("java", "ok", f"Java {java} ({path})")
    # Spark 3.5 takes Java 8 and 11 too. Java 24 removed parts of its security manager that Spark up to 4.1 needs.
    can_work = java >= (8 if spark.startswith("3.") else 17) and (java < 24 or 25 in tested)
    found = f"{path} is Java {java}; Spark {spark or '4'} is tested with {', '.join(map(str, tested))}"
    return Finding("java", "warn" if can_work else "fail", found, fix)


def check_pythons(environment: Mapping[str, str]) -> Finding:
    """Whether asyncudf can be imported here, and the Python of Spark's workers has the same version and packages."""
    version, problem, _ = look_at(sys.executable)
    if problem:
        fix = _install("--force-reinstall", *(f"{one.name}{one.specifier}" for one in _needed()))
        return Finding("driver's Python", "fail", f"{sys.executable} {problem}", fix)
    if client := connect_client():
        found = f"{client}: workers run where it connects to, and need Python {version} and asyncudf there"
        return Finding("workers", "ok", found)
    program = environment.get("PYSPARK_PYTHON", "")
    used = {one.name for one in (*_needed(), *(one for extra in EXTRAS for one in required(extra)))}
    other, problem, lacks = look_at(program or "python3", sorted(filter(version_of, used)))
    shown = program or "not set, so workers take python3 from PATH, which"
    posix, windows = f"export PYSPARK_PYTHON={shlex.quote(sys.executable)}", f'set "PYSPARK_PYTHON={sys.executable}"'
    fix = windows if sys.platform == "win32" else posix
    if other and other != version:
        problem = f"is Python {other}, the driver's is {version}"
    if problem:
        return Finding("PYSPARK_PYTHON", "fail", f"{shown} {problem}", fix)
    if lacks:
        return Finding("PYSPARK_PYTHON", "warn", f"{shown} lacks what the driver has: {', '.join(lacks)}", fix)
    return Finding("PYSPARK_PYTHON", "ok", f"{shown} is Python {other} and has the driver's packages")


def look_at(program: str, names: Sequence[str] = ()) -> tuple[str, str, list[str]]:
    """The version of a Python, why it cannot be used, and the packages of these names that it lacks."""
    if not (path := shutil.which(program)):
        return "", "cannot be used: there is no such program", []
    output = run_program([path, "-c", LOOK, *names])
    try:
        found = json.loads(output.splitlines()[-1])
        return found["version"], short_message(found["problem"]), found["lacks"]
    except (IndexError, KeyError, TypeError, ValueError):
        return "", f"cannot be used: {short_message(output)}", []


def check_open_files(capacity: int) -> list[Finding]:
    if sys.platform == "win32":
        return []
    import resource

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (inf if limit == resource.RLIM_INFINITY else limit for limit in limits)
    need = capacity + OWN_FILES
    allowed = "no limit" if soft == inf else f"{soft:,}"
    found = f"{allowed} in a process; {capacity:,} calls in a task need about {need:,}"
    if soft >= need:
        return [Finding("open files", "ok", found)]
    if hard >= need:  # Java raises its own limit as far as it may, and Spark's workers inherit that
        return [Finding("open files", "warn", found, f"ulimit -n {min(hard, 1 << (need - 1).bit_length())}")]
    fix = f"capacity={max(1, int(hard) - OWN_FILES)}, or let root raise the limit of {hard:,}"
    return [Finding("open files", "fail", found, fix)]


def run_program(command: Sequence[str]) -> str:
    """What a program prints, or why it prints nothing."""
    try:
        ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return f"no answer in {LIMIT:g} s"
    except OSError as error:
        return str(error)
    return (ran.stderr + ran.stdout).decode("utf-8", "replace") or f"it ends with status {ran.returncode}"


def short_message(text: str) -> str:
    """A message of another program, short, without line breaks, and without the secrets of its URLs."""
    line = " ".join(presentable(text).split())
    return line if len(line) <= MESSAGE_CHARACTERS else line[: MESSAGE_CHARACTERS - 3] + "..."
