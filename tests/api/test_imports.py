"""A process imports what it uses: a worker neither pandas nor what plans a query, the queues and the kit no Spark."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import asyncudf
from asyncudf import AsyncStream, RetryStrategy, async_pandas_udf
from asyncudf._spark.chain_task import ChainTask
from asyncudf._spark.evaluations import StreamSource
from asyncudf._spark.pickling import dumps
from asyncudf._spark.planner import rows_node
from asyncudf._spark.types import parsed

PUBLIC = ("asyncudf", "asyncudf.queues", "asyncudf.testing")
DEAR = ("pandas", "pyarrow.compute", "tenacity", "tornado", "aiohttp", "redis", "lmdb", "msgspec", "opentelemetry")
PLANNING = ("asyncudf._spark.planner", "asyncudf._spark.evaluations", "asyncudf._spark.api", "asyncudf._batches")
SINKS = ("asyncudf._spark.sinks", "pyspark.sql.datasource")


def imported(program: str, stdin: bytes = b"") -> set[str]:
    """What a fresh interpreter has imported at the end of a program."""
    program += "\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], input=stdin, capture_output=True, check=False)
    assert not done.returncode, done.stderr.decode()
    return set(done.stdout.decode().split())


# The program that follows runs where PySpark is not installed.
WITHOUT_SPARK = """
import sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "pyspark":
            raise ModuleNotFoundError("No module named 'pyspark'", name=name)
sys.meta_path.insert(0, Finder)
"""


def operator(**options: Any) -> ChainTask:
    """What travels to a worker for `ordered_wait(df, ask, "question")`."""

    async def ask(question: str) -> str:
        return question

    source = StreamSource.of(None, False, None, None)
    stream = AsyncStream._at(source, rows_node(parsed("question string")))
    return source.task([stream.ordered_wait(async_pandas_udf("string", **options)(ask), "question")._ref.result])


def unpickled(task: ChainTask) -> set[str]:
    return imported("import pickle, sys; pickle.load(sys.stdin.buffer)", dumps(task))


def test_the_package_alone_imports_no_other() -> None:
    found = imported("import asyncudf; asyncudf.__version__")
    assert not found & {"pyspark", "pyarrow", "numpy", *DEAR}


def test_a_worker_that_gets_an_operator_imports_nothing_that_it_does_not_use() -> None:
    found = unpickled(operator())
    assert "asyncudf._spark.chain_task" in found
    assert not found & {*DEAR, *PLANNING, *SINKS}


COLLECTIONS = """
import gc, pickle, sys, pyarrow, pyspark.sql
def collections():
    return sum(generation["collections"] for generation in gc.get_stats())
task, before = sys.stdin.buffer.read(), collections()
pickle.loads(task)
assert collections() - before < 3, collections() - before
assert gc.isenabled()
"""


def test_the_collector_does_not_look_at_modules_while_a_worker_loads_them() -> None:
    """It looked thirty times, once at all objects, and found nothing: a sixth of the time of the imports."""
    assert "asyncudf._spark.chain_task" in imported(COLLECTIONS, dumps(operator()))


def test_a_worker_imports_tenacity_for_retries_alone() -> None:
    found = unpickled(operator(retry=RetryStrategy.fixed_delay()))
    assert "tenacity" in found
    assert "pandas" not in found


@pytest.mark.parametrize("package", ["asyncudf.queues", "asyncudf.testing"])
def test_what_needs_no_spark_is_imported_without_it(package: str) -> None:
    found = imported(f"{WITHOUT_SPARK}import {package}")
    assert package in found
    assert "pandas" not in found


STORE = """
import copy
from asyncudf.testing import MemoryStore, check_result_store
store = MemoryStore()
async def wait(seconds):
    store.advance(seconds)
check_result_store(lambda: copy.copy(store), travels=False, wait=wait)
"""


def test_a_store_is_tested_without_spark() -> None:
    assert "pandas" not in imported(WITHOUT_SPARK + STORE)


@pytest.mark.parametrize("use", ["from asyncudf import ordered_wait", "from asyncudf.testing import run_rows"])
def test_without_spark_what_needs_it_says_how_to_get_it(use: str) -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_SPARK + use], capture_output=True, check=False, text=True)
    assert "ModuleNotFoundError: asyncudf needs PySpark and does not install it" in done.stderr
    assert "During handling" not in done.stderr


@pytest.mark.parametrize("name", PUBLIC)
def test_type_checkers_and_python_find_the_same_names(name: str) -> None:
    """Type checkers read the imports of a package, Python imports by a table, and `__all__` lists them once more."""
    package = importlib.import_module(name)
    assert package.__file__ is not None
    imports = [
        node
        for block in ast.walk(ast.parse(Path(package.__file__).read_text()))
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
    ]
    shown = {alias.name for node in imports for alias in node.names}
    unlisted = {"VirtualClockLoop"} & shown  # by `__all__`: help() would show all that asyncio's loop has
    assert not shown or shown - unlisted == {*package.__all__}
    assert {*package.__all__, *unlisted} <= {*dir(package)}
    assert all(hasattr(package, name) for name in dir(package))


def test_names_are_listed_before_they_are_used() -> None:
    listed = "import asyncudf; assert {*asyncudf.__all__, 'http', 'testing'} <= {*dir(asyncudf)}"
    assert "asyncudf._functions" not in imported(listed)


def test_all_names_at_once() -> None:
    imported("from asyncudf import *; ordered_wait, AsyncStream, DEAD_LETTERS")


def test_packages_are_found_as_attributes() -> None:
    assert "asyncudf.http" in imported("import asyncudf; asyncudf.http.is_retryable")


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'asyncudf' has no attribute 'ordered_weight'"):
        asyncudf.ordered_weight  # type: ignore[attr-defined]  # noqa: B018


def test_threads_use_names_for_the_first_time_together() -> None:
    """PySpark's own modules fail if two threads begin to import them at different places."""
    imported("""
import random, sys, threading, asyncudf
from concurrent.futures import ThreadPoolExecutor
sys.setswitchinterval(1e-5)
together = threading.Barrier(8)
def use(seed):
    together.wait()
    for name in random.Random(seed).sample(asyncudf.__all__, len(asyncudf.__all__)):
        getattr(asyncudf, name)
with ThreadPoolExecutor(8) as threads:
    list(threads.map(use, range(8)))
""")
