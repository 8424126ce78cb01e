"""Runs a user's program in the tests' own Spark application, as if it had started one of its own."""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import sys
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
        for name, value in builder._options.items():
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


def run_program(spark: SparkSession, target: str | Path, *arguments: object, folder: Path, **environment: str) -> str:
    """What a program prints: a file, or a module by its name. It runs in `folder` with its own variables.

    Raises what the program raises; a traceback on its error stream is an error too.
    """
    out, err = io.StringIO(), io.StringIO()
    with own_session(spark), pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        before = dict(os.environ)  # what the program sets is undone
        os.environ.update(environment)
        patch.setattr(sys, "argv", [str(target), *map(str, arguments)])
        patch.syspath_prepend(str(target.parent if isinstance(target, Path) else folder))
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                if isinstance(target, Path):
                    runpy.run_path(str(target), run_name="__main__")
                else:
                    runpy.run_module(target, run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            if ended.code:
                raise AssertionError(f"exit {ended.code}\n{out.getvalue()}{err.getvalue()}") from ended
        finally:
            os.environ.clear()
            os.environ.update(before)
    assert "Traceback" not in err.getvalue(), err.getvalue()
    return out.getvalue()
