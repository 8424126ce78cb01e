"""Plans of functions and of the operators of a chain: which columns each reads and adds, and checks of both."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark

from .._arrow.layout import ColumnGroup, RowLayout, WatermarkColumnGroup
from .._chain.function_plan import FunctionPlan
from .._chain.plan import (
    AssignFactory,
    FilterFactory,
    ProcessFactory,
    StreamNode,
    UnionFactory,
    WaitFactory,
    WatermarkColumnFactory,
)
from .._errors.exceptions import FunctionError, OptionError
from .._errors.records import ERROR_FIELDS, Redact
from .._errors.safe import safe_repr
from .._functions.annotations import UnknownTypeError
from .._functions.options import OnError, Options
from .._functions.process_function import FlatMapFunction, MapFunction, name_of_plain, name_of_process
from .._functions.signature import FunctionSpec
from .._functions.watermarks import WatermarkSource, WatermarkStrategy
from .._stores.keys import ResultKeys
from . import schemas
from .coordinators import coordinator_config
from .pickling import check_function_picklable, check_picklable
from .types import arrow_type, parsed, parsed_offline


def plan_function(
    spec: FunctionSpec, options: Options, returns: Any, session: SparkSession | None = None
) -> tuple[FunctionPlan, spark.DataType]:
    """The plan that travels to the executors, and the Spark type of a result as Spark gets it.

    Args:
        session: the tasks' session; the active session, where only that can be known.
    """
    declared = _known(spec, returns)
    coordinator = coordinator_config(spec, options, session)
    function_plan = FunctionPlan(spec, options, arrow_type(declared, spec.name), coordinator=coordinator)
    function_plan.check_stored()
    check_picklable(function_plan)
    return function_plan, result_type(spec, options, declared)


def result_type(spec: FunctionSpec, options: Options, returns: Any) -> spark.DataType:
    """The Spark type of a result as Spark gets it; plans nothing."""
    declared = _known(spec, returns)
    return _captured(declared) if options.on_error is OnError.CAPTURE else declared


def _known(spec: FunctionSpec, returns: Any) -> spark.DataType:
    declared = _declared(spec, returns)
    if declared is None:
        raise not_inferred(spec)
    return declared


def not_inferred(spec: FunctionSpec) -> FunctionError:
    why = "" if spec.unread is None else f" ({spec.unread})"
    return FunctionError(
        f"the return type of {spec.name} cannot be inferred{why}; declare it, as in returnType='temp double, sky "
        "string', or annotate the result (that of parse, if it is a batch_function) with str, int, float, bool, bytes, "
        "date, datetime, Decimal, a list or dict of these, a dataclass, a NamedTuple, a TypedDict or a Pydantic model"
    )


def check_declared(spec: FunctionSpec, returns: Any) -> None:
    """Raises FunctionError for a declared type that no function gives, as far as it can be read without a session."""
    with contextlib.suppress(UnknownTypeError):
        declared = _declared(spec, returns, parsed_offline)
        if declared is not None:
            arrow_type(declared, spec.name)


def _declared(
    spec: FunctionSpec, returns: Any, read: Callable[[str], spark.DataType] = parsed
) -> spark.DataType | None:
    declared = returns if returns is not None else spec.returns
    if declared is not None:
        declared = declared if isinstance(declared, spark.DataType) else read(declared)
        schemas.check_names(declared, spec.name)
    return declared


def result_keys(spec: FunctionSpec, options: Options, returns: Any) -> ResultKeys:
    return _plan_without_coordinator(spec, options, _declared(spec, returns)).result_keys()


def plan_function_offline(spec: FunctionSpec, options: Options, returns: Any) -> FunctionPlan:
    """As `plan_function`, without a coordinator or a session, and a function need not tell its type."""
    declared = _declared(spec, returns, _read_offline)
    if declared is None and spec.unread is not None:
        raise not_inferred(spec)
    function_plan = _plan_without_coordinator(spec, options, declared)
    function_plan.check_stored()
    return function_plan


def _read_offline(ddl: str) -> spark.DataType:
    try:
        return parsed_offline(ddl)
    except UnknownTypeError:
        return parsed(ddl)  # by Spark, if there is a session


def _plan_without_coordinator(spec: FunctionSpec, options: Options, declared: spark.DataType | None) -> FunctionPlan:
    return FunctionPlan(spec, options, None if declared is None else arrow_type(declared, spec.name))


def _captured(value: spark.DataType) -> spark.DataType:
    error = spark.StructType()
    for name, data_type in ERROR_FIELDS.items():
        error = error.add(name, data_type)
    return spark.StructType().add("value", value).add("error", error)


# Each function below makes the node of one operator: it checks the arguments, finds the columns, and says which columns
# come out. A mistake that can be seen here is an error now, with the user's line in its traceback, not one of a task.


def source_node(df: DataFrame) -> StreamNode:
    schemas.check_source(df.schema, "the DataFrame")
    return rows_node(df.schema)


def rows_node(schema: spark.StructType) -> StreamNode:
    """The source of a chain: rows with these columns."""
    arrow_types = tuple(map(schemas.arrow_type_or_none, schema.fields))
    layout = RowLayout(tuple(schema.names), arrow_types)
    return StreamNode(None, (), layout, schema)


def wait_node(
    parent: StreamNode,
    spec: FunctionSpec,
    options: Options,
    returns: Any,
    names: Sequence[str],
    strategy: WatermarkStrategy | None,
    watermark_column: str | None,
    result_column: str | None = None,
    session: SparkSession | None = None,
) -> StreamNode:
    """A function's results beside the columns of a stream; `result_column` puts a whole result in one column.

    Args:
        names: of the columns that the function reads.
        session: the tasks' session; None in the test kit.
    """
    if strategy is not None and not isinstance(strategy, WatermarkStrategy):
        raise OptionError(f"watermark must be a WatermarkStrategy, not {safe_repr(strategy)}")
    if watermark_column is not None and strategy is None:
        raise OptionError("with_watermark_column needs watermark=, or there would be no watermark to write")
    for option, name in (("as_", result_column), ("with_watermark_column", watermark_column)):
        if name is not None and (not isinstance(name, str) or not name):
            raise OptionError(f"{option} must be the name of a column, not {safe_repr(name)}")
    fields = parent.schema.fields
    if strategy is not None:
        parent = assign_node(parent, strategy)
    spec, positions = schemas.arguments(spec, fields, names)
    function_plan, data_type = plan_function(spec, options, returns, session)
    if options.writes_dead_letters:
        schemas.joined_schema(fields, [spark.StructField("error", spark.StringType())], f"a dead letter of {spec.name}")
    added = schemas.result_fields(function_plan, data_type, result_column)
    schema = schemas.joined_schema(fields, added, spec.name, may_name=result_column is None)
    is_whole = result_column is not None or not isinstance(data_type, spark.StructType)
    group = ColumnGroup.of(spec.name, function_plan.written, result_column or spec.name, whole=is_whole)
    layout = parent.layout.with_columns(group)
    factory = WaitFactory(function_plan, positions, tuple(fields[i].name for i in positions))
    node = StreamNode(factory, (parent,), layout, schema)
    if watermark_column is None:
        return node
    assert strategy is not None
    return _watermark_column_node(node, strategy, watermark_column)


def _watermark_column_node(parent: StreamNode, strategy: WatermarkStrategy, name: str) -> StreamNode:
    position = schemas.watermark_position(strategy, parent.schema.fields)
    ntz = position is not None and isinstance(parent.schema.fields[position].dataType, spark.TimestampNTZType)
    data_type = spark.TimestampNTZType() if ntz else spark.TimestampType()
    schema = schemas.joined_schema(
        parent.schema.fields, [spark.StructField(name, data_type, True)], "with_watermark_column"
    )
    group = WatermarkColumnGroup.of("with_watermark_column", arrow_type(data_type, name), name)
    return StreamNode(WatermarkColumnFactory(), (parent,), parent.layout.with_columns(group), schema)


def assign_node(parent: StreamNode, strategy: WatermarkStrategy) -> StreamNode:
    position = schemas.watermark_position(strategy, parent.schema.fields)
    if strategy.source is WatermarkSource.NOTHING and not parent.layout.is_source:
        raise FunctionError(
            "WatermarkStrategy.per_batch() follows the batches of the DataFrame; assign it before the first operator"
        )
    return StreamNode(AssignFactory(strategy, position), (parent,), parent.layout, parent.schema)


def filter_node(parent: StreamNode, function: Callable[[Any], Any], redact: Redact | None) -> StreamNode:
    """The rows for which a function returns something true."""
    name = name_of_plain(function, "filter")
    check_function_picklable(name, function)
    parent.layout.whole()  # raises where two columns of one name cannot be a dict
    return StreamNode(FilterFactory(name, function, redact), (parent,), parent.layout, parent.schema)


def process_node(parent: StreamNode, method: str, function: Any, returns: Any, redact: Redact | None) -> StreamNode:
    """The rows that a plain function makes of each row; with the same columns unless `returns` names others."""
    if method == "process":
        name = name_of_process(function)
        process, function = function, None
    else:
        name = name_of_plain(function, method)
        process = (MapFunction if method == "map" else FlatMapFunction)(function)
    check_function_picklable(name, function or process)
    parent.layout.whole()
    schema, group = schemas.rows_type(parent.schema if returns is None else returns, name)
    factory = ProcessFactory(name, process, group, function is None, redact)
    return StreamNode(factory, (parent,), RowLayout.of_new_rows(group), schema)


def union_node(parents: Sequence[StreamNode]) -> StreamNode:
    # Columns must agree in name, type and order. To reorder them silently would be one more rule; `map` does it.
    wanted = [(field.name, schemas.as_nullable(field.dataType)) for field in parents[0].schema.fields]
    for parent in parents[1:]:
        if (found := [(field.name, schemas.as_nullable(field.dataType)) for field in parent.schema.fields]) != wanted:
            one, other = (
                ", ".join(f"{name} {data_type.simpleString()}" for name, data_type in c) for c in (wanted, found)
            )
            raise FunctionError(f"union takes streams of the same columns, not ({one}) and ({other}); use map")
    schema = spark.StructType([spark.StructField(name, data_type, True) for name, data_type in wanted])
    for field, *same in zip(schema.fields, *(parent.schema.fields for parent in parents), strict=True):
        if all(one.metadata == same[0].metadata for one in same):
            field.metadata = same[0].metadata
    group = schemas.rows_type(schema, "union")[1]
    for parent in parents:
        parent.layout.whole()
    return StreamNode(UnionFactory(group), tuple(parents), RowLayout.of_new_rows(group), schema)
