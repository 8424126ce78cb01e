"""How thorough random tests are: few examples and seeds, or many with `--hypothesis-profile=thorough`."""

from __future__ import annotations

from hypothesis import settings

__all__ = ("EXAMPLES", "THOROUGH_EXAMPLES", "examples", "times")


EXAMPLES = 25
THOROUGH_EXAMPLES = 500


def examples(share: float) -> int:
    """This share of the examples that a test tries by default; for tests whose examples are slow, or very quick."""
    return max(1, round(share * settings().max_examples))


def times(default: int, thorough: int) -> range:
    """The seeds or turns of a random test: `default` many, or `thorough` many."""
    return range(thorough if settings().max_examples >= THOROUGH_EXAMPLES else default)
