"""All that `python -m asyncudf doctor` looks at.

Nothing in this package imports Spark, pandas or pyarrow: it is for installations in which they are broken.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping

from . import packages, programs
from .findings import Finding, short_message

OWN_FILES = 64  # open in a worker besides its calls: libraries, pipes, its connections to Spark


def check_open_files(capacity: int) -> list[Finding]:
    """The limits of open files in a process against the calls of one task."""
    if sys.platform == "win32":
        return []
    import resource

    endless, limits = resource.RLIM_INFINITY, resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (float("inf") if limit == endless else limit for limit in limits)
    need = capacity + OWN_FILES
    found = f"{_files(soft)} in a process; {capacity:,} calls in a task need about {need:,}"
    if soft >= need:
        return [Finding("open files", "ok", found)]
    if hard >= need:  # Java raises its own limit as far as it may, and Spark's workers inherit that
        return [Finding("open files", "warn", found, f"ulimit -n {int(min(hard, 1 << (need - 1).bit_length()))}")]
    fix = f"capacity={max(1, int(hard) - OWN_FILES)}, or let root raise the limit of {_files(hard)}"
    return [Finding("open files", "fail", found, fix)]


def _files(limit: float) -> str:
    return "no limit" if limit == float("inf") else f"{limit:,.0f}"


def examine(capacity: int, environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Look at everything, and give each finding as soon as it is known. What cannot be looked at is a finding too.

    There are `capacity` calls in flight in each task, and Spark reads the variables of the environment.
    """
    checks: Mapping[str, Callable[[], list[Finding]]] = {
        "packages": packages.check_packages,
        "extras": packages.check_extras,
        "java": lambda: [] if packages.connect_client() else [programs.check_java(environment)],
        "Python": lambda: [programs.check_pythons(environment)],
        "open files": lambda: check_open_files(capacity),
    }
    for name, check in checks.items():
        try:
            yield from check()
        except Exception as error:
            found = f"cannot be looked at: {type(error).__name__}: {short_message(str(error))}"
            fix = "please report this: it is a bug of the doctor"
            if isinstance(error, ModuleNotFoundError):
                fix = f"{sys.executable} -m pip install {(error.name or '').partition('.')[0]}"
            yield Finding(name, "fail", found, fix)
