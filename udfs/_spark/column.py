"""Declared types, and a function as a column. With its `_spark_*` neighbours the only importer of PySpark."""

import inspect
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, SparkSession
from pyspark.sql import types as spark
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.util import PythonEvalType

from ._arrow import ResultWriter, records_of, rows_of, warm_up
from ._bridge import Bridge, Reader
from ._chain import Chain, chain_of_one
from ._errors import FunctionError, OptionError
from ._failures import ERROR_FIELDS
from ._input import Fed
from ._loops import new_event_loop
from ._options import Options
from ._signature import FunctionSpec
from ._spark_connection import settler
from ._spark_errors import Telling
from ._spark_pickle import check_picklable
from ._specs import Site
from ._tags import OutputTag
from ._task import OUTPUT_BYTES, OUTPUT_LINGER, Work, pipe
from ._text import short
from ._types import UnknownTypeError, to_json
from ._vectors import Codec
from ._writer import RecordWriterOutput

__all__ = (
    "COLUMN_EVAL_TYPE",
    "ColumnTask",
    "arrow_type",
    "bridge_of",
    "column",
    "offline_work",
    "parsed",
    "parsed_offline",
    "plan_work",
    "start_bridge",
    "tag_kind",
    "task_of",
    "timestamp_type",
)

# Up to PySpark 4.2 UTC is the default, since then it must be said.
_IN_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_type).parameters else {}
FEW_ROWS = 1000  # of results, which are written together whatever Spark's input batches have
COLUMN_EVAL_TYPE = PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF


def plan_work(spec: FunctionSpec, options: Options, returns: Any) -> tuple[Work, spark.DataType]:
    """What travels to the executors, and the Spark type of what comes out for one result.

    Raises:
        FunctionError: the type is unknown, or the function cannot be sent to the executors.
    """
    declared = returns if returns is not None else spec.returns
    if declared is None:
        raise FunctionError(
            f"the return type of {spec.name} cannot be inferred; declare it, as in async_pandas_udf('temp double, sky "
            "string'), or annotate the result with str, int, float, bool, bytes, date, datetime, Decimal, a list or "
            "dict of these, a dataclass, a NamedTuple or a TypedDict"
        )
    if not isinstance(declared, spark.DataType):
        declared = parsed(declared)
    work = Work(spec, options, arrow_type(declared, spec.name))
    check_picklable(work)
    return work, _captured(declared) if work.captures else declared


def offline_work(spec: FunctionSpec, options: Options, returns: Any) -> Work:
    """Work for the test kit, without a session: DDL that only Spark's own parser knows is not checked there."""
    declared = returns if returns is not None else spec.returns
    if isinstance(declared, str):
        try:
            declared = parsed_offline(declared)
        except UnknownTypeError:
            declared = None
    return Work(spec, options, None if declared is None else arrow_type(declared, spec.name))


def arrow_type(declared: spark.DataType, who: str) -> pa.DataType:
    """Arrow's type for one of Spark's; raises FunctionError if there is none."""
    try:
        return to_arrow_type(declared, **_IN_UTC)
    except TypeError as error:
        raise FunctionError(f"{who} is declared as {declared}, which Arrow does not know") from error


def parsed(ddl: str) -> spark.DataType:
    """The type that a text declares; read by Spark, or where this thread has no session by ourselves.

    Raises:
        OptionError: it is no text.
        FunctionError: there is no session at all, and only Spark's own parser knows it.
    """
    if not isinstance(ddl, str):
        raise OptionError(f"a type is DDL such as 'temp double, sky string' or a DataType, not {short(ddl)}")
    if SparkSession.getActiveSession() is not None:
        return spark.DataType.fromDDL(ddl)
    try:
        return parsed_offline(ddl, timestamp_type())
    except UnknownTypeError:
        if _session() is not None:
            return spark.DataType.fromDDL(ddl)
    raise FunctionError(f"{ddl!r} is no type that can be read without a Spark session; make one first, or correct it")


def _session() -> SparkSession | None:
    try:
        return SparkSession.active()  # also in a thread that has not used it yet
    except PySparkException:
        return None


def timestamp_type() -> str:
    """What `timestamp` means in the DDL of the session: with time zone (the default) or `timestamp_ntz`."""
    session = _session()
    is_ntz = session is not None and session.conf.get("spark.sql.timestampType", None) == "TIMESTAMP_NTZ"
    return "timestamp_ntz" if is_ntz else "timestamp"


def parsed_offline(ddl: str, timestamp: str = "timestamp") -> spark.DataType:
    """The type that a text declares, read without a session; `timestamp` is what that word means.

    Raises:
        UnknownTypeError: only Spark's own parser knows it.
    """
    field = {"name": "result", "type": to_json(ddl, timestamp), "nullable": True, "metadata": {}}
    return spark.StructType.fromJson({"type": "struct", "fields": [field]})["result"].dataType


def tag_kind(tag: OutputTag, timestamp: str = "timestamp") -> pa.DataType:
    """The Arrow type of a side output's rows, on an executor; `timestamp` is what that word means on the driver.

    Raises:
        FunctionError: its schema is a text that only Spark's own parser knows.
    """
    schema = tag.schema
    if not isinstance(schema, spark.DataType):
        try:
            schema = parsed_offline(schema, timestamp)
        except UnknownTypeError as error:
            raise FunctionError(f"the schema of {tag!r} cannot be read on an executor; give a StructType") from error
    return arrow_type(schema, f"side output {tag.name!r}")


def _captured(value: spark.DataType) -> spark.DataType:
    error = spark.StructType()
    for name, kind in ERROR_FIELDS.items():
        error = error.add(name, kind)
    return spark.StructType().add("value", value).add("error", error)


class ColumnTask:
    """The worker's side of a column: an iterator of Arrow arrays to one of results, in the same order."""

    def __init__(self, work: Work) -> None:
        # Spark finds out from the type hints that this is an iterator UDF.
        self.__annotations__ = {"batches": Iterator[pa.Array], "return": Iterator[pa.Array]}
        self.__name__ = work.spec.name
        self._work = work
        self._telling = Telling()

    def __call__(self, batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        with self._telling():
            yield from pipe(filter(_has_rows, batches), self._start, self._read)

    def _start(self, first: Any) -> Bridge[Iterable[Fed], pa.Array]:
        columns, spec = _columns(first), self._work.spec
        spec.check_column_count(len(columns))
        writer = ResultWriter(spec.name, self._work.written)
        kinds = [column.type for column in columns]
        # The first batch may be a small one, which another column of ours below this has sent early.
        rows = max(len(columns[0]), FEW_ROWS)
        return start_bridge(self._work, lambda values, *_: writer.array(values), kinds, None, rows)

    def _read(self, batch: Any) -> Iterable[Fed]:
        return records_of(rows_of(self._work.spec.name, _columns(batch), None), repeat(None))


def _has_rows(batch: Any) -> bool:
    columns = _columns(batch)
    return not columns or len(columns[0]) > 0  # another column's sign of life comes as a batch without


def _columns(batch: Any) -> tuple[pa.Array, ...]:
    return batch if isinstance(batch, tuple) else (batch,)


def start_bridge(
    work: Work, write: Any, kinds: Sequence[pa.DataType], names: Sequence[str] | None, rows: int
) -> Bridge[Iterable[Fed], Any]:
    """The function of a column or a table in the Spark task that this runs in.

    `write` makes what Spark gets of results and their origins, of at most `rows` together: as many as Spark's input
    batches have, or a few more. Large results are bounded in bytes as well.
    """
    warm_up()
    spec = work.spec
    codec = Codec(spec.name, spec.vectors, names or spec.parameters, kinds) if spec.vectorized else None
    may_edit = any(map(pa.types.is_nested, kinds))
    return bridge_of(
        work, write, codec, rows, *task_of(), may_edit=may_edit, reader=Reader(settler(), lambda: write([], []))
    )


def bridge_of(
    work: Work,
    write: Any,
    codec: Codec | None,
    rows: int,
    partition: int = 0,
    attempt: int = 0,
    *,
    may_edit: bool = True,
    reader: Reader[Any] | None = None,
) -> Bridge[Iterable[Fed], Any]:
    """Start the chain of one function on a loop of its own."""

    def build(loop: Any, want: Callable[[], None], emit: Callable[[Any], None]) -> Chain:
        writer = RecordWriterOutput(
            lambda *results: emit(write(*results)),
            rows,
            OUTPUT_LINGER,
            loop,
            weigh=None if (weigh := work.weigh) is None else lambda value, origin: weigh(value),
            max_bytes=OUTPUT_BYTES,
        )
        site = Site(loop, random.Random(), partition, attempt)
        return chain_of_one(work, site, writer, codec, want, may_edit=may_edit)

    return Bridge(build, work.threads, new_event_loop(work.options.loop), reader)


def task_of() -> tuple[int, int]:
    """Partition and attempt of the Spark task that this runs in."""
    task = TaskContext.get()
    return (task.partitionId(), task.attemptNumber()) if task is not None else (0, 0)


def column(spec: FunctionSpec, options: Options, returns: Any, columns: Sequence[Any]) -> Column:
    """The column of a function's results."""
    work, kind = plan_work(spec, options, returns)
    native: Any = arrow_udf(ColumnTask(work), kind)  # type: ignore[call-overload]
    if not options.deterministic:
        native = native.asNondeterministic()
    result: Column = native(*columns)
    return result
