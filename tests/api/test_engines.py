"""The engine behind a session is found by what it answers; only Sail answers as Sail does."""

from __future__ import annotations

import subprocess
import sys
import types
from typing import Any

import pytest

from asyncudf._spark._compat import SAIL, SPARK, engine_of, lost_sort


class Session:
    """Of Spark Connect, with what its server answers."""

    def __init__(self, version: str, answer: str | Exception) -> None:
        self.version, self.answer = version, answer

    def sql(self, query: str) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return types.SimpleNamespace(collect=lambda: [(self.answer,)])


@pytest.mark.parametrize(
    ("version", "answer", "engine"),
    [
        ("4.2.0", "4.2.0 0123456789abcdef", SPARK),
        ("4.0.0", "4.1.0 0123456789abcdef", SPARK),  # a server that is not the client's
        ("4.2.0", RuntimeError("not allowed"), SPARK),
        ("4.2.0", "no number", SPARK),
        ("3.5.9", "0.7.2", SAIL),
        ("4.2.0", "1.0.0", SAIL),
    ],
)
def test_only_another_engine_is_one(version: str, answer: Any, engine: Any) -> None:
    assert engine_of(Session(version, answer)) is engine


def test_a_classic_session_is_not_asked() -> None:
    session: Any = Session("4.2.0", AssertionError("asked"))
    session._jsparkSession = None
    assert engine_of(session) is SPARK


def test_plans_of_spark_are_not_read() -> None:
    """It gives rows to an operator in the order of a sort."""
    assert lost_sort(types.SimpleNamespace(sparkSession=Session("4.2.0", "4.2.0 0123456789abcdef"))) is None


def test_a_client_without_the_parts_of_workers_is_refused_in_one_sentence() -> None:
    """pyspark-client-rust has the name of the package, and nothing for workers."""
    program = "import pyspark; del pyspark.TaskContext; from asyncudf import ordered_wait"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "has no TaskContext, as pyspark-client-rust: uninstall it" in ran.stderr.splitlines()[-1]
