"""The error of a call, one that fails the task, and a value that raises one whenever it is asked."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from asyncudf import AsyncUDFError
from asyncudf._errors.exceptions import FatalError


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


def task_fails(match: str | None = None) -> AbstractContextManager[pytest.ExceptionInfo[AsyncUDFError]]:
    """The block raises an error that fails the task under every policy and is not tried again."""
    return pytest.raises(FatalError, match=match)


def is_of_the_task(error: BaseException) -> bool:
    """Whether an error is such a one."""
    return type(error) is FatalError
