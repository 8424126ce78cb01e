"""How far a run is, how fast, and for how long still, is told of its figures and never pretended."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf import RuntimeContext
from asyncudf._observe.reports.progress import FunctionProgress, ProgressTracker, Snapshot, line, lines
from tests.kit.figures import figures as figures_of_a_run


def figures(rows: int = 0, **others: Any) -> dict[str, Any]:
    """What `RunMetrics.to_plain` tells of a function, as far as progress reads it."""
    tasks = {"succeeded": 0, "stopped": 0, "running": 0, "failed": 0, "lost": 0} | others.pop("tasks", {})
    return {
        "function": "weather", "tasks": tasks, "began": 100.0, "ended": 100.0, "rows": rows, "retries": 0,
        "errors": {}, "failed_attempts": {"rows": 0, "retries": 0, "errors": {}},
        "latency": {"p50": None, "p95": None}, "running": running(0),
        **others,
    }  # fmt: skip


def running(rows: int, in_flight: int = 0) -> dict[str, Any]:
    """What the running tasks of a function have done, and do."""
    return {"rows": rows, "in_flight": in_flight}


def progress(function: dict[str, Any], done: int = 0, total: int | None = None, **others: Any) -> FunctionProgress:
    (told,) = ProgressTracker().track(Snapshot([function], done, total, others.pop("seconds", 10.0)), **others)
    return told


class TestTimeLeft:
    @pytest.mark.parametrize(
        "runs", [{"tasks": {"succeeded": 8, "running": 1}}, {"running": running(0, 1), "tasks": {"succeeded": 8}}]
    )
    def test_it_is_not_over_while_a_call_or_a_task_runs(self, runs: Any) -> None:
        """It said "0:00 left" for as long as the last call took."""
        tracker = ProgressTracker()
        tracker.track(Snapshot([figures(0, **runs)], 8, 9, 10.0))
        (told,) = tracker.track(Snapshot([figures(1_000, **runs)], 9, 9, 20.0))
        assert (told.left, " ? left, " in line(told)) == (None, True)
        assert told.share == 0.99  # nor is all of it done

    def test_it_is_not_over_while_spark_has_tasks(self) -> None:
        """All rows are done, and what comes behind in the query has not taken them."""
        tracker = ProgressTracker()
        tracker.track(Snapshot([figures(0, tasks={"running": 1})], 0, 1, 10.0))
        (told,) = tracker.track(Snapshot([figures(40, tasks={"succeeded": 1})], 0, 1, 20.0))
        assert told.left is None
        (told,) = tracker.track(Snapshot([figures(40, tasks={"succeeded": 1})], 1, 1, 30.0))
        assert told.left == 0.0

    def test_it_is_told_where_it_is_a_second_or_more(self) -> None:
        tracker = ProgressTracker()
        for rows, now in ((100, 10.0), (1_000, 20.0)):
            function = figures(rows, tasks={"succeeded": 4, "running": 1}, running=running(0, 1))
            (told,) = tracker.track(Snapshot([function], 4, 8, now))
        assert told.left == 10.0


class TestWaits:
    WAIT = {"kind": "call", "what": "a call", "seconds": 45.0, "at_most": None, "option": "timeout=", "tasks": 2}

    def test_what_tasks_wait_for_stands_below_the_line(self) -> None:
        function = figures(5, waits=[self.WAIT, {**self.WAIT, "tasks": 1, "at_most": 180.0}])
        _, *waits = lines(progress(function))
        assert waits == [
            "  2 tasks of weather have waited for 45 s for a call, with no time limit; to change it: timeout=",
            "  weather has waited for 45 s for a call, for 3 min at most; to change it: timeout=",
        ]

    def test_a_run_that_is_over_waits_for_nothing(self) -> None:
        assert lines(progress(figures(5, waits=[self.WAIT]), is_over=True))[1:] == []


class TestRows:
    def test_rows_of_tasks_that_ended_are_scaled_to_all_tasks(self) -> None:
        told = progress(figures(3_000, tasks={"succeeded": 2, "running": 1}, running=running(1_000)), 2, 8)
        assert (told.rows, told.expected, told.is_estimated, told.share) == (3_000, 8_000, True, 0.375)

    def test_before_a_task_has_ended_nothing_is_expected(self) -> None:
        """A share of 0% would say that nothing is done."""
        told = progress(figures(1_000, tasks={"running": 1}, running=running(1_000)), 0, 8)
        assert (told.expected, told.is_estimated, told.share, told.left) == (None, False, None, None)

    def test_where_spark_tells_no_number_of_tasks_nothing_is_expected(self) -> None:
        told = progress(figures(1_000, tasks={"succeeded": 2}), 2, None)
        assert (told.expected, told.share) == (None, None)

    def test_a_reader_that_has_stopped_a_task_may_stop_others(self) -> None:
        assert progress(figures(1_000, tasks={"succeeded": 2, "stopped": 1}), 3, 8).expected is None

    def test_empty_partitions_that_tell_nothing_count_as_tasks(self) -> None:
        assert progress(figures(1_000, tasks={"succeeded": 1}), 4, 8).expected == 2_000

    def test_when_all_tasks_are_done_the_number_is_no_estimate(self) -> None:
        told = progress(figures(1_234, tasks={"succeeded": 8}), 8, 8)
        assert (told.expected, told.is_estimated, told.share) == (1_234, False, 1.0)

    @given(st.integers(0, 10**7), st.integers(0, 10**7), st.integers(0, 300), st.integers(0, 300), st.integers(0, 300))
    def test_no_more_is_done_than_expected(self, ended: int, rest: int, succeeded: int, done: int, total: int) -> None:
        """Whatever the figures are, which come from two places that need not agree."""
        function = figures(ended + rest, tasks={"succeeded": succeeded, "running": 1}, running=running(rest))
        told = progress(function, done, total)
        assert told.expected is None or told.expected >= told.rows
        assert told.share is None or 0 <= told.share <= 1
        assert told.left is None or told.left >= 0


class TestSpeed:
    def moments(self, *moments: tuple[float, int], **others: Any) -> FunctionProgress:
        """The last of these snapshots: seconds, and rows at that time."""
        tracker = ProgressTracker()
        for seconds, rows in moments:
            function = figures(rows, tasks={"running": 1}, running=running(rows), ended=100.0 + seconds) | others
            (told,) = tracker.track(Snapshot([function], 0, None, seconds))
        return told

    def test_it_is_that_of_the_last_seconds_not_since_the_start(self) -> None:
        assert self.moments(*[(t / 10, min(t, 100) * 10) for t in range(400)]).rate == 0
        assert self.moments(*[(t / 10, max(0, t - 300) * 10) for t in range(400)]).rate == 100

    def test_a_pause_of_a_second_or_two_does_not_show(self) -> None:
        told = self.moments(*[(t / 10, t // 40 * 400) for t in range(320)]).rate
        assert told is not None
        assert 70 <= told <= 130

    def test_the_first_snapshot_knows_the_mean(self) -> None:
        assert self.moments((20.0, 1_000)).rate == 50

    def test_snapshots_that_are_far_apart_are_compared_with_each_other(self) -> None:
        assert self.moments((20.0, 1_000), (60.0, 5_000)).rate == 100

    def test_rows_of_a_failed_task_were_work_and_the_speed_is_not_negative(self) -> None:
        tracker = ProgressTracker()
        tracker.track(Snapshot([figures(1_000, tasks={"running": 1}, running=running(1_000))], 0, None, 10.0))
        function = figures(0, tasks={"running": 1}, failed_attempts={"rows": 1_500, "retries": 2, "errors": {"E": 3}})
        (told,) = tracker.track(Snapshot([function], 0, None, 20.0))
        assert (told.rate, told.errors, told.retries) == (50, 3, 2)

    def test_where_only_ended_tasks_tell_it_is_the_mean(self) -> None:
        """Else it would be 0 most of the time, and far too much for a moment."""
        tracker = ProgressTracker()
        for second in range(100):
            function = figures(1_000 * (second // 20), tasks={"succeeded": second // 20}, ended=100.0 + second)
            (told,) = tracker.track(Snapshot([function], second // 20, 10, float(second)))
        assert told.rate is not None
        assert abs(told.rate - 4_000 / 99) < 0.01
        assert told.left is not None
        assert abs(told.left - 6_000 / told.rate) < 1

    def test_time_left_is_that_of_the_rows_left(self) -> None:
        tracker = ProgressTracker()
        for second in range(61):
            tasks = {"succeeded": 1, "running": 1}
            function = figures(1_000 + second * 10, tasks=tasks, running=running(second * 10))
            (told,) = tracker.track(Snapshot([function], 1, 4, float(second)))
        assert (told.rate, told.expected, told.left) == (10, 4_000, 240)

    def test_a_run_that_is_over_tells_the_mean_and_how_long_it_took(self) -> None:
        told = progress(figures(1_000, ended=108.0), 2, 8, is_over=True, seconds=12.0)
        assert (told.rate, told.took, told.left, told.share) == (125, 8.0, None, 1)


class TestTheRest:
    def test_calls_in_flight_are_those_of_running_tasks_now(self) -> None:
        assert progress(figures(running=running(3, 32))).in_flight == 32

    def test_errors_and_retries_of_failed_tasks_count_too(self) -> None:
        told = progress(
            figures(
                errors={"A": 2, "B": 1}, retries=4, tasks={"failed": 1, "lost": 1},
                failed_attempts={"rows": 0, "retries": 2, "errors": {"A": 5}},
            )
        )  # fmt: skip
        assert (told.errors, told.retries, told.failed_tasks, told.which_errors) == (8, 6, 2, "")

    def test_the_last_error_and_the_commonest_are_named(self) -> None:
        """2,245 errors did not say which; of tasks that failed only where the others had none."""
        last, other = {"type": "B", "status": 429}, {"type": "A", "status": None}
        in_vain = {"rows": 0, "retries": 2, "errors": {"A": 5}, "last_error": other}
        told = progress(figures(errors={"A": 2, "B": 3}, last_error=last, failed_attempts=in_vain))
        assert told.which_errors == "mostly A, last B 429"
        assert "10 errors (mostly A, last B 429), 2 retries" in line(told)
        assert progress(figures(last_error=None, failed_attempts=in_vain)).which_errors == "last A"


class TestSpent:
    @pytest.mark.parametrize("seed", range(10))
    def test_at_a_tenth_of_the_rows_the_cost_of_all_is_known_to_15_percent(self, seed: int) -> None:
        """Prices differ as lengths of answers do: a few are many times the usual one."""
        rng = random.Random(seed)
        prices = [rng.expovariate(1 / 0.002) for _ in range(5_000)]

        async def ask(row: int, context: RuntimeContext) -> int:
            context.spend(prices[row])
            return row

        one_task = vars(figures_of_a_run(ask, range(500)))
        told = progress(one_task, done=1, total=10).spent
        spent, _, _, least, _, most = told.split()
        assert float(spent) == pytest.approx(sum(prices[:500]), rel=0.01)
        assert (float(least) + float(most)) / 2 == pytest.approx(sum(prices), rel=0.15)
        assert float(least) <= sum(prices) <= float(most)

    def test_what_the_rest_may_cost_is_a_range(self) -> None:
        """100 of 1,000 rows cost 0.02 each, give or take 0.01: 20, within some percent."""
        one = progress(figures(100, spent={"USD": 2.0}, spent_squares={"USD": 0.05}), done=1, total=10)
        assert one.spent == "2 USD of 17.60 to 22.40"

    def test_few_rows_say_nothing_about_others(self) -> None:
        one = progress(figures(10, spent={"USD": 2.0}, spent_squares={"USD": 0.5}), done=1, total=10)
        assert one.spent == "2 USD"
