"""A whole row that is None: refused where rows are mappings, instead of columns that break their "not null"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from asyncudf import AsyncStream, OutputTag, ProcessFunction, ResultError, RuntimeContext
from asyncudf.testing import run_rows, run_stream

ROWS = [{"x": 1}]
STRUCTS = OutputTag("structs", "x int")
NUMBERS = OutputTag("numbers", "int")


class CollectsNone(ProcessFunction):
    def process_element(self, value: Any, context: Any, collector: Any) -> None:
        collector.collect(None)


class OutputsNone(ProcessFunction):
    def process_element(self, value: Any, context: Any, collector: Any) -> None:
        context.output(STRUCTS, None)


async def outputs_none(x: int, context: RuntimeContext) -> int:
    context.output(STRUCTS, None)
    return x


async def outputs_no_number(x: int, context: RuntimeContext) -> int:
    context.output(NUMBERS, None)
    return x


NONE: dict[str, Callable[[AsyncStream], Any]] = {
    "map": lambda s: s.map(lambda row: row.update(x=2)),
    "map to columns that are not null": lambda s: s.map(lambda row: None, "a int not null"),
    "map to pandas' NA": lambda s: s.map(lambda row: pd.NA),
    "flat_map": lambda s: s.flat_map(lambda row: [None]),
    "process": lambda s: s.process(CollectsNone()),
    "output of a process": lambda s: s.process(OutputsNone()).side_output(STRUCTS),
    "output of a call": lambda s: s.ordered_wait(outputs_none).side_output(STRUCTS),
}


@pytest.mark.parametrize("case", NONE)
def test_a_row_of_none_is_refused(case: str) -> None:
    with pytest.raises(ResultError, match=r"returned None \(NoneType\): a row is a mapping of the columns; give"):
        run_stream(NONE[case], ROWS, "x int")


def test_a_single_value_may_be_none() -> None:
    assert run_stream(lambda s: s.map(lambda row: None, "int"), ROWS, "x int") == [{"value": None}]
    numbers = run_stream(lambda s: s.ordered_wait(outputs_no_number).side_output(NUMBERS), ROWS, "x int")
    assert numbers == [{"value": None}]


def test_a_result_of_none_is_null_in_each_of_its_columns() -> None:
    async def none(x: int) -> None: ...

    assert run_rows(none, [1], returnType="a int not null") == [None]
    rows = run_stream(lambda s: s.ordered_wait(none, returnType="a int not null"), ROWS, "x int")
    assert rows == [{"x": 1, "a": None}]
