"""Tests are skipped that are about what this engine or this version cannot do, where that is said by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

__all__ = ("OLDER", "REFUSED", "skip_where")

# What is said, and why the test is skipped.
OLDER = {
    r"from version (4\.\d) on": "this needs Spark {}",
    r"(Sail) makes with a client of Spark (4\.\d)": "{} needs the client of Spark {}",
}
REFUSED = {
    r"JVM_ATTRIBUTE_NOT_SUPPORTED|sparkContext\(\) is not implemented": "this needs the JVM of Spark",
    r"FunctionError: .*?\b(Sail \w+ [^:;.,]*)": "refused: {}",
}


def skip_where(reasons: dict[str, str]) -> Callable[[], Iterator[None]]:
    """A hook around a test: `pytest_runtest_call` and `pytest_runtest_setup` of a conftest."""

    @pytest.hookimpl(wrapper=True)
    def hook() -> Any:
        try:
            return (yield)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            for pattern, why in reasons.items():
                if found := re.search(pattern, said):
                    pytest.skip(why.format(*found.groups()))
            raise

    return hook
