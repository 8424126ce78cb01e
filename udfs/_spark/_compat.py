"""Differences between engines and versions of Spark. Besides `data_sources`, no other module knows these.

Versions are found by their features, the engine behind a session by what it answers.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import importlib.util
import inspect
import itertools
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type

from .._errors.exceptions import AsyncUDFError, FunctionError
from .._errors.safe import one_line
from .pickling import Travelling

if TYPE_CHECKING:
    from pyspark import SparkContext

if not hasattr(pyspark, "TaskContext"):
    raise ImportError(
        "asyncudf needs the part of PySpark that runs in Spark's workers, and this pyspark "
        f"({pyspark.__file__}, {pyspark.__version__}) has no TaskContext, as pyspark-client-rust: uninstall it, and "
        "install pyspark or pyspark-client in its place",
        name="pyspark",
    )

try:
    from pyspark.sql.pandas.functions import arrow_udf
except ImportError:  # before Spark 4.1
    arrow_udf = None  # type: ignore[assignment]

try:
    from pyspark.util import PythonEvalType
except ImportError:  # before Spark 4.0
    from pyspark.rdd import PythonEvalType  # type: ignore[import-not-found,no-redef]

# Before Spark 4.0 no value is one.
VariantType: type = getattr(spark, "VariantType", type("VariantType", (), {}))
TimeType: Any = getattr(spark, "TimeType", type("TimeType", (), {}))  # from Spark 4.1 on
# Geometries, from Spark 4.1 on; the classes of their values are called like the types without `Type`.
SPATIAL: tuple[type, ...] = tuple(
    getattr(spark, name) for name in ("GeometryType", "GeographyType") if hasattr(spark, name)
)

try:
    from pyspark.sql.udtf import AnalyzeArgument as AnalyzeArgument
    from pyspark.sql.udtf import AnalyzeResult as AnalyzeResult

    HAS_ANALYZE = True
except ImportError:  # before Spark 4.0: a table function has one schema for all its tables
    AnalyzeArgument = AnalyzeResult = object  # type: ignore[assignment,misc]
    HAS_ANALYZE = False

HAS_DATA_SOURCES = importlib.util.find_spec("pyspark.sql.datasource") is not None  # from Spark 4.0 on

_ARROW_UDF = (4, 1)  # the Spark that has brought it
_CHAINED = ("f", "g")  # what the functions are called in the closure with which Spark's worker chains them
Batches = Callable[[Iterator[Any]], Iterator[pa.Array]]

COLUMN_EVAL_TYPE: int = (
    PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF if arrow_udf is None else PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF
)
# Up to Spark 4.2 UTC is the default, since then it must be said.
_IN_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {}


def active_context() -> SparkContext | None:
    """The SparkContext of this process, if there is one; a client of Spark Connect alone (pyspark-client) has none."""
    try:
        from pyspark import SparkContext
    except ImportError:
        return None
    return SparkContext._active_spark_context


@dataclasses.dataclass(frozen=True)
class Engine:
    """The engine behind a session: what it supports, and which parts of a plan it keeps."""

    name: str
    calls_columns_once: bool = (
        True  # a function that is a column: for each row that reaches it, however often it is used
    )
    takes_parts: bool = True  # the results of a column may come in other arrays than its arguments
    keeps_sorts: bool = True  # rows come to an operator as a sort before it has put them
    analyzes_tables: bool = True  # it makes a table function with what its `analyze` has found
    streams_operators: bool = True  # mapInArrow takes a stream
    keeps_frames: bool = True  # persist() keeps the rows of a DataFrame
    tells_tasks: bool = True  # TaskContext says which query, partition and attempt a task is of
    runs_functions_itself: bool = False  # in the server's process, or in others like it
    logs_workers: bool = True  # over Spark Connect, the logs of Python workers can be read, from Spark 4.1 on
    batches_streams: bool = True  # foreachBatch runs a function of ours
    observes: bool = True  # it tells aggregates of the rows that a query has written
    takes_modules: bool = True  # addArtifacts sends modules to where functions run
    caches_tables: bool = True  # it remembers the files of a table, until it is told to look again
    spreads_ranges: bool = True  # range() has as many partitions as tasks may run at once
    misses_paths: bool = True  # to read a path where nothing is raises an error
    keeps_options: bool = True  # options of a reader keep the case of their names
    version: tuple[int, ...] | None = None  # of a server of Spark Connect, 4 and 3, where it is known


SPARK = Engine("Spark")
CONNECT = dataclasses.replace(SPARK, keeps_options=False)  # Spark's own server
SAIL = Engine(
    "Sail",
    calls_columns_once=False,
    takes_parts=False,  # with a client of Spark 4.1; with a newer one it joins them itself
    keeps_sorts=False,
    analyzes_tables=False,
    streams_operators=False,
    keeps_frames=False,
    tells_tasks=False,
    runs_functions_itself=True,
    logs_workers=False,
    batches_streams=False,
    observes=False,
    takes_modules=False,
    caches_tables=False,
    spreads_ranges=False,
    misses_paths=False,
)
_engines: weakref.WeakKeyDictionary[Any, Engine] = weakref.WeakKeyDictionary()  # by session


def engine_of(session: Any) -> Engine:
    """The engine of a session. A session of Spark Connect is asked once; a classic one is Spark's."""
    if session not in _engines:
        _engines[session] = SPARK if hasattr(session, "_jsparkSession") else _asked(session)
    return _engines[session]


def refuses_to_keep(session: Any) -> bool:
    """Whether `persist()` of this session raises whatever it is asked to keep, as on serverless compute; remembered."""
    try:
        session.range(1).persist().unpersist()
    except PySparkException:
        _engines[session] = dataclasses.replace(engine_of(session), keeps_frames=False)
        return True
    return False


def _asked(session: Any) -> Engine:
    # `session.version` is no answer: Sail repeats the version of the client. Its own was 0.7 when Spark's was 4.2.
    try:
        (row,) = session.sql("SELECT version()").collect()
        version = _numbers(row[0])
        if not row[0].startswith(session.version) and version[0] < 3:
            return SAIL
        return dataclasses.replace(CONNECT, version=version)
    except Exception as error:
        # A server that cannot be reached may be any engine: a guess would be kept for good, and waited for once more.
        if "StatusCode.UNAVAILABLE" in str(error) or type(error).__name__ == "RetriesExceeded":
            raise
        return CONNECT  # it answers no queries of ours


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")[:2]))


def to_arrow(declared: spark.DataType) -> pa.DataType:
    """Arrow's type for one of Spark's, timestamps in UTC; TypeError if there is none."""
    try:
        return to_arrow_type(declared, **_IN_UTC)
    except PySparkException as error:
        raise TypeError(str(error)) from error


def from_ddl(ddl: str) -> spark.DataType:
    """The type that a text declares, read by Spark; needs a session."""
    if ddl.strip().lower() == "variant" and issubclass(VariantType, spark.DataType):
        return VariantType()  # Sail takes it for a struct of its parts, but not inside another type
    if hasattr(spark.DataType, "fromDDL"):
        return spark.DataType.fromDDL(ddl)
    session: Any = SparkSession.active()
    if hasattr(session, "_jsparkSession"):
        return spark._parse_datatype_string(ddl)
    return session.client._analyze("ddl_parse", ddl_string=ddl).parsed  # type: ignore[no-any-return]


def slots_of(session: Any) -> int | None:
    """How many tasks run at a time; None over Spark Connect, which does not tell."""
    return int(session.sparkContext.defaultParallelism) if hasattr(session, "_jsparkSession") else None


def condition_of(error: PySparkException) -> str | None:
    return error.getCondition() if hasattr(error, "getCondition") else error.getErrorClass()


def setting(session: Any, name: str) -> str:
    """A setting of a session; empty if Spark does not have it, or does not show it, as on serverless compute."""
    try:
        return str(session.conf.get(name))
    except Exception:
        return ""


def change_setting(session: Any, name: str, value: str | None) -> None:
    if value is None:
        session.conf.unset(name)
    else:
        session.conf.set(name, value)


def check_data_sources() -> None:
    """Raises FunctionError where Spark has no data sources in Python that write Arrow batches."""
    if not HAS_DATA_SOURCES:
        raise FunctionError(
            "sink_source makes a data source in Python, which Spark has from version 4.0 on, and this is "
            f"{pyspark.__version__}; use async_sink(df, function, ...), and for a stream stream_sink(function, ...) in "
            "foreachBatch"
        )


def spark_schema(given: spark.StructType | pa.Schema) -> spark.StructType:
    """The schema of what is written to a data source: Sail gives Arrow's. FunctionError for a type that Spark lacks."""
    if not isinstance(given, pa.Schema):
        return given
    try:
        return from_arrow_schema(given)
    except PySparkException as error:
        raise FunctionError(f"a column cannot be written: {error}; leave it out, or cast it to a string") from error


def check_table_functions(function: str, session: Any) -> None:
    """Raises FunctionError where the schema of a table function cannot be derived from its table."""
    operator = "asyncudf.unordered_wait(df, function, 'column'), and createOrReplaceTempView of what it returns for SQL"
    if not HAS_ANALYZE:
        raise FunctionError(
            f"{function} would be a table function, whose columns are those of its table and its results; Spark finds "
            f"them out from version 4.0 on. Here, use the operator: {operator}"
        )
    if not (engine := engine_of(session)).analyzes_tables:
        raise FunctionError(
            f"{function} would be a table function, whose columns are those of its table and its results; "
            f"{engine.name} does not tell such a function the types of its table's columns, so that its results could "
            f"not be exact. Use the operator: {operator}"
        )


def check_columns(function: str, session: Any) -> None:
    """Raises FunctionError where a column of the session would fail in its tasks: it could not be exact."""
    engine = SPARK if session is None else engine_of(session)
    operator = f"use the operator: asyncudf.ordered_wait(df, {function}, 'column')"
    if arrow_udf is None and engine.runs_functions_itself:
        raise FunctionError(
            f"{function} would be a column, which {engine.name} makes with a client of Spark 4.1 or newer, and this is "
            f"{pyspark.__version__}. {operator.capitalize()}"
        )
    if engine.version is None or (takes_arrays := engine.version >= _ARROW_UDF) is (arrow_udf is not None):
        return
    # What counts its versions in another way, as databricks-connect does, may have what came with them.
    if takes_arrays or _ARROW_UDF <= _numbers(pyspark.__version__) < (5,):
        newer, older = ("server", "client") if takes_arrays else ("client", "server")
        raise FunctionError(
            f"{function} would be a column, which the client of Spark {pyspark.__version__} and the server of Spark "
            f"{'.'.join(map(str, engine.version))} make in different ways: the {newer} as from Spark 4.1 on, and the "
            f"{older} as before. Install the client of the server's version, or {operator}"
        )


def is_column(value: Any) -> bool:
    """Whether it is a column: before Spark 4.0, columns of Spark Connect have a class of their own."""
    return isinstance(value, Column) or (type(value).__name__ == "Column" and hasattr(value, "_expr"))


def column_function(function: Batches, data_type: spark.DataType) -> Callable[..., Any]:
    """The function as Spark takes it for `COLUMN_EVAL_TYPE`: from an iterator of Arrow arrays to another one."""
    name = getattr(function, "__name__", "the function")
    for inner in inside(data_type):
        if (how := _not_in_column(inner)) is not None:
            raise FunctionError(
                f"{name} gives {inner.simpleString()}, which Spark {how}; declare another type (`time` for a time, "
                "`interval day to second` for an interval) and cast the column, or use the operator: "
                f"asyncudf.ordered_wait(df, {name}, 'column')"
            )
    return function if arrow_udf is not None else _PandasAdapter(function, isinstance(data_type, spark.StructType))


def _not_in_column(data_type: spark.DataType) -> str | None:
    """What Spark does with a type that it does not take back from a column here; None if it takes it."""
    # Spark compares the declared type with that of the Arrow arrays, which does not say all of these.
    if isinstance(data_type, TimeType):
        return None if data_type == TimeType() else "does not take in a column"
    is_partial = isinstance(data_type, spark.DayTimeIntervalType) and data_type != spark.DayTimeIntervalType()
    is_later = arrow_udf is None and (is_partial or isinstance(data_type, spark.UserDefinedType))
    return "takes in a column from version 4.1 on" if is_later else None


_commented = to_arrow_type(spark.StructType().add("n", "long", True, {"comment": "some"}))


def column_type(data_type: spark.DataType) -> spark.DataType:
    # Before Spark 4.2 what comes from Python has no metadata (a COMMENT of DDL is some), and both types must be equal.
    if _commented.field(0).metadata is None:
        data_type = copy.deepcopy(data_type)
        for inner in inside(data_type):
            for field in inner.fields if isinstance(inner, spark.StructType) else ():
                field.metadata = {}
    return data_type


def inside(data_type: spark.DataType) -> Iterator[spark.DataType]:
    yield data_type
    match data_type:
        case spark.ArrayType():
            yield from inside(data_type.elementType)
        case spark.MapType():
            yield from inside(data_type.keyType)
            yield from inside(data_type.valueType)
        case spark.StructType():
            for field in data_type.fields:
                yield from inside(field.dataType)


def column_udf(function: Batches, data_type: spark.DataType) -> Any:
    given: Any = column_function(function, data_type)
    if arrow_udf is not None:
        return arrow_udf(given, column_type(data_type))  # type: ignore[call-overload]
    made: Any = sf.pandas_udf
    return made(given, column_type(data_type))


class _PandasAdapter(Travelling):
    """A function of Arrow arrays as a pandas UDF, for Spark before 4.1; the arrays bypass the conversion to pandas.

    Pandas has no exact form for many values: whole numbers beside a NULL become floats. But Spark only counts the rows
    that such a function yields. Its serializer, which converts them to Arrow, is found in the worker and patched.
    """

    # _is_struct: Spark expects a DataFrame for a struct, otherwise a Series

    def __init__(self, function: Batches, is_struct: bool) -> None:
        import pandas as pd

        self.__name__ = getattr(function, "__name__", "function")
        self.__annotations__ = {"batches": Iterator[pd.Series], "return": Iterator[pd.Series]}
        self.function = function
        self._is_struct = is_struct

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        chain = _chain()
        place = chain.index(self) if self in chain else 0
        if place and not isinstance(before := chain[place - 1], _PandasAdapter):
            name = one_line(getattr(before, "__name__", "f"))
            raise AsyncUDFError(
                f"{self.__name__} takes the column of the pandas UDF {name}, whose type is known from Spark 4.1 on. "
                f"Use the operator: asyncudf.ordered_wait(df.withColumn('c', {name}(...)), {self.__name__}, 'c')"
            )
        return self._results(batches, _serializer(), chain[place + 1 :])

    def _results(self, batches: Iterator[Any], serializer: Any, after: Sequence[Any]) -> Iterator[Any]:
        # The serializer is that of one task, and Spark evaluates each iterator UDF alone or in a chain: no other
        # function sees the patch.
        if type(serializer._create_batch) is not _RecordBatch:
            serializer._create_batch = _RecordBatch(serializer._create_batch)
        serializer.arrow_to_pandas = _combined
        to_pandas = functools.partial(type(serializer).arrow_to_pandas, serializer)
        is_for_pandas = bool(after) and not isinstance(after[0], _PandasAdapter)
        for array in self.function(_unpacked(batches)):
            yield to_pandas(pa.chunked_array([array])) if is_for_pandas else _carrier(array, self._is_struct)


def _chain() -> list[Any]:
    """The functions that Spark's worker calls one with the results of the other, if it does, in their order."""
    frame, chain = sys._getframe(2), []
    while frame.f_back is not None and frame.f_code.co_freevars == _CHAINED:
        chain, frame = [_parts(frame.f_locals[name]) for name in _CHAINED], frame.f_back
    return list(itertools.chain.from_iterable(chain))


def _parts(function: Any) -> list[Any]:
    if getattr(getattr(function, "__code__", None), "co_freevars", None) != _CHAINED:
        return [function]
    return [part for cell in function.__closure__ for part in _parts(cell.cell_contents)]


def _serializer() -> Any:
    """The worker's serializer, found in the frames of our callers: it takes the results and converts them to Arrow."""
    # Not our own frame: its `f_locals` would be in a cycle with it and all frames behind it, which would keep alive
    # what PySpark means to close by dropping it, after a LIMIT or an error.
    frame: Any = sys._getframe(1)
    while frame is not None:
        found = frame.f_locals.get("self")
        if hasattr(type(found), "arrow_to_pandas") and hasattr(type(found), "_create_batch"):
            return found
        frame = frame.f_back
    raise AsyncUDFError(
        "this Spark has no arrow_udf, as Spark 4.1 has, and its Python worker is not that of Spark 3.5 or 4.0: here a "
        "column cannot be exact. Use the operator: asyncudf.ordered_wait(df, function, 'column')"
    )


def _unpacked(batches: Iterator[Any]) -> Iterator[Any]:
    """The input as Arrow arrays; Spark passes the output of one such function to another directly."""
    return (batch.attrs["arrow"] if hasattr(batch, "attrs") else batch for batch in batches)


def _combined(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _carrier(array: pa.Array, is_struct: bool) -> Any:
    import pandas as pd

    rows = pd.RangeIndex(len(array))
    carrier: Any = pd.DataFrame(index=rows) if is_struct else pd.Series(_Carried.VALUE, index=rows, dtype="object")
    carrier.attrs["arrow"] = array
    return carrier


class _Carried(enum.Enum):
    """Stands for each value in a carrier: a function of pandas that got one would fail, not go on with it."""

    VALUE = "is in Arrow"


class _RecordBatch:
    """Makes the record batch of a result, which comes with its type; of pandas as Spark does."""

    def __init__(self, of_pandas: Callable[[Any], pa.RecordBatch]) -> None:
        self._of_pandas = of_pandas

    def __call__(self, result: Any) -> pa.RecordBatch:
        array = result[0].attrs.get("arrow")
        return self._of_pandas(result) if array is None else pa.RecordBatch.from_arrays([array], ["_0"])
