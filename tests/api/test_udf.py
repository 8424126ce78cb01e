"""The object that async_pandas_udf makes: its own attributes, copies of it, and what help() says."""

from __future__ import annotations

import copy
import os
import pickle
import pydoc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import IntegerType, StructType

import asyncudf
import asyncudf.testing
from asyncudf import AsyncFunction, AsyncStream, AsyncUDF, ResultFuture, RetryStrategy, async_pandas_udf
from asyncudf._spark.api import decorator
from asyncudf._spark.evaluations import StreamSource
from asyncudf._spark.planner import rows_node
from asyncudf._version import VERSION
from asyncudf.testing import run_rows


@pytest.fixture(autouse=True)
def without_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test's may be of Sail, which refuses some columns."""
    monkeypatch.setattr(decorator, "active_session", lambda: None)


async def doubled(x: int) -> int:
    """Twice as much."""
    return 2 * x


class Twice(AsyncFunction):
    """Each row twice."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
        self.seen.append(value)
        result_future.complete([value, value])


OURS = sorted(name for name in dir(async_pandas_udf(doubled)) if not name.startswith("__"))


@pytest.mark.parametrize("name", OURS)
def test_no_attribute_of_the_function_hides_one_of_ours(name: str) -> None:
    async def call(x: int) -> int:
        return x + 1

    setattr(call, name, "the user's")
    udf = async_pandas_udf(call, capacity=7)
    assert getattr(udf, name) != "the user's"
    assert getattr(udf.__wrapped__, name) == "the user's"
    assert run_rows(udf.with_options(capacity=3), [1]) == [2]


def test_an_async_functions_class_lends_its_name_and_text_only() -> None:
    udf = async_pandas_udf(Twice(), "int")
    assert (udf.__name__, udf.__doc__) == ("Twice", "Each row twice.")
    assert sorted(name for name in dir(udf) if not name.startswith("__")) == OURS


def by_cloudpickle(udf: Any) -> Any:
    return cloudpickle.loads(cloudpickle.dumps(udf))


def by_pickle(udf: Any) -> Any:
    return pickle.loads(pickle.dumps(udf))


@pytest.mark.parametrize("copied", [by_cloudpickle, by_pickle, copy.copy, copy.deepcopy])
def test_a_copy_works_and_stands_for_itself(copied: Callable[[Any], Any]) -> None:
    plain, rich = async_pandas_udf(doubled, capacity=7), async_pandas_udf(Twice(), "int", timeout=5)
    for udf, result in ((plain, [4]), (rich, [2, 2])):
        other = copied(udf)
        assert isinstance(other, AsyncUDF)
        assert other is not udf
        assert (other.options, other.returns, other.__name__) == (udf.options, udf.returns, udf.__name__)
        assert other.__wrapped__ is other.spec.function
        assert run_rows(other, [2]) == result


def test_a_deep_copy_has_an_async_function_of_its_own() -> None:
    udf = async_pandas_udf(Twice(), "int")
    run_rows(copy.deepcopy(udf), [1])
    assert udf.spec.function.seen == []


def lines_of_help(thing: Any) -> list[str]:
    return pydoc.render_doc(thing, renderer=pydoc.plaintext).splitlines()


def test_help_is_for_users() -> None:
    assert "    Twice as much." in lines_of_help(async_pandas_udf(doubled))[:5]
    text = "\n".join(lines_of_help(asyncudf)[:40])
    names = ("async_pandas_udf(", "ordered_wait(", "AsyncStream(", "register(", "run_rows", "asyncudf.testing")
    assert [name for name in names if name not in text] == []
    assert "_spark" not in text
    text = "\n".join(lines_of_help(asyncudf.testing))
    assert "run_rows(function, rows)" in text
    assert "OperatorHarness" in text
    assert "call_soon" not in text, "the methods of asyncio's loop bury ours"


WITHOUT_A_SESSION = """
import asyncio
from asyncudf import FunctionError, async_pandas_udf

@async_pandas_udf("string")
async def weather(city: str) -> str:
    return city

async def call(city):
    return await weather(city)

for city in ("Oslo", 5):
    try:
        asyncio.run(call(city))
    except FunctionError as error:
        print(error)
"""


def test_a_unit_test_that_calls_the_column_is_told_what_to_call(tmp_path: Path) -> None:
    """It was Spark's SESSION_OR_CONTEXT_NOT_EXISTS. A client of Spark Connect makes columns without a session too."""
    program = tmp_path / "unit_test.py"  # 4.2's client alone ends a `python -c`, which it takes for its own doctests
    program.write_text(WITHOUT_A_SESSION, "utf-8")
    # Another test's session may have left the name of its server in the environment.
    own = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    ran = subprocess.run([sys.executable, program], env=own, capture_output=True, text=True, check=True)
    assert ("there is no Spark session" if hasattr(pyspark, "SparkContext") else "cannot be awaited") in ran.stdout
    assert "takes columns or their names, not 5" in ran.stdout
    assert ran.stdout.count("await f.__wrapped__(...)") == 2


IN_ANOTHER_PYTHON = """
import pickle, pyarrow, sys, types
sys.modules[sys.argv[1]] = eval(sys.argv[2])
try:
    pickle.loads(sys.stdin.buffer.read())
except ImportError as error:
    print(error)
"""


def in_another_python(pickled: bytes, module: str, instead: str) -> str:
    """The error of a worker that finds something else under the name of a module."""
    command = [sys.executable, "-c", IN_ANOTHER_PYTHON, module, instead]
    return subprocess.run(command, input=pickled, capture_output=True, check=True).stdout.decode()


@pytest.mark.parametrize(
    "entry_point", ["column", "pandas column", "operator", "table function", "planned table function"]
)
def test_a_worker_that_cannot_import_says_which_line_mends_it(
    entry_point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was a bare "No module named 'asyncudf'"."""
    if entry_point == "pandas column":
        monkeypatch.setattr("asyncudf._spark._compat.arrow_udf", None)  # as before Spark 4.1
    udf = async_pandas_udf("int")(doubled)
    task: Any = udf.func
    if entry_point == "operator":
        source = StreamSource.of(None, False, None, False)
        stream = AsyncStream._at(source, rows_node(StructType().add("x", IntegerType()))).ordered_wait(udf)
        task = source.task([stream._ref.result])
    elif "table function" in entry_point:
        pytest.importorskip("pyspark.sql.worker.analyze_udtf")  # from Spark 4.0 on
        session = mock.Mock(spec=["udf", "udtf"])
        udf.with_options(output_mode="unordered").register(session, "doubled")
        task = session.udtf.register.call_args.args[1].func
        if entry_point.startswith("planned"):
            task = task.analyze(mock.Mock(isTable=True, dataType=StructType().add("x", IntegerType())))
    dumps: Callable[[Any], bytes] = pickle.dumps if entry_point.startswith("planned") else cloudpickle.dumps
    told = in_another_python(dumps(task), "asyncudf", "None")  # as where it is not installed
    assert f"export PYSPARK_PYTHON={sys.executable}" in told
    assert "python -m asyncudf doctor" in told
    same = pickle.loads(dumps(task))
    assert type(same) is type(task)
    assert vars(same).keys() == vars(task).keys()


@pytest.mark.parametrize(
    ("module", "instead", "why"),
    [
        (
            "asyncudf._version",
            "types.SimpleNamespace(VERSION='0.0.1', __file__='/old/_version.py')",
            f"asyncudf is 0.0.1 in /old/_version.py and {VERSION} on the driver",
        ),
        (
            __name__,
            "types.ModuleType('mine')",  # the second is what Python says from 3.14 on
            ("Can't get attribute 'doubled' on <module 'mine'>", "module 'mine' has no attribute 'doubled'"),
        ),
        ("tenacity", "None", "import of tenacity halted"),
        ("pyarrow", "setattr(pyarrow, '__version__', '14.0.2') or pyarrow", "asyncudf needs pyarrow>=15, and "),
    ],
)
def test_a_worker_with_another_version_says_so(module: str, instead: str, why: str | tuple[str, ...]) -> None:
    """It was an AttributeError about a private class, with the task or in the middle of it."""
    udf = async_pandas_udf("int", retry=RetryStrategy.fixed_delay())(doubled)
    told = in_another_python(cloudpickle.dumps(udf.func), module, instead)
    assert told.startswith(why)
    assert f"(in Spark's workers, which run {sys.executable})" in told
    assert "asyncudf.ship(spark" in told
