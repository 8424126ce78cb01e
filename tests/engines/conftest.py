"""One session of Sail for each file."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.not_here import OLDER, skip_where
from tests.kit.sail import sail_session

pytest_runtest_call = pytest_runtest_setup = skip_where(OLDER)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    with sail_session() as session:
        yield session
