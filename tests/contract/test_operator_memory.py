"""Memory bounds the rows in a queue, unless their number is given: their places and their results. Virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import pairwise
from typing import Any

import pandas as pd
import pytest

from asyncudf import AsyncFunction, CircuitBreaker, RetryStrategy, RuntimeContext
from asyncudf.queues import Watermark
from asyncudf.testing import MemoryStore, VirtualClockLoop, run_rows
from tests.kit.engines import Engine
from tests.kit.figures import figures_so_far
from tests.kit.stores import LeasedStore

LIMIT = 100_000  # bytes
TEN_NUMBERS = ", ".join(f"{name} double" for name in "abcdefghij")
SUSPENDS = pytest.mark.parametrize("suspends", [False, True], ids=["at once", "later"])


def begun_behind_a_slow_row(
    answer: Callable[[int], Any] = lambda n: n, *, rows: int = 2_000, suspends: bool = True, **options: Any
) -> int:
    """How many calls begin while the first one takes a minute."""
    began, seen = 0, list[int]()

    async def call(n: int) -> Any:
        nonlocal began
        began += 1
        if n == 0:
            await asyncio.sleep(60)
            seen.append(began)
        elif suspends:
            await asyncio.sleep(0)
        return answer(n)

    run_rows(call, range(rows), **{"capacity": 2, **options})
    return seen[0]


def test_a_slow_row_does_not_stop_the_calls_behind_it() -> None:
    """They ended after 100 seconds: at most 1,000 rows, 100 times the capacity, were in the queue."""

    async def call(n: int) -> float:
        await asyncio.sleep(60 if n == 0 else 0.1)
        return asyncio.get_running_loop().time()

    assert max(run_rows(call, range(5_000), capacity=10)) == pytest.approx(60)


@SUSPENDS
@pytest.mark.parametrize(
    ("answer", "returnType", "least", "most"),
    [
        (lambda n: n, "bigint", LIMIT / 500, LIMIT / 300),
        (lambda n: dict.fromkeys("abcdefghij", float(n)), TEN_NUMBERS, LIMIT / 1_200, LIMIT / 800),
        (lambda n: "x" * 5_000, "string", 10, 22),
        (lambda n: {"page": "x" * 5_000, "size": n}, "page string, size int", 10, 22),
        (lambda n: [0.5 + n] * 200, "array<double>", 10, 22),
    ],
    ids=["its place", "the dict of a struct", "text", "struct", "numbers"],
)
def test_a_row_counts_with_its_place_and_the_bytes_of_its_results_objects(
    answer: Callable[[int], Any],
    returnType: str,  # noqa: N803
    least: float,
    most: float,
    suspends: bool,
) -> None:
    """Ten numbers in a dict take 700 bytes, which no row is weighed for: all of a type are alike."""
    begun = begun_behind_a_slow_row(answer, suspends=suspends, returnType=returnType, max_buffered_bytes=LIMIT)
    assert least <= begun <= most


class Pages(AsyncFunction):
    async def async_invoke(self, value: Any, result_future: Any) -> None:
        result_future.complete(await pages_of(value["n"]))


async def pages_of(n: int) -> list[str]:
    if n == 0:
        await asyncio.sleep(60)
    BEGUN.append(n)
    return ["x" * 100] * 100


async def pages(n: int) -> AsyncIterator[str]:
    for page in await pages_of(n):
        yield page


BEGUN: list[int] = []


@pytest.mark.parametrize("function", [pages, Pages()], ids=["generator", "AsyncFunction"])
def test_all_results_of_a_row_count(function: Any) -> None:
    BEGUN.clear()
    rows = [{"n": n} for n in range(100)] if isinstance(function, Pages) else range(100)
    assert len(run_rows(function, rows, capacity=2, max_buffered_bytes=LIMIT)) == 10_000
    assert BEGUN.index(0) <= 10


def test_with_no_limit_in_bytes_rows_are_the_bound() -> None:
    """A hundred times the calls: those in flight, and those that wait for the breaker."""
    options: dict[str, Any] = {"returnType": "bigint", "max_buffered_bytes": None}
    assert begun_behind_a_slow_row(**options) == 200
    assert begun_behind_a_slow_row(**options, breaker=CircuitBreaker(window=5)) == 700
    assert begun_behind_a_slow_row(**options, queue_size=50) == 50


class TestLeast:
    """The rows that the calls need may enter, however little memory there is."""

    def test_each_slot_has_a_call_and_the_breaker_its_window(self) -> None:
        assert begun_behind_a_slow_row(capacity=20, max_buffered_bytes=1) == 20
        assert begun_behind_a_slow_row(capacity=2, breaker=CircuitBreaker(window=10), max_buffered_bytes=1) == 12

    @pytest.mark.parametrize("mode", ["ordered", "unordered"])
    def test_batches_are_full(self, mode: str) -> None:
        sizes = []

        async def lengths(texts: pd.Series) -> pd.Series:  # type: ignore[type-arg]
            sizes.append(len(texts))
            await asyncio.sleep(1)
            return texts.str.len()

        options: dict[str, Any] = {"batch_size": 8, "capacity": 3, "max_buffered_bytes": 1, "output_mode": mode}
        assert run_rows(lengths, ["x" * 1_000] * 80, **options) == [1_000] * 80
        assert sizes == [8] * 10


class TestRowsThatNeedNoCall:
    def test_null_answers_are_bounded(self) -> None:
        pulled = seen = 0

        def rows() -> Iterator[int | None]:
            nonlocal pulled
            for n in range(2_000):
                pulled += 1
                yield n if n % 10 == 0 else None

        async def call(n: int) -> int:
            nonlocal seen
            if n == 0:
                await asyncio.sleep(60)
                seen = pulled
            return n

        run_rows(call, rows(), capacity=2, returnType="int", on_null_input="null", max_buffered_bytes=LIMIT)
        assert 100 < seen <= LIMIT / 300

    @pytest.mark.parametrize(("answer", "most"), [("", LIMIT / 300), ("x" * 5_000, 200)], ids=["short", "long"])
    def test_results_from_a_store_are_bounded(self, answer: str, most: float) -> None:
        """They enter the queue 200 at a time."""

        async def call(n: int) -> str:
            if n == 0:
                await asyncio.sleep(60)
            return answer

        store: Any = MemoryStore()
        options: dict[str, Any] = {"capacity": 2, "store": store, "version": "1", "max_buffered_bytes": LIMIT}
        run_rows(call, range(1, 2_000), **options)
        engine, rows = Engine(call, **options), list[int]()
        engine.feed(range(2_000))
        engine.end()
        engine.loop.call_at(59.0, lambda: rows.append(engine.counted["call"]["metrics"]["rows"]))
        engine.run()
        assert 10 < rows[0] <= most
        assert len(engine.output) == 2_000


@SUSPENDS
def test_what_has_left_counts_no_more(suspends: bool) -> None:
    began = 0
    behind: list[int] = []

    async def call(n: int) -> str:
        nonlocal began
        began += 1
        if n % 100 == 0:
            before = began
            await asyncio.sleep(60)
            behind.append(began - before)
        elif suspends:
            await asyncio.sleep(0)
        return "x" * 5_000

    options: dict[str, Any] = {"capacity": 2, "returnType": "string", "max_buffered_bytes": LIMIT}
    assert len(run_rows(call, range(1_000), **options)) == 1_000
    assert 10 <= behind[0] <= 22
    assert set(behind) == {behind[0]}


@pytest.mark.parametrize("mode", ["ordered", "unordered"])
def test_timers_have_their_turn_while_a_long_queue_leaves(mode: str) -> None:
    """300,000 rows that wait for one left in half a second, in which no timer was seen."""
    rows, left, head = 25_000, list[int](), asyncio.Event()

    async def call(n: int) -> int:
        if n == 0 or rows < n:
            await head.wait()
        elif n == rows:
            while engine.loop.time() < 1:  # until the others are in the queue
                await asyncio.sleep(1)
            head.set()
            while len(engine.output) < rows:
                left.append(len(engine.output))
                await asyncio.sleep(0)
        return n

    engine = Engine(call, capacity=10, output_mode=mode)
    engine.feed([0, Watermark(1), *range(1, rows + 9)])
    engine.end()
    engine.run()
    assert sorted(n for n in engine.output if isinstance(n, int)) == list(range(rows + 9))
    assert max(after - before for before, after in pairwise(left)) <= 10_010


class TestCallsThatWait:
    """A row takes about 400 bytes, and 900 more while its call waits: for its next attempt, or for that of another."""

    def test_rows_in_back_off_count_with_their_calls(self) -> None:
        begun = list[float]()

        async def busy(n: int, context: RuntimeContext) -> int:
            if context.attempt_number == 1:
                begun.append(asyncio.get_running_loop().time())
                raise ConnectionError(n)
            return n

        retry = RetryStrategy.fixed_delay(attempts=2, delay=60)
        options: dict[str, Any] = {"capacity": 2, "retry": retry, "returnType": "bigint", "max_buffered_bytes": LIMIT}
        assert run_rows(busy, range(300), **options) == [*range(300)]
        assert LIMIT / 1_500 <= sum(moment < 60 for moment in begun) <= LIMIT / 1_100
        assert max(begun) < 300, "those whose back-off is over count no more"

    @SUSPENDS
    def test_rows_in_back_off_count_with_the_results_that_they_will_have(self, suspends: bool) -> None:
        """As many rows as fit without results were in back-off when the service failed, and all had results later:
        568 MB of them with a bound of 64."""
        failed, is_down = set[int](), set[int]()

        async def page(n: int) -> str:
            if suspends:
                await asyncio.sleep(0.001)
            if n >= 100 and n not in failed:
                failed.add(n)
                if asyncio.get_running_loop().time() < 60:
                    is_down.add(n)
                raise ConnectionError(n)
            return "" if n == 0 else "x" * 2_000  # the first result says nothing about the others

        retry = RetryStrategy.fixed_delay(attempts=2, delay=60)
        assert len(run_rows(page, range(300), capacity=2, retry=retry, max_buffered_bytes=LIMIT)) == 300
        assert LIMIT / 4_500 <= len(is_down) <= LIMIT / 3_000

    def test_rows_that_wait_for_an_equal_one_count_with_the_result_that_they_will_have(self) -> None:
        async def page(n: int) -> str:
            await asyncio.sleep(60)
            return "x" * 2_000

        options: dict[str, Any] = {"capacity": 1, "store": MemoryStore(), "version": "1"}
        engine, queued = Engine(page, max_buffered_bytes=LIMIT, **options), list[int]()
        engine.feed([0] + [1] * 300)
        engine.end()
        engine.loop.call_at(119.0, engine.look)
        engine.loop.call_at(119.0, lambda: queued.append(engine.counted["page"]["metrics"]["queued_peak"]))
        engine.run()
        assert LIMIT / 4_500 <= queued[0] <= LIMIT / 3_000
        assert len(engine.output) == 301

    @pytest.mark.parametrize("is_of_another_task", [False, True], ids=["in this task", "in another task"])
    def test_rows_that_have_waited_for_an_equal_one_count_once(self, is_of_another_task: bool) -> None:
        """They counted with the results that they would have and with those that they had got: 1.1 MB at the peak."""

        async def page(n: int) -> str:
            await asyncio.sleep({0: 100, 1: 60}.get(n, 1))
            return "x" * 2_000

        store = LeasedStore() if is_of_another_task else MemoryStore()
        options: dict[str, Any] = {"capacity": 5, "store": store, "version": "1", "loop": VirtualClockLoop()}
        first, engine = (Engine(page, returnType="string", max_buffered_bytes=10**7, **options) for _ in range(2))
        first.feed([1] if is_of_another_task else [])
        first.end()
        engine.feed([0, 2] + [1] * 200)
        engine.end()
        first.run(engine)
        found = figures_so_far(engine)
        assert (found.calls, found.shared_flights) == ((2, 200) if is_of_another_task else (3, 199))
        assert found.bytes_peak <= 220 * (400 + 900 + 2_050)


@pytest.mark.parametrize("kind", ["at once", "later", "many at once", "0..n"])
def test_no_call_begins_while_spark_does_not_take_results(kind: str) -> None:
    """However few rows are in the queue: each that leaves would make a place for another one."""
    begun = 0

    async def later(n: int) -> str:
        nonlocal begun
        begun += 1
        if kind == "later":
            await asyncio.sleep(0.1)
        return "x"

    async def many(n: pd.Series) -> pd.Series:
        nonlocal begun
        begun += len(n)
        return n.astype(str)

    async def letters(n: int) -> AsyncIterator[str]:
        nonlocal begun
        begun += 1
        yield "x"

    functions: dict[str, Any] = {"many at once": many, "0..n": letters}
    options: dict[str, Any] = {"batch_size": 10} if kind == "many at once" else {}
    function = functions.get(kind, later)
    engine = Engine(function, returnType="string", capacity=2, max_buffered_bytes=LIMIT, **options)
    seen = []

    def look(state: str, change: Callable[[], None]) -> None:
        engine.look()
        seen.append((state, begun, figures_so_far(engine).time["output"]))
        change()

    engine.feed(range(10))
    engine.loop.call_at(10.0, look, "idle", lambda: [engine.emitted(LIMIT - 1), engine.feed(range(10))])
    engine.loop.call_at(20.0, look, "nearly", lambda: [engine.emitted(1), engine.feed(range(10)), engine.end()])
    engine.loop.call_at(30.0, look, "full", engine.taken)
    engine.run()
    assert [(state, count) for state, count, _ in seen] == [("idle", 10), ("nearly", 20), ("full", 20)]
    assert (seen[1][2], seen[2][2]) == (0, pytest.approx(10))
    assert begun == 30
    assert figures_so_far(engine).rows == 30


def test_a_marker_has_its_place_though_results_before_it_have_filled_the_memory() -> None:
    """The job ended with an AssertionError: the marker had a place until the results before it came."""

    async def page(n: int) -> str:
        if n == 0:
            await asyncio.sleep(60)
        return "x" * 300

    rows = [*range(150), Watermark(5), *range(150, 400)]
    found = run_rows(page, rows, capacity=2, returnType="string", max_buffered_bytes=LIMIT)
    assert (len(found), found[150]) == (401, Watermark(5))
