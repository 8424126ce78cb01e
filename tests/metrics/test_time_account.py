"""The account of time: each moment belongs to one state, and all of them add up."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from asyncudf._observe.time_account import SparkThread, State, TimeAccount


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def spent(account: TimeAccount) -> dict[str, float]:
    return {state.name: round(s, 6) for state, s in account.look(was_blocked=False).items() if s}


def test_time_goes_to_the_state_that_was_entered() -> None:
    clock = Clock()
    account = TimeAccount(clock)
    clock.now += 1
    account.enter(State.INPUT)
    clock.now += 2
    account.enter(State.CALLS_BUSY)
    account.enter(State.CALLS_BUSY)
    clock.now += 4
    assert spent(account) == {"START_AND_END": 1, "INPUT": 2, "CALLS_BUSY": 4}


STEPS = st.lists(
    st.tuples(st.floats(0, 1e4), st.sampled_from([*State, "look", "blocked", "leave", "come back"])), max_size=60
)


@given(STEPS)
def test_the_states_add_up_to_the_life(steps: list[tuple[float, object]]) -> None:
    """Whatever happens in whatever order: no second is lost, none counts twice, none is negative."""
    clock = Clock()
    spark_thread = SparkThread(clock)
    account = TimeAccount(clock, spark_thread)
    for seconds, step in steps:
        clock.now += seconds
        match step:
            case State():
                account.enter(step)
            case "leave":
                spark_thread.away.start()
            case "come back":
                spark_thread.away.stop()
            case _:
                account.look(was_blocked=step == "blocked")
    found = account.look(was_blocked=False)
    assert math.isclose(sum(found.values()), clock.now - 100.0, abs_tol=1e-6)
    assert min(found.values()) >= -1e-9


def test_a_blocked_loop_takes_the_time_since_the_last_look() -> None:
    """What seemed to be spent since the last look belongs to the loop that was blocked."""
    clock = Clock()
    account = TimeAccount(clock)
    account.enter(State.CALLS_BUSY)
    clock.now += 1
    account.look(was_blocked=False)
    clock.now += 2
    account.enter(State.INPUT)
    clock.now += 3
    account.look(was_blocked=True)
    clock.now += 4
    assert spent(account) == {"CALLS_BUSY": 1, "BLOCKED_LOOP": 5, "INPUT": 4}


def test_no_input_while_spark_is_away_with_results_is_output() -> None:
    """Spark's thread cannot bring rows while it hands over results: that is the reader's time, and not the source's.

    While calls go on it does not matter where it is.
    """
    clock = Clock()
    spark_thread = SparkThread(clock)
    account = TimeAccount(clock, spark_thread)
    account.enter(State.INPUT)
    clock.now += 1
    spark_thread.away.start()
    clock.now += 2
    spark_thread.away.stop()
    clock.now += 4
    spark_thread.away.start()
    clock.now += 8
    assert spent(account) == {"INPUT": 5, "OUTPUT": 10}
    account.enter(State.CALLS_BUSY)
    clock.now += 64
    account.enter(State.INPUT)
    clock.now += 16
    spark_thread.away.stop()
    clock.now += 32
    assert spent(account) == {"INPUT": 37, "OUTPUT": 26, "CALLS_BUSY": 64}


def test_each_operator_of_a_chain_has_its_own_account_of_it() -> None:
    """Two that wait for input at once both see that Spark is away, however rarely they look."""
    clock = Clock()
    spark_thread = SparkThread(clock)
    accounts = [TimeAccount(clock, spark_thread), TimeAccount(clock, spark_thread)]
    for account in accounts:
        account.enter(State.INPUT)
    for _ in range(1000):
        spark_thread.away.start()
        clock.now += 0.005
        spark_thread.away.stop()
        clock.now += 0.005
    assert [spent(account) for account in accounts] == [{"INPUT": 5, "OUTPUT": 5}] * 2
