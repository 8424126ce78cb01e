"""Bounds add up and multiply, and what is not known stays so; how long calls take."""

from asyncudf._observe.planned_calls import Bounds, expected_seconds


def test_bounds_add_up_multiply_and_join() -> None:
    assert Bounds(1, 2) + Bounds(3, 4) == Bounds(4, 6)
    assert Bounds(1, 2) + Bounds(3, None) == Bounds(4, None)
    assert Bounds(0, 9, Bounds(3, 4)) + Bounds(1, 2) == Bounds(1, 11, Bounds(4, 6))
    assert Bounds(0, 9, Bounds(3, 4)) + Bounds(0, 5, Bounds(1, 1)) == Bounds(0, 14, Bounds(4, 5))
    assert Bounds(1, 2) * Bounds(3, 4) == Bounds(3, 8)
    assert Bounds(1, 2) * Bounds(0, None) == Bounds(0, None)
    assert Bounds(2, 3) | Bounds(1, 4) == Bounds(4, 4) | Bounds(1, 1) == Bounds(1, 4)
    assert Bounds(1, 2) | Bounds(0, None) == Bounds(0, None)
    assert Bounds(0, 0) * Bounds(0, None) == Bounds(0, None) * Bounds(0, 0) == Bounds(0, 0)


def test_no_call_takes_no_time_and_a_few_take_one_latency() -> None:
    assert expected_seconds(0, 2.0, 100, 4, until_begun=1) == 0
    assert expected_seconds(3, 2.0, 100, 4) == 2.0
    assert expected_seconds(800, 2.0, 100, 4) == 4.0
    assert expected_seconds(800, 2.0, 100, 4, until_begun=1) == 4.0
    assert expected_seconds(800, 2.0, 100, 4, until_begun=79) == 81.0
