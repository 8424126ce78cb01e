"""A rate limit is refused where it cannot work, and is kept over any time, with its burst and its costs."""

from __future__ import annotations

import math
import pickle
import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf import Budget, OptionError, RateLimit
from asyncudf._limits.budgets.option import Budgets
from asyncudf._limits.rates.bucket import BlockSize, Bucket, GrantedPermits, take, tightest
from asyncudf._limits.rates.option import RateLimits, Scope
from asyncudf.testing import run_rows
from tests.kit.limited import most_within, now

LIMITS = st.builds(
    RateLimit,
    st.sampled_from([1, 3, 40, 300, 3000.5]),
    st.sampled_from(["second", "minute", 0.25]),
    burst=st.sampled_from([None, 1, 7]),
)
STEPS = st.lists(st.tuples(st.floats(0, 2), st.sampled_from([0.0, 0.5, 1.0, 2.0, 30.0])), min_size=1, max_size=60)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RateLimit(0), "permits must be a number of more than 0, not 0"),
        (lambda: RateLimit(True), "permits must be a number of more than 0, not True"),
        (lambda: RateLimit(math.inf), "permits must be a number of more than 0, not inf"),
        (lambda: RateLimit(1, per="seconds"), "unknown period of a rate limit 'seconds'; did you mean 'second'?"),  # type: ignore[arg-type]
        (lambda: RateLimit(1, per=0), "per must be more than 0 seconds, not 0"),
        (lambda: RateLimit(1, burst=0.5), "burst must be at least 1, .*, not 0.5"),
        (lambda: RateLimit(20, burst=0), r"not 0\. .* if 20 are the most .* write RateLimit\(18, burst=1\)"),
        (lambda: RateLimit(600, per="minute", burst=0), r'write RateLimit\(587, per="minute", burst=1\)'),
        (lambda: RateLimit(1, per=7.5, burst=0.5), r"write RateLimit\(0.97, per=7.5, burst=1\)"),
        (lambda: RateLimit(1, cost="text"), "cost must be a number or a plain function .*, not 'text'"),  # type: ignore[arg-type]
        (lambda: RateLimit(1, cost=-1), "cost must be a number of more than 0, not -1"),
        (lambda: RateLimit(1, name=""), "name of a rate limit must be a text .*, not ''"),
        (lambda: RateLimit(1, scope="executor"), "scope must be one of 'job', 'task', not 'executor'"),  # type: ignore[arg-type]
    ],
)
def test_a_limit_that_cannot_work_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        make()


@pytest.mark.parametrize("most", [1, 3, 20, 100])
def test_what_the_message_says_is_strict(most: int) -> None:
    with pytest.raises(OptionError) as caught:
        RateLimit(most, burst=0.5)
    permits = float(str(caught.value).partition("write RateLimit(")[2].partition(",")[0])

    async def begins(x: int) -> float:
        return now()

    times = run_rows(begins, range(3 * most), rate_limit=RateLimit(permits, burst=1), capacity=2 * most)
    assert 0.8 * most < most_within(1.0, times) <= most or most < 3


def test_what_is_left_out_is_filled_in() -> None:
    """The burst is 2% of the rate and at least 1, for any period."""
    assert RateLimit(10).saved == 1.0
    assert RateLimit(3000).saved == 60.0
    assert RateLimit(30, per=timedelta(minutes=1)).interval == 2.0
    assert pickle.loads(pickle.dumps(RateLimit(5, "day", scope="task"))) == RateLimit(5, 86400.0, scope=Scope.TASK)


def begun(
    permits: Sequence[Any], steps: Sequence[tuple[float, float]], start: float = 1e6
) -> list[tuple[float, float]]:
    """(time, cost) of calls that come one after the other, each as soon as it may."""
    calls, now = [], start
    for pause, cost in steps:
        now += pause
        while wait := take(permits, [cost] * len(permits), now):
            now += wait
        calls.append((now, cost))
    return calls


def worst_excess(calls: Sequence[tuple[float, float]], limit: RateLimit) -> float:
    """By how many permits any stretch of time has more than its share."""
    return max(
        sum(cost for _, cost in calls[first : last + 1]) - (calls[last][0] - calls[first][0]) / limit.interval
        for first in range(len(calls))
        for last in range(first, len(calls))
    )


@pytest.mark.parametrize("permits", [300, 1000, 5000])
@pytest.mark.parametrize("late", [0.0, 0.001, 0.01, 0.025])
def test_timers_that_come_late_lose_little_of_the_rate(permits: int, late: float) -> None:
    """With a burst of one call each permit that came while its caller was being woken was lost: four of five."""
    limit = RateLimit(permits, burst=1)
    bucket, now, times = Bucket(limit), 0.0, list[float]()
    while now < 5.0:
        wait = take([bucket], [1.0], now)
        assert wait is not None
        if wait:
            now += wait + late
        else:
            times.append(now)
    assert len(times) >= (0.95 if late <= 0.02 else 0.75) * 5 * permits
    most = max(bisect_left(times, begin + 1.0) - place for place, begin in enumerate(times))
    assert most <= 1.02 * permits + 2


def test_a_quiet_time_saves_no_more_than_the_burst_for_all_that() -> None:
    """Who had waited did not come; long after him one call begins at once, as the burst says."""
    bucket = Bucket(RateLimit(1000, burst=1))
    assert take([bucket], [1.0], 10.0) == 0.0
    assert take([bucket], [1.0], 10.0)
    assert [take([bucket], [1.0], 20.0) == 0.0 for _ in range(2)] == [True, False]


@given(LIMITS, LIMITS, STEPS)
def test_several_limits_hold_together(one: RateLimit, other: RateLimit, steps: list[tuple[float, float]]) -> None:
    calls = begun([Bucket(one), Bucket(other)], steps)
    for limit in (one, other):
        most = max(limit.saved, *(cost for _, cost in steps)) + 0.02 * limit.permits
        assert worst_excess(calls, limit) <= most + 0.01


def test_a_call_that_waits_takes_nothing() -> None:
    """What it would have taken is there for a cheaper one."""
    hour, second = Bucket(RateLimit(1, "hour")), Bucket(RateLimit(10, burst=1))
    assert take([hour, second], [1.0, 1.0], 0.0) == 0.0
    assert take([hour, second], [1.0, 1.0], 10.0) == pytest.approx(3590.0)
    assert take([second], [1.0], 10.0) == 0.0


def test_leased_permits_are_the_stretch_of_time_that_they_come_due_in() -> None:
    permits = GrantedPermits(RateLimit(10, burst=1))
    permits.add(100.0, 100.3)
    assert permits.held(100.0) == pytest.approx(3.0)
    assert [call[0] for call in begun([permits], [(0.0, 1.0)] * 3, 100.0)] == pytest.approx([100.1, 100.2, 100.3])
    assert take([permits], [1.0], 100.3) is None


def test_permits_of_several_leases_add_up() -> None:
    permits = GrantedPermits(RateLimit(10, burst=5))
    permits.add(100.0, 100.2)
    permits.add(100.3, 100.6)
    assert permits.due(6.0, 100.0) is None
    assert take([permits], [4.0], 100.0) == pytest.approx(0.5)
    assert take([permits], [4.0], 100.5) == 0.0
    permits.add(101.0, 101.2, ahead=50.0)
    assert permits.give_back() == [pytest.approx((100.5, 100.6)), pytest.approx((151.0, 151.2))]
    assert permits.held(100.5) == 0.0


def test_permits_that_are_not_used_in_time_get_stale() -> None:
    """They are kept for what the burst allows and 2% of the period, and not on top of what others have then."""
    permits = GrantedPermits(RateLimit(100, burst=1))
    permits.add(100.0, 100.1)
    assert permits.held(100.03) == pytest.approx(10.0)
    assert permits.held(100.08) == pytest.approx(5.0)
    assert permits.held(101.0) == 0.0
    assert permits.give_back() == []


@given(LIMITS, STEPS)
def test_a_task_that_has_the_whole_time_on_lease_keeps_the_limit(
    limit: RateLimit, steps: list[tuple[float, float]]
) -> None:
    """Late permits do not gather: at most 2% of the period's permits more than of a bucket."""
    permits = GrantedPermits(limit)
    permits.add(1e6, 1e9)
    largest = max(limit.saved, *(cost for _, cost in steps))
    assert worst_excess(begun([permits], steps), limit) <= largest + 0.02 * limit.permits + 0.01


def asked(size: BlockSize, rate: float, times: int, *, waits: bool = False) -> list[int]:
    """What a task asks for each time when what it got is used up, at so many calls per second."""
    found, now = [], 0.0
    for _ in range(times):
        found.append(size.next(now))
        for _ in range(found[-1]):
            size.began()
        if waits:
            size.waited()
        now += found[-1] / rate
    return found


def test_a_block_grows_to_what_is_used_in_time() -> None:
    size = BlockSize([RateLimit(3000, burst=240)])  # permits are stale after 100 ms
    assert asked(size, 449.0, 9) == [1, 2, 4, 8, 16, 32, 45, 45, 45]
    assert size.next(60.0) == 1
    assert asked(BlockSize([RateLimit(300), RateLimit(5000, "hour")]), 449.0, 9)[-3:] == [18, 18, 18]  # 40 ms


def test_who_waits_for_permits_asks_for_more() -> None:
    """Than he uses in 0.4 s: of tasks that share a rate the one with the smaller blocks catches up."""
    assert asked(BlockSize([RateLimit(300)]), 449.0, 12, waits=True)[-2:] == [182, 182]


def test_who_lets_permits_become_stale_asks_for_half_as_much_and_then_slowly_for_more() -> None:
    """The slots of a task were taken in a part of each block, and no other task had the rest of it."""
    size, found = BlockSize([RateLimit(300)]), [0] * 12
    now = 0.0
    for was_too_long in [*[False] * 12, True, True, True, *[False] * 8]:
        found.append(size.next(now, was_too_long=was_too_long))
        for _ in range(found[-1]):
            size.began()
        size.waited()
        now += found[-1] / 449.0
    assert found[23:] == [182, 91, 45, 22, 24, 27, 29, 32, 36, 39, 43, 48]  # a tenth more each time


def test_calls_until_the_next_permits_come_are_no_block_that_was_too_long() -> None:
    size = BlockSize([RateLimit(300)])
    asked(size, 449.0, 12, waits=True)
    for _ in range(449):
        size.began()
    assert size.next(2.0, least=0.5, was_too_long=True) >= 100


def amounts(budgets: list[Budget], query: str) -> list[str]:
    return [name for _, name in Budgets(budgets).named(query)]


def test_budgets_without_a_name_are_told_apart_by_their_numbers() -> None:
    """With one name for both, two amounts of a query were one, and the larger one was spent."""
    own = [Budget(5, "calls"), Budget(20, "calls"), Budget(5, "USD"), Budget(5, "calls")]
    assert len({*amounts(own, "query")}) == 4
    assert amounts(own, "query") == amounts(own, "query") != amounts(own, "another query")
    assert amounts([Budget(20, name="month"), Budget(5)], "query")[0] == amounts([Budget(50, name="month")], "other")[0]


def named(limits: list[RateLimit]) -> list[tuple[str, RateLimit]]:
    return RateLimits(limits).named("f")


class TestUnderWhichNameTasksShareIt:
    """Two limits of one function on one time line were one limit: the permits of the one went for both."""

    def test_two_of_equal_numbers_are_two(self) -> None:
        limits = [RateLimit(20, cost=5), RateLimit(20), RateLimit(20.0, "second")]
        assert len(dict(named(limits))) == 3

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (RateLimit(1234567), RateLimit(1234568)),
            (RateLimit(10, 1.0000001), RateLimit(10, 1.0000002)),
            (RateLimit(10**7, burst=10**6), RateLimit(10**7, burst=10**6 + 1)),
        ],
    )
    def test_numbers_that_differ_little_differ(self, one: RateLimit, other: RateLimit) -> None:
        assert named([one])[0][0] != named([other])[0][0]

    def test_wherever_in_a_list_it_is_the_same(self) -> None:
        """The function is used with one limit and, by `with_options`, with another one before it."""
        assert named([RateLimit(5), RateLimit(20)])[1:] == named([RateLimit(20)])

    def test_its_own_name_is_it(self) -> None:
        assert named([RateLimit(20), RateLimit(20, name="model")])[1][0] == "model"


def test_waits_of_two_limits_of_nearly_one_rate_are_those_of_the_lower_one():
    """Calls are woken a little late, so that now the one lets a call begin last, and now the other."""
    rng, now, waits = random.Random(0), 0.0, [0.0, 0.0]
    limits = [Bucket(RateLimit(100, burst=1)), Bucket(RateLimit(101, burst=1))]
    for _ in range(1000):
        while (wait := take(limits, [1.0, 1.0], now)) != 0.0:
            assert wait is not None
            number, late = tightest(limits, [1.0, 1.0], now), wait + rng.uniform(0, 0.004)
            waits[number or 0] += late
            now += late
    assert waits[0] > 0.99 * sum(waits)
