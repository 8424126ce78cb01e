"""What a vectorized function returns: what pandas has changed is taken as it was, and each row gets its own value."""

from __future__ import annotations

import datetime
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from asyncudf import AsyncStream, ResultError, RetryStrategy
from asyncudf.testing import run_rows, run_stream
from tests.kit.bridges import column

NAN = math.nan
DAYS = ["2020-01-02", None, "2020-01-03"]
DATES = [datetime.date(2020, 1, 2), None, datetime.date(2020, 1, 3)]
MIDNIGHTS = pd.to_datetime(pd.Series(DAYS))
MAPS = [{"a": 2**62}, None, {}]
Vector = Callable[[pd.Series], Any]


def of_arrow(values: list[Any], arrow_type: pa.DataType) -> Any:
    return pd.Series(pd.arrays.ArrowExtensionArray(pa.array(values, arrow_type)))  # type: ignore[attr-defined]


def results(vector: Any, returns: str, **options: Any) -> list[Any]:
    async def call(x: pd.Series) -> pd.Series:
        return vector

    return run_rows(call, range(3), returnType=returns, batch_size=3, **options)


TAKEN = {
    "whole floats": (pd.Series([10, None, 30]), "bigint", [10, None, 30]),
    "whole floats of a batch without a missing value": (pd.Series([10.0, 20.0, 30.0]), "int", [10, 20, 30]),
    "the largest exact one": (pd.Series([2.0**53, NAN, -(2.0**53)]), "bigint", [2**53, None, -(2**53)]),
    "whole floats among objects": (pd.Series([10.0, None, np.float32(3)], dtype=object), "bigint", [10, None, 3]),
    "whole floats of 32 bits": (pd.Series([2.0**24, None, 1], dtype="float32"), "bigint", [2**24, None, 1]),
    "whole floats of pandas' own type": (pd.Series([10, None, 30], dtype="Float64"), "bigint", [10, None, 30]),
    "whole floats in Arrow": (pa.array([10.0, None, 30.0]), "bigint", [10, None, 30]),
    "whole floats for decimals": (pd.Series([10, None, 30]), "decimal(9,2)", [10, None, 30]),
    "0/0 beside a missing number": (pd.Series([0, None, 1], dtype="Float64") / [0, 1, 1], "int", [None, None, 1]),
    "0/0 of a nullable type": (pd.Series([0, None, 1], dtype="Int64") / [0, 1, 1], "double", [None, None, 1.0]),
    "an array of numpy": (np.array([10.0, NAN, 30.0]), "bigint", [10, None, 30]),
    "columns without names": (
        pd.DataFrame([[1, "a"], [None, "b"], [3, None]]),
        "n int, t string",
        [{"n": 1, "t": "a"}, {"n": None, "t": "b"}, {"n": 3, "t": None}],
    ),
    "columns with other numbers": (
        pd.DataFrame({7: [1, 2, 3], 3: ["a", "b", "c"]}),
        "n int, t string",
        [{"n": n, "t": t} for n, t in zip([1, 2, 3], "abc", strict=True)],
    ),
    "a number twice": (
        pd.concat([pd.Series([1, 2, 3])] * 2, axis=1, keys=[0, 0]),
        "a int, b int",
        [{"a": n, "b": n} for n in (1, 2, 3)],
    ),
    "nullable integers": (pd.Series([2**62, None, 1], dtype="Int64"), "bigint", [2**62, None, 1]),
    "integers of Arrow": (pd.Series([2**62, None, 1], dtype="int64[pyarrow]"), "bigint", [2**62, None, 1]),
    "a category": (pd.Series(pd.Categorical([1, None, 3])), "bigint", [1, None, 3]),
    "a category of texts": (pd.Series(pd.Categorical(["a", None, "a"])), "string", ["a", None, "a"]),
    "texts beside NaN": (pd.Series(["a", NAN, pd.NA], dtype=object), "string", ["a", None, None]),
    "flags beside NaN": (pd.Series([True, NAN, False], dtype=object), "boolean", [True, None, False]),
    "nullable flags": (pd.Series([True, None, False], dtype="boolean"), "boolean", [True, None, False]),
    "midnights": (MIDNIGHTS, "date", DATES),
    "midnights among objects": (MIDNIGHTS.astype(object), "date", DATES),
    "midnights in Arrow": (pa.array(MIDNIGHTS), "date", DATES),
    "maps of Arrow": (of_arrow(MAPS, pa.map_(pa.string(), pa.int64())), "map<string,bigint>", MAPS),
    "maps in arrays of Arrow": (
        of_arrow([[one, None] for one in MAPS], pa.list_(pa.map_(pa.string(), pa.int64()))),
        "array<map<string,bigint>>",
        [[one, None] for one in MAPS],
    ),
    "structs in arrays of Arrow": (
        of_arrow([[{"n": 1}, None], None, []], pa.list_(pa.struct([("n", pa.int64())]))),
        "array<struct<n:bigint>>",
        [[{"n": 1}, None], None, []],
    ),
    "days in arrays of Arrow": (of_arrow([DATES, None, []], pa.list_(pa.date32())), "array<date>", [DATES, None, []]),
    "a frame of maps of Arrow": (
        pd.DataFrame({"m": of_arrow(MAPS, pa.map_(pa.string(), pa.int64()))}),
        "m map<string,bigint>",
        [{"m": one} for one in MAPS],
    ),
    "days of Arrow": (pd.Series(DATES, dtype="date32[pyarrow]"), "date", DATES),
    "moments": (MIDNIGHTS, "timestamp_ntz", [*map(pd.Timestamp, DAYS[:1]), None, pd.Timestamp("2020-01-03")]),
    "no moment at all": (pd.Series([pd.NaT] * 3), "timestamp", [None] * 3),
    "a frame": (
        pd.DataFrame({"n": [1, None, 3], "day": MIDNIGHTS}),
        "n bigint, day date",
        [{"n": n, "day": day} for n, day in zip([1, None, 3], DATES, strict=True)],
    ),
}


@pytest.mark.parametrize("case", TAKEN)
def test_what_pandas_has_changed_is_taken_as_it_was(case: str) -> None:
    vector, returns, expected = TAKEN[case]
    found = results(vector, returns)
    assert found == expected
    assert [type(value) for value in found] == [type(value) for value in expected]


REFUSED = {
    "a fraction": (
        pd.Series([10.5, None, 30]),
        "bigint",
        r"10\.5 .*declared int64, in a Series of float64; round it, and return \.astype\('Int64'\)",
    ),
    "beyond 2^53": (
        pd.Series([2.0**53 + 2, None, 1]),
        "bigint",
        r"of float64; its whole numbers are exact up to 9007199254740992 only: make it \.astype\('Int64'\)",
    ),
    "beyond 2^24": (
        pd.Series([2.0**24 + 2, None, 1], dtype="float32"),
        "int",
        r"of float32; its whole numbers are exact up to 16777216 only",
    ),
    "infinity": (pd.Series([math.inf, None, 1]), "bigint", r"inf .*declared int64, in a Series of float64"),
    "a fraction for a decimal": (
        pd.Series([1.5, None, 1]),
        "decimal(9,2)",
        r"1\.5 .*declared decimal128.*, in a Series of float64; return decimal\.Decimal values",
    ),
    "a float for a decimal": (
        pd.Series([1e300, None, 1]),
        "decimal(9,2)",
        r"decimal128.*; its whole numbers are exact .*: return decimal\.Decimal values",
    ),
    "floats for flags": (
        pd.Series([1.0, None, 0.0]),
        "boolean",
        r"declared bool, in a Series of float64; return \.astype\('boolean'\)",
    ),
    "an hour past midnight": (
        MIDNIGHTS + pd.Timedelta(1, "h"),
        "date",
        r"declared date32.*, in a Series of datetime64\[\w+\]; return \.dt\.date",
    ),
    "a nanosecond past midnight": (MIDNIGHTS + pd.Timedelta(1, "ns"), "date", r"declared date32.*; return \.dt\.date"),
    "midnights of a zone": (
        MIDNIGHTS.dt.tz_localize("UTC"),
        "date",
        r"in a Series of datetime64\[\w+, UTC\]; return \.dt\.date",
    ),
    "moments without a zone": (
        MIDNIGHTS,
        "timestamp",
        r"in a Series of datetime64\[\w+\]; return \.dt\.tz_localize\('UTC'\)",
    ),
    "moments with a zone": (
        MIDNIGHTS.dt.tz_localize("UTC"),
        "timestamp_ntz",
        r"in a Series of datetime64\[\w+, UTC\]; return \.dt\.tz_localize\(None\)",
    ),
    "a fraction in Arrow": (
        pa.array([10.5, None, 30.0]),
        "bigint",
        r"declared int64, in an array of double; give an array of int64",
    ),
    "NaN in Arrow": (pa.array([NAN, None, 30.0]), "bigint", r"nan .*declared int64, in an array of double"),
    "a fraction in a frame": (
        pd.DataFrame({"n": [1.5, None, 3]}),
        "n bigint",
        r"1\.5 \(float\) in field 'n': declared int64, in a Series of float64",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_not_be_exact_is_refused_with_the_dtype_and_the_fix(case: str) -> None:
    vector, returns, said = REFUSED[case]
    with pytest.raises(ResultError, match=f"call returned .*{said}"):
        results(vector, returns)


@pytest.mark.parametrize(
    "values",
    [pd.Index(["a", "b"]), pd.array(["a", None], dtype="string"), pd.Categorical(["a", "b"]), pd.Series(["a"]).values],
    ids=["index", "array", "category", "values"],
)
def test_arrays_and_indexes_of_pandas_are_vectors(values: Any) -> None:
    """`return x.str.upper().values` gave an array of numpy with pandas 2, and one of pandas with pandas 3: refused."""

    async def given(x: pd.Series) -> Any:
        return values

    expected = [None if pd.isna(one) else one for one in values]
    assert run_rows(given, range(len(values)), returnType="string", batch_size=2) == expected


def test_an_index_of_several_levels_is_no_vector() -> None:
    async def given(x: pd.Series) -> Any:
        return pd.MultiIndex.from_arrays([x, x])

    with pytest.raises(ResultError, match=r"returned MultiIndex; return a pd\.Series"):
        run_rows(given, range(2), returnType="string", batch_size=2)


def test_rows_of_an_array_of_numpy_are_arrays() -> None:
    async def call(x: pd.Series) -> np.ndarray[Any, Any]:
        return np.stack([x, x + 1], axis=1)

    rows = [{"x": 1}, {"x": 5}]
    found = run_stream(lambda stream: stream.ordered_wait(call, returnType="array<bigint>"), rows, "x bigint")
    assert [row["call"] for row in found] == [[1, 2], [5, 6]]


@pytest.mark.parametrize(
    ("frame", "said"),
    [
        (
            pd.DataFrame([[1, 2, 3]] * 3),
            r"have no names and are taken by position, 3 of them for the 2 fields a, b; give .*, or names: \.set_axis",
        ),
        (pd.DataFrame([[1]] * 3), "1 of them for the 2 fields a, b"),
        (pd.DataFrame({"a": [1] * 3, 1: [1] * 3}), "missing field 'b'"),
        (np.array(5), "call is vectorized and returned ndarray"),
    ],
    ids=["too many", "too few", "a name among them", "no column at all"],
)
def test_a_frame_by_position_has_a_column_for_each_field(frame: Any, said: str) -> None:
    with pytest.raises(ResultError, match=said):
        results(frame, "a int, b int")


def test_a_float_that_is_not_whole_fails_its_row_alone() -> None:
    found = results(pd.Series([1.5, None, 3]), "bigint", on_error="capture")
    assert [row["value"] for row in found] == [None, None, 3]
    assert [row["error"] is None for row in found] == [False, True, True]


def test_a_value_that_does_not_fit_is_not_shown_with_redact() -> None:
    with pytest.raises(ResultError, match="call returned a float: declared int64, in a Series of float64") as failed:
        results(pd.Series([1.5, None, 3]), "bigint", redact=True)
    assert "1.5" not in str(failed.value)


@pytest.mark.parametrize(
    ("vector", "expected"),
    [
        (pd.Series([NAN, None, 1.0]), [None, None, 1.0]),
        (pd.Series([NAN, None, 1.0], dtype=object), [None, None, 1.0]),
        (pa.array([NAN, None, 1.0]), ["nan", None, 1.0]),
    ],
    ids=["float64", "object", "array"],
)
def test_nan_is_null_in_a_series_and_stays_nan_in_an_array(vector: Any, expected: list[Any]) -> None:
    """As in pandas_udf: NaN is what pandas has for a missing value, and Arrow has both."""
    found = results(vector, "double")
    assert ["nan" if value is not None and math.isnan(value) else value for value in found] == expected


def prices(x: pd.Series) -> pd.Series:
    """Sorted as a service would do it."""
    largest_first = x.sort_values(ascending=False)
    return "price of " + largest_first.astype(str)


async def price(x: pd.Series) -> pd.Series:
    return prices(x)


async def price_and_size(x: pd.Series) -> pd.DataFrame:
    return pd.DataFrame({"price": prices(x), "size": x.sort_values(key=lambda s: -s)})


NUMBERS = [3, 1, 2, 5, 4, 6, 7]
PRICES = [f"price of {n}" for n in NUMBERS]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7])
def test_a_permuted_series_is_put_in_the_order_of_its_rows(batch_size: int) -> None:
    assert run_rows(price, NUMBERS, returnType="string", batch_size=batch_size) == PRICES


def test_a_permuted_frame_is_put_in_the_order_of_its_rows() -> None:
    found = run_rows(price_and_size, NUMBERS, returnType="price string, size int", batch_size=4)
    assert found == [{"price": f"price of {n}", "size": n} for n in NUMBERS]


def test_permuted_results_at_every_entry_point() -> None:
    rows = [{"x": x} for x in NUMBERS]

    def two(stream: AsyncStream) -> AsyncStream:
        priced = stream.ordered_wait(price, "x", returnType="string", batch_size=3)
        return priced.unordered_wait(price, "x", returnType="string", as_="again", batch_size=2)

    assert run_stream(two, rows, "x int") == [
        {"x": x, "price": price, "again": price} for x, price in zip(NUMBERS, PRICES, strict=True)
    ]
    written = column(price, [pa.array(NUMBERS)], "string", batch_size=3)
    assert [value for batch in written for value in batch.to_pylist()] == PRICES


def test_a_permuted_result_of_a_retried_call_is_put_in_order() -> None:
    seen: list[list[str]] = []

    def is_first(values: list[str]) -> bool:
        seen.append(values)
        return len(seen) == 1

    retry = RetryStrategy.fixed_delay(2, 1.0, retry_if_result=is_first)
    assert run_rows(price, NUMBERS[:3], returnType="string", retry=retry) == PRICES[:3]
    assert seen == [PRICES[:3]] * 2  # the list of the values of a call


IN_ORDER: dict[str, Vector] = {
    "the index of the argument": lambda x: x,
    "a new Series": lambda x: pd.Series(x.tolist()),
    "a reset index": lambda x: x.set_axis([7, 8, 9]).reset_index(drop=True),
    "nullable numbers": lambda x: x.set_axis(pd.array([0, 1, 2], dtype="Int64")),
    "small numbers": lambda x: x.set_axis(pd.Index([0, 1, 2], dtype="int8")),
}


@pytest.mark.parametrize("case", IN_ORDER)
def test_an_index_of_row_numbers_in_order_is_taken_as_it_is(case: str) -> None:
    async def call(x: pd.Series) -> pd.Series:
        return IN_ORDER[case](x)

    assert run_rows(call, NUMBERS[:3], batch_size=3) == NUMBERS[:3]


class TestAnIndexOfTheArguments:
    """What `reindex` and `loc` of a table of answers make."""

    @pytest.mark.parametrize(
        "keys",
        [
            ["b", "a", None, "b"],
            [7, 5, 9, 5],
            [7, None, 9, 5],
            [2.5, 1.5, 2.5, 0.5],
            [datetime.date(2026, 1, day) for day in (3, 1, 2, 3)],
            [datetime.datetime(2026, 1, day, tzinfo=datetime.UTC) for day in (3, 1, 2, 3)],
        ],
        ids=["texts", "numbers", "numbers and NULL", "floats", "days", "moments"],
    )
    @pytest.mark.parametrize("name", ["key", None])
    def test_is_taken_by_position(self, keys: list[Any], name: str | None) -> None:
        known = list(dict.fromkeys(key for key in keys if key is not None))
        table = pd.DataFrame({"place": range(len(known))}, index=pd.Index(known, name=name))

        async def place(key: pd.Series) -> pd.DataFrame:
            return table.reindex(key)

        found = run_rows(place, keys, returnType="place int", batch_size=4)
        assert found == [{"place": known.index(key) if key in known else None} for key in keys]

    def test_may_be_of_one_of_several_arguments_or_of_all(self) -> None:
        async def second(x: pd.Series, y: pd.Series) -> pd.Series:
            return pd.Series(["one", "two"], index=pd.Index(y))

        async def both(x: pd.Series, y: pd.Series) -> pd.Series:
            return pd.Series(["one", "two"], index=pd.MultiIndex.from_arrays([x, y]))

        for function in (second, both):
            assert run_rows(function, [(7, "b"), (5, "a")], returnType="string", batch_size=2) == ["one", "two"]

    def test_may_be_of_a_column_of_a_frame(self) -> None:
        async def call(rows: pd.DataFrame) -> pd.Series:
            return rows.set_index("key")["value"]

        rows = [{"key": "b", "value": 1}, {"key": "a", "value": 2}]
        assert run_rows(call, rows, returnType="int", batch_size=2) == [1, 2]

    def test_may_be_of_an_array(self) -> None:
        async def call(key: pa.Array) -> pd.Series:
            return pd.Series([1, 2], index=key.to_pandas())

        assert run_rows(call, ["b", "a"], returnType="int", batch_size=2) == [1, 2]

    def test_is_that_of_the_arguments_as_the_function_got_them(self) -> None:
        async def call(key: pd.Series) -> pd.Series:
            key[:] = sorted(key)
            return pd.Series([1, 2], index=pd.Index(key))

        with pytest.raises(ResultError, match=r"with the index \['a', 'b'\], which does not say"):
            run_rows(call, ["b", "a"], returnType="int", batch_size=2)

    @pytest.mark.parametrize(
        "vector",
        [pd.Series.sort_values, lambda key: pd.Series(["zero", "one"]).reindex(key)],
        ids=["sorted", "looked up"],
    )
    def test_is_refused_where_it_may_be_numbers_of_rows(self, vector: Vector) -> None:
        async def call(key: pd.Series) -> pd.Series:
            return vector(key).astype(str)

        said = r"with the index \[1, 0\], which may be the values of an argument as well as the numbers of rows"
        with pytest.raises(ResultError, match=said):
            run_rows(call, [1, 0], returnType="string", batch_size=2)


FOREIGN: dict[str, Vector] = {
    "other numbers": lambda x: x.set_axis([7, 8, 9]),
    "a number twice": lambda x: pd.concat([x[:2], x[:1]]),
    "texts": lambda x: x.set_axis(["a", "b", "c"]),
    "floats": lambda x: x.set_axis([0.0, 2.0, 1.0]),
    "a missing number": lambda x: x.set_axis(pd.array([0, None, 1], dtype="Int64")),
    "several levels": lambda x: x.set_axis(pd.MultiIndex.from_tuples([("a", 0), ("a", 1), ("b", 2)])),
    "the index of another table": lambda x: x.set_axis([0, 2, 1]).rename_axis("id"),
    "a frame of another table": lambda x: x.to_frame().set_index(x + 7),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_an_index_that_does_not_name_the_rows_is_refused(case: str) -> None:
    async def call(x: pd.Series) -> pd.Series:
        return FOREIGN[case](x)

    said = r"call returned a (Series|DataFrame) with the index \[.*\], which does not say .*\.reset_index\(drop=True\)"
    with pytest.raises(ResultError, match=said):
        run_rows(call, NUMBERS[:3], batch_size=3)


def test_flags_as_an_index_are_no_numbers() -> None:
    async def call(x: pd.Series) -> pd.Series:
        return x.set_axis([False, True])

    with pytest.raises(ResultError, match=r"with the index \[False, True\]"):
        run_rows(call, [1, 2], batch_size=2)


def test_a_foreign_index_is_not_shown_with_redact() -> None:
    async def call(x: pd.Series) -> pd.Series:
        return x.set_axis(["SECRET"])

    with pytest.raises(ResultError, match="call returned a Series with an index, which does not say") as failed:
        run_rows(call, [1], redact=True)
    assert "SECRET" not in str(failed.value)


def test_too_few_results_are_counted_before_their_index_is_read() -> None:
    async def call(x: pd.Series) -> pd.Series:
        return x[1:]

    with pytest.raises(ResultError, match="2 results for 3 rows"):
        run_rows(call, NUMBERS[:3], batch_size=3)


def test_a_frame_without_columns_lacks_its_fields() -> None:
    with pytest.raises(ResultError, match="missing field 'n'"):
        results(pd.DataFrame(index=range(3)), "n int")


@pytest.mark.parametrize("result", [pa.array([1, None]), [1, None]], ids=["an array", "a list"])
def test_a_function_of_arrow_arrays_does_not_import_pandas(monkeypatch: pytest.MonkeyPatch, result: Any) -> None:
    async def call(x: pa.Array) -> pa.Array:
        return result

    monkeypatch.setitem(sys.modules, "pandas", None)  # an import fails
    assert run_rows(call, [1, 2], returnType="int") == [1, None]
