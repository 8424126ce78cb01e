"""`redact=True`: what is shown of a failed row never has its values in it, however the error came about."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from asyncudf import AsyncStream, AsyncUDFError, OutputTag, ProcessFunction, ResultError, RuntimeContext
from asyncudf._errors.records import misfit_error
from asyncudf._spark.errors import Telling
from asyncudf.testing import run_rows, run_stream

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
    with pytest.raises(AsyncUDFError) as failed, Telling()():
        run_stream(build, [{"city": "SECRET"}], "city string", redact=True)
    return "".join(traceback.format_exception_only(failed.value))


@pytest.mark.parametrize("function", [Collects(), Outputs()], ids=["collect", "output"])
def test_the_traceback_of_a_misfit_in_a_process_function_shows_its_type_only(function: ProcessFunction) -> None:
    shown = shown_on_spark(lambda stream: stream.process(function).side_output(NUMBERS))
    assert "SECRET" not in shown
    assert "in process_element" in shown


@pytest.mark.parametrize("function", [outputs, wraps, handles, groups])
def test_the_traceback_of_a_side_output_s_misfit_shows_its_type_only(function: Any) -> None:
    shown = shown_on_spark(lambda stream: stream.ordered_wait(function).side_output(NUMBERS))
    assert "SECRET" not in shown
    assert "side output 'numbers' returned a str in field 'number': declared int32" in shown


def test_a_captured_group_has_the_type_of_a_misfit_only() -> None:
    async def call(city: str) -> str:
        raise ExceptionGroup("some", [misfit_error("f returned", city, ": declared int32")])

    (result,) = run_rows(call, ["SECRET"], on_error="capture", redact=True)
    assert result["error"]["message"] == "some (1 sub-exception): ResultError: f returned a str: declared int32"
