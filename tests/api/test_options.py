"""An option is said once, as a field of `Options`; every entry point takes it, checks it and is told of it."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import inspect
import json
import pickle
import pydoc
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import LongType, StructType

import asyncudf
from asyncudf import (
    AdaptiveCapacity,
    AsyncStream,
    AsyncUDF,
    CircuitBreaker,
    LookupTable,
    OptionError,
    RateLimit,
    ResultStore,
    async_pandas_udf,
    async_sink,
    batch_handler,
    dry_run,
    ordered_wait,
    rehearse,
    sink_source,
    stream_sink,
    unordered_wait,
)
from asyncudf._errors.checks import Seconds
from asyncudf._functions import retry
from asyncudf._functions.options import CallOptions, FunctionOptions, Options
from asyncudf._functions.signature import group_rows, read_function
from asyncudf.testing import MemoryStore, OperatorHarness, run_rows, run_stream

FIELDS = {field.name: field for field in dataclasses.fields(Options)}


async def call(x: int) -> int:
    return x


async def fallback(x: int) -> int:
    return x


# What no option of that name can be. A new option has a line here, or the tests fail.
BAD: dict[str, Any] = {
    "output_mode": "sorted",
    "capacity": 0,
    "queue_size": "many",
    "max_buffered_bytes": -1,
    "timeout": 0,
    "attempt_timeout": "5 seconds",
    "on_timeout": fallback,
    "retry": 3,
    "on_error": "ignore",
    "extra_fields": "keep",
    "redact": "city",
    "batch_size": 0,
    "batch_linger": float("inf"),
    "batch_weight": 1.5,
    "max_batch_weight": 0,
    "split_failed": "yes",
    "resources": 5,
    "open_timeout": 0,
    "deterministic": "yes",
    "loop": "trio",
    "store": "redis://localhost",
    "version": 2,
    "on_store_error": "ignore",
    "store_timeout": None,
    "rate_limit": 100,
    "job_capacity": 0,
    "max_calls": 0.5,
    "budget": 20,
    "on_spent": "stop",
    "coordinator": 6379,
    "breaker": True,
    "max_failures": -1,
    "on_null_input": "skip",
}


class Twice(asyncudf.AsyncFunction):
    async def async_invoke(self, value: Any, result_future: asyncudf.ResultFuture) -> None:
        result_future.complete([value, value])


class Table:
    """As much of a DataFrame as an entry point asks for before it reads options."""

    schema = StructType().add("x", LongType())

    def mapInArrow(self) -> None: ...  # noqa: N802 - Spark's name


TABLE: Any = Table()
SESSION: Any = types.SimpleNamespace(createDataFrame=None)
ROWS = [{"x": 1}]


@dataclasses.dataclass(frozen=True)
class EntryPoint:
    """A way in for options: the signature that says so, its TypedDict, and a call."""

    signature: Callable[..., Any]
    options: type
    give: Callable[..., Any]


# They are found under the module that the function was written in, and a public one says that it is in `asyncudf`.
WRITTEN: Any = types.SimpleNamespace(__module__="asyncudf._spark.api.decorator", __qualname__="async_pandas_udf")
OVERLOADS = typing.get_overloads(WRITTEN)

ENTRY_POINTS = {
    **{
        f"async_pandas_udf, overload {number}": EntryPoint(overload, FunctionOptions, give)
        for number, (overload, give) in enumerate(
            zip(
                OVERLOADS,
                [
                    lambda **options: async_pandas_udf(Twice(), "int", **options),
                    lambda **options: async_pandas_udf(dict[str, int], **options)(call),
                    lambda **options: async_pandas_udf(call, **options),
                    lambda **options: async_pandas_udf("int", **options)(call),
                ],
                strict=True,
            )
        )
    },
    "AsyncUDF.with_options": EntryPoint(
        AsyncUDF.with_options, FunctionOptions, lambda **options: async_pandas_udf(call).with_options(**options)
    ),
    "ordered_wait": EntryPoint(ordered_wait, CallOptions, lambda **options: ordered_wait(TABLE, call, **options)),
    "unordered_wait": EntryPoint(unordered_wait, CallOptions, lambda **options: unordered_wait(TABLE, call, **options)),
    "AsyncStream.ordered_wait": EntryPoint(
        AsyncStream.ordered_wait,
        CallOptions,
        lambda **options: run_stream(lambda stream: stream.ordered_wait(call, **options), ROWS, "x long"),
    ),
    "AsyncStream.unordered_wait": EntryPoint(
        AsyncStream.unordered_wait,
        CallOptions,
        lambda **options: run_stream(lambda stream: stream.unordered_wait(call, **options), ROWS, "x long"),
    ),
    "LookupTable": EntryPoint(
        LookupTable.__init__, CallOptions, lambda **options: LookupTable(SESSION, "t", call, "x", **options)
    ),
    "dry_run": EntryPoint(dry_run, CallOptions, lambda **options: dry_run(TABLE, call, "x", **options)),
    "run_rows": EntryPoint(run_rows, CallOptions, lambda **options: run_rows(call, [1], **options)),
    "OperatorHarness": EntryPoint(
        OperatorHarness.__init__, FunctionOptions, lambda **options: OperatorHarness(call, **options)
    ),
}


entry_points = pytest.mark.parametrize("point", ENTRY_POINTS.values(), ids=ENTRY_POINTS)
options = pytest.mark.parametrize("name", FIELDS)


class TestOneList:
    """The fields of `Options` are the options: whatever else lists them has the same names."""

    def test_the_typed_dicts_have_the_fields(self) -> None:
        assert FunctionOptions.__optional_keys__ == FIELDS.keys()
        assert CallOptions.__optional_keys__ == FIELDS.keys() - {"output_mode"}
        assert not FunctionOptions.__required_keys__

    @options
    def test_a_default_passes_its_own_check(self, name: str) -> None:
        field = FIELDS[name]
        assert field.metadata["check"](field.default, name) == field.default

    @options
    @pytest.mark.parametrize("value", [10**400, -(10**400), float("nan"), "", b"5", [None], {}, object()], ids=type)
    def test_no_value_is_another_error(self, name: str, value: Any) -> None:
        with contextlib.suppress(OptionError):
            FIELDS[name].metadata["check"](value, name)

    @options
    def test_the_typed_dict_takes_what_the_field_keeps(self, name: str) -> None:
        """A default can be given, and so can each member of an enum, by itself or by its value."""
        kept, given = (typing.get_type_hints(owner, localns=vars(retry))[name] for owner in (Options, FunctionOptions))
        if isinstance(kept, type) and issubclass(kept, enum.Enum):
            by_value = [one for one in typing.get_args(given) if typing.get_origin(one) is typing.Literal]
            assert [typing.get_args(one) for one in by_value] == [tuple(member.value for member in kept)]
            assert kept in typing.get_args(given)
        elif type(None) in typing.get_args(kept):
            assert given is Any or type(None) in typing.get_args(given) or Any in typing.get_args(given)
        elif typing.get_origin(kept) is tuple:  # one, or several, or none
            one = typing.get_args(kept)[0]
            assert set(typing.get_args(given)) == {one, Sequence[one], type(None)}
        elif isinstance(kept, types.UnionType):
            assert set(typing.get_args(kept)) < set(typing.get_args(given))
        else:
            assert given == (Seconds if kept is float else kept)

    def test_there_is_a_bad_value_for_each(self) -> None:
        assert BAD.keys() == FIELDS.keys()


class TestEntryPoints:
    """Each takes all options, and refuses the same mistakes with the same words."""

    def test_no_other_takes_options(self) -> None:
        public = [getattr(package, name) for package in (asyncudf, asyncudf.testing) for name in package.__all__]
        functions = [one for one in public if inspect.isfunction(one) and one is not async_pandas_udf]
        classes = [one for one in public if inspect.isclass(one)]
        methods = [one for owner in classes for one in vars(owner).values() if inspect.isfunction(one)]
        taking = {one.__qualname__ for one in [*functions, *methods] if takes_options(one)}
        listed = {point.signature.__qualname__ for point in ENTRY_POINTS.values()}
        others = {
            "async_sink",
            "stream_sink",
            "sink_source",
            "batch_handler",
            "rehearse",
        }  # they refuse some, and have own tests
        assert taking == listed - {"async_pandas_udf"} | others

    @entry_points
    def test_type_checkers_see_them(self, point: EntryPoint) -> None:
        """By `Unpack` of the TypedDict, so that editors and type checkers see every option."""
        annotation = point.signature.__annotations__["options"]
        assert eval(annotation, point.signature.__globals__) == typing.Unpack[point.options]

    @pytest.mark.parametrize("name", ["ordered_wait", "unordered_wait", "AsyncStream.ordered_wait"])
    def test_an_order_that_the_name_says_already_is_refused(self, name: str) -> None:
        with pytest.raises(OptionError, match="output_mode is said by the name of the function already"):
            ENTRY_POINTS[name].give(output_mode="ordered")

    @entry_points
    @options
    def test_a_misspelt_option_is_refused_with_the_right_name(self, point: EntryPoint, name: str) -> None:
        with pytest.raises(OptionError, match=f"unknown option '{name[:-1]}'; did you mean '{name}'"):
            point.give(**{name[:-1]: None})

    @entry_points
    @options
    def test_a_bad_value_is_refused_with_the_name_of_its_option(self, point: EntryPoint, name: str) -> None:
        with pytest.raises((OptionError, asyncudf.FunctionError), match=name):
            point.give(**{name: BAD[name]})


def takes_options(function: Callable[..., Any]) -> bool:
    """Whether a function takes any `**options`."""
    return bool(function.__code__.co_flags & inspect.CO_VARKEYWORDS) and "options" in function.__code__.co_varnames


# What users write when they want what they would have without the option; where no option is a default, it is here.
AS_WRITTEN: dict[str, Any] = {
    "output_mode": "ordered",
    "capacity": 100,
    "max_buffered_bytes": 256 * 2**20,
    "timeout": 180.0,
    "on_error": "raise",
    "on_null_input": "call",
    "extra_fields": "drop",
    "split_failed": False,
    "open_timeout": 60.0,
    "deterministic": False,
    "loop": "auto",
    "on_store_error": "call",
    "store_timeout": 1.0,
    "on_spent": "raise",
}
NEEDED_FIRST = ["capacity", "timeout", "attempt_timeout", "retry", "on_error", "rate_limit", "store", "resources"]
TAKING = [async_pandas_udf, AsyncUDF.with_options, ordered_wait, unordered_wait, AsyncStream.ordered_wait]
TAKING += [AsyncStream.unordered_wait, LookupTable, dry_run, rehearse, async_sink, stream_sink, sink_source]
TAKING += [batch_handler, run_rows, OperatorHarness]
taking = pytest.mark.parametrize("function", TAKING, ids=lambda one: one.__qualname__)


def shown(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The options that a signature shows, in its order."""
    found = inspect.signature(function).parameters
    assert "options" not in found
    assert [one for one in found.values() if one.kind is inspect.Parameter.VAR_KEYWORD] == []
    return {name: one for name, one in found.items() if name in FIELDS}


class TestSignatures:
    """`help()`, the completion of notebooks and `inspect.signature` show every option with its default."""

    @taking
    def test_each_shows_every_option_and_those_needed_first_come_first(self, function: Callable[..., Any]) -> None:
        names = [name for name in shown(function) if name != "output_mode"]
        assert names == [name for name in FIELDS if name != "output_mode"]
        assert names[: len(NEEDED_FIRST)] == NEEDED_FIRST

    def test_the_operators_and_sinks_say_their_order_by_their_names(self) -> None:
        unnamed = [one for one in TAKING if "output_mode" in shown(one)]
        assert unnamed == [async_pandas_udf, AsyncUDF.with_options, batch_handler, run_rows, OperatorHarness]

    def test_defaults_are_what_users_write(self) -> None:
        defaults = {name: one.default for name, one in shown(async_pandas_udf).items()}
        assert defaults == {**dict.fromkeys(FIELDS), **AS_WRITTEN}
        assert all(type(value) in (str, int, float, bool, type(None)) for value in defaults.values())

    @pytest.mark.parametrize("function", [async_sink, stream_sink, LookupTable, OperatorHarness])
    def test_each_default_can_be_given(self, function: Callable[..., Any]) -> None:
        given = {name: one.default for name, one in shown(function).items()}
        assert Options.of(given).to_plain().items() >= {"capacity": 100, "on_error": given["on_error"]}.items()

    def test_the_defaults_that_are_written_are_those_that_hold(self) -> None:
        assert Options.of({name: one.default for name, one in shown(async_pandas_udf).items()}) == Options()

    @pytest.mark.parametrize(
        ("function", "others"),
        [(async_sink, {"on_error": "dead_letter", "max_failures": 0.5}), (LookupTable, {"on_error": "capture"})],
    )
    def test_an_entry_point_shows_its_own_defaults(
        self, function: Callable[..., Any], others: Mapping[str, Any]
    ) -> None:
        usual = {name: one.default for name, one in shown(ordered_wait).items()}
        assert {name: one.default for name, one in shown(function).items()} == {**usual, **others}

    def test_a_copy_keeps_what_is_not_given(self) -> None:
        assert {one.default for one in shown(AsyncUDF.with_options).values()} == {...}

    @taking
    def test_the_types_are_those_that_type_checkers_see(self, function: Callable[..., Any]) -> None:
        seen = {name: hint.__forward_arg__ for name, hint in FunctionOptions.__annotations__.items()}
        types_shown = {name: one.annotation for name, one in shown(function).items()}
        if function is run_rows:
            assert types_shown.pop("output_mode").startswith(seen["output_mode"])  # None there: as the function has it
        assert types_shown == {name: seen[name] for name in types_shown}

    def test_help_shows_them(self) -> None:
        text = pydoc.plain(pydoc.render_doc(ordered_wait))
        assert re.search(r"attempt_timeout: '?Seconds \| None'? = None", text), "without quotes from Python 3.14 on"
        assert re.search(r"on_error: .*? = 'raise',\s+rate_limit: ", text, flags=re.DOTALL)

    def test_help_of_a_class_shows_them(self) -> None:
        assert re.search(r"store_timeout: '?Seconds'? = 1\.0", pydoc.plain(pydoc.render_doc(LookupTable)))

    @pytest.mark.parametrize("by_jedi", [True, False])
    @pytest.mark.parametrize("before", ["async_pandas_udf('int', ", "ordered_wait(df, call, ", "udf.with_options("])
    def test_notebooks_complete_them(self, before: str, by_jedi: bool) -> None:
        completer = pytest.importorskip("IPython.core.completer")
        names = {"async_pandas_udf": async_pandas_udf, "ordered_wait": ordered_wait, "udf": async_pandas_udf(call)}
        found = completer.IPCompleter(namespace=names)
        found.use_jedi = by_jedi
        with completer.provisionalcompleter():
            given = {one.text for one in found.completions(before + "att", len(before) + 3)}
        assert "attempt_timeout=" in given

    def test_a_function_that_names_them_travels(self) -> None:
        """By value too, as a module that `ship` has not sent: a signature is plain data."""
        again = cloudpickle.loads(cloudpickle.dumps(inspect.signature(ordered_wait)))
        assert again == inspect.signature(ordered_wait)
        assert pickle.loads(pickle.dumps(ordered_wait)) is ordered_wait


class TestDocstring:
    """`help(async_pandas_udf)` is where options are told."""

    def told(self) -> dict[str, str]:
        """The paragraph of each argument."""
        text = inspect.getdoc(async_pandas_udf) or ""
        arguments = text.partition("\nArgs:\n")[2].partition("\n\n")[0]
        found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", arguments, flags=re.MULTILINE)
        return {name: " ".join(told.split()) for name, told in found}

    def test_each_option_is_told_in_the_order_of_the_fields(self) -> None:
        assert list(self.told()) == ["f", "returnType", *FIELDS]

    def test_the_defaults_are_those_of_the_fields(self) -> None:
        """A number is told as "100 unless given", and every number is told."""
        usual = Options()

        async def vectorized(x: pd.Series) -> pd.Series:
            return x

        numbers = {
            "capacity": str(usual.capacity),
            "max_buffered_bytes": f"{(usual.max_buffered_bytes or 0) // 2**20} MiB",
            "timeout": f"{usual.timeout:g}",
            "batch_size": str(group_rows(read_function(vectorized, usual), usual)),
            "store_timeout": f"{usual.store_timeout:g}",
            "open_timeout": f"{usual.open_timeout:g}",
        }
        told = {name: re.search(r"(\d[^;.:]*?) unless given", text) for name, text in self.told().items()}
        assert {name: found[1] for name, found in told.items() if found} == numbers
        assert {name for name, field in FIELDS.items() if type(field.default) in (int, float)} <= numbers.keys()


@pytest.mark.parametrize("value", ["a customer's name", float("nan"), 0, True, {"a": 1}, call])
def test_what_users_give_as_data_is_not_told(value: Any) -> None:
    """The configuration of a run goes to logs and pages; it is strict JSON too."""
    told = Options.of({"on_timeout": value, "timeout": 5}).to_plain()
    assert (told["on_timeout"], told["timeout"], told["on_error"]) == ("given", 5.0, "raise")
    assert Options().to_plain()["on_timeout"] is None
    json.dumps(told, allow_nan=False)


LIMITS = [RateLimit(20), RateLimit(95_000, per="minute", cost=len, name="model")]
UNBOUNDED = {"capacity": 7, "max_buffered_bytes": None}


@pytest.mark.parametrize(
    ("given", "name", "told"),
    [
        ({"capacity": 40}, "capacity", 40),
        ({"capacity": "auto"}, "capacity", "auto"),
        ({"capacity": AdaptiveCapacity()}, "capacity", "auto"),
        ({"capacity": AdaptiveCapacity(4, 40)}, "capacity", "4 to 40"),
        ({}, "rate_limit", None),
        ({"rate_limit": LIMITS}, "rate_limit",
         'RateLimit(20), RateLimit(95_000, per="minute", cost=len, name="model")'),
        # A password or a folder is not for the readers of a report.
        ({"store": ResultStore.redis("redis://:secret@host:6379", ttl=60, error_ttl=5)}, "store",
         "ResultStore.redis(ttl=60, error_ttl=5)"),
        ({"store": ResultStore.disk("/private/folder")}, "store", "ResultStore.disk()"),
        ({"store": ResultStore.executor()}, "store", "ResultStore.executor()"),
        ({"store": MemoryStore()}, "store", "MemoryStore()"),
        ({"max_failures": 0.02, "on_error": "null"}, "max_failures", 0.02),
        # The rows of a queue, where their number is the bound; of the calls that wait for the breaker too.
        ({"capacity": 7}, "queue_size", None),
        ({"queue_size": 500}, "queue_size", 500),
        (UNBOUNDED, "queue_size", 700),
        ({**UNBOUNDED, "breaker": CircuitBreaker(window=20)}, "queue_size", 2_700),
    ],
)  # fmt: skip
def test_a_report_tells_the_options(given: dict[str, Any], name: str, told: Any) -> None:
    assert Options.of(given).to_plain()[name] == told
