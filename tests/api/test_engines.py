"""The engine behind a session is found by what it answers; only Sail answers as Sail does."""

from __future__ import annotations

import dataclasses
import logging
import subprocess
import sys
import types
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import types as spark

from asyncudf import AsyncUDFError, FunctionError, sink_source, stream_sink
from asyncudf._spark import _compat
from asyncudf._spark._compat import (
    CONNECT,
    HAS_DATA_SOURCES,
    SAIL,
    SPARK,
    VariantType,
    check_columns,
    engine_of,
    from_ddl,
    spark_schema,
)
from asyncudf._spark.api import sinks
from asyncudf._spark.lost_sorts import lost_sort
from asyncudf._spark.worker import ErrorReporting


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
        ("4.2.0", "4.2.0 0123456789abcdef", CONNECT),
        ("4.0.0", "4.1.0 0123456789abcdef", CONNECT),  # a server that is not the client's
        ("4.2.0", RuntimeError("not allowed"), CONNECT),
        ("4.2.0", "no number", CONNECT),
        ("3.5.9", "0.7.2", SAIL),
        ("4.2.0", "1.0.0", SAIL),
    ],
)
def test_only_another_engine_is_one(version: str, answer: Any, engine: Any) -> None:
    assert dataclasses.replace(engine_of(Session(version, answer)), version=None) == engine


@pytest.mark.parametrize(
    ("client", "has_arrow_udf", "server", "older"),
    [
        ("4.0.4", False, "4.3.0", "client"),
        ("3.5.9", False, "4.1.0", "client"),
        ("4.3.0", True, "4.0.5", "server"),
        ("4.3.0", True, "3.5.9", "server"),
        ("4.1.3", True, "4.3.0", None),
        ("4.3.0", True, "4.1.0", None),
        ("3.5.9", False, "4.0.5", None),
        ("17.3.1", True, "4.0.0", None),  # databricks-connect
        ("4.0.0", True, "4.0.0", None),  # with what another version has brought
        ("4.3.0", True, "no number", None),
    ],
)
def test_a_column_over_a_server_that_makes_them_in_another_way(
    client: str, has_arrow_udf: bool, server: str, older: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks failed, and spoke of "this Spark", or of an internal error: "Cannot generate code for expression"."""
    monkeypatch.setattr(_compat, "arrow_udf", _compat.sf.udf if has_arrow_udf else None)
    monkeypatch.setattr(_compat.pyspark, "__version__", client)
    session = Session(server, f"{server} 0123456789abcdef")
    if older is None:
        check_columns("weather", session)
        return
    with pytest.raises(FunctionError) as refused:
        check_columns("weather", session)
    said = str(refused.value)
    assert f"the client of Spark {client} and the server of Spark {server[:3]}" in said
    assert f"the {older} as before" in said
    assert "asyncudf.ordered_wait(df, weather, 'column')" in said


def test_a_server_that_is_not_reached_is_not_taken_for_spark() -> None:
    """It was, for good: after ten minutes, and what Sail does not keep was found out by the calls."""
    session = Session("4.2.0", ConnectionError("RPC that terminated with: status = StatusCode.UNAVAILABLE"))
    with pytest.raises(ConnectionError):
        engine_of(session)
    session.answer = "0.7.2"
    assert engine_of(session) is SAIL


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


def test_a_variant_alone_is_read_here() -> None:
    """Sail takes it for a struct of its parts."""
    if not issubclass(VariantType, spark.DataType):
        pytest.skip("of Spark 4.0")
    assert from_ddl(" Variant") == VariantType()


def test_the_schema_of_a_write_may_be_arrows() -> None:
    schema = spark.StructType().add("n", "long")
    assert spark_schema(schema) is schema
    assert spark_schema(pa.schema({"n": pa.int64()})) == schema
    with pytest.raises(FunctionError, match=r"a column cannot be written.*cast it to a string"):
        spark_schema(pa.schema({"months": pa.month_day_nano_interval()}))


class TestSinksOfOtherEngines:
    @pytest.fixture(autouse=True)
    def _session(self, monkeypatch: pytest.MonkeyPatch) -> None:
        session = Session("4.2.0", "0.7.2")
        monkeypatch.setattr(sinks, "active_session", lambda: session)

    def test_a_sink_for_micro_batches_is_refused_where_there_are_none(self) -> None:
        with pytest.raises(FunctionError, match=r"stream_sink\(post, ...\) is for foreachBatch, and Sail has none"):
            stream_sink(post, "id")

    @pytest.mark.skipif(not HAS_DATA_SOURCES, reason="of Spark 4.0")
    def test_a_data_source_warns_of_sorts(self, caplog: pytest.LogCaptureFixture) -> None:
        sink_source("crm", post)
        (told,) = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
        assert told.startswith("crm: Sail takes a sort before a write out of the plan")
        assert "Write df.orderBy(...).offset(0)" in told


async def post(id: int) -> None: ...  # noqa: A002


@pytest.mark.parametrize(("name", "is_told"), [("partitionId", True), ("upper", False)])
def test_a_function_that_asks_a_missing_task_is_told_so(name: str, is_told: bool) -> None:
    task: Any = TaskContext.get()
    try:
        getattr(task, name)()
    except AttributeError as error:
        failed = AsyncUDFError("post failed")
        failed.__cause__ = error
    with pytest.raises(AsyncUDFError) as caught, ErrorReporting(full=True):
        raise failed
    assert any("runs functions without a TaskContext" in note for note in caught.value.__notes__) is is_told
