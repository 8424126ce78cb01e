"""What is counted over a query, failed rows and calls made: nothing is lost, nothing is there twice."""

from __future__ import annotations

import asyncio
import itertools

import pytest
import redis.asyncio as redis
from hypothesis import given
from hypothesis import strategies as st

from asyncudf import Budget, CircuitBreaker
from asyncudf._errors.call_outcome import CallOutcome
from asyncudf._limits.budgets.job import SPEND, SharedBudget
from asyncudf._limits.budgets.option import CALLS
from asyncudf._limits.coordinator.client import Coordinator
from asyncudf._limits.coordinator.link import TaskLink
from asyncudf._limits.health.job import SharedFailures, SharedHealth
from asyncudf._limits.health.option import ErrorBudget, Failures
from tests.kit.coordinators import CutOff, Scripts, Server, coordinator, fail, linked, space_of_its_own, time_to_live

pytestmark = pytest.mark.services

LEASE = 60.0


@pytest.mark.parametrize("turns", range(12))
async def test_the_last_failures_spend_the_budget(connected: Coordinator, turns: int) -> None:
    """Whatever the task is at when its last row is done: it looks at what has come together, and counts once."""
    heard: list[Failures] = []
    task = SharedFailures(linked(connected), "x", "part", ErrorBudget.of(3), heard.append)
    task.add(5, {"ValueError": 5}, ["ValueError: x"])
    for _ in range(turns):
        await asyncio.sleep(0)
    await task.close()
    assert {(one.rows, one.failed) for one in heard} == {(5, 5)}


async def test_failures_that_were_cut_off_are_told_again(server: Server) -> None:
    """The task ends while its connection hangs: what it was about to tell is told by the next one."""
    heard: list[Failures] = []
    async with CutOff(server) as connection:
        task = SharedFailures(linked(connection), "x", "part", ErrorBudget.of(3), heard.append)
        task.add(5, {"ValueError": 5}, ["ValueError: x"])
        while not connection.asked:
            await asyncio.sleep(0)
        task.add(2, {"ValueError": 1}, ["ValueError: y"])
        await task.close()
    assert [(one.rows, one.failed, one.examples) for one in heard] == [(7, 6, ["ValueError: x", "ValueError: y"])]


async def test_who_is_gone_is_not_waited_for_twice(server: Server) -> None:
    """The task has failed because nobody answered; to ask again would only make that last longer."""
    errors: list[BaseException] = []
    async with CutOff(server, lost=99, gives_up=True) as connection:
        failures = SharedFailures(
            linked(connection, "t", lambda: None, errors.append), "x", "part", ErrorBudget.of(3), fail
        )  # type: ignore[arg-type]
        failures.add(5, {"ValueError": 5}, [])
        health = SharedHealth(linked(connection, "t", lambda: None, errors.append), "x", CircuitBreaker())
        health.pause(1e9)
        spending = budget_of(linked(connection, "t", lambda: None, errors.append))
        spending.ask(1)
        while len(errors) < 3:
            await asyncio.sleep(0)
        for one in (failures, health, spending):
            await one.close()  # type: ignore[attr-defined]
        assert connection.asked == 3


async def test_what_was_seen_of_a_service_and_cut_off_is_told_again(server: Server) -> None:
    """Failures and the pause: another task hears of both."""
    options = CircuitBreaker(window=2)
    async with CutOff(server) as connection:
        one = SharedHealth(linked(connection, "one"), "x", options)
        one.ended(0, CallOutcome.DOWN, 0.0)
        one.pause(connection.clock() + 100.0)
        while not connection.asked:
            await asyncio.sleep(0)
        one.ended(0, CallOutcome.DOWN, 0.0)
        await one.close()
        woken = asyncio.Event()
        other = SharedHealth(linked(connection, "other", woken.set), "x", options)
        await woken.wait()
        assert other.open_since is not None
        assert other.paused_until == pytest.approx(connection.clock() + 100.0, abs=5.0)
        await other.close()


async def test_a_query_without_anything_to_tell_leaves_little(server: Server) -> None:
    """Each micro-batch of a stream is a query: what it leaves is gone soon, and of its health nothing is kept."""
    space = space_of_its_own()
    async with (
        coordinator(server, space) as connection,
        redis.Redis.from_url(server.url, decode_responses=True) as client,
    ):
        woken = asyncio.Event()
        health = SharedHealth(linked(connection, "t", woken.set), "x", CircuitBreaker())
        await woken.wait()
        failures = SharedFailures(linked(connection), "x", "part", ErrorBudget.of(3), fail)  # type: ignore[arg-type]
        failures.add(10, {"ValueError": 1}, ["ValueError: " + "y" * 10_000])
        bought = asyncio.Event()
        spending = budget_of(linked(connection, "t", bought.set))
        assert not spending.ask(1)
        await bought.wait()
        for one in (health, failures, spending):
            await one.close()  # type: ignore[attr-defined]
        left = await time_to_live(client, space)
        assert sorted(left) == ["budget", "examples", "failures", "pace", "parts"]
        assert max(left["examples"], left["failures"]) <= 15 * 60_000
        assert left["budget"] <= 60 * 60_000
        (example,) = await client.lrange(connection.key("examples", "x"), 0, -1)
        assert len(example) == 200


async def test_what_a_service_has_said_is_kept_for_as_long_as_it_holds(server: Server) -> None:
    """A pause of an hour is known for an hour, by whoever comes then."""
    space = space_of_its_own()
    async with (
        coordinator(server, space) as connection,
        redis.Redis.from_url(server.url, decode_responses=True) as client,
    ):
        health = SharedHealth(linked(connection), "x", None)
        health.pause(connection.clock() + 3600.0)
        await health.close()
        assert (await time_to_live(client, space))["health"] > 3600_000


async def test_counts_are_not_forgotten_while_their_tasks_work(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks that have nothing new to tell tell that they are there."""
    monkeypatch.setattr("asyncudf._limits.health.job.REPORT_EVERY", 0.01)
    monkeypatch.setattr("asyncudf._limits.health.job.REFRESH", 0.01)
    space = space_of_its_own()
    async with (
        coordinator(server, space) as connection,
        redis.Redis.from_url(server.url, decode_responses=True) as client,
    ):
        bought = asyncio.Event()
        failures = SharedFailures(linked(connection), "x", "part", ErrorBudget.of(3), fail)  # type: ignore[arg-type]
        spending = budget_of(linked(connection, "t", bought.set))
        failures.add(10, {"ValueError": 1}, ["ValueError: x"])
        assert not spending.ask(1)
        await bought.wait()
        spending.reserve(1)
        async with asyncio.timeout(10.0):
            while len(await time_to_live(client, space)) < 3:
                await asyncio.sleep(0.005)
            for name in await client.keys(f"*{space}*"):
                await client.pexpire(name, 60_000)
            while min(left for kind, left in (await time_to_live(client, space)).items() if kind != "pace") <= 60_000:
                await asyncio.sleep(0.005)
        await failures.close()
        await spending.close()


def budget_of(link: TaskLink, total: float = 5) -> SharedBudget:
    return SharedBudget(link, "x", Budget(total, CALLS))


class Asked:
    """Questions of tasks for calls, by the numbers that they count up themselves."""

    def __init__(self, scripts: Scripts, total: int) -> None:
        self._scripts, self._total = scripts, total
        self.numbers = itertools.count(1)

    def __call__(
        self, task: str, now: float, *, made: int = 0, held: int = 0, want: int = 0, number: int = 0
    ) -> tuple[int, bool, bool]:
        told = (task, self._total, number or next(self.numbers), made, 0, held, 1, want, LEASE, "", 0, 10**6)
        _, got, is_over, is_awaited, *_ = self._scripts.run(SPEND, now, ["calls", "holders", "pace"], *told)
        return int(got), bool(is_over), bool(is_awaited)


NOTHING, ALL_MADE, AWAITED = (0, False, False), (0, True, False), (0, False, True)


def test_calls_that_a_task_holds_are_not_spent(scripts: Scripts) -> None:
    """However long its call takes: another waits, the one that holds them hears so and gives them back."""
    asked = Asked(scripts, 16)
    assert asked("a", 0.0, want=64) == (2, False, False)
    for now in range(14):
        assert asked("b", float(now), made=now, want=1) == (1, False, False)
    assert asked("b", 14.0, made=14, want=1) == NOTHING
    assert asked("b", 50.0, made=14, want=1) == NOTHING
    assert asked("a", 51.0, made=1, held=1) == AWAITED
    assert asked("a", 51.0, made=1, held=0) == AWAITED
    assert asked("b", 52.0, made=14, want=1) == (1, False, False)
    assert asked("b", 53.0, made=15, want=1) == ALL_MADE
    assert asked("a", 53.0, made=1, want=1)[:2] == ALL_MADE[:2]


def test_a_question_that_is_told_again_has_the_same_answer(scripts: Scripts) -> None:
    """The answer was lost: what it granted is not granted twice, and not lost either."""
    asked = Asked(scripts, 16)
    assert asked("a", 0.0, want=2, number=1) == (2, False, False)
    assert asked("a", 1.0, want=2, number=1) == (2, False, False)
    assert asked("a", 2.0, made=1, held=0, want=2, number=2) == (1, False, False)
    asked("a", 3.0, made=2, want=-1)
    asked("a", 3.0, made=2, want=-1)
    assert asked("b", 4.0, want=16) == (1, False, False)
    assert asked("b", 4.0, held=14) == NOTHING
    assert asked("c", 4.0, want=1) == NOTHING
    assert asked("b", 4.0, made=14) == (0, True, True)


def test_what_a_killed_task_held_counts_as_made(scripts: Scripts) -> None:
    """After its lease, for nobody knows; until then there is hope. One that was only silent is believed again."""
    asked = Asked(scripts, 2)
    assert asked("silent", 0.0, want=1) == (1, False, False)
    assert asked("b", 1.0, want=1) == (1, False, False)
    assert asked("b", LEASE, made=1, want=1) == NOTHING
    assert asked("b", LEASE + 1.0, made=1, want=1) == ALL_MADE
    assert asked("silent", LEASE + 2.0, made=0, held=0) == AWAITED
    assert asked("b", LEASE + 3.0, made=1, want=1) == (1, False, False)


def test_after_a_loss_of_memory_tasks_tell_what_they_have_made(scripts: Scripts) -> None:
    """What those had made that have left is forgotten, and no more."""
    asked = Asked(scripts, 4)
    assert asked("gone", 0.0, want=1)[0] == 1
    asked("gone", 0.0, made=1, want=-1)
    assert asked("a", 0.0, want=1)[0] == 1
    assert asked("b", 0.0, want=1)[0] == 1
    scripts.forget()
    asked("a", 1.0, made=1)
    asked("b", 1.0, made=1)
    assert asked("b", 1.0, made=1, want=1)[0] == 1
    assert asked("a", 1.0, made=1, want=1)[0] == 1
    assert asked("b", 1.0, made=2, want=1) == NOTHING
    asked("a", 1.0, made=2, want=-1)
    assert asked("b", 1.0, made=2, want=1) == ALL_MADE


STEPS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["ask", "make", "give", "lost", "leave"])), max_size=80)


@given(st.integers(1, 12), STEPS)
def test_neither_a_call_more_nor_one_less(server: Server, total: int, steps: list[tuple[int, str]]) -> None:
    """Whatever tasks do, all calls are over exactly when all are made, as far as was told."""
    scripts = Scripts(server)
    scripts.space = space_of_its_own()
    asked = Asked(scripts, total)
    held, made, heard, names, left = [0] * 3, [0] * 3, [0] * 3, [str(number) for number in range(3)], 0
    numbers = itertools.count(1)
    for now, (task, step) in enumerate(steps):
        told = {"made": made[task], "held": held[task], "want": 0 if held[task] else 4}
        if step == "make":
            if held[task]:
                held[task], made[task] = held[task] - 1, made[task] + 1
            continue
        heard[task] = made[task]
        if step == "give":
            held[task] = 0
            asked(names[task], now, made=made[task], held=0)
        elif step == "leave":
            asked(names[task], now, made=made[task], want=-1)
            left, held[task], made[task], heard[task] = left + made[task], 0, 0, 0
            names[task] = f"{task} {next(numbers)}"
        else:
            number = next(asked.numbers)
            for _ in range(2 if step == "lost" else 1):
                got, is_over, _ = asked(names[task], now, **told, number=number)  # type: ignore[arg-type]
            held[task] += got
            assert is_over == (left + sum(heard) == total)
        assert left + sum(made) + sum(held) <= total
    scripts.close()


async def make_calls(spending: SharedBudget, woken: asyncio.Event, calls: int) -> int:
    """Make so many, each as soon as it may; how many were made before all were spent."""
    for made in range(calls):
        while not spending.ask(1):
            if spending.is_spent(1):
                return made
            woken.clear()
            await woken.wait()
        spending.reserve(1)
    return calls


async def test_a_query_makes_all_calls_of_its_budget(connected: Coordinator) -> None:
    """One task has made its last call, which takes long, and holds others: those that need them get all of them."""
    woken = [asyncio.Event() for _ in range(3)]
    tasks = [budget_of(linked(connected, f"t{number}", one.set), 200) for number, one in enumerate(woken)]
    assert await make_calls(tasks[0], woken[0], 20) == 20
    tasks[0].ask(1)  # and does not use it: its row needs none any more
    both = [make_calls(task, event, 90) for task, event in zip(tasks[1:], woken[1:], strict=True)]
    async with asyncio.timeout(20.0):
        assert await asyncio.gather(*both) == [90, 90]
        assert await make_calls(tasks[1], woken[1], 1) == 0
    for task in tasks:
        await task.close()
