"""What the coordinator grants keeps each limit over all tasks, loses little of it, and is fair; on virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncudf import RateLimit
from asyncudf._limits.coordinator.client import LEASE
from asyncudf._limits.rates.job import GRANT, NEVER_USED, OPEN, SharedPermits, open_limits
from tests.kit.coordinators import OnGivenTime, Scripts, Server, begin_calls, leased, linked, run_on_given_time
from tests.kit.thorough import examples

pytestmark = pytest.mark.services

START = 1.7e9  # seconds since 1970, as the server counts them
TRIP = 0.001  # seconds to the coordinator and back
Calls = list[tuple[float, int, Sequence[float]]]  # when, by which task, at which costs


@dataclasses.dataclass
class Task:
    """A task that always has a call to make; its limits have the names "0", "1" and so on, from `first` on.

    Args:
        slots: calls that it has in flight at most.
        takes: seconds of a call.
    """

    limits: Sequence[RateLimit]
    costs: Sequence[Sequence[float]]
    first: int = 0
    slots: float = math.inf
    takes: float = 0.0
    begun: int = 0
    asked: int = 0
    in_flight: int = 0

    def _ended(self, look: asyncio.Event) -> None:
        self.in_flight -= 1
        look.set()

    async def run(
        self, connection: OnGivenTime, note: Callable[[Sequence[float]], None], late: Callable[[], float]
    ) -> None:
        """Begin calls until it is cancelled; it wakes `late` seconds later than it would."""
        look = asyncio.Event()
        permits = SharedPermits(linked(connection, "t", look.set), named(self))
        ask = permits._lease

        async def count(costs: Sequence[float]) -> None:
            self.asked += 1
            await ask(costs)

        permits._lease = count  # type: ignore[method-assign]
        try:
            while True:
                costs = self.costs[self.begun % len(self.costs)]
                if self.in_flight < self.slots and permits.take(costs):
                    self.begun += 1
                    note(costs)
                    self.in_flight += 1
                    asyncio.get_running_loop().call_later(self.takes, self._ended, look)
                    continue
                look.clear()
                await look.wait()
                if seconds := late():
                    await asyncio.sleep(seconds)
        finally:
            await permits.close()


def named(task: Task) -> list[tuple[str, RateLimit]]:
    return [(str(task.first + number), limit) for number, limit in enumerate(task.limits)]


def run(server: Server, tasks: Sequence[Task], seconds: float, lateness: float = 0.0, trip: float = TRIP) -> Calls:
    """All tasks side by side; each wakes up to `lateness` seconds later than it would."""
    calls: Calls = []
    late = partial(random.Random(1).uniform, 0.0, lateness)

    async def job() -> None:
        async with OnGivenTime(server, trip) as connection:
            clock = asyncio.get_running_loop().time
            for task in tasks:
                await open_limits(connection, named(task))
            start = clock()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                    for number, task in enumerate(tasks):
                        note = partial(lambda number, costs: calls.append((clock() - start, number, costs)), number)
                        group.create_task(task.run(connection, note, late))

    run_on_given_time(job)
    return calls


def worst(calls: Calls, limit: RateLimit, which: int = 0) -> float:
    """The most permits that any period has."""
    most = used = 0.0
    first = 0
    for now, _, costs in calls:
        used += costs[which]
        while calls[first][0] <= now - limit.period:
            used -= calls[first][2][which]
            first += 1
        most = max(most, used)
    return most


ONE = [[1.0]]


@pytest.mark.parametrize("number", [1, 2, 4, 30])
@pytest.mark.parametrize("permits", [5, 50, 300, 3000])
def test_no_second_has_too_many_and_nearly_all_are_used(server: Server, permits: int, number: int) -> None:
    """At most the rate, the burst and 2% in any second; at least 95% of the rate, though all look 10 ms late.

    After some seconds none has more than twice what another has, and together they ask little.
    """
    limit = RateLimit(permits)
    tasks = [Task([limit], ONE) for _ in range(number)]
    seconds = 60.0 if permits < 10 else 12.0 if permits / number <= 300 else 4.0
    calls = run(server, tasks, seconds, 0.01)
    assert worst(calls, limit) <= 1.02 * permits + limit.saved + 1e-6
    used = sum(now >= 1.0 for now, _, _ in calls) / (calls[-1][0] - 1.0)
    assert used >= 0.95 * permits
    if permits / number >= 10:
        late = Counter(task for now, task, _ in calls if now >= seconds / 2)
        assert max(late.values()) <= 2 * min(late[number] for number in range(number))
        assert sum(task.asked for task in tasks) <= seconds * max(12, 4 * number) + 20 * number


@pytest.mark.parametrize("number", [2, 10])
@pytest.mark.parametrize(
    ("rate", "slots", "takes"), [(400, 40, 0.052), (400, 24, 0.052), (400, 20, 0.05), (100, 20, 0.2), (3000, 90, 0.03)]
)
def test_a_task_takes_no_more_than_its_slots_can_use(
    server: Server, rate: int, slots: int, takes: float, number: int
) -> None:
    """Ten tasks with four slots each had half of the rate: each leased 0.1 s of it and used the beginning of that.

    Where slots and rate allow the same number of calls some of it is lost, for permits come in turns.
    """
    tasks = [Task([RateLimit(rate)], ONE, slots=slots // number, takes=takes) for _ in range(number)]
    calls = run(server, tasks, 10.0 if rate < 1000 else 5.0)
    allowed = min(rate, slots // number * number / takes)
    used = sum(now >= 3.0 for now, _, _ in calls) / (calls[-1][0] - 3.0)
    assert used >= (0.95 if slots / takes >= 1.5 * rate else 0.8) * allowed


@pytest.mark.parametrize("number", [2, 4])
def test_a_task_that_wakes_late_does_not_take_its_blocks_for_too_long(server: Server, number: int) -> None:
    """Permits became stale because of that alone, and shorter blocks, which lose more, left 7% of the rate."""
    limit = RateLimit(400)
    calls = run(server, [Task([limit], ONE) for _ in range(number)], 8.0, 0.05)
    assert sum(now >= 2.0 for now, _, _ in calls) >= 0.8 * 400 * (calls[-1][0] - 2.0)


@pytest.mark.parametrize("number", [1, 2, 8])
@pytest.mark.parametrize("permits", [25, 100])
def test_rows_that_need_different_limits_use_both(server: Server, permits: int, number: int) -> None:
    """Every second row needs the other limit: while a task waited for the one its block of the other became stale."""
    limits, cost = [RateLimit(permits)] * 2, permits / 25
    tasks = [Task(limits, [[cost, 0.0], [0.0, cost]], slots=10, takes=0.05) for _ in range(number)]
    calls = run(server, tasks, 20.0, 0.005)
    assert sum(now >= 3.0 for now, _, _ in calls) >= 0.85 * (calls[-1][0] - 3.0) * 50


def test_low_rates_are_shared_in_turns(server: Server) -> None:
    """One a minute for four tasks: each has one every four minutes, and asks for it once in a lease while it waits."""
    limit = RateLimit(1, "minute")
    tasks = [Task([limit], ONE) for _ in range(4)]
    calls = run(server, tasks, 3600.0)
    assert worst(calls, limit) <= 2
    assert [task.begun for task in tasks] == [15] * 4
    assert sum(task.asked for task in tasks) <= 4 * 3600 / LEASE + 2 * 64


def test_who_waits_for_one_limit_keeps_little_of_another_from_others(server: Server) -> None:
    """One task may call once a second only, and shares 100 a second with one that wants them all."""
    shared, own = RateLimit(100), RateLimit(1)
    slow, fast = Task([shared, own], [[1.0, 1.0]]), Task([shared], ONE)
    run(server, [slow, fast], 20.0)
    assert slow.begun >= 19
    assert fast.begun >= 0.95 * 20 * 98


def test_who_asks_for_two_limits_that_others_want_too_has_his_part(server: Server) -> None:
    """Each limit has a queue of its own, of 2 and 6 seconds. Kept as one number each, as GCRA is, a grant of both would
    give up seconds of the one, or permits of the one would be stale when those of the other come due, each time.
    """
    limit = RateLimit(10)
    both = [Task([limit, limit], [[1.0, 1.0]]) for _ in range(3)]
    others = [Task([limit], ONE, first=which) for which, number in [(0, 20), (1, 60)] for _ in range(number)]
    calls = run(server, [*both, *others], 120.0)
    assert all(task.begun >= 0.7 * 1200 / 63 for task in both)
    for which in (0, 1):
        assert sum(task < 3 or others[task - 3].first == which for _, task, _ in calls) >= 0.95 * 1200


def test_calls_of_different_costs(server: Server) -> None:
    """Tokens per minute, some calls dearer than the burst: the minute holds, and most tokens are used."""
    limit = RateLimit(60_000, "minute")  # burst 1,200
    costs = [[100.0], [900.0], [2500.0], [40.0], [1300.0]]
    tasks = [Task([limit], costs) for _ in range(3)]
    calls = run(server, tasks, 600.0)
    assert worst(calls, limit) <= 1.02 * 60_000 + 3 * 2500
    assert sum(cost for _, _, (cost,) in calls) >= 0.95 * 600_000


def granted(scripts: Scripts, now: float, saved: float = 0.1) -> tuple[str, float, float]:
    """The epoch, start and end of a permit of 0.1 seconds."""
    _, epoch, start, end = scripts.run(GRANT, now, ["x", "question"], saved, 0.1, 0.1, LEASE, 0.0)
    return epoch, float(start), float(end)


def give_back(scripts: Scripts, now: float, question: str, *rest: object) -> None:
    scripts.run(GRANT, now, ["x", question], 0.1, 0.0, 0.0, LEASE, 0.0, 1, *rest)


def test_what_was_not_used_is_given_back(scripts: Scripts) -> None:
    """It is free again, whatever others have had since; but not if it is of another epoch."""
    scripts.run(OPEN, START, ["x"], NEVER_USED)
    first, second = granted(scripts, START), granted(scripts, START)
    assert second[1:] == pytest.approx((START, START + 0.1), abs=1e-5)
    give_back(scripts, START, "a", "@1", *first[1:])
    third = granted(scripts, START)
    assert third[1:] == pytest.approx((START + 0.1, START + 0.2), abs=1e-5)
    give_back(scripts, START, "b", *first)
    assert granted(scripts, START)[1:] == pytest.approx(first[1:], abs=1e-5)
    give_back(scripts, START, "c", *third)
    give_back(scripts, START, "d", *second)
    assert granted(scripts, START)[1:] == pytest.approx(second[1:], abs=1e-5)


def test_what_is_given_back_twice_is_free_once(scripts: Scripts) -> None:
    """A question whose answer was lost comes again; by then another task may have what was given back."""
    scripts.run(OPEN, START, ["x"], NEVER_USED)
    first, second = granted(scripts, START), granted(scripts, START)
    give_back(scripts, START, "a", *first)
    assert granted(scripts, START)[1:] == pytest.approx(first[1:], abs=1e-5)
    give_back(scripts, START, "a", *first)
    assert granted(scripts, START)[1:] == pytest.approx((second[2], second[2] + 0.1), abs=1e-5)


def begin_all(server: Server, limit: RateLimit, calls: Sequence[int], end: str, seconds: float) -> list[float]:
    """When the calls of tasks began, each of which has so many; afterwards a task closes, is cancelled or lives on."""
    begun = list[float]()

    async def task(connection: OnGivenTime, number: int) -> None:
        await asyncio.sleep(0.002 * number)
        permits, look = await leased(connection, [("x", limit)], is_open=False)
        try:
            await begin_calls(permits, look, begun, calls=calls[number])
            if end != "closes":
                await asyncio.sleep(0.0 if end == "is cancelled" else seconds)
                raise asyncio.CancelledError
        finally:
            await permits.close()

    async def job() -> None:
        async with OnGivenTime(server) as connection:
            await open_limits(connection, [("x", limit)])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    tasks = [asyncio.create_task(task(connection, number)) for number in range(len(calls))]
                    await asyncio.wait(tasks)

    run_on_given_time(job)
    return begun


@pytest.mark.parametrize("calls", [[1, 149], [75, 75], [10, 100, 1, 3, 36]])
@pytest.mark.parametrize("end", ["closes", "is cancelled", "lives on"])
def test_what_one_task_does_not_use_another_has(server: Server, calls: list[int], end: str) -> None:
    """Also if the other waits already, and while the first one lives on without a call.

    Of the 150 calls of a day two tasks that had 50 rows each began 73, and then the second waited for days.
    """
    begun = begin_all(server, RateLimit(1, "day", burst=150), calls, end, 60.0)
    assert len(begun) == sum(calls)
    assert begun[-1] <= 20.0


@pytest.mark.parametrize("end", ["closes", "lives on"])
def test_what_is_given_back_is_not_there_twice(server: Server, end: str) -> None:
    """Tasks that want more than there is have the burst and what comes in the time, and nothing of that is lost."""
    limit = RateLimit(60, "minute", burst=100)
    begun = begin_all(server, limit, [40] * 5, end, 50.0)
    assert 148 <= len(begun) <= 150
    assert worst([(now, 0, [1.0]) for now in begun], limit) <= 150


def test_a_limit_is_forgotten_a_day_after_its_last_grant(scripts: Scripts) -> None:
    """A permit of a year is remembered for a year, and what the server has forgotten costs a wait."""
    scripts.run(OPEN, START, ["x"], NEVER_USED)

    def is_known(now: float) -> bool:
        return bool(scripts.run("return redis.call('EXISTS', KEYS[1])", now, ["x"]))

    day = 86400
    scripts.run(GRANT, START + day / 2, ["x", "question"], 1.0, 10.0 * day, 10.0 * day, LEASE, 0.0)
    assert [is_known(START + days * day) for days in (1, 11, 12)] == [True, True, False]


# Each with the calls of a second that they allow on the average.
PAIRS = [
    ([RateLimit(2000), RateLimit(8)], [[500.0, 1.0]], 4.0),
    ([RateLimit(2000), RateLimit(4)], [[500.0, 1.0]], 4.0),
    ([RateLimit(90_000, "minute"), RateLimit(500, "minute")], [[100.0, 1.0], [900.0, 1.0], [40.0, 1.0]], 4.326),
    ([RateLimit(90_000, "minute"), RateLimit(500, "minute")], [[100.0, 1.0], [300.0, 1.0], [140.0, 1.0]], 8.333),
    ([RateLimit(300), RateLimit(3000)], [[1.0, 1.0]], 300.0),
    ([RateLimit(200), RateLimit(50)], [[1.0, 1.0], [2.0, 1.0], [3.0, 1.0]], 50.0),
]


@pytest.mark.parametrize(("limits", "costs", "rate"), PAIRS)
def test_tokens_and_requests_lose_little(
    server: Server, limits: Sequence[RateLimit], costs: Sequence[Sequence[float]], rate: float
) -> None:
    """While tasks waited for permits of one limit those of the other got stale: 30% of the rate was lost."""
    seconds = 60.0 if rate < 100 else 20.0
    calls = run(server, [Task(limits, costs) for _ in range(4)], seconds, 0.01)
    assert sum(now >= 5.0 for now, _, _ in calls) >= 0.95 * (seconds - 5.0) * rate
    for which, limit in enumerate(limits):
        assert worst(calls, limit, which) <= 1.02 * limit.permits + max(limit.saved, *(one[which] for one in costs))


@settings(max_examples=examples(0.4))
@given(
    permits=st.lists(st.sampled_from([1, 5, 40, 300, 5000]), min_size=2, max_size=3),
    burst=st.sampled_from([None, 1, 7]),
    costs=st.lists(st.tuples(*[st.sampled_from([0.0, 1.0, 2.5, 30.0])] * 3), min_size=1, max_size=4),
    own=st.lists(st.integers(0, 2), min_size=1, max_size=5),
    lateness=st.sampled_from([0.0, 0.01, 0.1]),
)
def test_no_second_of_any_limit_has_too_many(
    server: Server,
    permits: list[int],
    burst: int | None,
    costs: list[tuple[float, ...]],
    own: list[int],
    lateness: float,
) -> None:
    """Some tasks keep all limits, others one of them; holes that some leave are filled by others, and only once."""
    limits = [RateLimit(one, burst=burst) for one in permits]
    some = [max(cost, 0.5) for cost in costs[0][: len(limits)]]
    each = [some, *(list(cost[: len(limits)]) for cost in costs)]
    tasks = [
        Task(limits, each) if which == 0 or which >= len(limits) else Task([limits[which]], [[1.0]], first=which)
        for which in own
    ]
    calls = run(server, tasks, 4.0, lateness)
    for number, limit in enumerate(limits):
        taken = [
            (now, task, [costs[number] if len(costs) > 1 else float(own[task] == number)]) for now, task, costs in calls
        ]
        largest = max(limit.saved, 1.0, *(one[number] for one in each))
        assert worst(taken, limit) <= 1.02 * limit.permits + largest + 1e-6


def test_one_name_with_different_numbers(server: Server) -> None:
    """Each keeps its own limit, and takes of the time what its numbers say: together they never have too much of it."""
    large, small = RateLimit(100, name="x"), RateLimit(10, name="x")
    calls = run(server, [Task([large], ONE), Task([small], ONE)], 24.0)
    both = [(now, task, [0.01, 0.1][task : task + 1]) for now, task, _ in calls]
    assert worst(both, RateLimit(1)) <= 1.02 + small.saved * small.interval
    assert worst([one for one in calls if one[1] == 1], small) <= 1.02 * 10 + small.saved
    assert sum(part for _, _, (part,) in both) >= 0.95 * 20  # after a lease, for other jobs may have it


@pytest.mark.parametrize(("years", "calls"), [(100, 1), (10, 10), (1 / 365.25, 2000)])
def test_a_burst_that_takes_years_to_save_up_is_there_at_the_beginning(
    server: Server, years: float, calls: int
) -> None:
    """Three years were saved up at most: no call of one in ten years began before they were over."""
    begun: list[float] = []

    async def job() -> None:
        limit = RateLimit(1, per=years * 365.25 * 86_400, burst=calls)
        permits, look = await leased(OnGivenTime(server, TRIP), [("slow", limit)])
        await begin_calls(permits, look, begun, calls=calls, seconds=60)
        await permits.close()

    run_on_given_time(job)
    assert len(begun) == calls
