"""Names of the cases of a test: the same in each process, so that several can share the tests."""

from __future__ import annotations

import re

__all__ = ("shown",)


def shown(value: object) -> str:
    """The repr of a value without where it is in memory."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))
