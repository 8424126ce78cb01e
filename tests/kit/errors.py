"""The error of a call, one that fails the task, and a value that raises one whenever it is asked."""

from __future__ import annotations

import types
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import pytest

from asyncudf import AsyncUDFError, FatalError
from asyncudf._errors.answers import answer_of
from asyncudf._errors.call_outcome import outcome_of
from asyncudf._spark.worker import ErrorReporting


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


class Facts(NamedTuple):
    """What is read in the error of a client.

    Attributes:
        status: the HTTP status.
        retry_after: seconds after which the service wants to be asked again.
        outcome: of the service: "answered", "throttled", "down" or "nothing".
        pause: seconds for which all calls wait.
    """

    status: int | None
    retry_after: float | None
    outcome: str
    pause: float | None


def facts_of(error: BaseException) -> Facts:
    """What limits, retries and figures go by; an error of a call, whichever client raised it."""
    refusal = answer_of(error).refusal
    pause = None if refusal is None else refusal.seconds
    return Facts(answer_of(error).status, answer_of(error).wait, outcome_of(error).value, pause)


def in_a_worker(*, full: bool | None = None) -> AbstractContextManager[None]:
    """The block runs as in Spark's worker, which shows an error of ours by its message and its notes.

    Args:
        full: with all frames; None reads the environment now, as where a query is planned.
    """
    return ErrorReporting() if full is None else ErrorReporting(full)


def as_pyspark(package: str = "pyspark") -> Callable[..., Any]:
    """A frame of PySpark's worker, which has a stream to Spark: it calls a function with arguments."""

    def main(outfile: Any, function: Any, *args: Any) -> Any:
        return function(*args)

    return types.FunctionType(main.__code__, {**main.__globals__, "__package__": package})
