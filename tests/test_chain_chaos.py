"""Random chains with random latencies and failures on the virtual clock: every row is accounted for once."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncudf import (
    DEAD_LETTERS,
    AsyncStream,
    AsyncUDFError,
    OutputTag,
    ProcessFunction,
    RetryStrategy,
    RuntimeContext,
    WatermarkStrategy,
)
from asyncudf.testing import run_stream

SIDE = OutputTag("side", "n long")


@dataclasses.dataclass
class Wait:
    """An async operator whose calls play one of its behaviours each."""

    mode: str
    capacity: int
    spare: int
    behaviours: list[str]
    retry: bool
    running: int = 0
    peak: int = 0

    def add(self, stream: AsyncStream, number: int) -> AsyncStream:
        return getattr(stream, f"{self.mode}_wait")(  # type: ignore[no-any-return]
            self.call,
            "n",
            returnType=f"wait{number} long",
            capacity=self.capacity,
            queue_size=self.capacity + self.spare,
            timeout=20,
            retry=RetryStrategy.fixed_delay(2, 1.5) if self.retry else None,
            on_error="dead_letter",
        )

    async def call(self, n: int, context: RuntimeContext) -> dict[str, int]:
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await self.play(self.behaviours[n % len(self.behaviours)], n, context)
        finally:
            self.running -= 1
        return {self.field: n}

    field = ""

    async def play(self, behaviour: str, n: int, context: RuntimeContext) -> None:
        match behaviour.split():
            case ["wait", seconds]:
                await asyncio.sleep(float(seconds))
            case ["write"]:
                context.output(SIDE, {"n": -1 - n})  # an extra row, told from those that left the stream
                await asyncio.sleep(1)
            case ["raise"]:
                raise ValueError
            case ["once"]:
                context.output(SIDE, {"n": -1 - n})
                await asyncio.sleep(0.5)
                if context.attempt_number == 1:
                    raise ConnectionError
            case ["hang"]:
                await asyncio.get_running_loop().create_future()


class Divert(ProcessFunction):
    """Some rows leave for the side output."""

    def __init__(self, every: int) -> None:
        self.every = every

    def process_element(self, value: Any, context: Any, collector: Any) -> None:
        if value["n"] % self.every:
            collector.collect(value)
        else:
            context.output(SIDE, {"n": value["n"]})


class Marks(ProcessFunction):
    """The row and the watermark that it came behind."""

    def process_element(self, value: Any, context: Any, collector: Any) -> None:
        collector.collect({"n": value["n"], "time": context.timestamp, "mark": context.watermark})


BEHAVIOUR = st.sampled_from(["instant", "wait 1", "wait 3", "wait 0", "write", "raise", "once", "hang"])
WAIT = st.builds(
    Wait,
    mode=st.sampled_from(["ordered", "unordered"]),
    capacity=st.integers(1, 4),
    spare=st.integers(0, 6),
    behaviours=st.lists(BEHAVIOUR, min_size=1, max_size=5),
    retry=st.booleans(),
)
STEP = st.one_of(WAIT, WAIT, st.tuples(st.sampled_from(["filter", "divert", "map", "union"]), st.integers(2, 4)))


def add(stream: AsyncStream, step: Any, number: int) -> AsyncStream:
    match step:
        case Wait():
            step.field = f"wait{number}"
            return step.add(stream, number)
        case ("filter", every):
            return stream.filter(lambda row: row["n"] % every != 1)
        case ("divert", every):
            return stream.process(Divert(every))
        case ("union", every):
            odd = stream.filter(lambda row: row["n"] % every == 0)
            return odd.map(lambda row: row).union(stream.filter(lambda row: row["n"] % every != 0))
        case _:
            return stream.map(lambda row: dict(row))


@settings(max_examples=250)
@given(
    steps=st.lists(STEP, min_size=1, max_size=5),
    count=st.integers(0, 25),
    batch_size=st.integers(1, 9),
    interval=st.integers(1, 4),
    reuse=st.booleans(),
)
def test_every_row_ends_in_one_place_and_no_watermark_is_overtaken(
    steps: list[Any], count: int, batch_size: int, interval: int, reuse: bool
) -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps("n", interval=interval)

    def chain(stream: AsyncStream) -> dict[str, AsyncStream]:
        stream = stream.assign_timestamps_and_watermarks(strategy)
        for number, step in enumerate(steps):
            stream = add(stream, step, number)
        stream = stream.process(Marks(), "n long, time long, mark long")
        waits = any(isinstance(step, Wait) for step in steps)
        dead = {"dead": stream.side_output(DEAD_LETTERS)} if waits else {}
        return {"main": stream, "side": stream.side_output(SIDE), **dead}

    rows = [{"n": n} for n in range(count)]
    got = run_stream(chain, rows, "n long", batch_size=batch_size, object_reuse=reuse, latency_interval=2.0)
    ends = Counter(row["n"] for name in got for row in got[name] if row["n"] >= 0)
    filters = [step[1] for step in steps if isinstance(step, tuple) and step[0] == "filter"]
    for n in range(count):
        assert ends[n] == 1 or (ends[n] == 0 and any(n % every == 1 for every in filters))
    for row in got["main"]:
        assert not any(row["n"] % every == 1 for every in filters)
        assert row["time"] == row["n"]
        assert row["mark"] is None or row["mark"] < row["n"]
    for step in steps:
        if isinstance(step, Wait):
            assert step.running == 0
            assert step.peak <= step.capacity
    if not any(step[0] == "union" if isinstance(step, tuple) else step.mode == "unordered" for step in steps):
        assert [row["n"] for row in got["main"]] == sorted(row["n"] for row in got["main"])


@settings(max_examples=100)
@given(steps=st.lists(WAIT, min_size=1, max_size=4), count=st.integers(1, 20), bad=st.integers(0, 19))
def test_a_failure_anywhere_leaves_nothing_running(steps: list[Wait], count: int, bad: int) -> None:
    def broken(row: dict[str, Any]) -> bool:
        if row["n"] == bad % count:
            raise RuntimeError("broken")
        return True

    for step in steps:
        step.behaviours = [b for b in step.behaviours if b not in ("raise", "hang", "once")] or ["wait 1"]

    def chain(stream: AsyncStream) -> AsyncStream:
        for number, step in enumerate(steps):
            stream = add(stream, step, number)
        return stream.filter(broken)

    with pytest.raises(AsyncUDFError, match="broken failed"):
        run_stream(chain, [{"n": n} for n in range(count)], "n long")
    assert [step.running for step in steps] == [0] * len(steps)
