"""What is shown of a failed row: nothing of its values with `redact=`, and never the secrets of a URL."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from asyncudf import (
    DEAD_LETTERS,
    AsyncFunction,
    AsyncStream,
    AsyncUDFError,
    OptionError,
    OutputTag,
    ProcessFunction,
    ResultError,
    RuntimeContext,
    http,
)
from asyncudf.testing import run_rows, run_stream
from tests.kit.errors import Raises, in_a_worker, raised

NUMBERS = OutputTag("numbers", "number int")


class Collects(ProcessFunction):
    def process_element(self, value: Any, context: Any, collector: Any) -> None:
        collector.collect({"city": 5, "x": value["city"]})


class Outputs(ProcessFunction):
    def process_element(self, value: Any, context: Any, collector: Any) -> None:
        context.output(NUMBERS, {"number": value["city"]})


async def outputs(city: str, context: RuntimeContext) -> str:
    context.output(NUMBERS, {"number": city})
    return city


async def wraps(city: str, context: RuntimeContext) -> str:
    try:
        return await outputs(city, context)
    except ResultError as error:
        raise ValueError("wrapped") from error


async def handles(city: str, context: RuntimeContext) -> str:
    try:
        return await outputs(city, context)
    except ResultError:
        raise ValueError("while another was handled")  # noqa: B904


async def groups(city: str, context: RuntimeContext) -> str:
    async with asyncio.TaskGroup() as group:
        group.create_task(outputs(city, context))
    return city


def shown_on_spark(build: Callable[[AsyncStream], Any]) -> str:
    with pytest.raises(AsyncUDFError) as failed, in_a_worker():
        run_stream(build, [{"city": "SECRET"}], "city string", redact=True)
    return "".join(traceback.format_exception_only(failed.value))


@pytest.mark.parametrize("function", [Collects(), Outputs()], ids=["collect", "output"])
def test_the_traceback_of_a_mismatch_in_a_process_function_shows_its_type_only(function: ProcessFunction) -> None:
    shown = shown_on_spark(lambda stream: stream.process(function).side_output(NUMBERS))
    assert "SECRET" not in shown
    assert "in process_element" in shown


@pytest.mark.parametrize("function", [outputs, wraps, handles, groups])
def test_the_traceback_of_a_side_output_s_mismatch_shows_its_type_only(function: Any) -> None:
    shown = shown_on_spark(lambda stream: stream.ordered_wait(function).side_output(NUMBERS))
    assert "SECRET" not in shown
    assert "side output 'numbers' returned a str in field 'number': declared int32" in shown


def test_a_captured_group_has_the_type_of_a_mismatch_only() -> None:
    (result,) = run_rows(groups, ["SECRET"], on_error="capture", redact=True)
    assert result["error"]["message"] == (
        "unhandled errors in a TaskGroup (1 sub-exception): "
        "ResultError: side output 'numbers' returned a str in field 'number': declared int32"
    )


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


async def mismatches(name: str, age: int) -> Any:
    return {"name": name}


class Mismatches(AsyncFunction):
    async def async_invoke(self, value: Any, result_future: Any) -> None:
        result_future.complete(value["name"])


async def vector(names: pd.Series) -> pd.Series:
    raise ValueError("no")


REDACTED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a scalar function": (
        lambda redact: run_rows(mismatches, [("Ann", 7)], returnType="int", redact=redact),
        "for the input <redacted: str, int>: mismatches returned a dict: declared int32",
    ),
    "an AsyncFunction": (
        lambda redact: run_rows(Mismatches(), [{"name": "Ann", "age": 7}], redact=redact),
        "for the input <redacted: str, int>: Mismatches completed a row with a str; give a list of results",
    ),
    "a micro-batch": (
        lambda redact: run_rows(vector, ["Ann", "Ann"], redact=redact),
        "for the input [<redacted: str>, <redacted: str>]: ValueError: no",
    ),
    "a plain function": (
        lambda redact: chain(lambda s: s.map(lambda row: {"name": 5 / 0}), redact),
        "map failed, partition 0, for the input <redacted: str>: ZeroDivisionError",
    ),
    "a plain function's mismatch": (
        lambda redact: chain(lambda s: s.map(lambda row: row, "int"), redact),
        "map failed, partition 0, for the input <redacted: str>: map returned a dict: declared int32",
    ),
    "a flat_map": (lambda redact: chain(lambda s: s.flat_map(lambda row: row["name"]), redact), "not a str"),
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
        lambda redact: run_rows(mismatches, [("Ann", 7)], returnType="nome string", redact=redact),
        "mismatches returned a dict: declared struct<nome>",
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
    text = str(raised(lambda: run_rows(mismatches, [("Ann", 7)], returnType="int", redact=redact)))
    assert f"for the input {shown}: mismatches returned a dict" in text


def test_a_redact_function_gets_the_value_of_a_single_argument() -> None:
    text = str(raised(lambda: run_rows(leaks, ["Ann"], redact=lambda name: f"{len(name)} letters")))
    assert "for the input 3 letters: SecretError: cannot open Ann" in text  # what the user's own error says is its own


def test_nor_does_an_error_of_ones_own_around_one_of_ours_show_it() -> None:
    async def raises_own(city: str) -> int:
        raise SecretError(SecretError(http.PermanentError(404, body=f"no {city}")))

    (found,) = run_rows(raises_own, ["Ann"], redact=True, on_error="capture")
    assert "Ann" not in str(found)
    assert "404" in found["error"]["message"]
    (found,) = run_rows(raises_own, ["Ann"], on_error="capture")
    assert "no Ann" in found["error"]["message"]


def test_a_function_of_a_chain_may_redact_otherwise_than_the_chain() -> None:
    async def own(name: str) -> int:
        raise ValueError

    error = raised(lambda: chain(lambda s: s.ordered_wait(own, returnType="int", redact=lambda name: "own"), True))
    assert "for the input own: ValueError" in str(error)
    error = raised(lambda: chain(lambda s: s.ordered_wait(own, returnType="int"), True))
    assert "for the input <redacted: str>: ValueError" in str(error)


@pytest.mark.parametrize("redact", ["yes", 1, leaks])
def test_something_else_than_true_or_a_plain_function_cannot_redact(redact: Any) -> None:
    with pytest.raises(OptionError, match="redact must be True or a plain function of the input, not "):
        run_rows(leaks, ["a"], redact=redact)
