"""Functions of each kind, and their options, with a store: none of them does anything else for it."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import enum
import functools
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import NullType

from asyncudf import (
    AsyncFunction,
    AsyncUDFError,
    FunctionError,
    OptionError,
    OutputTag,
    ResultFuture,
    ResultStore,
    RetryStrategy,
    RuntimeContext,
    async_pandas_udf,
)
from asyncudf.queues import Watermark
from asyncudf.testing import MemoryStore, run_rows

from ..kit.stores import Counting, SlowStore


class TestKindsOfFunctions:
    def test_generators(self) -> None:
        calls = []

        async def letters(word: str) -> AsyncIterator[str]:
            calls.append(word)
            for letter in word:
                yield letter

        store = MemoryStore()
        for _ in range(2):
            assert run_rows(letters, ["ab", "", "c", "ab"], store=store) == ["a", "b", "c", "a", "b"]
        assert calls == ["ab", "", "c"]

    def test_vectorized_functions(self) -> None:
        calls: list[list[str]] = []

        async def upper(words: pd.Series) -> pd.Series:
            calls.append(list(words))
            await asyncio.sleep(1)
            return words.str.upper()

        store = MemoryStore()
        rows = ["a", "b", "a", "c", "b", "d"]
        assert run_rows(upper, rows, store=store, batch_size=2, returnType="string") == [row.upper() for row in rows]
        assert calls == [["a", "b"], ["c", "d"]]
        assert run_rows(upper, [*rows, "e"], store=store, batch_size=2, returnType="string")[-1] == "E"
        assert calls[2:] == [["e"]]

    def test_without_a_declared_type_only_what_needs_none_is_kept(self) -> None:
        calls = []

        async def anything(kind: str):  # type: ignore[no-untyped-def]
            calls.append(kind)
            return {"tuple": (1, 2), "dict": {"a": [1, None, "x", b"y"]}}[kind]

        store = MemoryStore()
        for _ in range(2):
            assert run_rows(anything, ["tuple", "dict"], store=store) == [(1, 2), {"a": [1, None, "x", b"y"]}]
        assert calls == ["tuple", "dict", "tuple"]

    def test_side_outputs_and_stores_do_not_go_together(self) -> None:
        tag = OutputTag("seen", "city string")

        async def weather(city: str, context: RuntimeContext) -> str:
            context.output(tag, {"city": city})
            return city

        with pytest.raises(AsyncUDFError, match="writes to the side output 'seen', and its store= keeps results alone"):
            run_rows(weather, ["oslo"], store=MemoryStore(), on_error="null")

    def test_the_idempotency_key_is_that_of_the_store(self) -> None:
        async def weather(city: str, context: RuntimeContext) -> str:
            return context.idempotency_key

        store = SlowStore()
        [told] = run_rows(weather, ["oslo"], store=store)
        assert [key.hex() for key in store.entries] == [told]
        assert run_rows(weather, ["oslo"]) == [told]
        assert run_rows(weather, ["oslo"], version="2") != [told]


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"store": "redis://host"}, "store must be a ResultStore, such as .* not 'redis://host'"),
            ({"store": ResultStore}, "store must be a ResultStore"),
            ({"version": 2}, "version must be a text of at least one character, not 2"),
            ({"version": ""}, "version must be a text"),
            ({"on_store_error": "ignore"}, "on_store_error must be one of 'call', 'fail', not 'ignore'"),
            ({"store_timeout": 0}, "store_timeout must be more than 0 seconds"),
        ],
    )
    def test_a_value_that_cannot_work_is_told(self, options: Any, message: str) -> None:
        with pytest.raises(OptionError, match=message):
            async_pandas_udf(Counting().function, **options)

    def test_a_function_without_a_name_of_its_own_needs_a_version(self) -> None:
        async def weather(base: str, city: str) -> str:
            return base + city

        bound = functools.partial(weather, "x")
        with pytest.raises(
            OptionError, match="does not tell the arguments that are bound to it: give weather a version"
        ):
            run_rows(bound, ["oslo"], store=MemoryStore())
        assert run_rows(bound, ["oslo"], store=MemoryStore(), version="x") == ["xoslo"]
        with pytest.raises(OptionError, match="one lambda from another"):
            run_rows(lambda city: city, ["oslo"], store=MemoryStore(), clock="real", returnType="string")

    def test_a_type_that_cannot_be_kept_is_told_when_it_is_planned(self) -> None:
        async def weather(city: str) -> Any:
            return city

        with pytest.raises(FunctionError, match="results of weather cannot be kept in a store"):
            run_rows(weather, ["oslo"], store=MemoryStore(), returnType=NullType())


@dataclasses.dataclass(frozen=True)
class Job:
    """What a random job does."""

    rows: list[Any]
    seconds: dict[int, float]
    bad: set[int]
    options: dict[str, Any]
    store: dict[str, float]


JOBS = st.builds(
    Job,
    rows=st.lists(st.integers(0, 8) | st.integers(1, 3).map(lambda time: Watermark(time)), max_size=60),
    seconds=st.dictionaries(st.integers(0, 8), st.sampled_from([0.0, 0.01, 0.3, 2.0])),
    bad=st.sets(st.integers(0, 8), max_size=3),
    options=st.fixed_dictionaries(
        {
            "capacity": st.integers(1, 5),
            "queue_size": st.sampled_from([5, 7, 100]),
            "output_mode": st.sampled_from(["ordered", "unordered"]),
            "timeout": st.sampled_from([1.0, 180.0]),
            "retry": st.none() | st.just(RetryStrategy.fixed_delay(attempts=2, delay=0.1)),
        }
    ),
    store=st.fixed_dictionaries({name: st.sampled_from([0.0, 0.02, 0.5]) for name in ("get", "put")}),
)


@given(JOBS, st.sets(st.integers(0, 8)))
def test_a_store_changes_no_result_and_saves_calls(job: Job, stored: set[int]) -> None:
    calls: Counter[int] = Counter()

    async def work(x: int) -> int:
        calls[x] += 1
        await asyncio.sleep(job.seconds.get(x, 0.05))
        if x in job.bad:
            raise ConnectionError(x)
        return x * 10

    rows = _with_growing_watermarks(job.rows)
    plain = run_rows(work, rows, on_error="null", **job.options)
    calls.clear()
    store = SlowStore(**job.store)
    run_rows(work, sorted(stored), on_error="null", store=store, timeout=180.0)
    known = {x for x in stored if x not in job.bad}
    calls.clear()
    kept = run_rows(work, rows, on_error="null", store=store, **job.options)
    if job.options["timeout"] == 180.0:  # else the store may save a row from its deadline
        assert _segments(kept) == _segments(plain)
        if job.options["output_mode"] == "ordered":
            assert kept == plain
        assert all(calls[x] == (0 if x in known else 1) for x in set(rows) - job.bad if isinstance(x, int))
    else:
        assert len(kept) == len(plain)
    assert run_rows(work, rows, on_error="null", store=store, **job.options).count(None) <= kept.count(None)


def _with_growing_watermarks(rows: Sequence[Any]) -> list[Any]:
    time = 0
    out = []
    for row in rows:
        if isinstance(row, Watermark):
            time += row.timestamp
            row = Watermark(time)
        out.append(row)
    return out


def _segments(results: Sequence[Any]) -> list[Any]:
    """Results between watermarks, without their order."""
    segments: list[Any] = [[]]
    for result in results:
        if isinstance(result, Watermark):
            segments += [result, []]
        else:
            segments[-1].append(result)
    return [sorted(map(str, one)) if isinstance(one, list) else one for one in segments]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Scale:
    def __init__(self, factor: int) -> None:
        self.factor = factor


def upper(city: str) -> str:
    return city.upper()


def lower(city: str) -> str:
    return city.lower()


class Stateless(AsyncFunction):
    async def open(self, context: RuntimeContext) -> None:
        await super().open(context)

    async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
        result_future.complete([value["x"]])


def made(kind: str, value: Any) -> Any:
    """A function of one name each time, that has a value in one way or another."""

    async def plain(city: str) -> str:
        return city

    if kind == "closure":

        async def closed(city: str) -> str:
            return f"{city} {value}"

        return closed
    if kind == "default":

        async def defaulted(city: str, by: Any = value) -> str:
            return f"{city} {by}"

        return defaulted
    if kind == "attribute":
        plain.value = value  # type: ignore[attr-defined]
        return plain
    if kind == "callable object":

        class Called:
            def __init__(self) -> None:
                self.value = value

            async def __call__(self, city: str) -> str:
                return f"{city} {self.value}"

        return Called()

    class Function(AsyncFunction):
        if kind == "AsyncFunction":

            def __init__(self) -> None:
                self.value = value

        async def async_invoke(self, row: Any, result_future: ResultFuture) -> None:
            result_future.complete([f"{row} {value}" if kind == "its class" else "x"])

    return Function()


class TestWhatTheNameDoesNotTell:
    """Functions of one name are one to a store; whoever may not want that is told."""

    def test_values_around_a_function(self, caplog: pytest.LogCaptureFixture) -> None:
        def times(factor: int, calls: list[int]) -> Any:
            async def scaled(number: int) -> int:
                calls.append(number)
                return number * factor

            return scaled

        run_rows(times(3, []), [2], store=MemoryStore(), version="times 3")
        assert not caplog.records
        run_rows(times(3, []), [2], store=MemoryStore())
        assert "uses the variables calls, factor besides" in caplog.text

    @pytest.mark.parametrize(
        "values",
        [
            ({"url": "a"}, {"url": "b"}), (["a"], ["b"]), (("a",), ("b",)), (b"a", b"b"), ({1}, {2}), (1, 2),
            (Decimal("1.5"), Decimal("2.5")), (Path("a"), Path("b")), (Colour.RED, Colour.BLUE),
            (dt.date(2026, 1, 1), dt.date(2026, 1, 2)), (Scale(1), Scale(2)), (Scale, Colour), (len, max),
            (upper, lower), (None, "a"),
        ],
        ids=lambda pair: type(pair[1]).__name__,
    )  # fmt: skip
    @pytest.mark.parametrize(
        "kind", ["closure", "attribute", "callable object", "AsyncFunction", "its class", "default"]
    )
    def test_functions_that_differ_have_different_keys_or_are_told(
        self, kind: str, values: tuple[Any, Any], caplog: pytest.LogCaptureFixture
    ) -> None:
        """By whatever they differ: also by a value of a class that nobody has thought of."""
        udfs = [async_pandas_udf("string", store=MemoryStore())(made(kind, value)) for value in values]
        stores = MemoryStore()
        for udf in udfs:
            run_rows(udf, [{"city": "oslo"} if kind in ("AsyncFunction", "its class") else "oslo"], store=stores)
        keys = asyncio.run(stores.info())["entries"]
        assert keys == len(udfs) or "besides: where these differ" in caplog.text

    def test_what_does_no_harm_is_not_told(self, caplog: pytest.LogCaptureFixture) -> None:
        """Modules, functions made along with it, itself, and what a decorator wraps."""
        module, nothing = asyncio, None

        def helper(number: int) -> int:
            return number + 1

        def decorated(function: Any) -> Any:
            @functools.wraps(function)
            async def wrapper(number: int) -> int:
                return int(await function(number))

            return wrapper

        @decorated
        async def counted(number: int, step: int = 1) -> int:
            await module.sleep(0)
            return helper(number) if nothing is None and number else int(await counted(number + step))

        run_rows(counted, [2], store=MemoryStore(), returnType="int")
        run_rows(Stateless(), [{"x": 2}], store=MemoryStore(), returnType="int")
        assert not caplog.records
