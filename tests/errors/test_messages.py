"""What messages say of users' values and exceptions: short, without secrets, and never an error themselves."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from asyncudf import (
    DEAD_LETTERS,
    AsyncFunction,
    AsyncUDFError,
    OptionError,
    OutputTag,
    ProcessFunction,
    ResultError,
    RetryStrategy,
    RuntimeContext,
)
from asyncudf._errors.traces import trace_of
from asyncudf._spark.errors import Telling
from asyncudf._text.safe import safe_repr, safe_str
from asyncudf.testing import run_rows, run_stream


class Raises:
    """Fails in all the ways in which a value can be asked."""

    def __init__(self, error: BaseException) -> None:
        object.__setattr__(self, "error", error)

    def __repr__(self) -> str:
        raise object.__getattribute__(self, "error")

    def __getattribute__(self, name: str) -> Any:
        raise object.__getattribute__(self, "error")


class Nameless(type):
    @property
    def __name__(cls) -> str:  # type: ignore[override]
        raise RuntimeError("no name")


class OfNameless(metaclass=Nameless):
    def __repr__(self) -> str:
        raise RuntimeError("no text")


class NoList(list):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        raise SystemExit


NoList.__name__ = "list"


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


class Deep:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"Deep({self.inner!r})"


def deep(depth: int) -> Any:
    inner: Any = None
    for _ in range(depth):
        inner = Deep(inner)
    return inner


SHOWN: dict[str, tuple[Any, str]] = {
    "a long number": (10**5000, "<int of 16610 bits>"),
    "a long number inside": ([1, {"n": -(10**5000)}], "[1, {'n': <int of 16610 bits>}]"),
    "a number": (10**30, "1" + "0" * 30),
    "repr raises": (Raises(RuntimeError()), "<Raises that cannot be printed>"),
    "repr exits": ((1, Raises(SystemExit())), "(1, <Raises that cannot be printed>)"),
    "repr is interrupted": (Raises(KeyboardInterrupt()), "<Raises that cannot be printed>"),
    "the class has no name": (OfNameless(), "<OfNameless that cannot be printed>"),
    "a list that is none": (NoList([1]), "<list that cannot be printed>"),
    "deep lists": (nested(100_000), "[[[[[[[...]]]]]]]"),
    "deep objects": (deep(100_000), "<Deep that cannot be printed>"),
    "half an emoji": ("\ud83d", "'\\ud83d'"),
    "a URL": ("https://me:secret@example.com?key=secret", "'https://***@example.com?***'"),
    "a URL in an object": (Deep("https://me:secret@example.com"), "Deep('https://***@example.com')"),
    "a URL that would be cut in its password": (
        {"u": f"https://me:{'secret' * 30}@example.com"},
        "{'u': 'https://***@example.com'}",
    ),
    "a URL that would be cut in its token": (
        [f"https://{'token' * 30}@example.com/{'p' * 40}"],
        f"['https://***@example.com/{'p' * 40}']",
    ),
}


@pytest.mark.parametrize("case", SHOWN)
def test_any_value_can_be_shown(case: str) -> None:
    value, text = SHOWN[case]
    assert safe_repr(value) == text


def test_a_long_value_is_shortened() -> None:
    assert len(safe_repr("x" * 10**6)) < 100
    assert len(safe_repr(Deep("x" * 10**6))) < 100
    assert len(safe_repr(b"x" * 10**6)) < 100


class UnprintableError(Exception):
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __str__(self) -> str:
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError(), SystemExit(), KeyboardInterrupt(), GeneratorExit()])
def test_an_exception_whose_text_raises_anything_is_told_all_the_same(error: BaseException) -> None:
    name = type(error).__name__
    assert safe_str(UnprintableError(error)) == f"<unprintable: {name}>"

    async def fails(x: int) -> int:
        raise UnprintableError(error)

    got = run_rows(fails, [1], on_error="capture")
    assert (got[0]["error"]["type"], got[0]["error"]["message"]) == ("UnprintableError", f"<unprintable: {name}>")


def test_a_text_that_is_no_plain_string_is_made_one() -> None:
    class Text(str):
        def encode(self, *arguments: Any) -> bytes:
            raise RuntimeError("no bytes")

    class OddError(Exception):
        def __str__(self) -> str:
            return Text("odd")

    assert type(safe_str(OddError())) is str
    assert safe_str(OddError()) == "odd"


class NoTraceError(Exception):
    @property
    def __traceback__(self) -> Any:  # type: ignore[override]
        raise KeyboardInterrupt


def test_a_traceback_that_cannot_be_printed_is_told_as_such() -> None:
    assert trace_of(NoTraceError()) == "<a traceback that cannot be printed: KeyboardInterrupt>\n"


def raised(call: Callable[[], Any]) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever it is
        call()
    return caught.value


def told(call: Callable[[], Any], *, full: bool = False, monkeypatch: pytest.MonkeyPatch) -> str:
    """What Spark's handler of exceptions makes of an error, as far as it is ours to say."""
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")

    def run() -> None:
        with Telling(full)():
            call()

    error = raised(run)
    assert error.__cause__ is None
    assert os.environ["SPARK_HIDE_TRACEBACK"] == ("" if full else "1")
    return f"{error}\n{''.join(getattr(error, '__notes__', []))}"


async def asks(city: str) -> int:
    await asyncio.sleep(0)
    return int(json.loads(city)["temp"])


async def waits(city: str) -> int:
    return await asyncio.wait_for(asks(city), 5)


def test_the_users_frames_and_those_of_its_libraries_are_shown_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    text = told(lambda: run_rows(waits, ["{"]), monkeypatch=monkeypatch)
    assert text.startswith("waits failed in attempt 1, partition 0, for the input ('{',): JSONDecodeError: ")
    functions = [line.split()[-1] for line in text.splitlines() if line.startswith("  File ")]
    assert functions == ["waits", "asks", "loads", "decode", "raw_decode"]
    assert text.rstrip().endswith("(char 1)")


def test_with_the_switch_all_frames_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    text = told(lambda: run_rows(waits, ["{"]), full=True, monkeypatch=monkeypatch)
    assert "fast_path.py" in text
    assert "tasks.py" in text or "timeouts.py" in text


@pytest.mark.parametrize(("value", "full"), [("1", True), ("yes", True), ("0", False), ("", False), (None, False)])
def test_the_switch_is_read_where_the_query_is_planned(
    monkeypatch: pytest.MonkeyPatch, value: str | None, full: bool
) -> None:
    monkeypatch.delenv("ASYNCUDF_FULL_TRACEBACK", raising=False)
    if value is not None:
        monkeypatch.setenv("ASYNCUDF_FULL_TRACEBACK", value)
    assert Telling().full is full


def test_the_frames_of_causes_contexts_and_groups_are_the_users_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def grouped(city: str) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asks(city))
        except* ValueError as errors:
            raise LookupError("https://me:secret@example.com?key=secret") from errors

    text = told(lambda: run_rows(grouped, ["{"]), monkeypatch=monkeypatch)
    frames = {line.split('"')[1] for line in text.splitlines() if line.strip("| +").startswith("File ")}
    assert frames <= {__file__, json.__file__, json.decoder.__file__}
    assert "The above exception was the direct cause" in text
    assert "JSONDecodeError" in text
    assert "https://***@example.com?***" in text
    assert "secret" not in text.replace('"https://me:secret@example.com?key=secret"', "")  # the line of code


def test_what_has_no_frames_of_the_users_is_told_by_its_message_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hangs(x: int) -> int:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    text = told(lambda: run_rows(hangs, [1], timeout=5), monkeypatch=monkeypatch)
    assert text == "hangs failed in attempt 1, partition 0, for the input (1,): no result within 5 s\n"


def test_an_error_that_is_none_of_the_librarys_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    with pytest.raises(EOFError), Telling(False)():
        raise EOFError
    assert os.environ["SPARK_HIDE_TRACEBACK"] == ""


def test_without_spark_an_error_keeps_its_cause_and_has_no_notes() -> None:
    error = raised(lambda: run_rows(waits, ["{"]))
    assert isinstance(error.__cause__, json.JSONDecodeError)
    assert not hasattr(error, "__notes__")


SECRET = "https://me:secret@example.com?key=secret"


class SecretError(Exception):
    pass


async def leaks(url: str) -> int:
    raise SecretError(f"cannot open {url}")


def test_urls_are_clean_in_raised_captured_and_dead_letters() -> None:
    clean = "cannot open https://***@example.com?***"
    error = raised(lambda: run_rows(leaks, [SECRET]))
    assert str(error).endswith(f"for the input ('https://***@example.com?***',): SecretError: {clean}")
    assert run_rows(leaks, [SECRET], on_error="capture")[0]["error"]["message"] == clean
    sides: dict[OutputTag, list[Any]] = {}
    run_rows(leaks, [SECRET], on_error="dead_letter", side_outputs=sides)
    assert sides[DEAD_LETTERS][0]["error"]["message"] == clean


async def misfits(name: str, age: int) -> Any:
    return {"name": name}


class Misfits(AsyncFunction):
    async def async_invoke(self, value: Any, result_future: Any) -> None:
        result_future.complete(value["name"])


async def vector(names: pd.Series) -> pd.Series:
    raise ValueError("no")


REDACTED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a scalar function": (
        lambda redact: run_rows(misfits, [("Ann", 7)], returnType="int", redact=redact),
        "for the input <redacted: str, int>: misfits returned a dict: declared int32",
    ),
    "an AsyncFunction": (
        lambda redact: run_rows(Misfits(), [{"name": "Ann", "age": 7}], redact=redact),
        "for the input <redacted: str, int>: Misfits completed a row with a str; give a list of results",
    ),
    "a micro-batch": (
        lambda redact: run_rows(vector, ["Ann", "Ann"], redact=redact),
        "for the input [<redacted: str>, <redacted: str>]: ValueError: no",
    ),
    "a plain function": (
        lambda redact: chain(lambda s: s.map(lambda row: {"name": 5 / 0}), redact),
        "map failed, partition 0, for the input <redacted: str>: ZeroDivisionError",
    ),
    "a plain function's misfit": (
        lambda redact: chain(lambda s: s.map(lambda row: row, "int"), redact),
        "map failed, partition 0, for the input <redacted: str>: map returned a dict: declared int32",
    ),
    "a flat_map": (
        lambda redact: chain(lambda s: s.flat_map(lambda row: row["name"]), redact),
        "not a str",
    ),
    "a filter": (
        lambda redact: chain(lambda s: s.filter(lambda row: row["age"]), redact),
        "filter failed, partition 0, for the input <redacted: str>: KeyError: 'age'",
    ),
    "a process function": (
        lambda redact: chain(lambda s: s.process(Rejects()).side_output(LOG), redact),
        "for the input <redacted: str>: side output 'log' returned a str in field 'n': declared int32",
    ),
    "a field that Arrow refuses": (
        lambda redact: run_rows(tag, ["Ann"], returnType="decimal(3,0)", redact=redact),
        "tag returned a Decimal: declared decimal128(3, 0)",
    ),
    "a misspelled field": (
        lambda redact: run_rows(misfits, [("Ann", 7)], returnType="nome string", redact=redact),
        "misfits returned a dict: declared struct<nome>",
    ),
}


async def tag(name: str) -> Any:
    return __import__("decimal").Decimal("12345")


LOG = OutputTag("log", "n int")


class Rejects(ProcessFunction):
    def process_element(self, value: Any, context: Any, collector: Any) -> None:
        context.output(LOG, {"n": value["name"]})


def chain(build: Callable[[Any], Any], redact: Any) -> Any:
    return run_stream(build, [{"name": "Ann"}], "name string", redact=redact)


@pytest.mark.parametrize("case", REDACTED)
def test_redacted_inputs_and_results_do_not_appear(case: str) -> None:
    call, said = REDACTED[case]
    text = str(raised(lambda: call(True)))
    assert said in text
    assert "Ann" not in text
    assert "12345" not in text
    assert any(shown in str(raised(lambda: call(False))) for shown in ("Ann", "12345")), "or there was nothing to hide"


@pytest.mark.parametrize(
    ("redact", "shown"),
    [
        (lambda row: row[0][:1] + ".", "A."),
        (lambda row: {"age": row[1]}, "{'age': 7}"),
        (lambda row: row.missing, "<redact failed: AttributeError>"),
        (lambda row: sys.exit(), "<redact failed: SystemExit>"),
        (lambda row: "x" * 1000, "x" * 38 + "..." + "x" * 38),
        (lambda row: Raises(SystemExit()), "<Raises that cannot be printed>"),
        (lambda row: SECRET, "https://***@example.com?***"),
    ],
)
def test_a_redact_function_says_what_is_shown(redact: Any, shown: str) -> None:
    text = str(raised(lambda: run_rows(misfits, [("Ann", 7)], returnType="int", redact=redact)))
    assert f"for the input {shown}: misfits returned a dict" in text


def test_a_redact_function_gets_the_value_of_a_single_argument() -> None:
    text = str(raised(lambda: run_rows(leaks, ["Ann"], redact=lambda name: f"{len(name)} letters")))
    assert "for the input 3 letters: SecretError: cannot open Ann" in text  # what the user's own error says is its own


def test_a_function_of_a_chain_may_redact_otherwise_than_the_chain() -> None:
    async def own(name: str) -> int:
        raise ValueError

    error = raised(lambda: chain(lambda s: s.ordered_wait(own, returnType="int", redact=lambda name: "own"), True))
    assert "for the input own: ValueError" in str(error)
    error = raised(lambda: chain(lambda s: s.ordered_wait(own, returnType="int"), True))
    assert "for the input <redacted: str>: ValueError" in str(error)


@pytest.mark.parametrize("redact", ["yes", 1, asks])
def test_something_else_than_true_or_a_plain_function_cannot_redact(redact: Any) -> None:
    with pytest.raises(OptionError, match="redact must be True or a plain function of the input, not "):
        run_rows(leaks, ["a"], redact=redact)


async def fetch(x: int) -> int:
    return x


async def ticks(x: int) -> Any:
    yield x


class Awaitable:
    def __await__(self) -> Any:
        yield


async def forgets(x: int) -> Any:
    return fetch(x)


async def forgets_inside(x: int) -> Any:
    return {"a": [1, fetch(x), fetch(x)], "b": None}


async def forgets_to_iterate(x: int) -> Any:
    return ticks(x)


async def returns_awaitable(x: int) -> Any:
    return Awaitable()


async def yields_one(x: int) -> Any:
    yield fetch(x)


class Completes(AsyncFunction):
    async def async_invoke(self, value: Any, result_future: Any) -> None:
        result_future.complete([fetch(value)])


class CompletesWithOne(AsyncFunction):
    async def async_invoke(self, value: Any, result_future: Any) -> None:
        result_future.complete(fetch(value))


async def vectors_one(x: pd.Series) -> pd.Series:
    return fetch(1)  # type: ignore[return-value]


async def vectors_inside(x: pd.Series) -> pd.Series:
    return pd.Series([fetch(1), fetch(2)])


FORGETFUL = [
    forgets, forgets_inside, forgets_to_iterate, returns_awaitable, yields_one, Completes(), CompletesWithOne(),
    vectors_one, vectors_inside,
]  # fmt: skip
TYPES = [
    None, "int", "bigint", "double", "float", "string", "binary", "boolean", "date", "timestamp", "timestamp_ntz",
    "decimal(5,2)", "array<int>", "map<string,int>", "a array<int>, b int",
]  # fmt: skip


@pytest.mark.parametrize("function", FORGETFUL, ids=lambda f: getattr(f, "__name__", type(f).__name__))
def test_a_result_that_was_not_awaited_says_so_and_does_not_complain_as_well(function: Any) -> None:
    word = "async for" if function is forgets_to_iterate else "await"
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a coroutine that is never awaited
        for kind in TYPES:
            if function is forgets_inside and kind not in (None, "a array<int>, b int"):
                continue
            error = raised(lambda: run_rows(function, [1, 2], returnType=kind))  # noqa: B023
            assert isinstance(error, ResultError), kind
            assert f"{word} is missing" in str(error), kind
            del error
        gc.collect()


def test_coroutines_in_a_result_that_fails_for_another_reason_do_not_complain() -> None:
    async def wrong(x: int) -> Any:
        return {"c": fetch(x), "d": [fetch(x)]}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = run_rows(wrong, [1], returnType="a int", on_error="capture")
        gc.collect()
    assert "missing field 'a'" in got[0]["error"]["message"]


def test_a_task_as_a_result_was_not_awaited_either() -> None:
    async def gives_its_task(x: int) -> Any:
        return asyncio.ensure_future(fetch(x))

    error = raised(lambda: run_rows(gives_its_task, [1], returnType="int"))
    assert "(Task): await is missing" in str(error)


def test_a_coroutine_that_runs_already_is_left_alone() -> None:
    async def slowly(x: int) -> int:
        await asyncio.sleep(5)
        return x

    async def gives_what_runs(x: int) -> Any:
        if x:
            return await tasks[0]
        coroutine = slowly(7)
        tasks.append(asyncio.ensure_future(coroutine))
        await asyncio.sleep(1)
        return coroutine

    tasks: list[Any] = []
    first, second = run_rows(gives_what_runs, [0, 1], capacity=1, returnType="int", on_error="capture")
    assert "await is missing" in first["error"]["message"]
    assert second == {"value": 7, "error": None}


def test_a_row_whose_result_was_not_awaited_follows_its_policy() -> None:
    async def context_tells(x: int, context: RuntimeContext) -> Any:
        return fetch(x) if context.attempt_number < 3 else x

    retry = RetryStrategy.fixed_delay(attempts=3, delay=1)
    assert run_rows(context_tells, [1], retry=retry, returnType="int") == [1]


def test_all_that_a_task_fails_with_is_an_error_of_the_library() -> None:
    assert isinstance(raised(lambda: run_rows(forgets, [1])), AsyncUDFError)
