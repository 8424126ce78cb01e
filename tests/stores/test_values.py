"""Results as bytes: exactly what was put comes back, and of other bytes nothing does."""

from __future__ import annotations

import datetime as dt
import operator
import os
import pickle
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf import OptionError
from asyncudf._stores.values import ResultCodec, StoredFailure, sealed
from tests.kit.ids import shown

UTC = dt.UTC
KEY = bytes(range(16))

Place = TypedDict(
    "Place", {"name": str | None, "lat and lon": list[float | None] | None, "inner": dict[str, bytes | None]}
)
PLACE: Place = {"name": "Oslo", "lat and lon": [59.9, None, -0.0], "inner": {"flag": b"\0\xff", "none": None}}

# The declared type, as the codec is given it, and a strategy of results of that type.
WITHOUT_FOLD = operator.methodcaller("replace", fold=0)  # Arrow has none either
INTEGERS = st.integers(-(2**63), 2**63 - 1)
TYPES: list[tuple[Any, Any]] = [
    (bool, st.booleans()),
    (int, INTEGERS),
    (float, st.floats(allow_nan=False)),
    (str, st.text()),
    (bytes, st.binary()),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (dt.date, st.dates()),
    (dt.time, st.times().map(WITHOUT_FOLD)),
    (dt.datetime, st.datetimes().map(WITHOUT_FOLD)),
    (dt.datetime, st.datetimes(timezones=st.just(UTC)).map(WITHOUT_FOLD)),
    (dt.timedelta, st.timedeltas()),
    (list[int | None], st.lists(st.none() | INTEGERS)),
    (dict[str, float | None], st.dictionaries(st.text(), st.none() | st.floats(allow_nan=False))),
    (dict[int, str | None], st.dictionaries(INTEGERS, st.none() | st.text())),
    (dict[dt.date, Decimal | None], st.dictionaries(st.dates(), st.none() | st.decimals(allow_nan=False))),
    (list[tuple[list[int], str | None]], st.lists(st.tuples(st.lists(INTEGERS), st.none() | st.text()))),
    (
        Place,
        st.fixed_dictionaries(
            {
                "name": st.none() | st.text(),
                "lat and lon": st.none() | st.lists(st.none() | st.floats(allow_nan=False)),
                "inner": st.dictionaries(st.text(), st.none() | st.binary()),
            }
        ),
    ),
]


def written(codec: ResultCodec, results: list[Any]) -> bytes | None:
    """The results of a row as bytes."""
    kept = codec.kept(KEY, results)
    return None if kept is None else kept[0]


def read(codec: ResultCodec, data: bytes, key: bytes = KEY) -> Any:
    """What was written under a key."""
    return codec.decode_many([key], [data])[0]


@pytest.mark.parametrize(("annotation", "results"), TYPES, ids=[str(number) for number in range(len(TYPES))])
@given(data=st.data())
def test_what_is_put_comes_back(annotation: Any, results: Any, data: st.DataObject) -> None:
    """0..n results of each type come back equal, and of the same classes; None is one of them."""
    codec = ResultCodec(annotation)
    row = data.draw(st.lists(st.none() | results, max_size=3))
    encoded = written(codec, row)
    assert encoded is not None
    found = read(codec, encoded)
    assert found == row
    assert repr(found) == repr(row)


@given(st.text(), st.text(), st.none() | st.integers(100, 599))
def test_an_error_comes_back(kind: str, message: str, status: int | None) -> None:
    """What is kept of a row that failed comes back as that, and not as a result."""
    failure = StoredFailure(kind, message, status)
    codec = ResultCodec(int)
    assert read(codec, codec.encode_failure(KEY, failure)) == failure


def test_a_nan_stays_one() -> None:
    """A float that is no number is not a null."""
    codec = ResultCodec(float)
    encoded = written(codec, [float("nan")])
    assert encoded is not None
    found = read(codec, encoded)
    assert isinstance(found, list)
    assert repr(found) == "[nan]"


def test_what_a_check_lets_through_is_kept_too() -> None:
    """pandas' moments, whole numbers for a decimal however large, and moments in any zone come back as equal values."""
    zone = dt.timezone(dt.timedelta(hours=5, minutes=30))
    moment = dt.datetime(2026, 3, 1, 12, 0, 0, 5)
    cases: list[tuple[Any, Any, Any]] = [
        (dt.datetime, pd.Timestamp("2026-03-01 12:00:00.000005"), moment),
        (dt.datetime, pd.Timestamp("2026-03-01 12:00:00.000005", tz="UTC"), moment.replace(tzinfo=UTC)),
        (dt.datetime, moment.replace(tzinfo=zone), moment.replace(tzinfo=zone)),
        (dt.timedelta, pd.Timedelta(-5, "us"), dt.timedelta(microseconds=-5)),
        (Decimal, 10**37, Decimal(10) ** 37),
        (Decimal, -7, Decimal(-7)),
        (dict[str, list[Decimal | None]], {"a": [10**30, None]}, {"a": [Decimal(10) ** 30, None]}),
        (bytes, bytearray(b"a"), b"a"),
        (list[int | None], (1, None), [1, None]),
    ]
    for annotation, value, same in cases:
        codec = ResultCodec(annotation)
        encoded = written(codec, [value])
        assert encoded is not None, value
        assert read(codec, encoded) == [same], value


@pytest.mark.parametrize("value", [object(), 1j, "\ud800", {"a": object()}], ids=shown)
def test_what_has_no_form_is_not_kept(value: Any) -> None:
    """A result that cannot be encoded is no error: there is nothing to put."""
    assert written(ResultCodec(Any), [value]) is None


def encoded_place() -> tuple[ResultCodec, bytes]:
    """A codec, and a result of it."""
    codec = ResultCodec(Place)
    encoded = written(codec, [PLACE])
    assert encoded is not None
    return codec, encoded


# Never change a line of this: results and errors that somebody has paid for, as each version has written them 1,000 s
# after the epoch.
NOT_FOUND = StoredFailure("KeyError", "m", 404)
GOLDEN: dict[str, tuple[str, str]] = {
    "2": (
        (
            "2b51ebbcdb094f74027200000000000f42409183a46e616d65a44f736c6fab6c617420616e64206c6f6e93cb404df3333333"
            "3333c0cb8000000000000000a5696e6e657282a4666c6167c40200ffa46e6f6e65c0"
        ),
        (
            "189391397f0283c3026600000000000f424084a474797065a84b65794572726f72a76d657373616765a16da6737461747573"
            "cd0194a87265646163746564c0"
        ),
    ),
    "3": (
        (
            "037200000000000f42409183a46e616d65a44f736c6fab6c617420616e64206c6f6e93cb404df33333333333c0cb80000000"
            "00000000a5696e6e657282a4666c6167c40200ffa46e6f6e65c0cc6b740f"
        ),
        (
            "036600000000000f424084a474797065a84b65794572726f72a76d657373616765a16da6737461747573cd0194a872656461"
            "63746564c0be2c45d1"
        ),
    ),
}


@pytest.mark.parametrize("version", GOLDEN)
def test_what_older_versions_have_written_is_found(version: str) -> None:
    """Alone and among others, whole and not too old."""
    codec, new = encoded_place()
    result, failure = map(bytes.fromhex, GOLDEN[version])
    found: list[Any] = [[PLACE], NOT_FOUND]
    assert [read(codec, result), read(codec, failure)] == found
    assert codec.decode_many([KEY] * 4, [new, result, failure, new]) == [[PLACE], *found, [PLACE]]
    for value in (result, failure):
        assert read(codec, value, bytes(16)) is None
        assert read(ResultCodec(Place, ttl=1.0, error_ttl=1.0), value) is None
        for at in range(len(value)):
            damaged = bytearray(value)
            damaged[at] ^= 1 << at % 8
            assert read(codec, bytes(damaged)) is None, at


def test_results_are_written_as_they_always_were() -> None:
    """Tasks of one version of the library read what those of another write, as long as the format is the same."""
    codec = ResultCodec(Place, clock=lambda: 1000.0)
    kept, failure = written(codec, [PLACE]), codec.encode_failure(KEY, NOT_FOUND)
    assert (kept.hex() if kept else None, failure.hex()) == GOLDEN["3"]


def test_each_damage_is_noticed() -> None:
    """No byte can be changed, be missing or be too many."""
    codec, good = encoded_place()
    assert read(codec, good) == [PLACE]
    for at in range(len(good)):
        for bit in range(8):
            damaged = bytearray(good)
            damaged[at] ^= 1 << bit
            assert read(codec, bytes(damaged)) is None, (at, bit)
        assert read(codec, good[:at]) is None, at
        assert read(codec, good[at + 1 :]) is None, at
    assert read(codec, good + b"\0") is None


def test_of_many_each_is_its_own() -> None:
    """In a batch what is missing, damaged, an error or a result stays at its place."""
    codec, good = encoded_place()
    failure = StoredFailure("E", "m", 404)
    values = [good, None, good[:-1], codec.encode_failure(KEY, failure), b"", good]
    assert codec.decode_many([KEY] * 6, values) == [[PLACE], None, None, failure, None, [PLACE]]
    assert codec.damaged == 2


def test_of_a_function_with_one_result_each_row_has_its_own() -> None:
    """Many are read as one list, in which none and two results would be as many as one and one."""
    codec, other = ResultCodec(int, many=False), ResultCodec(int)
    assert [*codec.decode_many([KEY] * 3, [written(codec, [number]) for number in range(3)])] == [[0], [1], [2]]
    values = [written(other, results) for results in ([1], [], [2, 3], [4])]
    assert codec.decode_many([KEY] * 4, values) == [[1], None, None, [4]]
    assert codec.damaged == 2


def one_size(*numbers: int) -> tuple[ResultCodec, list[bytes], list[bytes]]:
    """The only results of some rows, all of one size: their codec, keys and values."""
    codec = ResultCodec(int, many=False)
    keys = [bytes([at]) * 16 for at in range(len(numbers))]
    kept = [codec.kept(key, [number]) for key, number in zip(keys, numbers, strict=True)]
    return codec, keys, [one[0] for one in kept if one is not None]


def test_among_results_of_one_size_each_damage_is_noticed() -> None:
    """They are checked together, and yet a damage costs its own row alone."""
    codec, keys, values = one_size(1000, 1001, 1002, 1003)
    assert [*codec.decode_many(keys, values)] == [[1000], [1001], [1002], [1003]]
    for at in range(len(values[1])):
        for bit in range(8):
            damaged = bytearray(values[1])
            damaged[at] ^= 1 << bit
            found = codec.decode_many(keys, [values[0], bytes(damaged), *values[2:]])
            assert found == [[1000], None, [1002], [1003]], (at, bit)


def test_results_of_one_size_that_have_changed_places_are_noticed() -> None:
    codec, keys, (first, second, third) = one_size(1000, 1001, 1002)
    assert codec.decode_many(keys, [second, first, third]) == [None, None, [1002]]
    assert codec.decode_many(keys, [third, second, first]) == [None, [1001], None]


def test_of_one_size_not_all_is_a_result() -> None:
    """Two results may be as many bytes as one, and so may an error, and what a later version has written."""
    codec, keys, values = one_size(200, 201, 202)
    two = sealed(values[1][:10], keys[1], msgspec.msgpack.encode([1, 2]))
    error = sealed(b"\x03f" + values[1][2:10], keys[1], values[1][10:-4])
    version = sealed(b"\x04" + values[1][1:10], keys[1], values[1][10:-4])
    for other in (two, error, version):
        assert len(other) == len(values[1])
        assert codec.decode_many(keys, [values[0], other, values[2]]) == [[200], None, [202]]
    # Cut off where results begin, these would be as many results as rows.
    forged = [b"\x92\x01\x02", b"\x90\xce\x00", b"\x92\x00\x00", b"\x92\x01\x02"]
    others = [sealed(values[0][:10], KEY, content) for content in forged]
    assert [*codec.decode_many([KEY] * 4, others)] == [None] * 4


def test_of_one_size_a_result_that_is_too_old_is_none() -> None:
    now = [100.0]
    codec = ResultCodec(int, many=False, ttl=60.0, clock=lambda: now[0])
    early = written(codec, [1])
    now[0] = 200.0
    values = [early, written(codec, [1])]
    assert [*codec.decode_many([KEY] * 2, values)] == [None, [1]]
    now[0] = 150.0
    assert [*codec.decode_many([KEY] * 2, values)] == [[1], [1]]


def test_a_result_of_another_row_is_noticed() -> None:
    """Bytes that have got under another key are none of its results."""
    codec, good = encoded_place()
    assert read(codec, good, bytes(16)) is None


@given(st.sampled_from([b"", b"\0" * 8 + b"\x03r", b"\0" * 8 + b"\x03f"]), st.binary(max_size=300))
def test_foreign_bytes_are_a_miss(head: bytes, data: bytes) -> None:
    """Whatever somebody else has put there is no result, and no error."""
    assert read(encoded_place()[0], head + data) is None


@pytest.mark.parametrize("data", [None, "text", 5, [1], memoryview(b"ab")], ids=shown)
def test_what_is_no_bytes_is_a_miss(data: Any) -> None:
    """A store that gives something else than bytes has no result."""
    assert read(encoded_place()[0], data) is None


ANYTHING = st.recursive(st.none() | st.integers(-5, 2**60) | st.text(), lambda inner: st.lists(inner), max_leaves=9)


@given(st.binary(max_size=60) | st.builds(msgspec.msgpack.encode, ANYTHING))
def test_a_forged_value_of_another_type_is_a_miss(content: bytes) -> None:
    """Who can write to a store and knows its format can write results, but only of the declared type."""
    codec = ResultCodec(Place)
    found = read(codec, sealed(b"\x03r" + b"\x7f" * 8, KEY, content))
    rows = [] if found is None else found
    assert isinstance(rows, list)
    assert all(row is None or row.keys() == PLACE.keys() for row in rows)
    failure = read(codec, sealed(b"\x03f" + b"\x7f" * 8, KEY, content))
    assert failure is None or isinstance(failure, StoredFailure)


def test_no_code_is_run(tmp_path: Path) -> None:
    """A pickle, sealed as a result, is not loaded."""
    target = tmp_path / "was-run"
    harm = pickle.dumps(_Runs(str(target)))
    codec = ResultCodec(Any)
    read(codec, harm)
    read(codec, sealed(b"\x03r" + b"\x7f" * 8, KEY, harm))
    assert not target.exists()
    pickle.loads(harm)
    assert target.exists()  # it would have been


class _Runs:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("length", [2**31, 2**32 - 1])
def test_a_forged_length_takes_no_memory(length: int) -> None:
    """A few bytes that say that billions follow are a miss at once."""
    for marker in (0xDD, 0xDF, 0xDB, 0xC6):
        content = b"\x91" + bytes((marker,)) + length.to_bytes(4, "big") + b"\0" * 20
        for annotation in (list[int], dict[str, int], str, bytes, Any):
            assert read(ResultCodec(annotation), sealed(b"\x03r" + b"\x7f" * 8, KEY, content)) is None


def test_deep_nesting_is_a_miss() -> None:
    """Thousands of lists in each other are no result, and do not end the process."""
    assert read(ResultCodec(Any), sealed(b"\x03r" + b"\x7f" * 8, KEY, b"\x91" * 100_000 + b"\xc0")) is None


def test_without_msgspec_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "msgspec.msgpack", None)
    with pytest.raises(OptionError, match=r'pip install "asyncudf\[store\]"'):
        ResultCodec(int)


@pytest.mark.parametrize("kind", ["result", "failure"])
def test_of_two_ages_the_readers_counts(kind: str) -> None:
    """Whoever reads with a shorter `ttl` than the writer's finds less; without `error_ttl` it finds no failure."""
    now = [1000.0]
    writer = ResultCodec(int, clock=lambda: now[0])
    value = written(writer, [1]) if kind == "result" else writer.encode_failure(KEY, StoredFailure("KeyError", "1"))
    assert value is not None
    name = "ttl" if kind == "result" else "error_ttl"
    ages: list[float | None] = [5.0, 10.0, 3600.0]
    readers = [ResultCodec(int, clock=lambda: now[0], **{name: age}) for age in ages]
    found = []
    for now[0] in (1000.0, 1004.9, 1005.0, 1010.0):
        found.append([read(reader, value) is not None for reader in readers])
    assert found == [[True] * 3, [True] * 3, [False, True, True], [False, False, True]]
    assert [reader.damaged for reader in readers] == [0, 0, 0]
    assert read(writer, value) is not None
    assert (read(ResultCodec(int, error_ttl=None), value) is None) == (kind == "failure")
