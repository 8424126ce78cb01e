"""Shares of the calls in flight never add up to too many, are fair, and come back from tasks that are gone."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf._limits.capacity.job import PREPARE, SHARE
from tests.kit.coordinators import Scripts, Server, space_of_its_own

pytestmark = pytest.mark.services

LEASE = 4.0
KEYS = ["x", "leases", "pace"]
Ask = Callable[..., int]


@pytest.fixture
def ask(scripts: Scripts) -> Ask:
    """A task asks for its share: its name, the time, calls in flight and wanted, of how many in all."""
    scripts.run(PREPARE, 0.0, ["x"])

    def asked(task: str, now: float, flying: int, wanted: int, total: int = 40) -> int:
        return int(scripts.run(SHARE, now, KEYS, task, total, flying, wanted, LEASE)[1])

    return asked


def test_the_second_gets_its_half_as_the_first_lets_go(ask: Ask) -> None:
    """The first is told at once to begin no more; what it still has in flight is not given away."""
    assert ask("a", 0.0, 0, 100) == 40
    assert ask("b", 0.1, 0, 100) == 0
    assert ask("a", 0.2, 40, 100) == 20
    assert ask("b", 0.3, 0, 100) == 0
    assert ask("a", 0.4, 25, 100) == 20
    assert ask("b", 0.5, 0, 100) == 15
    assert ask("a", 0.6, 20, 100) == 20
    assert ask("b", 0.7, 15, 100) == 20


def settled(ask: Ask, wanted: dict[str, int], total: int = 40) -> dict[str, int]:
    """Shares after some rounds, in which each task has as much in flight as it may."""
    shares = dict.fromkeys(wanted, 0)
    for number in range(4):
        for place, (task, want) in enumerate(wanted.items()):
            shares[task] = ask(task, number + 0.1 * place, min(shares[task], want), want, total)
    return shares


@pytest.mark.parametrize(
    ("wanted", "shares"),
    [
        ([100, 100, 100, 100], [10, 10, 10, 10]),
        ([2, 100, 100, 100], [2, 12, 13, 13]),
        ([1, 1, 1, 1], [1, 1, 1, 1]),
        ([0, 0, 50, 0], [0, 0, 40, 0]),
        ([100] * 3, [14, 13, 13]),
    ],
)
def test_what_one_does_not_need_the_others_share(ask: Ask, wanted: list[int], shares: list[int]) -> None:
    """Equal parts, none above its wish, nothing left while anybody wants it."""
    found = settled(ask, {f"task{number}": want for number, want in enumerate(wanted)})
    assert sorted(found.values()) == sorted(shares)


def test_with_fewer_calls_than_tasks_the_oldest_go_first(ask: Ask) -> None:
    """So that they come to an end and make room."""
    assert settled(ask, {"a": 5, "b": 5, "c": 5}, total=2) == {"a": 1, "b": 1, "c": 0}


def test_a_task_that_is_gone_gives_its_share_back(ask: Ask) -> None:
    """One that has left at once, one that was killed when its lease is over."""
    ask("a", 0.0, 0, 30)
    ask("b", 0.1, 0, 30)
    for half in range(1, 9):
        assert ask("c", half / 2, 0, 30) == 0
    assert ask("c", LEASE + 0.05, 0, 30) == 20  # b is still there
    assert ask("b", LEASE + 0.1, 0, -1) == 0
    assert ask("c", LEASE + 0.1, 20, 100) == 40


def test_after_a_loss_of_memory_tasks_keep_what_they_have(scripts: Scripts, ask: Ask) -> None:
    """For as long as a lease nobody gets more than he says to have: others may not have been heard of yet."""
    ask("a", 0.0, 0, 100)
    scripts.forget()
    assert ask("new", 10.0, 0, 100) == 0
    assert ask("a", 10.1, 35, 100) == 35
    assert ask("new", 10.0 + LEASE - 0.1, 0, 100) == 0
    assert ask("new", 10.0 + LEASE, 0, 100) == 5


def test_who_comes_first_after_an_outage_is_not_alone(ask: Ask) -> None:
    """The server was away for longer than a lease and has kept its data; the first to ask is a task that is new.

    Calls of the others go on, and whoever has been killed meanwhile is gone a lease later.
    """
    assert ask("a", 0.0, 0, 100) == 40
    assert ask("a", 0.1, 40, 100) == 40
    assert [ask("new", 9.0 + half / 2, 0, 100) for half in range(7)] == [0] * 7
    assert ask("a", 12.4, 40, 100) == 20
    assert [ask("new", 12.5 + half / 2, 0, 100) for half in range(8)] == [0] * 8
    assert ask("new", 16.5, 0, 100) == 40


def test_a_task_that_was_busy_with_itself_has_its_share_at_once(ask: Ask) -> None:
    """Nobody asked because nobody else is there, and a call has held up the loop."""
    assert ask("a", 0.0, 0, 100) == 40
    assert ask("a", 30.0, 10, 100) == 40


def test_a_server_with_other_data_knows_little(scripts: Scripts, ask: Ask) -> None:
    """An old copy, or a replica that was behind: there is a task less in it, or one with a smaller share."""
    assert ask("a", 0.0, 0, 10) == 10
    old = scripts.run(COPY, 0.0, ["x"])
    assert ask("b", 0.1, 0, 100) == 30
    assert ask("a", 0.2, 0, 10) == 10
    assert ask("b", 0.3, 0, 5) == 5
    assert ask("a", 0.4, 0, 35) == 35
    scripts.run(PUT_BACK, 0.6, ["x"], *old, "run", "of another server")
    assert ask("c", 1.0, 0, 100) == 0
    assert ask("b", 1.1, 5, 5) == 5
    assert ask("a", 1.2, 35, 35) == 35
    assert ask("c", 2.0, 0, 100) == 0


COPY = "return redis.call('HGETALL', KEYS[1])"
PUT_BACK = "redis.call('DEL', KEYS[1]) redis.call('HSET', KEYS[1], unpack(ARGV, 2))"
HELD = 3.4  # seconds at least that a lease is held yet, by a task that asks twice a second
BACK = 2.9  # seconds within which such tasks have found a server that was away

STEPS = st.lists(
    st.tuples(
        st.integers(0, 4),  # which task
        st.floats(0, 1.5),  # seconds later
        st.integers(-1, 30),  # calls wanted
        st.integers(0, 30),  # calls that end meanwhile
        st.booleans(),  # whether it starts as many as it may
    ),
    max_size=40,
)


@given(
    total=st.integers(1, 30),
    steps=STEPS,
    lost_at=st.integers(0, 60),
    copied_at=st.integers(0, 20),
    away_at=st.integers(0, 40),
    away=st.floats(0, 20),
    is_old=st.booleans(),
)
def test_never_more_than_all(
    server: Server,
    total: int,
    steps: list[tuple[int, float, int, int, bool]],
    lost_at: int,
    copied_at: int,
    away_at: int,
    away: float,
    is_old: bool,
) -> None:
    """Tasks that heed their shares and leases have at most `total` in flight, whatever the server forgets.

    It may be away while calls go on, and come back with its data or with an old copy.
    """
    old: list[str] = []
    scripts = Scripts(server)
    scripts.space = space_of_its_own()
    scripts.run(PREPARE, 0.0, ["x"])
    now = 0.0
    flying, ends, share = [0] * 5, [-1.0] * 5, [0] * 5
    for number, (task, passed, wanted, ended, starts) in enumerate(steps):
        now += passed
        if number == lost_at:
            scripts.run("redis.call('DEL', KEYS[1])", now, ["x"])
        if number == copied_at:
            old = scripts.run(COPY, now, ["x"])
        if number == away_at:
            begin, now = now, now + away
            ends = [max(end, now + BACK) if end >= begin + HELD else end for end in ends]
            if is_old and old:
                scripts.run(PUT_BACK, now, ["x"], *old, "run", "of another server")
        for other in range(5):
            if now > ends[other]:  # killed, or it lost the coordinator and its calls have ended since
                flying[other] = 0
        flying[task] = max(0, flying[task] - ended)
        wanted = max(wanted, flying[task]) if wanted >= 0 else -1
        if wanted < 0:
            flying[task] = 0
        share[task] = int(scripts.run(SHARE, now, KEYS, f"t{task}", total, flying[task], wanted, LEASE)[1])
        ends[task] = now + LEASE
        if starts and wanted >= 0:
            flying[task] = max(flying[task], min(wanted, share[task]))
        assert sum(flying) <= total
    scripts.close()
