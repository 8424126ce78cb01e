"""The programs that a job needs, each started to see whether it works: Java, and the Python of the workers."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence

from .findings import Finding, short_message
from .packages import connect_client, packages_here, packages_needed, version_of

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
    import asyncudf, pyarrow, pandas
except BaseException as error:
    found["problem"] = "cannot import asyncudf: %s: %s" % (type(error).__name__, error)
print("\\n" + json.dumps(found))
"""


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
    program, names = environment.get("PYSPARK_PYTHON", ""), packages_here()
    version, problem, _ = look_at(sys.executable)
    if problem:
        needed = [f"{one.name}{one.specifier}" for one in packages_needed()]
        fix = shlex.join([sys.executable, "-m", "pip", "install", "--force-reinstall", *needed])
        return Finding("driver's Python", "fail", f"{sys.executable} {problem}", fix)
    if client := connect_client():
        found = f"{client}: workers run where it connects to, and need Python {version} and asyncudf there"
        return Finding("workers", "ok", found)
    other, problem, lacks = look_at(program or "python3", names)
    shown = program or "not set, so workers take python3 from PATH, which"
    fix = f"export PYSPARK_PYTHON={shlex.quote(sys.executable)}"
    if sys.platform == "win32":
        fix = f'set "PYSPARK_PYTHON={sys.executable}"'
    if other and other != version:
        return Finding("PYSPARK_PYTHON", "fail", f"{shown} is Python {other}, the driver's is {version}", fix)
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


def run_program(command: Sequence[str]) -> str:
    """What a program prints, or why it prints nothing."""
    try:
        ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return f"no answer in {LIMIT:g} s"
    except OSError as error:
        return str(error)
    return (ran.stderr + ran.stdout).decode("utf-8", "replace") or f"it ends with status {ran.returncode}"
