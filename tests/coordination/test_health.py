"""The tasks of a job find out together that a service is dead, try it one at a time, and pause together."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf import CircuitBreaker
from asyncudf._errors.call_outcome import CallOutcome
from asyncudf._limits.health.breaker import Breaker
from asyncudf._limits.health.job import HEALTH, SharedHealth
from tests.kit.coordinators import OnGivenTime, Scripts, Server, linked, space_of_its_own

pytestmark = pytest.mark.services

UP, DOWN, NOTHING = CallOutcome.ANSWERED, CallOutcome.DOWN, CallOutcome.NOTHING
LEASE = 4.0


class Told:
    """Tells the coordinator, and keeps the answer."""

    def __init__(self, scripts: Scripts, window: int = 4, open_for: float = 10.0) -> None:
        self._scripts, self._window, self._open_for = scripts, window, open_for

    def __call__(
        self,
        task: str,
        now: float,
        outcomes: str = "",
        probe: str = "",
        *,
        ticket: int = 0,
        pause: float = 0.0,
        accepted: float | str = "",
    ) -> Told:
        options = (self._window, 0.5, self._open_for, LEASE, ticket, outcomes, probe, pause, accepted)
        answer = self._scripts.run(HEALTH, now, ["x", "pace"], task, *options)
        _, _, number, since, probe_at, mine, paused, last, seen = answer
        self.accepted_at = float(last)
        self.is_in_doubt = CircuitBreaker(window=self._window).doubts([one == "f" for one in reversed(seen)])
        self.ticket, self.since = int(number), float(since) if since else None
        self.probe_at, self.is_prober, self.paused_until = float(probe_at), bool(int(mine)), float(paused)
        return self


@pytest.fixture
def told(scripts: Scripts) -> Told:
    return Told(scripts)


def test_the_outcomes_of_all_tasks_are_one_window(told: Told) -> None:
    """Two failures of one task and two of another open it for both, by the clock of the coordinator."""
    assert told("a", 1.0, "ff").since is None
    assert told("b", 2.0, "ff").since == 2.0
    assert told("a", 3.0).since == 2.0
    assert (told.ticket, told.probe_at) == (1, 12.0)


def test_what_began_before_it_opened_counts_no_more(told: Told) -> None:
    """Neither while it is open nor after it has closed again."""
    told("a", 1.0, "ffff")
    assert told("b", 2.0, "ssss", ticket=0).since == 1.0
    told("a", 11.0, probe="ask")
    assert told("a", 12.0, probe="s").since is None
    assert told("b", 13.0, "ffff", ticket=0).since is None
    assert told("b", 13.0, "ffff", ticket=told.ticket).since == 13.0


def test_one_task_has_the_probe(told: Told) -> None:
    """Whoever asks first when it is time; the others hear that they have not."""
    told("a", 0.0, "ffff")
    assert not told("a", 9.9, probe="ask").is_prober
    assert told("b", 10.0, probe="ask").is_prober
    assert not told("a", 10.1, probe="ask").is_prober
    assert not told("b", 11.0, probe="f").is_prober
    assert not told("a", 20.9, probe="ask").is_prober
    assert told("a", 21.0, probe="ask").is_prober


def test_a_probe_whose_task_is_gone_is_given_to_another(told: Told) -> None:
    """After a lease without a word; one that takes long is held by telling so."""
    told("a", 0.0, "ffff")
    told("a", 10.0, probe="ask")
    told("a", 13.0, probe="hold")
    assert not told("b", 16.9, probe="ask").is_prober
    assert told("b", 17.0, probe="ask").is_prober
    assert told("a", 18.0, probe="s").since == 0.0  # too late: the probe is no longer its
    assert told("b", 18.0, probe="s").since is None


def test_a_pause_is_the_longest_that_was_asked_for(told: Told) -> None:
    """By any task."""
    assert told("a", 1.0, pause=5.0).paused_until == 6.0
    assert told("b", 2.0, pause=1.0).paused_until == 6.0
    assert told("c", 2.0, pause=30.0).paused_until == 32.0


def test_the_last_accepted_call_is_that_of_any_task(told: Told) -> None:
    assert told("a", 1.0).accepted_at == 0.0
    assert told("a", 10.0, accepted=2.0).accepted_at == 8.0
    assert told("b", 11.0).accepted_at == 8.0
    assert told("b", 12.0, accepted=10.0).accepted_at == 8.0
    assert told("b", 13.0, accepted=0.5).accepted_at == 12.5


STEPS = st.lists(st.tuples(st.floats(0, 8), st.sampled_from([UP, DOWN, NOTHING])), max_size=60)


@given(STEPS, st.sampled_from([1, 3, 8]))
def test_it_decides_as_the_breaker_of_one_task(
    server: Server, steps: list[tuple[float, CallOutcome]], window: int
) -> None:
    """Call by call: open at the same times, with probes at the same times."""
    scripts = Scripts(server)
    scripts.space = space_of_its_own()
    told, breaker, now = Told(scripts, window), Breaker(CircuitBreaker(window=window, open_for=10.0)), 0.0
    told("a", now)
    for passed, sign in steps:
        now += passed
        ticket = breaker.admit(now)
        was_open = told.since is not None
        if was_open:
            told("a", now, probe="ask", ticket=told.ticket)
        assert (ticket is not None) is (not was_open or told.is_prober)
        if ticket is None:
            continue
        breaker.ended(ticket, sign, now)
        letter = {UP: "s", DOWN: "f", NOTHING: "n"}[sign]
        if was_open:
            told("a", now, probe=letter, ticket=told.ticket)
        else:
            told("a", now, letter.replace("n", ""), ticket=told.ticket)
        assert told.since == breaker.open_since
    scripts.close()


@pytest.mark.parametrize("shares", [(0.0, 0.6), (0.3, 1.0), (0.4, 0.7), (0.45, 0.45), (1.0, 0.5)])
@pytest.mark.parametrize("window", [8, 20])
def test_it_tells_failures_from_chance_as_the_breaker_of_one_task(
    server: Server, shares: tuple[float, float], window: int
) -> None:
    """Of a service that changes after 150 calls."""
    scripts, rng = Scripts(server), random.Random(window)
    scripts.space = space_of_its_own()
    told, breaker = Told(scripts, window), Breaker(CircuitBreaker(window=window))
    for number in range(400):
        sign = DOWN if rng.random() < shares[number >= 150] else UP
        breaker.ended(breaker.admit(0.0) or 0, sign, 0.0)
        told("a", 0.0, "f" if sign is DOWN else "s")
        assert (told.since is not None, told.is_in_doubt) == (breaker.open_since is not None, breaker.is_in_doubt)
        if told.since is not None:
            break
    scripts.close()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10.0):
        while not is_so():
            await asyncio.sleep(0.005)


async def test_tasks_hear_of_each_other(connection: OnGivenTime) -> None:
    """One sees failures, three stop; one of them tries, and when it is answered all go on."""
    options = CircuitBreaker(window=4, open_for=0.3)
    tasks = [SharedHealth(linked(connection, f"t{number}"), "x", options) for number in range(3)]
    await until(lambda: all(task.admit(0.0) is not None for task in tasks))
    for _ in range(4):
        ticket = tasks[0].admit(0.0)
        assert ticket is not None
        tasks[0].ended(ticket, DOWN, 0.0)
    await until(lambda: all(task.open_since is not None for task in tasks))
    opened = [task.open_since or 0.0 for task in tasks]
    assert max(opened) - min(opened) < 0.05
    assert 0.0 <= asyncio.get_running_loop().time() - opened[0] <= 0.3  # each hears four times a second

    probes = 0
    for sign in (DOWN, NOTHING, UP):
        found: list[tuple[SharedHealth, int]] = []
        while not found:
            await asyncio.sleep(0.005)
            found = [(task, task.admit(0.0) or 0) for task in tasks if task.wait(0.0) == 0.0]
        await asyncio.sleep(0.05)
        assert [task.wait(0.0) for task in tasks] == [None] * 3
        ((prober, ticket),) = found
        prober.ended(ticket, sign, 0.0)
        probes += 1
    await until(lambda: all(task.open_since is None for task in tasks))
    assert probes == 3
    assert asyncio.get_running_loop().time() - opened[0] >= 0.6
    for task in tasks:
        await task.close()


async def test_a_task_without_rows_does_not_keep_the_probe(connection: OnGivenTime) -> None:
    """It was to try, and had nothing left to try with: another task tries in its place."""
    options = CircuitBreaker(window=1, open_for=0.1)
    one = SharedHealth(linked(connection, "one"), "x", options)
    one.ended(0, DOWN, 0.0)
    await until(lambda: one.open_since is not None)
    assert one.wait(0.0) is None
    await until(lambda: one.wait(0.0) == 0.0)  # it may try, and does not
    other = SharedHealth(linked(connection, "other"), "x", options)
    await until(lambda: other.open_since is not None)
    await until(lambda: other.wait(0.0) == 0.0)
    assert one.wait(0.0) is None
    await one.close()
    await other.close()


async def test_while_one_task_probes_the_others_ask_for_news_and_no_more(connection: OnGivenTime) -> None:
    """A probe may hang for minutes, in which each task asked fifty times a second."""
    options = CircuitBreaker(window=1, open_for=0.1)
    tasks = [SharedHealth(linked(connection, f"t{number}"), "x", options) for number in range(3)]
    tasks[0].ended(0, DOWN, 0.0)
    await until(lambda: all(task.wait(0.0) is None for task in tasks))
    await until(lambda: any(task.wait(0.0) == 0.0 for task in tasks))
    (prober,) = (task for task in tasks if task.wait(0.0) == 0.0)
    assert prober.admit(0.0) is not None
    with mock.patch.object(connection, "run", wraps=connection.run) as run:
        await asyncio.sleep(60.0)
    assert run.call_count <= 3 * 60 / 0.25
    for task in tasks:
        await task.close()


async def test_a_task_that_begins_asks_first_what_others_have_seen(connection: OnGivenTime) -> None:
    """In the midst of an outage or a pause its calls would fail, and nobody would know why."""
    heard: list[bool] = []
    late = SharedHealth(linked(connection, "late", lambda: heard.append(True)), "x", None)
    assert late.paused_until is None, "not known yet"
    await until(lambda: bool(heard))
    assert late.paused_until is not None
    assert late.paused_until <= 0.0
    await late.close()


async def test_a_pause_of_one_task_is_one_of_all(connection: OnGivenTime) -> None:
    """Within a moment each knows until when; and is woken to see it."""
    heard: list[float] = []  # until when, each time that it was woken
    one = SharedHealth(linked(connection, "one"), "x", None)
    other = SharedHealth(linked(connection, "other", lambda: heard.append(other.paused_until)), "x", None)
    end = asyncio.get_running_loop().time() + 5.0
    one.pause(end)
    await until(lambda: heard[-1:] == [pytest.approx(end, abs=0.1)])
    assert other.admit(0.0) is not None
    await one.close()
    await other.close()
