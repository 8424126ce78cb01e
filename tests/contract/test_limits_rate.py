"""`rate_limit`: how many calls begin in any second, whatever else becomes of them. Virtual clock."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from asyncudf import (
    AsyncFunction,
    AsyncStream,
    AsyncUDFError,
    OptionError,
    RateLimit,
    ResultFuture,
    RetryStrategy,
    RuntimeContext,
    async_pandas_udf,
)
from asyncudf.queues import Watermark
from asyncudf.testing import ManualFunction, OperatorHarness, run_rows, run_stream
from tests.kit.errors import task_fails
from tests.kit.figures import figures
from tests.kit.functions import Flaky
from tests.kit.limited import Service, most_within, now
from tests.kit.stores import SlowStore

MODES = pytest.mark.parametrize("mode", ["ordered", "unordered"])


async def at_once(x: Any) -> float:
    return now()


class TestTheRate:
    def test_several_limits_all_hold(self) -> None:
        service = Service(0.0)
        limits = [RateLimit(2, burst=1), RateLimit(10, per="minute", burst=4)]
        run_rows(service, range(16), rate_limit=limits)
        assert most_within(1.0, service.times) <= 2 + 1
        assert most_within(60.0, service.times) <= 10 + 4
        assert service.times[:4] == [0, 0.5, 1, 1.5]
        assert service.times[-1] == pytest.approx(12 * 6.0)


class TestCosts:
    @pytest.mark.parametrize(
        ("columns", "seen"), [("a int, b int, c int", (1, 2, 3)), ("a int, c int", (1, 7, 3)), ("a int", (1, 7, 8))]
    )
    def test_it_gets_what_the_function_takes(self, columns: str, seen: tuple[int, ...]) -> None:
        """Where there is no column it got the next one's value, or none: wrong permits, or a TypeError."""
        got = []

        def cost(a: int, b: int, c: int) -> float:
            got.append((a, b, c))
            return 1

        def of_any(a: int, *more: int, factor: float = 1) -> float:
            got.append((a, *more))
            return factor

        async def asked(session: Any, a: int, b: int = 7, c: int = 8, *, context: RuntimeContext) -> str:
            return repr((a, b, c))

        def build(stream: AsyncStream) -> AsyncStream:
            limits = [RateLimit(100, cost=cost), RateLimit(100, cost=of_any)]
            resources = {"session": contextlib.nullcontext}
            return stream.ordered_wait(asked, rate_limit=limits, resources=resources)

        row = {name: value for name, value in {"a": 1, "b": 2, "c": 3}.items() if name in columns.split()}
        assert [row["asked"] for row in run_stream(build, [row], columns)] == [repr(seen)]
        assert got == [seen, seen if "c" in columns else (1,)]

    @pytest.mark.parametrize("cost", [lambda text: 1, lambda text, encoding="utf-8": len(text.encode(encoding)), len])
    def test_it_need_not_take_all(self, cost: Any) -> None:
        async def asked(text: str, temperature: float = 0.5) -> float:
            return now()

        assert run_rows(asked, ["a", "b"], rate_limit=RateLimit(1, cost=cost)) == [0, 1]

    def test_what_it_gives_is_not_shown_where_inputs_are_redacted(self) -> None:
        limit = RateLimit(10, cost=lambda text: text)
        with task_fails(match=r"of 0 or more, not this str$"):
            run_rows(at_once, ["password"], redact=True, rate_limit=limit)
        with task_fails(match="of 0 or more, not 'password'"):
            run_rows(at_once, ["password"], rate_limit=limit)

    def test_one_that_has_to_be_awaited_ends_the_job(self, recwarn: pytest.WarningsRecorder) -> None:
        with task_fails(match="of 0 or more, not <coroutine"):
            run_rows(at_once, [1], rate_limit=RateLimit(10, cost=lambda x: at_once(x)))  # type: ignore[arg-type,return-value]
        assert not recwarn.list

    def test_of_an_async_function_it_is_given_the_dict(self) -> None:
        class Told(AsyncFunction):
            async def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
                result_future.complete([now()])

        rows = [{"tokens": 3}, {"tokens": 1}]
        assert run_rows(Told(), rows, rate_limit=RateLimit(1, cost=lambda row: row["tokens"])) == [0, 3]

    @pytest.mark.parametrize(("cost", "begins"), [(1, [0, 1, 2]), (lambda x: 1, [0, 4, 8])], ids=["number", "function"])
    def test_a_micro_batch_is_one_call_and_the_sum_of_its_rows(self, cost: Any, begins: list[float]) -> None:
        sizes = []

        async def plus(x: pd.Series) -> pd.Series:
            sizes.append((len(x), now()))
            return x + 1

        limit = RateLimit(1, cost=cost)
        assert run_rows(plus, range(10), returnType="long", batch_size=4, rate_limit=limit) == list(range(1, 11))
        assert sizes == list(zip([4, 4, 2], begins, strict=True))

    @pytest.mark.parametrize("cost", [float("nan"), -1, float("inf"), 10**400, "3", None, True])
    @pytest.mark.parametrize("on_error", ["raise", "null"])
    def test_one_that_gives_no_number_ends_the_job(self, cost: Any, on_error: Any) -> None:
        """It is wrong for every row, so no row becomes a null of it."""
        service = Service()
        with task_fails(match="cost of a rate limit must give a number of 0 or more, not "):
            run_rows(service, [1, 2], on_error=on_error, rate_limit=RateLimit(10, cost=lambda x: cost))
        assert service.calls == []

    @pytest.mark.parametrize("error", [ValueError("no text"), asyncio.CancelledError()])
    def test_one_that_fails_is_the_rows_error(self, error: BaseException) -> None:
        def cost(x: int) -> float:
            if x == 1:
                raise error
            return 1

        assert run_rows(at_once, [0, 1, 2], on_error="null", rate_limit=RateLimit(1, cost=cost)) == [0, None, 1]
        with pytest.raises(AsyncUDFError, match=r"at_once failed without a call, .* for the input \(1,\)"):
            run_rows(at_once, [0, 1, 2], rate_limit=RateLimit(1, cost=cost))

    def test_one_that_edits_its_argument_changes_no_row(self) -> None:
        async def same(x: list[int]) -> list[int]:
            return x

        assert run_rows(same, [[3], [4]], rate_limit=RateLimit(1, cost=lambda x: x.pop())) == [[3], [4]]

    @pytest.mark.parametrize("cost", [-1, 0, float("nan"), "3", at_once, functools.partial(at_once), Service()])
    def test_what_cannot_be_a_cost_is_refused_at_once(self, cost: Any) -> None:
        with pytest.raises(OptionError, match="cost must be a number"):
            RateLimit(1, cost=cost)


class TestAttempts:
    def test_each_needs_a_permit(self) -> None:
        flaky = Flaky(2)
        retry = RetryStrategy.fixed_delay(3, 0.1)
        assert run_rows(flaky, ["a", "b"], capacity=5, retry=retry, rate_limit=RateLimit(1)) == [4, 5]
        assert [time for _, time in flaky.calls] == [0, 1, 2, 3, 4, 5]

    def test_a_deadline_begins_with_the_first(self) -> None:
        """With 100 rows at one per second and a timeout of 5 s no row is late."""
        assert run_rows(Service(1.0), range(100), timeout=5.0, rate_limit=RateLimit(1))[-1] == 99

    def test_from_then_on_waiting_counts(self) -> None:
        retry = RetryStrategy.fixed_delay(3, 1.0)
        limit = RateLimit(1, per="minute")
        got = run_rows(Flaky(1), ["a"], timeout=30.0, on_error="capture", retry=retry, rate_limit=limit)
        assert got[0]["error"]["type"] == "AsyncTimeoutError"
        assert (got[0]["error"]["attempts"], got[0]["error"]["elapsed"]) == (1, 30)

    def test_a_row_that_is_late_at_the_gate_holds_nobody_up(self) -> None:
        """The job ended five seconds after its last row, when the call that nobody needed any more was given up."""
        retry = RetryStrategy.fixed_delay(3, 1.0)
        limit = RateLimit(1, per="minute")
        found = figures(Flaky(1), ["a"], timeout=30.0, on_error="null", retry=retry, rate_limit=limit)
        assert found.seconds == 30


class TestWhileACallWaits:
    @MODES
    def test_markers_do_not_pass_it(self, mode: Any) -> None:
        function = ManualFunction()
        with OperatorHarness(function, output_mode=mode, rate_limit=RateLimit(1)) as harness:
            harness.put("a", Watermark(1), "b", Watermark(2))
            harness.complete("a", "A")
            assert harness.output == ["A", Watermark(1)]
            harness.advance(1.0)
            harness.complete("b", "B")
            assert harness.output == ["A", Watermark(1), "B", Watermark(2)]

    def test_its_time_goes_to_the_limit(self) -> None:
        found = figures(Service(0.5), range(11), rate_limit=RateLimit(1))
        assert found.time["limit"] == pytest.approx(10.0)
        assert found.seconds == pytest.approx(10.5)


class TestBesideOthers:
    def test_what_a_store_has_asks_for_no_permit(self) -> None:
        service, store = Service(), SlowStore(get=0.1)
        looked_up = _stored(service, store)
        run_rows(looked_up, [1, 2])
        service.calls.clear()
        assert len(run_rows(looked_up, [3, 1, 4, 2, 1], output_mode="unordered")) == 5
        assert service.rows == [3, 4]
        assert service.times == pytest.approx([0.1, 10.1])

    def test_combinations_of_options(self) -> None:
        run_rows(at_once, [1], rate_limit=[], job_capacity=1, max_calls=1)
        for wrong in (RateLimit, 5, [5], "second", {"permits": 1}):
            with pytest.raises(OptionError, match=r"rate_limit must be a RateLimit, such as RateLimit\(100"):
                run_rows(at_once, [1], rate_limit=wrong)  # type: ignore[arg-type]

    def test_one_name_twice_in_a_list_is_refused_at_once(self) -> None:
        limits = [RateLimit(20, cost=5, name="model"), RateLimit(20, name="model")]
        with pytest.raises(
            OptionError, match=r"rate_limit has two limits of the name 'model'.*give each a name of its"
        ):
            run_rows(at_once, [1], rate_limit=limits)


def _stored(service: Callable[[Any], Any], store: SlowStore) -> Any:
    @async_pandas_udf("double", store=store, version="1", capacity=4, rate_limit=RateLimit(1, per=10.0))
    async def looked_up(x: int) -> float:
        return await service(x)  # type: ignore[no-any-return]

    return looked_up
