"""The operator through the test kit: admission, order, bounds, end of input. All on the virtual clock."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from asyncudf import AsyncFunction, AsyncUDFError, OutputTag, ResultFuture, RuntimeContext, async_pandas_udf
from asyncudf.queues import LatencyMarker, StreamRecord, Watermark, WatermarkStatus
from asyncudf.testing import ManualFunction, OperatorHarness, run_rows
from asyncudf.testing._operators import ListOutput

MODES = pytest.mark.parametrize("mode", ["ordered", "unordered"])


async def sleepy(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


async def instant(x: Any) -> Any:
    return x


class TestOrder:
    def test_ordered_keeps_the_order_of_the_rows(self) -> None:
        assert run_rows(sleepy, [3, 1, 2]) == [3, 1, 2]

    def test_unordered_is_the_order_of_completion(self) -> None:
        assert run_rows(sleepy, [3, 1, 2], output_mode="unordered") == [1, 2, 3]

    def test_no_row_passes_a_watermark(self) -> None:
        rows = [3, 1, 2, Watermark(10), 0.5, 0.1, Watermark(20)]
        assert run_rows(sleepy, rows, output_mode="unordered") == [1, 2, 3, Watermark(10), 0.1, 0.5, Watermark(20)]

    @MODES
    def test_rows_that_return_at_once_keep_their_order_around_those_that_do_not(self, mode: str) -> None:
        async def sometimes(x: int) -> int:
            if x % 3 == 0:
                await asyncio.sleep(1)
            return x

        got = run_rows(sometimes, range(9), output_mode=mode)
        assert got == (list(range(9)) if mode == "ordered" else [1, 2, 4, 5, 7, 8, 0, 3, 6])

    @MODES
    def test_a_watermark_between_instant_rows_stays_between_them(self, mode: str) -> None:
        rows = [1, Watermark(1), 2, Watermark(2)]
        assert run_rows(instant, rows, output_mode=mode) == rows

    @MODES
    def test_statuses_and_latency_markers_keep_their_place(self, mode: str) -> None:
        function = ManualFunction()
        marker = LatencyMarker(1.0, "source", 0)
        with OperatorHarness(function, output_mode=mode) as harness:
            harness.put("a", WatermarkStatus.IDLE, marker, "b")
            harness.complete("b", "B")
            assert harness.output == []
            harness.complete("a", "A")
            assert harness.output == ["A", WatermarkStatus.IDLE, marker, "B"]

    def test_records_may_bring_their_own_timestamps(self) -> None:
        assert run_rows(instant, [StreamRecord("a", 5), "b"]) == ["a", "b"]


class TestBounds:
    @MODES
    def test_at_most_capacity_calls_are_in_progress(self, mode: str) -> None:
        running = peak = 0

        async def call(x: int) -> int:
            nonlocal running, peak
            running += 1
            peak = max(peak, running)
            await asyncio.sleep(1 + x % 3)
            running -= 1
            return x

        assert sorted(run_rows(call, range(50), capacity=7, output_mode=mode)) == list(range(50))
        assert peak == 7

    def test_a_slow_head_stops_new_calls_only_when_the_queue_is_full(self) -> None:
        function = ManualFunction()
        with OperatorHarness(function, capacity=2, queue_size=4) as harness:
            harness.put(*range(10))
            for x in (1, 2, 3):
                harness.complete(x, x)
            assert function.calls == [0, 1, 2, 3], "four rows are in the queue, though one call only is running"
            harness.complete(0, 0)
            assert harness.output == [0, 1, 2, 3]
            assert function.calls == [0, 1, 2, 3, 4, 5]

    def test_queue_size_equal_to_capacity_is_flinks_behaviour(self) -> None:
        function = ManualFunction()
        with OperatorHarness(function, capacity=2, queue_size=2) as harness:
            harness.put(*range(4))
            harness.complete(1, 1)
            assert function.calls == [0, 1]
            harness.complete(0, 0)
            assert function.calls == [0, 1, 2, 3]

    @MODES
    @pytest.mark.parametrize(("capacity", "queue_size"), [(1, 1), (1, 3), (3, 3), (3, 5), (100, 100)])
    @pytest.mark.parametrize("pause", [0, 1])
    def test_every_row_comes_out_whatever_the_bounds(
        self, mode: str, capacity: int, queue_size: int, pause: int
    ) -> None:
        async def call(x: int) -> int:
            if x % 2 or pause:
                await asyncio.sleep((x * 7) % 5)
            return x

        got = run_rows(call, range(500), output_mode=mode, capacity=capacity, queue_size=queue_size)
        assert sorted(got) == list(range(500))
        assert mode == "unordered" or got == list(range(500))

    def test_results_that_wait_stop_new_calls_when_they_weigh_too_much(self) -> None:
        function = ManualFunction()
        with OperatorHarness(function, capacity=2, max_buffered_bytes=100) as harness:
            harness.put(*range(8))
            harness.complete(1, "x" * 60)
            assert function.calls == [0, 1, 2], "60 bytes wait for the first row: there is room for more"
            harness.complete(2, ["y" * 30, {"z": b"z" * 10}])
            assert function.calls == [0, 1, 2], "100 bytes wait, and a call slot is free"
            harness.complete(0, None)
            assert len(harness.output) == 3
            assert function.calls == [0, 1, 2, 3, 4], "all that waited has left"

    def test_what_is_not_plainly_text_weighs_as_much(self) -> None:
        function = ManualFunction()
        with OperatorHarness(function, returnType="string", capacity=2, max_buffered_bytes=100) as harness:
            harness.put(*range(8))
            harness.complete(1, np.str_("x" * 100))
            assert function.calls == [0, 1]
            harness.complete(0, None)

    def test_what_is_written_to_a_side_output_weighs_as_well(self) -> None:
        tag, began = OutputTag("pages", "string"), []

        async def call(x: int, context: RuntimeContext) -> int:
            began.append(x)
            if x == 0:
                await asyncio.sleep(1)
                assert began == [0, 1, 2], "a thousand bytes wait"
            context.output(tag, "x" * 500)
            return x

        assert run_rows(call, range(50), capacity=2, max_buffered_bytes=1_000, side_outputs={tag: []}) == [*range(50)]

    def test_a_slot_holds_no_result_while_its_next_call_runs(self) -> None:
        class Result:
            pass

        function, result = ManualFunction(), Result()
        gone = weakref.ref(result)
        with OperatorHarness(function, capacity=1) as harness:
            harness.put(0, 1)
            harness.complete(0, result)
            del result
            harness.output.clear()
            gc.collect()
            assert function.running == [1]
            assert gone() is None
            harness.complete(1, None)

    def test_no_row_waits_for_bytes_that_are_held_by_nobody(self) -> None:
        function = ManualFunction()
        with OperatorHarness(function, capacity=1, max_buffered_bytes=10) as harness:
            harness.put(*range(4))
            for x in range(4):
                harness.complete(x, "longer than ten bytes")
            assert len(harness.output) == 4

    def test_without_a_limit_in_bytes_only_rows_count(self) -> None:
        function = ManualFunction()
        with OperatorHarness(function, capacity=2, queue_size=5, max_buffered_bytes=None) as harness:
            harness.put(*range(8))
            for x in (1, 2, 3):
                harness.complete(x, "x" * 2**20)
            assert function.calls == [0, 1, 2, 3, 4]
            harness.complete(0, "")

    @MODES
    @pytest.mark.parametrize("limit", [1, 40, 1_000])
    @pytest.mark.parametrize("options", [{}, {"batch_size": 8}, {"on_error": "capture"}], ids=str)
    def test_every_row_comes_out_whatever_the_bound_in_bytes(
        self, mode: str, limit: int, options: dict[str, Any]
    ) -> None:
        def text(x: int) -> str:
            return "x" * (x * 13 % 60)

        async def one(x: int) -> str:
            if x % 3:
                await asyncio.sleep((x * 7) % 5)
            return text(x)

        async def many(x: pd.Series) -> pd.Series:
            await asyncio.sleep(float(x.iloc[0] * 7 % 5))
            return x.map(text)

        got = run_rows(
            many if "batch_size" in options else one,
            range(300),
            output_mode=mode,
            capacity=7,
            max_buffered_bytes=limit,
            **options,
        )
        values = [each["value"] for each in got] if "on_error" in options else got
        assert sorted(values) == sorted(map(text, range(300)))
        assert mode == "unordered" or values == list(map(text, range(300)))

    def test_rows_are_pulled_only_when_a_slot_and_a_place_are_free(self) -> None:
        function, pulled = ManualFunction(), []

        def rows() -> Iterator[int]:
            for x in range(10):
                pulled.append(x)
                yield x

        with OperatorHarness(function, capacity=2) as harness:
            harness._run(lambda: harness._chain.feed(StreamRecord((x,)) for x in rows()))
            assert pulled == [0, 1]
            harness.complete(0, 0)
            assert pulled == [0, 1, 2]

    def test_calls_that_never_wait_do_not_starve_the_others(self) -> None:
        woken = []

        async def call(x: int) -> int:
            if x == 0:
                await asyncio.sleep(0)
                woken.append(len(done))
            done.append(x)
            return x

        done: list[int] = []
        run_rows(call, range(5000), output_mode="unordered")
        assert woken[0] < 1000


class TestResults:
    async def _pairs(self, x: int) -> AsyncIterator[int]:
        for i in range(x):
            await asyncio.sleep(1)
            yield i

    def test_an_async_generator_gives_0_to_n_results(self) -> None:
        assert run_rows(self._pairs, [2, 0, 3]) == [0, 1, 0, 1, 2]

    def test_none_is_a_null_result(self) -> None:
        assert run_rows(instant, [None, 1]) == [None, 1]

    def test_several_parameters_take_a_tuple(self) -> None:
        async def add(a: int, b: int = 10) -> int:
            return a + b

        assert run_rows(add, [(1, 2), (3, 4), (5,)]) == [3, 7, 15]

    def test_a_tuple_is_one_value_for_a_function_of_one_parameter(self) -> None:
        assert run_rows(instant, [(1, 2)]) == [(1, 2)]

    def test_an_empty_input_gives_an_empty_output(self) -> None:
        assert run_rows(instant, []) == []


class TestVectorized:
    def test_batches_are_full_and_the_last_one_is_sent_at_the_end(self) -> None:
        sizes = []

        async def plus_one(x: pd.Series) -> pd.Series:
            sizes.append(len(x))
            await asyncio.sleep(1)
            return x + 1

        assert run_rows(plus_one, range(7), batch_size=3) == [1, 2, 3, 4, 5, 6, 7]
        assert sizes == [3, 3, 1]

    def test_a_full_queue_sends_a_partial_batch(self) -> None:
        sizes = []

        async def same(x: pa.Array) -> pa.Array:
            sizes.append(len(x))
            await asyncio.sleep(1)
            return x

        assert run_rows(same, range(10), batch_size=8, capacity=2, queue_size=4) == list(range(10))
        assert sizes == [4, 4, 2]

    def test_a_partial_batch_is_sent_after_the_linger(self) -> None:
        batches: list[list[int]] = []

        async def same(x: pa.Array) -> pa.Array:
            batches.append(x.to_pylist())
            return x

        with OperatorHarness(same, batch_size=3, batch_linger=5.0) as harness:
            harness.put(1)
            harness.advance(4.9)
            harness.put(2)
            assert batches == []
            harness.advance(0.2)
            assert batches == [[1, 2]], "the linger counts from the first row"
            harness.put(3)
            harness.advance(4)
            assert batches == [[1, 2]]
            harness.put(4, 5)
            assert batches == [[1, 2], [3, 4, 5]]
            assert harness.output == [1, 2, 3, 4, 5]

    def test_a_full_queue_sends_a_partial_batch_also_while_more_may_come(self) -> None:
        batches: list[list[int]] = []

        async def same(x: pa.Array) -> pa.Array:
            batches.append(x.to_pylist())
            return x

        with OperatorHarness(same, batch_size=8, capacity=2, queue_size=4) as harness:
            harness.put(*range(4))
            assert batches == [[0, 1, 2, 3]]

    def test_the_linger_of_one_batch_does_not_touch_the_next(self) -> None:
        batches: list[list[int]] = []

        async def same(x: pa.Array) -> pa.Array:
            batches.append(x.to_pylist())
            return x

        with OperatorHarness(same, batch_size=2, batch_linger=5.0) as harness:
            harness.put(1)
            harness.advance(1)
            harness.put(2)
            harness.advance(3)
            harness.put(3)
            harness.advance(3)
            assert batches == [[1, 2]]
            harness.advance(2.1)
            assert batches == [[1, 2], [3]]

    def test_large_batches_fill_every_call_slot(self) -> None:
        sizes, running, peak = set(), 0, 0

        async def same(x: pa.Array) -> pa.Array:
            nonlocal running, peak
            sizes.add(len(x))
            running += 1
            peak = max(peak, running)
            await asyncio.sleep(1)
            running -= 1
            return x

        run_rows(same, range(20_000), batch_size=500, capacity=8)
        assert (sizes, peak) == ({500}, 8)

    def test_one_call_takes_one_slot_whatever_its_rows(self) -> None:
        running = peak = 0

        async def same(x: pa.Array) -> pa.Array:
            nonlocal running, peak
            running += 1
            peak = max(peak, running)
            await asyncio.sleep(1)
            running -= 1
            return x

        run_rows(same, range(100), batch_size=5, capacity=3)
        assert peak == 3

    def test_rows_of_one_batch_stay_behind_their_watermark(self) -> None:
        async def same(x: pa.Array) -> pa.Array:
            await asyncio.sleep(1)
            return x

        rows = [1, 2, Watermark(1), 3, 4, Watermark(2)]
        assert run_rows(same, rows, batch_size=4, output_mode="unordered") == rows

    def test_null_is_none_and_whole_numbers_stay_whole(self) -> None:
        seen = []

        async def look(x: pd.Series, y: pa.Array) -> pd.Series:
            seen.append((x.tolist(), y.to_pylist()))
            return x

        big = 2**53 + 1
        assert run_rows(look, [(big, None), (None, big)]) == [big, None]
        assert seen == [([big, None], [None, big])]

    def test_a_data_frame_takes_and_gives_structs(self) -> None:
        async def swap(x: pd.DataFrame) -> pd.DataFrame:
            return pd.DataFrame({"a": x["b"], "b": x["a"]})

        got = run_rows(swap, [{"a": 1, "b": "x"}, {"a": 2, "b": None}], batch_size=2)
        assert got == [{"a": "x", "b": 1}, {"a": None, "b": 2}]

    @pytest.mark.parametrize(("answer", "said"), [([1], "returned list"), (pd.Series([1, 2]), "2 results for 1 rows")])
    def test_a_wrong_answer_is_an_error_that_says_so(self, answer: Any, said: str) -> None:
        async def wrong(x: pd.Series) -> pd.Series:
            return answer

        with pytest.raises(AsyncUDFError, match=said):
            run_rows(wrong, [1])


class TestAsyncFunction:
    def test_open_calls_close_run_on_one_loop(self) -> None:
        class Traced(AsyncFunction):
            def __init__(self) -> None:
                self.events: list[Any] = []
                self.loops: set[int] = set()

            def note(self, event: Any) -> None:
                self.events.append(event)
                self.loops.add(id(asyncio.get_running_loop()))

            async def open(self, context: Any) -> None:
                self.note("open")

            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                self.note(value)
                result_future.complete([value] * value)

            async def close(self) -> None:
                self.note("close")

        function = Traced()
        assert run_rows(function, [2, 0, 1]) == [2, 2, 1]
        assert function.events == ["open", 2, 0, 1, "close"]
        assert len(function.loops) == 1

    def test_a_row_is_done_when_its_future_is_though_the_coroutine_runs_on(self) -> None:
        log = []

        class Eager(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete([value])
                await asyncio.sleep(1)
                log.append(("after", value))

        with OperatorHarness(Eager()) as harness:
            harness.put("a")
            assert harness.output == ["a"]
            assert log == []
            harness.end()
            harness.advance(1.1)
            assert harness.is_done
        assert log == [("after", "a")], "what the coroutine still does is not cut off at the end of the input"

    def test_a_completion_may_come_after_the_coroutine_has_returned(self) -> None:
        class Callback(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                asyncio.get_running_loop().call_later(3, result_future.complete, [value])

        assert run_rows(Callback(), [1, 2]) == [1, 2]

    def test_a_completion_may_come_from_another_thread(self) -> None:
        import threading

        class Threaded(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                threading.Thread(target=result_future.complete, args=([value * 10],)).start()

        assert run_rows(Threaded(), [1, 2, 3], clock="real") == [10, 20, 30]

    @pytest.mark.parametrize("results", [None, "text", 5, {"a": 1}])
    def test_pyflink_emits_a_string_letter_by_letter_here_it_is_an_error_that_names_the_function(
        self, results: Any
    ) -> None:
        class Careless(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete(results)

        with pytest.raises(AsyncUDFError, match="Careless completed a row with"):
            run_rows(Careless(), [1])
        assert run_rows(Careless(), [1], on_error="null") == [None]

    def test_the_first_completion_wins(self) -> None:
        class Twice(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete(["first"])
                result_future.complete(["second"])
                result_future.complete_exceptionally(ValueError("third"))

        assert run_rows(Twice(), [1]) == ["first"]

    def test_a_class_is_made_once_for_the_task(self) -> None:
        class Echo(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete([value])

        assert run_rows(Echo, [1, 2]) == [1, 2]

    def test_it_may_be_declared_with_the_decorator(self) -> None:
        @async_pandas_udf("int", output_mode="unordered")
        class Echo(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete([value])

        assert run_rows(Echo, [1]) == [1]


class TestThreads:
    def test_a_plain_def_runs_in_threads(self) -> None:
        import threading

        def name(x: int) -> str:
            return threading.current_thread().name

        names = run_rows(name, range(4), clock="real")
        assert all(n.startswith("asyncudf-call") for n in names)

    def test_capacity_bounds_the_threads(self) -> None:
        import threading

        barrier = threading.Barrier(3, timeout=10)

        def meet(x: int) -> int:
            barrier.wait()  # passes only when three calls are in progress at once
            return x

        assert run_rows(meet, range(6), clock="real", capacity=3) == list(range(6))
        barrier = threading.Barrier(3, timeout=0.2)
        with pytest.raises(AsyncUDFError, match="BrokenBarrierError"):
            run_rows(meet, range(6), clock="real", capacity=2)

    def test_the_virtual_clock_refuses_a_plain_def(self) -> None:
        def double(x: int) -> int:
            return x * 2

        with pytest.raises(ValueError, match="clock='real'"):
            run_rows(double, [1])

    def test_stop_iteration_in_a_thread_does_not_hang(self) -> None:
        def stop(x: int) -> int:
            raise StopIteration

        with pytest.raises(AsyncUDFError, match="StopIteration"):
            run_rows(stop, [1], clock="real")

    def test_a_def_that_returns_a_coroutine_is_told_what_to_do(self) -> None:
        def forgot(x: int) -> Any:
            return instant(x)

        with pytest.raises(AsyncUDFError, match="declare it async def"):
            run_rows(forgot, [1], clock="real")


class TestSnapshot:
    def test_it_holds_what_is_not_emitted_in_order_also_what_the_queue_had_no_place_for(self) -> None:
        function = ManualFunction()
        with OperatorHarness(function, capacity=2, queue_size=2) as harness:
            harness.put("a", "b", "c", Watermark(5), "d")
            harness.complete("b", "B")
            state = harness.snapshot()
            assert state == [
                StreamRecord(("a",)),
                StreamRecord(("b",)),
                StreamRecord(("c",)),
                Watermark(5),
                StreamRecord(("d",)),
            ]
            harness.complete("a", "A")
            harness.complete("c", "C")
            harness.complete("d", "D")
            harness.end()
            assert harness.is_done
            assert harness.output == ["A", "B", "C", Watermark(5), "D"], "a snapshot disturbs nothing"

    def test_restored_rows_are_called_anew_before_new_ones_even_if_they_outnumber_the_queue(self) -> None:
        first, second = ManualFunction(), ManualFunction()
        with OperatorHarness(first, capacity=2, queue_size=2) as harness:
            harness.put(*"abcde")
            harness.complete("b", "B")
            state = harness.snapshot()
        with OperatorHarness(second, capacity=2, queue_size=2) as harness:
            harness.restore(state)
            harness.put("new")
            harness.end()
            for letter in "abcde":
                harness.complete(letter, letter)
            harness.complete("new", "new")
            assert harness.is_done
            assert second.calls == harness.output == ["a", "b", "c", "d", "e", "new"]

    def test_a_restored_row_comes_before_one_that_was_fed_but_not_admitted(self) -> None:
        function = ManualFunction()
        with OperatorHarness(function, capacity=1, queue_size=1) as harness:
            harness.put("a", "new")
            harness.restore([StreamRecord(("restored",))])
            harness.complete("a", "A")
            harness.complete("restored", "R")
            assert function.calls == ["a", "restored", "new"]


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

    def test_an_output_that_fails_ends_the_run_also_from_a_timer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(self: ListOutput, record: StreamRecord) -> None:
            raise OSError("disk full")

        monkeypatch.setattr(ListOutput, "collect", broken)
        with OperatorHarness(ManualFunction(), timeout=1.0, on_error="null") as harness:
            harness.put("a")
            harness.advance(2.0)
            with pytest.raises(OSError, match="disk full"):
                _ = harness.is_done

    def test_a_source_that_fails_ends_the_run(self) -> None:
        def rows() -> Iterator[int]:
            yield 1
            raise OSError("disk")

        with pytest.raises(OSError, match="disk"):
            run_rows(sleepy, rows())
