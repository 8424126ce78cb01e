"""What other Sparks lack: a column that goes through a pandas UDF and stays exact, and clear errors for the rest."""

import functools
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import types as spark

from asyncudf import AsyncUDFError, FunctionError, async_pandas_udf
from asyncudf._spark import _compat
from asyncudf._spark.api import decorator
from asyncudf._spark.column import ColumnTask
from asyncudf._spark.planner import plan_function

EXACT = [2**53 + 1, None, -1]


class Serializer:
    """As that of the Python worker of Spark 3.5 and 4.0: makes pandas of Arrow, and Arrow of pandas."""

    def arrow_to_pandas(self, column: pa.ChunkedArray) -> Any:
        return column.to_pandas()

    def _create_batch(self, result: tuple[Any, pa.DataType]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([pa.array(result[0], result[1], from_pandas=True)], ["_0"])

    def dump(self, functions: list[Callable[..., Any]], tables: list[pa.Table], result_type: pa.DataType) -> list[Any]:
        """What Spark gets; the functions are called one with the results of the other."""

        def arguments() -> Iterator[Any]:
            for table in tables:
                columns = [self.arrow_to_pandas(column) for column in table.itercolumns()]
                yield columns[0] if len(columns) < 2 else tuple(columns)

        results = functools.reduce(chained, functions)(arguments())
        return [value for result in results for value in self._create_batch((result, result_type))[0].to_pylist()]


def chained(f: Callable[..., Any], g: Callable[..., Any]) -> Callable[..., Any]:
    """As Spark's worker has it."""
    return lambda *a: g(f(*a))


def tenfold(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
    """An ordinary pandas UDF."""
    return (series * 10 for series in batches)


@pytest.fixture(autouse=True)
def _no_arrow_udf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compat, "arrow_udf", None)
    monkeypatch.setattr(decorator, "active_session", lambda: None)  # another test's may be of Sail, which refuses


def through_pandas(function: Any, returns: str) -> Callable[..., Any]:
    udf = async_pandas_udf(returns)(function)
    plan, data_type = plan_function(udf.spec, udf.options, udf.returns)
    return _compat.column_function(ColumnTask(plan), data_type)


async def same(x: Any) -> Any:
    return x


async def both(x: Any, y: Any) -> Any:
    return {"x": x, "y": y}


COUNTED = [pa.table({"x": EXACT, "y": ["a", None, ""]})]
STRUCT = pa.struct([("x", pa.int64()), ("y", pa.string())])


@pytest.mark.parametrize(
    ("functions", "tables", "result_type", "expected"),
    [
        ([same], [pa.table({"x": EXACT}), pa.table({"x": [7]})], pa.int64(), [*EXACT, 7]),
        ([same], [pa.table({"x": pa.chunked_array([EXACT, [5]])})], pa.int64(), [*EXACT, 5]),
        ([same, same], [pa.table({"x": EXACT})], pa.int64(), EXACT),  # one of the results of another in one worker
        ([both], COUNTED, STRUCT, [{"x": x, "y": y} for x, y in zip(EXACT, ["a", None, ""], strict=True)]),
    ],
)
def test_numbers_beside_nulls_stay_what_they_are(
    functions: list[Any], tables: list[pa.Table], result_type: pa.DataType, expected: list[Any]
) -> None:
    returns = "bigint" if result_type == pa.int64() else "x bigint, y string"
    made = [through_pandas(function, returns) for function in functions]
    assert Serializer().dump(made, tables, result_type) == expected


def test_a_pandas_udf_of_its_results_gets_pandas() -> None:
    """It got a stand-in for them, and what it made of that was thrown away."""
    functions = [through_pandas(same, "bigint"), through_pandas(same, "bigint"), tenfold, tenfold]
    assert Serializer().dump(functions, [pa.table({"x": [1, 2]}), pa.table({"x": [3]})], pa.int64()) == [100, 200, 300]


@pytest.mark.parametrize("before", [[tenfold], [tenfold, tenfold], ["same", tenfold]])
def test_it_cannot_take_the_results_of_a_pandas_udf(before: list[Any]) -> None:
    """Spark passes them on without their type; it has evaluated the pandas UDF with Arrow's arrays."""
    functions = [through_pandas(same, "bigint") if one == "same" else one for one in [*before, "same"]]
    with pytest.raises(AsyncUDFError, match=r"pandas UDF tenfold, .*4\.1.*ordered_wait\(df\.withColumn\('c', tenfold"):
        Serializer().dump(functions, [pa.table({"x": [1, 2]})], pa.int64())


def test_a_call_without_columns_says_what_is_missing() -> None:
    """The worker fails with an IndexError for it, which says nothing to anybody."""

    def no_columns() -> Iterator[Any]:
        yield from map([].__getitem__, [0])

    class Calling(Serializer):
        def dump(self, *functions: Any) -> Any:
            return list(functions[0](no_columns()))

    with pytest.raises(AsyncUDFError, match="both takes"):
        Calling().dump(through_pandas(both, "x bigint, y string"))


def test_a_worker_of_another_kind_is_refused() -> None:
    with pytest.raises(AsyncUDFError, match=r"Python worker is not that of Spark 3\.5 or 4\.0.*ordered_wait"):
        next(through_pandas(same, "bigint")(iter([pa.array([1])])))


def test_what_spark_is_told_of_the_function_is_of_pandas() -> None:
    function: Any = through_pandas(same, "bigint")
    assert function.__annotations__ == {"batches": Iterator[pd.Series], "return": Iterator[pd.Series]}
    assert function.__name__ == "same"


@pytest.mark.parametrize("inside", [spark.DayTimeIntervalType(0, 0), VectorUDT()], ids=str)
def test_types_that_spark_takes_back_as_others_are_refused_in_a_column(inside: spark.DataType) -> None:
    for returns in (inside, spark.ArrayType(spark.StructType().add("x", inside))):
        declared = async_pandas_udf(same, returns)
        with pytest.raises(FunctionError, match=f"same gives {inside.simpleString()}, which .* from version 4.1 on"):
            _ = declared.func
    assert callable(async_pandas_udf(same, spark.DayTimeIntervalType()).func)


@pytest.mark.skipif(not hasattr(spark, "TimeType"), reason="since Spark 4.1")
@pytest.mark.parametrize("is_older", [True, False])
def test_a_time_of_less_than_microseconds_is_refused_in_a_column(
    is_older: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_compat, "arrow_udf", None if is_older else object())
    for returns in (spark.TimeType(0), spark.StructType().add("x", spark.ArrayType(spark.TimeType(3)))):
        with pytest.raises(
            FunctionError, match=r"same gives time\(\d\), which Spark does not take in a column; declare"
        ):
            _ = async_pandas_udf(same, returns).func
    assert callable(async_pandas_udf(same, spark.TimeType()).func)


def test_a_table_function_needs_spark_4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compat, "HAS_ANALYZE", False)
    with pytest.raises(FunctionError, match=r"from version 4\.0 on.*unordered_wait\(df, function, 'column'\)"):
        _compat.check_table_functions("weather", None)


def test_errors_and_types_are_read_in_the_old_way_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        def getErrorClass(self) -> str:  # noqa: N802 - Spark's name
            return "PATH_NOT_FOUND"

    assert _compat.condition_of(Old()) == "PATH_NOT_FOUND"  # type: ignore[arg-type]
    monkeypatch.setattr(spark, "DataType", type("DataType", (), {}))
    monkeypatch.setattr(spark, "_parse_datatype_string", lambda ddl: f"parsed {ddl}")
    classic = type("Classic", (), {"_jsparkSession": None})
    monkeypatch.setattr(_compat.SparkSession, "active", classic)
    assert _compat.from_ddl("a int") == "parsed a int"


def test_a_client_of_spark_connect_alone_has_no_spark_context() -> None:
    """As pyspark-client, which has no SparkContext and no py4j."""
    program = """
import pyspark
vars(pyspark).pop("SparkContext", None)

from asyncudf import async_pandas_udf
from asyncudf.testing import run_rows

@async_pandas_udf("string")
async def shout(word):
    return word.upper()

print(run_rows(shout, ["oslo"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['OSLO']\n"


def test_nothing_keeps_the_frames_in_which_the_serializer_was_found() -> None:
    """What they hold was closed by Python's collector alone, which a worker keeps from what its first task has made."""

    class Held:
        pass

    class Serializer:
        arrow_to_pandas = _create_batch = None

        def task(self) -> weakref.ref[Held]:
            held = Held()
            assert _compat._serializer() is self
            return weakref.ref(held)

    gc.disable()
    try:
        held = Serializer().task()
        assert held() is None
    finally:
        gc.enable()
