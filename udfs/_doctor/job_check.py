"""Does a tiny job run? In a process of its own, so that nothing that Spark does, or hangs in, stops the doctor."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .._text.safe import printable
from .findings import Finding, export, one_line
from .programs import end_group

__all__ = ("TinyJob", "check_job", "run_job")

# A user's program: classic Spark, one task, a column of three rows.
PROGRAM = """
import json
found = {}
try:
    from pyspark.sql import SparkSession
    from asyncudf import async_pandas_udf

    @async_pandas_udf("bigint")
    async def plus_one(id):
        return id + 1

    builder = SparkSession.builder.master("local[1]").appName("asyncudf doctor")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.api.mode", "classic").getOrCreate()
    try:
        found["rows"] = [row[0] for row in spark.range(3).select(plus_one("id")).collect()]
        found["version"] = spark.version
    finally:
        spark.stop()
except BaseException as error:
    found["error"] = "%s: %s" % (type(error).__name__, error)
print("\\n" + json.dumps(found), flush=True)
"""
EXPECTED = [1, 2, 3]
LIMIT = 120.0  # seconds: a first start of Java on a small machine takes up to twenty
KEPT = 20_000  # characters of what a job has printed
ELSEWHERE = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "PYSPARK_GATEWAY_PORT")  # lead to another Spark

# What an error's text tells, for the line that mends it: variables of the environment, and what is said without one.
# A module that the driver lacks is not there for its workers either: then another PYSPARK_PYTHON mends nothing.
PYTHON = r"PYTHON_VERSION_MISMATCH|Cannot run program|(PythonException|Caused by)[\s\S]*No module named"
HOST = r"UnknownHostException|UnresolvedAddressException|Can(no|')t assign requested address"
SPACE = r"No space left on device|Disk quota exceeded"
OTHERWISE = "mend what fails above first; this shows all that it printed: python -m asyncudf doctor --json"


@dataclass(frozen=True)
class TinyJob:
    """What came of the job.

    Attributes:
        rows: its result; None without one.
        error: its error, if it could tell one.
        output: all that it printed.
        seconds: how long it ran.
        is_over: it has ended by itself.
    """

    rows: list[int] | None = None
    error: str = ""
    output: str = ""
    seconds: float = 0.0
    is_over: bool = True


def check_job(job: TinyJob, python: str, other_host: str) -> Finding:
    """The finding about the job.

    Args:
        job: what came of it.
        python: the driver's Python.
        other_host: the line that gives Spark another name of this machine.
    """
    if job.rows == EXPECTED:
        return Finding("tiny job", "ok", f"an async column over 3 rows, in {job.seconds:.1f} s with Spark's start")
    if job.rows is not None:
        return Finding("tiny job", "fail", f"has the rows {job.rows}, not {EXPECTED}", OTHERWISE, job.output)
    # The error alone first: what Spark prints is full of warnings that say nothing of this one.
    texts = (job.error, job.output)
    mend = next((line for text in texts if (line := _mend(text, python, other_host))), OTHERWISE)
    if not job.is_over:
        return Finding("tiny job", "fail", f"no result in {job.seconds:.0f} s", mend, job.output)
    told = next((line for text in texts if (line := _telling(text))), "it ends without a word")
    return Finding("tiny job", "fail", told, mend, job.output)


def _mend(text: str, python: str, other_host: str) -> str:
    for pattern, line in (
        (PYTHON, export("PYSPARK_PYTHON", python)),
        (HOST, other_host),
        (SPACE, export("SPARK_LOCAL_DIRS", "/a/folder/with/space")),
    ):
        if re.search(pattern, text):
            return line
    return ""


def _telling(text: str) -> str:
    """The line of an error that says most: the last of Python's errors in it, which the first ones only carry on."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(Caused by: )?[\w.$]+(Error|Exception|Interrupt)\b", line)]
    ours = [line for line in errors if not line.startswith(("Caused by: ", "java.", "org.", "py4j."))]
    return one_line((ours or errors or lines or [""])[-1])


def run_job(
    environment: Mapping[str, str], command: Sequence[str] = (sys.executable, "-c", PROGRAM), limit: float = LIMIT
) -> TinyJob:
    """Run the job, and end it with all that it has started when its time is up."""
    inherited = {name: value for name, value in environment.items() if name not in ELSEWHERE}
    begin = time.monotonic()
    # A file, not a pipe: Java would keep a pipe open after the end of the job, and the doctor would wait for it.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=inherited,
            start_new_session=True,
        )
        try:
            process.wait(limit)
            is_over = True
        except subprocess.TimeoutExpired:
            is_over = False
        finally:
            if process.poll() is None:
                end_group(process)  # Java is in it; Python's workers end by themselves without Java
        file.seek(0)
        output = printable(file.read())[-KEPT:]
    return _job(output, time.monotonic() - begin, is_over)


def _job(output: str, seconds: float, is_over: bool) -> TinyJob:
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            with contextlib.suppress(ValueError):
                found = json.loads(line)
                return TinyJob(found.get("rows"), found.get("error", ""), output, seconds, is_over)
    return TinyJob(output=output, seconds=seconds, is_over=is_over)
