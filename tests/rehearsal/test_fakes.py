"""Jobs of random services are rehearsed and then run, by the real operator on the virtual clock."""

from __future__ import annotations

import pytest

from .fakes import Fake, rehearsed

FAKES, WITHIN = 20, 18


@pytest.fixture(scope="module")
def fakes():
    return [rehearsed(Fake.of(seed)) for seed in range(1, FAKES + 1)]


@pytest.mark.parametrize(
    ("name", "foretold", "came"),
    [
        ("time", lambda told: told.seconds, lambda ran: ran.seconds),
        ("cost", lambda told: told.spent["USD"], lambda ran: ran.spent),
        ("failed rows", lambda told: told.failures, lambda ran: ran.failures),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_the_job_ends_within_the_range_that_was_told(fakes, name, foretold, came):
    missed = [
        f"fake {seed}: told {foretold(told)}, came {came(ran):.4g}"
        for seed, (told, ran) in enumerate(fakes, 1)
        if not foretold(told).low <= came(ran) <= foretold(told).high
    ]
    assert len(missed) <= FAKES - WITHIN, "\n".join(missed)


def test_most_ranges_of_the_time_are_narrow(fakes):
    """A range that holds because it says nothing is of no use."""
    widths = sorted(told.seconds.high / told.seconds.low for told, _ in fakes)
    assert widths[FAKES // 2] < 2.0
