"""What cannot work is said when the chain is written down."""

from __future__ import annotations

from typing import Any

import pytest

from asyncudf import (
    DEAD_LETTERS,
    LATENCIES,
    AsyncStream,
    FunctionError,
    OptionError,
    OutputTag,
    ResultError,
    WatermarkStrategy,
)
from asyncudf.testing import run_stream
from tests.kit.chains import first, numbers, second

LOG = OutputTag("log", "n int")


class TestPlans:
    def build(self, wrong: Any) -> None:
        run_stream(wrong, numbers(1), "n int, xs array<int>")

    @pytest.mark.parametrize(
        ("wrong", "said"),
        [
            (lambda s: s.map(first.__wrapped__), "map takes a plain def; for an async def use ordered_wait"),
            (lambda s: s.filter("n > 1"), "filter takes a function of one row"),
            (lambda s: s.process(len), "process takes a ProcessFunction"),
            (lambda s: s.ordered_wait(first, "m"), "unknown column 'm'"),
            (lambda s: s.ordered_wait(first).ordered_wait(first, "n"), "would add a column 'first'"),
            (lambda s: s.side_output(DEAD_LETTERS), "needs an operator with on_error='dead_letter'"),
            (lambda s: s.side_output(LATENCIES), "needs latency_interval"),
            (lambda s: s.ordered_wait(first).side_output(LOG), "needs a ProcessFunction, an AsyncFunction"),
            (lambda s: s.side_output("log"), "takes an OutputTag"),
            (lambda s: s.union(s.map(lambda row: 1, "int")), "union takes streams of the same columns"),
            (lambda s: s.union(3), "union takes branches of the same stream"),
            (lambda s: s.assign_timestamps_and_watermarks("n"), "a WatermarkStrategy is needed"),
            (
                lambda s: s.map(lambda row: row).assign_timestamps_and_watermarks(WatermarkStrategy.per_batch()),
                "assign it before the first operator",
            ),
            (lambda s: s.ordered_wait(first, output_mode="unordered"), "output_mode is said by the name"),
            (lambda s: s.ordered_wait(first, with_watermark_column="w"), "with_watermark_column needs watermark="),
            (lambda s: s.ordered_wait(first, watermark=3), "watermark must be a WatermarkStrategy"),
            (
                lambda s: s.ordered_wait(first, loop="uvloop").ordered_wait(second, loop="asyncio"),
                "share one event loop",
            ),
        ],
    )
    def test_a_mistake_is_named(self, wrong: Any, said: str) -> None:
        with pytest.raises((FunctionError, OptionError), match=said):
            self.build(wrong)

    @pytest.mark.parametrize("loops", [("asyncio",), ("auto", "asyncio", "auto"), ("uvloop", "uvloop"), ("auto",)])
    def test_one_explicit_loop_is_that_of_the_whole_chain(self, loops: tuple[str, ...]) -> None:
        def build(stream: Any) -> Any:
            for number, loop in enumerate(loops):
                stream = stream.ordered_wait(first.__wrapped__, "n", as_=f"first{number}", loop=loop)
            return stream

        assert len(run_stream(build, numbers(1), "n int")) == 1

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"object_reuse": 1}, "object_reuse must be True or False"),
            ({"latency_interval": 0}, "latency_interval must be more than 0 seconds"),
        ],
    )
    def test_an_option_that_cannot_work(self, options: Any, said: str) -> None:
        """Options of the chain are checked as those of a function are."""
        with pytest.raises(OptionError, match=said):
            run_stream(lambda s: s, numbers(1), "n int", **options)

    def test_only_a_dataframe_can_be_chained(self) -> None:
        with pytest.raises(OptionError, match=r"AsyncStream takes a DataFrame, not \[1\]"):
            AsyncStream([1])  # type: ignore[arg-type]

    def test_a_flat_map_that_returns_a_text_is_no_row_for_each_letter(self) -> None:
        with pytest.raises(ResultError, match="a flat_map gives an iterable of rows"):
            run_stream(lambda s: s.flat_map(lambda row: "ab", "string"), numbers(1), "n int")
