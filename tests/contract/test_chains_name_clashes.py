"""A column that is there already: the error offers another name only where there is a way to give one."""

from __future__ import annotations

from typing import Any

import pytest

from asyncudf import AsyncStream, FunctionError, WatermarkStrategy
from asyncudf.testing import run_stream


async def x(n: int) -> int:
    return n


def refusal(build: Any) -> str:
    with pytest.raises(FunctionError) as failed:
        run_stream(build, [{"n": 1, "x": 2, "error": 3}], "n int, x int, error int")
    return str(failed.value)


def test_a_result_without_a_name_can_be_given_one() -> None:
    assert refusal(lambda s: s.ordered_wait(x)).endswith("...), or choose the result's with as_=")


def named(stream: AsyncStream) -> Any:
    return stream.ordered_wait(x, as_="x")


def dead_letter(stream: AsyncStream) -> Any:
    return stream.ordered_wait(x, as_="y", on_error="dead_letter")


def watermark(stream: AsyncStream) -> Any:
    strategy = WatermarkStrategy.per_batch()
    return stream.ordered_wait(x, as_="y", watermark=strategy, with_watermark_column="x")


@pytest.mark.parametrize("build", [named, dead_letter, watermark])
def test_a_column_that_as_does_not_name_is_to_be_renamed(build: Any) -> None:
    assert refusal(build).endswith("', ...)")
