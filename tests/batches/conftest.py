"""Tasks run in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.batch_folders import killable


@pytest.fixture(autouse=True)
def _killable() -> Iterator[None]:
    with killable():
        yield
