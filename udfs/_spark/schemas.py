"""Checks of columns: those that a function reads, and those that an operator adds."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import types as spark

from .._arrow.layout import ColumnGroup
from .._chain.function_plan import FunctionPlan
from .._chain.results import are_ambiguous
from .._errors.checks import twice, unknown_name
from .._errors.exceptions import FunctionError, OptionError
from .._errors.safe import safe_repr
from .._functions.annotations import Vector
from .._functions.signature import FunctionSpec
from .._functions.watermarks import WatermarkSource, WatermarkStrategy
from ._compat import VariantType, inside
from .marks import marked
from .running_task import MARKS
from .types import active_session, arrow_type, parsed

# Types by their names, as Spark 3.5 does not have each, and what is wrong with them.
_NOT_IN_ARROW = {"YearMonthIntervalType": "pyarrow does not know"}
_NOT_IN_PYTHON = {
    "CalendarIntervalType": "Spark sends only to columns, and to no operator or table function in Python",
    # With spark.sql.preserveCharVarcharTypeInfo; else Spark itself makes them strings.
    "CharType": "Spark takes from no Python function",
    "VarcharType": "Spark takes from no Python function",
}


def check_frame(df: Any, who: str) -> None:
    """Raises OptionError for what is no DataFrame; one of Spark Connect, or of Sail, has another class."""
    if not hasattr(type(df), "mapInArrow"):
        raise OptionError(f"{who} takes a DataFrame, not {safe_repr(df)}")


def check_source(schema: spark.StructType, what: str) -> None:
    """Raises FunctionError for rows that no chain can read, whichever columns its functions read."""
    check_table(schema, what)
    _refuse(schema, _NOT_IN_ARROW)


def check_table(schema: spark.StructType, what: str) -> None:
    """The same for rows that Spark sends one by one, without Arrow."""
    check_columns(schema, what)
    _refuse(schema, _NOT_IN_PYTHON)
    for field in schema.fields:
        if (name := _name_given_twice(field.dataType)) is not None:  # Spark refuses it when the query runs
            raise FunctionError(
                f"column {field.name!r} has a struct with two fields called {name!r}, which Spark hands to no Python "
                "function, also if it does not read them: leave the column out, or give each field its own name, as in "
                f"df.withColumn({field.name!r}, sf.col({field.name!r}).cast('struct<...>'))"
            )


def _refuse(schema: spark.StructType, types: Mapping[str, str]) -> None:
    for field in schema.fields:
        for one in inside(field.dataType):
            if (reason := types.get(type(one).__name__)) is not None:
                raise FunctionError(
                    f"column {field.name!r} is {field.dataType.simpleString()}, which {reason}; leave it out, or cast "
                    "it to a string"
                )


def check_columns(schema: spark.StructType, what: str) -> None:
    """Raises FunctionError for rows without columns: Spark loses their number between the JVM and Python."""
    if not schema.fields:
        raise FunctionError(f"{what} has no columns, and Spark loses count of such rows; give it at least one")


def check_names(data_type: spark.DataType, who: str) -> None:
    """Raises FunctionError for a struct at any depth with two fields of one name: a dict cannot have both."""
    if (name := _name_given_twice(data_type)) is not None:
        raise FunctionError(f"the type of {who} has two fields called {name!r}; give each its own name")


def _name_given_twice(data_type: spark.DataType) -> str | None:
    structs = (one for one in inside(data_type) if isinstance(one, spark.StructType))
    return next((name for struct in structs if (name := twice(struct.names)) is not None), None)


def arrow_type_or_none(field: spark.StructField) -> Any:
    """The Arrow type of a column; None if Arrow has none. Spark reports that itself when the column is read."""
    try:
        return arrow_type(field.dataType, f"column {field.name!r}")
    except FunctionError:
        return None


def rows_type(declared: Any, name: str) -> tuple[spark.StructType, ColumnGroup]:
    """The columns of rows of a type: a struct's fields, or one column `value`, as in createDataFrame."""
    if not isinstance(declared, spark.DataType):
        declared = parsed(declared)
    check_names(declared, name)
    is_struct = isinstance(declared, spark.StructType)  # a type of Arrow's structs may be a variant or a user's own
    group = ColumnGroup.of(name, arrow_type(declared, name), "value", whole=not is_struct)
    if is_struct:
        check_columns(declared, f"what {name} gives")
        return declared, group
    return spark.StructType([spark.StructField("value", declared, True)]), group


def as_nullable(
    data_type: spark.DataType, leaf: Callable[[spark.DataType], spark.DataType] = lambda one: one
) -> spark.DataType:
    """The type with nulls allowed at every depth: inputs of a union may differ in what they declare "not null".

    `leaf` may change the types that contain no others.
    """
    match data_type:
        case spark.ArrayType():
            return spark.ArrayType(as_nullable(data_type.elementType, leaf), True)
        case spark.MapType():
            return spark.MapType(as_nullable(data_type.keyType, leaf), as_nullable(data_type.valueType, leaf), True)
        case spark.StructType():
            return spark.StructType(
                [spark.StructField(f.name, as_nullable(f.dataType, leaf), True) for f in data_type.fields]
            )
    return leaf(data_type)


def as_optional(field: spark.StructField, name: str | None = None) -> spark.StructField:
    """The field with NULL allowed; its metadata has what Spark knows of it, such as its watermark or its comment."""
    return spark.StructField(name or field.name, field.dataType, True, field.metadata)


def mapped(df: DataFrame, task: Any, schema: spark.StructType) -> DataFrame:
    """`df.mapInArrow(task, schema)` for any names; columns that PySpark would not find by them are named by position.

    So the batches that the task gets and makes have numbers for names then. Those that it gets may have marks at their
    end, see `running_task`.
    """
    if are_ambiguous([*df.columns, *MARKS]):
        df = df.toDF(*map(str, range(len(df.columns))))
    if not are_ambiguous(schema.names):
        return marked(df).mapInArrow(task, schema)
    return marked(df).mapInArrow(task, numbered(schema)).toDF(*schema.names)


def numbered(schema: spark.StructType) -> spark.StructType:
    """The fields named by position: some names do not survive a struct, and equal names do not fit one DataFrame."""
    return spark.StructType([as_optional(field, str(i)) for i, field in enumerate(schema.fields)])


def is_comparable(data_type: spark.DataType) -> bool:
    """Whether Spark can tell equal values of the type, as for a join, or to count distinct ones."""
    return not any(isinstance(one, (spark.MapType, VariantType)) for one in inside(data_type))


def joined_schema(
    fields: Sequence[spark.StructField], added: Sequence[spark.StructField], who: str, *, may_name: bool = False
) -> spark.StructType:
    """The columns, then the added ones. FunctionError if two have one name; `may_name`: `as_` would mend it."""
    seen = {field.name.lower(): field.name for field in fields}
    for field in added:
        if (known := seen.get(field.name.lower())) is not None:
            found = "one of that name" if known == field.name else repr(known)
            other_way = ", or choose the result's with as_=" if may_name else ""
            raise FunctionError(
                f"{who} would add a column {field.name!r}, but there is {found} already; drop or rename it "
                f"first: df.drop({known!r}) or df.withColumnRenamed({known!r}, ...){other_way}"
            )
        seen[field.name.lower()] = field.name
    return spark.StructType([*fields, *added])


def arguments(
    spec: FunctionSpec, fields: Sequence[spark.StructField], columns: Sequence[str]
) -> tuple[FunctionSpec, tuple[int, ...]]:
    """The function as it reads these columns, and their positions.

    Without names it reads the columns called like its parameters; a function of whole rows reads all columns.
    """
    names = [field.name for field in fields]
    if spec.takes_mapping or spec.vectors == (Vector.FRAME,):
        positions = tuple(column_position(column, names) for column in columns) or tuple(range(len(names)))
        taken = [names[position] for position in positions]
        if (name := twice(taken)) is not None:
            raise FunctionError(
                f"{spec.name} takes a row by its columns' names, and {name!r} is there twice; name each column once, "
                "or rename one of them"
            )
        spec.check_keys(taken)
    elif columns:
        positions = tuple(column_position(column, names) for column in columns)
        spec.check_column_count(len(positions))
    else:
        lower = [name.lower() for name in names]
        # A parameter with a default reads a column only if there is one.
        wanted = [p for i, p in enumerate(spec.parameters) if i < spec.required or p.lower() in lower]
        if not wanted:
            spec.check_takes_columns()
            called = f" called like a parameter of it ({', '.join(spec.parameters)})" if spec.parameters else ""
            raise FunctionError(
                f"{spec.name} takes at least one column, and there is none{called}; give the names of those that it "
                "shall read, after the function"
            )
        spec, positions = spec.with_columns(wanted), tuple(column_position(parameter, names) for parameter in wanted)
    return spec, positions


_WATERMARK_TYPES: Mapping[WatermarkSource, tuple[type[spark.DataType], ...]] = {
    WatermarkSource.TIMES: (spark.TimestampType, spark.TimestampNTZType, spark.DateType, spark.LongType),
    WatermarkSource.PUNCTUATION: (spark.BooleanType, spark.TimestampType, spark.TimestampNTZType, spark.LongType),
    WatermarkSource.WATERMARKS: (spark.TimestampType, spark.TimestampNTZType, spark.LongType),
}


def watermark_position(strategy: WatermarkStrategy, fields: Sequence[spark.StructField]) -> int | None:
    """The position of a strategy's column; None if it reads none. Raises FunctionError unless it can be read."""
    if strategy.column is None:
        return None
    position = column_position(strategy.column, [field.name for field in fields])
    data_type = fields[position].dataType
    allowed = _WATERMARK_TYPES[strategy.source]
    if not isinstance(data_type, allowed):
        names = ", ".join(t.typeName() for t in allowed)
        raise FunctionError(
            f"watermarks cannot be read from {strategy.column!r}, a {data_type.simpleString()}; use {names}"
        )
    return position


def result_fields(
    function_plan: FunctionPlan, data_type: spark.DataType, name: str | None = None
) -> list[spark.StructField]:
    """The columns that the operator forms append: a struct's fields, or one column; with `name` always one."""
    if isinstance(data_type, spark.StructType) and name is None:
        return [as_optional(field) for field in data_type.fields]
    return [spark.StructField(name or function_plan.spec.name, data_type, True)]


def column_position(column: str, names: Sequence[str]) -> int:
    """The position of the only column of that name, which may be in `backticks`; FunctionError if there is none."""
    # Ignore case, as Spark does; if two names differ in case only, take the exact one.
    for wanted in (column, _literally(column)):
        exact = [i for i, name in enumerate(names) if name == wanted]
        found = exact or [i for i, name in enumerate(names) if name.lower() == wanted.lower()]
        if len(found) > 1:
            raise FunctionError(f"column {column!r} is there {len(found)} times; rename all but one")
        if found:
            return found[0]
    struct, _, rest = column.partition(".")
    if rest and struct.lower() in (name.lower() for name in names):
        field = column.rpartition(".")[2]
        raise FunctionError(
            f"unknown column {column!r}; for a field of {struct!r} add a column first: "
            f"df.withColumn({field!r}, sf.col({column!r}))"
        )
    raise FunctionError(unknown_name("column", column, names))


def _literally(name: str) -> str:
    """The name of a column without the backticks in which Spark reads any name literally."""
    return name[1:-1].replace("``", "`") if re.fullmatch(r"`(?:[^`]|``)+`", name) else name


def column_names(columns: Sequence[Any], schema: spark.StructType, df: DataFrame | None) -> tuple[str, ...]:
    """The names of the given columns, which must be columns of the schema, and of `df` where that can be told."""
    return tuple(column if isinstance(column, str) else _name(column, schema, df) for column in columns)


def _name(column: Any, schema: spark.StructType, df: DataFrame | None) -> str:
    name = None
    if hasattr(column, "_jc"):
        name = _classic_name(column, schema, df)
    elif type(expression := getattr(column, "_expr", None)).__name__ == "ColumnReference":
        name = _connect_name(expression, df)
    elif isinstance(column, (list, tuple)):
        raise FunctionError(f"columns are given one by one and not as {safe_repr(column)}: put a * before it")
    if name is None:
        raise FunctionError(
            f"{safe_repr(column)} is not known to be a column as it is: give the name of one, such as "
            f"{schema.names[0]!r}; something else needs a column first: withColumn"
        )
    return name


def _classic_name(column: Any, schema: spark.StructType, df: DataFrame | None) -> str | None:
    # Spark itself finds what is meant. An attribute that goes through a `select` keeps its number; all else gets one.
    try:
        session = active_session()
        if df is None:
            assert session is not None
            df = session.createDataFrame([], schema)
        (found,) = _attributes(df.select(column))
        return found.name() if any(own.exprId().equals(found.exprId()) for own in _attributes(df)) else None
    except (PySparkException, ValueError):  # there is no such column, or these are several
        return None


def _attributes(df: Any) -> list[Any]:
    output = df._jdf.queryExecution().analyzed().output()
    return [output.apply(number) for number in range(output.size())]


def _connect_name(reference: Any, df: Any) -> str | None:
    # The client knows of a reference which DataFrame it was taken from, if any.
    if reference._plan_id is not None and (df is None or df._plan._plan_id != reference._plan_id):
        return None
    name = _literally(reference._unparsed_identifier)
    return name if name != reference._unparsed_identifier or "." not in name else None
