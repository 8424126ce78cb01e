"""Spark drivers in processes of their own: some run one program after another, others are killed by a test."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from tests.kit.java import needs_jvm

# What each program finds: its session as `spark`, unless it makes one, and the modules that most of them use.
HEAD = """
import asyncio, json, os, sys, threading, time
from pyspark.sql import SparkSession
import asyncudf
from asyncudf import *

def session(builder):
    made = builder.config("spark.ui.showConsoleProgress", "false").config("spark.sql.shuffle.partitions", "2")
    made = made.config("spark.python.daemon.module", os.environ.get("WORKER_DAEMON", "pyspark.daemon"))
    return made.config("spark.ui.enabled", "false").config("spark.log.level", "OFF").getOrCreate()

def tell(word):
    print(word, flush=True)
"""

# A driver ends with the process that has started it, whatever it does at that moment: Java then ends by itself.
ENDS_WITH_US = """
def watch(parent):
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)

threading.Thread(target=watch, args=(os.getppid(),), daemon=True).start()
"""

# Takes programs from its standard input, a JSON text in a line, and answers with what each has printed and its error.
SERVE = """
import contextlib, io, traceback
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what Java or a child prints is no answer
spark = session(BUILDER.config("spark.sql.codegen.factoryMode", "NO_CODEGEN"))
print("the session is there", file=answers, flush=True)
for line in sys.stdin:
    printed, error = io.StringIO(), None
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(json.loads(line), "<program>", "exec"), {**globals(), "__name__": "__main__"})
    except BaseException:
        error = traceback.format_exc()
    print(json.dumps([printed.getvalue(), error]), file=answers, flush=True)
spark.stop()
"""


DAEMON_FOLDER = str(Path(__file__).parents[1] / "spark" / "daemon")
PRELOADED = {"WORKER_DAEMON": "preloaded_daemon", "PYTHONPATH": DAEMON_FOLDER}  # see that module


def begin(program: str, *arguments: object, stderr: Any = subprocess.DEVNULL, **environment: str) -> Any:
    """Starts a driver with its own process group; the caller ends it, for example with `driver`."""
    needs_jvm()
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", **environment}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", HEAD + ENDS_WITH_US + program, *map(str, arguments)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=True,
    )


def end(started: subprocess.Popen[str]) -> None:
    """Kills a driver, its JVM and all that it has forked; Python workers then end by themselves."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    for stream in (started.stdin, started.stdout):
        if stream is not None:
            with contextlib.suppress(BrokenPipeError):
                stream.close()


@contextlib.contextmanager
def driver(program: str, *arguments: object, stderr: Any = subprocess.DEVNULL, **environment: str) -> Iterator[Any]:
    """A driver that ends with the block at the latest."""
    started = begin(program, *arguments, stderr=stderr, **PRELOADED, **environment)
    try:
        yield started
    finally:
        end(started)


def next_line(started: subprocess.Popen[str]) -> str:
    """The next line that a driver prints."""
    assert started.stdout is not None
    line = started.stdout.readline().strip()
    assert line, "the driver has ended"
    return line


class SharedDriver:
    """A driver that lives as long as the tests, and runs one program after another in its one session."""

    def __init__(self, builder: str, **environment: str) -> None:
        """`builder` is the Python expression of the session's builder."""
        self._has_unread_answer = False
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - until close
        program = SERVE.replace("BUILDER", builder)
        self._process = begin(program, stderr=self._errors, **PRELOADED, **environment)
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    def begin(self, program: str) -> None:
        """Sends a program; `finish` gives its output. In between the test may disturb what runs."""
        if self._has_unread_answer:  # to a test that has failed half-way
            self._read()
        self._has_unread_answer = True
        with contextlib.suppress(BrokenPipeError):  # `finish` says why
            print(json.dumps(program), file=self._process.stdin, flush=True)

    def finish(self) -> str:
        answer = self._read()
        self._has_unread_answer = False
        printed, error = json.loads(answer)
        assert error is None, error
        return str(printed)

    def run(self, program: str) -> str:
        """What a program prints; it fails with the program's traceback."""
        self.begin(program)
        return self.finish()

    def close(self) -> None:
        """Ends the driver; when it is idle it stops Spark first, which deletes its temporary files."""
        if not self._has_unread_answer:
            with contextlib.suppress(subprocess.TimeoutExpired, BrokenPipeError):
                self._process.stdin.close()
                self._process.wait(30)
        end(self._process)
        self._errors.close()

    def _read(self) -> str:
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise AssertionError(f"the driver has ended: {self._errors.read()[-3000:]}")
        return str(line)
