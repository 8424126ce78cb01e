"""The same small functions in Spark's own pandas_udf and in async_pandas_udf.

What they see and give is equal, or the difference is a line of the table "Coming from pandas_udf" of docs/functions.md.
"""

import asyncio
import datetime
import decimal
import functools
import operator
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import functions as sf

from asyncudf import AsyncStream, async_pandas_udf
from tests.kit.sail import HAS_SAIL

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "functions.md"

# Three batches in one task: one without a NULL, one with a NULL, one of nothing else.
BATCH = 3
COLUMNS = {
    "i8": "CAST(id AS tinyint)",
    "i16": "CAST(id AS smallint)",
    "i32": "CAST(id AS int)",
    "i64": "id + 100",
    "big": "id + 9007199254740993",
    "f32": "CAST(id / 4 AS float)",
    "f64": "id / 4D",
    "nan": "IF(id % 3 = 0, DOUBLE('NaN'), id / 4D)",
    "money": "CAST(id AS decimal(9, 2))",
    "flag": "id % 2 = 0",
    "text": "CONCAT('a-', id)",
    "raw": "CAST(CONCAT('x', id) AS binary)",
    "day": "DATE_ADD(DATE'2024-01-30', CAST(id AS int))",
    "at": "TIMESTAMP_SECONDS(1704164645 + 4000 * id)",
    "ntz": "TIMESTAMP_NTZ'2024-01-02 03:04:05' + MAKE_DT_INTERVAL(CAST(id AS int), 0, 0, 0.25)",
    "span": "MAKE_DT_INTERVAL(CAST(id AS int), 1, 2, 3.5)",
    "items": "ARRAY(id, id + 1)",
    "ats": "ARRAY(TIMESTAMP_SECONDS(id))",
    "pairs": "MAP('k', id)",
    "nested": "ARRAY(NAMED_STRUCT('a', id))",
}
ROWS = "SELECT id, {} FROM range(0, 9, 1, 1)".format(
    ", ".join(f"IF(id IN (4, 6, 7, 8), NULL, {sql}) AS {name}" for name, sql in COLUMNS.items())
)

WHOLE = "Whole numbers beside a NULL"
FLAGS = "Flags beside a NULL"
MOMENTS = "`timestamp`"
UNITS = "Units of moments and durations"
ARRAYS = "Arrays"
NAME = "`Series.name`"
NAN_INSIDE = "NaN in an array that you return"
INSIDE = "Moments in arrays, maps, structs"


class Case(NamedTuple):
    columns: str
    work: Callable[..., Any]
    line: str | None = None  # of the table, if there is a difference
    returns: str = "string"


def same(s: Any) -> Any:
    return s


def numbered(s: Any) -> Any:
    return pd.Series(range(len(s)))


def edited(s: Any) -> Any:
    s.iloc[1] = s.iloc[0]
    return s


# What a function sees, and what pandas makes of it: described as a text.
SEEN = {
    **{f"{name} as it is": Case(name, same) for name in ("f32", "f64", "nan", "money", "text", "raw", "day", "pairs")},
    **{f"{name} as it is": Case(name, same, WHOLE) for name in ("i8", "i16", "i32", "i64", "big")},
    **{f"{name} as it is": Case(name, same, ARRAYS) for name in ("items", "nested")},
    **{f"{name} as it is": Case(name, same, UNITS) for name in ("ntz", "span")},
    "flag as it is": Case("flag", same, FLAGS),
    "at as it is": Case("at", same, MOMENTS),
    "ats as they are": Case("ats", same, INSIDE),
    # floats
    "round": Case("f64", lambda s: s.round(1)),
    "sqrt": Case("f64", np.sqrt),
    "abs": Case("f64", lambda s: (-s).abs()),
    "sum": Case("f64", lambda s: s.sum()),
    "mean": Case("f32", lambda s: s.mean()),
    "fillna": Case("f64", lambda s: s.fillna(-1.0)),
    "cumsum": Case("f64", lambda s: s.cumsum()),
    "clip": Case("f64", lambda s: s.clip(0.25, 0.5)),
    "rank": Case("f64", lambda s: s.rank()),
    "compare": Case("f64", lambda s: s > 0.25),
    "isna": Case("nan", lambda s: s.isna()),
    "NaN + 1": Case("nan", lambda s: s + 1),
    "where": Case("f64", lambda s: pd.Series(np.where(s > 0.25, 1, 0))),
    "to_numpy": Case("f64", lambda s: pd.Series(s.to_numpy() * 2)),
    "floats by whole numbers": Case("f64,i64", operator.mul, WHOLE),
    "shift": Case("f64", lambda s: s.shift(1)),
    "interpolate": Case("f64", lambda s: s.interpolate()),
    "quantile": Case("f64", lambda s: s.quantile(0.5)),
    "float to text": Case("f64", lambda s: s.map("{:.2f}".format, na_action="ignore")),
    # whole numbers
    "i64 + 1": Case("i64", lambda s: s + 1, WHOLE),
    "big + 1": Case("big", lambda s: s + 1, WHOLE),
    "i64 // 2": Case("i64", lambda s: s // 2, WHOLE),
    "i64 / 2": Case("i64", lambda s: s / 2, WHOLE),
    "0 / 0": Case("id,id", lambda a, b: (a - a) / (b - b)),
    "i64 sum": Case("i64", lambda s: int(s.sum())),
    "i64 max": Case("i64", lambda s: str(s.max()), WHOLE),
    "i64 isna": Case("i64", lambda s: s.isna()),
    "i64 dropna": Case("i64", lambda s: s.dropna().tolist(), WHOLE),
    "i64 fillna": Case("i64", lambda s: s.fillna(0).astype("int64")),
    "i64 filled by where": Case("i64", lambda s: s.where(s.notna(), 0).astype("int64")),
    "i64 in a list": Case("i64", lambda s: s.isin([100, 105]), WHOLE),
    "i64 compared": Case("i64", lambda s: (s > 101).fillna(False).astype(bool)),
    "i64 to float": Case("i64", lambda s: s.astype("float64")),
    "i64 to Int64": Case("i64", lambda s: s.astype("Int64")),
    "i64 as seconds": Case("i64", lambda s: pd.to_datetime(s, unit="s").dt.year.tolist()),
    "id as an index": Case("id", lambda s: pd.Series(np.arange(10))[s].tolist()),
    "id iterated": Case("id", lambda s: [type(one).__name__ for one in s]),
    "id as numpy": Case("id", lambda s: str(np.asarray(s).dtype)),
    # flags
    "not": Case("flag", lambda s: ~s, FLAGS),
    "flag isna": Case("flag", lambda s: s.isna()),
    "flags counted": Case("flag", lambda s: int(s.sum())),
    "flag to int": Case("flag", lambda s: s.fillna(False).astype("int64")),
    "flag filled": Case("flag", lambda s: s.fillna(True).astype(bool)),
    # texts, bytes, decimals
    "upper": Case("text", lambda s: s.str.upper()),
    "len": Case("text", lambda s: s.str.len()),
    "split": Case("text", lambda s: s.str.split("-", expand=True)[0] if s.notna().any() else s),
    "contains": Case("text", lambda s: s.str.contains("1", na=False)),
    "concatenated": Case("text", lambda s: "<" + s + ">"),
    "category": Case("text", lambda s: s.astype("category").cat.codes),
    "mapped": Case("text", lambda s: s.map({"a-1": 1, "a-2": 2})),
    "unique": Case("text", lambda s: s.nunique()),
    "bytes": Case("raw", lambda s: s.map(len, na_action="ignore")),
    "decimals added": Case("money", lambda s: s + decimal.Decimal("0.10") if s.notna().all() else s),
    "decimals as floats": Case("money", lambda s: s.astype("float64")),
    # moments and days
    "year": Case("at", lambda s: s.dt.year),
    "hour": Case("at", lambda s: s.dt.hour, MOMENTS),
    "zone": Case("at", lambda s: str(s.dt.tz), MOMENTS),
    "at isna": Case("at", lambda s: s.isna()),
    "at sorted": Case("at", lambda s: s.rank()),
    "at against a naive moment": Case("at", lambda s: s > pd.Timestamp("2024-01-01"), MOMENTS),
    "ntz hour": Case("ntz", lambda s: s.dt.hour),
    "ntz day": Case("ntz", lambda s: s.dt.day_name()),
    "ntz as text": Case("ntz", lambda s: s.dt.strftime("%Y-%m-%d %H:%M:%S.%f")),
    "ntz less": Case("ntz", lambda s: (s - pd.Timestamp("2024-01-01")).dt.total_seconds()),
    "span in seconds": Case("span", lambda s: s.dt.total_seconds()),
    "span doubled": Case("span", lambda s: (s * 2).dt.days),
    "days": Case("day", lambda s: pd.to_datetime(s).dt.day),
    "weekday": Case("day", lambda s: s.map(datetime.date.isoweekday, na_action="ignore")),
    # nested values
    "items summed": Case("items", lambda s: s.map(sum, na_action="ignore")),
    "items counted": Case("items", lambda s: s.map(len, na_action="ignore")),
    "items exploded": Case("items", lambda s: s.explode().tolist(), ARRAYS),
    "items doubled": Case("items", lambda s: s.map(lambda one: one * 2, na_action="ignore"), ARRAYS),
    "first of nested": Case("nested", lambda s: s.map(lambda one: one[0]["a"], na_action="ignore")),
    "value of a map": Case("pairs", lambda s: s.map(lambda one: one["k"], na_action="ignore")),
    # several columns
    "index": Case("text", lambda s: s.index.tolist()),
    "name": Case("text", lambda s: s.name, NAME),
    "frame of all": Case(
        "text,f64", lambda *s: pd.concat(s, axis=1, keys="ab").fillna("-").astype(str).agg("".join, axis=1)
    ),
    "moments less": Case("at,at", lambda a, b: (a - b).dt.total_seconds()),
}

# What a function gives for a type.
GIVEN = {
    **{f"{name} given back": Case(name, same, None, returns) for name, returns in (
        ("i8", "tinyint"), ("i32", "int"), ("i64", "bigint"), ("f32", "float"), ("f64", "double"), ("nan", "double"),
        ("money", "decimal(9,2)"), ("flag", "boolean"), ("text", "string"), ("raw", "binary"), ("day", "date"),
        ("at", "timestamp"), ("ntz", "timestamp_ntz"), ("span", "interval day to second"), ("items", "array<bigint>"),
        ("pairs", "map<string,bigint>"),
    )},
    "big given back": Case("big", same, WHOLE, "bigint"),
    "a larger type": Case("i32", same, None, "bigint"),
    "a float for a whole type": Case("f64", lambda s: s.round(0) * 4, None, "bigint"),
    "whole for a float": Case("i64", same, None, "double"),
    "Int64": Case("i64", lambda s: s.astype("Int64"), None, "bigint"),
    "Float64": Case("f64", lambda s: s.astype("Float64"), None, "double"),
    "boolean": Case("flag", lambda s: s.astype("boolean"), None, "boolean"),
    "string": Case("text", lambda s: s.astype("string"), None, "string"),
    "Arrow's own": Case("f64", lambda s: s.astype("double[pyarrow]"), None, "double"),
    "a category": Case("text", lambda s: s.astype("category"), None, "string"),
    "objects": Case("text", lambda s: s.astype(object).where(s.notna(), None), None, "string"),
    "nothing": Case("text", lambda s: pd.Series([None] * len(s)), None, "string"),
    "no number": Case("text", lambda s: pd.Series([np.nan] * len(s)), None, "bigint"),
    "midnights for a date": Case("day", pd.to_datetime, None, "date"),
    "lists": Case("text", lambda s: pd.Series([["x"] if i else None for i in range(len(s))]), None, "array<string>"),
    "numpy arrays": Case("f64", lambda s: s.map(lambda v: np.array([v, v])), NAN_INSIDE, "array<double>"),
    "0 / 0 given": Case("id,id", lambda a, b: (a - a) / (b - b), None, "double"),
    "names": Case("text,f64", lambda t, f: pd.DataFrame({"b": f, "a": t}), None, "a string, b double"),
    "by position": Case("text", lambda s: pd.DataFrame([["x", i] for i in range(len(s))]), None, "a string, b int"),
}  # fmt: skip

# Each of a column of its own: in one query Spark gives the same Series to all functions of a column, edited or not.
EDITED = {
    f"{name} edited": Case(name, edited, None, returns) for name, returns in (
        ("i64", "bigint"), ("f64", "double"), ("flag", "boolean"), ("text", "string"), ("ntz", "timestamp_ntz"),
    )
}  # fmt: skip


def described(result: Any) -> str:
    """The type of a result and its values, whatever stands for what is missing."""
    if not isinstance(result, (pd.Series, list)):
        return f"{type(result).__name__} {result}"
    kind = result.dtype if isinstance(result, pd.Series) else "list"
    values = result.tolist() if isinstance(result, pd.Series) else result
    return f"{kind} {[_plain(value) for value in values]}"


def _plain(value: Any) -> str:
    return "-" if np.ndim(value) == 0 and pd.isna(value) else f"{type(value).__name__} {value!r}"


def describing(work: Callable[..., Any]) -> Callable[..., Any]:
    def call(*columns: Any) -> Any:
        try:
            text = described(work(*columns))
        except Exception as error:
            text = type(error).__name__
        return pd.Series([text] * len(columns[0]))

    return call


def by_spark(df: Any, cases: dict[str, Case]) -> list[Any]:
    def column(case: Case) -> Any:
        def call(*columns: pd.Series) -> pd.Series:
            return case.work(*columns)

        if not case.returns.startswith("a "):
            return sf.pandas_udf(call, case.returns)(*case.columns.split(","))

        def frame(*columns: pd.Series) -> pd.DataFrame:
            return case.work(*columns)

        return sf.pandas_udf(frame, case.returns)(*case.columns.split(","))

    return df.select("id", *[column(case).alias(str(n)) for n, case in enumerate(cases.values())]).collect()


def by_asyncudf(df: Any, cases: dict[str, Case]) -> list[Any]:
    stream = AsyncStream(df)
    for number, case in enumerate(cases.values()):

        async def call(*columns: pd.Series, work: Any = case.work) -> pd.Series:
            await asyncio.sleep(0)
            return work(*columns)

        function = async_pandas_udf(call, case.returns, batch_size=BATCH)
        stream = stream.ordered_wait(function, *case.columns.split(","), as_=str(number))
    return stream.to_df().collect()


def differing(df: Any, cases: dict[str, Case]) -> dict[str, Any]:
    """The cases that differ, with both results of the first row that does."""
    spark_rows, own_rows = (sorted(run(df, cases), key=lambda row: row.id) for run in (by_spark, by_asyncudf))
    found = {}
    for number, name in enumerate(cases):
        pairs = [(one[str(number)], other[str(number)]) for one, other in zip(spark_rows, own_rows, strict=True)]
        if unequal := [pair for pair in pairs if repr(pair[0]) != repr(pair[1])]:
            found[name] = unequal[0]
    return found


def lines() -> set[str]:
    """The first cells of the table."""
    table = PAGE.read_text("utf-8").partition("## Coming from `pandas_udf`")[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (.*?) \|", table, flags=re.MULTILINE)
    return {cell for cell in cells if cell and not cell.startswith("---")} - {"What"}


class Form(NamedTuple):
    """A function of a form of its own, and the query that uses it; `made` is `pandas_udf` or `async_pandas_udf`."""

    query: Callable[[Any, Callable[..., Any]], Any]
    line: str | None = None


def of_all(*columns: pd.Series) -> pd.Series:
    return sum(columns)  # type: ignore[return-value]


def of_first_and_all(first: pd.Series, *others: pd.Series) -> pd.Series:
    return first - sum(others)


def of_named(**columns: pd.Series) -> pd.Series:
    return columns["a"] - columns["b"]


def of_two(a: pd.Series, b: pd.Series = None) -> pd.Series:  # type: ignore[assignment]
    return a if b is None else a - b


def of_keyword(a: pd.Series, *, b: pd.Series = None) -> pd.Series:  # type: ignore[assignment]
    return a if b is None else a - b


def of_struct(pair: pd.DataFrame) -> pd.Series:
    return pd.Series([f"{dict(pair.dtypes.astype(str))} {row}" for row in pair.fillna(-1).to_dict("records")])


def of_struct_as_series(pair: pd.Series) -> pd.Series:
    return pd.Series([type(pair).__name__] * len(pair))


def of_frame(number: pd.DataFrame) -> pd.Series:
    return pd.Series([type(number).__name__] * len(number))


def of_batches(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for batch in batches:
        yield batch + 1


def of_unknown(n):  # type: ignore[no-untyped-def]
    return n.astype(str) + "!"


def of_group(s: pd.Series) -> float:
    return float(s.sum())


def in_sql(function: Callable[..., Any], returns: str, arguments: str) -> Callable[[Any, Callable[..., Any]], Any]:
    def query(df: Any, made: Callable[..., Any]) -> Any:
        df.sparkSession.udf.register("side_by_side", made(function, returns))
        return df.selectExpr(f"side_by_side({arguments})")

    return query


def call(function: Callable[..., Any], returns: str, *columns: str, **named: str) -> Any:
    """The query of a column; its arguments are SQL."""
    return lambda df, made: df.select(
        made(function, returns)(*map(sf.expr, columns), **{name: sf.expr(one) for name, one in named.items()})
    )


def result(work: Callable[[Any], Any], returns: str) -> Callable[[Any, Callable[..., Any]], Any]:
    def gives(n: pd.Series) -> pd.Series:
        return work(n)

    return call(gives, returns, "id")


def frame(work: Callable[[Any], Any], returns: str) -> Callable[[Any, Callable[..., Any]], Any]:
    def gives(n: pd.Series) -> pd.DataFrame:
        return work(n)

    return call(gives, returns, "id")


ROWS_IN_A_CALL = "Rows in a call"
NAIVE = "`timestamp` as a result"
FIT = "Results that do not fit"
INDEX = "Index of a result"
MORE_COLUMNS = "A DataFrame without names, with more columns than fields"

FORMS = {
    "any columns": Form(call(of_all, "long", "id", "id", "id")),
    "one and any columns": Form(call(of_first_and_all, "long", "id", "id", "id")),
    "columns of any name": Form(call(of_named, "long", b="id", a="id * 3")),
    "columns by name": Form(call(of_two, "long", b="id", a="id * 3")),
    "a default": Form(call(of_two, "long", "id")),
    "a keyword": Form(call(of_keyword, "long", "id", b="id"), "Keyword-only parameters"),
    "in SQL": Form(in_sql(of_two, "long", "id * 3, id")),
    "in SQL by name": Form(in_sql(of_two, "long", "b => id, a => id * 3"), "Arguments by name in SQL"),
    "a struct": Form(call(of_struct, "string", "struct(id, id / 2 AS d)")),
    "a struct as a Series": Form(call(of_struct_as_series, "string", "struct(id)"), "A struct"),
    "a frame of one column": Form(call(of_frame, "string", "id"), "A column that is no struct, as `pd.DataFrame`"),
    "batches": Form(call(of_batches, "long", "id"), "`Iterator[pd.Series]`"),
    "without annotations": Form(call(of_unknown, "string", "id"), "No annotations"),
    "rows in a call": Form(result(lambda n: pd.Series([len(n)] * len(n)), "int"), ROWS_IN_A_CALL),
    "a group": Form(lambda df, made: df.groupBy().agg(made(of_group, "double")("id")), "Aggregates and windows"),
    "another order": Form(result(lambda n: n.sort_values(ascending=False), "long"), INDEX),
    "another index": Form(result(lambda n: n.set_axis(range(7, 7 + len(n))), "long"), INDEX),
    "moments without a zone": Form(result(lambda n: pd.to_datetime(n, unit="D"), "timestamp"), NAIVE),
    "moments with a zone": Form(result(lambda n: pd.to_datetime(n, unit="D", utc=True), "timestamp")),
    "texts for numbers": Form(result(lambda n: n.astype(str), "long"), FIT),
    "an hour for a day": Form(result(lambda n: pd.to_datetime(n, unit="h"), "date"), FIT),
    "numbers for flags": Form(result(lambda n: n % 2, "boolean"), FIT),
    "an array of numpy": Form(result(lambda n: n.to_numpy(), "long")),
    "columns 0, 1": Form(frame(lambda n: pd.DataFrame([[one, -one] for one in n]), "a int, b int")),
    "too many columns without names": Form(frame(lambda n: pd.DataFrame([[1, 2, 3]] * len(n)), "a int"), MORE_COLUMNS),
    "a column too many": Form(frame(lambda n: pd.DataFrame({"a": n, "c": n}), "a int")),
    "another order of names": Form(frame(lambda n: pd.DataFrame({"b": n, "a": -n}), "a int, b int")),
}  # fmt: skip


def made_async(function: Callable[..., Any], returns: str) -> Any:
    @functools.wraps(function)
    async def call(*columns: Any, **named: Any) -> Any:
        await asyncio.sleep(0)
        return function(*columns, **named)

    return async_pandas_udf(call, returns, extra_fields="drop")


def outcome(form: Form, df: Any, made: Callable[..., Any]) -> Any:
    """The rows, or why there are none."""
    try:
        return [tuple(row) for row in form.query(df, made).collect()]
    except Exception as error:
        return error


@pytest.fixture
def zone(conf):
    conf("spark.sql.session.timeZone", "Asia/Tokyo")


@pytest.mark.promise("vectorized functions")
def test_what_functions_see_and_give(spark, zone, conf):
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", str(BATCH))
    cases = {f"sees {name}": case._replace(work=describing(case.work)) for name, case in SEEN.items()}
    cases |= {f"gives {name}": case for name, case in GIVEN.items()}
    if HAS_SAIL:
        del cases["gives at given back"]  # Sail takes the moments of pandas_udf for those of the session's zone
    found = differing(spark.sql(ROWS), cases)
    assert {name: pair for name, pair in found.items() if cases[name].line is None} == {}


def test_functions_may_write_to_what_they_get(spark, zone, conf):
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", str(BATCH))
    assert differing(spark.sql(ROWS), EDITED) == {}


@pytest.mark.promise("vectorized functions")
def test_forms_of_functions(spark, zone):
    """What Spark's own function refuses, by its form or by its result, may work here."""
    df = spark.range(0, 3, 1, 1)
    for name, form in FORMS.items():
        if form.line is not None:
            continue
        by_pandas_udf = outcome(form, df, sf.pandas_udf)
        if not isinstance(by_pandas_udf, Exception):
            assert (name, outcome(form, df, made_async)) == (name, by_pandas_udf)


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form.line is not None])
def test_a_form_that_differs(spark, zone, name):
    """Else its line of the table says what is not so."""
    df, form = spark.range(0, 130, 1, 1), FORMS[name]
    by_pandas_udf, by_async = outcome(form, df, sf.pandas_udf), outcome(form, df, made_async)
    if isinstance(by_pandas_udf, Exception):
        pytest.skip("this version of Spark does not take it either")
    assert by_pandas_udf != by_async


def test_each_difference_is_a_line_of_the_table_and_each_line_a_difference():
    assert lines() == {case.line for case in (*SEEN.values(), *GIVEN.values(), *FORMS.values())} - {None}
