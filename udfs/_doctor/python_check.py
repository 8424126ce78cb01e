"""Do Spark's workers run in a Python that fits the driver's? Spark refuses another minor version, in the first task."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .findings import Finding, clear, export, one_line
from .programs import run_program

__all__ = ("Python", "WorkerPython", "check_driver_python", "check_python", "python_settings", "start_python")

# Also read by a Python 2, which may be what PYSPARK_PYTHON names. Imports what a worker does.
PROGRAM = """
import json, sys
found = {"version": "%d.%d" % sys.version_info[:2], "error": ""}
try:
    import asyncudf, pyarrow, pandas
except BaseException as error:
    found["error"] = "%s: %s" % (type(error).__name__, error)
print("\\n" + json.dumps(found))
"""
LIMIT = 60.0  # seconds: on a cold disk the imports alone take ten
NOTEBOOKS = ("jupyter", "ipython", "notebook")


@dataclass(frozen=True)
class Python:
    """What came of starting a Python.

    Attributes:
        version: as "3.11"; empty if it did not start.
        error: why asyncudf cannot be imported there.
        problem: why it did not start.
    """

    version: str = ""
    error: str = ""
    problem: str = ""


@dataclass(frozen=True)
class WorkerPython:
    """A setting that names a Python.

    Attributes:
        setting: its name.
        program: the Python that it names; empty if nothing is set, and then Spark takes `python3`.
        file: the file that it is written in; empty for a variable of the environment.
    """

    setting: str
    program: str
    file: str = ""


def check_driver_python(program: str, driver: Python, requirements: list[str]) -> Finding:
    """Can asyncudf, and what it needs, be imported here?"""
    if not driver.problem and not driver.error:
        return Finding("driver's Python", "ok", f"{driver.version} ({program}) imports asyncudf")
    mend = shlex.join([program, "-m", "pip", "install", "--force-reinstall", *requirements])
    return Finding("driver's Python", "fail", f"{program}: {driver.problem or driver.error}", mend)


def check_python(worker: WorkerPython, driver: Python, own: str, start: Callable[[str], Python]) -> Finding:
    """The finding about one setting.

    Args:
        worker: the setting.
        driver: what came of starting the driver's own.
        own: the program of it.
        start: starts a Python.
    """
    is_drivers = "DRIVER" in worker.setting or "driver" in worker.setting
    if is_drivers and os.path.basename(worker.program).startswith(NOTEBOOKS):
        found = f"{worker.program}, which is no plain Python; in it try: !{{sys.executable}} -m asyncudf doctor"
        return Finding(worker.setting, "ok", found)
    program = worker.program or "python3"
    python = start(program)
    shown = program if worker.program else "not set, so workers take python3 from PATH, and that"
    if python.problem:
        found = f"{shown} cannot be used: {python.problem}"
    elif python.version != driver.version:
        found = f"{shown} is Python {python.version}, the driver's is {driver.version}"
    elif python.error:
        found = f"{shown} cannot import asyncudf: {python.error}"
    else:
        shown = program if worker.program else "not set; python3 of PATH"
        return Finding(worker.setting, "ok", f"{shown} is Python {python.version} and imports asyncudf")
    if driver.error and python.version == driver.version:
        mend = "mend the driver's Python first"  # it may be the same one
    elif worker.file:
        mend = f"in {worker.file}: {worker.setting} {own}"
    else:
        mend = clear(worker.setting) if is_drivers else export(worker.setting, own)
    return Finding(worker.setting, "fail", found, mend)


def python_settings(environment: Mapping[str, str], spark_home: str) -> Iterator[WorkerPython]:
    """Each setting that names a Python. Those in Spark's own file count with spark-submit and Spark Connect."""
    yield WorkerPython("PYSPARK_PYTHON", environment.get("PYSPARK_PYTHON", ""))
    if environment.get("PYSPARK_DRIVER_PYTHON"):
        yield WorkerPython("PYSPARK_DRIVER_PYTHON", environment["PYSPARK_DRIVER_PYTHON"])
    folder = environment.get("SPARK_CONF_DIR") or (os.path.join(spark_home, "conf") if spark_home else "")
    file = Path(folder, "spark-defaults.conf")
    lines = file.read_text(errors="replace").splitlines() if folder and file.is_file() else []
    for line in lines:
        found = re.match(r"\s*(spark\.pyspark\.(?:driver\.)?python)(?:\s*[=:]\s*|\s+)(\S.*?)\s*$", line)
        if found:
            yield WorkerPython(found[1], found[2], str(file))


def start_python(program: str) -> Python:
    """Start a Python as Spark would, and import in it what a worker does."""
    path = shutil.which(program)
    if not path:
        return Python(problem="there is no such program")
    ran = run_program([path, "-c", PROGRAM], LIMIT)
    try:
        found = json.loads(ran.stdout.splitlines()[-1])
        return Python(found["version"], one_line(found["error"]))
    except (ValueError, LookupError, TypeError):
        return Python(problem=ran.without_version)
