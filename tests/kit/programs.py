"""Runs a user's program in the tests' own Spark application, as if it had started one of its own."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import runpy
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession


@contextlib.contextmanager
def own_session(spark: SparkSession) -> Iterator[None]:
    """Each program that builds a session gets a new one of this application, and its `stop` stops nothing."""
    jvm_sessions = spark._jvm.SparkSession  # type: ignore[union-attr]

    def get_or_create(builder: Any) -> SparkSession:
        made = spark.newSession()
        options = {"spark.sql.adaptive.enabled": "true", "spark.sql.shuffle.partitions": "2"}  # plans as by default
        for name, value in {**options, **builder._options}.items():
            if name.startswith("spark.sql."):  # the rest belongs to the application
                made.conf.set(name, value)
        jvm_sessions.setActiveSession(made._jsparkSession)
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparkSession.Builder, "getOrCreate", get_or_create)
        patch.setattr(SparkSession, "stop", lambda self: None)
        try:
            yield
        finally:
            jvm_sessions.setActiveSession(spark._jsparkSession)


@contextlib.contextmanager
def own_process(target: str | Path, arguments: list[str], folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """What a program changes of its process is undone: variables, signal handlers, logging, warnings, its modules."""
    place = target.parent if isinstance(target, Path) else folder
    variables, modules, logger = dict(os.environ), set(sys.modules), logging.getLogger()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    loggers = (logger.level, logger.handlers[:])
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        patch.chdir(folder)
        patch.setattr(sys, "argv", [str(target), *arguments])
        patch.syspath_prepend(str(place))
        os.environ.update(environment)
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(variables)
            logger.setLevel(loggers[0])
            logger.handlers[:] = loggers[1]
            for number, handler in handlers.items():
                signal.signal(number, handler)
            for name in sys.modules.keys() - modules:
                file = getattr(sys.modules[name], "__file__", None)
                if file and Path(file).parent == place:  # not of a library: a helper beside the program
                    del sys.modules[name]


def run_program(spark: SparkSession, target: str | Path, *arguments: object, folder: Path, **environment: str) -> str:
    """What a program prints: a file, or a module by its name. It runs in `folder` with its own variables.

    Raises what the program raises. A traceback on its error stream or in its log is an error, and so is a thread that
    would keep a process from its end.
    """
    out, err = io.StringIO(), io.StringIO()
    threads = set(threading.enumerate())
    with own_session(spark), own_process(target, list(map(str, arguments)), folder, environment):
        logging.getLogger().addHandler(logging.StreamHandler(err))
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                if isinstance(target, Path):
                    runpy.run_path(str(target), run_name="__main__")
                else:
                    runpy.run_module(target, run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            if ended.code:
                raise AssertionError(f"exit {ended.code}\n{out.getvalue()}{err.getvalue()}") from ended
    assert "Traceback" not in err.getvalue(), err.getvalue()
    assert [thread for thread in threading.enumerate() if thread not in threads and not thread.daemon] == []
    return out.getvalue()
