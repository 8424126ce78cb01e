"""The test kit fails where the run would: at a deadlock, a misfit, a source or an output that breaks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asyncudf import AsyncUDFError, OptionError, async_pandas_udf
from asyncudf.testing import run_rows, run_stream
from tests.kit.engines import Engine
from tests.kit.functions import hangs, sleepy


class TestTestKit:
    def test_a_deadlock_fails_at_once_and_says_what_to_look_for(self) -> None:
        async def never(x: int) -> int:
            await asyncio.get_running_loop().create_future()
            return x

        with pytest.raises(AsyncUDFError, match="deadlock"):
            run_rows(never, [1], timeout=None)

    def test_an_hour_takes_no_time(self) -> None:
        async def hour(start: float) -> float:
            await asyncio.sleep(3600)
            return asyncio.get_running_loop().time() - start

        assert run_rows(hour, [0], timeout=None) == [3600], "or the limit of a test would end it"

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

    def test_results_are_checked_against_the_declared_type_without_spark(self) -> None:
        @async_pandas_udf("temp double, sky string")
        async def weather(city: str) -> dict[str, Any]:
            return {"temp": 1.0, "sky": 7}

        with pytest.raises(AsyncUDFError, match=r"weather returned 7 \(int\) in field 'sky'"):
            run_rows(weather, ["Oslo"])

    def test_an_output_that_fails_ends_the_run_also_from_a_timer(self) -> None:
        class Broken(list[Any]):
            def append(self, value: Any) -> None:
                raise OSError("disk full")

        engine = Engine(hangs, output=Broken(), timeout=1.0, on_error="null")
        engine.feed(["hang"])
        with pytest.raises(OSError, match="disk full"):
            engine.run()
        assert engine.loop.time() == 1.0

    def test_a_source_that_fails_ends_the_run(self) -> None:
        def rows() -> Iterator[int]:
            yield 1
            raise OSError("disk")

        with pytest.raises(OSError, match="disk"):
            run_rows(sleepy, rows())


@pytest.mark.parametrize("built", [5, {}, {"a": None}])
def test_a_build_that_returns_no_stream_is_told_so(built: Any) -> None:
    with pytest.raises(OptionError, match="build must return a stream, or several by name, not"):
        run_stream(lambda stream: built, [{"n": 1}], "n int")


def test_rows_with_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(OptionError, match="two columns called 'a'"):
        run_stream(lambda stream: stream, [{"a": 1}], "a int, a int")
