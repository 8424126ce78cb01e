"""Synchronous code that blocks the event loop is told, once, by name and with its stack; nothing else is."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import asyncudf.queues
from asyncudf import AsyncFunction, AsyncStream, AsyncUDFError, ProcessFunction, RateLimit, ResultFuture
from asyncudf._arrow.rows import records_of
from asyncudf._engine.loop import watchdog
from asyncudf._engine.loop.bridge import Bridge
from asyncudf._engine.loop.watchdog import INTERVAL, TURN_LIMIT, BlockedTime
from asyncudf._limits.coordinator.names import CoordinatorConfig
from asyncudf._spark.evaluations import StreamSource
from asyncudf._spark.planner import rows_node
from asyncudf._spark.types import parsed
from tests.kit.bridges import start

THERE = threading.Event()
PATIENCE = 120.0  # seconds for what is bound to happen
MANY = 10_000  # rows: enough until it has happened
# The package's own folders: where it is installed, and where the links of an editable install lead to.
LIBRARY = {
    os.path.dirname(place(str(package.__file__))) + os.sep
    for package in (asyncudf, asyncudf.queues)
    for place in (os.path.abspath, os.path.realpath)
}


def looks(*seen: tuple[float, bool], works: bool = False) -> tuple[list[bool], float]:
    """What is said of looks, each so long after the one before; and the total."""
    now = 100.0
    blocked = BlockedTime(now, now)
    told = []
    for after, is_blocked in seen:
        now += after
        told.append(blocked.check(now, now if works else 100.0, is_blocked))
    return told, blocked.total


def test_a_loop_is_blocked_when_it_was_found_so_for_longer_than_the_limit() -> None:
    told, total = looks(*[(INTERVAL, True)] * 6, (INTERVAL, False), *[(INTERVAL, True)] * 5)
    assert told == [False] * 4 + [True] * 2 + [False] * 5 + [True]
    assert total == 6 * INTERVAL + 5 * INTERVAL


def test_a_loop_that_comes_round_in_time_is_not_blocked() -> None:
    told, total = looks(*[(INTERVAL, True), (INTERVAL, True), (INTERVAL, False)] * 20)
    assert (any(told), total) == (False, 0.0)


@pytest.mark.parametrize("halt", [3 * INTERVAL, TURN_LIMIT, 3600.0])
def test_a_halt_of_the_process_is_no_blocked_loop(halt: float) -> None:
    """SIGSTOP, a laptop that sleeps, a machine without a free core: then the looks come late too."""
    told, total = looks(*[(INTERVAL, True), (halt, True), (INTERVAL, True), (INTERVAL, False)] * 5, *[(halt, True)] * 9)
    assert (any(told), total) == (False, 0.0)


@pytest.mark.parametrize("after", [3 * INTERVAL, TURN_LIMIT, 10.0])
def test_a_loop_that_lets_no_other_thread_look_is_blocked_for_as_long_as_it_works(after: float) -> None:
    assert looks(*[(after, True)] * 3, works=True) == ([after > TURN_LIMIT, True, True], 3 * after)
    assert looks(*[(after, False)] * 3, works=True) == ([False] * 3, 0.0)


@pytest.mark.parametrize("name", watchdog.LIBRARIES)
def test_a_folder_of_the_users_may_be_called_like_a_library(name: str) -> None:
    [folder] = importlib.import_module(name).__path__
    assert watchdog._is_library(f"{folder}/client.py")
    assert not watchdog._is_library(f"/home/me/{name}/jobs/enrich.py")
    assert not watchdog._is_library(f"{folder}_jobs/enrich.py")


def test_what_a_library_has_generated_is_not_the_users() -> None:
    """The client of redis makes a dataclass, whose `__init__` has no file; a user's `python -c` has none either."""

    def frame_in(*files: str) -> Any:
        call: Any = sys._getframe
        for file in reversed(files):
            made: dict[str, Any] = {"inner": call}
            exec(compile("def called(): return inner()", file, "exec"), made)
            call = made["called"]
        return call()

    [redis] = importlib.import_module("redis").__path__
    own = f"{watchdog.OWN}_limits/coordinator/client.py"
    assert watchdog._user_code(frame_in(own, f"{redis}/driver_info.py", "<string>")) == ("", ())
    assert watchdog._user_code(frame_in(own, "<string>"))[0] == "called"


# --- with a real loop -------------------------------------------------------------------------------------------------


class Warnings(logging.Handler):
    """Those of the logger, and whether there is any: what the blocking code of these tests waits for."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.there = THERE
        self.there.clear()

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())
        self.there.set()


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Warnings]:
    monkeypatch.setattr(watchdog, "INTERVAL", 0.02)
    monkeypatch.setattr(watchdog, "TURN_LIMIT", 0.1)
    handler = Warnings()
    watchdog.logger.addHandler(handler)
    # The collector would block the loop for longer than this limit, with what all the other tests have left to look at.
    # It stays frozen: else each collection of the tests that follow would look at all of it again.
    gc.collect()
    gc.freeze()
    yield handler
    watchdog.logger.removeHandler(handler)


def run(function: Any, rows: list[Any], **options: Any) -> Bridge[Any, Any]:
    bridge = start(function, **options)
    arguments = [row if isinstance(function, AsyncFunction) else (row,) for row in rows]
    list(bridge.pipe(iter([records_of(arguments, [None] * len(rows))])))
    return bridge


def run_chain(build: Callable[[AsyncStream], AsyncStream], rows: int = 1) -> None:
    source = StreamSource.of(None, False, None, False)
    stream = build(AsyncStream._at(source, rows_node(parsed("n int"))))
    task = source.task([stream._ref.result])
    list(task(iter([pa.RecordBatch.from_pydict({"n": range(rows)}, schema=pa.schema([("n", pa.int32())]))])))


def assert_told(warnings: Warnings, name: str, place: str = "warnings.there.wait(PATIENCE)") -> None:
    first, last = warnings.texts
    assert first.startswith(f"{name} has blocked the event loop for more than 0.1 s")
    assert place in first
    files = re.findall(r'File "(.+)", line \d+, in ', first)
    assert __file__ in files
    assert not [file for file in files if file.startswith(tuple(LIBRARY))], "the user's frames only"
    assert last.startswith("the event loop was blocked for ")
    assert f"by {name} or the like" in last


def test_a_call_that_blocks_is_told_once_with_its_name_and_its_stack(warnings: Warnings) -> None:
    async def weather(x: int) -> int:
        return fetch(x)

    def fetch(x: int) -> int:
        warnings.there.wait(PATIENCE)
        time.sleep(0.3 * x)  # goes on, and is told no more
        return x

    bridge = run(weather, [0, 1])
    assert_told(warnings, "weather")
    assert warnings.texts[0].index("in weather") < warnings.texts[0].index("in fetch")
    assert bridge.blocked.total > 0.1


def test_the_stack_keeps_the_secrets_of_urls_in_its_lines(warnings: Warnings) -> None:
    async def weather(x: int) -> int:
        return fetch("https://me:SECRET@host/?key=SECRET")

    def fetch(url: str) -> int:
        warnings.there.wait(PATIENCE)
        return len(url)

    run(weather, [0])
    assert 'return fetch("https://***@host/?***")' in warnings.texts[0]


def test_many_calls_that_each_block_for_a_moment_are_told(warnings: Warnings) -> None:
    """200 rows with a time.sleep(0.05) ran one after another, without a sign of it."""

    async def weather(x: int) -> int:
        if not warnings.there.is_set():
            time.sleep(0.05)
        return x

    run(weather, list(range(MANY)))
    assert_told(warnings, "weather", "time.sleep(0.05)")


def test_many_calls_that_each_let_no_other_thread_run_for_a_moment_are_told(
    warnings: Warnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The looks come in time, and always between two calls."""
    monkeypatch.setattr(watchdog, "INTERVAL", 0.5)
    monkeypatch.setattr(watchdog, "WAITS_AFTER", 0.001)

    async def weather(x: int) -> int:
        if not warnings.there.is_set():
            sum(range(2 * 10**6))
        return x

    run(weather, list(range(MANY)))
    assert_told(warnings, "weather", "in weather")


def test_a_call_has_its_name_and_line_although_it_returns_while_it_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Frames that have returned have no callers: on a busy machine the warning named the test's own function."""
    waits, may_return = threading.Event(), threading.Event()
    is_library = watchdog._is_library

    def returns_meanwhile(file: str) -> bool:
        may_return.set()
        loop.join(PATIENCE)
        return is_library(file)

    async def weather(x: int) -> int:
        waits.set()
        may_return.wait(PATIENCE)
        return x

    monkeypatch.setattr(watchdog, "INTERVAL", PATIENCE)  # its own looks stay away
    loop = threading.Thread(target=run, args=(weather, [1]))
    loop.start()
    assert waits.wait(PATIENCE)
    frame = sys._current_frames()[_thread_in("weather")]
    monkeypatch.setattr(watchdog, "_is_library", returns_meanwhile)
    name, [(function, line), *_] = watchdog._user_code(frame)
    assert not loop.is_alive()
    assert (name, function.f_code.co_name) == ("weather", "weather")
    assert line == weather.__code__.co_firstlineno + 2, "where it waited"


def _thread_in(function: str) -> int:
    """The thread that is in a function of this module."""
    for thread, frame in sys._current_frames().items():
        codes = [inner.f_code for inner, _ in traceback.walk_stack(frame)]
        if any((code.co_filename, code.co_name) == (__file__, function) for code in codes):
            return thread
    raise AssertionError(f"no thread is in {function}")


def test_an_async_function_and_a_generator_are_told(warnings: Warnings) -> None:
    class Weather(AsyncFunction):
        async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
            warnings.there.wait(PATIENCE)
            result_future.complete([value])

    run(Weather(), [1])
    assert_told(warnings, "Weather")
    warnings.texts.clear()
    warnings.there.clear()

    async def forecast(x: int) -> Any:
        yield x
        warnings.there.wait(PATIENCE)

    run(forecast, [1])
    assert_told(warnings, "forecast")


def second(n: int) -> bool:
    return THERE.wait(PATIENCE)  # by way of the module, for an operator of a chain must be such that it can be sent


async def head(n: int) -> int:
    return n


async def tail(n: int) -> int:
    return int(second(n))


class Plain(ProcessFunction):
    def process_element(self, value: Any, context: Any, collector: Any) -> None:
        collector.collect({"n": int(second(0))})


CHAINS: dict[str, Callable[[AsyncStream], AsyncStream]] = {
    "filter": lambda stream: stream.filter(lambda row: second(0)),
    "map": lambda stream: stream.map(lambda row: {"n": int(second(0))}, "n int"),
    "flat_map": lambda stream: stream.flat_map(lambda row: [{"n": int(second(0))}], "n int"),
    "Plain": lambda stream: stream.process(Plain(), "n int"),
    "tail": lambda stream: stream.ordered_wait(tail, "n"),
}


@pytest.mark.parametrize("name", CHAINS)
def test_an_operator_of_a_chain_is_told_not_the_one_before_it(name: str, warnings: Warnings) -> None:
    run_chain(lambda stream: CHAINS[name](stream.ordered_wait(head)))
    assert_told(warnings, name, "THERE.wait(PATIENCE)")


def test_loops_that_wait_or_work_in_small_steps_are_not_told(
    warnings: Warnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def waits(x: int) -> int:
        await asyncio.sleep(0.5)
        return x

    async def instant(x: int) -> int:
        return x

    def in_a_thread(x: int) -> int:
        time.sleep(0.5)
        return x

    run(waits, [1])
    run(in_a_thread, [1])
    # A busy machine may halt the loop's thread in a call, and not the one that looks.
    monkeypatch.setattr(watchdog, "TURN_LIMIT", 1.0)
    run(instant, list(range(100_000)))
    assert warnings.texts == []


def test_an_import_of_the_library_is_not_told(
    warnings: Warnings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The first task with a coordinator imported redis on its loop, and 30 frames of that were the user's fault."""
    (tmp_path / "redis.py").write_text("import needed_by_it")
    (tmp_path / "needed_by_it.py").write_text("import time; time.sleep(0.5); raise ImportError")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.split(".")[0] == "redis"]:
        monkeypatch.delitem(sys.modules, name)

    async def weather(x: int) -> int:
        return x

    with pytest.raises(AsyncUDFError, match="need the library redis"):
        run(weather, [1], rate_limit=RateLimit(1), coordinator=CoordinatorConfig("redis://localhost", "", "weather"))
    assert warnings.texts == []


def test_opening_and_closing_may_take_their_time(warnings: Warnings) -> None:
    class Rich(AsyncFunction):
        async def open(self, context: Any) -> None:
            time.sleep(0.5)

        async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
            result_future.complete([value])

        async def close(self) -> None:
            time.sleep(0.5)

    run(Rich(), [1])
    assert warnings.texts == []
