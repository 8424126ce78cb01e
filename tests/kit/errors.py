"""The error of a call, and a value that raises one whenever it is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


class Raises:
    """Fails in all the ways in which a value can be asked."""

    def __init__(self, error: BaseException) -> None:
        object.__setattr__(self, "error", error)

    def __repr__(self) -> str:
        raise object.__getattribute__(self, "error")

    def __getattribute__(self, name: str) -> Any:
        raise object.__getattribute__(self, "error")


def raised(call: Callable[[], Any]) -> BaseException:
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - whatever it is
        call()
    return caught.value
