"""Each value reaches its own parameter: columns, the context and resources, in every order, also behind decorators."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

from asyncudf import AsyncFunction, FunctionError, ResultFuture, ResultStore, RuntimeContext, async_pandas_udf
from asyncudf._spark.column import ColumnTask
from asyncudf._spark.planner import plan_function_offline
from asyncudf.testing import run_rows, run_stream
from tests.kit.costs import python_calls

CITIES = [{"city": "Oslo", "lang": "no"}, {"city": "Bergen", "lang": "nn"}]


def results(function: Any, rows: list[dict[str, Any]], schema: str, **options: Any) -> list[Any]:
    """What a function gives for the columns that are called like its parameters."""
    found = run_stream(lambda s: s.ordered_wait(function, returnType="string", **options), rows, schema)
    return [list(row.values())[-1] for row in found]


async def by_keyword(city: Any, units: Any = "metric", lang: Any = "en") -> str:
    return f"{city}, {units}, {lang}"


async def by_position(city: Any, units: Any = "metric", lang: Any = "en", /) -> str:
    return f"{city}, {units}, {lang}"


async def with_context(city: Any, context: RuntimeContext, units: Any = "metric", lang: Any = "en") -> str:
    return f"{city}, {units}, {lang}" if context.attempt_number == 1 else "?"


async def with_more(city: Any, units: Any = "metric", lang: Any = "en", *more: Any, **named: Any) -> str:
    return f"{city}, {units}, {lang}{more or ''}{named or ''}"


class TestOptionalParametersWithAGap:
    @pytest.mark.parametrize("function", [by_keyword, by_position, with_context, with_more])
    def test_a_column_goes_to_the_parameter_of_its_name(self, function: Any) -> None:
        assert results(function, CITIES, "city string, lang string") == ["Oslo, metric, no", "Bergen, metric, nn"]

    def test_a_generator_and_a_function_in_a_thread_too(self) -> None:
        async def generator(city: str, units: str = "metric", lang: str = "en") -> AsyncIterator[str]:
            yield f"{units}, {lang}"

        def plain(city: str, units: str = "metric", lang: str = "en") -> str:
            return f"{units}, {lang}"

        assert results(generator, CITIES[:1], "city string, lang string") == ["metric, no"]
        found = run_stream(lambda s: s.ordered_wait(plain), CITIES[:1], "city string, lang string", clock="real")
        assert found == [{**CITIES[0], "plain": "metric, no"}]

    def test_vectors_stay_with_their_parameters(self) -> None:
        """A parameter without a column is None, and the next one still gets its own."""

        async def call(city: pd.Series, units: pd.DataFrame = None, lang: pd.Series = None) -> pd.Series:  # type: ignore[assignment]
            assert units is None
            return city + lang

        assert results(call, CITIES, "city string, lang string") == ["Oslono", "Bergennn"]

    def test_the_answer_at_the_deadline_is_asked_with_the_same_arguments(self) -> None:
        async def slow(city: str, units: str = "metric", lang: str = "en") -> str:
            await asyncio.sleep(9)
            return "late"

        options = {"timeout": 1, "on_timeout": lambda *arguments: repr(arguments)}
        assert results(slow, CITIES[:1], "city string, lang string", **options) == ["('Oslo', 'metric', 'no')"]

    def test_the_answer_at_the_deadline_gets_no_defaults_behind_the_last_column(self) -> None:
        async def slow(city: str, lang: str = "en", units: str = "metric", *rest: str) -> str:
            await asyncio.sleep(9)
            return "late"

        options = {"timeout": 1, "on_timeout": lambda *arguments: repr(arguments)}
        assert results(slow, CITIES[:1], "city string, lang string", **options) == ["('Oslo', 'no')"]
        assert run_rows(slow, [("a", "b", "c", "d")], **options) == ["('a', 'b', 'c', 'd')"]

    def test_a_default_of_the_function_is_the_same_object_in_a_gap(self) -> None:
        unset = object()

        async def call(city: str, units: Any = unset, lang: str = "en") -> str:
            return f"{units is unset}, {lang}"

        assert results(call, CITIES[:1], "city string, lang string") == ["True, no"]

    def test_columns_given_by_position_fill_the_first_parameters(self) -> None:
        found = run_stream(
            lambda s: s.ordered_wait(by_keyword, "city", "lang", returnType="string"),
            CITIES[:1],
            "city string, lang string",
        )
        assert found[0]["by_keyword"] == "Oslo, no, en"


@contextlib.asynccontextmanager
async def client() -> AsyncIterator[str]:
    yield "client"


async def context_first(context: RuntimeContext, a: Any, b: Any = "-") -> Any:
    return context.attempt_number, a, b


async def context_between(a: Any, context: RuntimeContext, b: Any = "-") -> Any:
    return context.attempt_number, a, b


async def context_between_by_position(a: Any, context: RuntimeContext, b: Any = "-", /) -> Any:
    return context.attempt_number, a, b


async def context_by_position_behind(a: Any, b: Any = "-", context: RuntimeContext = None, /) -> Any:  # type: ignore[assignment]
    return context.attempt_number, a, b


async def context_by_name(a: Any, b: Any = "-", *, context: RuntimeContext) -> Any:
    return context.attempt_number, a, b


async def context_before_any(context: RuntimeContext, *values: Any) -> Any:
    return (context.attempt_number, *values, "-")[:3]


async def context_between_and_any(a: Any, context: RuntimeContext, *values: Any) -> Any:
    return (context.attempt_number, a, *values, "-")[:3]


def context_in_a_thread(context: RuntimeContext, a: Any, /, b: Any = "-") -> Any:
    return context.attempt_number, a, b


ORDERS = [
    context_first,
    context_between,
    context_between_by_position,
    context_by_position_behind,
    context_by_name,
    context_before_any,
    context_between_and_any,
    context_in_a_thread,
]


class TestContextAndResources:
    @pytest.mark.parametrize("function", ORDERS)
    def test_the_context_may_stand_anywhere(self, function: Any) -> None:
        rows = [("x",), ("y", "z")]
        assert run_rows(function, rows, clock="real") == [(1, "x", "-"), (1, "y", "z")]

    def test_resources_may_stand_anywhere(self) -> None:
        async def first(client: str, a: str) -> Any:
            return client, a

        async def between(a: str, client: str, b: str, /) -> Any:
            return a, client, b

        async def before_any(client: str, *values: str) -> Any:
            return client, values

        async def in_keywords(a: str, **resources: str) -> Any:
            return a, resources

        options: dict[str, Any] = {"resources": client}
        assert run_rows(first, ["x"], **options) == [("client", "x")]
        assert run_rows(between, [("x", "y")], **options) == [("x", "client", "y")]
        assert run_rows(before_any, [("x", "y")], **options) == [("client", ("x", "y"))]
        assert run_rows(in_keywords, ["x"], **options) == [("x", {"client": "client"})]

    def test_with_both_and_a_gap(self) -> None:
        async def call(context: RuntimeContext, city: str, client: str, units: str = "m", lang: str = "en", /) -> str:
            return f"{context.attempt_number} {city} {client} {units} {lang}"

        assert results(call, CITIES[:1], "city string, lang string", resources=client) == ["1 Oslo client m no"]

    def test_a_function_of_columns_alone_is_called_itself(self) -> None:
        """Also with an optional parameter that has no column: nothing is called in between, for any row."""

        async def without_more(city: Any, units: Any) -> str:
            return f"{city}, {units}"

        def spent(function: Any) -> int:
            rows = [{"city": "Oslo", "units": "m"}] * 1000
            return python_calls(lambda: results(function, rows, "city string, units string"))

        spent(without_more)  # what comes once only
        assert spent(by_keyword) < spent(without_more) + 500


def counted(function: Any) -> Any:
    """A decorator that changes nothing."""

    @functools.wraps(function)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return wrapper


def with_stripped_city(function: Any) -> Any:
    @functools.wraps(function)
    async def wrapper(city: str, *args: Any, **kwargs: Any) -> Any:
        return await function(city.strip(), *args, **kwargs)

    return wrapper


def with_token(function: Any) -> Any:
    """A decorator that changes the parameters: it gives the first one itself."""

    @functools.wraps(function)
    async def wrapper(city: str) -> Any:
        return await function("token", city)

    return wrapper


class Counted:
    """A decorator that is a class."""

    def __init__(self, function: Any) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return await self._function(*args, **kwargs)


class TestDecorators:
    @pytest.mark.parametrize("decorator", [counted, with_stripped_city, Counted, lambda f: counted(Counted(f))])
    def test_the_decorated_function_says_what_is_given(self, decorator: Callable[[Any], Any]) -> None:
        async def call(city: str, context: RuntimeContext, lang: str = "en") -> str:
            return f"{city} {context.attempt_number} {lang}"

        function = decorator(call)
        assert async_pandas_udf(function).spec.parameters == ("city", "lang")
        assert results(function, [{"city": "Oslo", "lang": "no"}], "city string, lang string") == ["Oslo 1 no"]

    def test_vectors_are_seen_behind_a_decorator(self) -> None:
        async def call(x: pd.Series) -> pd.Series:
            return x + 1

        assert run_rows(counted(call), [1, 2]) == [2, 3]

    @pytest.mark.parametrize("decorate", [with_token, lambda f: counted(with_token(f))])
    def test_a_decorator_with_parameters_of_its_own_says_what_is_given(self, decorate: Callable[[Any], Any]) -> None:
        async def call(token: str, city: str) -> str:
            return f"{token} {city}"

        function = decorate(call)
        assert async_pandas_udf(function).spec.parameters == ("city",)
        assert run_rows(function, ["Oslo"]) == ["token Oslo"]

    def test_a_partial_and_a_method_behind_a_decorator(self) -> None:
        class Service:
            @counted
            async def call(self, city: str, context: RuntimeContext, lang: str = "en") -> str:
                return f"{city} {context.attempt_number} {lang}"

        assert run_rows(Service().call, ["Oslo"]) == ["Oslo 1 en"]
        assert run_rows(functools.partial(Service().call, lang="no"), ["Oslo"]) == ["Oslo 1 no"]

    def test_a_function_made_in_c_is_read_behind_its_wrapper(self) -> None:
        @functools.cache
        def double(x: int) -> int:
            return 2 * x

        assert run_rows(double, [1, 2, 1], clock="real") == [2, 4, 2]


async def any_names(city: Any, **more: Any) -> str:
    return f"{city} {more}"


async def any_series(city: pd.Series, **more: pd.Series) -> pd.Series:
    for name, values in more.items():
        city = city + f" {name}=" + values
    return city


async def named_series_alone(**more: pd.Series) -> pd.Series:
    return more["a"].where(more["b"].notna())


class TestColumnsOfAnyName:
    """What Spark's own functions take as `**columns`; a column is given by name to a column and a table function."""

    @staticmethod
    def called(function: Any, given: list[Any], named: dict[str, Any]) -> Any:
        udf = async_pandas_udf(function, "string")
        spec, arguments = udf.spec.with_arguments(given, named)
        batch = tuple(map(pa.array, arguments))
        written = ColumnTask(plan_function_offline(spec, udf.options, udf.returns))(iter([batch]))
        return [value for array in written for value in array.to_pylist()]

    def test_of_scalars(self) -> None:
        assert self.called(any_names, [["Oslo"]], {"b": [2], "a": [1]}) == ["Oslo {'b': 2, 'a': 1}"]
        assert self.called(any_names, [], {"b": [2], "city": ["Oslo"]}) == ["Oslo {'b': 2}"]
        assert self.called(with_more, [["Oslo"]], {"end": ["!"], "lang": ["no"]})[0].endswith("{'end': '!'}")

    def test_of_vectors(self) -> None:
        assert self.called(any_series, [["Oslo"]], {"b": ["2"], "a": ["1"]}) == ["Oslo b=2 a=1"]
        assert self.called(any_series, [["Oslo"]], {}) == ["Oslo"]
        assert self.called(named_series_alone, [], {"a": ["1", "2"], "b": ["3", None]}) == ["1", None]

    def test_names_of_what_is_no_column(self) -> None:
        async def call(city: str, client: str, context: RuntimeContext, **more: Any) -> str: ...  # type: ignore[empty-body]

        udf = async_pandas_udf(call, resources={"client": client})
        for name in ("client", "context", "capacity", "city"):
            with pytest.raises(FunctionError, match=f"call cannot take {name} by name"):
                udf.spec.with_arguments([["Oslo"]], {name: [1]})
        with pytest.raises(FunctionError, match="with_more cannot take end by name"):
            async_pandas_udf(with_more).spec.with_arguments([1, 2, 3, 4], {"end": 1})


def test_results_are_stored_with_the_names_of_columns_that_leave_a_gap() -> None:
    """`f(city, lang=x)` was found as `f(city, units=x)`."""
    udf = async_pandas_udf(by_keyword, store=ResultStore.executor(), version="1")
    keys = [udf.store_key("Oslo", "x"), udf.store_key("Oslo", lang="x"), udf.store_key("Oslo", "metric", "x")]
    assert len(set(keys)) == 3
    assert udf.store_key("Oslo", units="x") == keys[0] == udf.store_key(units="x", city="Oslo")
    named = async_pandas_udf(any_names, store=ResultStore.executor(), version="1")
    assert named.store_key("Oslo", a=1, b=2) != named.store_key("Oslo", b=1, a=2)


class TestRefused:
    def test_arguments_by_name(self) -> None:
        call = async_pandas_udf(by_keyword)
        with pytest.raises(FunctionError, match=r"takes the columns \(city, units, lang\); there is none for city"):
            call.spec.with_arguments([], {"lang": "x"})
        with pytest.raises(FunctionError, match=r"cannot take town by name.* and 1 of them are given by position"):
            call.spec.with_arguments(["x"], {"town": "x"})
        with pytest.raises(FunctionError, match="cannot take city by name"):
            call.spec.with_arguments(["x"], {"city": "x"})

    @pytest.mark.parametrize("columns", [("city", "lang", "city"), ("city", "CITY")])
    def test_a_column_twice_where_a_row_is_taken_by_names(self, columns: tuple[str, ...]) -> None:
        class Row(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete([str(value)])

        async def frame(rows: pd.DataFrame) -> pd.Series:
            return rows["city"]

        for function in (Row(), frame):
            with pytest.raises(FunctionError, match="'city' is there twice; name each column once"):
                run_stream(
                    lambda s, f=function: s.ordered_wait(f, *columns, returnType="string"),
                    CITIES,
                    "city string, lang string",
                )

    def test_rows_without_columns(self) -> None:
        with pytest.raises(FunctionError, match="the DataFrame has no columns"):
            run_stream(lambda s: s.filter(bool), [], StructType())
        with pytest.raises(FunctionError, match="what map gives has no columns"):
            run_stream(lambda s: s.map(lambda row: {}, StructType()), CITIES, "city string, lang string")


def test_columns_given_by_name_may_leave_a_gap() -> None:
    spec, given = async_pandas_udf(by_keyword).spec.with_arguments(["a"], {"lang": "b"})
    assert (spec.parameters, given) == (("city", "lang"), ["a", "b"])
