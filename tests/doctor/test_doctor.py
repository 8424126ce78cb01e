"""The doctor names each mistake of an installation with the line that fixes it, and never ends with a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from asyncudf._observe import doctor
from asyncudf._observe.doctor import (
    Finding,
    as_text,
    check_extras,
    check_java,
    check_open_files,
    check_packages,
    check_pythons,
    examine,
    short_message,
    version_of,
)

OWN, OWN_VERSION = sys.executable, "{}.{}".format(*sys.version_info)
SET_OWN = f"export PYSPARK_PYTHON={OWN}"
Program = Callable[[str, str], str]
Look = Callable[..., tuple[str, str, list[str]]]
Patch = pytest.MonkeyPatch
pytestmark = pytest.mark.skipif(os.name != "posix", reason="scripts stand for programs")


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Makes a program of the lines of a shell script."""

    def make(name: str, text: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return make


@cache
def answer_of_own(names: tuple[str, ...], look_at: Look = doctor.look_at) -> tuple[str, str, list[str]]:
    return look_at(OWN, names)


@pytest.fixture
def own_answers_once(monkeypatch: Patch) -> None:
    """The driver's own Python takes a second to answer, and answers the same in each test."""
    look_at = doctor.look_at
    monkeypatch.setattr(
        doctor,
        "look_at",
        lambda program, names=(): answer_of_own(tuple(names)) if program == OWN else look_at(program, names),
    )


@pytest.fixture
def with_a_spark_of_its_own(monkeypatch: Patch) -> None:
    """As where these tests run with a client of Spark Connect alone, whose workers are elsewhere."""
    monkeypatch.setattr(doctor, "connect_client", lambda: "")
    monkeypatch.setattr(doctor, "has_sail", lambda: False)


def install(monkeypatch: Patch, **versions: str) -> None:
    """What is installed, by package; of all others version 99 is, and neither Sail nor a client of Spark Connect."""
    given = {"asyncudf": "0.4.0", "pysail": "", **dict.fromkeys(doctor.CONNECT_CLIENTS, "")}
    given |= {name.replace("_", "-"): version for name, version in versions.items()}
    monkeypatch.setattr(doctor, "version_of", lambda package: given.get(package, "99"))


# Packages.


def test_packages_that_fit_take_one_line(monkeypatch: Patch) -> None:
    install(monkeypatch, pandas="2.3.3", pyspark="4.3.0")
    (line,) = check_packages()
    assert (line.name, line.status) == ("packages", "ok")
    assert line.found.startswith(f"asyncudf 0.4.0, Python {sys.version.split()[0]}, pyspark 4.3.0, pandas 2.3.3, ")


def test_a_package_of_another_version_has_a_line_with_its_bounds(monkeypatch: Patch) -> None:
    """Those that fit are not named, and a pre-release counts as its release."""
    install(monkeypatch, pandas="1.5.3", pyspark="4.1.0.dev1", pyarrow="")
    wrong = {one.name: one for one in check_packages()}
    assert wrong.keys() == {"pandas", "pyarrow"}
    assert wrong["pandas"].found.startswith("1.5.3, and asyncudf needs ")
    assert wrong["pandas"].fix.startswith(f"{OWN} -m pip install 'pandas")
    assert wrong["pyarrow"].found.startswith("not installed, and asyncudf needs ")


def test_without_asyncudf_its_needs_are_not_known(monkeypatch: Patch) -> None:
    install(monkeypatch, asyncudf="")
    assert [(one.name, one.status) for one in check_packages()] == [("asyncudf", "fail")]
    assert check_extras() == []


def test_extras_that_are_not_installed_are_named_and_no_fault(monkeypatch: Patch) -> None:
    """A run.report() without Jinja2 says so when it is asked for; doctor says it before."""
    install(monkeypatch, Jinja2="", redis="4.0")
    (line,) = check_extras()
    assert line.status == "ok"
    assert line.found.endswith("; not installed: redis (redis), coordinator (redis), report (Jinja2)")


def test_a_package_that_is_not_there_has_no_version() -> None:
    assert version_of("no-such-package-anywhere") == ""


# Java.

SETTINGS = 'echo "    java.specification.version = %s" >&2'


@pytest.mark.parametrize(
    ("spark", "script", "status", "found"),
    [
        ("4.1.0", SETTINGS % 17, "ok", "Java 17 ("),
        ("4.1.0", SETTINGS % 21, "ok", "Java 21 ("),
        ("4.1.0", SETTINGS % 18, "warn", "is Java 18; Spark 4.1.0 is tested with 17, 21"),
        ("4.1.0", SETTINGS % 11, "fail", "is Java 11; Spark 4.1.0 is tested with 17, 21"),
        ("4.1.0", SETTINGS % 25, "fail", "is Java 25; Spark 4.1.0 is tested with 17, 21"),
        ("4.2.0", SETTINGS % 25, "ok", "Java 25 ("),
        ("3.5.5", SETTINGS % "1.8", "warn", "is Java 8; Spark 3.5.5 is tested with 17, 21"),
        ("", SETTINGS % 17, "ok", "Java 17 ("),
        ("4.1.0", "echo 'Unable to locate\na Java Runtime.' >&2; exit 1", "fail", "cannot be used: Unable to locate a"),
        ("4.1.0", "exit 4", "fail", "cannot be used: it ends with status 4"),
    ],
)
def test_java(monkeypatch: Patch, program: Program, spark: str, script: str, status: str, found: str) -> None:
    """It is started: it may be a link, a shim, or one that Spark does not take."""
    install(monkeypatch, pyspark=spark)
    finding = check_java({"PATH": os.path.dirname(program("java", script))})
    assert (finding.status, finding.fix) == (status, "" if status == "ok" else doctor.INSTALL_JAVA)
    assert found in finding.found


def test_java_home_counts_before_path(monkeypatch: Patch, program: Program, tmp_path: Path) -> None:
    install(monkeypatch, pyspark="4.1.0")
    on_path = {"PATH": os.path.dirname(program("java", SETTINGS % 21))}
    program("jdk/bin/java", SETTINGS % 17)
    assert check_java({"JAVA_HOME": str(tmp_path / "jdk"), **on_path}).found.startswith("Java 17")
    wrong = check_java({"JAVA_HOME": "/opt/jdk", **on_path})
    assert (wrong.found, wrong.fix) == ("JAVA_HOME is /opt/jdk, which has no bin/java", "unset JAVA_HOME")
    assert check_java({"PATH": ""}).found == "JAVA_HOME is not set, and PATH has no java"


# The Python of the workers.


def answer(version: str = OWN_VERSION, problem: str = "", lacks: str = "") -> str:
    found = {"version": version, "problem": problem, "lacks": lacks.split()}
    return f"echo '{json.dumps(found)}'"


NO_MODULE = "cannot import asyncudf: ModuleNotFoundError: No module named"


@pytest.mark.usefixtures("own_answers_once", "with_a_spark_of_its_own")
@pytest.mark.parametrize(
    ("script", "status", "found"),
    [
        (answer(), "ok", f"is Python {OWN_VERSION} and has the driver's packages"),
        (answer("3.9"), "fail", f"is Python 3.9, the driver's is {OWN_VERSION}"),
        (answer("3.9", NO_MODULE), "fail", f"is Python 3.9, the driver's is {OWN_VERSION}"),
        (answer(problem=NO_MODULE), "fail", NO_MODULE),
        (answer(lacks="lmdb msgspec"), "warn", "lacks what the driver has: lmdb, msgspec"),
        ("echo nothing >&2", "fail", "cannot be used: nothing"),
        ("""echo '{"version": 3}'""", "fail", 'cannot be used: {"version": 3}'),
    ],
)
def test_python_of_the_workers(program: Program, script: str, status: str, found: str) -> None:
    """It starts, has the driver's minor version and packages; if not, the driver's own is one line away."""
    path = program("python", script)
    finding = check_pythons({"PYSPARK_PYTHON": path})
    assert (finding.name, finding.status, finding.found) == ("PYSPARK_PYTHON", status, f"{path} {found}")
    assert finding.fix == ("" if status == "ok" else SET_OWN)


@pytest.mark.usefixtures("own_answers_once", "with_a_spark_of_its_own")
def test_without_a_setting_workers_take_python3_from_path(monkeypatch: Patch, program: Program, tmp_path: Path) -> None:
    program("python3", answer("3.9"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check_pythons({}).found.startswith("not set, so workers take python3 from PATH, which is Python 3.9")
    assert check_pythons({"PYSPARK_PYTHON": "/no/such"}).found == "/no/such cannot be used: there is no such program"


def test_a_package_that_only_the_driver_has_is_named() -> None:
    """The worker is asked for the packages of the extras too: here it has all, and one more is asked for."""
    assert check_pythons({"PYSPARK_PYTHON": OWN}).status == "ok"
    assert doctor.look_at(OWN, ["pandas", "no-such-package"]) == (OWN_VERSION, "", ["no-such-package"])


@pytest.mark.usefixtures("with_a_spark_of_its_own")
def test_a_package_of_the_driver_that_is_broken_is_named(monkeypatch: Patch, tmp_path: Path) -> None:
    """What is installed may be broken all the same: the imports themselves are tried."""
    (tmp_path / "pyarrow.py").write_text("raise ImportError('built for another numpy')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    finding = check_pythons({})
    assert (finding.name, finding.status) == ("driver's Python", "fail")
    assert finding.found == f"{OWN} cannot import asyncudf: ImportError: built for another numpy"
    assert finding.fix.startswith(f"{OWN} -m pip install --force-reinstall 'pyspark>=")


def test_a_program_that_hangs_is_ended(monkeypatch: Patch, program: Program) -> None:
    monkeypatch.setattr(doctor, "LIMIT", 1.0)
    assert doctor.look_at(program("python", "exec sleep 100"))[1] == "cannot be used: no answer in 1 s"


@pytest.mark.usefixtures("own_answers_once")
@pytest.mark.parametrize(
    ("versions", "found"),
    [
        ({"pyspark": "", "pyspark-client": "4.2.0"}, "pyspark-client 4.2.0"),
        ({"pyspark": "", "pyspark-client": "4.3.0"}, "4.3.0, and asyncudf needs <4.3,>=4.0"),
        ({"pyspark": "4.3.0", "pyspark-client": ""}, "4.3.0, and asyncudf needs <4.3,>=3.5"),
        ({"pyspark": "3.5.9", "pyspark-client": ""}, "pyspark 3.5.9"),
        ({"pyspark": "", "pyspark-client": ""}, "not installed, and asyncudf needs <4.3,>=4.0"),
    ],
)
def test_beside_sail_the_client_fits_it(monkeypatch: Patch, versions: dict[str, str], found: str) -> None:
    """All was well with a client that Sail refuses, and for none at all the fix was such a one, and a Java."""
    install(monkeypatch, pysail="0.7.2", **{"databricks-connect": "", **versions})
    assert found in doctor.check_packages()[-1].found
    assert "java" not in [one.name for one in doctor.examine(100)]


@pytest.mark.parametrize("client", doctor.CONNECT_CLIENTS)
def test_with_a_client_of_spark_connect_no_spark_of_this_machine_is_looked_at(monkeypatch: Patch, client: str) -> None:
    """Its queries run elsewhere: no Java and no PYSPARK_PYTHON here, and no other pyspark beside it."""
    install(monkeypatch, pyspark="", **{client.replace("-", "_"): "16.4.1"})
    found = {finding.name: finding for finding in examine(1, {})}
    assert not {"pyspark", "java", "PYSPARK_PYTHON"} & found.keys()
    assert f"{client} 16.4.1: workers run where it connects to, and need Python 3." in found["workers"].found


# Open files.

NO_LIMIT = -1


@pytest.mark.parametrize(
    ("limits", "capacity", "status", "found", "fix"),
    [
        ((NO_LIMIT, NO_LIMIT), 5000, "ok", "no limit in a process; 5,000 calls in a task need about 5,064", ""),
        ((164, 4096), 100, "ok", "164 in a process; 100 calls in a task need about 164", ""),
        ((163, 4096), 100, "warn", "163 in a process", "ulimit -n 256"),
        ((256, 1100), 1000, "warn", "256 in a process", "ulimit -n 1100"),
        ((256, NO_LIMIT), 1000, "warn", "256 in a process", "ulimit -n 2048"),
        ((1024, 1024), 1000, "fail", "1,024 in a process", "capacity=960, or let root raise the limit of 1,024"),
        ((20, 20), 1000, "fail", "20 in a process", "capacity=1, or let root raise the limit of 20"),
    ],
)
def test_open_files(
    monkeypatch: Patch, limits: tuple[int, int], capacity: int, status: str, found: str, fix: str
) -> None:
    """Each call may need a socket, in the worker process of its task. A limit that can be raised is no failure."""
    monkeypatch.setattr("resource.getrlimit", lambda which: limits)
    (finding,) = check_open_files(capacity)
    assert (finding.status, finding.fix) == (status, fix)
    assert finding.found.startswith(found)


# All of it.


def test_every_check_may_fail(monkeypatch: Patch) -> None:
    def broken(*arguments: object) -> None:
        raise RuntimeError("broken")

    for name in ("version_of", "look_at", "check_open_files"):
        monkeypatch.setattr(doctor, name, broken)
    found = list(examine(1, {}))
    assert {finding.status for finding in found} == {"fail"}
    assert len(found) == 5
    assert all("cannot be looked at: RuntimeError: broken" in finding.found for finding in found)


@pytest.mark.usefixtures("own_answers_once")
def test_a_look_that_lacks_a_package_names_the_line_that_installs_it(monkeypatch: Patch) -> None:
    """The doctor itself needs one, which reads versions and requirements."""
    for module in ("packaging", "packaging.requirements", "packaging.version"):
        monkeypatch.setitem(sys.modules, module, None)
    found = [one for one in examine(1, {}) if "ModuleNotFoundError" in one.found]
    assert "packages" in {one.name for one in found}
    assert {one.fix for one in found} == {f"{OWN} -m pip install packaging"}


@pytest.mark.parametrize("package", ["pyspark", "pyarrow", "aiohttp"])
def test_it_works_where_asyncudf_cannot_be_imported(package: str, tmp_path: Path) -> None:
    """That is when it is needed most."""
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("raise ImportError('a broken installation')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYSPARK_PYTHON": OWN}
    command = [OWN, "-m", "asyncudf", "doctor", "--json"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    status = {finding["name"]: finding["status"] for finding in json.loads(ran.stdout)["findings"]}
    assert ran.stderr == ""
    assert ("driver's Python" in status) == (package != "aiohttp")  # which is a user's, not ours


def test_all_is_well_here() -> None:
    environment = {**os.environ, "PYSPARK_PYTHON": OWN}
    ran = subprocess.run([OWN, "-m", "asyncudf", "doctor"], env=environment, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    java = [] if doctor.connect_client() or doctor.has_sail() else ["java"]
    workers = "workers" if doctor.connect_client() else "PYSPARK_PYTHON"
    assert [line.split()[1] for line in ran.stdout.splitlines()] == ["packages", "extras", *java, workers, "open"]


# Its lines.


def test_a_finding_takes_a_line_whatever_is_in_it() -> None:
    """A path may have a line break, or letters that a terminal obeys; nothing is left out of a long one."""
    finding = Finding("folder /a\nb", "fail", "/a\rb\x1b[2J\u202e\ud83d" + "x" * 500, "unset '\u2028'")
    above, below = as_text(finding).splitlines()
    assert above == r"fail  folder /a\nb           /a\rb\x1b[2J\u202e\ud83d" + "x" * 500
    assert below.split() == ["->", "unset", r"'\u2028'"]


def test_foreign_messages_are_short() -> None:
    assert short_message(" a\n\tb ") == "a b"
    assert len(short_message("x" * 10_000)) < 300
    assert "secret" not in short_message("GET http://me:secret@host/?key=secret failed")
