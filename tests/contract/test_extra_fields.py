"""`extra_fields`: a service that adds a field breaks nobody, and what is left out is told once a task."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from asyncudf import async_pandas_udf
from asyncudf.testing import run_rows

WEATHER = "temp double, sky string"


async def weather(city: str) -> Any:
    return {"temp": 1.0, "sky": "clear", "wind": 3, "at": city}


def test_fields_that_are_not_declared_are_left_out_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "asyncudf"):
        assert run_rows(weather, ["Oslo", "Rome"], returnType=WEATHER) == [{"temp": 1.0, "sky": "clear"}] * 2
    (record,) = caplog.records
    assert record.getMessage().startswith("weather returned fields 'at', 'wind' that its type does not declare")


def test_each_struct_of_a_result_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    async def nested(x: int) -> Any:
        return {"a": [{"b": x, "c": x}, {"b": x, "d": x}], "e": x}

    assert run_rows(nested, [1, 2], returnType="a array<struct<b: int>>") == [
        {"a": [{"b": x}, {"b": x}]} for x in (1, 2)
    ]
    told = [record.getMessage().split(" that ")[0] for record in caplog.records]
    assert told == ["nested returned field 'e'", "nested returned field 'c' of 'a[]'"]


def test_a_result_without_further_fields_stays_the_object_that_it_is() -> None:
    given = {"temp": 1, "sky": None}

    async def exact(city: str) -> Any:
        return given

    (result,) = run_rows(exact, ["Oslo"], returnType=WEATHER)
    assert result is given


def test_a_field_that_is_missing_is_an_error_as_ever() -> None:
    async def less(city: str) -> Any:
        return {"sky": "clear", "wind": 3}

    (result,) = run_rows(less, ["Oslo"], returnType=WEATHER, on_error="capture")
    assert "missing field 'temp'" in result["error"]["message"]


def test_names_stay_out_of_the_log_where_they_may_be_of_the_input(caplog: pytest.LogCaptureFixture) -> None:
    @async_pandas_udf("n int", redact=True)
    async def secret(x: str) -> Any:
        return {"n": 1, x: 2}

    assert run_rows(secret, ["SECRET"]) == [{"n": 1}]
    assert "further fields (1)" in caplog.text
    assert "SECRET" not in caplog.text


def test_a_name_that_cannot_be_printed_fails_no_row() -> None:
    class Name(str):
        def __repr__(self) -> str:
            raise RuntimeError

    async def named(x: int) -> Any:
        return {"n": x, Name("a"): 1, Name("b"): 2}

    assert run_rows(named, [1], returnType="n int") == [{"n": 1}]
