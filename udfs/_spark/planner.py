"""Plans the operators of a chain: which columns each reads, which it adds, and what cannot work."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import types as spark

from ._errors import FunctionError, OptionError
from ._failures import Redact
from ._layout import Layout, Part, WatermarkPart
from ._node import Node
from ._options import OnError, Options, unknown_name
from ._process import FlatMapFunction, MapFunction, plain_function, process_function
from ._signature import FunctionSpec, Kind
from ._spark import arrow_type, parsed, plan_work
from ._spark_pickle import check_function_picklable
from ._specs import AssignSpec, FilterSpec, ProcessSpec, UnionSpec, WaitSpec, WatermarkColumnSpec
from ._task import Work
from ._text import short
from ._vector_hints import Vector
from ._watermarks import Source, WatermarkStrategy

__all__ = (
    "arguments",
    "assign_node",
    "check_columns",
    "filter_node",
    "joined_schema",
    "process_node",
    "result_fields",
    "rows_node",
    "rows_type",
    "source_node",
    "union_node",
    "wait_node",
)


def source_node(df: DataFrame) -> Node:
    """The rows of a DataFrame.

    Raises:
        FunctionError: it has no columns.
    """
    check_columns(df.schema, "the DataFrame")
    return rows_node(df.schema)


def check_columns(schema: spark.StructType, what: str) -> None:
    """Raises FunctionError for rows without columns: Spark loses count of them on their way to Python and back."""
    if not schema.fields:
        raise FunctionError(f"{what} has no columns, and Spark loses count of such rows; give it at least one")


def rows_node(schema: spark.StructType) -> Node:
    """Rows of these columns, from outside."""
    fields = schema.fields
    layout = Layout(tuple(field.name for field in fields), tuple(_arrow_type_or_none(field) for field in fields))
    return Node(None, (), layout, schema)


def _arrow_type_or_none(field: spark.StructField) -> Any:
    try:
        return arrow_type(field.dataType, f"column {field.name!r}")
    except FunctionError:  # Spark says so itself, unless nobody reads the column
        return None


def wait_node(
    parent: Node,
    spec: FunctionSpec,
    options: Options,
    returns: Any,
    columns: Sequence[str],
    strategy: WatermarkStrategy | None,
    watermark_column: str | None,
    result_column: str | None = None,
) -> Node:
    """A function's results beside the columns of a stream; with `result_column` all of a result in that one column.

    Raises:
        FunctionError: unknown columns, name clashes, or a function that cannot take these columns.
        OptionError: no strategy, or no name.
    """
    if strategy is not None and not isinstance(strategy, WatermarkStrategy):
        raise OptionError(f"watermark must be a WatermarkStrategy, not {short(strategy)}")
    if watermark_column is not None and strategy is None:
        raise OptionError("with_watermark_column needs watermark=, or there would be no watermark to write")
    if result_column is not None and (not isinstance(result_column, str) or not result_column):
        raise OptionError(f"as_ must be the name of a column, not {short(result_column)}")
    fields = parent.schema.fields
    if strategy is not None:
        parent = assign_node(parent, strategy)
    spec, positions = arguments(spec, fields, columns)
    work, kind = plan_work(spec, options, returns)
    if options.on_error is OnError.DEAD_LETTER:
        joined_schema(fields, [spark.StructField("error", spark.StringType())], f"a dead letter of {spec.name}")
    added = result_fields(work, kind, result_column)
    schema = joined_schema(fields, added, spec.name, may_name=result_column is None)
    names = tuple(fields[i].name for i in positions)
    part = Part.of(spec.name, work.written, result_column or spec.name, whole=result_column is not None)
    layout = parent.layout.plus(part)
    node = Node(WaitSpec(work, positions, names), (parent,), layout, schema)
    if watermark_column is None:
        return node
    assert strategy is not None
    return _watermark_column_node(node, strategy, watermark_column)


def _watermark_column_node(parent: Node, strategy: WatermarkStrategy, name: str) -> Node:
    position = mark_position(strategy, parent.schema.fields)
    ntz = position is not None and isinstance(parent.schema.fields[position].dataType, spark.TimestampNTZType)
    kind = spark.TimestampNTZType() if ntz else spark.TimestampType()
    schema = joined_schema(parent.schema.fields, [spark.StructField(name, kind, True)], "with_watermark_column")
    part = WatermarkPart.of("with_watermark_column", arrow_type(kind, name), name)
    return Node(WatermarkColumnSpec(), (parent,), parent.layout.plus(part), schema)


def assign_node(parent: Node, strategy: WatermarkStrategy) -> Node:
    """The same rows with event times and watermarks."""
    position = mark_position(strategy, parent.schema.fields)
    if strategy.source is Source.NOTHING and not parent.layout.is_source:
        raise FunctionError(
            "WatermarkStrategy.per_batch() follows the batches of the DataFrame; assign it before the first operator"
        )
    return Node(AssignSpec(strategy, position), (parent,), parent.layout, parent.schema)


def filter_node(parent: Node, function: Callable[[Any], Any], redact: Redact | None) -> Node:
    """The rows that a function keeps."""
    name = plain_function(function, "filter")
    check_function_picklable(name, function)
    parent.layout.whole()
    return Node(FilterSpec(name, function, redact), (parent,), parent.layout, parent.schema)


def process_node(parent: Node, method: str, function: Any, returns: Any, redact: Redact | None) -> Node:
    """The rows that a plain function makes of each row; of the same columns unless `returns` says others."""
    if method == "process":
        name = process_function(function)
        process, function = function, None
    else:
        name = plain_function(function, method)
        process = (MapFunction if method == "map" else FlatMapFunction)(function)
    check_function_picklable(name, function or process)
    parent.layout.whole()
    schema, part = rows_type(parent.schema if returns is None else returns, name)
    spec = ProcessSpec(name, process, part, function is None, redact)
    return Node(spec, (parent,), Layout.anew(part), schema)


def rows_type(declared: Any, name: str) -> tuple[spark.StructType, Part]:
    """The type of whole rows: a struct's fields, anything else as one column `value`, as in createDataFrame."""
    if not isinstance(declared, spark.DataType):
        declared = parsed(declared)
    part = Part.of(name, arrow_type(declared, name), "value")
    if isinstance(declared, spark.StructType):
        check_columns(declared, f"what {name} gives")
        return declared, part
    return spark.StructType([spark.StructField("value", declared, True)]), part


def union_node(parents: Sequence[Node]) -> Node:
    """The rows of several streams of the same columns."""
    wanted = [(field.name, loosened(field.dataType)) for field in parents[0].schema.fields]
    for parent in parents[1:]:
        if (found := [(field.name, loosened(field.dataType)) for field in parent.schema.fields]) != wanted:
            one, other = (", ".join(f"{name} {kind.simpleString()}" for name, kind in c) for c in (wanted, found))
            raise FunctionError(f"union takes streams of the same columns, not ({one}) and ({other}); use map")
    schema = spark.StructType([spark.StructField(name, kind, True) for name, kind in wanted])
    part = rows_type(schema, "union")[1]
    for parent in parents:
        parent.layout.whole()
    return Node(UnionSpec(), tuple(parents), Layout.anew(part), schema)


def loosened(kind: spark.DataType) -> spark.DataType:
    """The type with nulls allowed everywhere inside."""
    match kind:
        case spark.ArrayType():
            return spark.ArrayType(loosened(kind.elementType), True)
        case spark.MapType():
            return spark.MapType(loosened(kind.keyType), loosened(kind.valueType), True)
        case spark.StructType():
            return spark.StructType([spark.StructField(f.name, loosened(f.dataType), True) for f in kind.fields])
    return kind


def joined_schema(
    fields: Sequence[spark.StructField], added: Sequence[spark.StructField], who: str, *, may_name: bool = False
) -> spark.StructType:
    """The columns with others behind them.

    Args:
        may_name: whether `as_` would give the others one name.

    Raises:
        FunctionError: two have one name.
    """
    seen = {field.name.lower() for field in fields}
    for field in added:
        if field.name.lower() in seen:
            other_way = ", or choose the result's with as_=" if may_name else ""
            raise FunctionError(
                f"{who} would add a column {field.name!r}, but there is one of that name already; rename it "
                f"first, for example df.withColumnRenamed({field.name!r}, ...){other_way}"
            )
        seen.add(field.name.lower())
    return spark.StructType([*fields, *added])


def arguments(
    spec: FunctionSpec, fields: Sequence[spark.StructField], columns: Sequence[str]
) -> tuple[FunctionSpec, tuple[int, ...]]:
    """Positions of the columns that a function reads, and the function of just these.

    They are the columns named, else those called like its parameters; one of rows takes all, else.

    Raises:
        FunctionError: there is no such column, or they do not go with the function.
    """
    names = [field.name for field in fields]
    takes_rows = spec.kind is Kind.ASYNC_FUNCTION or spec.vectors == (Vector.FRAME,)
    if takes_rows:
        positions = tuple(_position(column, names) for column in columns) or tuple(range(len(names)))
        _check_names([names[position] for position in positions], spec.name)
    elif columns:
        positions = tuple(_position(column, names) for column in columns)
        spec.check_column_count(len(positions))
    else:
        lower = [name.lower() for name in names]
        wanted = [p for i, p in enumerate(spec.parameters) if i < spec.required or p.lower() in lower]
        if not wanted:
            raise FunctionError(f"{spec.name} takes at least one column; name the columns that it shall read")
        spec, positions = spec.reading(wanted), tuple(_position(parameter, names) for parameter in wanted)
    return spec, positions


def _check_names(names: Sequence[str], who: str) -> None:
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise FunctionError(
            f"{who} takes a row by its columns' names, and {twice!r} is there twice; name each column once, or rename "
            "one of them"
        )


def _position(column: Any, names: Sequence[str]) -> int:
    if not isinstance(column, str):
        raise FunctionError(f"columns are given by name, not as {column!r}; add it to the DataFrame first: withColumn")
    exact = [i for i, name in enumerate(names) if name == column]
    found = exact or [i for i, name in enumerate(names) if name.lower() == column.lower()]
    if not found:
        raise FunctionError(unknown_name("column", column, names))
    if len(found) > 1:
        raise FunctionError(f"column {column!r} is there {len(found)} times; rename all but one")
    return found[0]


_MARK_TYPES: Mapping[Source, tuple[type[spark.DataType], ...]] = {
    Source.TIMES: (spark.TimestampType, spark.TimestampNTZType, spark.DateType, spark.LongType),
    Source.PUNCTUATION: (spark.BooleanType, spark.TimestampType, spark.TimestampNTZType, spark.LongType),
    Source.WATERMARKS: (spark.TimestampType, spark.TimestampNTZType, spark.LongType),
}


def mark_position(strategy: WatermarkStrategy | None, fields: Sequence[spark.StructField]) -> int | None:
    if strategy is None or strategy.column is None:
        return None
    position = _position(strategy.column, [field.name for field in fields])
    kind = fields[position].dataType
    allowed = _MARK_TYPES[strategy.source]
    if not isinstance(kind, allowed):
        names = ", ".join(t.typeName() for t in allowed)
        raise FunctionError(f"watermarks cannot be read from {strategy.column!r}, a {kind.simpleString()}; use {names}")
    return position


def result_fields(work: Work, kind: spark.DataType, name: str | None = None) -> list[spark.StructField]:
    """The columns that the operator forms append: a struct's fields, anything else, or all with a `name`, as one."""
    if isinstance(kind, spark.StructType) and name is None:
        return [spark.StructField(field.name, field.dataType, True) for field in kind.fields]
    return [spark.StructField(name or work.spec.name, kind, True)]
