"""The server's times are known on the task's clock, to within the fastest answer, and never too early."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncudf._limits.coordinator.client import DRIFT, ServerTime

TRIPS = st.lists(st.tuples(st.floats(0, 0.2), st.floats(0, 0.2), st.floats(0, 5)), min_size=1, max_size=30)


@given(st.floats(-1e9, 1e9), TRIPS)
def test_a_time_is_never_early_and_late_by_the_fastest_answer(
    ahead: float, trips: list[tuple[float, float, float]]
) -> None:
    """Whatever the clocks differ by: the way there, the way back, and a pause, each as long as it happens to be."""
    time, now, fastest = ServerTime(), 100.0, math.inf
    for there, back, pause in trips:
        sent, said, now = now, now + there + ahead, now + there + back
        time.update(sent, said, now)
        late = time.ours(said) - (said - ahead)
        assert late >= -1e-6
        assert late <= back + 1e-6
        assert time.theirs(time.ours(said)) == pytest.approx(said, abs=1e-6)
        fastest = min(fastest, back)
        assert late <= fastest + DRIFT * (now - 100.0) + 1e-6
        now += pause


@pytest.mark.parametrize("step", [5.0, -5.0, 86400.0])
def test_a_clock_that_is_set_is_believed_at_once(step: float) -> None:
    """The server's, forward or back: the next answer tells, and the old ones no longer count."""
    time = ServerTime()
    for number in range(10):
        time.update(float(number), number + 1000.0, number + 0.001)
    time.update(20.0, 1020.0 + step, 20.001)
    assert time.ours(1020.0 + step) == pytest.approx(20.001, abs=1e-6)
