"""Random chains with random latencies and failures on the virtual clock: every row is accounted for once."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
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
TIMEOUT = 20.0


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
    number: int = 0  # its place in the chain

    def add(self, stream: AsyncStream, number: int) -> AsyncStream:
        self.number = number
        return getattr(stream, f"{self.mode}_wait")(  # type: ignore[no-any-return]
            self.call,
            "n",
            returnType=f"wait{number} long",
            capacity=self.capacity,
            queue_size=self.capacity + self.spare,
            timeout=TIMEOUT,
            retry=RetryStrategy.fixed_delay(2, 1.5) if self.retry else None,
            on_error="dead_letter",
        )

    async def call(self, n: int, context: RuntimeContext) -> dict[str, int]:
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await self.play(self.behaviour(n), n, context)
        finally:
            self.running -= 1
        return {f"wait{self.number}": self.answer(n)}

    def answer(self, n: int) -> int:
        return 100 * n + self.number

    def behaviour(self, n: int) -> str:
        return self.behaviours[n % len(self.behaviours)]

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

    def errors(self, n: int) -> set[tuple[str, int] | None]:
        """What may become of a row: the type of its error and its attempts; None: its result."""
        late = ("AsyncTimeoutError", 1)
        # Where calls hang, a second attempt may wait for a slot until it is too late.
        may_be_late = {late} if self.retry and "hang" in self.behaviours else set()
        match self.behaviour(n):
            case "raise":
                return {("ValueError", 2 if self.retry else 1)} | may_be_late
            case "hang":
                return {late}
            case "once":
                # Its second attempt takes half a second, in which it may be too late as well.
                too_late = {(error, attempts + 1) for error, attempts in may_be_late}
                return {None if self.retry else ("ConnectionError", 1)} | may_be_late | too_late
            case _:
                return {None}


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
    """The row with what the operators have added, and the watermark that it came behind."""

    def process_element(self, value: Any, context: Any, collector: Any) -> None:
        added = {name: answer for name, answer in value.items() if name != "n"}
        collector.collect({"n": value["n"], "added": added, "time": context.timestamp, "mark": context.watermark})


BEHAVIOUR = st.sampled_from(["instant", "wait 1", "wait 3", "wait 0", "write", "raise", "once", "hang"])
WAIT = st.builds(
    Wait,
    mode=st.sampled_from(["ordered", "unordered"]),
    capacity=st.integers(1, 4),
    spare=st.integers(0, 6),
    behaviours=st.lists(BEHAVIOUR, min_size=1, max_size=5),
    retry=st.booleans(),
)
OPERATOR = st.one_of(WAIT, WAIT, st.tuples(st.sampled_from(["filter", "divert", "map", "union"]), st.integers(2, 4)))


def add(stream: AsyncStream, operator: Any, number: int) -> AsyncStream:
    match operator:
        case Wait():
            return operator.add(stream, number)
        case ("filter", every):
            return stream.filter(lambda row: row["n"] % every != 1)
        case ("divert", every):
            return stream.process(Divert(every))
        case ("union", every):
            odd = stream.filter(lambda row: row["n"] % every == 0)
            return odd.map(lambda row: row).union(stream.filter(lambda row: row["n"] % every != 0))
        case _:
            return stream.map(lambda row: dict(row))


@dataclasses.dataclass(frozen=True)
class End:
    """What has become of a row."""

    place: str  # "main", "side", "dead" or "nowhere"
    written: int = 0  # rows that it has written to the side output on its way
    added: tuple[int, ...] = ()  # in the main stream: the answers of the operators
    error: tuple[str, int] | None = None  # in the dead letters

    @classmethod
    def of(cls, n: int, operators: list[Any], written: int = 0, added: tuple[int, ...] = ()) -> set[End]:
        """The ends that are right for a row, one in nearly all cases."""
        if not operators:
            return {cls("main", written, added)}
        match operators[0]:
            case Wait() as wait:
                ends = set()
                for error in wait.errors(n):
                    if error is None:
                        more = wait.behaviour(n) in ("write", "once")  # what a failed attempt has written is dropped
                        ends |= cls.of(n, operators[1:], written + more, (*added, wait.answer(n)))
                    else:
                        ends.add(cls("dead", written, error=error))
                return ends
            case ("filter", every) if n % every == 1:
                return {cls("nowhere", written)}
            case ("divert", every) if n % every == 0:
                return {cls("side", written)}
            case _:
                return cls.of(n, operators[1:], written, added)


@given(
    operators=st.lists(OPERATOR, min_size=1, max_size=5),
    count=st.integers(0, 25),
    batch_size=st.integers(1, 9),
    interval=st.integers(1, 4),
    reuse=st.booleans(),
)
def test_every_row_ends_where_it_must_with_its_own_results_and_no_watermark_is_overtaken(
    operators: list[Any], count: int, batch_size: int, interval: int, reuse: bool
) -> None:
    strategy = WatermarkStrategy.for_monotonous_timestamps("n", interval=interval)
    waits = [operator for operator in operators if isinstance(operator, Wait)]

    def chain(stream: AsyncStream) -> dict[str, AsyncStream]:
        stream = stream.assign_timestamps_and_watermarks(strategy)
        for number, operator in enumerate(operators):
            stream = add(stream, operator, number)
        stream = stream.process(Marks(), "n long, added map<string, long>, time long, mark long")
        dead = {"dead": stream.side_output(DEAD_LETTERS)} if waits else {}
        return {"main": stream, "side": stream.side_output(SIDE), **dead}

    rows = [{"n": n} for n in range(count)]
    got = run_stream(chain, rows, "n long", batch_size=batch_size, object_reuse=reuse, latency_interval=2.0)

    written = Counter(-1 - row["n"] for row in got["side"] if row["n"] < 0)
    ends: dict[int, list[End]] = {n: [] for n in range(count)}
    for row in got["main"]:
        assert list(row["added"]) == [f"wait{wait.number}" for wait in waits]
        ends[row["n"]].append(End("main", written[row["n"]], tuple(row["added"].values())))
    for row in got["side"]:
        if row["n"] >= 0:
            ends[row["n"]].append(End("side", written[row["n"]]))
    for row in got.get("dead", []):
        error = row["error"]
        ends[row["n"]].append(End("dead", written[row["n"]], error=(error["type"], error["attempts"])))
    for n, found in ends.items():
        assert len(found) <= 1, "each row ends once"
        assert (found[0] if found else End("nowhere", written[n])) in End.of(n, operators)

    marks = marks_of(count, batch_size, interval)
    for row in got["main"]:
        assert row["time"] == row["n"]
        assert row["mark"] is None or row["mark"] < row["n"]
    if not any(
        operator[0] == "union" if isinstance(operator, tuple) else operator.mode == "unordered"
        for operator in operators
    ):
        assert [row["n"] for row in got["main"]] == sorted(row["n"] for row in got["main"])
        assert [row["mark"] for row in got["main"]] == [marks[row["n"]] for row in got["main"]]
    for wait in waits:
        assert wait.running == 0
        assert wait.peak <= wait.capacity


def marks_of(count: int, batch_size: int, interval: int) -> list[int | None]:
    """The watermark in force at each row, where no row changes places."""
    marks: list[int | None] = []
    mark, since = None, 0
    for n in range(count):
        marks.append(mark)
        since += 1
        if since == interval or (n + 1) % batch_size == 0:
            mark, since = n - 1, 0
    return marks


@given(operators=st.lists(WAIT, min_size=1, max_size=4), count=st.integers(1, 20), bad=st.integers(0, 19))
def test_a_failure_anywhere_leaves_nothing_running(operators: list[Wait], count: int, bad: int) -> None:
    def broken(row: dict[str, Any]) -> bool:
        if row["n"] == bad % count:
            raise RuntimeError("broken")
        return True

    for operator in operators:
        operator.behaviours = [b for b in operator.behaviours if b not in ("raise", "hang", "once")] or ["wait 1"]

    def chain(stream: AsyncStream) -> AsyncStream:
        for number, operator in enumerate(operators):
            stream = add(stream, operator, number)
        return stream.filter(broken)

    with pytest.raises(AsyncUDFError, match="broken failed"):
        run_stream(chain, [{"n": n} for n in range(count)], "n long")
    assert [operator.running for operator in operators] == [0] * len(operators)
    assert all(operator.peak for operator in operators), "the row came through all of them"
