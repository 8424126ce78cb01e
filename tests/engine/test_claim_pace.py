"""As many calls are claimed ahead as begin before their lookup is old, at most twice as many as before."""

from __future__ import annotations

import pytest

from asyncudf._engine.stored.sharing import ClaimPace


@pytest.mark.parametrize(
    ("begun", "every", "seconds", "ahead"),
    [
        ([1, 1, 1], 1.0, 0.2, [1, 1, 1]),
        ([50, 50, 50, 50], 1.0, 0.2, [2, 4, 8, 10]),
        ([500] * 5, 1.0, 0.2, [2, 4, 8, 16, 20]),
        ([50, 50, 50, 5, 0], 1.0, 0.2, [2, 4, 8, 1, 1]),
        ([10, 10, 10], 0.0, 0.02, [2, 4, 8]),
    ],
    ids=["few begin", "as many as begin in time", "no more than there are slots", "fewer begin", "in one instant"],
)
def test_how_many_are_claimed_ahead(begun: list[int], every: float, seconds: float, ahead: list[int]) -> None:
    """Of 1,000 that were claimed at first, so many begin between two times of claiming."""
    pace, waiting, found = ClaimPace(), 1_000, []
    pace.claimed(waiting, began=0.0, ready=0, seconds=seconds, most=20)
    for number, count in enumerate(begun, 1):
        waiting -= count
        pace.claimed(0, began=number * every, ready=waiting, seconds=seconds, most=20)
        found.append(pace.ahead)
    assert found == ahead
