"""Keys of results: the same everywhere and for ever, equal for equal arguments, and for those alone."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import os
import random
import subprocess
import sys
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql import types as spark_types
from pyspark.testing.objects import ExamplePoint

from asyncudf import AsyncUDFError
from asyncudf._arrow.columns import has_plain_values
from asyncudf._arrow.layout import ColumnGroup, RowLayout
from asyncudf._arrow.objects import ObjectType
from asyncudf._arrow.rows import rows_of
from asyncudf._spark.objects import CoarseForm
from asyncudf._stores.keys import ResultKeys, canonical
from tests.arrow.test_arguments import FLAT, TYPES
from tests.kit.ids import shown
from tests.kit.thorough import examples

UTC = dt.UTC
OSLO = dt.timezone(dt.timedelta(hours=2))
Decimal = decimal.Decimal

# Never change a line of this: results that somebody has paid for are found by them.
GOLDEN: list[tuple[tuple[Any, ...], str]] = [
    ((), "1897d187caa7d56627aacb1a60412247"),
    ((None,), "f89aba59d2be8f3a5e654b4456acfff6"),
    ((True,), "19520053c918e4ba54fb31dd57fe2c77"),
    ((False,), "763455d115eb4daed3a868ea8de413b0"),
    ((0,), "cd437e292081b15bbdedc8c9768da29f"),
    ((1,), "fec44b9d7720a3cabff458a5e2ac9d68"),
    ((-1,), "d7a9960c1aa39a43f6c079371931bb6a"),
    ((-33,), "d322ec44bff985d6b78c8d192750edd1"),
    ((127, 128, 255, 256, 65535, 65536), "b4f0b6c80ecaa279675a99d94438bc5d"),
    ((-128, -129, -32768, -32769, -(2**31), -(2**31) - 1), "285a4ffd451744aca4fb3806b6b5e722"),
    ((2**32 - 1, 2**32, 2**63 - 1, -(2**63)), "ad280b85ac388116ac3af0a20a6f3bee"),
    ((2**64 - 1, 2**64, -(2**63) - 1, -(2**200)), "bd226e6550b9ca0ffe982edd5920cda6"),
    ((1.0,), "5c7de2185dda1edf25347bdd366115f9"),
    ((0.0, -0.0), "a1540eef69232d6553d79306e4617f9a"),
    ((0.1, 1e308, 5e-324, float("inf"), float("-inf")), "27510155d3e94fea860cacd0715cc08f"),
    ((float("nan"),), "42f7cc1e1cafc6e2defe3065ebac6c0d"),
    (("",), "f77e8dc667e3598483dfd4a16e667e4a"),
    (("1",), "bbd02dc6287bb0c81ee52bbea34bab86"),
    (("Oslo",), "ad4285b9fca9544f5e17726e50f3696c"),
    (("Zürich", "東京", "\U0001f600", "a\0b"), "3a6a1f060f5720d16b0b1a985e96d37c"),
    (("\ud800",), "2551e4fae2980be1ce4c074a2ade375b"),
    (("x" * 31, "x" * 32, "x" * 255, "x" * 256, "x" * 65536), "ef947ae570e9580b3a12bac1faf34b34"),
    ((b"",), "503490d681ebfbd414dcebe45f7d1a0e"),
    ((b"Oslo", bytes(256), bytes(65536)), "c7074df152f5a1e54ac81c1b36b99fbb"),
    ((Decimal("1.00"), Decimal("1.0"), Decimal("-0E+3"), Decimal("1E-10")), "7d768f967031874d7b67deaceba4b5b9"),
    ((dt.date(1, 1, 1), dt.date(9999, 12, 31)), "e966168139eb94540cea692e87e03b8f"),
    ((dt.time(1, 2, 3, 4),), "dfd2fda0c1ca1e94e15053c3d409373f"),
    ((dt.datetime(2026, 3, 1, 12, 30, 0, 5),), "975b55aa6e55f4dc881c9485a9c02567"),
    ((dt.datetime(2026, 3, 1, 12, 30, 0, 5, UTC),), "134c63d50da3681328e2b00e865a55c3"),
    (
        (dt.datetime(1, 1, 1, tzinfo=UTC), dt.datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)),
        "12c6e1597492cf98e58929649930e990",
    ),
    ((dt.timedelta(days=-1, microseconds=7),), "c6e8aadb2a676a774359a08dcbc753e7"),
    (([],), "e86d8cfa7ab2eb9f358812a8b694a280"),
    (([1, None, "a"], [[]], [[1], [2, 3]]), "6f1fc3f735b7cb7cd0ef0aee0c5d7372"),
    (([*range(15)], [*range(16)], [*range(70000)]), "4d42c651f12c490a2d9527d668a1900a"),
    (({},), "c4295fbb8372da2392a3bed1b99bd773"),
    (({"city": "Oslo", "zip": 150},), "91a23f809b43f2e564a5da11fd3cd128"),
    (({1: "a", 1.5: "b", "1": "c", None: "d", b"1": "e"},), "1f0bbf18909a75eae8ad18e15a618941"),
    (({"inner": {"b": [1, {"c": None}], "a": {}}},), "b2a2b27ad91b32cc57be7ee7d7e2c0f7"),
    (({dt.date(2026, 1, 1): Decimal("1.5"), ("a", 1): dt.timedelta(0)},), "99b633117d3eb88594abeed184e7fb9d"),
    (
        ("Oslo", 3, 59.9, None, True, [1], {"a": 1}, Decimal("2.50"), dt.date(2026, 1, 1)),
        "446f4717a04ba03212f19688ee981a16",
    ),
]


OBJECTS = [
    (ExamplePoint(1.0, 2.0), "ad768864f6b33013b158b3061dde1cfb"),
    *(
        [(spark_types.VariantVal(b"\x0c\x01", b"\x01\x00\x00"), "88e06457ac7143da88bcad6a2550db66")]
        if hasattr(spark_types, "VariantVal")
        else []
    ),
    *(
        [(spark_types.Geometry(b"x", 1), "50ab11f71cbaf2f190529a392bf3c754")]
        if hasattr(spark_types, "Geometry")
        else []
    ),
]


def keys(**changed: Any) -> ResultKeys:
    return ResultKeys(**{"function": "trips.weather", "version": "1", "declared": "temp double", **changed})


@pytest.mark.parametrize(("arguments", "golden"), GOLDEN, ids=[str(number) for number in range(len(GOLDEN))])
def test_keys_of_all_types_are_what_they_always_were(arguments: tuple[Any, ...], golden: str) -> None:
    """The key of each kind of value, in hexadecimal, as it was written down once."""
    assert keys().of(arguments).hex() == golden
    assert keys().of(list(arguments)).hex() == golden


@pytest.mark.parametrize(("value", "golden"), OBJECTS, ids=shown)
def test_keys_of_sparks_objects_are_made_of_what_spark_stores(value: Any, golden: str) -> None:
    assert keys().of((value,)).hex() == golden
    stored = value.__UDT__.serialize(value) if hasattr(value, "__UDT__") else list(vars(value).values())
    assert keys().of((stored,)).hex() != golden


PROGRAM = """
import sys
sys.path.insert(0, {root!r})
from tests.stores.test_keys import GOLDEN, ResultKeys
print("\\n".join(ResultKeys("trips.weather", "1", "temp double").of(one).hex() for one, _ in GOLDEN))
"""


def test_keys_are_the_same_in_every_process() -> None:
    """Neither Python's hash seed nor the process changes a key."""
    program = PROGRAM.format(root=str(Path(__file__).parents[2]))
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    told = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.split() == [golden for _, golden in GOLDEN]


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | st.binary()
    | st.decimals()
    | st.dates()
    | st.times()
    | st.datetimes()
    | st.datetimes(timezones=st.just(UTC))
    | st.timedeltas()
)
HASHABLE = st.none() | st.booleans() | st.integers() | st.text() | st.dates() | st.binary()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(HASHABLE, inner), max_leaves=8)


def plain(value: Any) -> Any:
    """What tells two values apart, in a form that Python compares."""
    if isinstance(value, float) and value != value:
        return "nan"
    if isinstance(value, dict):
        return ("map", frozenset((plain(key), plain(item)) for key, item in value.items()))
    if isinstance(value, (list, tuple)):
        return ("list", tuple(map(plain, value)))
    return (type(value).__name__, repr(value) if isinstance(value, (float, Decimal)) else value)


@given(VALUES, VALUES)
@example(1, True)
@example(1, 1.0)
@example("1", 1)
@example("1", b"1")
@example(0.0, -0.0)
@example(None, "")
@example(Decimal("1"), "1")
@example(Decimal("1.0"), Decimal("1.00"))
@example(dt.date(2026, 1, 1), dt.datetime(2026, 1, 1))
@example(dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 1, tzinfo=UTC))
@example([], {})
@example([["a"], "b"], ["a", ["b"]])
@example({"a": None}, {})
def test_different_values_have_different_bytes(one: Any, other: Any) -> None:
    """Two values have the same bytes if they are the same, and else not."""
    assert (canonical(one) == canonical(other)) == (plain(one) == plain(other))


@given(st.dictionaries(HASHABLE, VALUES), st.randoms())
def test_the_order_of_a_map_does_not_count(value: dict[Any, Any], rng: random.Random) -> None:
    """The entries of a map in any order are the same map, also inside of others."""
    pairs = list(value.items())
    rng.shuffle(pairs)
    assert canonical([{"in": dict(pairs)}]) == canonical([{"in": value}])


@given(st.lists(st.tuples(SCALARS, VALUES)) | st.lists(st.lists(st.text() | st.integers() | st.floats(), max_size=3)))
@example([(1, "a"), (2.5, None)])
@example([("\ud800",), ("a",)])
@example([(2**64,), (1,)])
@example([(float("nan"),), (1e308,)])
def test_many_keys_are_those_of_each_row(rows: list[Any]) -> None:
    """A batch has the keys that its rows have, in their order; also with a key function."""
    assert keys().of_many(rows) == [keys().of(row) for row in rows]
    first = keys(key=lambda *values: values[:1])
    assert first.of_many(rows) == [first.of(row) for row in rows]


PLAIN = st.sampled_from([one for one in FLAT if has_plain_values(one[0])])
LISTS = PLAIN.map(lambda one: (pa.list_(one[0]), st.lists(st.none() | one[1], max_size=5)))


OBJECTS_OF_NUMBERS = ObjectType(pa.int64(), CoarseForm("seconds", "whole ones", dt.timedelta(seconds=1)))


@settings(max_examples=examples(6))
@given(st.data())
def test_the_keys_of_columns_are_those_of_each_row(data: st.DataObject) -> None:
    """Columns whose types say that their values are plain are not looked at value by value: the keys are the same."""
    size = data.draw(st.integers(1, 40))
    types = data.draw(st.lists(PLAIN | LISTS, min_size=1, max_size=4) | st.lists(TYPES, min_size=1, max_size=3))
    columns = [
        pa.array(data.draw(st.lists(st.none() | values, min_size=size, max_size=size)), arrow_type)
        for arrow_type, values in types
    ]
    found, errors = rows_of("f", columns, None)
    assume(not errors)
    rows = list(found)
    layout = RowLayout(tuple(f"c{i}" for i in range(len(columns))), tuple(column.type for column in columns))
    made = keys().of_many(rows, are_plain=layout.is_plain(range(len(columns))))
    assert made == [keys().of(row) for row in rows]


def test_the_keys_of_columns_of_odd_numbers_are_those_of_each_row() -> None:
    """Each nan in Arrow may have a sign and bits of its own, and a batch with one has the keys that its rows have."""
    nans = np.array([0x7FF8000000000001, 0xFFF8000000000000, 0x7FF0000000000001, 0], np.uint64).view(np.float64)
    columns = [pa.array(nans), pa.array([-0.0, 0.0, 2.0**63, None]), pa.array([2**63 - 1, -(2**63), 0, None])]
    assert [column.type for column in columns] == [pa.float64(), pa.float64(), pa.int64()]
    rows = list(rows_of("f", columns, None)[0])
    assert keys().of_many(rows, are_plain=True) == [keys().of(row) for row in rows]
    assert len({keys().of(row[:1]) for row in rows}) == 2


@pytest.mark.parametrize(
    ("names", "types", "expected"),
    [
        (("a", "b"), (pa.int64(), pa.list_(pa.large_list(pa.string()))), True),
        (("a", "b"), (pa.int64(), pa.decimal128(5, 2)), False),
        (("a",), (pa.struct([("x", pa.int64())]),), False),
        (("a",), (pa.map_(pa.string(), pa.int64()),), False),
        (("a",), (pa.list_(pa.date32()),), False),
        (("a",), (pa.timestamp("us"),), False),
        (("a",), (OBJECTS_OF_NUMBERS,), False),
        (("a",), (pa.list_(OBJECTS_OF_NUMBERS),), False),
        (("a", "b"), (None, None), False),  # as in the test kit, which has no types
        (None, (), False),
    ],
    ids=str,
)
def test_only_columns_of_the_source_with_plain_types_are_plain(
    names: tuple[str, ...] | None, types: tuple[Any, ...], expected: bool
) -> None:
    layout = RowLayout(names, types)
    assert layout.is_plain(range(len(types))) == expected
    added = layout.with_columns(ColumnGroup.of("f", pa.int64(), "added"))
    assert not added.is_plain([len(types)])  # what a function has returned may be of a subclass


@given(st.floats(allow_nan=True))
def test_each_nan_is_the_same(value: float) -> None:
    """A nan has one key, whatever its sign and payload."""
    odd = np.frombuffer(b"\x01\0\0\0\0\0\xf8\xff", dtype="<f8")[0].item()
    assert keys().of((odd,)) == keys().of((float("nan"),))
    assert (keys().of((value,)) == keys().of((odd,))) == (value != value)


class Kind(enum.IntEnum):
    """A number with a name."""

    FIRST = 1


@pytest.mark.parametrize(
    ("value", "same"),
    [
        (Kind.FIRST, 1),
        (np.int64(5), 5),
        (np.float64(0.5), 0.5),
        (np.str_("a"), "a"),
        (bytearray(b"a"), b"a"),
        (memoryview(b"a"), b"a"),
        ((1, 2), [1, 2]),
        (Row(1, 2), [1, 2]),
        (Row(a=1, b=[Row(c=2)]), Row(a=1, b=[Row(c=2)])),
        (OrderedDict(b=1, a=2), {"a": 2, "b": 1}),
        (dt.datetime(2026, 1, 1, 14, tzinfo=OSLO), dt.datetime(2026, 1, 1, 12, tzinfo=UTC)),
        (dt.datetime(2026, 1, 1, 12, fold=1), dt.datetime(2026, 1, 1, 12)),
    ],
    ids=shown,
)
def test_what_a_function_cannot_tell_apart_is_the_same(value: Any, same: Any) -> None:
    """Values of subclasses count as what they are made of, a moment as the same in each zone."""
    assert keys().of((value,)) == keys().of((same,))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Row(a=1, b=2), Row(x=1, y=2)),
        (Row(a=1, b=2), [1, 2]),
        (Row(a=1, b=2), {"a": 1, "b": 2}),
        (namedtuple("Pair", "a b")(1, 2), namedtuple("Pair", "x y")(1, 2)),  # noqa: PYI024
        (dt.time(1, tzinfo=OSLO), dt.time(1, tzinfo=UTC)),
        (dt.time(1, tzinfo=UTC), dt.time(1)),
    ],
    ids=repr,
)
def test_what_a_function_can_tell_apart_differs(one: Any, other: Any) -> None:
    """Two rows of other columns were one argument, and one was given the other's result."""
    assert keys().of((one,)) != keys().of((other,))


def same(*_: Any) -> Any:
    """What a subclass may give for each of its values."""
    return iter(())


@pytest.mark.parametrize(
    ("base", "values"),
    [
        (Decimal, ("1", "2")),
        (float, (1.5, 2.5)),
        (int, (1, 2)),
        (str, ("a", "b")),
        (bytes, (b"a", b"b")),
        (list, ([1], [2])),
        (tuple, ((1,), (2,))),
        (dict, ({"a": 1}, {"a": 2})),
    ],
    ids=str,
)
def test_a_subclass_counts_as_what_it_is(base: type, values: tuple[Any, Any]) -> None:
    """Two decimals of a class with a `__str__` of its own had one key; so for other ways to look into a value."""
    own: dict[str, Any] = dict.fromkeys(("items", "keys", "values", "encode"), same)
    own |= {"__iter__": same, "__len__": lambda _: 0, "__str__": lambda _: "x", "__bytes__": lambda _: b"x"}
    own |= {"__eq__": lambda *_: False, "__hash__": lambda _: 0, "__getitem__": same, "__index__": lambda _: 7}
    own |= dict.fromkeys(("__lt__", "__le__", "__gt__", "__ge__", "__ne__"), lambda *_: True)
    own |= {"__float__": lambda _: 0.5, "to_bytes": same}
    odd = type("Odd", (base,), own)
    assert [keys().of((odd(value),)) for value in values] == [keys().of((base(value),)) for value in values]


ODDS = [
    *(object(), {1, 2}, 1j, range(3), pd.Timestamp(1, unit="ns"), pd.NaT, pd.NA, pd.Series([1]), np.True_),
    *(np.array([5]), np.array(5), np.array([1, 2]), np.float32(0.5), np.timedelta64(5, "s")),
]


@pytest.mark.parametrize("value", ODDS, ids=shown)
def test_a_value_of_an_unknown_class_is_refused(value: Any) -> None:
    """No key is made of something that might be equal to something else; the message names the class."""
    with pytest.raises(AsyncUDFError, match=f"type {type(value).__name__}; let the store's key= give"):
        keys().of((value,))


@pytest.mark.parametrize("zone", ["Europe/Oslo", "Asia/Tokyo"])
def test_a_time_of_a_zone_without_a_day_is_refused(zone: str) -> None:
    """How far such a zone is from UTC depends on the day: one o'clock in Oslo and in Tokyo were one argument."""
    with pytest.raises(AsyncUDFError, match=r"a time zone that does not tell .* let the store's key= give"):
        keys().of((dt.time(1, tzinfo=ZoneInfo(zone)),))


def test_a_value_that_is_nested_too_deeply_is_refused() -> None:
    """Also one that is in itself."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(AsyncUDFError, match="nested so deeply; let the store's key= give"):
        keys().of((endless,))


def test_another_function_version_or_type_has_other_keys() -> None:
    assert len({one.of(()) for one in (keys(), keys(function="f"), keys(version="2"), keys(declared="int"))}) == 4
    assert keys(function="a", version="bc").of(()) != keys(function="ab", version="c").of(())


def test_a_row_may_be_a_mapping() -> None:
    """A row of named columns: in any order, with their names, alone or among others; `key=` gets it as one argument."""
    rows = [{"a": 1, "b": "x"}, {"b": "x", "a": 1}, {"a": 1, "c": "x"}, {"b": 1, "a": "x"}]
    first, *others = keys().of_many(rows)
    assert [first, *others] == [keys().of(row) for row in rows]
    assert [one == first for one in others] == [True, False, False]
    assert keys(key=lambda row: row["a"]).of(rows[0]) == keys(key=lambda a: a).of((1,))


def test_the_decimal_context_does_not_count() -> None:
    """A program that wants another form of decimals has the same keys."""
    value = Decimal("1E+10")
    with decimal.localcontext() as context:
        context.capitals = 0
        assert canonical(value) == canonical(Decimal("1E+10"))
        lower = canonical(value)
    assert canonical(value) == lower
