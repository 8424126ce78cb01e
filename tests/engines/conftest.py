"""One session of Sail for each file."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.sail import sail_session


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with sail_session() as session:
        yield session
