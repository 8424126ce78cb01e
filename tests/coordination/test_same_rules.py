"""One table of cases for each rule that is written twice: a task that is alone and the coordinator decide the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import pytest

from asyncudf import Budget, CircuitBreaker, KeyCapacity, RateLimit
from asyncudf._errors.call_outcome import CallOutcome
from asyncudf._limits.budgets.amount import Amounts, SpentByName, TaskAmounts
from asyncudf._limits.budgets.job import SharedBudget
from asyncudf._limits.budgets.keyed import SPEND_KEYS, KeyedBudget
from asyncudf._limits.budgets.windows import Windows, window_at
from asyncudf._limits.capacity.keyed import CallsByName, OwnKeyCalls, SharedKeyCalls, prepare_key_shares
from asyncudf._limits.health.breaker import Breaker
from asyncudf._limits.health.job import HEALTH, TALLY, SharedFailures
from asyncudf._limits.health.option import ErrorBudget, Failures
from asyncudf._limits.rates.bucket import Bucket, GrantedPermits, Permits, take
from asyncudf._limits.rates.job import GRANT, GRANT_AND_LEARN, NEVER_USED, OPEN
from asyncudf._limits.rates.keyed import OPEN_KEYS, RESERVE
from asyncudf._limits.rates.learned import Knowledge, Learned
from asyncudf._limits.rates.option import LearnedLimit
from tests.kit.coordinators import OnGivenTime, Scripts, linked

pytestmark = pytest.mark.services

START = 1e6  # seconds, on the clock of the server and of tasks
LEASE = 4.0


# Rate limits. Calls in their order: when they come, what they cost of each limit, how late the task wakes for them, and
# when they begin.

TEN = RateLimit(10, burst=1)
RATES: dict[str, tuple[Sequence[RateLimit], Sequence[tuple[float, Sequence[float], float, float]]]] = {
    "one each interval": ([TEN], [(0, [1], 0, 0), (0, [1], 0, 0.1), (0, [1], 0, 0.2)]),
    "a burst of five, then one each interval": (
        [RateLimit(10, burst=5)],
        [(0, [1], 0, 0)] * 5 + [(0, [1], 0, 0.1), (0, [1], 0, 0.2)],
    ),
    "the usual burst is 2% of the permits": (
        [RateLimit(150)],
        [(0, [1], 0, 0)] * 3 + [(0, [3], 0, 0.02), (1.0, [3], 0, 1.0), (1.0, [1], 0, 1 + 1 / 150)],
    ),
    "a quiet time saves up a burst and no more": (
        [RateLimit(10, burst=2)],
        [(0, [1], 0, 0), (9, [1], 0, 9), (9, [1], 0, 9), (9, [1], 0, 9.1), (9, [1], 0, 9.2)],
    ),
    "a short quiet time saves up a part of it": (
        [RateLimit(10, burst=4)],
        [(0, [4], 0, 0), (0.2, [3], 0, 0.3), (0.5, [2], 0, 0.5), (0.5, [1], 0, 0.6)],
    ),
    "a call of more than the burst begins with all that is saved, and leaves a debt": (
        [RateLimit(10, burst=2)],
        [(0, [5], 0, 0), (0, [1], 0, 0.4), (0, [7], 0, 0.6), (0, [1], 0, 1.2)],
    ),
    "calls of a part of a permit": (
        [TEN],
        [(0, [0.5], 0, 0), (0, [0.5], 0, 0), (0, [0.25], 0, 0.025), (0, [1.5], 0, 0.125), (0, [1], 0, 0.275)],
    ),
    "a permit that came by the time of a late wake-up is not lost": (
        [TEN],
        [(0, [1], 0, 0), (0, [1], 0.015, 0.115), (0, [1], 0, 0.2), (0, [1], 0, 0.3)],
    ),
    "a long period": (
        [RateLimit(120, "minute", burst=3)],
        [(0, [2], 0, 0), (0, [2], 0, 0.5), (0, [1], 0, 1), (30, [4], 0, 30), (30, [1], 0, 31)],
    ),
    "of two limits the later one counts": (
        [TEN, RateLimit(60, "minute", burst=2)],
        [(0, [1, 1], 0, 0), (0, [1, 1], 0, 0.1), (0, [1, 1], 0, 1), (0, [3, 0.5], 0, 1.5), (0, [1, 0.5], 0, 2.0)],
    ),
}


def begin_all(
    calls: Sequence[tuple[float, Sequence[float], float, float]],
    have: Callable[[Sequence[float], float], Sequence[Permits]],
) -> list[float]:
    """When the calls begin, one after another; `have` asks for the permits of one at a time."""
    begun, now = list[float](), START
    for comes, costs, late, _ in calls:
        now = max(now, START + comes)
        permits = have(costs, now)
        if wait := take(permits, costs, now):
            now += wait + late
            assert take(permits, costs, now) == 0.0
        begun.append(now - START)
    return begun


def granted(scripts: Scripts, limits: Sequence[RateLimit]) -> Callable[[Sequence[float], float], Sequence[Permits]]:
    """Permits of limits that all tasks share."""
    names = [f"limit {place}" for place, _ in enumerate(limits)]
    scripts.run(OPEN, START, names, *[NEVER_USED] * len(limits))

    def have(costs: Sequence[float], now: float) -> Sequence[Permits]:
        asked = [
            n * limit.interval for limit, cost in zip(limits, costs, strict=True) for n in (limit.saved, cost, cost)
        ]
        _, *said = scripts.run(GRANT, now, [*names, "question"], *asked, LEASE, 0.0)
        permits = [GrantedPermits(limit) for limit in limits]
        for one, start, end in zip(permits, said[1::3], said[2::3], strict=True):
            one.add(float(start), float(end))
        return permits

    return have


def reserved(
    scripts: Scripts, limit: RateLimit, costs: Sequence[float], now: float, back: float = 0.0
) -> Sequence[Permits]:
    """The same of a limit by key, for one of its keys; so many permits of it are given back."""
    wanted, saved = costs[0] * limit.interval, limit.saved * limit.interval
    answer = scripts.run(
        RESERVE, now, ["limit", "key", "pace"], saved, limit.period, LEASE, back * limit.interval, wanted
    )
    permits = GrantedPermits(limit)
    permits.add(float(answer[3]), float(answer[3]) + wanted)
    return [permits]


class TestCallsOfARateLimitBegin:
    """By `Bucket`, and by what the coordinator grants to one task after another."""

    @pytest.mark.parametrize("case", RATES)
    def test_in_a_task_that_is_alone(self, case: str) -> None:
        limits, calls = RATES[case]
        buckets = [Bucket(limit) for limit in limits]
        assert begin_all(calls, lambda costs, now: buckets) == pytest.approx([one[3] for one in calls], abs=1e-6)

    @pytest.mark.parametrize("case", RATES)
    def test_in_a_job(self, scripts: Scripts, case: str) -> None:
        limits, calls = RATES[case]
        assert begin_all(calls, granted(scripts, limits)) == pytest.approx([one[3] for one in calls], abs=1e-6)

    @pytest.mark.parametrize("case", [case for case, (limits, _) in RATES.items() if len(limits) == 1])
    def test_by_key_in_a_job(self, scripts: Scripts, case: str) -> None:
        (limit,), calls = RATES[case]
        scripts.run(OPEN_KEYS, START, ["limit", "pace"], NEVER_USED)
        begun = begin_all(calls, partial(reserved, scripts, limit))
        assert begun == pytest.approx([one[3] for one in calls], abs=1e-6)


# Settled calls of a limit by key, in their order: when one comes, as the one before ends, what it reserves, what it
# uses in the end, and when it begins.
SETTLED: dict[str, tuple[RateLimit, Sequence[tuple[float, float, float, float]]]] = {
    "what is not used the next call has": (
        RateLimit(10, burst=4),
        [(0, 4, 1, 0), (0, 3, 3, 0), (0, 1, 1, 0.1)],
    ),
    "what is used beside is taken from the next one": (
        RateLimit(10, burst=4),
        [(0, 1, 6, 0), (0, 1, 1, 0.3), (0.3, 1, 1, 0.4)],
    ),
    "no more is given back than a quiet time saves up": (
        RateLimit(10, burst=4),
        [(0, 4, 0, 0), (5, 4, 4, 5), (5, 1, 1, 5.1)],
    ),
}


class TestCallsOfASettledLimitBegin:
    @pytest.mark.parametrize("case", SETTLED)
    def test_in_a_task_that_is_alone(self, case: str) -> None:
        limit, calls = SETTLED[case]
        bucket, back = Bucket(limit), 0.0

        def have(costs: Sequence[float], now: float) -> Sequence[Permits]:
            bucket.use(-back, now)
            return [bucket]

        begun = list[float]()
        for comes, cost, used, _ in calls:
            begun += begin_all([(max([comes, *begun]), [cost], 0, 0)], have)
            back = cost - used
        assert begun == pytest.approx([one[3] for one in calls], abs=1e-6)

    @pytest.mark.parametrize("case", SETTLED)
    def test_by_key_in_a_job(self, scripts: Scripts, case: str) -> None:
        limit, calls = SETTLED[case]
        scripts.run(OPEN_KEYS, START, ["limit", "pace"], NEVER_USED)
        back, begun = 0.0, list[float]()
        for comes, cost, used, _ in calls:
            begun += begin_all([(max([comes, *begun]), [cost], 0, 0)], partial(reserved, scripts, limit, back=back))
            back = cost - used
        assert begun == pytest.approx([one[3] for one in calls], abs=1e-6)


# Circuit breakers: how calls end ("s" or "f") until it opens; after how many that is (None: never), and whether the
# service is dead then.
HALF = CircuitBreaker()
BREAKERS: dict[str, tuple[CircuitBreaker, str, int | None, bool]] = {
    "an unknown service fails": (HALF, "f" * 40, 20, True),
    "it fails after two good calls": (HALF, "ss" + "f" * 40, 20, True),
    "it fails after three": (HALF, "sss" + "f" * 40, 20, False),
    "thirteen in a row of one that is hardly known": (HALF, "s" * 93 + "f" * 40, 106, False),
    "ten in a row of one that is known": (HALF, "s" * 97 + "f" * 40, 107, False),
    "of one that failed 4% of its calls": (HALF, "s" * 96 + "f" * 44, 106, False),
    "of one that failed five calls of 400": (HALF, "s" * 400 + "f" * 5 + "s" * 10 + "f" * 40, 421, False),
    "of one that failed an eighth": (HALF, "sssssssf" * 31 + "f" * 40, 257, False),
    "of one that failed a little more": (HALF, "sssssssf" * 15 + "ssssssf" * 16 + "s" * 8 + "f" * 40, 251, False),
    "of one that failed a tenth": (HALF, "sssssssssf" * 20 + "f" * 40, 208, False),
    "of one that failed a fifth": (HALF, "ssssssssff" * 20 + "f" * 40, 211, False),
    "of one that failed a quarter": (HALF, "sssf" * 40 + "f" * 40, 172, False),
    "of one that failed a third": (HALF, "ssf" * 40 + "f" * 40, 132, False),
    "one that fails a third of its calls": (HALF, "ssf" * 300, None, False),
    "one that fails half of them": (HALF, "sf" * 300, 240, True),
    "one that fails 47%": (HALF, ("sf" * 38 + "ssss") * 60, 310, True),
    "one that fails 45%, which more calls would show": (HALF, ("sf" * 18 + "ssss") * 60, None, False),
    "one that begins to fail two thirds": (HALF, "s" * 400 + "f" * 5 + "sf" * 300, 419, False),
    "a short window": (CircuitBreaker(window=4), "s" * 100 + "f" * 10, 104, True),
    "an odd one": (CircuitBreaker(window=3), "s" * 120 + "f" * 10, 123, True),
    "one of a single call": (CircuitBreaker(window=1), "sf", 2, True),
    "of nine": (CircuitBreaker(window=9), "s" + "f" * 20, 10, True),
    "a high rate": (CircuitBreaker(failure_rate=0.9), "s" * 100 + "f" * 40, 118, False),
    "all calls": (CircuitBreaker(failure_rate=1.0), "s" * 200 + "f" * 40, 220, True),
    "a low rate": (CircuitBreaker(failure_rate=0.2), "f" * 40, 20, True),
    "three quarters, of at least 70%": (CircuitBreaker(failure_rate=0.7), "fffs" * 100, 90, True),
}


class TestABreakerOpens:
    @pytest.mark.parametrize("case", BREAKERS)
    def test_in_a_task_that_is_alone(self, case: str) -> None:
        options, ends, *expected = BREAKERS[case]
        breaker, opened = Breaker(options), None
        for number, end in enumerate(ends, 1):
            breaker.ended(breaker.admit(START) or 0, CallOutcome.DOWN if end == "f" else CallOutcome.ANSWERED, START)
            if breaker.open_since is not None:
                opened = number
                break
        assert [opened, breaker.wait(START) == 10.0] == expected

    @pytest.mark.parametrize("at_once", [1, 7, 20])
    @pytest.mark.parametrize("case", BREAKERS)
    def test_in_a_job(self, scripts: Scripts, case: str, at_once: int) -> None:
        """However many calls a task tells of at once."""
        options, ends, opened, is_dead = BREAKERS[case]
        open_for, _ = options.times
        own = ("t", options.window, options.failure_rate, open_for, LEASE, 0)
        found = None
        for first in range(0, len(ends), at_once):
            last = min(first + at_once, len(ends))
            answer = scripts.run(HEALTH, START, ["health", "pace"], *own, ends[first:last], "", 0.0, "")
            if answer[3]:
                found = (first, last, float(answer[4]) == START + open_for)
                break
        if opened is None:
            assert found is None
        else:
            assert found is not None
            assert found[0] < opened <= found[1]
            assert found[2] is is_dead


# Budgets: amounts, and what is done in turn: a call that needs so much asks ("may": it reserves that; "waits": others
# may give back; "never"), or one that has reserved so much ends, at so much.
BUDGETS: dict[str, tuple[Budget, Sequence[tuple[float, float | str]]]] = {
    "calls, until there is none left": (Budget(3, unit="calls"), [(1, "may")] * 3 + [(1, "never")]),
    "sums of floats are rounded": (Budget(0.3), [(0.1, "may"), (0.1, "may"), (0.1, "may"), (0.1, "waits")]),
    "by a part in a billion": (Budget(1.0), [(0.5, "may"), (0.5, 0.5), (0.5 + 5e-8, "never"), (0.5, "may")]),
    "what is reserved may come back": (
        Budget(10),
        [(6, "may"), (6, "waits"), (6, 2.0), (6, "may"), (6, 6.0), (3, "never"), (2, "may")],
    ),
    "a call may cost more than it has reserved": (
        Budget(10),
        [(2, "may"), (2, 9.0), (2, "never"), (1, "may"), (1, 5.0), (0.01, "never")],
    ),
    "a smaller call may begin where a larger one never will": (
        Budget(10),
        [(8, "may"), (8, 8.0), (3, "never"), (2, "may")],
    ),
    "a call that costs nothing may always begin": (Budget(1), [(1, "may"), (1, 1.0), (0.5, "never"), (0, "may")]),
}


async def alone(budget: Budget, _: OnGivenTime, woken: asyncio.Event) -> Amounts:
    return TaskAmounts(budget, asyncio.get_running_loop().time, SpentByName(), lambda _: woken.set())


async def of_a_job(budget: Budget, connection: OnGivenTime, woken: asyncio.Event) -> Amounts:
    return SharedBudget(linked(connection, "t", woken.set), "x", budget)


async def of_keys_of_a_job(budget: Budget, connection: OnGivenTime, woken: asyncio.Event) -> Amounts:
    return KeyedBudget(linked(connection, "t", woken.set), "x", budget, None, lambda _: woken.set())


@pytest.mark.parametrize("made", [alone, of_a_job, of_keys_of_a_job], ids=lambda made: made.__name__)
@pytest.mark.parametrize("case", BUDGETS)
async def test_a_call_may_spend(
    connection: OnGivenTime, case: str, made: Callable[[Budget, OnGivenTime, asyncio.Event], Awaitable[Any]]
) -> None:
    budget, steps = BUDGETS[case]
    woken = asyncio.Event()
    amounts = await made(budget, connection, woken)
    amount, found = amounts.of(""), list[float | str]()
    for need, then in steps:
        if not isinstance(then, str):
            amount.settle(need, then)
            found.append(then)
            continue
        try:
            async with asyncio.timeout(1.0):
                while not (may := amount.ask(need)) and not amount.is_spent(need):
                    woken.clear()
                    await woken.wait()
        except TimeoutError:
            may = False
        found.append("may" if may else "never" if amount.is_spent(need) else "waits")
        if may:
            amount.reserve(need)
    assert found == [then for _, then in steps]
    if made is not alone:
        await amounts.close()


# Times at which clocks are read, and when the window of then began: a clock that is set back opens none again.
CLOCKS: dict[str, tuple[float, Sequence[float], Sequence[float]]] = {
    "it goes on": (60.0, [30, 59.5, 60, 125], [0, 0, 60, 120]),
    "it is set back": (60.0, [61, 59, 30, 119, 120], [60, 60, 60, 60, 120]),
}


class TestTheWindowOfNow:
    @pytest.mark.parametrize("case", CLOCKS)
    def test_in_a_task_that_is_alone(self, case: str) -> None:
        per, times, starts = CLOCKS[case]
        windows = Windows(per)
        assert [windows.at(time).start for time in times] == starts

    @pytest.mark.parametrize("case", CLOCKS)
    def test_in_a_job(self, scripts: Scripts, case: str) -> None:
        """Each of a task that begins then, which knows no window."""
        per, times, starts = CLOCKS[case]
        told = [
            scripts.run(SPEND_KEYS, time, ["w", "clock", f"t{number}", "pace"], 1, "t", 9, 60, "", 0, 0, 10**6, 10**6)
            for number, time in enumerate(times)
        ]
        assert [window_at(per, float(answer[1])).start for answer in told] == starts


# Calls of keys in flight: what is done in turn, and whether the call of this number begins; "-" ends one.
KEYS: dict[str, tuple[int, Sequence[tuple[str, int, bool]]]] = {
    "so many of each key": (2, [("+a", 1, True), ("+a", 2, True), ("+a", 3, False), ("+b", 4, True)]),
    "one that ends makes room": (1, [("+a", 1, True), ("+a", 2, False), ("-a", 1, True), ("+a", 2, True)]),
    "for one call": (2, [("+a", 1, True), ("+a", 2, True), ("-a", 1, True), ("+a", 3, True), ("+a", 4, False)]),
}


class Row:
    is_done = False


async def own_calls(limit: KeyCapacity, _: OnGivenTime, wake: Callable[[Any], None]) -> Any:
    return OwnKeyCalls(limit, CallsByName(), wake)


async def shared_calls(limit: KeyCapacity, connection: OnGivenTime, wake: Callable[[Any], None]) -> Any:
    await prepare_key_shares(connection, "x")
    return SharedKeyCalls(linked(connection), "x", limit, lambda _: 1, wake)


@pytest.mark.parametrize("made", [own_calls, shared_calls], ids=lambda made: made.__name__)
@pytest.mark.parametrize("case", KEYS)
async def test_a_call_of_a_key_begins(connection: OnGivenTime, case: str, made: Callable[..., Awaitable[Any]]) -> None:
    most, steps = KEYS[case]
    woken, clock, rows = asyncio.Event(), asyncio.get_running_loop().time, dict[int, Row]()
    calls = await made(KeyCapacity(most, by="key"), connection, lambda _: woken.set())
    found = list[bool]()
    for (what, key), number, _ in steps:
        row, begins = rows.setdefault(number, Row()), True
        if what == "-":
            calls.ended(key, clock())
        else:
            try:
                async with asyncio.timeout(1.0):
                    while not calls.may_begin(key, row, clock()):
                        woken.clear()
                        await woken.wait()
                calls.began(key, row)
            except TimeoutError:
                begins = False
        found.append(begins)
    assert found == [begins for _, _, begins in steps]
    if made is shared_calls:
        await calls.close()


# Calls that are done: rows, errors of those that failed, and examples of them; then what is counted of all.
FAILURES: dict[str, tuple[Sequence[tuple[int, dict[str, int], list[str]]], Failures]] = {
    "types are counted, and the first examples kept": (
        [(5, {}, []), (2, {"A": 1, "B": 1}, ["a", "b"]), (9, {"A": 4}, ["c", "d"]), (1, {"C": 1}, ["e"])],
        Failures(17, 7, {"A": 5, "B": 1, "C": 1}, ["a", "b", "c"]),  # type: ignore[arg-type]
    ),
    "more examples at once": ([(4, {"A": 4}, ["a", "b", "c", "d"])], Failures(4, 4, {"A": 4}, ["a", "b", "c"])),  # type: ignore[arg-type]
}


class TestFailuresOfAJobAreCounted:
    @pytest.mark.parametrize("case", FAILURES)
    def test_in_a_task_that_is_alone(self, case: str) -> None:
        calls, expected = FAILURES[case]
        found = Failures()
        for rows, types, examples in calls:
            found.add(rows, types, examples)
        assert found == expected

    @pytest.mark.parametrize("case", FAILURES)
    async def test_in_a_job(self, connection: OnGivenTime, case: str) -> None:
        """Each call is one of a task of its own."""
        calls, expected = FAILURES[case]
        told = list[Failures]()
        for number, (rows, types, examples) in enumerate(calls):
            task = SharedFailures(linked(connection, f"t{number}"), "x", f"part {number}", ErrorBudget(0), told.append)
            task.add(rows, types, examples)
            await task.close()
        assert told[-1] == expected

    def test_with_as_many_examples(self, scripts: Scripts) -> None:
        """Of a task that tells more than it should."""
        calls, expected = FAILURES["more examples at once"]
        (rows, _, examples), names = calls[0], ["failures", "examples", "parts", "pace"]
        assert scripts.run(TALLY, START, names, "part", 1, "rows", rows, *examples)[2] == expected.examples


# What answers tell of a learned limit, in the order in which they come: when their calls began, the limit they tell,
# and which one holds then.
TOLD: dict[str, Sequence[tuple[float, int, int]]] = {
    "the call that began last": [(1, 100, 100), (3, 50, 50), (2, 70, 50), (4, 80, 80)],
    "of two that began together the last answer": [(1, 100, 100), (1, 90, 90)],
}


class TestTheNewestAnswerHolds:
    @pytest.mark.parametrize("case", TOLD)
    def test_in_a_task_that_is_alone(self, case: str) -> None:
        limit = RateLimit.from_headers("openai", start=60, at_most=60_000)
        assert isinstance(limit, LearnedLimit)
        learned, found = Learned(limit), list[float]()
        for began, permits, _ in TOLD[case]:
            learned.adopt(Knowledge(began=began, permits=permits))
            found.append(learned.permits)
        assert found == [holds for _, _, holds in TOLD[case]]

    @pytest.mark.parametrize("case", TOLD)
    def test_in_a_job(self, scripts: Scripts, case: str) -> None:
        found = list[int]()
        for began, permits, _ in TOLD[case]:
            keys, told = ["limit", "question", "told"], (float(began), f"{began} {permits}", 1)
            answer = scripts.run(GRANT_AND_LEARN, START, keys, 0.1, 0.0, 0.0, LEASE, 0.0, *told)
            found.append(int(answer[0].split()[1]))
        assert found == [holds for _, _, holds in TOLD[case]]
