"""The test kit fails where the run would: at a deadlock, a mismatch, a source or an output that breaks."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from asyncudf import AsyncUDFError, OptionError, ResultError, ResultStore, async_pandas_udf
from asyncudf.testing import OperatorHarness, VirtualClockLoop, run_rows, run_stream
from tests.kit.engines import Engine
from tests.kit.functions import hangs


class TestTestKit:
    def test_a_deadlock_fails_at_once_and_says_what_to_look_for(self) -> None:
        async def never(x: int) -> int:
            await asyncio.get_running_loop().create_future()
            return x

        with pytest.raises(AsyncUDFError, match="deadlock"):
            run_rows(never, [1], timeout=None)

    def test_a_coroutine_that_catches_everything_cannot_hang_the_interpreter(self, tmp_path: Path) -> None:
        """Collected outside a loop, such a coroutine would turn in its own while for ever."""
        program = tmp_path / "stubborn.py"
        program.write_text(
            "import asyncio\n"
            "from asyncudf.testing import run_rows\n"
            "async def stubborn(x):\n"
            "    while True:\n"
            "        try:\n"
            "            await asyncio.sleep(1000)\n"
            "        except BaseException:\n"
            "            continue\n"
            "print(run_rows(stubborn, [1], timeout=5.0, on_error='null'))\n"
        )
        ran = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=60)
        assert (ran.stdout, ran.stderr, ran.returncode) == ("[None]\n", "", 0)

    def test_an_observers_timer_that_was_cancelled_just_before_its_turn_does_not_run(self) -> None:
        errors: list[str] = []
        runs: list[float] = []
        loop = VirtualClockLoop()
        loop.set_exception_handler(lambda _, context: errors.append(context["message"]))
        timer = loop.call_beside(1.0, lambda: runs.append(loop.time()))

        async def main() -> None:
            loop.block(2.0)  # the timer's time has come, and its turn comes after `cancel`
            loop.call_soon(timer.cancel)
            await asyncio.sleep(1)

        loop.run_until_complete(main())
        loop.close()
        assert (errors, runs) == ([], [])

    def test_an_output_that_fails_ends_the_run_also_from_a_timer(self) -> None:
        class Broken(list[Any]):
            def append(self, value: Any) -> None:
                raise OSError("disk full")

        engine = Engine(hangs, output=Broken(), timeout=1.0, on_error="null")
        engine.feed(["hang"])
        with pytest.raises(OSError, match="disk full"):
            engine.run()
        assert engine.loop.time() == 1.0


def test_calls_that_end_at_one_moment_of_the_virtual_clock_end_in_the_order_in_which_they_began() -> None:
    """As on a real clock, on which each call begins a little later than the one before."""

    async def sleeps(row: int) -> int:
        await asyncio.sleep(row % 3)
        return row

    rows = list(range(30))
    assert run_rows(sleeps, rows, output_mode="unordered") == sorted(rows, key=lambda row: row % 3)


async def connects(x: int) -> int:
    _, writer = await asyncio.open_connection("127.0.0.1", 1)
    writer.close()
    return x


async def looks_up(x: int) -> int:
    await asyncio.get_running_loop().getaddrinfo("localhost", 80)
    return x


async def in_a_thread(x: int) -> int:
    return await asyncio.to_thread(abs, x)


async def hides_it(x: int) -> int:
    with contextlib.suppress(Exception):
        await connects(x)
    await asyncio.sleep(0.01)
    return x


@pytest.mark.parametrize("call", [connects, looks_up, in_a_thread, hides_it])
def test_what_takes_real_time_is_refused_on_the_virtual_clock(call: Any) -> None:
    """Time would jump past its timeout: half of such calls failed with one, whatever the service did."""
    with pytest.raises(OptionError, match="clock='real'"):
        run_rows(call, [1, 2], timeout=5.0, on_error="null")
    with pytest.raises(OptionError, match="clock='real'"):
        run_stream(lambda stream: stream.ordered_wait(call, "x", as_="y"), [{"x": 1}], "x int")


@pytest.mark.parametrize("hours", [5, -5])
def test_a_moment_that_utc_does_not_have_is_the_error_of_its_row(hours: int) -> None:
    """It was an OverflowError of the whole run."""
    zone = timezone(timedelta(hours=hours))
    moment = datetime.min.replace(tzinfo=zone) if hours > 0 else datetime.max.replace(tzinfo=zone)

    @async_pandas_udf("timestamp", on_error="capture")
    async def when(x: int) -> datetime:
        return moment if x == 1 else datetime(1, 1, 2, tzinfo=zone)

    rows = run_stream(lambda stream: stream.ordered_wait(when, "x", as_="w"), [{"x": 1}, {"x": 2}], "x int")
    assert "in UTC it is not in the years 1 to 9999" in rows[0]["w"]["error"]["message"]
    assert rows[1]["w"]["value"] == datetime(1, 1, 2, tzinfo=zone)
    with pytest.raises(AsyncUDFError, match="years 1 to 9999"):
        run_stream(lambda stream: stream.ordered_wait(when, "t", as_="w"), [{"t": moment}], "t timestamp")


def test_a_moment_is_the_same_where_arrow_is_to_ignore_zones(monkeypatch: pytest.MonkeyPatch) -> None:
    """`import pyspark.pandas` sets this; Arrow would take noon in Karachi for noon in UTC, without a word."""
    monkeypatch.setenv("PYARROW_IGNORE_TIMEZONE", "1")
    noon = datetime(2020, 1, 1, 12, tzinfo=timezone(timedelta(hours=5)))
    assert pa.array([noon], pa.timestamp("us", "UTC"))[0].as_py().hour == 12

    @async_pandas_udf("struct<once: timestamp, more: array<timestamp>>")
    async def when(t: datetime) -> dict[str, Any]:
        return {"once": noon, "more": [t, noon]}

    (row,) = run_stream(lambda stream: stream.ordered_wait(when, "t", as_="w"), [{"t": noon}], "t timestamp")
    assert row == {"t": noon, "w": {"once": noon, "more": [noon, noon]}}


@pytest.mark.parametrize(
    ("build", "rows", "schema", "options", "said"),
    [
        (lambda stream: 5, [{"n": 1}], "n int", {}, "build must return a stream, or several by name, not"),
        (lambda stream: {"a": None}, [{"n": 1}], "n int", {}, "build must return a stream, or several by name, not"),
        (lambda stream: stream, [{"a": 1}], "a int, a int", {}, "two columns called 'a'"),
        *(
            (lambda stream: stream, [{"x": 1}], "x int", {"batch_size": size}, "batch_size must be")
            for size in (0, 1.5)
        ),
        *(
            (lambda stream: stream, [{"t": value}], "t int", {}, "the rows do not fit the schema struct<t:int>: ")
            for value in ("x", 2**70, object())
        ),
    ],
)
def test_a_stream_that_cannot_be_run_is_refused(build: Any, rows: Any, schema: str, options: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        run_stream(build, rows, schema, **options)


def test_a_column_that_the_schema_has_not_is_refused() -> None:
    """A slip in a test's row was NULL, and the test looked at something else. A column may be left out, as in Spark."""
    with pytest.raises(OptionError, match="a row has an unknown column 'ctiy'; did you mean 'city'"):
        run_stream(lambda stream: stream, [{"city": "a"}, {"ctiy": "b"}], "city string, n int")
    rows = run_stream(lambda stream: stream, [{"city": "a"}, {"n": 2}], "city string, n int")
    assert rows == [{"city": "a", "n": None}, {"city": None, "n": 2}]


@pytest.mark.parametrize(
    ("declared", "field"),
    [("map<string,int>", "key"), ("struct<m: map<string,int>>", "m key"), ("map<int,string>", "value")],
)
def test_a_key_or_a_value_of_a_map_that_does_not_fit_is_named(declared: str, field: str) -> None:
    async def keyed(x: int) -> Any:
        return {"m": {1: 1}} if "m:" in declared else {1: 1}

    with pytest.raises(ResultError, match=f"returned 1 .int. in field '{field}': declared string"):
        run_rows(keyed, [1], returnType=declared)


@pytest.mark.parametrize("make", [Engine, OperatorHarness])
def test_a_function_that_is_refused_leaves_no_event_loop_open(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python warned of it in whichever test its garbage collector ran next."""
    made: list[VirtualClockLoop] = []
    begin = VirtualClockLoop.__init__
    monkeypatch.setattr(VirtualClockLoop, "__init__", lambda self: (made.append(self), begin(self))[1])

    async def call(x: int) -> int:
        return x

    with pytest.raises(OptionError, match="version"):
        make(lambda x: call(x), returnType="int", store=ResultStore.executor())
    assert [loop.is_closed() for loop in made] == [True]
