"""A marker for the tests that run a type checker, which takes seconds even where there is nothing new to check."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "types: runs mypy or pyright")
